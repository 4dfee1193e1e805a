"""Ownership of output files: whether a file that exists under the name of an output is the one that Shoal made.

A result records size and time (or content number) of each output. Its listing records the files in output directories,
and the targets of links, because the size and time of a directory do not identify single files in it.
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
    """A file, directory or link, as found now or as recorded."""

    kind: Kind
    size: int
    """Bytes of a file, or of the file that a link points to."""
    number: int
    """Of a file, also of a link's target: its time in nanoseconds, or a number computed from its content."""
    target: str
    """The target of a link as written in it; empty for everything else."""


Listing: TypeAlias = Mapping[str, DirectoryEntry]
"""By path relative to an output; the output itself has the empty name. Empty for an output that is a regular file."""

_KINDS: tuple[Kind, ...] = ("file", "directory", "link", "other")
_Row: TypeAlias = tuple[bytes, int, int, int, bytes]
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(dict[int, list[_Row]])


def encode_listings(listings: Mapping[int, Listing]) -> bytes:
    """Encodes the listings of a result, by index of the output."""
    if not listings:
        return b""
    return _encoder.encode({at: list(map(_row, listing.items())) for at, listing in listings.items()})


def _row(item: tuple[str, DirectoryEntry]) -> _Row:
    name, entry = item
    return _bytes(name), _KINDS.index(entry.kind), entry.size, entry.number, _bytes(entry.target)


def decode_listings(data: bytes) -> dict[int, Listing]:
    """Decodes listings; returns an empty dictionary if they cannot be read."""
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
    """One output as recorded in an accepted result."""

    pair: tuple[int, int]
    """Size and time, or content number."""
    check: int
    listing: Listing | None
    """None: the output is a regular file, or the content of a directory was not recorded, as in older ledgers and on
    clusters."""

    def checks(self) -> tuple[int, ...]:
        """The checks to compare it with; older ledgers do not record which one was used."""
        return (self.check,) if self.check != UNSAID else (BY_TIME, BY_CONTENT)

    def is_directory(self) -> bool:
        """Whether it is a directory with recorded content."""
        if self.listing is None:
            return False
        return (top := self.listing.get("")) is not None and top.kind == "directory"

    def has_left(self, name: str, found: DirectoryEntry) -> bool:
        """Whether the existing file is the recorded one; `name` is relative to the output, empty for the output
        itself."""
        made = self.listing.get(name) if self.listing is not None else None
        if made is not None:
            return is_same(made, found)
        return not name and found.kind == "file" and (found.size, found.number) == self.pair

    def lists(self, name: str) -> bool:
        """Whether the task made a file of this name below the output."""
        return self.listing is not None and name in self.listing


def is_same(made: DirectoryEntry, found: DirectoryEntry) -> bool:
    """Whether a file is unchanged. For a link only its target path counts: the file that it points to is not an
    output."""
    if made.kind == "link":
        return found.kind == "link" and found.target == made.target
    return made == found


def made_of(result: TaskEnded | None) -> list[MadeOutput]:
    """The outputs of an accepted result, in order; empty if there is no accepted result."""
    if result is None or result.outcome != "ok":
        return []
    listings = decode_listings(result.listing)
    return [MadeOutput(pair, result.check, listings.get(at)) for at, pair in enumerate(result.outputs)]


class Records(Protocol):
    """What `find_unknown` needs to know of earlier runs."""

    def accepted(self, place: bytes) -> TaskEnded | None:
        """The last accepted result, also if a later attempt has failed."""

    def made(self, name: str) -> Iterable[tuple[TaskEnded, int]]:
        """Accepted results of any tasks that made a file of this name, and the index of that output."""

    def may_be_half_made(self, name: str) -> bool:
        """Whether an attempt that did not end may have started to write a file of this name."""


def find_unknown(
    plan: Plan, versions: Versions, records: Records, foreign_files_in: Callable[[int], Iterable[str]]
) -> None:
    """Adds to the plan the existing outputs of tasks to run that no recorded result has made.

    `foreign_files_in` yields the files in an output directory that no task of the workflow makes.
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
        elif file not in versions.folders or any(foreign_files_in(file)):
            plan.unknown.setdefault(task, []).append(file)


def _is_as_made(graph: Graph, file: int, versions: Versions, records: Records) -> bool:
    """Whether the file is unchanged since a task made it that has another place now, or is not in the workflow any
    more."""
    return any(
        versions.seen(file, versions.check if result.check == UNSAID else result.check) == result.outputs[at]
        for result, at in records.made(graph.file_names[file])
    )
