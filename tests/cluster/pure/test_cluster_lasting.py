"""Long attempts on the nodes of a cluster: what the ledger records, and what is shown of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from shoal.cluster.agent.explain_source import LASTING_SECONDS, MOST_LASTING, ExplainCache
from shoal.cluster.participants import LongAttempts
from shoal.ledger.bulk_reader import LedgerTail, frames_of, read_into
from shoal.ledger.records import NodeSeen, NodeTold, Record, TaskStarted, TasksVanished, decode, encode
from shoal.ledger.status import RunStatus
from shoal.ledger.views.attempts import OTHER, START, kinds_of
from shoal.ledger.views.run import RunView
from shoal.ledger.views.timeline import node_name, shown_categories, slots_of, timeline
from support.views import BEGAN, ended, planned, started

NOW = 100.0


class Cluster:
    """What a client hears, one look after another."""

    def __init__(self) -> None:
        self.over: set[int] = set()
        self.lasting = LongAttempts(lambda task: task not in self.over)
        self.now = NOW

    def hear(self, *said: tuple[int, int, int, float]) -> tuple[list[TaskStarted], list[int]]:
        begun, vanished = self.lasting.hear(self.now, said)
        return begun, vanished.tasks if vanished is not None else []

    def end(self, task: int, attempt: int, *, final: bool = True) -> None:
        if final:
            self.over.add(task)
        self.lasting.ended(task, attempt)


def begun(node: int, task: int, attempt: int, since: float) -> TaskStarted:
    return TaskStarted(task, attempt, since, 0, 0.0, -1, node)


def test_an_attempt_is_recorded_once_with_its_node_and_start() -> None:
    cluster = Cluster()
    assert cluster.hear((2, 7, 1, 1.5)) == ([begun(2, 7, 1, NOW - 1.5)], [])
    cluster.now += 1
    assert cluster.hear((2, 7, 1, 2.5), (1, 8, 1, 1.0)) == ([begun(1, 8, 1, NOW)], [])
    cluster.end(7, 1)
    assert cluster.hear((1, 8, 1, 3.0)) == ([], [])


def test_what_nodes_say_may_be_older_than_the_end_that_is_known() -> None:
    cluster = Cluster()
    cluster.hear((2, 7, 1, 1.5), (2, 8, 1, 1.5))
    cluster.end(7, 1)
    cluster.end(8, 1, final=False)
    assert cluster.hear((2, 7, 1, 1.5), (2, 8, 1, 1.5)) == ([], [])
    assert cluster.hear((1, 8, 2, 1.0)) == ([begun(1, 8, 2, NOW - 1.0)], [])


def test_what_is_named_no_more_has_vanished_unless_its_end_comes_until_the_next_look() -> None:
    cluster = Cluster()
    cluster.hear((1, 7, 1, 1.5), (1, 8, 1, 1.5), (1, 9, 1, 1.5))
    assert cluster.hear((1, 9, 1, 2.5)) == ([], [])
    cluster.end(7, 1)
    assert cluster.hear((1, 9, 1, 3.5)) == ([], [8])
    assert cluster.hear((1, 9, 1, 4.5)) == ([], [])
    assert cluster.hear() == cluster.hear((1, 9, 1, 6.5)) == ([], [])  # a node was silent for a moment


def test_an_attempt_on_another_node_takes_the_place_of_the_one_that_was_lost() -> None:
    cluster = Cluster()
    cluster.hear((1, 7, 1, 1.5))
    assert cluster.hear((1, 7, 1, 2.5), (2, 7, 4, 1.0)) == ([begun(2, 7, 4, NOW - 1.0)], [])
    assert cluster.hear((2, 7, 4, 2.0)) == ([], [])


def test_a_node_names_its_oldest_attempts() -> None:
    since = ExplainCache()
    rows: list[tuple[Any, ...]] = [("running", task, 3, NOW - task, 99, 0.0, 0) for task in range(400)]
    since.hear([*rows, ("course", 5, 3, b"")], dict.fromkeys(range(400)))
    told = since.lasting(dict.fromkeys(range(350), 3), NOW)  # the oldest have ended
    assert len(told) == MOST_LASTING
    assert told[:2] == [(349, 3, 349.0), (348, 3, 348.0)]
    short = since.lasting(dict.fromkeys(range(3), 3), NOW)
    assert short == [(2, 3, 2.0), (1, 3, LASTING_SECONDS)]
    assert since.lasting({2: 4, 1: 3}, NOW) == [(1, 3, 1.0)]  # the first waits for its next attempt behind others


def test_what_is_forgotten_is_forgotten_wholly() -> None:
    since = ExplainCache()
    rows: list[tuple[Any, ...]] = [("running", task, 1, NOW - 5, 99, 0.0, 0) for task in range(100)]
    since.hear(rows, {7: None})
    assert since.lasting(dict.fromkeys(range(100), 1), NOW) == [(7, 1, 5.0)]


def run_on_two_nodes(*records: Record) -> list[Record]:
    nodes = [NodeSeen(BEGAN, number, f"n{number}", [("cores", 20_000)]) for number in (1, 2)]
    told = [NodeTold(BEGAN + 9, 1, running=1, cores=10_000), NodeTold(BEGAN + 9, 2, running=1, cores=10_000)]
    both = [TaskStarted(0, 1, BEGAN + 2, 0, 0.0, -1, 1), TaskStarted(1, 1, BEGAN + 4, 0, 0.0, -1, 2)]
    written = [started(4), planned(["a", "b", "b", "b"]), *nodes, *both, *told, *records]
    return [record for each in written if (record := decode(encode(each)[12:])) is not None]


def test_the_chart_has_what_runs_on_nodes_and_nothing_is_counted_twice() -> None:
    view = RunView()
    view.take_all(run_on_two_nodes())
    assert view.running_now() == 2
    slots = slots_of(view, BEGAN + 10)
    assert [node_name(view, slots.nodes[row]) for row in slots.row] == ["n1", "n2"]
    over_time = timeline(view, shown_categories(view), until=BEGAN + 10, window=(0.0, 10.0), buckets=10)
    assert over_time.running.tolist() == [0, 0, 1, 1, 2, 2, 2, 2, 2, 2]
    assert over_time.cores.sum(axis=1).tolist() == [8.0, 6.0]
    assert not np.any(over_time.untold)


def test_what_has_vanished_runs_no_more() -> None:
    state, view = RunStatus(), RunView()
    for record in run_on_two_nodes(TasksVanished(BEGAN + 9, [1, 3])):
        state.take(record)
        view.take(record)
    assert list(state.running) == list(view.running) == [0]
    assert (state.categories["a"].running, state.categories["b"].running) == (1, 0)
    assert state.running_now() == view.running_now() == 2  # as the nodes said last


def test_the_end_of_an_attempt_may_be_reported_after_the_start_of_the_next() -> None:
    state, view = RunStatus(), RunView()
    first = ended(1, 0, 3, "failed", final=False, node=2)
    for record in run_on_two_nodes(TaskStarted(1, 2, BEGAN + 4, 0, 0.0, -1, 1), first):
        state.take(record)
        view.take(record)
    assert state.running[1].attempt == view.running[1].attempt == 2
    assert state.categories["b"].running == 1


def test_a_ledger_that_is_read_in_bulk_tells_the_same(tmp_path: Path) -> None:
    """What runs here is looked for among the ends; of what runs on nodes the order matters."""
    here: list[Record] = [started(2), planned(["a", "a"]), *(TaskStarted(n, 1, BEGAN, 7, 0.0, n) for n in (0, 1))]
    there = run_on_two_nodes(TasksVanished(BEGAN + 9, [1]))
    for records, kinds, running in (([*here, ended(0, 0, 1)], [START, START], [1]), (there, [OTHER, OTHER], [0])):
        path = tmp_path / f"ledger{len(records)}"
        path.write_bytes(b"".join(map(encode, records)))
        frames, _ = frames_of(path.read_bytes())
        found = kinds_of(frames.data, frames.begins, frames.ends).tolist()
        assert [kind for kind, record in zip(found, records, strict=True) if isinstance(record, TaskStarted)] == kinds
        view = RunView()
        read_into(view, LedgerTail(str(path)))
        assert list(view.running) == running
