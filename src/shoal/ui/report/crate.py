"""Builds an RO-Crate from a workflow file and the number of a run.

Reads the ledger, loads the workflow to find the files of its tasks, checks these files, copies the requested ones and
writes the metadata. Runs nothing.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from io import StringIO
from typing import Literal

import msgspec
import numpy as np

from shoal.core.graph import NO_TASK, Graph, ancestors
from shoal.core.quantities import count
from shoal.core.task import Call
from shoal.errors import InputError
from shoal.execution.session import load
from shoal.execution.workflow_loader import Workflow, language_of, read_text
from shoal.formats.rocrate.facts import (
    Licence,
    NodeFacts,
    Person,
    RunFacts,
    TaskFacts,
    WorkflowFile,
    positions,
    workflow_place,
)
from shoal.formats.rocrate.metadata import crate_entities
from shoal.ledger.bulk_reader import LedgerTail
from shoal.ledger.identity import content_of, place_of
from shoal.ledger.records import (
    DETACHED,
    TASKS_CANCELLED,
    RunEnded,
    RunStarted,
    SourcesSeen,
    TaskEnded,
    decodable,
    decode,
)
from shoal.ledger.run_fold import UNKNOWN
from shoal.ledger.views.attempts import Array, Ints
from shoal.ledger.views.run import RunView
from shoal.ledger.workspace import Workspace
from shoal.ui.report.crate_files import CrateFiles, RecordedFiles, Sink, encoding_of, measured, open_sink

_RUN, _NET, _SOURCES, _END = b"\xa3run", b"\xa3net", b"\xa3src", b"\xa3end"
"""Tags at the start of records, after the few bytes with the length of the array."""


def run_numbered(ledger: str, identity: str) -> int | None:
    """The number (from 1) of the last run with this identity."""
    found, runs = None, 0
    for payload in _payloads(ledger, (_RUN,)):
        record = decode(payload)
        if isinstance(record, RunStarted):
            runs += 1
            found = runs if record.run == identity else found
    return found


def is_net(ledger: str) -> bool:
    """Whether the ledger is that of a net. A workflow file always defines either tasks or a net."""
    return any(True for _ in _payloads(ledger, (_NET,)))


def file_records(ledger: str, run: int) -> Iterator[tuple[bool, SourcesSeen | TaskEnded]]:
    """Yields the ends of attempts up to the run with this number, and the source files that this run recorded.

    The flag of each record says whether it belongs to that run; records of earlier runs come first.
    """
    runs = 0
    for payload in _payloads(ledger, (_RUN, _SOURCES, _END)):
        if _RUN in payload[:8]:
            runs += isinstance(decode(payload), RunStarted)
            if runs > run:
                return
        elif runs == run or _END in payload[:8]:
            record = decode(payload)
            if isinstance(record, SourcesSeen | TaskEnded):
                yield runs == run, record


def _payloads(ledger: str, kinds: tuple[bytes, ...]) -> Iterator[bytes]:
    for payloads in LedgerTail(ledger).pieces():
        for payload in payloads:
            head = payload[:8]
            for kind in kinds:
                if kind in head:
                    yield payload
                    break


UNKNOWN_FILE = -1


def load_again(workspace: Workspace, words: Sequence[str]) -> Workflow | None:
    """Loads the workflow with the parameters of the run; None if that is no longer possible."""
    there = os.getcwd()
    try:
        os.chdir(workspace.base)
        with redirect_stdout(StringIO()):  # output of the rules file is not wanted
            return load(workspace, words)
    except (InputError, OSError):
        return None
    finally:
        os.chdir(there)


class GraphOfRun:
    """A graph with the results of one run."""

    def __init__(
        self, workflow: Workflow, tasks: Iterable[tuple[int, str]], planned: bytes, *, values: bool = False
    ) -> None:
        """`tasks`: the started tasks with their names. `planned`: for each task, whether it was planned to run.

        `values`: whether to include the values of environment variables.
        """
        self.graph: Graph = workflow.graph
        self._targets = workflow.targets
        self.sizes = array("q", [UNKNOWN_FILE]) * len(self.graph.file_names)
        self.times = array("q", [UNKNOWN_FILE]) * len(self.graph.file_names)
        """As in the ledger: modification times in nanoseconds, or numbers computed from the content of files."""
        self.known = bytearray(len(self.graph))
        """Tasks that the run started and that still have the same names."""
        self.changed = 0
        """Number of tasks that have changed since."""
        for task, name in tasks:
            if task < len(self.graph) and decodable(self.graph.names[task]) == name:
                self.known[task] = 1
            else:
                self.changed += 1
        self._planned = planned
        self.done = bytearray(len(self.graph))
        self._environments = [
            tuple((decodable(name), decodable(value) if values else None) for name, value in profile.environment)
            for profile in self.graph.profiles
        ]

    def add_records(self, records: Iterable[tuple[bool, SourcesSeen | TaskEnded]]) -> None:
        """Adds what the ledger records about files; each record is of this run or of an earlier one."""
        numbers = {
            decodable(self.graph.file_names[file]): file
            for file, maker in enumerate(self.graph.producer)
            if maker == NO_TASK
        }
        up_to_date = self._up_to_date()
        for is_of_this, record in records:
            if isinstance(record, TaskEnded):
                if record.place in up_to_date:
                    if record.final and record.outcome == "ok":  # the last one counts
                        self._note_outputs(up_to_date[record.place], record)
                elif is_of_this:
                    self._add_end(record)
                continue
            for name, size, time in zip(record.names, record.sizes, record.times, strict=True):
                if name in numbers:
                    self.sizes[numbers[name]], self.times[numbers[name]] = size, time

    def _up_to_date(self) -> dict[bytes, int]:
        """Requested tasks that had nothing to do, by place: earlier runs made their files."""
        graph = self.graph
        wanted = ancestors(graph, self._targets)
        return {
            place_of(graph, task): task
            for task in range(len(graph))
            if wanted[task] and not self._planned[task] and graph.output_start[task] < graph.output_start[task + 1]
        }

    def _add_end(self, record: TaskEnded) -> None:
        """Also removes changed tasks that failed: their present command is not the one that failed."""
        graph, task = self.graph, record.task
        if task >= len(graph) or not self.known[task]:
            return
        if place_of(graph, task) != record.place or content_of(graph, task) != record.content:
            self.known[task] = 0
            self.changed += 1
            return
        if record.outcome != "ok":
            return
        self.done[task] = 1
        self._note_outputs(task, record)

    def _note_outputs(self, task: int, record: TaskEnded) -> None:
        for file, (size, time) in zip(self.graph.outputs_of(task), record.outputs, strict=False):
            self.sizes[file], self.times[file] = size, time

    def inputs_of(self, task: int) -> Sequence[int]:
        return self.graph.inputs_of(task) if self._is_known(task) else ()

    def outputs_of(self, task: int) -> Sequence[int]:
        """The files that the task made; none if it failed."""
        return self.graph.outputs_of(task) if self._is_known(task) and self.done[task] else ()

    def _is_known(self, task: int) -> bool:
        return task < len(self.known) and bool(self.known[task])

    def command(self, task: int) -> str:
        """The task's action in one line."""
        action = self.graph.actions[task] if self._is_known(task) else None
        if isinstance(action, Call):
            return f"Python function {getattr(action.function, '__qualname__', 'call')}"
        return decodable(action) if action else "no longer known"

    def environment(self, task: int) -> tuple[tuple[str, str | None], ...]:
        """Environment variables that the workflow sets for the task; None for values that are not included."""
        return self._environments[self.graph.profile[task]] if self._is_known(task) else ()

    def read_from_outside(self) -> list[int]:
        """Files that tasks of this run read and no task makes."""
        graph = self.graph
        found = {
            file: None
            for task in range(len(graph))
            if self.known[task]
            for file in graph.inputs_of(task)
            if graph.producer[file] == NO_TASK
        }
        return list(found)

    def results(self) -> list[int]:
        """Requested files that no task reads, and outputs of the targets, as far as they were made.

        A group has no inputs: as a target it stands for its members. A requested task that was not planned was up to
        date; its outputs belong to the result of this run, too.
        """
        graph = self.graph
        wanted = ancestors(graph, self._targets)
        read = bytearray(len(graph.file_names))
        for task in range(len(graph)):
            if wanted[task] and graph.actions[task] is not None:
                for file in graph.inputs_of(task):
                    read[file] = 1
        if len(self._targets) < len(graph):
            for file in self._target_files():
                read[file] = 0
        return [
            file
            for file, maker in enumerate(graph.producer)
            if maker != NO_TASK and wanted[maker] and not read[file] and (self.done[maker] or not self._planned[maker])
        ]

    def _target_files(self) -> Iterator[int]:
        """Outputs of the targets; for groups, the outputs of their members, recursively."""
        graph = self.graph
        seen = bytearray(len(graph))
        pending = list(self._targets)
        while pending:
            target = pending.pop()
            if seen[target]:
                continue
            seen[target] = 1
            yield from graph.outputs_of(target)
            if graph.actions[target] is None:
                yield from graph.inputs_of(target)
                pending += graph.after_of(target)


KILLED = "It was running when the run was killed."
CANCELLED = "It was cancelled."
_CANCELLED = "cancelled"
"""Outcome of attempts that the user cancelled, singly or with the whole run."""


class Counts(msgspec.Struct, frozen=True):
    """Counts of tasks at the end of a run, as the report and `shoal status` show them."""

    done: int
    failed: int
    cancelled: int
    """Includes tasks that had not begun."""
    unfinished: int
    """Tasks that began and are none of these: they were running when the run was killed or stopped, or were to be
    retried."""

    def __str__(self) -> str:
        words = [f"{count(self.done, 'task')} done"]
        others = (self.failed, "failed"), (self.cancelled, _CANCELLED), (self.unfinished, "not finished")
        return ", ".join([*words, *(f"{number:,} {how}" for number, how in others if number)])


class LastAttempts:
    """The last attempt of each task, and the workflow steps to which they belong."""

    def __init__(self, view: RunView) -> None:
        self.view = view
        rows = view.attempts
        unfinished = sorted(set(view.running)) if view.end is None else []
        highest = max([int(rows.task.max(initial=-1)), *unfinished])
        self._row: Ints = np.full(highest + 1, -1, np.int64)
        self._row[rows.task] = np.arange(len(rows))  # the last attempt counts
        self._row[unfinished] = -1  # the last attempt of these has not ended
        self._count: Ints = np.bincount(rows.task, minlength=highest + 1)
        """Number of starts of each task."""
        self._count[unfinished] += 1
        self._unfinished = dict.fromkeys(unfinished)
        started = self._row >= 0
        started[unfinished] = True
        self.numbers: list[int] = np.flatnonzero(started).tolist()
        codes = view.category_of(np.array(self.numbers, np.int64))
        self._used: list[int] = sorted(set(codes.tolist()))
        self.steps = [view.categories[code] if code >= 0 else UNKNOWN for code in self._used]
        """Names of the categories that have started tasks."""
        place = {code: number for number, code in enumerate(self._used)}
        self.step_of: list[int] = [place[code] for code in codes.tolist()]
        self._node = {node: position for position, node in enumerate(view.nodes)}

    def positions(self) -> list[int] | None:
        """Positions of the steps in order of execution. Here, a group counts as a step of its own."""
        view, size = self.view, len(self.view.categories)
        pairs = [np.zeros((0, 2), np.int64)]
        for link in view.links:
            needing = np.repeat(np.frombuffer(link.tasks, "<i4"), np.frombuffer(link.counts, "<i4"))
            both = np.column_stack((np.frombuffer(link.needs, "<i4"), needing)).astype(np.int64)
            both = both[both[:, 0] >= 0]
            codes = view.category_of(both.ravel()).reshape(both.shape)
            pairs.append(np.unique(np.where(codes >= 0, codes, size + both), axis=0))
        nodes, flat = np.unique(np.concatenate(pairs), return_inverse=True)
        needs = [(needed, needing) for needed, needing in flat.reshape(-1, 2).tolist()]
        found = positions(len(nodes), needs)
        if found is None:
            return None
        place = {int(node): found[number] for number, node in enumerate(nodes)}
        return [place.get(code, 0) for code in self._used]

    def planned(self, count: int) -> bytes:
        """For each of the first `count` tasks, whether it was planned to run."""
        return (self.view.category_of(np.arange(count)) >= 0).tobytes()

    def counts(self) -> Counts:
        view, rows = self.view, self.view.attempts
        last = self._row[self._row >= 0]
        done, failed = int((rows.outcome[last] == 0).sum()), int(self._has_failed(last).sum())
        begun = sum(task in view.unwanted and task not in self._unfinished for task in self.numbers)
        return Counts(done, failed, view.cancelled(), len(self.numbers) - done - failed - begun)

    def _has_failed(self, rows: Ints) -> Array:
        """For rows of last attempts, whether their tasks failed. A cancelled attempt is not a failure."""
        attempts = self.view.attempts
        found: Array = (attempts.outcome[rows] != 0) & attempts.final[rows] & ~self._was_cancelled(rows)
        return found

    def _was_cancelled(self, rows: Ints) -> Array:
        attempts = self.view.attempts
        codes = [code for code, name in enumerate(attempts.outcomes) if name == _CANCELLED]
        return np.isin(attempts.outcome[rows], codes)

    def each(self, ran: GraphOfRun | None, listing: CrateFiles | None) -> Iterator[TaskFacts]:
        """The tasks one by one, in order of their numbers."""
        for task, step in zip(self.numbers, self.step_of, strict=True):
            name = self.view.names.of(task)
            if ran is None or listing is None:
                yield TaskFacts(task, name, step, f"task {name}", *self._measured(task))
                continue
            yield TaskFacts(
                task,
                name,
                step,
                ran.command(task),
                *self._measured(task),
                inputs=listing.identifiers(ran.inputs_of(task)),
                outputs=listing.identifiers(ran.outputs_of(task)),
                environment=ran.environment(task),
            )

    def _measured(self, task: int) -> tuple[float, float, str, int, float, int, int]:
        """The fields from `started` to `node` of `TaskFacts`."""
        row, rows = int(self._row[task]), self.view.attempts
        if task in self._unfinished:
            return self.view.running[task].time, 0.0, KILLED, int(self._count[task]), 0.0, 0, -1
        outcome = int(rows.outcome[row])
        error = (rows.messages[int(rows.message[row])] or rows.outcomes[outcome]) if outcome else ""
        if rows.outcomes[outcome] == _CANCELLED:
            error = CANCELLED if error == _CANCELLED else f"{CANCELLED[:-1]}: {error}"
        return (
            float(rows.started[row]),
            float(rows.ended[row]),
            error,
            int(self._count[task]),
            float(rows.cpu[row]),
            int(rows.memory[row]),
            self._node.get(int(rows.node[row]), -1),
        )

    def together(self, ran: GraphOfRun | None) -> Iterator[TaskFacts]:
        """The tasks of each category combined, in order of the steps."""
        numbers, steps = np.array(self.numbers, np.int64), np.array(self.step_of, np.int64)
        for step, category in enumerate(self.steps):
            tasks = numbers[steps == step]
            yield self._sum(step, category, tasks, ran)

    def _sum(self, step: int, category: str, tasks: Ints, ran: GraphOfRun | None) -> TaskFacts:
        rows = self.view.attempts
        at = self._row[tasks]
        at = at[at >= 0]
        bad = at[self._has_failed(at)]
        under_way = [self.view.running[task].time for task in tasks.tolist() if task in self._unfinished]
        error = self._why_not_all(len(tasks), at, bad, len(under_way))
        example = int(tasks[0])
        command = ran.command(example) if ran is not None else f"task {self.view.names.of(example)}"
        return TaskFacts(
            step,
            f"{count(len(tasks), 'task')} of {category}",
            step,
            f"for example: {command}",
            min([float(rows.started[at].min(initial=np.inf)), *under_way]),
            float(rows.ended[at].max()) if len(at) else 0.0,
            error,
            int(self._count[tasks].sum()),
            float(rows.cpu[at].sum()),
            int(rows.memory[at].max()) if len(at) else 0,
            tasks=len(tasks),
            failed=len(bad),
        )

    def _why_not_all(self, tasks: int, last: Ints, failed: Ints, killed: int) -> str:
        """Why tasks of a category are not done; empty if all are."""
        rows, words = self.view.attempts, []
        if len(failed):
            most = rows.messages[int(np.bincount(rows.message[failed]).argmax())]
            words.append(f"{count(len(failed), 'task')} of {tasks:,} failed; most often: {most}")
        cancelled = int(self._was_cancelled(last).sum())
        others = int((rows.outcome[last] != 0).sum()) - len(failed) - cancelled
        for number, how in (
            (cancelled, "cancelled"),
            (killed, "running when the run was killed"),
            (others, "to be retried when the run ended"),
        ):
            if number:
                words.append(f"{count(number, 'task')} of {tasks:,} {'was' if number == 1 else 'were'} {how}")
        return "; ".join(words)


MOST_TASKS = 20_000
"""Larger runs are described by category: programs that read crates hold the whole metadata in memory several times."""
Data = Literal["none", "outputs", "all"]


class CrateOptions(msgspec.Struct, frozen=True):
    """The user's options for a crate."""

    author: Person
    licence: Licence
    now: float
    name: str = ""
    description: str = ""
    data: Data = "none"
    all_tasks: bool = False
    checksums: bool = True
    variable_values: bool = False


class CrateSummary(msgspec.Struct, frozen=True):
    """What was written."""

    tasks: Counts
    by_category: bool
    files: int
    copied: int
    notes: list[str]


class Exporter:
    """Exports one run as a crate."""

    def __init__(self, workspace: Workspace, view: RunView, options: CrateOptions) -> None:
        self.workspace, self.view, self.options = workspace, view, options
        self.notes: list[str] = []
        _refuse_unfinished(workspace, view)
        self.workflow = _workflow_file(workspace)
        self.attempts = LastAttempts(view)
        self.by_category = len(self.attempts.numbers) > MOST_TASKS and not options.all_tasks
        if self.by_category and options.data == "all":
            raise InputError(
                f"the {count(len(self.attempts.numbers), 'task')} of this run are described by category, "
                "without the files between them",
                remedy="include them with --all-tasks, or only results with --data outputs",
            )
        self.ran = self._load()
        self.inputs: list[int] = []
        self.outputs: list[int] = []
        self.listing = self._list()

    def _load(self) -> GraphOfRun | None:
        view, ledger = self.view, self.workspace.ledger
        assert view.start is not None
        if self.workflow.language == "net":
            return None
        loaded = load_again(self.workspace, view.start.targets)
        if loaded is None:
            self.notes.append("the workflow cannot be loaded as it was run, so the crate describes no files")
            return None
        started = ((task, view.names.of(task)) for task in self.attempts.numbers)
        ran = GraphOfRun(loaded, started, self.attempts.planned(len(loaded.graph)), values=self.options.variable_values)
        ran.add_records(file_records(ledger, view.number))
        if ran.changed:
            self.notes.append(f"changed since the run, so described without files: {count(ran.changed, 'task')}")
        return ran

    def _list(self) -> CrateFiles | None:
        """The files to describe; None if they are unknown or too many."""
        ran, options = self.ran, self.options
        if ran is None:
            return None
        self.inputs, self.outputs = ran.read_from_outside(), ran.results()
        if self.by_category and len(self.inputs) + len(self.outputs) > MOST_TASKS:
            if options.data != "none":
                raise InputError(
                    f"{count(len(self.inputs) + len(self.outputs), 'file')} are too many for a crate "
                    "that describes tasks by category",
                    remedy="include them with --all-tasks",
                )
            self.notes.append(f"left out: {count(len(self.inputs), 'input')} and {count(len(self.outputs), 'result')}")
            return None
        place = (os.path.basename(self.workspace.workflow), self.workflow.place)
        names, base = ran.graph.file_names, self.workspace.base
        figures = RecordedFiles(ran.sizes, ran.times, self.view.until())
        listing = CrateFiles(names, figures, base, place, checksums=options.checksums)
        listing.add(self.outputs, options.data != "none")
        listing.add(self.inputs, options.data == "all")
        if not self.by_category:
            for task in self.attempts.numbers:
                listing.add(ran.inputs_of(task), options.data == "all")
                listing.add(ran.outputs_of(task), options.data == "all")
        if listing.changed:
            self.notes.append(f"changed since the run, so neither checked nor copied: {count(listing.changed, 'file')}")
        return listing

    def write(self, output: str) -> CrateSummary:
        """Writes the crate completely or not at all."""
        if self.listing is not None:
            self.listing.check_output(output)
        try:
            sink = open_sink(output)
        except OSError as error:
            raise InputError(f"the crate {output!r} cannot be written: {error.strerror}") from None
        try:
            self._fill(sink)
            sink.finish()
        except OSError as error:  # an error without a file name concerns the output
            sink.abandon()
            raise OSError(error.errno, error.strerror, error.filename or output) from None
        except BaseException:
            sink.abandon()
            raise
        listing = self.listing
        return CrateSummary(
            self.attempts.counts(),
            self.by_category,
            len(listing) if listing is not None else 0,
            len(listing.parts) if listing is not None else 0,
            self.notes,
        )

    def _fill(self, sink: Sink) -> None:
        size, checksum = sink.add(self.workflow.place, self.workspace.workflow)
        self.workflow = msgspec.structs.replace(self.workflow, size=size, sha256=checksum)
        if self.listing is not None:
            self.listing.copy_to(sink)
        sink.describe(crate_entities(self._facts()))

    def _facts(self) -> RunFacts:
        view, options, attempts, listing = self.view, self.options, self.attempts, self.listing
        assert view.start is not None
        steps = list(range(len(attempts.steps)))
        return RunFacts(
            name=options.name or f"Run {view.start.run} of {self.workflow.name}",
            description=options.description or self._description(),
            published=options.now,
            author=options.author,
            licence=options.licence,
            workflow=self.workflow,
            version=view.start.version,
            run=view.start.run,
            started=view.start.time,
            ended=view.until(),
            error=why_not_ok(view.end),
            words=list(map(decodable, view.start.targets)),
            nodes=[NodeFacts(node.name, node.cores, node.resources.get("memory", 0)) for node in view.nodes.values()],
            steps=attempts.steps,
            positions=attempts.positions(),
            numbers=steps if self.by_category else attempts.numbers,
            step_of=steps if self.by_category else attempts.step_of,
            tasks=attempts.together(self.ran) if self.by_category else attempts.each(self.ran, listing),
            files=listing.facts() if listing is not None else (),
            parts=listing.parts if listing is not None else (),
            inputs=listing.identifiers(self.inputs) if listing is not None else (),
            outputs=listing.identifiers(self.outputs) if listing is not None else (),
        )

    def _description(self) -> str:
        text = f"A run of {self.workflow.name} by Shoal: {self.attempts.counts()}."
        if self.by_category:
            text += " Tasks of a category are described together."
        return " ".join([text, *(f"{note[0].upper()}{note[1:]}." for note in self.notes)])


def why_not_ok(end: RunEnded | None) -> str:
    """Why a run did not succeed; empty if it did."""
    if end is None:
        return "The run was killed."
    if end.outcome == "ok":
        return ""
    reason = "" if end.outcome in ("failed", TASKS_CANCELLED) else f" ({end.outcome})"
    cancelled = f", {end.cancelled:,} {'was' if end.cancelled == 1 else 'were'} cancelled" if end.cancelled else ""
    left = max(0, end.not_run - end.cancelled)
    did_not = "did not finish" if reason else "did not run"  # a stopped run has tasks that had begun
    return f"{count(end.failed, 'task')} failed{cancelled} and {left:,} {did_not}{reason}."


def _refuse_unfinished(workspace: Workspace, view: RunView) -> None:
    name = os.path.basename(workspace.workflow)
    holder = workspace.holder()
    if view.end is None and holder is not None and view.start is not None and holder.run == view.start.run:
        raise InputError(f"{name} is running", remedy="wait for it, or stop it with 'shoal cancel'")
    left = view.end.outcome == DETACHED if view.end is not None else os.path.exists(workspace.submission_note)
    if left:
        raise InputError(
            f"{name} was detached on a cluster, and its ledger does not contain the results",
            remedy=f"fetch them with 'shoal attach {name}'",
        )


def _workflow_file(workspace: Workspace) -> WorkflowFile:
    name = os.path.basename(workspace.workflow)
    if not os.path.isfile(workspace.workflow):
        raise InputError(
            f"the workflow file {name!r} no longer exists",
            remedy="restore it: a crate contains the workflow that was run",
        )
    language = "net" if is_net(workspace.ledger) else str(language_of(name, read_text(workspace.workflow)))
    size, checksum = measured(workspace.workflow) or (0, "")
    encoding = encoding_of(name) if name.endswith((".py", ".json")) else "text/plain"
    return WorkflowFile(workflow_place(name), decodable(name), language, encoding, size, checksum)
