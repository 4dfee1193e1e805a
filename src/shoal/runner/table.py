"""Which processes run at this moment, in a file that outlives us: pid and start moment, one entry per slot.

The file is mapped into memory, so an entry costs a microsecond and no system call, and what was written is there for
the next run even if this one is killed a moment later. Entries are not taken out: a pid whose process was started at
another moment is simply not the one meant.
"""

from __future__ import annotations

import mmap
import os
import struct

_ENTRY = struct.Struct("<Qd")
_ENTRIES = 4096
"""Slots beyond this are not listed; their processes are still known by their marks."""


class ProcessTable:
    """The table of a run under way."""

    def __init__(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(descriptor, _ENTRY.size * _ENTRIES)
            # Pages are given room now: a write into a hole of a full disk would end us by a signal.
            os.pwrite(descriptor, bytes(_ENTRY.size * _ENTRIES), 0)
            self._map = mmap.mmap(descriptor, _ENTRY.size * _ENTRIES)
        finally:
            os.close(descriptor)

    def enter(self, slot: int, pid: int, boot_time: float) -> None:
        if slot < _ENTRIES:
            _ENTRY.pack_into(self._map, slot * _ENTRY.size, pid, boot_time)

    def close(self) -> None:
        self._map.close()


def read_table(path: str) -> list[tuple[int, float]]:
    """Pids and start moments (seconds since boot) of the last run's processes; most of them are long gone."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError:
        return []
    whole = len(data) - len(data) % _ENTRY.size
    return [(pid, moment) for pid, moment in _ENTRY.iter_unpack(data[:whole]) if 0 < pid < 1 << 31]
