"""The tasks and files of the workflow that was run, as its file has them now, held against what the ledger says.

A ledger names tasks and not their files, so the workflow is loaded once more. A task that is no longer what it was is
left without files rather than given wrong ones.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from io import StringIO

from shoal.engine.load import Workflow
from shoal.engine.session import load
from shoal.engine.workspace import Workspace
from shoal.errors import InputError
from shoal.ledger.records import SourcesSeen, TaskEnded, printable
from shoal.model.graph import NO_TASK, Graph, ancestors
from shoal.model.task import Call
from shoal.plan.identity import content_of, place_of

UNKNOWN = -1


def load_again(workspace: Workspace, words: Sequence[str]) -> Workflow | None:
    """The workflow with the words it was run with; None if that cannot be had any more."""
    there = os.getcwd()
    try:
        os.chdir(workspace.base)
        with redirect_stdout(StringIO()):  # a rules file may print, and that is not what was asked for
            return load(workspace, words)
    except (InputError, OSError):
        return None
    finally:
        os.chdir(there)


class Ran:
    """A graph with what became of it in one run."""

    def __init__(
        self, workflow: Workflow, tasks: Iterable[tuple[int, str]], planned: bytes, *, values: bool = False
    ) -> None:
        """`tasks` are those that were started, with their names; `planned` says of each whether it was to be.

        `values` is whether variables are told of with their values.
        """
        self.graph: Graph = workflow.graph
        self._targets = workflow.targets
        self.sizes = array("q", [UNKNOWN]) * len(self.graph.file_names)
        self.times = array("q", [UNKNOWN]) * len(self.graph.file_names)
        """As the ledger has them: of modification in nanoseconds, or numbers made from the content of files."""
        self.known = bytearray(len(self.graph))
        """Tasks that the run has started, and that are still what they were as far as names go."""
        self.changed = 0
        """Tasks that are not."""
        for task, name in tasks:
            if task < len(self.graph) and printable(self.graph.names[task]) == name:
                self.known[task] = 1
            else:
                self.changed += 1
        self._planned = planned
        self.done = bytearray(len(self.graph))
        self._environments = [
            tuple((printable(name), printable(value) if values else None) for name, value in profile.environment)
            for profile in self.graph.profiles
        ]

    def take(self, records: Iterable[tuple[bool, SourcesSeen | TaskEnded]]) -> None:
        """Adds what the ledger says of files, by records of which each is of this run or of an earlier one."""
        numbers = {
            printable(self.graph.file_names[file]): file
            for file, maker in enumerate(self.graph.producer)
            if maker == NO_TASK
        }
        up_to_date = self._up_to_date()
        for is_of_this, record in records:
            if isinstance(record, TaskEnded):
                if record.place in up_to_date:
                    if record.final and record.outcome == "ok":  # of several the last one stays
                        self._note_outputs(up_to_date[record.place], record)
                elif is_of_this:
                    self._take_end(record)
                continue
            for name, size, time in zip(record.names, record.sizes, record.times, strict=True):
                if name in numbers:
                    self.sizes[numbers[name]], self.times[numbers[name]] = size, time

    def _up_to_date(self) -> dict[bytes, int]:
        """Tasks that were wanted and had nothing to do, by their places: earlier runs have made their files."""
        graph = self.graph
        wanted = ancestors(graph, self._targets)
        return {
            place_of(graph, task): task
            for task in range(len(graph))
            if wanted[task] and not self._planned[task] and graph.output_start[task] < graph.output_start[task + 1]
        }

    def _take_end(self, record: TaskEnded) -> None:
        """Also of a task that failed: its command may have been mended since, and must not be told as what failed."""
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
        """What it made; nothing if it failed."""
        return self.graph.outputs_of(task) if self._is_known(task) and self.done[task] else ()

    def _is_known(self, task: int) -> bool:
        return task < len(self.known) and bool(self.known[task])

    def command(self, task: int) -> str:
        """What the task does, in one line."""
        action = self.graph.actions[task] if self._is_known(task) else None
        if isinstance(action, Call):
            return f"Python function {getattr(action.function, '__qualname__', 'call')}"
        return printable(action) if action else "not known any more"

    def environment(self, task: int) -> tuple[tuple[str, str | None], ...]:
        """Variables that the workflow sets for the task, with None for values that are not told."""
        return self._environments[self.graph.profile[task]] if self._is_known(task) else ()

    def read_from_outside(self) -> list[int]:
        """Files that tasks of this run have read and no task makes."""
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
        """Files that were wanted and that no task reads, and what the targets make, as far as they were made.

        A group reads nothing: as a target it stands for what it lists. A task that was wanted and not planned was up to
        date: what it makes belongs to the result of this run as well.
        """
        graph = self.graph
        wanted = ancestors(graph, self._targets)
        read = bytearray(len(graph.file_names))
        for task in range(len(graph)):
            if wanted[task] and graph.actions[task] is not None:
                for file in graph.inputs_of(task):
                    read[file] = 1
        if len(self._targets) < len(graph):
            for file in self._asked_for():
                read[file] = 0
        return [
            file
            for file, maker in enumerate(graph.producer)
            if maker != NO_TASK and wanted[maker] and not read[file] and (self.done[maker] or not self._planned[maker])
        ]

    def _asked_for(self) -> Iterator[int]:
        """What the targets make; for those that are groups, what these list, and groups in them likewise."""
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
