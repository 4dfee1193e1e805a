"""What the ledger says of earlier runs, folded for the planner: the last result of every place, files as last seen."""

from __future__ import annotations

import os

from shoal.engine.workspace import Workspace
from shoal.ledger.file import LedgerReader
from shoal.ledger.records import (
    Damage,
    OutputsCollected,
    RunEnded,
    RunStarted,
    SourcesSeen,
    TaskEnded,
    decode,
    encode,
)

COMPACT_ABOVE_BYTES = 64 << 20


class History:
    """The fold over a ledger. Results are kept as the bytes they were read from: a million of them fit in memory."""

    def __init__(self) -> None:
        self.results: dict[bytes, bytes] = {}
        self.sources: dict[str, tuple[int, int]] = {}
        self.collected: dict[bytes, None] = {}
        """Places whose outputs were removed on purpose after they were made."""
        self.damage: list[Damage] = []
        self.last_run: RunStarted | None = None
        self.last_end: RunEnded | None = None
        self.runs = 0
        self.bytes_read = 0

    def empty(self) -> bool:
        return not self.results

    def result(self, place: bytes) -> TaskEnded | None:
        payload = self.results.get(place)
        record = decode(payload) if payload is not None else None
        return record if isinstance(record, TaskEnded) else None

    def source(self, name: str) -> tuple[int, int] | None:
        return self.sources.get(name)

    def is_collected(self, place: bytes) -> bool:
        return place in self.collected

    def take(self, payload: bytes) -> None:
        """Adds one record."""
        record = decode(payload)
        match record:
            case TaskEnded():
                if record.final:
                    self.results[record.place] = payload
                    self.collected.pop(record.place, None)
            case OutputsCollected():
                self.collected.update(dict.fromkeys(record.places))
            case SourcesSeen():
                for name, size, time in zip(record.names, record.sizes, record.times, strict=True):
                    self.sources[name] = (size, time)
            case RunStarted():
                self.last_run, self.last_end = record, None
                self.runs += 1
            case RunEnded():
                self.last_end = record


def read_history(workspace: Workspace) -> History:
    """Folds the whole ledger; what is damaged is left out and listed in `damage`."""
    history = History()
    reader = LedgerReader(workspace.ledger)
    for payload in reader.payloads():
        history.take(payload)
    history.damage = list(reader.damage)
    if reader.tail.size:
        history.damage.append(reader.tail)
    history.bytes_read = reader.offset
    return history


def mend(workspace: Workspace, history: History) -> str | None:
    """Rewrites a damaged or overgrown ledger with what can be read; returns what to tell the user.

    The damaged file is kept beside it. The new one is complete and durable before it takes the old one's name.
    """
    if not history.damage and not _overgrown(history):
        return None
    fresh = workspace.ledger + ".new"
    with open(fresh, "wb") as file:
        if history.last_run is not None:
            file.write(encode(history.last_run))
        if history.sources:
            names = list(history.sources)
            pairs = [history.sources[name] for name in names]
            file.write(encode(SourcesSeen(names, [pair[0] for pair in pairs], [pair[1] for pair in pairs])))
        for payload in history.results.values():
            record = decode(payload)
            if record is not None:
                file.write(encode(record))
        if history.collected:
            file.write(encode(OutputsCollected(list(history.collected))))
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
    return history.bytes_read > 3 * sum(map(len, history.results.values()))


def describe_damage(history: History, kept: str) -> str:
    size = sum(stretch.size for stretch in history.damage)
    places = ", ".join(f"{stretch.size} bytes at {stretch.offset}" for stretch in history.damage[:3])
    more = f" and {len(history.damage) - 3} more" if len(history.damage) > 3 else ""
    return (
        f"the ledger was damaged: {size} bytes in {len(history.damage)} stretch{'es' * (len(history.damage) > 1)} "
        f"could not be read ({places}{more}); {len(history.results)} results were recovered, "
        f"tasks whose record was lost run again; the damaged file is kept as {os.path.basename(kept)}"
    )
