"""Expected durations of a workflow's tasks, from its trace, from the ledger of earlier runs, or a default.

For a trace these are the recorded tasks, not those of a replay. With `like`, durations come from the tasks of another
workflow, category by category. Reads ledgers; executes and writes nothing.
"""

from __future__ import annotations

import os
from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from statistics import median

import msgspec

from shoal.core.graph import NO_TASK, Graph, lookup_tasks
from shoal.core.resources import FRACTION
from shoal.errors import InputError
from shoal.execution.replay import Scales, scales_and_targets
from shoal.execution.session import enter, load
from shoal.execution.workflow_loader import Workflow, missing_workflow, read_text, unknown_target
from shoal.formats.wfformat import WorkflowTrace, is_wfformat, read_wfformat, trace_graph
from shoal.formats.wfformat.trace import requested
from shoal.ledger.file import LedgerReader
from shoal.ledger.identity import place_of
from shoal.ledger.records import Record, RunEnded, RunStarted, SourcesSeen, TaskEnded, TasksPlanned, decode
from shoal.ledger.workspace import Workspace

MOST_REPEATS = 8
"""Maximum number of earlier runs of a task that are used."""


class Overheads(msgspec.Struct, frozen=True):
    """Seconds of a run outside its tasks."""

    per_task: float = 0.0
    """Between the end of a task and the start of the next one on the same core, if one is ready."""
    at_ends: float = 0.0
    """Before the first task and after the last one."""


class TaskTimes(msgspec.Struct, frozen=True):
    """Measurements of a task's last success."""

    seconds: float
    category: str
    """Empty if the ledger has no record of it any more."""
    sizes: tuple[int, ...]
    """Sizes of its output files."""
    cpu: float = 0.0
    """CPU seconds."""


class MeasuredTimes:
    """Task times and overheads, collected from the records of a ledger."""

    def __init__(self) -> None:
        self.last: dict[bytes, TaskTimes] = {}
        """By place."""
        self.earlier: dict[bytes, list[tuple[int, float]]] = {}
        """By place: numbers of earlier runs, and durations there."""
        self.sources: dict[str, int] = {}
        self.overheads = Overheads()
        self.runs = 0
        self._start: RunStarted | None = None
        self._categories: dict[int, str] = {}
        self._intervals: list[tuple[float, float]] = []
        self._run_of: dict[bytes, int] = {}

    def take(self, record: Record) -> None:
        """Adds one record."""
        match record:
            case TaskEnded():
                if record.outcome == "ok":
                    self._task_done(record)
            case TasksPlanned():
                self._categories.update(zip(record.first, record.categories, strict=True))
            case SourcesSeen():
                self.sources.update(zip(record.names, record.sizes, strict=True))
            case RunStarted():
                self._start = record
                self.runs += 1
                self._categories, self._intervals = {}, []
            case RunEnded():
                if self._start is not None and self._intervals:
                    self.overheads = overheads_of(self._intervals, self._start.time, record.time)

    def _task_done(self, record: TaskEnded) -> None:
        place = record.place
        seconds = max(0.0, record.ended - record.started)
        before = self.last.get(place)
        if before is not None:
            repeats = self.earlier.setdefault(place, [])
            repeats.append((self._run_of[place], before.seconds))
            del repeats[:-MOST_REPEATS]
        sizes = tuple(max(0, size) for size, _ in record.outputs)
        self.last[place] = TaskTimes(seconds, self._categories.get(record.task, ""), sizes, record.user + record.system)
        self._run_of[place] = self.runs
        self._intervals.append((record.started, record.ended))

    def by_category(self) -> dict[str, list[TaskTimes]]:
        """All task times, by the category in the ledger."""
        found: dict[str, list[TaskTimes]] = {}
        for took in self.last.values():
            if took.category:
                found.setdefault(took.category, []).append(took)
        return found

    def factors(self, places: Iterable[bytes]) -> list[float]:
        """Total duration of these tasks in each earlier run, relative to the last time; starts with 1 for the last
        time."""
        now: dict[int, float] = {}
        then: dict[int, float] = {}
        for place in places:
            for run, seconds in self.earlier.get(place, ()):
                now[run] = now.get(run, 0.0) + self.last[place].seconds
                then[run] = then.get(run, 0.0) + seconds
        return [1.0, *(then[run] / now[run] for run in sorted(now) if now[run] > 0)]


def read_measured(workspace: Workspace, before: str | None = None) -> MeasuredTimes:
    """Reads a ledger; with `before`, only the records that precede the run of that name."""
    measured = MeasuredTimes()
    for payload in LedgerReader(workspace.ledger).payloads():
        record = decode(payload)
        if before is not None and isinstance(record, RunStarted) and record.run == before:
            break
        if record is not None:
            measured.take(record)
    return measured


def overheads_of(intervals: Sequence[tuple[float, float]], began: float, ended: float) -> Overheads:
    """Computes overheads from the start and end times of the tasks of one run.

    Each start is matched with the latest earlier end that is not matched yet. So the ends of cores that were idle
    because no task was ready stay for tasks that started after such an idle period.
    """
    first = min(start for start, _ in intervals)
    last = max(end for _, end in intervals)
    free: list[float] = []
    gaps: list[float] = []
    moments = sorted([(start, 1) for start, _ in intervals] + [(end, 0) for _, end in intervals])
    for moment, starts in moments:
        if not starts:
            insort(free, moment)
        elif at := bisect_right(free, moment):
            gaps.append(moment - free.pop(at - 1))
    per_task = median(gaps) if gaps else 0.0
    return Overheads(per_task, max(0.0, first - began) + max(0.0, ended - last))


GUESS_SECONDS = 1.0


class Expectation(msgspec.Struct):
    """A workflow with the expected duration of each of its tasks, and the sources of these durations."""

    workflow: Workflow
    durations: list[float]
    input_bytes: list[int]
    origin: str
    """`trace`, `ledger`, `like` or `guess`."""
    known: int = 0
    like_category: int = 0
    declared: int = 0
    """Number of tasks for which only a time limit is known."""
    guessed: int = 0
    file_bytes: list[int] = []
    """Size of every file of the graph."""
    is_own: bytearray = bytearray()
    """1 for tasks with a measured duration of their own."""
    samples: dict[str, list[float]] = {}
    """Known durations by category."""
    factors: dict[str, list[float]] = {}
    """By category: total duration in earlier runs relative to the last one, and 1 for the last one."""
    overheads: Overheads = Overheads()
    like: str = ""
    """Name of the other workflow that the durations come from."""

    def sentence(self) -> str:
        """The sources of the durations as text."""
        source = {"trace": "recorded in the trace", "ledger": "measured in earlier runs"}
        others = f"the category in {self.like}" if self.like else "others of the category"
        parts = []
        if self.known:
            parts.append(f"{self.known:,} {source[self.origin]}")
        if self.like_category:
            parts.append(f"{self.like_category:,} like {others}")
        if self.declared:
            parts.append(f"{self.declared:,} declared (their time limit)")
        if self.guessed:
            parts.append(f"{self.guessed:,} guessed ({GUESS_SECONDS:g} s)")
        return ", ".join(parts) or "no task runs"

    def counts(self) -> dict[str, object]:
        """The sources of the durations as JSON."""
        return {
            "from": self.origin,
            "known": self.known,
            "like_category": self.like_category,
            "declared": self.declared,
            "guessed": self.guessed,
        }


def expect(path: str, words: Sequence[str], like: str | None = None) -> Expectation:
    """Loads the workflow, changes to its directory, and looks up the known durations of its tasks."""
    other = measured_elsewhere(like) if like is not None else None
    workspace = enter(path)
    name = os.path.basename(workspace.workflow)
    text = read_text(name)
    if is_wfformat(text):
        found = _of_trace(read_wfformat(text, name), name, words, recorded=other is None)
        workflow, seconds, sizes, measured = *found, MeasuredTimes()
        origin = "trace"
    else:
        workflow, origin = load(workspace, words), "ledger"
        measured = read_measured(workspace) if other is None else MeasuredTimes()
        seconds, sizes = known_of(workflow.graph, measured)
    if other is not None:
        return like_another(workflow, other, sizes, os.path.basename(like or ""))
    return expectation_of(workflow, seconds, sizes, origin, measured)


def known_of(graph: Graph, measured: MeasuredTimes) -> tuple[list[float | None], list[int]]:
    """Durations and file sizes of a graph from the ledger; files without a record have their present size."""
    seconds: list[float | None] = [None] * len(graph)
    sizes = [-1] * len(graph.file_names)
    if measured.last:
        for task in range(len(graph)):
            took = measured.last.get(place_of(graph, task)) if graph.actions[task] is not None else None
            if took is not None:
                seconds[task] = took.seconds
                for file, size in zip(graph.outputs_of(task), took.sizes, strict=False):
                    sizes[file] = size
    for file, size in enumerate(sizes):
        if size < 0:
            sizes[file] = _size_now(graph.file_names[file], measured)
    return seconds, sizes


def _size_now(name: str, measured: MeasuredTimes) -> int:
    try:
        return os.path.getsize(name) if os.path.isfile(name) else measured.sources.get(name, 0)
    except OSError:
        return measured.sources.get(name, 0)


def _of_trace(
    trace: WorkflowTrace, name: str, words: Sequence[str], *, recorded: bool
) -> tuple[Workflow, list[float | None], list[int]]:
    scales, names = scales_and_targets(words, name)
    graph = trace_graph(_scaled(trace, scales), name)
    find = lookup_tasks(graph)
    targets = list(range(len(graph)))
    if names:
        targets = []
        for word in names:
            task = find(word)
            if task is None:
                raise unknown_target(word, graph)
            targets.append(task)
    seconds = [task.execution.seconds * scales.time if task.execution else None for task in trace.tasks]
    if recorded and seconds and all(known is None for known in seconds):
        raise InputError("the trace has no task durations", file=name, remedy="use the trace of a real run")
    size_of = {file.id: round(file.size * scales.data) for file in trace.files}
    sizes = [size_of[file] for file in graph.file_names]
    return Workflow(name, graph, targets, list(words)), seconds, sizes


def _scaled(trace: WorkflowTrace, scales: Scales) -> WorkflowTrace:
    """The trace with resource requests as in a replay with these scales."""
    if scales.memory_scale == 1.0 and scales.cores is None:
        return trace
    tasks = []
    for task in trace.tasks:
        if task.execution is not None:
            requested_amounts = requested(task, scales.memory_scale, scales.cores)
            cores, memory = requested_amounts.get("cores") / FRACTION, requested_amounts.get("memory") or None
            task = msgspec.structs.replace(
                task, execution=msgspec.structs.replace(task.execution, cores=cores, memory=memory)
            )
        tasks.append(task)
    return msgspec.structs.replace(trace, tasks=tuple(tasks))


def expectation_of(
    workflow: Workflow, seconds: list[float | None], sizes: list[int], origin: str, measured: MeasuredTimes
) -> Expectation:
    """Fills gaps with the mean of the category or, if there is none, with the time limit or the default."""
    graph = workflow.graph
    samples: dict[str, list[float]] = {}
    places: dict[str, list[bytes]] = {}
    for task, known in enumerate(seconds):
        if known is not None and graph.actions[task] is not None:
            category = graph.profile_of(task).category
            samples.setdefault(category, []).append(known)
            if measured.earlier:
                places.setdefault(category, []).append(place_of(graph, task))
    expectation = Expectation(workflow, [], _input_bytes(graph, sizes), origin, file_bytes=sizes, samples=samples)
    expectation.overheads = measured.overheads
    expectation.factors = {category: measured.factors(known) for category, known in places.items()}
    _fill(expectation, seconds)
    return expectation


def like_another(workflow: Workflow, other: MeasuredTimes, sizes: list[int], name: str) -> Expectation:
    """Takes durations and file sizes from the tasks of the same category in another ledger."""
    graph = workflow.graph
    known = other.by_category()
    for file, maker in enumerate(graph.producer):
        if maker != NO_TASK and (size := _typical_size(known.get(graph.profile_of(maker).category, []))) is not None:
            sizes[file] = size
    samples = {category: [took.seconds for took in all_of_them] for category, all_of_them in known.items()}
    expectation = Expectation(workflow, [], _input_bytes(graph, sizes), "like", file_bytes=sizes, samples=samples)
    expectation.overheads, expectation.like = other.overheads, name
    places: dict[str, list[bytes]] = {}
    for place, took in other.last.items():
        places.setdefault(took.category, []).append(place)
    expectation.factors = {category: other.factors(of_it) for category, of_it in places.items()}
    _fill(expectation, [None] * len(graph))
    return expectation


def _typical_size(known: list[TaskTimes]) -> int | None:
    """Mean size of a file that these tasks make."""
    sizes = [size for took in known for size in took.sizes]
    return round(sum(sizes) / len(sizes)) if sizes else None


def _input_bytes(graph: Graph, sizes: list[int]) -> list[int]:
    return [sum(sizes[file] for file in graph.inputs_of(task)) for task in range(len(graph))]


def _fill(expectation: Expectation, seconds: list[float | None]) -> None:
    """Sets the duration of each task, and counts their sources."""
    graph = expectation.workflow.graph
    means = {category: sum(known) / len(known) for category, known in expectation.samples.items()}
    expectation.is_own = bytearray(len(seconds))
    for task, known in enumerate(seconds):
        profile = graph.profile_of(task)
        length = known
        if graph.actions[task] is None:
            length = 0.0
        elif known is not None:
            expectation.known += 1
            expectation.is_own[task] = 1
        elif (mean := means.get(profile.category)) is not None:
            length = mean
            expectation.like_category += 1
        elif profile.timeout is not None:
            length = profile.timeout
            expectation.declared += 1
        else:
            length = GUESS_SECONDS
            expectation.guessed += 1
        expectation.durations.append(length or 0.0)
    if not expectation.known and not expectation.like_category:
        expectation.origin = "guess"


def measured_elsewhere(path: str) -> MeasuredTimes:
    """Reads the ledger of another workflow; raises InputError if it has no task times."""
    workspace = Workspace(path)
    if not os.path.isdir(workspace.directory):
        if not os.path.isfile(path):
            raise missing_workflow(path)
        raise InputError(
            f"{path!r} has not been run yet, so it has no task durations", remedy=f"run it first: shoal run {path}"
        )
    measured = read_measured(workspace)
    if not measured.by_category():
        raise InputError(f"the ledger of {path!r} has no task durations", remedy=f"run it first: shoal run {path}")
    return measured
