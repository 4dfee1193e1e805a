"""What attempts under way began with, in a file that outlives a killed run: where their outputs of before are, and
what stood in their directories.

An entry is written before anything is moved for an attempt. The last entry for a place counts. The file is there while
a run goes on; if it is there when none does, the run was killed.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Mapping

import msgspec

from shoal.ledger.records import Damage, framed, frames

COMPACT_ABOVE_BYTES = 4 << 20
_PIECE_BYTES = 1 << 16


class MovedUnit(msgspec.Struct, array_like=True):
    """Something that is moved by one rename: a file, a link, or a directory in which everything is to be moved."""

    path: bytes
    aside: bytes
    """Where it is put; empty if it stays where it is."""
    device: int
    inode: int
    """They tell it from what comes to stand under its name later."""
    keep: bool
    """It is not as a result left it: it goes to `replaced` when there is a new one."""
    changed: list[bytes] = []
    """What in a directory is to be kept, relative to it, although the rest is not."""


class OutputBefore(msgspec.Struct, array_like=True):
    """What stood under the name of an output when the first attempt of its task began."""

    path: bytes
    units: list[MovedUnit] = []
    remains: bool = False
    """It is a directory and stays, with everything in it that is not among the units."""
    stood: list[bytes] = []
    """What stays in it, relative to it."""
    others: list[bytes] = []
    """Outputs of other tasks below it, relative to it, whether they are there or not."""


class AttemptBegun(msgspec.Struct, array_like=True, tag="begun"):
    """A task is being attempted, for the first time in this run or again."""

    place: bytes
    outputs: list[OutputBefore]


class AttemptOver(msgspec.Struct, array_like=True, tag="over"):
    """Everything is as it was before, or as the accepted result left it."""

    place: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AttemptBegun | AttemptOver] = msgspec.msgpack.Decoder(AttemptBegun | AttemptOver)


def _frame(entry: AttemptBegun | AttemptOver) -> bytes:
    return framed(_encoder.encode(entry))


class AttemptJournal:
    """The journal of a run under way. The file comes into being with the first entry. Where the file system permits it,
    it is mapped into memory, so an entry costs no system call and survives the death of this process all the same."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor = -1
        self._map: mmap.mmap | None = None
        self._end = self._size = 0

    def resume(self) -> dict[bytes, AttemptBegun]:
        """Goes on with the journal that is there; returns what it says."""
        found = read_journal(self.path)
        if found:
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            self._size = os.fstat(self._descriptor).st_size
        return found

    def add(self, entries: Iterable[AttemptBegun | AttemptOver]) -> None:
        """From here on the entries survive the death of this process; OSError if there is no room."""
        data = b"".join(map(_frame, entries))
        end = self._end + len(data)
        if end > self._size:
            if self._descriptor < 0:
                self._descriptor = _open_empty(self.path)
            size = max(_PIECE_BYTES, 2 * end)
            _fill(self._descriptor, self._size, size)
            self._map, self._size = _mapped(self._descriptor, size), size
        if self._map is not None:
            self._map[self._end : end] = data
        else:
            _write(self._descriptor, data, self._end)
        self._end = end

    def compact(self, under_way: Mapping[int, AttemptBegun]) -> None:
        """Drops entries of attempts that are over, if the file has grown large."""
        if self._end < COMPACT_ABOVE_BYTES:
            return
        data = b"".join(map(_frame, under_way.values()))
        if 2 * len(data) > self._end:
            return
        fresh = self.path + ".new"
        descriptor, size = _open_empty(fresh), 2 * len(data) + _PIECE_BYTES
        try:
            _fill(descriptor, 0, size)
            _write(descriptor, data, 0)
            os.replace(fresh, self.path)
        except OSError:
            os.close(descriptor)
            raise
        os.close(self._descriptor)
        self._descriptor, self._map = descriptor, _mapped(descriptor, size)
        self._end, self._size = len(data), size

    def sync(self) -> None:
        if self._map is not None:
            self._map.flush()
        if self._descriptor >= 0:
            os.fdatasync(self._descriptor)

    def close(self, *, remove: bool) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._map, self._end, self._size = -1, None, 0, 0
        if remove:
            remove_journal(self.path)


def _open_empty(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)


def _fill(descriptor: int, begin: int, end: int) -> None:
    """Gives pages room: a write into a hole of a full disk would end us by a signal."""
    while begin < end:
        begin += os.pwrite(descriptor, bytes(min(end - begin, _PIECE_BYTES)), begin)


def _mapped(descriptor: int, size: int) -> mmap.mmap | None:
    try:
        return mmap.mmap(descriptor, size)
    except OSError:
        return None  # not every file system can


def _write(descriptor: int, data: bytes, at: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, at)
        data, at = data[written:], at + written


def read_journal(path: str) -> dict[bytes, AttemptBegun]:
    """Attempts that were under way when the run was killed, by place; what is damaged is left out."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError:
        return {}
    found: dict[bytes, AttemptBegun] = {}
    damage: list[Damage] = []
    for _, payload in frames(data, damage):
        try:
            entry = _decoder.decode(payload)
        except msgspec.MsgspecError:
            continue
        if isinstance(entry, AttemptBegun):
            found[entry.place] = entry
        else:
            found.pop(entry.place, None)
    return found


def names_in_journal(path: str) -> frozenset[str]:
    """Outputs of attempts that were under way when the run was killed."""
    return frozenset(os.fsdecode(each.path) for entry in read_journal(path).values() for each in entry.outputs)


def remove_journal(path: str) -> None:
    for name in (path, path + ".new"):
        try:
            os.unlink(name)
        except FileNotFoundError:
            pass
