"""Records ended attempts: in the ledger, in the statistics and to the listener that shows the run to the user."""

from __future__ import annotations

import os
from collections.abc import Container, Sequence
from typing import Protocol, TypeVar

import msgspec

from shoal.core.graph import Graph
from shoal.core.policies.retry import AttemptOutcome
from shoal.core.resources import FRACTION
from shoal.core.scheduler_messages import Accept, GiveUp, Retry
from shoal.execution.processes.footprint import Footprint
from shoal.ledger.file import LedgerWriter
from shoal.ledger.identity import Versions, content_of, place_of
from shoal.ledger.records import TaskCourse, TaskEnded, TasksCancelled, TaskStarted, Usage
from shoal.ledger.statistics import LiveCountersWriter, Statistics, TaskFailure


class EndedAttempt(msgspec.Struct):
    """An ended attempt with all that the ledger records of it, for commands and calls alike."""

    task: int
    attempt: int
    outcome: AttemptOutcome
    status: int
    started: float
    ended: float
    user: float = 0.0
    system: float = 0.0
    max_rss: int = 0
    output_at: int = 0
    output_size: int = 0
    message: str = ""
    tail: bytes = b""
    value: bytes | None = None
    usage: Usage = Usage()
    memory_limit: int = 0
    node: int = 0
    """The node where it ran; 0 is this machine."""
    listing: bytes = b""
    """The entries that it made in directories: see `shoal.ledger.ownership`."""

    def note_files(self, size: int, count: int) -> None:
        """Records number and total size of the files that it made."""
        used = self.usage
        if size > used.disk or count > used.files:
            self.usage = msgspec.structs.replace(used, disk=max(size, used.disk), files=max(count, used.files))

    def record(
        self, final: bool, place: bytes, content: bytes, inputs: bytes, outputs: list[tuple[int, int]], check: int
    ) -> TaskEnded:
        return TaskEnded(
            self.task,
            self.attempt,
            self.outcome.value,
            final,
            self.status,
            self.started,
            self.ended,
            self.user,
            self.system,
            self.max_rss,
            self.output_at,
            self.output_size,
            self.message,
            place,
            content,
            inputs,
            outputs,
            self.value,
            self.usage,
            self.memory_limit,
            self.node,
            check,
            self.listing,
        )


class AttemptHooks(Protocol):
    """Called around every attempt; stand-ins for other programs use it to do what those programs do."""

    def wrap_command(self, task: int, command: str) -> str:
        """Returns the command line to start instead of the task's own."""

    def started(self, task: int, attempt: int) -> None:
        """An attempt is about to be passed to the launcher."""

    def ended(self, attempt: EndedAttempt) -> None:
        """An attempt has ended and is not reported yet; its outcome may still be changed."""

    def collect(self) -> list[bytes]:
        """Removes files that no task needs any more; returns the places of the tasks that made them."""


_WALK_SECONDS = 0.02
"""Time limit for walking the output directories of a task; larger directories are only partly counted."""
_CLOCK_GRAIN = 0.02
"""Resolution of file timestamps, which is coarser than that of the clock."""


Numbered = TypeVar("Numbered", TaskStarted, TaskCourse, EndedAttempt)


class RunListener(Protocol):
    """Shows the run to the user."""

    def tick(self, statistics: Statistics, now: float) -> None:
        """Called about ten times a second."""

    def attempt_over(self, name: str, attempt: EndedAttempt, verdict: str) -> None:
        """An attempt has ended; the verdict is `done`, `retry` or `failed`."""

    def note(self, text: str) -> None:
        """Shows a message to the user."""


class AttemptRecorder:
    """Writes ledger and statistics of one run."""

    def __init__(
        self, graph: Graph, versions: Versions, ledger: LedgerWriter, statistics: Statistics, listener: RunListener
    ) -> None:
        self.graph = graph
        self.versions = versions
        self.ledger = ledger
        self.statistics = statistics
        self.listener = listener
        self.report_all = False
        """Report every attempt to the listener, not only unsuccessful ones."""
        self.stopping = False
        """The run is stopping: no more tasks are started."""
        self._ended: dict[int, EndedAttempt] = {}
        self._fresh: dict[int, TaskStarted] = {}
        """Attempts under way whose start is not in the ledger yet."""
        self.unbegun: dict[int, int] = {}
        """Number of attempts per open task that were returned before they had begun. The scheduler numbers such
        attempts, too, in order to recognise late messages; they appear in no record and do not count as attempts."""
        self._declared = [profile.declares("cores") for profile in graph.profiles]
        self._cores = [profile.resources.get("cores") / FRACTION for profile in graph.profiles]
        self._moment = LiveCountersWriter(os.path.dirname(ledger.path))
        self._totals = [statistics.category(profile.category) for profile in graph.profiles]

    def started(self, record: TaskStarted) -> None:
        """An attempt has started; short attempts end before this is written to the ledger."""
        self._fresh[record.task] = record

    def tick(self, first: Container[int]) -> None:
        """Records the start of attempts that are still running; shorter attempts only show up in the number of running
        tasks.

        `first` holds those calls of a bundle that have begun. The others may still be returned.
        """
        begun = {task: record for task, record in self._fresh.items() if record.pid or task in first}
        for task, record in begun.items():
            self.ledger.add(self._renumbered(record))
            del self._fresh[task]
        self.statistics.going |= begun
        self._moment.publish(self.statistics)

    def look(self, now: float) -> None:
        """Checks whether tasks share cores now."""
        self.statistics.update_oversubscription(now, lambda task: self._cores[self.graph.profile[task]])

    def course(self, record: TaskCourse) -> None:
        """Records the time series of an attempt."""
        self.ledger.add(self._renumbered(record))

    def _renumbered(self, record: Numbered) -> Numbered:
        """Replaces the attempt number by the number among the attempts that have begun."""
        unbegun = self.unbegun.get(record.task, 0)
        return msgspec.structs.replace(record, attempt=record.attempt - unbegun) if unbegun else record

    def ended(self, attempt: EndedAttempt) -> None:
        """Keeps an ended attempt until the scheduler has decided about it."""
        task, graph = attempt.task, self.graph
        self._ended[task] = attempt
        if self._fresh.pop(task, None) is None:
            self.statistics.going.pop(task, None)
        if attempt.outcome is AttemptOutcome.OK and graph.output_start[task] != graph.output_start[task + 1]:
            self._note_outputs(attempt)
        if attempt.ended > attempt.started:
            profile = graph.profile[task]
            self.statistics.attempt_ended(
                task,
                self._totals[profile],
                attempt.ended - attempt.started,
                attempt.user + attempt.system,
                attempt.max_rss,
                self._cores[profile],
                declared=self._declared[profile],
            )

    def _note_outputs(self, attempt: EndedAttempt) -> None:
        """Adds the size of the outputs. Only directories are walked: the status of files is already known."""
        sizes, files = self.versions.sizes, self.graph.outputs_of(attempt.task)
        size = sum(max(0, sizes[file]) for file in files)
        count = len(files)
        if not self.versions.folders.isdisjoint(files):
            inside = [file for file in files if file in self.versions.folders]
            folders = [self.graph.file_names[file] for file in inside]
            size -= sum(sizes[file] for file in inside)
            footprint = Footprint(folders, since=attempt.started - _CLOCK_GRAIN)
            footprint.look(_WALK_SECONDS)
            size += footprint.bytes
            count += max(0, footprint.files - len(folders))
        attempt.note_files(size, count)

    def enter(self, verdicts: Sequence[Accept | Retry | GiveUp]) -> None:
        """Records the scheduler's verdicts on the ended attempts that are waiting."""
        cancelled: list[int] = []
        for verdict in verdicts:
            if isinstance(verdict, Accept):
                self.accept(verdict.task)
            elif isinstance(verdict, Retry):
                self.retry(verdict)
            else:
                self.give_up(verdict)
                if verdict.outcome is AttemptOutcome.CANCELLED:
                    cancelled.append(verdict.task)
        if cancelled:
            self.cancelled(cancelled)

    def cancelled(self, tasks: list[int]) -> None:
        """Records cancelled tasks. If the whole run is stopped, the run counts as cancelled, not the tasks."""
        self.statistics.cancelled += sum(self.graph.actions[task] is not None for task in tasks)
        if not self.stopping:
            self.ledger.add(TasksCancelled(tasks))

    def accept(self, task: int) -> None:
        """Records the result of the attempt as the task's result."""
        attempt = self._renumbered(self._ended.pop(task))
        self.unbegun.pop(task, None)
        graph, versions = self.graph, self.versions
        begin, end = graph.output_start[task], graph.output_start[task + 1]
        outputs: list[tuple[int, int]] = []
        if begin != end:
            outputs = [(versions.sizes[file], versions.times[file]) for file in graph.outputs[begin:end]]
        versions.done[task] = attempt.ended
        alone = graph.input_start[task] == graph.input_start[task + 1] and (
            graph.after_start[task] == graph.after_start[task + 1]
        )
        inputs = b"" if alone else versions.digest_of_inputs(task)
        identity = place_of(graph, task), content_of(graph, task)
        self._record(attempt, attempt.record(True, *identity, inputs, outputs, versions.check))
        self.statistics.task_done(self._totals[graph.profile[task]], attempt.ended - attempt.started)
        if self.report_all:
            self.listener.attempt_over(graph.names[task], attempt, "done")

    def retry(self, command: Retry) -> None:
        attempt = self._renumbered(self._ended.pop(command.task))
        if command.outcome is AttemptOutcome.UNBEGUN:
            self.unbegun[command.task] = self.unbegun.get(command.task, 0) + 1
            return  # it never began, so there is nothing to report
        self.statistics.retried += 1
        self._record_unsuccessful(attempt, final=False)
        self.listener.attempt_over(self.graph.names[command.task], attempt, "retry")

    def give_up(self, command: GiveUp) -> None:
        """Records that the task has ended without a result. A cancelled task is not recorded as failed: the next run
        runs it."""
        task = command.task
        attempt = self._ended.pop(task, None)
        cancelled = command.outcome is AttemptOutcome.CANCELLED
        if attempt is not None:
            attempt = self._renumbered(attempt)
        self.unbegun.pop(task, None)
        if attempt is None:
            return
        self._record_unsuccessful(attempt, final=not cancelled)
        if cancelled:
            return
        name = self.graph.names[task]
        self._totals[self.graph.profile[task]].failed += 1
        self.statistics.task_failed(TaskFailure(task, name, attempt.attempt, attempt.message, attempt.tail))
        self.listener.attempt_over(name, attempt, "failed")

    def _record_unsuccessful(self, attempt: EndedAttempt, final: bool) -> None:
        task = attempt.task
        identity = place_of(self.graph, task), content_of(self.graph, task)
        self._record(attempt, attempt.record(final, *identity, b"", [], self.versions.check))

    def _record(self, attempt: EndedAttempt, record: TaskEnded) -> None:
        """The statistics count shared cores exactly when the ledger does."""
        self.ledger.add(record)
        self.statistics.oversubscription.add(
            attempt.started, attempt.ended, self._cores[self.graph.profile[attempt.task]]
        )
