"""The model of a run: what records become, one at a time or many together, live or afterwards."""

from __future__ import annotations

from pathlib import Path
from time import process_time

import msgspec
import pytest

from shoal.ledger.records import (
    NodeLeft,
    NodeSeen,
    NodeTold,
    Record,
    TaskEnded,
    TasksCancelled,
    TasksPlanned,
    TaskStarted,
    ThrottleDecided,
    Usage,
    decode,
    encode,
)
from shoal.ledger.run_fold import UNKNOWN
from shoal.ledger.status import Follower, RunPhase, RunStatus
from shoal.ledger.views.attempts import End, Used, columns_of
from shoal.ledger.views.failures import cause_of
from shoal.ledger.views.progress import progress
from shoal.ledger.views.run import RunView
from shoal.ledger.views.tables import MOST_CAUSES, category_rows, failure_causes, node_rows
from shoal.ledger.views.waits import TaskWaits
from shoal.ledger.workspace import Workspace
from shoal.ui.cli.status_tables import headline, state_as_data
from shoal.ui.report.data import run_data
from support.views import BEGAN, GIB, diamond, ended, linked, over, planned, started, view_of

CORES = [("cores", 40_000)]


def test_a_batch_is_the_same_as_one_after_another() -> None:
    head: list[Record] = [started(3), planned(["a", "b", "a"])]
    ends = [ended(0, 0.0, 1.0), ended(1, 0.5, 2.0, "failed", message="exit status 1"), ended(2, 1.0, 2.5)]
    together, apart = RunView(), view_of(*head, *ends)
    together.take_all(head)
    together.take_ends(columns_of(ends))
    assert together.attempts.category.tolist() == apart.attempts.category.tolist() == [0, 1, 0]
    assert together.attempts.ended.tolist() == apart.attempts.ended.tolist()
    assert together.last_time == apart.last_time == BEGAN + 2.5


def test_a_run_that_begins_in_the_same_ledger_begins_anew() -> None:
    view = view_of(started(2), planned(["a", "a"]), ended(0, 0.0, 1.0), started(1), planned(["b"]))
    assert view.runs == 2
    assert len(view.attempts) == 0
    assert view.categories == ["b"]


def test_thousands_of_attempts_grow_the_columns() -> None:
    view = view_of(started(9000), *(ended(task, task * 0.1, task * 0.1 + 0.1) for task in range(9000)))
    assert len(view.attempts) == 9000
    assert view.attempts.task.tolist() == list(range(9000))
    assert view.categories == [UNKNOWN]


def test_names_are_found_again_and_unknown_tasks_have_one_too() -> None:
    view = view_of(started(3), planned(["a", "a"]), TasksPlanned([7], ["<odd>"], ["b"]))
    assert [view.names.of(task) for task in (1, 7, 0, 5, 99)] == ["t1", "<odd>", "t0", "task 5", "task 99"]


def test_categories_tell_time_waste_and_retries() -> None:
    view = view_of(
        started(3),
        planned(["a", "a", "b"]),
        ended(0, 0.0, 2.0, memory=GIB, limit=4 * GIB),
        ended(1, 0.0, 1.0, "exhausted", final=False, memory=4 * GIB, limit=4 * GIB),
        ended(1, 1.0, 5.0, attempt=2, memory=2 * GIB, limit=4 * GIB),
        ended(2, 2.0, 3.0),
        over(5.0),
    )
    first, second = category_rows(view)
    assert (first.name, first.done, first.failed, first.retries) == ("a", 2, 0, 1)
    assert (first.mean, first.longest, first.lost) == (3.0, 4.0, 1.0)
    assert first.memory_waste == pytest.approx(1 - (2 * 1 + 1 * 4 + 4 * 2) / (7 * 4)), "what was lost had been used"
    assert (second.name, second.memory_waste) == ("b", None)


def test_failures_are_grouped_by_what_was_said_without_names_and_numbers() -> None:
    view = view_of(
        started(4),
        planned(["a", "a", "b", "b"]),
        ended(0, 0.0, 1.0, "failed", message="its output 'x1' is missing"),
        ended(1, 0.0, 1.0, "failed", message="its output 'x2' is missing"),
        ended(2, 0.0, 1.0, "failed", final=False, message="exit status 3"),
        ended(2, 1.0, 2.0),
    )
    first, second = failure_causes(view)
    assert (first.text, first.attempts, first.given_up, first.categories) == ("its output '…' is missing", 2, 2, ["a"])
    assert first.examples[1] == ("t1", "its output 'x2' is missing")
    assert (second.text, second.given_up) == ("exit status 3", 0)


def test_many_causes_are_sorted_by_frequency_and_quickly() -> None:
    words = ["".join(chr(97 + int(digit)) for digit in str(number)) for number in range(19_000)]
    said = [*words, *words, words[7], words[8]]
    ends = [ended(task, 0.0, 1.0, "failed", message=f"no {word}") for task, word in enumerate(said)]
    view = view_of(started(len(ends)), planned(["a"] * len(ends)), *ends)
    began = process_time()
    found = failure_causes(view)
    assert process_time() - began < 1.5, "and not four seconds and more, for each cause once through all attempts"
    assert len(found) == MOST_CAUSES
    assert [(cause.text, cause.attempts, cause.examples[2][0]) for cause in found[:2]] == [
        ("no h", 3, "t38000"),
        ("no i", 3, "t38001"),
    ]
    assert (found[2].text, found[2].attempts) == ("no a", 2), "of those as frequent the first in the order of words"


def test_a_cause_keeps_the_exit_status_and_drops_other_numbers() -> None:
    assert cause_of("exit status 137 after 12.5 s in 'a/b'") == "exit status 137 after N s in '…'"
    assert cause_of("ended by signal 9") == "ended by signal 9"


def test_the_only_machine_is_a_node() -> None:
    (node,) = node_rows(diamond())
    assert (node.name, node.cores, node.tasks, node.busy) == ("here", 2.0, 4, 8.0)
    assert node.share == pytest.approx(8 / 20)


def test_nodes_of_a_cluster_come_and_go_and_have_their_own_tasks() -> None:
    view = view_of(
        started(2),
        planned(["a", "a"]),
        NodeSeen(BEGAN, 1, "n1", CORES),
        NodeSeen(BEGAN + 2, 2, "n2", CORES),
        ended(0, 0.0, 4.0, node=1),
        ended(1, 2.0, 3.0, node=2),
        NodeTold(BEGAN + 4, 2, 500, 3, 1),
        NodeLeft(BEGAN + 4, 2),
        over(8.0),
    )
    first, second = node_rows(view)
    assert (first.name, first.tasks, first.share) == ("n1", 1, 4 / 32)
    assert (second.name, second.tasks, second.share, second.left) == ("n2", 1, 1 / 8, True)
    assert (second.fetched, second.stolen, second.pushed) == (500, 3, 1)
    assert view.is_cluster()


def test_attempts_on_an_unrecorded_node_are_not_lost() -> None:
    view = view_of(started(1), planned(["a"]), ended(0, 0.0, 1.0, node=5))
    assert [row.name for row in node_rows(view)] == ["here", "node 5"]


def test_progress_of_a_run_that_goes_on_has_a_band_around_what_is_left() -> None:
    ends = [ended(task, task * 1.0, task + (0.9 if task % 2 else 1.1)) for task in range(10)]
    view = view_of(started(30), planned(["a"] * 30), *ends, TaskStarted(10, 1, BEGAN + 10, 1, 0.0, 0))
    told = progress(view, BEGAN + 10.5)
    assert (told.done, told.running, told.waiting) == (10, 1, 19)
    assert told.left is not None and told.least is not None and told.most is not None
    assert 0 < told.least < told.left < told.most < 2 * told.left
    assert told.left == pytest.approx(19.5 * 10.5 / 10.5, rel=0.05)


def test_the_band_narrows_as_more_is_known() -> None:
    def width(done: int) -> float:
        ends = [ended(task, task * 1.0, task + (0.5 if task % 2 else 1.5)) for task in range(done)]
        told = progress(view_of(started(100), planned(["a"] * 100), *ends), BEGAN + done)
        assert told.left is not None and told.most is not None
        return (told.most - told.left) / told.left

    assert width(60) < width(20) < width(4)


def test_nothing_is_said_of_the_end_before_a_task_is_done() -> None:
    assert progress(view_of(started(3), planned(["a"] * 3)), BEGAN + 1).left is None


def test_a_finished_run_has_nothing_left() -> None:
    told = progress(diamond(), BEGAN + 500)
    assert (told.left, told.elapsed, told.done) == (0.0, 10.0, 4)


def test_records_of_older_versions_are_read_and_are_of_this_machine() -> None:
    whole = msgspec.msgpack.decode(encode(ended(3, 0.0, 1.0, node=7, limit=5))[12:])
    for missing in ("node", "memory_limit", "usage"):  # and all that came later
        payload = msgspec.msgpack.encode(whole[: 1 + TaskEnded.__struct_fields__.index(missing)])
        record, quick = decode(payload), msgspec.msgpack.decode(payload, type=End)
        assert isinstance(record, TaskEnded)
        assert (record.task, record.node, quick.task, quick.node) == (3, 0, 3, 0)
        assert record.memory_limit == quick.memory_limit == (5 if missing == "node" else 0)


def test_what_the_view_reads_is_what_the_ledger_has() -> None:
    payload = encode(ended(3, 0.0, 1.5, node=7, limit=5, memory=9, message="so"))[12:]
    record, quick = decode(payload), msgspec.msgpack.decode(payload, type=End)
    assert isinstance(record, TaskEnded)
    skipped = {"outputs", "usage", "listing"}
    for name in set(TaskEnded.__struct_fields__) - skipped:
        assert getattr(record, name) == getattr(quick, name)
    assert End.__struct_fields__ == TaskEnded.__struct_fields__
    assert Used.__struct_fields__ == Usage.__struct_fields__[: len(Used.__struct_fields__)]


def test_a_number_of_tasks_that_goes_up_and_down_widens_the_band() -> None:
    def band(length: float) -> float:
        ends = [ended(task, task * 1.0, task + (length if task % 4 == 0 else 1.0)) for task in range(40)]
        told = progress(view_of(started(100), planned(["long", "a", "a", "a"] * 25), *ends), BEGAN + 40)
        assert told.left is not None and told.most is not None
        return (told.most - told.left) / told.left

    assert band(1.0) < 0.05
    assert band(9.0) > 2 * band(1.0)


def test_a_throttle_that_is_still_growing_may_bring_the_end_nearer() -> None:
    grows = ThrottleDecided(BEGAN, "", "a", 4, 4, 0, "growing", "", 0.0, 0.0, "")
    ends = [ended(task, task * 1.0, task + 1.0) for task in range(10)]
    told = progress(view_of(started(30), planned(["a"] * 30), grows, *ends), BEGAN + 10)
    assert told.left is not None and told.least is not None
    assert told.least <= told.left / 4


@pytest.mark.parametrize("skip_idle", [True, False])
def test_a_run_that_had_nothing_to_do_may_leave_the_one_before_it_in_sight(skip_idle: bool) -> None:
    view = RunView(skip_idle=skip_idle)
    view.take_all([started(2), planned(["a", "a"]), ended(0, 0, 1), ended(1, 1, 2), over(2)])
    view.take_all([msgspec.structs.replace(started(0, total=2), run="def"), over(3)])
    view.settle()
    assert (view.runs, view.number, len(view.attempts)) == ((2, 1, 2) if skip_idle else (2, 2, 0))
    assert view.end is not None and view.end.time == (BEGAN + 2 if skip_idle else BEGAN + 3)
    view.take_all([started(1), planned(["a"]), ended(0, 0, 1)])
    view.settle()
    assert (view.runs, view.number, len(view.attempts)) == (3, 3, 1)


def test_what_is_passed_over_needs_something_before_it_and_is_never_a_net() -> None:
    view = RunView(skip_idle=True)
    view.take_all([started(0, total=2), over(1)])
    assert (view.number, view.end is None) == (1, False)
    view.take_all([msgspec.structs.replace(started(0), total=0)])
    assert (view.number, view.end) == (2, None)


def test_a_run_that_did_not_come_to_its_end_is_not_kept_in_sight_by_one_that_goes_on_with_it() -> None:
    head: list[Record] = [started(2), planned(["a", "a"]), ended(0, 0, 1), ended(1, 1, 2)]
    idle = msgspec.structs.replace(started(0, total=2), run="def")
    for end in ([], [over(2, "detached")]):
        view = RunView(skip_idle=True)
        view.take_all([*head, *end, idle, over(3)])
        assert (view.number, view.end and view.end.outcome) == (2, "ok")
    again = RunView(skip_idle=True)  # the same run, attached again
    again.take_all([*head, over(2), started(0, total=2), over(3)])
    assert again.number == 2


def test_what_is_passed_over_adds_nothing_although_the_beginning_of_the_next_run_is_damaged() -> None:
    view = RunView(skip_idle=True)
    view.take_all([started(1), planned(["a"]), ended(0, 0, 1), over(1)])
    view.take_all([msgspec.structs.replace(started(0, total=1), run="def"), over(2)])
    view.take_ends(columns_of([ended(0, 0, 1), ended(1, 0, 1)]))
    view.settle()
    assert len(view.attempts) == 1


def test_a_cancelled_group_is_no_task_and_what_was_cancelled_is_not_ready() -> None:
    view = view_of(
        started(3),
        planned(["a", "a", "a"]),
        linked({0: [], 1: [], 2: [], 3: [0, 1, 2]}),
        TasksCancelled([1, 3]),
    )
    assert (view.cancelled(), view.cannot_run()) == (1, 0)
    needs = TaskWaits(view)
    assert [int(needs.tasks[row]) for row in needs.ready(view).nonzero()[0]] == [0, 2]
    (row,) = node_rows(view, BEGAN + 1, needs)
    assert (row.wait, row.local) == (0, 2)


def test_earlier_ledgers_say_only_at_the_end_how_many_were_cancelled() -> None:
    end = msgspec.structs.replace(over(2, "failed"), cancelled=1)
    told = progress(view_of(started(2), planned(["a", "a"]), ended(0, 0, 1), end))
    assert (told.done, told.cancelled, told.not_run) == (1, 1, 0)


def test_what_took_no_time_is_held_against_nothing() -> None:
    told = run_data(view_of(started(1), planned(["a"]), linked({0: [-1]}), ended(0, 5.0, 5.0), over(5.0)), workflow="x")
    assert told["replayed"] is None and told["progress"]["done"] == 1


def test_nodes_that_come_speak_and_go_are_the_same_for_status_and_page() -> None:
    """The second one speaks though the record in which it came is damaged."""
    speaking = [NodeTold(BEGAN + 2.0, number, running=2) for number in (1, 2)]
    records: list[Record] = [started(8), planned(["a"] * 8), NodeSeen(BEGAN + 1.0, 1, "n1", [("cores", 20_000)])]
    for more in ([], speaking, [*speaking, NodeLeft(BEGAN + 5.0, 1)]):
        state, view = RunStatus(), view_of(*records, *more)
        for record in (*records, *more):
            state.take(record)
        assert (state.last_time, state.running_now()) == (view.last_time, view.running_now())


def test_a_node_whose_clock_is_ahead_makes_no_two_ends_of_a_run(tmp_path: Path) -> None:
    records: list[Record] = [started(1), planned(["a"]), ended(0, 0.0, 3.0), over(2.0)]
    workspace = Workspace(str(tmp_path / "flow.py"))
    workspace.make()
    Path(workspace.ledger).write_bytes(b"".join(map(encode, records)))
    follower = Follower(workspace)
    phase = follower.refresh()
    assert progress(view_of(*records)).elapsed == 3.0
    assert follower.state.progress(BEGAN + 9.0).elapsed == 3.0
    assert state_as_data(follower, phase, BEGAN + 9.0)["took"] == 3.0
    assert "after 3 s" in headline("flow.py", follower, phase, BEGAN + 9.0)
    Path(workspace.ledger).write_bytes(b"".join(map(encode, records[:-1])))
    going = Follower(workspace)
    going.refresh()
    assert "running for 3 s" in headline("flow.py", going, RunPhase.RUNNING, BEGAN - 3600.0), "a clock was put back"
