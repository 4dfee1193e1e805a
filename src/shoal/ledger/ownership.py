"""Whose is what stands under the name of an output: as an accepted result of its task left it, it is ours.

A result has size and time (or content number) of each output. What a task made below a directory, and where links lead
that it made, is in the result's listing: a directory as a whole says too little to take single files out of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple, Protocol, TypeAlias

import msgspec

from shoal.core.graph import Graph
from shoal.ledger.identity import Versions, place_of
from shoal.ledger.records import BY_CONTENT, BY_TIME, UNSAID, TaskEnded
from shoal.ledger.up_to_date import Plan

Kind = Literal["file", "directory", "link", "other"]


class DirectoryEntry(NamedTuple):
    """Something that is there, or was."""

    kind: Kind
    size: int
    """Bytes of a file, or of the file that a link leads to."""
    number: int
    """Of a file (also behind a link): its time in nanoseconds, or a number made from its content."""
    target: str
    """What a link says; empty for everything else."""


Listing: TypeAlias = Mapping[str, DirectoryEntry]
"""By name relative to an output; the output itself has the empty name. Of an output that is a plain file: empty."""

_KINDS: tuple[Kind, ...] = ("file", "directory", "link", "other")
_Row: TypeAlias = tuple[bytes, int, int, int, bytes]
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(dict[int, list[_Row]])


def encode_listings(listings: Mapping[int, Listing]) -> bytes:
    """The listings of a result, by the position of the output among those of its task."""
    if not listings:
        return b""
    return _encoder.encode({at: list(map(_row, listing.items())) for at, listing in listings.items()})


def _row(item: tuple[str, DirectoryEntry]) -> _Row:
    name, entry = item
    return _bytes(name), _KINDS.index(entry.kind), entry.size, entry.number, _bytes(entry.target)


def decode_listings(data: bytes) -> dict[int, Listing]:
    """What was encoded; nothing if it cannot be read."""
    if not data:
        return {}
    try:
        found = _decoder.decode(data)
    except msgspec.MsgspecError:
        return {}
    return {at: dict(map(_item, rows)) for at, rows in found.items()}


def _item(row: _Row) -> tuple[str, DirectoryEntry]:
    name, kind, size, number, target = row
    return _text(name), DirectoryEntry(_KINDS[kind], size, number, _text(target))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


class MadeOutput(NamedTuple):
    """One output as an accepted result left it."""

    pair: tuple[int, int]
    """Size and time, or content number."""
    check: int
    listing: Listing | None
    """None: what was made is a plain file, or nobody has noted what it made in a directory: so it was in older ledgers,
    and is on clusters."""

    def checks(self) -> tuple[int, ...]:
        """The ways in which it is to be looked at; old ledgers do not say which one it was."""
        return (self.check,) if self.check != UNSAID else (BY_TIME, BY_CONTENT)

    def is_directory(self) -> bool:
        """Whether it is a directory of which we know what the task made in it."""
        if self.listing is None:
            return False
        return (top := self.listing.get("")) is not None and top.kind == "directory"

    def has_left(self, name: str, found: DirectoryEntry) -> bool:
        """Whether what stands there was made so; `name` is relative to the output, empty for the output itself."""
        made = self.listing.get(name) if self.listing is not None else None
        if made is not None:
            return is_same(made, found)
        return not name and found.kind == "file" and (found.size, found.number) == self.pair

    def lists(self, name: str) -> bool:
        """Whether it made something of this name below the output."""
        return self.listing is not None and name in self.listing


def is_same(made: DirectoryEntry, found: DirectoryEntry) -> bool:
    """Whether something is as it was made. Of a link only counts what it says: what it leads to is not ours."""
    if made.kind == "link":
        return found.kind == "link" and found.target == made.target
    return made == found


def made_of(result: TaskEnded | None) -> list[MadeOutput]:
    """The outputs of an accepted result, in their order; none if there is no such result."""
    if result is None or result.outcome != "ok":
        return []
    listings = decode_listings(result.listing)
    return [MadeOutput(pair, result.check, listings.get(at)) for at, pair in enumerate(result.outputs)]


class Records(Protocol):
    """What is asked of earlier runs about files that stand there."""

    def accepted(self, place: bytes) -> TaskEnded | None:
        """The last result that was accepted, also if an attempt has failed since."""

    def made(self, name: str) -> Iterable[tuple[TaskEnded, int]]:
        """Accepted results of any tasks that made a file of this name, and which of their outputs that is."""

    def may_be_half_made(self, name: str) -> bool:
        """Whether an attempt may have begun a file of this name and not ended it."""


def find_unknown(
    plan: Plan, versions: Versions, records: Records, strangers_in: Callable[[int], Iterable[str]]
) -> None:
    """Notes in the plan which outputs of tasks that would run stand there and are unknown.

    `strangers_in` names what is in an output directory and no task of the workflow makes.
    """
    if not plan.anything_runs():
        return
    graph = plan.graph
    results: dict[int, bool] = {}
    for file in versions.standing:
        task = graph.producer[file]
        if not plan.runs(task):
            continue
        if task not in results:
            results[task] = records.accepted(place_of(graph, task)) is not None
        if results[task]:
            continue
        if _is_as_made(graph, file, versions, records):
            plan.inherited.add(file)
        elif records.may_be_half_made(graph.file_names[file]):
            continue
        elif file not in versions.folders or any(strangers_in(file)):
            plan.unknown.setdefault(task, []).append(file)


def _is_as_made(graph: Graph, file: int, versions: Versions, records: Records) -> bool:
    """Whether a task that has another place now, or is not in the workflow any more, left it like this."""
    return any(
        versions.seen(file, versions.check if result.check == UNSAID else result.check) == result.outputs[at]
        for result, at in records.made(graph.file_names[file])
    )
