"""Decides for every task whether it is up to date, or why it must run.

A task is up to date if three things hold: the ledger has an accepted result for the same place with the same content,
the output files are as recorded, and so are the input files. All dependents of a task that runs also run. Collected
files (deleted on purpose when no task needed them any more) count as existing unless a task that runs needs them; then
the tasks that make them run, too. The targets of a run are never treated as collected.
"""

from __future__ import annotations

from array import array
from collections.abc import Container
from enum import IntEnum
from typing import Protocol, TypeAlias

from shoal.core.graph import NO_TASK, Graph, files_read, topological_order
from shoal.core.task import Call
from shoal.ledger.identity import FOLDER_UNSEEN, OldVersions, Versions, content_of, place_of
from shoal.ledger.records import BY_CONTENT, BY_TIME, UNSAID, TaskEnded


class Reason(IntEnum):
    """Why a task runs, or why it does not."""

    UP_TO_DATE = 0
    NEW = 1
    FAILED = 2
    CHANGED = 3
    OUTPUT_MISSING = 4
    OUTPUT_CHANGED = 5
    INPUT_CHANGED = 6
    NEEDS_ANOTHER = 7
    INTERRUPTED = 8
    FORCED = 9
    NOT_NEEDED = 10
    """No target needs it."""


_HAS_OTHER_TIME = "has a different modification time than when it was "
_HOLDS_OTHER_TIME = "has files with different names or modification times than when it was "
_WAY_OUT = " ('shoal adopt' accepts it as made; results of runs with '--check content' do not depend on times)"


NOT_MADE_HERE = "exists, but was not made by this workflow"
ADOPT_OR_OVERWRITE = "'shoal adopt' accepts it as made, 'shoal run --overwrite' makes it again"


class Plan:
    """The decision for each task; `detail` is the file or task that the reason names, or -1."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.reasons = bytearray([Reason.NOT_NEEDED]) * len(graph)
        self.detail = array("i", [-1]) * len(graph)
        self.unknown: dict[int, list[int]] = {}
        """By task that runs, its existing outputs that no recorded result has made."""
        self.inherited: set[int] = set()
        """Outputs of tasks that run and have no result, unchanged since another task of the workflow made them: Shoal
        may overwrite these."""
        self.other_time: dict[int, str] = {}
        """For tasks whose file in `detail` has the recorded size but another time, a text that says so: whether the
        content changed is not known."""

        self.absent: frozenset[int] = frozenset()
        """Files that count as existing although they do not: they were collected, and the tasks that make them need not
        run."""

    def set(self, task: int, reason: Reason, detail: int = -1) -> None:
        self.reasons[task] = reason
        self.detail[task] = detail

    def runs(self, task: int) -> bool:
        return Reason.NEW <= self.reasons[task] <= Reason.FORCED

    def anything_runs(self) -> bool:
        """Whether any task runs; fast for any number of tasks."""
        return bool(self.reasons.translate(None, bytes((Reason.UP_TO_DATE, Reason.NOT_NEEDED))))

    def wanted(self) -> bytearray:
        """Marks the tasks that the targets need."""
        return bytearray(reason != Reason.NOT_NEEDED for reason in self.reasons)

    def up_to_date(self) -> list[int]:
        return [task for task, reason in enumerate(self.reasons) if reason == Reason.UP_TO_DATE]

    def to_run(self) -> list[int]:
        """Tasks with an action that run, in the order of the graph."""
        actions, first, last = self.graph.actions, Reason.NEW.value, Reason.FORCED.value
        return [task for task, it in enumerate(self.reasons) if first <= it <= last and actions[task] is not None]

    def given_up(self) -> frozenset[int]:
        """Unknown existing files that will be overwritten if the user permits it."""
        return frozenset(file for files in self.unknown.values() for file in files)

    def why(self, task: int) -> str:
        """The reason as a clause: `its output 'x' is missing`."""
        why = self._why(task)
        if task in self.unknown:
            why += f", and its output {self.graph.file_names[self.unknown[task][0]]!r} {NOT_MADE_HERE}"
            why += f": {ADOPT_OR_OVERWRITE}"
        return why

    def _why(self, task: int) -> str:
        graph, detail = self.graph, self.detail[task]
        reason = Reason(self.reasons[task])
        file = graph.file_names[detail] if detail >= 0 and reason is not Reason.NEEDS_ANOTHER else ""
        needed = graph.names[detail] if detail >= 0 and reason is Reason.NEEDS_ANOTHER else ""
        other_time = self.other_time.get(task)
        what = "function, or something that it uses," if isinstance(graph.actions[task], Call) else "command"
        return {
            Reason.UP_TO_DATE: "it is up to date",
            Reason.NEW: "it has no recorded result",
            Reason.FAILED: "its last attempt failed",
            Reason.CHANGED: f"its {what} changed",
            Reason.OUTPUT_MISSING: f"its output {file!r} is missing",
            Reason.OUTPUT_CHANGED: f"its output {file!r} {other_time or 'changed after it was made'}",
            Reason.INPUT_CHANGED: (
                f"its input {file!r} {other_time or 'changed'}" if file else "one of its dependencies changed"
            ),
            Reason.NEEDS_ANOTHER: f"it depends on {needed!r}, which runs",
            Reason.INTERRUPTED: "it was interrupted last time",
            Reason.FORCED: "--force was given",
            Reason.NOT_NEEDED: "no target needs it",
        }[reason]


class PastResults(Protocol):
    """What the planner needs to know of earlier runs."""

    def result(self, place: bytes) -> TaskEnded | None:
        """The last final record for a place, successful or not."""

    def source(self, name: str, check: int) -> tuple[int, int] | None:
        """Size and time of a source file in the last run; None if it was compared with another check."""

    def is_collected(self, place: bytes) -> bool:
        """Whether outputs of the last result for a place were deleted on purpose."""

    def is_interrupted(self, place: bytes) -> bool:
        """Whether an attempt after the last result for a place was running when its run was killed."""

    def empty(self) -> bool:
        """Whether there is no result at all."""


def decide(
    graph: Graph,
    wanted: bytearray,
    past: PastResults,
    versions: Versions,
    *,
    force: bool = False,
    as_found: bool = False,
    kept: Container[str] = (),
) -> Plan:
    """Decides on the tasks that `wanted` marks; sets the versions of tasks that are up to date.

    With `as_found` an output that the user has changed is accepted as it is, and only its readers run again. Files in
    `kept` must exist, even if they were collected.
    """
    plan = Plan(graph)
    comparison = _Comparison(graph, past, versions, as_found, kept)
    fresh = past.empty()
    runs_any = False  # as long as no task runs, the search for running predecessors is skipped
    for task in topological_order(graph):
        if not wanted[task]:
            continue
        if fresh or force:
            plan.set(task, Reason.FORCED if force else Reason.NEW)
            continue
        running = _running_before(plan, task) if runs_any else NO_TASK
        if running != NO_TASK:
            plan.set(task, Reason.NEEDS_ANOTHER, running)
        elif graph.actions[task] is None:
            plan.set(task, Reason.UP_TO_DATE)
        else:
            _decide_one(plan, task, past, comparison)
            runs_any = runs_any or plan.reasons[task] != Reason.UP_TO_DATE
    if comparison.absent:
        _run_makers_again(plan, comparison.absent)
        plan.absent = frozenset(file for file in comparison.absent if not plan.runs(graph.producer[file]))
        versions.forget_groups()
    return plan


def _running_before(plan: Plan, task: int) -> int:
    return next((other for other in plan.graph.predecessors_of(task) if plan.runs(other)), NO_TASK)


def _decide_one(plan: Plan, task: int, past: PastResults, comparison: _Comparison) -> None:
    graph = plan.graph
    place = place_of(graph, task)
    result = past.result(place)
    if result is None:
        plan.set(task, Reason.NEW)
    elif result.outcome != "ok":
        plan.set(task, Reason.FAILED)
    elif past.is_interrupted(place):
        plan.set(task, Reason.INTERRUPTED)
    elif result.content != content_of(graph, task):
        plan.set(task, Reason.CHANGED)
    else:
        reason, detail, other_time = comparison.verdict(task, result, past.is_collected(place))
        plan.set(task, reason, detail)
        if other_time:
            plan.other_time[task] = other_time


Verdict: TypeAlias = tuple[Reason, int, str]
"""A reason, its file or -1, and a text if only the time of that file differs."""
_HOLDS: Verdict = (Reason.UP_TO_DATE, -1, "")


class _Comparison:
    """Compares the files of results with the existing ones, each with the check of its result."""

    def __init__(
        self, graph: Graph, past: PastResults, versions: Versions, as_found: bool, kept: Container[str]
    ) -> None:
        self.graph = graph
        self.absent: dict[int, None] = {}
        """Collected files that count as existing."""
        self._past = past
        self._versions = versions
        self._as_found = as_found
        self._kept = kept
        self._old = {check: OldVersions(versions, check) for check in (BY_TIME, BY_CONTENT)}

    def verdict(self, task: int, result: TaskEnded, is_collected: bool) -> Verdict:
        """The reason for a task with this result; sets its version if it is up to date."""
        versions = self._versions
        check = result.check or versions.check
        found = self._compare(task, result, check, is_collected)
        if found is not _HOLDS and result.check == UNSAID:
            other = BY_TIME + BY_CONTENT - check
            if self._compare(task, result, other, is_collected) is _HOLDS:
                found = _HOLDS
        if found is _HOLDS:
            versions.done[task] = result.ended
        return found

    def _compare(self, task: int, result: TaskEnded, check: int, is_collected: bool) -> Verdict:
        versions = self._versions
        if result.outputs:
            found = self._outputs(task, result, check, is_collected)
            if found is not _HOLDS:
                return found
        if result.check == versions.check:
            inputs = versions.digest_of_inputs(task)
        elif result.check == UNSAID:
            inputs = self._old[check].digest_of_inputs(task)
        else:
            inputs = versions.digest_otherwise(task, check)
        return _HOLDS if result.inputs == inputs else self._changed_input(task, check)

    def _outputs(self, task: int, result: TaskEnded, check: int, is_collected: bool) -> Verdict:
        """Compares the outputs with the result. Collected ones are noted as if they existed."""
        versions, graph = self._versions, self.graph
        for file, pair in zip(graph.outputs_of(task), result.outputs, strict=False):
            if versions.sizes[file] < 0 or file in self.absent:
                if not is_collected or graph.file_names[file] in self._kept:
                    return Reason.OUTPUT_MISSING, file, ""
                self.absent[file] = None
                versions.assume(file, check, pair)
            elif self._as_found or (pair == FOLDER_UNSEEN and file in versions.folders and result.check == UNSAID):
                continue
            elif versions.sizes[file] != pair[0]:
                return Reason.OUTPUT_CHANGED, file, ""
            elif versions.seen(file, check)[1] != pair[1]:
                return Reason.OUTPUT_CHANGED, file, self._other_time(file, check, "made" + _WAY_OUT)
        return _HOLDS

    def _changed_input(self, task: int, check: int) -> Verdict:
        """Finds the first input, or file of a group, that differs from the ledger; -1 if none is found."""
        versions = self._versions
        for file in files_read(self.graph, task):
            recorded = self._recorded(file, check)
            if recorded is None or recorded[0] < 0:
                continue
            if recorded[0] != versions.sizes[file]:
                return Reason.INPUT_CHANGED, file, ""
            if recorded[1] != versions.seen(file, check)[1]:
                return Reason.INPUT_CHANGED, file, self._other_time(file, check, "read")
        return Reason.INPUT_CHANGED, -1, ""

    def _other_time(self, file: int, check: int, when: str) -> str:
        if check != BY_TIME:
            return ""
        return (_HOLDS_OTHER_TIME if file in self._versions.folders else _HAS_OTHER_TIME) + when

    def _recorded(self, file: int, check: int) -> tuple[int, int] | None:
        """The last recorded version of a file, if it was compared with this check."""
        graph = self.graph
        maker = graph.producer[file]
        if maker == NO_TASK:
            return self._past.source(graph.file_names[file], check)
        made = self._past.result(place_of(graph, maker))
        if made is None or made.check not in (UNSAID, check):
            return None
        at = list(graph.outputs_of(maker)).index(file)
        return made.outputs[at] if at < len(made.outputs) else None


def _run_makers_again(plan: Plan, absent: dict[int, None]) -> None:
    """Also runs the tasks that make collected files which a running task needs, and all their dependents. Files of a
    task's groups count, too."""
    graph = plan.graph
    known: set[int] = set()
    pending = [task for task in range(len(graph)) if plan.runs(task)]
    while pending:
        task = pending.pop()
        for file in files_read(graph, task, known):
            maker = graph.producer[file]
            if file in absent and not plan.runs(maker):
                plan.set(maker, Reason.OUTPUT_MISSING, file)
                pending.append(maker)
        for other in graph.successors_of(task):
            if plan.reasons[other] == Reason.UP_TO_DATE:
                plan.set(other, Reason.NEEDS_ANOTHER, task)
                pending.append(other)
