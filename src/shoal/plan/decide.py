"""The verdict on every task: up to date, or to be run and why.

A task is up to date if an earlier run's accepted result for the same place has the same content, the files it made are
still as it left them, and what it read is as it was. Everything behind a task that runs, runs. Files that were
collected (removed on purpose when nothing needed them any more) count as being there, unless a task that runs needs
them: then their makers run, too. What a workflow is run for is never taken for collected.
"""

from __future__ import annotations

from array import array
from collections.abc import Container
from enum import IntEnum
from typing import Protocol

from shoal.ledger.records import TaskEnded
from shoal.model.graph import NO_TASK, Graph, topological_order
from shoal.plan.identity import Versions, content_of, place_of


class Reason(IntEnum):
    """Why a task runs, or that it need not."""

    UP_TO_DATE = 0
    NEW = 1
    FAILED = 2
    CHANGED = 3
    OUTPUT_MISSING = 4
    OUTPUT_CHANGED = 5
    INPUT_CHANGED = 6
    NEEDS_ANOTHER = 7
    FORCED = 8
    NOT_NEEDED = 9
    """No target needs it."""


class Plan:
    """Verdicts by task; `detail` is the file or task that a reason speaks of, or -1."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.reasons = bytearray([Reason.NOT_NEEDED]) * len(graph)
        self.detail = array("i", [-1]) * len(graph)

    def set(self, task: int, reason: Reason, detail: int = -1) -> None:
        self.reasons[task] = reason
        self.detail[task] = detail

    def runs(self, task: int) -> bool:
        return Reason.NEW <= self.reasons[task] <= Reason.FORCED

    def wanted(self) -> bytearray:
        """Marks the tasks that the targets need."""
        return bytearray(reason != Reason.NOT_NEEDED for reason in self.reasons)

    def up_to_date(self) -> list[int]:
        return [task for task, reason in enumerate(self.reasons) if reason == Reason.UP_TO_DATE]

    def to_run(self) -> list[int]:
        """Tasks with an action that run, in the order of the graph."""
        actions = self.graph.actions
        return [task for task, reason in enumerate(self.reasons) if 1 <= reason <= 8 and actions[task] is not None]

    def why(self, task: int) -> str:
        """The reason as a sentence fragment: `output 'x' is missing`."""
        graph, detail = self.graph, self.detail[task]
        reason = Reason(self.reasons[task])
        file = graph.file_names[detail] if detail >= 0 and reason is not Reason.NEEDS_ANOTHER else ""
        needed = graph.names[detail] if detail >= 0 and reason is Reason.NEEDS_ANOTHER else ""
        return {
            Reason.UP_TO_DATE: "it is up to date",
            Reason.NEW: "there is no record of it being done",
            Reason.FAILED: "it failed last time",
            Reason.CHANGED: "its command changed",
            Reason.OUTPUT_MISSING: f"its output {file!r} is missing",
            Reason.OUTPUT_CHANGED: f"its output {file!r} is not as it was left",
            Reason.INPUT_CHANGED: f"its input {file!r} changed" if file else "something it needs changed",
            Reason.NEEDS_ANOTHER: f"{needed!r}, which it needs, runs",
            Reason.FORCED: "it was asked for with --force",
            Reason.NOT_NEEDED: "no target needs it",
        }[reason]


class Past(Protocol):
    """What the planner asks of earlier runs."""

    def result(self, place: bytes) -> TaskEnded | None:
        """The last final record for a place, successful or not."""

    def source(self, name: str) -> tuple[int, int] | None:
        """Size and time of a source file as last seen."""

    def is_collected(self, place: bytes) -> bool:
        """Whether outputs of the last result for a place were removed on purpose."""

    def empty(self) -> bool:
        """Whether there is no result at all."""


def decide(
    graph: Graph,
    wanted: bytearray,
    past: Past,
    versions: Versions,
    *,
    force: bool = False,
    adopt: bool = False,
    kept: Container[str] = (),
) -> Plan:
    """The plan for what `wanted` marks; fills in the versions of tasks that are up to date.

    With `adopt` an output that somebody changed is taken as it is, and only what reads it runs again. Files in `kept`
    must be there, whatever was collected.
    """
    plan = Plan(graph)
    absent: dict[int, None] = {}
    fresh = past.empty()
    for task in topological_order(graph):
        if not wanted[task]:
            continue
        if fresh or force:
            plan.set(task, Reason.FORCED if force else Reason.NEW)
        elif graph.actions[task] is None:
            running = next((other for other in graph.predecessors_of(task) if plan.runs(other)), NO_TASK)
            if running == NO_TASK:
                plan.set(task, Reason.UP_TO_DATE)
                versions.of_task(task)
            else:
                plan.set(task, Reason.NEEDS_ANOTHER, running)
        else:
            _decide_one(plan, task, past, versions, adopt, kept, absent)
    if absent:
        _call_back(plan, absent)
    return plan


def _decide_one(
    plan: Plan,
    task: int,
    past: Past,
    versions: Versions,
    adopt: bool,
    kept: Container[str],
    absent: dict[int, None],
) -> None:
    graph = plan.graph
    running = next((other for other in graph.predecessors_of(task) if plan.runs(other)), NO_TASK)
    if running != NO_TASK:
        plan.set(task, Reason.NEEDS_ANOTHER, running)
        return
    place = place_of(graph, task)
    result = past.result(place)
    if result is None:
        plan.set(task, Reason.NEW)
    elif result.outcome != "ok":
        plan.set(task, Reason.FAILED)
    elif result.content != content_of(graph, task):
        plan.set(task, Reason.CHANGED)
    elif not _outputs_hold(plan, task, result, versions, adopt, kept, absent if past.is_collected(place) else None):
        pass  # the verdict is set
    elif result.inputs != versions.digest_of_inputs(task):
        plan.set(task, Reason.INPUT_CHANGED, _changed_input(graph, task, past, versions))
    else:
        plan.set(task, Reason.UP_TO_DATE)
        versions.done[task] = result.ended


def _outputs_hold(
    plan: Plan,
    task: int,
    result: TaskEnded,
    versions: Versions,
    adopt: bool,
    kept: Container[str],
    absent: dict[int, None] | None,
) -> bool:
    """Whether the outputs are as they were left. Those that were collected are noted in `absent` as if they were."""
    for file, (size, time) in zip(plan.graph.outputs_of(task), result.outputs, strict=False):
        if versions.sizes[file] < 0:
            if absent is None or plan.graph.file_names[file] in kept:
                plan.set(task, Reason.OUTPUT_MISSING, file)
                return False
            absent[file] = None
            versions.sizes[file], versions.times[file] = size, time
        elif not adopt and (versions.sizes[file], versions.times[file]) != (size, time):
            plan.set(task, Reason.OUTPUT_CHANGED, file)
            return False
    return True


def _call_back(plan: Plan, absent: dict[int, None]) -> None:
    """Makers of collected files that a task needs after all run, and with them everything behind them."""
    graph = plan.graph
    pending = [task for task in range(len(graph)) if plan.runs(task)]
    while pending:
        task = pending.pop()
        for file in graph.inputs_of(task):
            maker = graph.producer[file]
            if file in absent and not plan.runs(maker):
                plan.set(maker, Reason.OUTPUT_MISSING, file)
                pending.append(maker)
        for other in graph.successors_of(task):
            if plan.reasons[other] == Reason.UP_TO_DATE:
                plan.set(other, Reason.NEEDS_ANOTHER, task)
                pending.append(other)


def _changed_input(graph: Graph, task: int, past: Past, versions: Versions) -> int:
    """The first input that differs from what the ledger last said of it; -1 if none can be named."""
    for file in graph.inputs_of(task):
        maker = graph.producer[file]
        if maker == NO_TASK:
            seen = past.source(graph.file_names[file])
        else:
            made = past.result(place_of(graph, maker))
            at = list(graph.outputs_of(maker)).index(file)
            seen = made.outputs[at] if made is not None and at < len(made.outputs) else None
            if made is not None and seen == (versions.sizes[file], versions.times[file]):
                continue  # as its maker left it, so the maker ran after this task did, unless another input changed
        if seen is not None and seen != (versions.sizes[file], versions.times[file]):
            return file
    return -1
