"""A journal of running attempts that survives a killed run: where their earlier outputs were moved, and which files
their output directories contained.

An entry is written before any file of an attempt is moved. The last entry for a place is valid. The file exists while a
run is in progress; if it exists without a run, the run was killed.
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
    """A file, a link or a directory that one rename moves; of a directory, everything in it."""

    path: bytes
    aside: bytes
    """Its new path; empty if it is not moved."""
    device: int
    inode: int
    """Device and inode distinguish it from a file that later takes its name."""
    keep: bool
    """It has changed since the last result: once there is a new result, it is kept in `replaced`."""
    changed: list[bytes] = []
    """Paths relative to a directory that are kept although the rest of it is not."""


class OutputBefore(msgspec.Struct, array_like=True):
    """What existed under the name of an output when the first attempt of its task started."""

    path: bytes
    units: list[MovedUnit] = []
    remains: bool = False
    """It is a directory and remains, with everything in it that is not among the units."""
    stood: list[bytes] = []
    """What remains in it, as relative paths."""
    others: list[bytes] = []
    """Outputs of other tasks below it, as relative paths, whether they exist or not."""


class AttemptBegun(msgspec.Struct, array_like=True, tag="begun"):
    """An attempt of a task starts, the first one of this run or a later one."""

    place: bytes
    outputs: list[OutputBefore]


class AttemptOver(msgspec.Struct, array_like=True, tag="over"):
    """The files are restored, or those of the accepted result are in place."""

    place: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AttemptBegun | AttemptOver] = msgspec.msgpack.Decoder(AttemptBegun | AttemptOver)


def _frame(entry: AttemptBegun | AttemptOver) -> bytes:
    return framed(_encoder.encode(entry))


class AttemptJournal:
    """The journal of a run in progress. The first entry creates the file. It is mapped into memory where the file
    system supports it: an entry then costs no system call and still survives a crash of this process."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor = -1
        self._map: mmap.mmap | None = None
        self._end = self._size = 0

    def resume(self) -> dict[bytes, AttemptBegun]:
        """Continues with an existing journal; returns its entries."""
        found = read_journal(self.path)
        if found:
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            self._size = os.fstat(self._descriptor).st_size
        return found

    def add(self, entries: Iterable[AttemptBegun | AttemptOver]) -> None:
        """Appends the entries; when it returns they survive a crash of this process. Raises OSError if there is no
        space."""
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
        """Rewrites the file without the entries of ended attempts, if it has become large."""
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
    """Allocates the pages: on a full disk, a write into a hole of the mapped file would kill this process with
    SIGBUS."""
    while begin < end:
        begin += os.pwrite(descriptor, bytes(min(end - begin, _PIECE_BYTES)), begin)


def _mapped(descriptor: int, size: int) -> mmap.mmap | None:
    try:
        return mmap.mmap(descriptor, size)
    except OSError:
        return None  # the file system does not support mmap


def _write(descriptor: int, data: bytes, at: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, at)
        data, at = data[written:], at + written


def read_journal(path: str) -> dict[bytes, AttemptBegun]:
    """Attempts that were running when the run was killed, by place; damaged entries are skipped."""
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
    """Outputs of attempts that were running when the run was killed."""
    return frozenset(os.fsdecode(each.path) for entry in read_journal(path).values() for each in entry.outputs)


def remove_journal(path: str) -> None:
    for name in (path, path + ".new"):
        try:
            os.unlink(name)
        except FileNotFoundError:
            pass
