"""Consecutive runs, and nodes that join and leave: all views report them completely and consistently."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from shoal.core.quantities import show_progress
from shoal.ledger.bulk_reader import LedgerTail, read_into
from shoal.ledger.records import DETACHED, NodeSeen, NodeTold, Record, RunStarted, TasksCancelled, TaskStarted, encode
from shoal.ledger.status import Follower, RunPhase, RunStatus
from shoal.ledger.views.progress import progress
from shoal.ledger.views.run import RunView
from shoal.ledger.views.tables import node_rows
from shoal.ledger.workspace import LockHolder, Workspace
from shoal.ui.cli.report import data_of
from shoal.ui.cli.status_tables import describe, headline, state_as_data
from shoal.ui.web.tasks import list_tasks
from shoal.ui.web.watch import Watch
from support.views import BEGAN, ended, linked, over, planned, started, view_of

HEAD: list[Record] = [started(2, cores=1.0), planned(["a", "a"])]
IDLE = msgspec.structs.replace(started(0, total=2), run="def", time=BEGAN + 60.0)


def another(seconds: float, to_run: int = 2) -> RunStarted:
    """The head that a client wrote that came back to a run, in earlier versions."""
    return msgspec.structs.replace(started(to_run, cores=1.0, total=2), time=BEGAN + seconds)


def workspace_of(folder: Path, *records: Record) -> Workspace:
    workspace = Workspace(str(folder / "flow.py"))
    workspace.make()
    Path(workspace.ledger).write_bytes(b"".join(map(encode, records)))
    return workspace


def state_of(*records: Record, skip_idle: bool = False) -> RunStatus:
    state = RunStatus(skip_idle=skip_idle)
    for record in records:
        state.take(record)
    return state


def test_a_run_that_was_attached_to_took_as_long_as_it_took() -> None:
    left: list[Record] = [*HEAD, over(0.5, DETACHED), another(20.0), planned(["a", "a"])]
    records: list[Record] = [*left, ended(0, 1.0, 6.0), ended(1, 6.0, 11.0), over(20.02)]
    state, told = state_of(*records), progress(view_of(*records))
    assert state.start is not None and state.last_time - state.start.time == pytest.approx(19.52)
    assert told.elapsed == pytest.approx(19.52)
    assert told.utilisation == pytest.approx(10 / 19.52)
    assert state.progress(BEGAN + 99.0).utilisation == pytest.approx(10 / 19.52)


def test_what_was_known_before_it_was_attached_to_is_not_counted_again() -> None:
    known: list[Record] = [ended(0, 1.0, 6.0)]
    rest: list[Record] = [another(20.0, to_run=1), planned(["a", "a"]), ended(1, 6.0, 11.0), over(20.0)]
    records: list[Record] = [*HEAD, *known, *rest]
    state, told = state_of(*records), progress(view_of(*records))
    assert (told.done, told.to_run, told.up_to_date, told.elapsed) == (1, 1, 1, 14.0)
    assert (len(state.done), state.to_run(), state.up_to_date()) == (1, 1, 1)


def test_status_shows_the_run_before_one_that_had_nothing_to_do(tmp_path: Path) -> None:
    ends: list[Record] = [ended(0, 0.0, 1.0), ended(1, 1.0, 2.0), over(2.0)]
    workspace = workspace_of(tmp_path, *HEAD, *ends, IDLE, over(60.1))
    follower = Follower(workspace, skip_idle=True)
    phase = follower.refresh()
    lines = describe(follower, phase, BEGAN + 70.0)
    assert phase is RunPhase.ENDED and "2 of 2 tasks done" in lines[0]
    assert lines[1].startswith("run again at ") and lines[1].endswith(": nothing to do, 2 tasks are up to date")
    assert state_as_data(follower, phase, BEGAN + 70.0)["nothing_to_do"] == {"run": "def", "started": BEGAN + 60.0}


def test_a_first_run_that_has_nothing_to_do_says_so(tmp_path: Path) -> None:
    follower = Follower(workspace_of(tmp_path, IDLE, over(60.1)), skip_idle=True)
    phase = follower.refresh()
    assert headline("flow.py", follower, phase, BEGAN + 70.0).endswith(", nothing to do, 2 tasks are up to date")


def test_a_run_that_has_the_lock_and_has_not_written_yet_is_starting(tmp_path: Path) -> None:
    workspace = workspace_of(tmp_path, *HEAD, ended(0, 0.0, 1.0), over(2.0, "failed"))
    workspace.acquire(LockHolder(1, "here", "new", 0.0))
    try:
        follower = Follower(workspace, skip_idle=True)
        phase = follower.refresh()
        assert describe(follower, phase, BEGAN + 70.0) == ["flow.py: a run is starting"]
        assert state_as_data(follower, phase, BEGAN + 70.0)["done"] == 0
    finally:
        workspace.release()


@pytest.mark.parametrize("idle", [True, False])
def test_the_page_of_a_run_with_nothing_to_do_that_goes_on_shows_the_one_before_it(tmp_path: Path, idle: bool) -> None:
    begins = IDLE if idle else msgspec.structs.replace(IDLE, to_run=1)
    workspace = workspace_of(tmp_path, *HEAD, ended(0, 0.0, 1.0), ended(1, 1.0, 2.0), over(2.0), begins)
    workspace.acquire(LockHolder(1, "here", "def", 0.0))
    try:
        watch = Watch(workspace, skip_idle=True)
        watch.refresh()
        assert watch.view.start is not None
        assert (watch.view.start.run, watch.view.number) == (("abc", 1) if idle else ("def", 2))
    finally:
        workspace.release()


def test_what_a_node_said_a_moment_ago_runs_no_more_when_everything_is_done() -> None:
    seen = NodeSeen(BEGAN, 1, "n1", [("cores", 20_000)])
    records: list[Record] = [*HEAD, seen, NodeTold(BEGAN + 1.0, 1, running=1), ended(0, 0.0, 1.1), ended(1, 0.0, 1.2)]
    state, told = state_of(*records), progress(view_of(*records), BEGAN + 1.5)
    assert (told.done, told.running, told.waiting) == (2, 0, 0)
    assert (len(state.done), state.running_now(), state.waiting()) == (2, 0, 0)
    assert show_progress(6, 7) == "86 %" and show_progress(999_999, 1_000_000) == "99 %"


def test_what_was_done_and_fails_when_it_is_made_again_has_failed() -> None:
    records: list[Record] = [*HEAD, ended(0, 0.0, 1.0), ended(1, 0.0, 1.0), ended(0, 2.0, 3.0, "failed", attempt=2)]
    state, told = state_of(*records), progress(view_of(*records), BEGAN + 4.0)
    assert (told.done, told.failed, told.over) == (1, 1, 2)
    assert (len(state.done), len(state.failed), state.over()) == (1, 1, 2)


def test_one_that_was_done_all_the_same_is_neither_cancelled_nor_in_want_of_what_was() -> None:
    head: list[Record] = [started(3), planned(["a", "a", "a"]), linked({0: [-1], 1: [0], 2: [0]})]
    records: list[Record] = [*head, TasksCancelled([0]), ended(0, 0.0, 1.0), ended(1, 1.0, 2.0)]
    piecewise = RunView()
    for record in records:
        piecewise.take(record)
        progress(piecewise, BEGAN + 4.0)
    for told in (progress(view_of(*records), BEGAN + 4.0), progress(piecewise, BEGAN + 4.0)):
        assert (told.done, told.cancelled, told.cannot_run, told.waiting) == (2, 0, 1, 0)
    state = state_of(*records)
    assert (len(state.done), state.cancelled(), state.cannot_run(), state.waiting()) == (2, 0, 1, 0)


def test_a_node_that_was_gone_before_anybody_knew_its_cores_has_no_share() -> None:
    seen = [NodeSeen(BEGAN, 1, "n1", [("cores", 10_000)]), NodeSeen(BEGAN + 2.0, 2, "n2", [])]
    first, second = node_rows(view_of(*HEAD, *seen, ended(0, -0.5, 2.0, node=1), ended(1, 0.0, 2.0, node=2), over(2.0)))
    assert (first.share, second.share, second.tasks) == (1.0, None, 1)


def test_a_task_that_began_by_a_clock_that_is_behind_has_no_negative_times(tmp_path: Path) -> None:
    going = TaskStarted(1, 1, BEGAN - 0.4, 0, 0.0, -1)
    view = view_of(*HEAD, ended(0, -0.4, 1.0), going)
    told = progress(view, BEGAN + 1.0)
    assert told.utilisation == 1.0 and view.within().tolist() == [1.0]


def test_tasks_that_cannot_run_are_listed_as_such(tmp_path: Path) -> None:
    head: list[Record] = [started(3), planned(["a", "a", "a"]), linked({0: [-1], 1: [0], 2: [-1]})]
    workspace = workspace_of(tmp_path, *head, ended(0, 0.0, 1.0, "failed"))
    workspace.acquire(LockHolder(1, "here", "abc", 0.0))
    try:
        watch = Watch(workspace)
        watch.refresh()
        listed = list_tasks(watch, state="", category="", search="", after=-1, limit=9)["tasks"]
        assert [row["state"] for row in listed] == ["failed", "cannot run", "not started"]
    finally:
        workspace.release()


def test_a_ledger_that_was_mended_has_no_more_done_than_there_is(tmp_path: Path) -> None:
    """The head of the last run stands before the results of all runs."""
    records: list[Record] = [
        msgspec.structs.replace(started(1, total=3), run="def"),
        *(ended(task, 0.0, 1.0) for task in range(3)),
    ]
    view = RunView()
    read_into(view, LedgerTail(workspace_of(tmp_path, *records).ledger))
    told = progress(view)
    assert (told.done, told.to_run, told.up_to_date) == (3, 3, 0)
    assert state_of(*records).to_run() == 3


def test_page_and_report_show_that_a_detached_run_is_on_a_cluster(tmp_path: Path) -> None:
    workspace = workspace_of(tmp_path, *HEAD, over(0.5, DETACHED))
    watch = Watch(workspace, skip_idle=True)
    watch.refresh()
    assert watch.outcome() == DETACHED
    Path(workspace.submission_note).write_bytes(b"")
    assert watch.outcome() == data_of(workspace.workflow)["run"]["outcome"] == RunPhase.AWAY.value
