"""Ledgers read in bulk: piece by piece, so that a large one is never in memory as a whole, and again as it grows.

Nearly all records of a large ledger are ends of attempts. They are decoded together, which takes half the time.
"""

from __future__ import annotations

import gc
import os
import struct
from collections.abc import Iterator, Sequence

import msgspec

from shoal.ledger.records import Damage, RunStarted, TaskEnded, decode, frames_in_bulk
from shoal.view.ends import AnyEnd, End
from shoal.view.run import RunView

PIECE_BYTES = 4 << 20
_END = b"\xa3end"
"""How the record of an ended attempt begins, behind the three bytes that say how long the array is."""
_ends = msgspec.msgpack.Decoder(list[End])
_ARRAY = struct.Struct(">BI")


class LedgerTail:
    """A ledger from its beginning and, asked again, what was added since."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.offset = 0
        """Everything before it has been read."""
        self._identity = (0, 0)

    def is_another(self) -> bool:
        """Whether another file has taken its place: a run has mended it. It is then read from its beginning."""
        try:
            found = os.stat(self.path)
        except OSError:
            return False
        identity = (found.st_dev, found.st_ino)
        if identity == self._identity and found.st_size >= self.offset:
            return False
        changed = self._identity != (0, 0)
        self._identity, self.offset = identity, 0
        return changed

    def pieces(self) -> Iterator[list[bytes]]:
        """Payloads of whole records, some thousand at a time; what is damaged is left out."""
        try:
            file = open(self.path, "rb")  # noqa: SIM115  closed below; here only its absence counts
        except FileNotFoundError:
            return
        with file:
            file.seek(self.offset)
            rest = b""
            while piece := file.read(PIECE_BYTES):
                data = rest + piece
                damage: list[Damage] = []
                found, end = frames_in_bulk(data, damage)
                rest = data[end:]
                self.offset += end
                if found:
                    yield found


def read_into(view: RunView, tail: LedgerTail, *, last: int | None = None) -> None:
    """Feeds a view with what the ledger has; up to the end of the run of this number, counted from 1, if one is given.

    Looking for garbage among a million short-lived records takes longer than reading them, so it waits.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        for payloads in tail.pieces():
            if not _feed(view, payloads, last):
                break
    finally:
        if collecting:
            gc.enable()
    view.settle()


def _feed(view: RunView, payloads: list[bytes], last: int | None) -> bool:
    """False when what follows is of a later run."""
    ends: list[bytes] = []
    for payload in payloads:
        if payload[3:7] == _END:
            ends.append(payload)
            continue
        _feed_ends(view, ends)
        ends.clear()
        record = decode(payload)
        if record is None:
            continue
        if isinstance(record, RunStarted) and last is not None and view.runs >= last:
            return False
        view.feed(record)
    _feed_ends(view, ends)
    return True


def _feed_ends(view: RunView, payloads: list[bytes]) -> None:
    if not payloads:
        return
    batch: Sequence[AnyEnd]
    try:
        batch = _ends.decode(_ARRAY.pack(0xDD, len(payloads)) + b"".join(payloads))
    except msgspec.MsgspecError:  # one of them was written by another version
        found = [decode(payload) for payload in payloads]
        batch = [record for record in found if isinstance(record, TaskEnded)]
    view.feed_ends(batch)
