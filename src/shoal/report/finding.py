"""Single records of a large ledger, found by how they begin: the file is searched as text, next to nothing decoded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple, TypeVar

import msgspec

from shoal.ledger.records import HEADER_BYTES, MARK, NetBegun, Record, RunStarted, TaskCourse, TaskEnded, decode, frames
from shoal.view.fold import has_nothing_to_do

_PIECE = 4 << 20
_Kind = TypeVar("_Kind", TaskEnded, TaskCourse)


def ends_of(ledger: str, task: int, run: int) -> list[TaskEnded]:
    """The ended attempts of one task in the run of this number, counted from 1."""
    return _of_run(ledger, run, TaskEnded, b"\xa3end" + msgspec.msgpack.encode(task))


def courses_of(ledger: str, task: int, run: int) -> list[TaskCourse]:
    """What was seen over time of its attempts."""
    return _of_run(ledger, run, TaskCourse, b"\xa6course" + msgspec.msgpack.encode(task))


class LastRun(NamedTuple):
    """Where the run stands in the ledger that began last and had something to do, with all that it goes on with."""

    offset: int
    earlier: int
    """Runs before it."""
    net: NetBegun | None
    """The last one of those that began one: a run that goes on with a net does not say again of which."""


def last_run(ledger: str) -> LastRun:
    """For those who want to know nothing of earlier runs."""
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
    """Where records stand that begin so, behind the one or three bytes that say how many fields they have."""
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
            at += len(piece) - kept  # it may begin in one piece and end in the next
    finally:
        os.close(file)


def _record(file: int, behind: int) -> tuple[int, Record | None]:
    """The record in which something stands there, and where its frame is; None if that is not the beginning of one."""
    for fields in (1, 3):
        place = behind - fields - HEADER_BYTES
        if place < 0 or os.pread(file, len(MARK), place) != MARK:
            continue
        size = int.from_bytes(os.pread(file, 4, place + len(MARK)), "little")
        for _, payload in frames(os.pread(file, HEADER_BYTES + size, place), []):
            return place, decode(payload)
    return 0, None
