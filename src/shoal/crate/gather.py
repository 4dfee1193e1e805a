"""From a workflow file and the number of a run to a crate on the disk.

Reads the ledger, loads the workflow to know the files of its tasks, looks at these, copies those that are wanted and
has the metadata written. Runs nothing.
"""

from __future__ import annotations

import os
from typing import Literal

import msgspec

from shoal.crate.build import crate_entities
from shoal.crate.facts import Licence, NodeFacts, Person, RunFacts, WorkflowFile
from shoal.crate.files import Figures, Listing, encoding_of, measured
from shoal.crate.graphed import Ran, load_again
from shoal.crate.names import workflow_place
from shoal.crate.recorded import file_records, is_net
from shoal.crate.sink import Sink, open_sink
from shoal.crate.tasks import Counts, LastAttempts
from shoal.engine.load import language_of, read_text
from shoal.engine.workspace import Workspace
from shoal.errors import InputError
from shoal.ledger.records import DETACHED, TASKS_CANCELLED, RunEnded, printable
from shoal.model.quantities import count
from shoal.view.run import RunView

MOST_TASKS = 20_000
"""Larger runs are told of by category: what reads crates holds the whole of one in memory, many times over."""
Data = Literal["none", "outputs", "all"]


class Wishes(msgspec.Struct, frozen=True):
    """What the user wants of a crate."""

    author: Person
    licence: Licence
    now: float
    name: str = ""
    description: str = ""
    data: Data = "none"
    all_tasks: bool = False
    checksums: bool = True
    variable_values: bool = False


class Told(msgspec.Struct, frozen=True):
    """What was written."""

    tasks: Counts
    by_category: bool
    files: int
    copied: int
    notes: list[str]


class Exporter:
    """One run on its way into a crate."""

    def __init__(self, workspace: Workspace, view: RunView, wishes: Wishes) -> None:
        self.workspace, self.view, self.wishes = workspace, view, wishes
        self.notes: list[str] = []
        _refuse_unfinished(workspace, view)
        self.workflow = _workflow_file(workspace)
        self.attempts = LastAttempts(view)
        self.by_category = len(self.attempts.numbers) > MOST_TASKS and not wishes.all_tasks
        if self.by_category and wishes.data == "all":
            raise InputError(
                f"the {count(len(self.attempts.numbers), 'task')} of this run are told of by category, "
                "without the files between them",
                remedy="copy these with --all-tasks, or only results with --data outputs",
            )
        self.ran = self._load()
        self.inputs: list[int] = []
        self.outputs: list[int] = []
        self.listing = self._list()

    def _load(self) -> Ran | None:
        view, ledger = self.view, self.workspace.ledger
        assert view.start is not None
        if self.workflow.language == "net":
            return None
        loaded = load_again(self.workspace, view.start.targets)
        if loaded is None:
            self.notes.append("the workflow cannot be loaded as it was run, so the crate tells of no files")
            return None
        started = ((task, view.names.of(task)) for task in self.attempts.numbers)
        ran = Ran(loaded, started, self.attempts.planned(len(loaded.graph)), values=self.wishes.variable_values)
        ran.take(file_records(ledger, view.number))
        if ran.changed:
            self.notes.append(f"changed since the run, so told of without files: {count(ran.changed, 'task')}")
        return ran

    def _list(self) -> Listing | None:
        """The files to tell of; None if nothing is known of them, or if there are too many."""
        ran, wishes = self.ran, self.wishes
        if ran is None:
            return None
        self.inputs, self.outputs = ran.read_from_outside(), ran.results()
        if self.by_category and len(self.inputs) + len(self.outputs) > MOST_TASKS:
            if wishes.data != "none":
                raise InputError(
                    f"{count(len(self.inputs) + len(self.outputs), 'file')} are too many for a crate "
                    "that tells of tasks by category",
                    remedy="copy them with --all-tasks",
                )
            self.notes.append(f"left out: {count(len(self.inputs), 'input')} and {count(len(self.outputs), 'result')}")
            return None
        place = (os.path.basename(self.workspace.workflow), self.workflow.place)
        names, base = ran.graph.file_names, self.workspace.base
        figures = Figures(ran.sizes, ran.times, self.view.until())
        listing = Listing(names, figures, base, place, checksums=wishes.checksums)
        listing.add(self.outputs, wishes.data != "none")
        listing.add(self.inputs, wishes.data == "all")
        if not self.by_category:
            for task in self.attempts.numbers:
                listing.add(ran.inputs_of(task), wishes.data == "all")
                listing.add(ran.outputs_of(task), wishes.data == "all")
        if listing.changed:
            self.notes.append(f"changed since the run, so neither checked nor copied: {count(listing.changed, 'file')}")
        return listing

    def write(self, output: str) -> Told:
        """Writes the crate, whole or not at all."""
        if self.listing is not None:
            self.listing.check_output(output)
        try:
            sink = open_sink(output)
        except OSError as error:
            raise InputError(f"the crate {output!r} cannot be written: {error.strerror}") from None
        try:
            self._fill(sink)
            sink.finish()
        except OSError as error:  # without a name it is of what was written
            sink.abandon()
            raise OSError(error.errno, error.strerror, error.filename or output) from None
        except BaseException:
            sink.abandon()
            raise
        listing = self.listing
        return Told(
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
        view, wishes, attempts, listing = self.view, self.wishes, self.attempts, self.listing
        assert view.start is not None
        steps = list(range(len(attempts.steps)))
        return RunFacts(
            name=wishes.name or f"Run {view.start.run} of {self.workflow.name}",
            description=wishes.description or self._description(),
            published=wishes.now,
            author=wishes.author,
            licence=wishes.licence,
            workflow=self.workflow,
            version=view.start.version,
            run=view.start.run,
            started=view.start.time,
            ended=view.until(),
            error=why_not_ok(view.end),
            words=list(map(printable, view.start.targets)),
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
    """Why a run did not come to a good end; empty if it did."""
    if end is None:
        return "The run was killed."
    if end.outcome == "ok":
        return ""
    reason = "" if end.outcome in ("failed", TASKS_CANCELLED) else f" ({end.outcome})"
    cancelled = f", {end.cancelled:,} {'was' if end.cancelled == 1 else 'were'} cancelled" if end.cancelled else ""
    left = max(0, end.not_run - end.cancelled)
    did_not = "did not finish" if reason else "did not run"  # when it was stopped some of them had begun
    return f"{count(end.failed, 'task')} failed{cancelled} and {left:,} {did_not}{reason}."


def _refuse_unfinished(workspace: Workspace, view: RunView) -> None:
    name = os.path.basename(workspace.workflow)
    holder = workspace.holder()
    if view.end is None and holder is not None and view.start is not None and holder.run == view.start.run:
        raise InputError(f"{name} is being run", remedy="wait for it, or end it with 'shoal cancel'")
    left = view.end.outcome == DETACHED if view.end is not None else os.path.exists(workspace.brought)
    if left:
        raise InputError(
            f"{name} was left to a cluster, and its ledger does not know what became of it",
            remedy=f"fetch that with 'shoal attach {name}'",
        )


def _workflow_file(workspace: Workspace) -> WorkflowFile:
    name = os.path.basename(workspace.workflow)
    if not os.path.isfile(workspace.workflow):
        raise InputError(
            f"the workflow file {name!r} is not there any more",
            remedy="put it back: a crate is about the workflow that was run",
        )
    language = "net" if is_net(workspace.ledger) else str(language_of(name, read_text(workspace.workflow)))
    size, checksum = measured(workspace.workflow) or (0, "")
    encoding = encoding_of(name) if name.endswith((".py", ".json")) else "text/plain"
    return WorkflowFile(workflow_place(name), printable(name), language, encoding, size, checksum)
