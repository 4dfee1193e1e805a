"""The ledger of a net's run, and how an interrupted run is restored from it.

Records of the net are written as they come, many together. From time to time the whole state is written and replaces
earlier records, so that resuming takes as long as what happened since then. Values are pickled: definitions of the
program by name, so that they are the same objects after resuming, others as code. A ledger is unpickled only by the
user who wrote it.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from shoal import __version__
from shoal.errors import InputError, ShoalError
from shoal.execution.calls.messages import CallResult
from shoal.execution.calls.pickling import PICKLING_ERRORS, dumps_by_value
from shoal.execution.processes.output import OutputStream
from shoal.execution.processes.process_table import boot_identity, start_ticks
from shoal.ledger.file import LedgerReader, LedgerWriter
from shoal.ledger.records import (
    NetBegun,
    NetChanged,
    NetMarked,
    NetSaved,
    RunEnded,
    RunStarted,
    TaskEnded,
    TasksPlanned,
    decode,
)
from shoal.ledger.workspace import Workspace
from shoal.petri import records as r

SAVED_EVERY = 20_000
"""Number of records after which the whole state is written, if it has no more tokens than that; otherwise as many as it
has."""
MARKED_EVERY = 0.5
"""Seconds between two records of the marking."""
OVER = ("ok", "failed")
"""Outcomes of runs that were not interrupted."""


class PastNetRun(msgspec.Struct):
    """The last run of a net, from its ledger."""

    begun: NetBegun | None = None
    state: r.NetState | None = None
    records: list[r.Record] = []
    outcome: str = ""
    """How it ended; empty if it was interrupted."""
    ended: float = 0.0
    done: dict[str, int] = {}
    """Number of finished tasks per transition."""
    damaged: bool = False
    """Some of it could not be read; that may be only what a killed run was just writing."""


def transition_of(name: str) -> str:
    """Returns the transition of a task from its name in ledgers."""
    return name.rpartition(" ")[0]


class _LedgerFold:
    """The fold over a ledger; values stay pickled."""

    def __init__(self) -> None:
        self.past = PastNetRun()
        self.saved: bytes | None = None
        self.changes: list[bytes] = []
        self._names: dict[int, str] = {}

    def take(self, record: object) -> None:
        match record:
            case NetBegun():
                self.past, self.saved, self.changes = PastNetRun(begun=record), None, []
            case NetSaved():
                self.saved, self.changes = record.state, []
            case NetChanged():
                self.changes.append(record.records)
            case TasksPlanned():
                self._names.update(zip(record.first, record.names, strict=True))
            case TaskEnded() if record.final:
                name = self._names.pop(record.task, "")
                if record.outcome == "ok":
                    self._count(name)
            case NetMarked():
                self.past.done = dict(record.done)
            case RunStarted():
                self.past.outcome = ""
            case RunEnded():
                self.past.outcome, self.past.ended = record.outcome, record.time

    def _count(self, name: str) -> None:
        transition = transition_of(name)
        self.past.done[transition] = self.past.done.get(transition, 0) + 1

    def unpickled(self) -> PastNetRun:
        """Returns the run with its values unpickled."""
        past = self.past
        past.state = pickle.loads(self.saved) if self.saved is not None else None
        last: list[r.Record] = []
        for change in self.changes:
            last = pickle.loads(change)
            past.records += last
        for record in last:
            # A run that was killed while writing may have left a result without the end of its task.
            if isinstance(record, r.Injected) and record.task in self._names:
                self._count(self._names[record.task])
        return past


def read_past(workspace: Workspace) -> PastNetRun:
    """Reads the last run; unpickles values only from the last whole state on."""
    fold = _LedgerFold()
    reader = LedgerReader(workspace.ledger)
    for payload in reader.payloads():
        fold.take(decode(payload))
    fold.past.damaged = bool(reader.damage)
    if fold.past.begun is None:
        return fold.past
    try:
        return fold.unpickled()
    except Exception as error:  # users' classes may raise anything, or no longer exist
        raise InputError(
            f"the ledger of the net {fold.past.begun.name!r} contains a token that can no longer be read "
            f"({type(error).__name__}: {error})",
            remedy="undo the change that removed its class, or start again with --force (afresh=True)",
        ) from error


class NetJournal:
    """The ledger of one run of a net."""

    def __init__(self, workspace: Workspace, name: str, start: RunStarted, done: Mapping[str, int]) -> None:
        """`done`: tasks finished earlier, if the run is resumed."""
        self.name = name
        self.done = dict(done)
        self.failed = 0
        self._writer = LedgerWriter(workspace.ledger, workspace.ballast)
        self._output = OutputStream(workspace.output)
        self._records: list[r.Record] = []
        self._planned: list[tuple[int, str, str]] = []
        self._ended: list[TaskEnded] = []
        self._since_save = 0
        self._save_after = SAVED_EVERY
        self._can_save = True
        self._broken = False
        self._writer.add(start)

    @property
    def is_full(self) -> bool:
        """Whether the disk was full."""
        return self._writer.full or self._output.full

    def begin(self, digest: str, seed: int | None, state: r.NetState) -> None:
        """Begins a new run with this state; earlier records are history."""
        self._writer.add(NetBegun(self.name, digest, seed))
        self.save(state)
        self._writer.flush()

    def note(self, record: r.Record) -> None:
        """Writes a record of the net."""
        self._records.append(record)

    def submitted(self, task: r.Task) -> None:
        """Records that a task was submitted, with its name."""
        spec = task.transition
        self._planned.append((task.id, f"{spec.name} {task.id}", spec.profile.category))

    def ended(
        self,
        task: r.Task,
        started: float,
        ended: float,
        cpu: float,
        problem: str = "",
        tried: Sequence[CallResult] = (),
    ) -> None:
        """Records the end of a task, with times and the output of its attempts."""
        name = task.transition.name
        if problem:
            self.failed += 1
        else:
            self.done[name] = self.done.get(name, 0) + 1
        for result in tried[:-1]:
            said = result.error_text.strip().rsplit("\n", 1)[-1]
            spent = (result.started, result.ended, result.cpu_user, result.cpu_system)
            self._note_end(task, result.attempt, result.verdict().value, spent, said, result, final=False)
        last = tried[-1] if tried else None
        outcome = "failed" if problem else "ok"
        number = last.attempt if last is not None else 1
        self._note_end(task, number, outcome, (started, ended, cpu, 0.0), problem, last, final=True)

    def _note_end(
        self,
        task: r.Task,
        number: int,
        outcome: str,
        spent: tuple[float, float, float, float],
        message: str,
        result: CallResult | None,
        *,
        final: bool,
    ) -> None:
        """`number` counts the attempts since the task was submitted; a resumed run submits it once more."""
        memory, at, size = (result.max_rss_bytes, *self._keep_output(result)) if result is not None else (0, 0, 0)
        identity = f"{self.name}:{task.id}".encode()
        status = 0 if outcome == "ok" else 1
        attempt, figures = task.attempt + number - 1, (*spent, memory, at, size, message)
        self._ended.append(TaskEnded(task.id, attempt, outcome, final, status, *figures, identity, b"", b"", [], None))

    def _keep_output(self, result: CallResult) -> tuple[int, int]:
        """Stores the output of an attempt, with the traceback if it failed."""
        text = result.output
        if result.error_text:
            text += result.error_text.rstrip().encode("utf-8", "replace") + b"\n"
        return self._output.append(text) if text else (0, 0)

    def flush(self, state: Callable[[], r.NetState]) -> None:
        """Makes all records durable against the death of this process; calls `state` if the whole state is due."""
        self._order_records()
        if self._since_save >= self._save_after and self._can_save:
            self.save(state())
        self._writer.flush()

    def mark(self, mark: NetMarked) -> None:
        """Records the current marking."""
        self._order_records()
        self._writer.add(mark)

    def close(self, outcome: str, left: int) -> None:
        """`outcome` as in other ledgers: ok, failed, or what stopped it; "" leaves the end open, to be resumed."""
        self._order_records()
        if outcome:
            self._writer.add(RunEnded(time.time(), outcome, sum(self.done.values()), self.failed, left))
        self._writer.close()
        self._output.close()

    def give_up(self, reason: str, left: int) -> None:
        """Closes the ledger after an error, with what can be written."""
        try:
            self.close(reason, left)
        except ShoalError:
            self._writer.close()
            self._output.close()

    def _order_records(self) -> None:
        """Puts each result before the end of its task, so that a torn write is not counted twice later."""
        if self._broken:
            return  # earlier records are missing, so later ones would not follow from them
        if self._planned:
            numbers, names, categories = zip(*self._planned, strict=True)
            self._planned = []
            self._writer.add(TasksPlanned(list(numbers), list(names), list(categories)))
        if self._records:
            self._broken = True
            self._writer.add(NetChanged(dumps(self._records)))
            self._broken = False
            self._since_save += len(self._records)
            self._records = []
        for ended in self._ended:
            self._writer.add(ended)
        self._ended.clear()

    def save(self, state: r.NetState) -> None:
        """Writes the whole state.

        A state that cannot be pickled, because a step has made such a token, is skipped: the records contain the same
        information.
        """
        self._since_save = 0
        self._save_after = max(SAVED_EVERY, sum(map(len, state.marking.values())))
        try:
            self._writer.add(NetSaved(dumps(state)))
        except InputError:
            self._can_save = False


def run_started(identity: str, words: Sequence[str], node: Sequence[tuple[str, int]]) -> RunStarted:
    """Returns the first record of a run of this process."""
    process = (os.getpid(), start_ticks(os.getpid()) or 0, boot_identity(), os.uname().nodename)
    return RunStarted(identity, time.time(), *process, __version__, list(words), list(node), 0, 0)


def dumps(value: Any) -> bytes:
    """Pickles by name where possible, otherwise by value; raises `InputError` if neither works."""
    try:
        try:
            return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        except PICKLING_ERRORS:  # a lambda, or a class inside a function
            return dumps_by_value(value)
    except Exception as error:  # users' reducers may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise InputError(
            f"a token cannot be written to the ledger ({reason})", remedy="tokens must be picklable"
        ) from error
