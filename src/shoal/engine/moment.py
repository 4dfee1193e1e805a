"""How many tasks run at this moment, as the run itself says it in a small file beside its ledger.

The ledger has no word of the start of a task that is over at once, so a run of short tasks would seem to do nothing.
The file is written with a tick of the run, and only if something else is to be said; nobody waits for it to be durable.
It is about this machine: what runs on a cluster is told by its nodes, and what of a net is under way by its marks.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

import msgspec

from shoal.view.pace import Moment

if TYPE_CHECKING:
    from shoal.engine.statistics import Statistics
    from shoal.engine.workspace import Holder

NAME = "moment"
_SIZE = struct.Struct("<I")
_MOST_BYTES = 1 << 16


class MomentWriter:
    """Says it for a run whose files lie in a directory."""

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, NAME)
        self._said = b""

    def say(self, statistics: Statistics) -> None:
        """If it is news. A disk that is full is told of elsewhere."""
        running = {name: totals.running for name, totals in statistics.categories.items() if totals.running}
        moment = Moment(os.getpid(), statistics.running, running, statistics.is_crowded)
        told = msgspec.msgpack.encode(moment)
        if len(told) > _MOST_BYTES - _SIZE.size:  # of very many categories, or names without an end, the sum must do
            told = msgspec.msgpack.encode(msgspec.structs.replace(moment, categories={}))
        if told == self._said:
            return
        self._said = told
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                # In one piece and over what was there, so that no reader finds nothing.
                os.pwrite(descriptor, _SIZE.pack(len(told)) + told, 0)
            finally:
                os.close(descriptor)
        except OSError:
            pass


def read_moment(directory: str, holder: Holder | None) -> Moment | None:
    """What the process that holds the lock says; None if nobody does, or it has not said anything yet."""
    if holder is None:
        return None
    try:
        with open(os.path.join(directory, NAME), "rb") as file:
            data = file.read(_MOST_BYTES)
        size = _SIZE.unpack_from(data)[0]
        found = msgspec.msgpack.decode(data[_SIZE.size : _SIZE.size + size], type=Moment)
    except (OSError, struct.error, msgspec.MsgspecError):
        return None
    return found if found.pid == holder.pid else None
