"""What may be asked of the memory layer: sizes, names, data and handles, each refused in one sentence if it is none.

Pure, and the same in a program and in a node's service: names become paths there, so the service checks them again.
Whether there is room is for `layout` and `books` to say.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import index as whole
from pickle import PickleBuffer
from typing import TYPE_CHECKING

import msgspec

from shoal.errors import InputError
from shoal.memory.layout import SPREADS, Range, Record, check_range, damaged

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

MOST_BYTES = (1 << 63) - 1
MOST_REPLICAS = 1 << 20
LONGEST_NAME = 255
_ID = re.compile("[0-9a-f]{16}")


class Wish(msgspec.Struct, frozen=True):
    """An allocation that is asked for, of the right types and with names that could be those of files."""

    size: int
    replicas: int
    spread: str
    block_bytes: int | None
    name: str
    run: str


def wished(size: object, replicas: object, spread: object, block_bytes: object, name: object, run: object) -> Wish:
    """What was asked for, whatever kind of whole numbers that came in."""
    if not isinstance(spread, str) or spread not in SPREADS:
        raise InputError(f"spread cannot be {spread!r}", remedy=f"it is one of {', '.join(SPREADS)}")
    block = None if block_bytes is None else _number("block_bytes", block_bytes, MOST_BYTES)
    return Wish(
        _number("the size of an allocation", size, MOST_BYTES),
        _number("replicas", replicas, MOST_REPLICAS),
        spread,
        block,
        checked_name(name, "a memory object"),
        checked_name(run, "a run"),
    )


def _number(what: str, value: object, most: int) -> int:
    try:
        found = whole(value)  # type: ignore[arg-type]  # that is what is found out here
    except TypeError:
        raise InputError(
            f"{what} must be a whole number, not {value!r}", remedy="give an int; sizes are in bytes"
        ) from None
    if abs(found) > most:
        raise InputError(f"{what} cannot be {found}", remedy=f"the most is {most}")
    return found


def checked_name(name: object, of_what: str) -> str:
    """A name that could be a file's, or none."""
    if not isinstance(name, str):
        raise InputError(f"the name of {of_what} must be a text, not {name!r}")
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        length = LONGEST_NAME + 1
    if name in (".", "..") or "/" in name or "\0" in name or length > LONGEST_NAME:
        raise InputError(f"{name!r} cannot be the name of {of_what}", remedy="use what could be a file's name")
    return name


def bytes_of(data: ReadableBuffer) -> memoryview:
    """The bytes of anything that has them in one piece, without a copy."""
    try:
        view = memoryview(data)
    except (TypeError, ValueError, BufferError):
        raise InputError(
            f"a {type(data).__name__} cannot be written to memory", remedy="give bytes, or an array of numbers"
        ) from None
    if not view.c_contiguous:
        raise InputError(
            "an array cannot be written to memory that is not in one piece, row after row",
            remedy="give numpy.ascontiguousarray of it",
        )
    return PickleBuffer(view).raw()


def check_data(wish: Wish, data: ReadableBuffer | None) -> memoryview | None:
    """The bytes with which an allocation begins: as many as it has."""
    if data is None:
        return None
    view = bytes_of(data)
    if len(view) != wish.size:
        raise InputError(f"an allocation of {wish.size} bytes cannot begin with {len(view)}")
    return view


def checked_ranges(record: Record, ranges: Sequence[Range]) -> list[Range]:
    """Ranges that the allocation has."""
    try:
        pairs = [(begin, end) for begin, end in ranges]
    except (TypeError, ValueError):
        raise InputError(
            f"ranges cannot be {ranges!r}", remedy="give a list of pairs: from which byte, up to which"
        ) from None
    return [check_range(record, begin, end) for begin, end in pairs]


def check_handle(record: Record) -> None:
    """One sentence for a handle that no `alloc` has made: its extents must follow each other from 0 to the size."""
    begins, ends = [extent.begin for extent in record.extents], [extent.end for extent in record.extents]
    follow = begins[:1] == [0] and ends[-1] == record.size and begins[1:] == ends[:-1]
    if not follow or any(extent.begin >= extent.end for extent in record.extents) or record.replicas < 1:
        raise damaged(record)


def check_names(record: Record) -> None:
    """One sentence for names that are not to become those of files."""
    if _ID.fullmatch(record.id) is None:
        raise InputError(f"{record.id!r} cannot be the id of an allocation", remedy="use the handle that alloc gave")
    checked_name(record.name, "a memory object")
    checked_name(record.run, "a run")
