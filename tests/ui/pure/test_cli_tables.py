"""The tables of `shoal status`, from records made up here."""

from __future__ import annotations

from pathlib import Path

import msgspec

from shoal.ledger.records import CategoriesDeclared, RunStarted, TaskEnded, TasksPlanned, TaskStarted, Usage, encode
from shoal.ledger.status import Follower, RunPhase
from shoal.ledger.workspace import Workspace
from shoal.ui.cli.status_tables import categories_as_data, category_table, node_table, task_table, tasks_as_data

MB = 1 << 20


def ended(task: int, outcome: str, memory: int, limit: int, *, attempt: int = 1, final: bool = True) -> TaskEnded:
    plain = TaskEnded(
        task, attempt, outcome, final, 0, 10.0, 12.0, 1.0, 0.0, memory * MB, 0, 0, "", b"", b"", b"", [(5 * MB, 0)],
        None,
    )  # fmt: skip
    return msgspec.structs.replace(plain, memory_limit=limit * MB, usage=Usage(tree_memory=memory * MB))


def follower_of(tmp_path: Path) -> Follower:
    follower = Follower(Workspace(str(tmp_path / "flow.py")), keeps_all=True)
    node = [("cores", 20_000), ("memory", 1000 * MB)]
    for record in (
        RunStarted("r", 9.0, 1, 2, "boot", "here", "0", [], node, 4, 4),
        CategoriesDeclared(["known", "learned"], [[("cores", 10_000), ("memory", 300 * MB)], []]),
        TasksPlanned([0, 1, 2, 3], ["a", "b", "c", "d"], ["known", "learned", "learned", "learned"]),
        ended(0, "ok", 200, 300),
        ended(1, "exhausted", 0, 100, final=False),
        ended(1, "ok", 150, 600, attempt=2),
        TaskStarted(2, 1, 12.0, 77, 0.0, 0),
    ):
        follower.state.take(record)
    return follower


def test_a_declared_maximum_is_a_number_and_a_learned_one_is_marked(tmp_path: Path) -> None:
    known, learned = categories_as_data(follower_of(tmp_path), RunPhase.RUNNING)
    assert (known["memory"]["declared"], known["running"], known["waiting"]) == (300 * MB, 0, 0)
    assert (learned["memory"]["declared"], learned["memory"]["seen"]) == (None, 150 * MB)
    assert (learned["running"], learned["waiting"], learned["retries"]) == (1, 1, 1)
    assert learned["first_memory"] == 100 * MB
    assert learned["waste"] == round(1 - 150 / 700, 3)
    lines = category_table(follower_of(tmp_path), RunPhase.RUNNING)
    assert lines[1].split()[:6] == ["known", "0", "0", "1", "1", "300M"]
    assert "~150M" in lines[2]


def test_a_size_that_was_exceeded_and_never_topped_is_marked_so(tmp_path: Path) -> None:
    follower = follower_of(tmp_path)
    follower.state.take(ended(3, "exhausted", 0, 700, final=True))
    assert ">700M" in category_table(follower, RunPhase.RUNNING)[2]


def test_an_attempt_that_was_ended_for_its_disk_says_nothing_of_memory(tmp_path: Path) -> None:
    follower = follower_of(tmp_path)
    over = ended(3, "exhausted", 20, 700, final=True)
    over = msgspec.structs.replace(over, message="used 2 MiB of disk, more than its 1 MiB, after 0.10 s")
    follower.state.take(over)
    assert "~150M" in category_table(follower, RunPhase.RUNNING)[2]


def test_cores_are_those_of_the_busiest_moment_or_the_average_where_only_that_is_known(tmp_path: Path) -> None:
    follower = follower_of(tmp_path)
    assert categories_as_data(follower, RunPhase.RUNNING)[1]["cores"]["seen"] == 0.5
    follower.state.take(msgspec.structs.replace(ended(3, "ok", 20, 700), usage=Usage(cores=1750)))
    assert categories_as_data(follower, RunPhase.RUNNING)[1]["cores"]["seen"] == 1.75
    assert tasks_as_data(follower, RunPhase.RUNNING)[3]["cores"] == 1.75


def test_the_footprint_counts_what_lies_in_directories_that_a_task_made(tmp_path: Path) -> None:
    follower = follower_of(tmp_path)
    follower.state.take(msgspec.structs.replace(ended(3, "ok", 20, 700), usage=Usage(disk=9 * MB)))
    assert categories_as_data(follower, RunPhase.RUNNING)[1]["disk"]["seen"] == 9 * MB


def test_every_task_is_listed_with_its_last_attempt(tmp_path: Path) -> None:
    tasks = tasks_as_data(follower_of(tmp_path), RunPhase.RUNNING)
    assert [task["state"] for task in tasks] == ["done", "done", "running", "not started"]
    assert (tasks[1]["attempts"], tasks[1]["memory"], tasks[1]["memory_limit"]) == (2, 150 * MB, 600 * MB)
    assert len(task_table(follower_of(tmp_path), RunPhase.RUNNING)) == 5


def test_attempts_are_counted_and_their_number_is_not_taken_for_that(tmp_path: Path) -> None:
    """It also rises when a task is handed back before it has begun."""
    follower = follower_of(tmp_path)
    follower.state.take(ended(3, "ok", 100, 100, attempt=2))
    assert [task["attempts"] for task in tasks_as_data(follower, RunPhase.RUNNING)] == [1, 2, 1, 1]
    Path(follower.workspace.directory).mkdir(parents=True)
    Path(follower.workspace.ledger).write_bytes(encode(RunStarted("r", 9.0, 1, 2, "boot", "here", "0", [], [], 1, 1)))
    follower.refresh()  # another ledger is there
    follower.state.take(TasksPlanned([0], ["a"], ["known"]))
    assert [task["attempts"] for task in tasks_as_data(follower, RunPhase.RUNNING)] == [0]


def test_the_machine_is_one_row(tmp_path: Path) -> None:
    assert node_table(follower_of(tmp_path), RunPhase.RUNNING)[1].split()[:4] == ["here", "2", "1", "2"]
