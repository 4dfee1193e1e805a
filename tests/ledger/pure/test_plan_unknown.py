"""Outputs that stand there although nothing on record has made them: which they are, and what a plan says of them."""

from __future__ import annotations

from collections.abc import Iterator

from shoal.core.graph import Graph, GraphBuilder, ancestors
from shoal.ledger.identity import Versions, place_of
from shoal.ledger.ownership import find_unknown
from shoal.ledger.records import BY_TIME, TaskEnded
from shoal.ledger.up_to_date import Plan, Reason

LEFT = (10, 100)


class Records:
    """Accepted results by place and by name, and names that an attempt may have begun."""

    def __init__(self) -> None:
        self.results: dict[bytes, TaskEnded] = {}
        self.by_name: dict[str, list[tuple[TaskEnded, int]]] = {}
        self.begun: set[str] = set()
        self.asked = 0

    def accepted(self, place: bytes) -> TaskEnded | None:
        self.asked += 1
        return self.results.get(place)

    def made(self, name: str) -> Iterator[tuple[TaskEnded, int]]:
        self.asked += 1
        yield from self.by_name.get(name, ())

    def may_be_half_made(self, name: str) -> bool:
        return name in self.begun


def result(*outputs: tuple[int, int]) -> TaskEnded:
    times = (1.0, 2.0, 0.0, 0.0, 0, 0, 0, "")
    return TaskEnded(0, 1, "ok", True, 0, *times, b"", b"", b"", list(outputs), None, check=BY_TIME)


def pair() -> Graph:
    """Makes a and b, then c from a."""
    builder = GraphBuilder("flow.py")
    builder.task("", "make", outputs=["a", "b"])
    builder.task("", "use", inputs=["a"], outputs=["c"])
    return builder.build()


def planned(graph: Graph, records: Records, *standing: str, runs: bool = True, **changed: tuple[int, int]) -> Plan:
    """The plan, if all tasks run or none, and these outputs stand there."""
    plan, versions = Plan(graph), Versions(graph)
    for task in range(len(graph)):
        plan.set(task, Reason.NEW if runs else Reason.UP_TO_DATE)
    for name in standing:
        file = graph.file_names.index(name)
        versions.standing.append(file)
        versions.sizes[file], versions.times[file] = changed.get(name, LEFT)
        if name.isupper() or "_" in name:
            versions.folders.add(file)
    find_unknown(plan, versions, records, lambda file: graph.file_names[file].split("_")[1:])
    return plan


def unknown(plan: Plan) -> list[str]:
    return [plan.graph.file_names[file] for files in plan.unknown.values() for file in files]


def test_what_nothing_has_made_is_unknown_and_the_plan_says_so() -> None:
    plan = planned(pair(), Records(), "b", "c")
    assert unknown(plan) == ["b", "c"]
    assert plan.why(0) == (
        "it has no recorded result, and its output 'b' exists, but was not made by this workflow: "
        "'shoal adopt' accepts it as made, 'shoal run --overwrite' makes it again"
    )


def test_what_stands_there_for_tasks_that_do_not_run_is_not_asked_for() -> None:
    records = Records()
    assert not unknown(planned(pair(), records, "a", "b", "c", runs=False))
    assert records.asked == 0, "a plan without anything to do must cost nothing"


def test_nothing_is_asked_where_nothing_stands() -> None:
    records = Records()
    assert not unknown(planned(pair(), records))
    assert records.asked == 0


def test_a_task_with_an_accepted_result_has_changed_outputs_but_no_unknown_ones() -> None:
    graph, records = pair(), Records()
    records.results[place_of(graph, 0)] = result((1, 1), (2, 2))
    assert unknown(planned(graph, records, "a", "b", "c")) == ["c"]


def test_what_another_task_left_like_this_is_inherited() -> None:
    graph, records = pair(), Records()
    records.by_name = {"b": [(result((1, 1)), 0), (result((1, 1), LEFT), 1)], "c": [(result(LEFT), 0)]}
    plan = planned(graph, records, "b", "c", c=(10, 101))
    assert unknown(plan) == ["c"]
    assert [graph.file_names[file] for file in plan.inherited] == ["b"]


def test_what_an_attempt_may_have_begun_is_not_unknown() -> None:
    records = Records()
    records.begun = {"a"}
    assert unknown(planned(pair(), records, "a", "b")) == ["b"]


def test_a_directory_is_unknown_if_there_is_something_in_it_that_no_task_makes() -> None:
    builder = GraphBuilder("flow.py")
    builder.task("", "make", outputs=["EMPTY", "FULL_mine"])
    assert unknown(planned(builder.build(), Records(), "EMPTY", "FULL_mine")) == ["FULL_mine"]


def test_tasks_that_no_target_needs_have_no_unknown_outputs() -> None:
    graph = pair()
    plan, versions = Plan(graph), Versions(graph)
    for task, is_wanted in enumerate(ancestors(graph, [0])):
        if is_wanted:
            plan.set(task, Reason.NEW)
    versions.standing.append(graph.file_names.index("c"))
    find_unknown(plan, versions, Records(), lambda file: ())
    assert not plan.unknown
