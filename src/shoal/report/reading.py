"""Ledgers read in bulk: piece by piece, so that a large one is never in memory as a whole, and again as it grows.

Nearly all records of a large ledger tell of attempts. They are read together, which takes a third of the time.
"""

from __future__ import annotations

import gc
import os
import struct
from collections.abc import Iterator, Sequence
from zlib import crc32

import msgspec
import numpy as np

from shoal.ledger.records import HEADER_BYTES, MARK, RunStarted, TaskEnded, decode
from shoal.report.frames import Frames, frames_of, frames_with, promised
from shoal.view.columns import Array, Ints
from shoal.view.ends import AnyEnd, End, EndColumns, columns_of
from shoal.view.packed import END, OTHER, START, are_open, ends_in, kinds_of
from shoal.view.run import RunView

PIECE_BYTES = 1 << 20
_MANY = 200
"""From so many on it is quicker to go through all of them together."""
_ends = msgspec.msgpack.Decoder(list[End])
_ARRAY = struct.Struct(">BI")
_ABSENT = (-1, -1)


class LedgerTail:
    """A ledger from its beginning and, asked again, what was added since."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.offset = 0
        """Everything before it has been read."""
        self._identity: tuple[int, int] | None = None
        """Of the file; `_ABSENT` if it was there and has gone."""
        self._beginning = b""
        """The head of its first record, with its checksum: the number of a removed file is given to another one."""
        self._in_vain = (-1, -1)
        """Offset, and size of the file, when nothing whole stood between them."""

    def is_another(self) -> bool:
        """Whether another file has taken its place: a run has mended it, or it was removed. It is then read from its
        beginning."""
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
        self._identity, self.offset, self._in_vain = identity, 0, (-1, -1)
        return changed

    def pieces(self) -> Iterator[list[bytes]]:
        """Payloads of whole records, some thousand at a time; what is damaged is left out."""
        for found in self.stretches():
            yield found.payloads(found.sound(np.arange(len(found))))

    def stretches(self) -> Iterator[Frames]:
        """The same, as places in a stretch of the file."""
        try:
            file = open(self.path, "rb", buffering=0)  # noqa: SIM115  closed below; here only its absence counts
        except FileNotFoundError:
            return
        with file:
            size = os.fstat(file.fileno()).st_size
            while self.offset < size and self._in_vain != (self.offset, size):
                data = os.pread(file.fileno(), min(PIECE_BYTES, size - self.offset), self.offset)
                found, end = frames_of(data, size - self.offset - len(data))
                self.offset += end
                if not end:  # a long record begins here, or one that is not whole
                    place, payload = _next_whole(file.fileno(), self.offset, size)
                    if payload is None:
                        self._in_vain = (self.offset, size)
                        return
                    found, self.offset = frames_with([payload]), place + HEADER_BYTES + len(payload)
                if len(found):
                    yield found


def _next_whole(file: int, begin: int, size: int) -> tuple[int, bytes | None]:
    """The first record that stands whole behind this place of the file, and where its frame begins."""
    while len(data := os.pread(file, min(PIECE_BYTES, max(0, size - begin)), begin)) >= HEADER_BYTES:
        found = data.find(MARK)
        while found >= 0:
            payload = _payload(file, begin + found, size)
            if payload is not None:
                return begin + found, payload
            found = data.find(MARK, found + 1)
        begin += len(data) - len(MARK) + 1  # a mark may begin in one piece and end in the next
    return size, None


def _payload(file: int, place: int, size: int) -> bytes | None:
    """The record whose frame begins there; None if it is damaged or not all there."""
    header = os.pread(file, HEADER_BYTES, place)
    length, checksum = promised(header, 0) if len(header) == HEADER_BYTES else (0, 0)
    if not 0 < length <= size - place - HEADER_BYTES:
        return None
    payload = os.pread(file, length, place + HEADER_BYTES)
    return payload if crc32(payload) == checksum else None


def read_into(view: RunView, tail: LedgerTail, *, last: int | None = None) -> bool:
    """Feeds a view with what the ledger has; up to the end of the run of this number, counted from 1, if one is given.

    False if a later run was reached: then there is nothing more to read. Looking for garbage among a million
    short-lived records takes longer than reading them, so it waits.
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
    """False when what follows is of a later run."""
    kinds = kinds_of(found.data, found.begins, found.ends)
    others = found.sound(np.flatnonzero(kinds == OTHER))
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
    """The attempts of some rows, all of one run. They may come behind all the rest; see `RunView.take_ends`."""
    starts = first + np.flatnonzero(kinds[first:last] == START)
    ends = found.sound(first + np.flatnonzero(kinds[first:last] == END))
    columns = _columns(found, ends) if len(ends) else None
    if columns is not None and len(starts):
        starts = starts[are_open(found.data, found.begins[starts], columns)]
    for payload in found.payloads(found.sound(starts)):
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
    except msgspec.MsgspecError:  # one of them was written by another version
        decoded = [decode(payload) for payload in payloads]
        batch = [record for record in decoded if isinstance(record, TaskEnded)]
    return columns_of(batch)
