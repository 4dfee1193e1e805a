"""Results of earlier runs for the planner: the last result of every place and the last known source files; ledger
repair."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import msgspec

from shoal.ledger.attempt_journal import names_in_journal
from shoal.ledger.file import LedgerReader
from shoal.ledger.identity import place_of_text
from shoal.ledger.records import (
    BY_CONTENT,
    BY_TIME,
    UNSAID,
    Damage,
    OutputsCollected,
    OutputsNamed,
    Record,
    RunEnded,
    RunStarted,
    SourcesSeen,
    TaskAdopted,
    TaskEnded,
    TasksInterrupted,
    TasksPlanned,
    TaskStarted,
    TasksVanished,
    decodable,
    decode,
    encode,
    framed,
)
from shoal.ledger.workspace import Workspace

COMPACT_ABOVE_BYTES = 64 << 20
_CHUNK = 500


class History:
    """The results in a ledger. They are kept as encoded bytes, so that a million of them fit in memory."""

    def __init__(self) -> None:
        self.results: dict[bytes, bytes] = {}
        self.sources: dict[str, tuple[int, int, int]] = {}
        """Size, time or content number, and the kind of check."""
        self.collected: dict[bytes, None] = {}
        """Places whose outputs were deleted on purpose after they were made."""
        self.interrupted: dict[bytes, None] = {}
        """Places with an attempt after their last result that was running when its run was killed."""
        self._accepted_before: dict[bytes, bytes] = {}
        """The last accepted result of places whose last result is a failure."""
        self.ended_last: dict[bytes, bool] | None = None
        """Places of the last run with a final attempt, and whether it was accepted; None: not recorded."""
        self.damage: list[Damage] = []
        self.last_run: RunStarted | None = None
        self.last_end: RunEnded | None = None
        self.runs = 0
        self.bytes_read = 0
        self._named: list[bytes] = []
        """Records with the names of outputs by place."""
        self.begun: frozenset[str] = frozenset()
        """Outputs that attempts of a killed run may have started to write."""
        self._made: dict[str, list[tuple[bytes, int]]] | None = None

    def empty(self) -> bool:
        return not self.results

    def result(self, place: bytes) -> TaskEnded | None:
        payload = self.results.get(place)
        if payload is None:
            return None
        record = decode(payload)
        return record if type(record) is TaskEnded else _as_result(record)

    def made(self, name: str) -> Iterator[tuple[TaskEnded, int]]:
        """Accepted results of tasks that made a file of this name, and the index of that output. The tasks need not be
        in the workflow any more."""
        if self._made is None:
            self._made = {}
            for place, names in self.names_of_outputs().items():
                for at, each in enumerate(names):
                    self._made.setdefault(each, []).append((place, at))
        for place, at in ((place_of_text(name), 0), *self._made.get(decodable(name), ())):
            result = self.accepted(place)
            if result is not None and at < len(result.outputs):
                yield result, at

    def may_be_half_made(self, name: str) -> bool:
        """Whether an attempt of a killed run may have started to write a file of this name."""
        return name in self.begun

    def accepted(self, place: bytes) -> TaskEnded | None:
        """The last accepted result for a place, also if a later attempt failed. It tells which existing files Shoal has
        made."""
        payload = self._accepted_before.get(place)
        result = _as_result(decode(payload)) if payload is not None else self.result(place)
        return result if result is not None and result.outcome == "ok" else None

    def is_interrupted(self, place: bytes) -> bool:
        return place in self.interrupted

    def source(self, name: str, check: int) -> tuple[int, int] | None:
        found = self.sources.get(name)
        return found[:2] if found is not None and found[2] in (UNSAID, check) else None

    def is_collected(self, place: bytes) -> bool:
        return place in self.collected

    def take(self, payload: bytes) -> None:
        """Adds one record."""
        record = decode(payload)
        match record:
            case TaskEnded():
                if record.final:
                    is_accepted = record.outcome == "ok"
                    if is_accepted and not self._accepted_before and not self.interrupted and self.ended_last is None:
                        self.results[record.place] = payload  # the fast path of nearly all records
                        if self.collected:
                            self.collected.pop(record.place, None)
                    else:
                        self._take_result(record.place, payload, is_accepted=is_accepted)
            case TaskAdopted():
                self._take_result(record.place, payload, is_accepted=True)
                self._named.append(payload)
            case OutputsNamed():
                self._named.append(payload)
            case OutputsCollected():
                self.collected.update(dict.fromkeys(record.places))
            case TasksInterrupted():
                self.interrupted.update(dict.fromkeys(record.places))
            case SourcesSeen():
                for name, size, time in zip(record.names, record.sizes, record.times, strict=True):
                    self.sources[name] = (size, time, record.check)
            case RunStarted():
                self.last_run, self.last_end = record, None
                self.runs += 1
                if self.ended_last is not None:
                    self.ended_last.clear()
            case RunEnded():
                self.last_end = record

    def _take_result(self, place: bytes, payload: bytes, *, is_accepted: bool) -> None:
        if not is_accepted:
            before = self.result(place)
            if before is not None and before.outcome == "ok":
                self._accepted_before[place] = self.results[place]
        elif self._accepted_before:
            self._accepted_before.pop(place, None)
        self.results[place] = payload
        self.collected.pop(place, None)
        if self.interrupted:
            self.interrupted.pop(place, None)
        if self.ended_last is not None:
            self.ended_last[place] = is_accepted

    def names_of_outputs(self) -> dict[bytes, list[str]]:
        """Names of outputs by place, for tasks with a result whose own name does not contain them."""
        found: dict[bytes, list[str]] = {}
        for record in map(decode, self._named):
            if isinstance(record, OutputsNamed):
                found.update(zip(record.places, record.names, strict=True))
            elif isinstance(record, TaskAdopted):
                found[record.place] = record.names
        return {place: names for place, names in found.items() if place in self.results}

    def compacted(self) -> Iterator[bytes]:
        """Frames with the same content, without records that are not valid any more."""
        named = list(self.names_of_outputs().items())
        for begin in range(0, len(named), _CHUNK):
            chunk = named[begin : begin + _CHUNK]
            yield encode(OutputsNamed([place for place, _ in chunk], [names for _, names in chunk]))
        if self.last_run is not None:
            yield encode(self.last_run)
        yield from map(encode, self._sources_by_check())
        yield from map(framed, self._accepted_before.values())
        yield from map(framed, self.results.values())
        if self.collected:
            yield encode(OutputsCollected(list(self.collected)))
        if self.interrupted:
            yield encode(TasksInterrupted(list(self.interrupted)))

    def _sources_by_check(self) -> Iterator[SourcesSeen]:
        for check in (UNSAID, BY_TIME, BY_CONTENT):
            some = [(name, found) for name, found in self.sources.items() if found[2] == check]
            if some:
                sizes, times = [found[0] for _, found in some], [found[1] for _, found in some]
                yield SourcesSeen([name for name, _ in some], sizes, times, check)

    def size_of_results(self) -> int:
        return sum(map(len, self.results.values())) + sum(map(len, self._named))


def _as_result(record: Record | None) -> TaskEnded | None:
    if isinstance(record, TaskAdopted):
        return record.as_result()
    return record if isinstance(record, TaskEnded) else None


def read_history(workspace: Workspace) -> History:
    """Reads the whole ledger; damaged ranges are skipped and listed in `damage`."""
    history = History()
    if os.path.exists(workspace.attempts):
        history.ended_last = {}  # a run was killed: the planner needs to know which of its attempts have ended
        history.begun = names_in_journal(workspace.attempts)
    reader = LedgerReader(workspace.ledger)
    for payload in reader.payloads():
        history.take(payload)
    history.damage = list(reader.damage)
    if reader.tail.size:
        history.damage.append(reader.tail)
    history.bytes_read = reader.offset
    return history


def repair_ledger(workspace: Workspace, history: History) -> str | None:
    """Rewrites a damaged or too large ledger with its readable content; returns a message for the user.

    The damaged file is kept beside it. The new file is complete and durable before it replaces the old one.
    """
    if not history.damage and not _overgrown(history):
        return None
    fresh = workspace.ledger + ".new"
    with open(fresh, "wb") as file:
        for frame in history.compacted():
            file.write(frame)
        file.flush()
        os.fsync(file.fileno())
    message = None
    if history.damage:
        kept = workspace.ledger + ".damaged"
        os.replace(workspace.ledger, kept)
        message = describe_damage(history, kept)
    os.replace(fresh, workspace.ledger)
    return message


def _overgrown(history: History) -> bool:
    if history.bytes_read < COMPACT_ABOVE_BYTES:
        return False
    return history.bytes_read > 3 * history.size_of_results()


def describe_damage(history: History, kept: str) -> str:
    size = sum(stretch.size for stretch in history.damage)
    places = ", ".join(f"{stretch.size} bytes at {stretch.offset}" for stretch in history.damage[:3])
    more = f" and {len(history.damage) - 3} more" if len(history.damage) > 3 else ""
    return (
        f"the ledger was damaged: {size} bytes in {len(history.damage)} place{'s' * (len(history.damage) > 1)} "
        f"could not be read ({places}{more}); {len(history.results)} results were recovered, "
        f"outputs of the other tasks count as unknown files; the damaged file is kept as {os.path.basename(kept)}"
    )


class TaskAttempts(msgspec.Struct):
    """The recorded attempts of one task."""

    ended: list[TaskEnded] = []
    runs: list[int] = []
    """For each of these the number of its run, counted from 1."""
    running: TaskStarted | None = None
    """The attempt that the last run has started and whose end is not recorded: it runs, or was killed with the run."""

    def of_last_run(self) -> list[TaskEnded]:
        """The attempts of the most recent run that has any."""
        return [record for record, run in zip(self.ended, self.runs, strict=True) if run == self.runs[-1]]


def find_attempts(workspace: Workspace, names: Sequence[str]) -> TaskAttempts:
    """Collects all attempts of the task with these names from the ledger."""
    places = [place_of_text(prefix + name) for name in names for prefix in ("", "\1")]
    found = TaskAttempts()
    numbers: list[int] = []
    run = 0
    for payload in LedgerReader(workspace.ledger).payloads():
        record = decode(payload)
        match record:
            case RunStarted():
                run += 1
                numbers, found.running = [], None
            case TasksPlanned():
                numbers += [task for task, name in zip(record.first, record.names, strict=True) if name in names]
            case TaskStarted() if record.task in numbers:
                found.running = record
            case TaskEnded() if record.place in places or record.task in numbers:
                found.ended.append(record)
                found.runs.append(run)
                found.running = None
            case TasksVanished() if found.running is not None and found.running.task in record.tasks:
                found.running = None
            case RunEnded():
                found.running = None
    return found
