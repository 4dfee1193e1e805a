"""The attempts of a run as numpy columns, and a fast decoder that fills them from the bytes of a ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from shoal.ledger.records import UNSAID, TaskEnded

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Array = NDArray[Any]
_FIRST_ROOM = 256
_MOST_EXPECTED = 1 << 23
_GROWTH = 1.5


class GrowingColumn:
    """A numpy column that grows at its end."""

    def __init__(self, kind: str, expected: int = 0) -> None:
        # np.zeros reserves address space only: unused pages take no memory.
        self._room: Array = np.zeros(max(_FIRST_ROOM, min(expected + expected // 32, _MOST_EXPECTED)), kind)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def extend(self, values: Sequence[float] | Array) -> None:
        size = self._size + len(values)
        if size > len(self._room):
            self._grow(size)
        self._room[self._size : size] = values
        self._size = size

    def _grow(self, size: int) -> None:
        room = np.zeros(max(size, int(_GROWTH * len(self._room))), self._room.dtype)
        room[: self._size] = self._room[: self._size]
        self._room = room

    def reach(self, size: int) -> None:
        """Extends the column with zeros to at least this size."""
        if size > len(self._room):
            self._grow(size)
        self._size = max(self._size, size)

    @property
    def values(self) -> Array:
        """All values, as a view without a copy."""
        return self._room[: self._size]


class PackedNames:
    """Names of tasks by number, in compact form: msgpack chunks, of which the one used last is decoded."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._chunk_of = GrowingColumn("i4")
        """Counted from 1; 0 for a task without a name here."""
        self._place = GrowingColumn("i4")
        self._open: tuple[int, list[str]] = (-1, [])

    def add(self, tasks: Ints, names: Sequence[str]) -> None:
        self._chunks.append(msgspec.msgpack.encode(names))
        if len(tasks):
            for column in (self._chunk_of, self._place):
                column.reach(int(tasks.max()) + 1)
            self._chunk_of.values[tasks] = len(self._chunks)
            self._place.values[tasks] = np.arange(len(tasks))

    def may_have(self, part: str, size: int) -> Array:
        """For each task below `size`, whether its name may contain `part`: true if any name in its chunk does. Ignores
        case."""
        wanted = part.lower()
        texts = ("\n".join(msgspec.msgpack.decode(chunk, type=list[str])) for chunk in self._chunks)
        has_it = np.array([True, *(wanted in text.lower() for text in texts)])
        found = np.ones(size, bool)
        known = self._chunk_of.values[:size]
        found[: len(known)] = has_it[known]
        return found

    def of(self, task: int) -> str:
        """The name of a task, or a generic name if it is unknown."""
        number = int(self._chunk_of.values[task]) if 0 <= task < len(self._chunk_of) else 0
        if not number:
            return f"task {task}"
        if self._open[0] != number:
            self._open = (number, msgspec.msgpack.decode(self._chunks[number - 1], type=list[str]))
        return self._open[1][int(self._place.values[task])]


class Used(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The first fields of `Usage`; later fields are skipped."""

    read_bytes: int = 0
    written_bytes: int = 0
    switches: int = 0
    major_faults: int = 0
    tree_memory: int = 0
    virtual_memory: int = 0
    swap: int = 0
    processes: int = 0
    total_processes: int = 0
    cores: int = 0
    disk: int = 0


class End(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="end"):
    """Like `TaskEnded`, but with undecoded fields, for speed."""

    task: int
    attempt: int
    outcome: str
    final: bool
    status: int
    started: float
    ended: float
    user: float
    system: float
    max_rss: int
    output_at: int
    output_size: int
    message: str
    place: bytes
    content: bytes
    inputs: bytes
    outputs: msgspec.Raw
    value: bytes | None
    usage: Used = Used()
    memory_limit: int = 0
    node: int = 0
    check: int = UNSAID
    listing: msgspec.Raw = msgspec.Raw()


AnyEnd: TypeAlias = TaskEnded | End


class EndColumns(msgspec.Struct, frozen=True):
    """Ended attempts, one row each, in the order of the ledger."""

    task: Array
    number: Array
    node: Array
    final: Array
    started: Array
    ended: Array
    cpu: Array
    memory: Array
    limit: Array
    made: Array
    outcomes: list[tuple[int, str]]
    """Row and outcome of the attempts that are not `ok`."""
    messages: list[tuple[int, str]]
    """Row and message of the attempts that have one."""
    read: int
    written: int
    """Bytes, summed over all attempts."""


def columns_of(batch: Sequence[AnyEnd]) -> EndColumns:
    """Converts records to columns."""
    usages = [record.usage for record in batch]
    largest, whole = [record.max_rss for record in batch], [usage.tree_memory for usage in usages]
    return EndColumns(
        np.array([record.task for record in batch], np.int64),
        np.array([record.attempt for record in batch]),
        np.array([record.node for record in batch]),
        np.array([record.final for record in batch], bool),
        np.array([record.started for record in batch]),
        np.array([record.ended for record in batch]),
        np.array([record.user + record.system for record in batch]),
        np.maximum(largest, whole),
        np.array([record.memory_limit for record in batch]),
        np.array([usage.disk for usage in usages]),
        [(row, record.outcome) for row, record in enumerate(batch) if record.outcome != "ok"],
        [(row, record.message) for row, record in enumerate(batch) if record.message],
        sum(usage.read_bytes for usage in usages),
        sum(usage.written_bytes for usage in usages),
    )


_MOST_MESSAGES = 20_000
"""Maximum number of different messages; further ones are counted as one."""
OTHER_MESSAGE = "other causes"


class AttemptColumns:
    """All attempts that have ended, one row each, in the order of the ledger."""

    def __init__(self, expected: int = 0) -> None:
        self._task, self._node, self._category = (GrowingColumn("i4", expected) for _ in range(3))
        self._number, self._message = GrowingColumn("i4", expected), GrowingColumn("i4", expected)
        self._outcome, self._final = GrowingColumn("u1", expected), GrowingColumn("?", expected)
        self._started, self._ended = GrowingColumn("f8", expected), GrowingColumn("f8", expected)
        self._cpu, self._memory, self._limit, self._made = (GrowingColumn("f4", expected) for _ in range(4))
        self.read = 0
        self.written = 0
        """Bytes that all attempts together read from disks and wrote to them."""
        self.outcomes: list[str] = ["ok"]
        self.messages: list[str] = [""]
        self._outcome_codes: dict[str, int] = {"ok": 0}
        self._message_codes: dict[str, int] = {"": 0}

    def __len__(self) -> int:
        return len(self._task)

    def add(self, batch: EndColumns, categories: Array) -> None:
        """Appends rows; `categories` has the category code of each."""
        size = len(batch.task)
        self._task.extend(batch.task)
        self._node.extend(batch.node)
        self._category.extend(categories)
        outcome, message = np.zeros(size, np.uint8), np.zeros(size, np.int32)
        for row, text in batch.outcomes:
            outcome[row] = self._outcome_of(text)
        for row, text in batch.messages:
            message[row] = self._message_of(text)
        self._outcome.extend(outcome)
        self._message.extend(message)
        self._final.extend(batch.final)
        self._number.extend(batch.number)
        self._started.extend(batch.started)
        self._ended.extend(batch.ended)
        self._cpu.extend(batch.cpu)
        self._memory.extend(batch.memory)
        self._limit.extend(batch.limit)
        self._made.extend(batch.made)
        self.read += batch.read
        self.written += batch.written

    def _outcome_of(self, text: str) -> int:
        code = self._outcome_codes.get(text)
        if code is None:
            code = self._outcome_codes[text] = len(self.outcomes)
            self.outcomes.append(text)
        return code

    def _message_of(self, text: str) -> int:
        code = self._message_codes.get(text)
        if code is None:
            if len(self.messages) >= _MOST_MESSAGES and text != OTHER_MESSAGE:
                return self._message_of(OTHER_MESSAGE)
            code = self._message_codes[text] = len(self.messages)
            self.messages.append(text)
        return code

    # The columns, as views without a copy.

    @property
    def task(self) -> Ints:
        return self._task.values

    @property
    def node(self) -> Ints:
        return self._node.values

    @property
    def category(self) -> Ints:
        return self._category.values

    @property
    def outcome(self) -> Array:
        """Indices into `outcomes`; 0 is success."""
        return self._outcome.values

    @property
    def final(self) -> Array:
        return self._final.values

    @property
    def number(self) -> Ints:
        """Number of the attempt of its task, from 1."""
        return self._number.values

    @property
    def message(self) -> Ints:
        """Indices into `messages`."""
        return self._message.values

    @property
    def started(self) -> Floats:
        return self._started.values

    @property
    def ended(self) -> Floats:
        return self._ended.values

    @property
    def cpu(self) -> Floats:
        return self._cpu.values

    @property
    def memory(self) -> Floats:
        return self._memory.values

    @property
    def limit(self) -> Floats:
        """Memory limit in bytes; 0: none."""
        return self._limit.values

    @property
    def made(self) -> Floats:
        return self._made.values


_SPARE = bytes(16)
"""Padding, so that reading a number that begins at the last byte stays within the buffer."""


class Strided:
    """Bytes that can be read as numbers of any type at any offset, in bulk."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._padded = data + _SPARE
        self._kinds: dict[str, Array] = {}

    def at(self, kind: str, places: Ints) -> Array:
        """The numbers of this type at these offsets; IndexError if one is far outside."""
        found = self._kinds.get(kind)
        if found is None:
            size = len(self._padded) - np.dtype(kind).itemsize + 1
            found = self._kinds[kind] = np.ndarray((size,), kind, self._padded, strides=(1,))
        return found[places]

    def places_of(self, byte: int) -> Ints:
        """Offsets of this byte."""
        return np.flatnonzero(np.frombuffer(self.data, np.uint8) == byte)


_FIELDS, _USAGE = 22, 12
"""Number of fields of the two records, including the tag of the first; later versions may have more."""

OTHER, END, START, COURSE = range(4)
_ATTEMPTS = 1 << 24
"""An upper bound for the attempts of a task, to combine task and attempt into one key."""

# Type bytes of MessagePack.
_NIL, _FALSE, _TRUE, _FLOAT, _PAIR, _ARRAY16 = 0xC0, 0xC2, 0xC3, 0xCB, 0x92, 0xDC
_ARRAYS, _STRINGS = 0x90, 0xA0
"""The first type bytes of arrays and strings with an embedded length."""
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
"""Bytes and strings that follow a length of this type."""


def _sizes() -> Ints:
    """By type byte: size of a value, or of its header if a length follows the type byte; 0: not supported here."""
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
"""The last field of a TaskStarted record: this machine."""


class _Unusual(Exception):  # noqa: N818  no error: the slower decoder takes over
    """The data has a form that this decoder does not support."""


def kinds_of(data: Strided, begins: Ints, ends: Ints) -> Array:
    """The record types of these payloads: end of an attempt, its start, its usage series, or another type.

    Starts on cluster nodes count as another type, because their order relative to other records matters.
    """
    found: Array = np.full(len(begins), OTHER, np.uint8)
    heads = data.at(">u4", begins)
    found[data.at(">u4", begins + 3) == int.from_bytes(b"\xa3end", "big")] = END
    found[heads == int.from_bytes(b"\x97\xa2on", "big")] = START  # the format before clusters
    found[(heads == int.from_bytes(b"\x98\xa2on", "big")) & (data.at("u1", ends - 1) == _HERE)] = START
    found[heads == int.from_bytes(b"\x94\xa6co", "big")] = COURSE
    return found


def are_open(data: Strided, begins: Ints, ended: EndColumns) -> Array:
    """Which of these start records belong to attempts without an end in `ended`."""
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
    """Decodes these payloads into columns; None if one of them has an unsupported form."""
    try:
        return _Cursor(data, begins).columns(ends)
    except (_Unusual, IndexError):  # IndexError: a length points far beyond the data
        return None


class _Cursor:
    """Points to the same field in all records, and advances field by field."""

    def __init__(self, data: Strided, begins: Ints) -> None:
        self._data = data
        self._at = begins.copy()

    def columns(self, ends: Ints) -> EndColumns:
        """Decodes all fields."""
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
        """Combines task and attempt into one key."""
        return self._numbers() * _ATTEMPTS + self._numbers()

    def _tags(self) -> Array:
        return self._data.at("u1", self._at)

    def _numbers(self) -> Array:
        """Reads integers, or floats if at least one value is a float."""
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
        """Inserts the numbers of one type into their rows."""
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
        """Skips numbers, strings, bytes and nil."""
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
        """Rows with a string other than `usual`, and that string."""
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
        """Skips a list of pairs."""
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
        """Bytes read and written, memory of the process tree, bytes of outputs."""
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
