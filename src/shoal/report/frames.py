"""The frames of a stretch of a ledger, found together: see `ledger.records.frames`, of which this is the quick way.

Where frames follow one another without a gap, a checksum says something about its own record only. So it is asked for
when that record is wanted.
"""

from __future__ import annotations

import struct
from zlib import crc32

import msgspec
import numpy as np

from shoal.ledger.records import HEADER_BYTES, MARK
from shoal.view.columns import Array, Ints
from shoal.view.strided import Strided

_HEADER = struct.Struct("<4sII")
"""Mark, size and checksum."""


class Frames(msgspec.Struct, frozen=True):
    """Records in a stretch of bytes."""

    data: Strided
    begins: Ints
    ends: Ints
    """Of each payload."""
    sums: Array | None
    """Checksums that were not looked at yet; None: they are all right."""

    def __len__(self) -> int:
        return len(self.begins)

    def sound(self, rows: Ints) -> Ints:
        """Those of the rows whose checksum holds."""
        if self.sums is None:
            return rows
        found = np.fromiter(map(crc32, self.payloads(rows)), np.uint32, len(rows))
        good = found == self.sums[rows]
        return rows if good.all() else rows[good]

    def payloads(self, rows: Ints) -> list[bytes]:
        """The payloads of these rows, as they are."""
        data = self.data.data
        begins, ends = self.begins[rows].tolist(), self.ends[rows].tolist()
        return [data[begin:end] for begin, end in zip(begins, ends, strict=True)]


def frames_of(data: bytes, behind: int = 0) -> tuple[Frames, int]:
    """All whole frames, and how far nothing is left to be found; what lies between them is left out.

    So many bytes stand `behind` these in the file: a frame that ends there is not looked into.
    """
    strided = Strided(data)
    found = _in_a_row(strided)
    if found is not None:
        return found, int(found.ends[-1]) if len(found) else 0
    payloads, end = _one_by_one(data, behind)
    return frames_with(payloads), end


def frames_with(payloads: list[bytes]) -> Frames:
    """Records that were found whole."""
    sizes = np.array([len(payload) for payload in payloads], np.int64)
    ends = np.cumsum(sizes)
    return Frames(Strided(b"".join(payloads)), ends - sizes, ends, None)


def promised(data: bytes, at: int) -> tuple[int, int]:
    """Size and checksum of the record whose frame begins there; a size of 0 if none does."""
    mark, size, checksum = _HEADER.unpack_from(data, at)
    return (size, checksum) if mark == MARK else (0, 0)


def _one_by_one(data: bytes, behind: int) -> tuple[list[bytes], int]:
    """A frame that the end of the file cuts off may still become whole, unless something whole comes after it."""
    payloads: list[bytes] = []
    size, at, done, cut = len(data), data.find(MARK), 0, -1
    while 0 <= at <= size - HEADER_BYTES:
        length, checksum = promised(data, at)
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
    """None if there is anything between the frames: damage, or a mark that only looks like one."""
    size = len(strided.data)
    marks = strided.places_of(MARK[0])
    marks = marks[strided.at("<u4", marks) == int.from_bytes(MARK, "little")]
    begins = marks + HEADER_BYTES
    begins = begins[begins <= size]
    ends = begins + strided.at("<u4", begins - 8)
    if len(ends) and ends[-1] > size:  # the rest of it is still to come
        begins, ends = begins[:-1], ends[:-1]
    starts = begins - HEADER_BYTES
    if size >= HEADER_BYTES and not len(starts):
        return None
    if starts[:1].any() or (starts[1:] != ends[:-1]).any() or (ends <= begins).any():
        return None
    found = Frames(strided, begins, ends, strided.at("<u4", begins - 4))
    last = np.arange(len(found))[-1:]
    return found if len(found.sound(last)) == len(last) else None  # or what it says of its end may be wrong
