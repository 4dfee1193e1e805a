"""Bulk reader of ledgers: reads a large file in pieces as it grows, and finds records of a task or run without decoding
the others.

Nearly all records of a large ledger are ends of attempts. They are decoded together, which takes a third of the time.
"""

from __future__ import annotations

import gc
import os
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar
from zlib import crc32

import msgspec
import numpy as np

from shoal.ledger.records import HEADER_BYTES, MARK, NetBegun, Record, RunStarted, TaskCourse, TaskEnded, decode, frames
from shoal.ledger.run_fold import has_nothing_to_do
from shoal.ledger.views.attempts import (
    END,
    OTHER,
    START,
    AnyEnd,
    Array,
    End,
    EndColumns,
    Ints,
    Strided,
    are_open,
    columns_of,
    ends_in,
    kinds_of,
)
from shoal.ledger.views.run import RunView

_HEADER = struct.Struct("<4sII")
"""Mark, size and checksum."""


class Frames(msgspec.Struct, frozen=True):
    """Valid frames in a byte range."""

    data: Strided
    begins: Ints
    ends: Ints
    """Bounds of each payload."""
    sums: Array | None
    """Checksums that are still to be verified; None: all are verified."""

    def __len__(self) -> int:
        return len(self.begins)

    def valid_rows(self, rows: Ints) -> Ints:
        """Returns the rows with a valid checksum."""
        if self.sums is None:
            return rows
        found = np.fromiter(map(crc32, self.payloads(rows)), np.uint32, len(rows))
        good = found == self.sums[rows]
        return rows if good.all() else rows[good]

    def payloads(self, rows: Ints) -> list[bytes]:
        """Returns the payloads of these rows without checking them."""
        data = self.data.data
        begins, ends = self.begins[rows].tolist(), self.ends[rows].tolist()
        return [data[begin:end] for begin, end in zip(begins, ends, strict=True)]


def frames_of(data: bytes, behind: int = 0) -> tuple[Frames, int]:
    """Returns all complete frames and the offset up to which `data` is consumed; skips damaged bytes.

    `behind` is the number of bytes that follow `data` in the file: a frame that ends within them is left for the next
    call.
    """
    strided = Strided(data)
    found = _in_a_row(strided)
    if found is not None:
        return found, int(found.ends[-1]) if len(found) else 0
    payloads, end = _one_by_one(data, behind)
    return frames_from(payloads), end


def frames_from(payloads: list[bytes]) -> Frames:
    """Wraps payloads that are already verified."""
    sizes = np.array([len(payload) for payload in payloads], np.int64)
    ends = np.cumsum(sizes)
    return Frames(Strided(b"".join(payloads)), ends - sizes, ends, None)


def frame_header(data: bytes, at: int) -> tuple[int, int]:
    """Size and checksum in the frame header at this offset; a size of 0 if there is no frame."""
    mark, size, checksum = _HEADER.unpack_from(data, at)
    return (size, checksum) if mark == MARK else (0, 0)


def _one_by_one(data: bytes, behind: int) -> tuple[list[bytes], int]:
    """Finds frames in damaged data. A frame truncated by the end of the file may still become complete, unless a
    complete frame follows it."""
    payloads: list[bytes] = []
    size, at, done, cut = len(data), data.find(MARK), 0, -1
    while 0 <= at <= size - HEADER_BYTES:
        length, checksum = frame_header(data, at)
        begin, end = at + HEADER_BYTES, at + HEADER_BYTES + length
        if length and end <= size and crc32(payload := data[begin:end]) == checksum:
            payloads.append(payload)
            done, cut = end, -1
            at = data.find(MARK, end)
            continue
        if size < end:
            cut = at if cut < 0 else cut
            if end <= size + behind:
                break
        at = data.find(MARK, at + 1)
    if cut >= 0 or at >= 0:
        return payloads, cut if cut >= 0 else at
    begun = next((count for count in (3, 2, 1) if data.endswith(MARK[:count])), 0)
    return payloads, max(done, size - begun)


def _in_a_row(strided: Strided) -> Frames | None:
    """Finds frames that follow each other without a gap, in bulk. Returns None if there is a gap: damage, or payload
    bytes that look like a mark."""
    size = len(strided.data)
    marks = strided.places_of(MARK[0])
    marks = marks[strided.at("<u4", marks) == int.from_bytes(MARK, "little")]
    begins = marks + HEADER_BYTES
    begins = begins[begins <= size]
    ends = begins + strided.at("<u4", begins - 8)
    if len(ends) and ends[-1] > size:  # the rest of the frame follows in the next piece
        begins, ends = begins[:-1], ends[:-1]
    starts = begins - HEADER_BYTES
    if size >= HEADER_BYTES and not len(starts):
        return None
    if starts[:1].any() or (starts[1:] != ends[:-1]).any() or (ends <= begins).any():
        return None
    found = Frames(strided, begins, ends, strided.at("<u4", begins - 4))
    last = np.arange(len(found))[-1:]
    return found if len(found.valid_rows(last)) == len(last) else None  # a damaged length would give a wrong end


PIECE_BYTES = 1 << 20
_MANY = 200
"""From this number of records on, decoding them together is faster."""
_ends = msgspec.msgpack.Decoder(list[End])
_ARRAY = struct.Struct(">BI")
_ABSENT = (-1, -1)


class LedgerTail:
    """Reads a ledger incrementally: first the whole file in pieces, later what was appended."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.offset = 0
        """Everything before this offset has been read."""
        self._identity: tuple[int, int] | None = None
        """Device and inode of the file; `_ABSENT` if it existed and was removed."""
        self._beginning = b""
        """The header of its first record with its checksum, because a new file may get the inode of a removed one."""
        self._searched = (-1, -1)
        """Offset and file size at the last search that found no complete record between them."""

    def was_replaced(self) -> bool:
        """Whether another file has replaced the ledger: a run has repaired it, or it was removed. It is then read from
        its beginning."""
        try:
            with open(self.path, "rb", buffering=0) as file:
                found, beginning = os.fstat(file.fileno()), file.read(HEADER_BYTES)
        except OSError:
            if self._identity is not None and not os.path.lexists(self.path):
                self._identity = _ABSENT
            return False
        identity, known = (found.st_dev, found.st_ino), self._beginning
        self._beginning = beginning
        if identity == self._identity and found.st_size >= self.offset and beginning.startswith(known):
            return False
        changed = self._identity is not None
        self._identity, self.offset, self._searched = identity, 0, (-1, -1)
        return changed

    def pieces(self) -> Iterator[list[bytes]]:
        """Payloads of complete records, some thousands at a time; damaged ones are skipped."""
        for found in self.stretches():
            yield found.payloads(found.valid_rows(np.arange(len(found))))

    def stretches(self) -> Iterator[Frames]:
        """Like `pieces`, but as frames in a byte range of the file."""
        try:
            file = open(self.path, "rb", buffering=0)  # noqa: SIM115  closed below, only a missing file is caught
        except FileNotFoundError:
            return
        with file:
            size = os.fstat(file.fileno()).st_size
            while self.offset < size and self._searched != (self.offset, size):
                data = os.pread(file.fileno(), min(PIECE_BYTES, size - self.offset), self.offset)
                found, end = frames_of(data, size - self.offset - len(data))
                self.offset += end
                if not end:  # a record longer than the piece, or an incomplete one, begins here
                    place, payload = _next_whole(file.fileno(), self.offset, size)
                    if payload is None:
                        self._searched = (self.offset, size)
                        return
                    found, self.offset = frames_from([payload]), place + HEADER_BYTES + len(payload)
                if len(found):
                    yield found


def _next_whole(file: int, begin: int, size: int) -> tuple[int, bytes | None]:
    """Returns the first complete record after this offset of the file, and where its frame begins."""
    while len(data := os.pread(file, min(PIECE_BYTES, max(0, size - begin)), begin)) >= HEADER_BYTES:
        found = data.find(MARK)
        while found >= 0:
            payload = _payload(file, begin + found, size)
            if payload is not None:
                return begin + found, payload
            found = data.find(MARK, found + 1)
        begin += len(data) - len(MARK) + 1  # a mark may span two pieces
    return size, None


def _payload(file: int, place: int, size: int) -> bytes | None:
    """Returns the payload whose frame begins there; None if it is damaged or incomplete."""
    header = os.pread(file, HEADER_BYTES, place)
    length, checksum = frame_header(header, 0) if len(header) == HEADER_BYTES else (0, 0)
    if not 0 < length <= size - place - HEADER_BYTES:
        return None
    payload = os.pread(file, length, place + HEADER_BYTES)
    return payload if crc32(payload) == checksum else None


def read_into(view: RunView, tail: LedgerTail, *, last: int | None = None) -> bool:
    """Reads what was appended to the ledger into a view; up to the end of run number `last`, counted from 1, if given.

    Returns False if a later run was reached: then there is nothing more to read. Garbage collection is off meanwhile:
    among a million short-lived records it takes longer than reading them.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        more = all(_feed(view, found, last) for found in tail.stretches())
    finally:
        if collecting:
            gc.enable()
    view.settle()
    return more


def _feed(view: RunView, found: Frames, last: int | None) -> bool:
    """Returns False if the following records belong to a later run."""
    kinds = kinds_of(found.data, found.begins, found.ends)
    others = found.valid_rows(np.flatnonzero(kinds == OTHER))
    at = 0
    for row, payload in zip(others.tolist(), found.payloads(others), strict=True):
        record = decode(payload)
        if isinstance(record, RunStarted):
            _feed_attempts(view, found, kinds, at, row)
            at = row
            if last is not None and view.runs >= last:
                return False
        if record is not None:
            view.take(record)
    _feed_attempts(view, found, kinds, at, len(found))
    return True


def _feed_attempts(view: RunView, found: Frames, kinds: Array, first: int, last: int) -> None:
    """Feeds the attempts in some rows, all of one run. They may follow all other records; see `RunView.take_ends`."""
    starts = first + np.flatnonzero(kinds[first:last] == START)
    ends = found.valid_rows(first + np.flatnonzero(kinds[first:last] == END))
    columns = _columns(found, ends) if len(ends) else None
    if columns is not None and len(starts):
        starts = starts[are_open(found.data, found.begins[starts], columns)]
    for payload in found.payloads(found.valid_rows(starts)):
        record = decode(payload)
        if record is not None:
            view.take(record)
    if columns is not None:
        view.take_ends(columns)


def _columns(found: Frames, rows: Ints) -> EndColumns:
    if len(rows) >= _MANY:
        columns = ends_in(found.data, found.begins[rows], found.ends[rows])
        if columns is not None:
            return columns
    payloads = found.payloads(rows)
    batch: Sequence[AnyEnd]
    try:
        batch = _ends.decode(_ARRAY.pack(0xDD, len(payloads)) + b"".join(payloads))
    except msgspec.MsgspecError:  # another version of Shoal wrote one of them
        decoded = [decode(payload) for payload in payloads]
        batch = [record for record in decoded if isinstance(record, TaskEnded)]
    return columns_of(batch)


_PIECE = 4 << 20
_Kind = TypeVar("_Kind", TaskEnded, TaskCourse)


def ends_of(ledger: str, task: int, run: int) -> list[TaskEnded]:
    """The ended attempts of one task in run number `run`, counted from 1."""
    return _of_run(ledger, run, TaskEnded, b"\xa3end" + msgspec.msgpack.encode(task))


def courses_of(ledger: str, task: int, run: int) -> list[TaskCourse]:
    """The usage series of its attempts."""
    return _of_run(ledger, run, TaskCourse, b"\xa6course" + msgspec.msgpack.encode(task))


class LastRun(NamedTuple):
    """Position in the ledger of the last run that had something to do, including the unfinished runs that it
    continues."""

    offset: int
    earlier: int
    """Number of runs before it."""
    net: NetBegun | None
    """The last NetBegun record before it: a run that continues a net does not repeat it."""


def last_run(ledger: str) -> LastRun:
    """Finds the last run, so that readers can skip earlier ones."""
    found = list(_places(ledger, b"\xa3run", 0, None))
    runs = [(place, record) for place, record in found if isinstance(record, RunStarted)]
    at = len(runs) - 1
    while at > 0 and (has_nothing_to_do(runs[at][1]) or runs[at - 1][1].run == runs[at][1].run):
        at -= 1
    if at < 1:
        return LastRun(0, 0, None)
    place = runs[at][0]
    nets = [record for _, record in _places(ledger, b"\xa3net", 0, place) if isinstance(record, NetBegun)]
    return LastRun(place, at, nets[-1] if nets else None)


def _of_run(ledger: str, run: int, kind: type[_Kind], beginning: bytes) -> list[_Kind]:
    runs = list(_places(ledger, b"\xa3run", 0, None))
    if not 1 <= run <= len(runs):
        return []
    end = runs[run][0] if run < len(runs) else None
    return [record for _, record in _places(ledger, beginning, runs[run - 1][0], end) if isinstance(record, kind)]


def _places(ledger: str, beginning: bytes, begin: int, end: int | None) -> Iterator[tuple[int, Record]]:
    """Yields the position and content of records with this beginning, which follows one or three bytes with the number
    of fields."""
    try:
        file = os.open(ledger, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        at, kept = begin, len(beginning) - 1
        while (end is None or at < end) and len(piece := os.pread(file, _PIECE, at)) > kept:
            found = piece.find(beginning)
            while found >= 0:
                place, record = _record(file, at + found)
                if record is not None and (end is None or place < end):
                    yield place, record
                found = piece.find(beginning, found + 1)
            at += len(piece) - kept  # the beginning may span two pieces
    finally:
        os.close(file)


def _record(file: int, behind: int) -> tuple[int, Record | None]:
    """Returns the record whose content begins at this offset and the offset of its frame; None if no record begins
    there."""
    for fields in (1, 3):
        place = behind - fields - HEADER_BYTES
        if place < 0 or os.pread(file, len(MARK), place) != MARK:
            continue
        size = int.from_bytes(os.pread(file, 4, place + len(MARK)), "little")
        for _, payload in frames(os.pread(file, HEADER_BYTES + size, place), []):
            return place, decode(payload)
    return 0, None
