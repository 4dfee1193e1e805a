"""Ended attempts read from their bytes, thousands at a time: numpy goes through all records together, field by field.

Making an object of each record would be most of what opening a large ledger takes. What is not quite as ledgers of
today have it is not read here: `ends_in` says so, and the records are decoded one by one.
"""

from __future__ import annotations

import numpy as np

from shoal.view.columns import Array, Ints
from shoal.view.ends import EndColumns
from shoal.view.strided import Strided

_FIELDS, _USAGE = 22, 12
"""Of the two records, the tag of the first included; later versions may have more."""

OTHER, END, START, COURSE = range(4)
_ATTEMPTS = 1 << 24
"""No task has so many."""

# Tags of MessagePack.
_NIL, _FALSE, _TRUE, _FLOAT, _PAIR, _ARRAY16 = 0xC0, 0xC2, 0xC3, 0xCB, 0x92, 0xDC
_ARRAYS, _STRINGS = 0x90, 0xA0
"""The first of those that say how many, or how long."""
_NUMBERS = {
    0xCA: ">f4",
    0xCB: ">f8",
    0xCC: ">u1",
    0xCD: ">u2",
    0xCE: ">u4",
    0xCF: ">u8",
    0xD0: ">i1",
    0xD1: ">i2",
    0xD2: ">i4",
    0xD3: ">i8",
}
_LENGTHS = {0xC4: ">u1", 0xC5: ">u2", 0xC6: ">u4", 0xD9: ">u1", 0xDA: ">u2", 0xDB: ">u4"}
"""Bytes and texts behind a length of this kind."""


def _sizes() -> Ints:
    """By tag, what a value takes, or its head where a length stands behind the tag; 0: not read here."""
    found = np.zeros(256, np.int64)
    found[:0x80] = found[0xE0:] = 1
    found[_STRINGS : _STRINGS + 32] = np.arange(1, 33)
    found[[_NIL, _FALSE, _TRUE]] = 1
    for tag, kind in (*_NUMBERS.items(), *_LENGTHS.items()):
        found[tag] = 1 + np.dtype(kind).itemsize
    return found


_SIZES = _sizes()
_IS_LONG = np.zeros(256, bool)
_IS_LONG[list(_LENGTHS)] = True


_HERE = 0
"""The last field of a start: this machine."""


class _Unusual(Exception):  # noqa: N818  no error: there is another way
    """Something that is not read here."""


def kinds_of(data: Strided, begins: Ints, ends: Ints) -> Array:
    """What the payloads that stand here are: ends of attempts, their starts, their courses, or something else.

    Starts on the nodes of a cluster count as something else, since it matters what stands before and behind them.
    """
    found: Array = np.full(len(begins), OTHER, np.uint8)
    heads = data.at(">u4", begins)
    found[data.at(">u4", begins + 3) == int.from_bytes(b"\xa3end", "big")] = END
    found[heads == int.from_bytes(b"\x97\xa2on", "big")] = START  # as it was before clusters told of them
    found[(heads == int.from_bytes(b"\x98\xa2on", "big")) & (data.at("u1", ends - 1) == _HERE)] = START
    found[heads == int.from_bytes(b"\x94\xa6co", "big")] = COURSE
    return found


def are_open(data: Strided, begins: Ints, ended: EndColumns) -> Array:
    """Which of the starts that begin here are of attempts that are not among these ends."""
    cursor = _Cursor(data, begins + 4)
    try:
        keys = cursor.key()
    except (_Unusual, IndexError):
        return np.ones(len(begins), bool)
    known = np.sort(ended.task.astype(np.int64) * _ATTEMPTS + ended.number)
    place = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    found: Array = known[place] != keys
    return found


def ends_in(data: Strided, begins: Ints, ends: Ints) -> EndColumns | None:
    """The records of these payloads as columns; None if one of them is unusual."""
    try:
        return _Cursor(data, begins).columns(ends)
    except (_Unusual, IndexError):  # a length that leads far beyond the data
        return None


class _Cursor:
    """Stands in all records at the same field."""

    def __init__(self, data: Strided, begins: Ints) -> None:
        self._data = data
        self._at = begins.copy()

    def columns(self, ends: Ints) -> EndColumns:
        """Goes through all fields."""
        if (self._data.at("u1", self._at) != _ARRAY16).any() or (self._data.at(">u2", self._at + 1) < _FIELDS).any():
            raise _Unusual
        self._at += 7
        task, number = self._numbers(), self._numbers()
        outcomes = self._texts(b"ok")
        final = self._tags() == _TRUE
        self._skip(2)
        started, ended = self._numbers(), self._numbers()
        cpu = self._numbers() + self._numbers()
        memory = self._numbers()
        self._skip(2)
        messages = self._texts(b"")
        self._skip(3)
        self._skip_outputs()
        self._skip()
        read, written, whole, made = self._usage()
        limit, node = self._numbers(), self._numbers()
        if (self._at > ends).any():
            raise _Unusual
        memory = np.maximum(memory, whole)
        total = (int(read.sum()), int(written.sum()))
        return EndColumns(
            task, number, node, final, started, ended, cpu, memory, limit, made, outcomes, messages, *total
        )

    def key(self) -> Array:
        """Task and attempt in one."""
        return self._numbers() * _ATTEMPTS + self._numbers()

    def _tags(self) -> Array:
        return self._data.at("u1", self._at)

    def _numbers(self) -> Array:
        """Whole numbers, or floats if there is one among them."""
        tags = self._tags()
        largest = int(tags.max(initial=0))
        found: Array
        if largest == _FLOAT and (tags == _FLOAT).all():
            found = self._data.at(">f8", self._at + 1).astype(np.float64)
            self._at += 9
            return found
        found = tags.astype(np.int64)
        if largest < 0x80:
            self._at += 1
            return found
        for tag in np.flatnonzero(np.bincount(tags, minlength=256)[0x80:]) + 0x80:
            if tag < 0xE0 and tag not in _NUMBERS:
                raise _Unusual
            found = self._put(found, tags, int(tag))
        self._at += _SIZES[tags]
        return found

    def _put(self, found: Array, tags: Array, tag: int) -> Array:
        """With the numbers of one kind put where they belong."""
        mine = np.flatnonzero(tags == tag)
        if tag >= 0xE0:
            found[mine] = tag - 256
            return found
        values = self._data.at(_NUMBERS[tag], self._at[mine] + 1)
        if tag in (0xCA, 0xCB):
            found = found.astype(np.float64)
        elif tag == 0xCF and (values > np.uint64(1 << 62)).any():
            raise _Unusual
        found[mine] = values
        return found

    def _skip(self, fields: int = 1) -> None:
        """Over numbers, texts, bytes and nothing."""
        for _ in range(fields):
            self._at = self._behind(self._at)

    def _behind(self, at: Ints) -> Ints:
        tags = self._data.at("u1", at)
        if tags.max(initial=0) < 0x80:
            return at + 1
        sizes = _SIZES[tags]
        if not sizes.all():
            raise _Unusual
        if _IS_LONG[tags].any():
            for tag, kind in _LENGTHS.items():
                mine = np.flatnonzero(tags == tag)
                sizes[mine] += self._data.at(kind, at[mine] + 1).astype(np.int64)
        return at + sizes

    def _texts(self, usual: bytes) -> list[tuple[int, str]]:
        """Where a text is not the usual one, and what it is there."""
        tags = self._tags()
        other = tags != _STRINGS + len(usual)
        if usual:
            other |= self._data.at(f">u{len(usual)}", self._at + 1) != int.from_bytes(usual, "big")
        rows = np.flatnonzero(other)
        begins, self._at = self._at[rows], self._behind(self._at)
        heads = np.where(tags[rows] < 0xC0, 1, _SIZES[tags[rows]])
        places = zip(rows.tolist(), (begins + heads).tolist(), self._at[rows].tolist(), strict=True)
        data = self._data.data
        return [(row, data[begin:end].decode("utf-8", "replace")) for row, begin, end in places]

    def _skip_outputs(self) -> None:
        """Over a list of pairs."""
        counts = self._tags().astype(np.int64) - _ARRAYS
        if (counts < 0).any() or (counts > 15).any():
            raise _Unusual
        self._at += 1
        for number in range(int(counts.max(initial=0))):
            rows = np.flatnonzero(counts > number)
            at = self._at[rows]
            if (self._data.at("u1", at) != _PAIR).any():
                raise _Unusual
            self._at[rows] = self._behind(self._behind(at + 1))

    def _usage(self) -> tuple[Array, Array, Array, Array]:
        """Bytes read and written, memory of the whole tree, bytes made."""
        if (self._tags() != _ARRAYS + _USAGE).any():
            raise _Unusual
        self._at += 1
        read, written = self._numbers(), self._numbers()
        self._skip(2)
        whole = self._numbers()
        self._skip(5)
        made = self._numbers()
        self._skip()
        return read, written, whole, made
