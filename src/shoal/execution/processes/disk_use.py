"""Disk usage of tasks with a disk limit, for the launcher in Python: outputs, and files open for writing.

Outputs are checked by name. A file counts if it was changed since the task began; a directory is walked, a little at
each check. Other regular files count if the task's processes have them open for writing and they did not exist before;
they count until they are removed, even after they are closed. The kernel could stop a file that grows too large
(RLIMIT_FSIZE), but the task might continue with a truncated file and return that as a result. Files elsewhere that are
opened and closed between two checks are missed. `native/disk.c` does the same.
"""

from __future__ import annotations

import ctypes
import os
import struct
import time
from collections.abc import Sequence

from shoal.execution.processes.footprint import Footprint
from shoal.execution.processes.process_table import is_open_for_writing, open_files
from shoal.execution.processes.sampler import TreeProcess, mebibytes

_CLOCK_GRAIN = 0.02
"""Resolution of file timestamps, which is coarser than that of the clock."""
_WALK, _LAST_WALK = 0.003, 0.1
_WORTH_TELLING = 1 << 16
_REMEMBERED_FILES = 4096
_HERE, _BIRTH, _STATX_BYTES, _BIRTH_AT = -100, 0x800, 256, 80
"""From the system's headers: AT_FDCWD, STATX_BTIME, size of `struct statx`, and the offset of the birth time."""


class TaskDisk:
    """The disk usage of one running task."""

    def __init__(self, limit: int, paths: Sequence[str], slot: int) -> None:
        self.limit = limit
        self.bytes = self.files = 0
        """Maxima so far."""
        self._slot = slot
        self._since = time.time() - _CLOCK_GRAIN
        self._paths = paths
        self._outputs = Footprint(paths, since=self._since)
        self._written: dict[tuple[int, int], str] = {}
        """Files other than outputs that were seen open for writing."""

    def look(self, processes: Sequence[TreeProcess]) -> bool:
        """Measures the current usage; returns whether it is above the limit."""
        self._outputs.look(_WALK)
        known, files, size = self._others()
        folders = tuple(os.path.realpath(path) + "/" for path in self._paths if os.path.isdir(path))
        for process in processes:
            for path, found in open_files(process.pid):
                if not is_open_for_writing(path):
                    continue
                identity = (found.st_dev, found.st_ino)
                name = _target(path) if found.st_nlink else ""
                if identity in known or (folders and name.startswith(folders)) or _birth(path, found) < self._since:
                    continue
                known.add(identity)
                files += 1
                size += found.st_size
                if name and len(self._written) < _REMEMBERED_FILES:
                    self._written[identity] = name
        self._take(files, size)
        return self.bytes > self.limit

    def last_look(self) -> bool:
        """Measures once more after all processes have ended; returns whether the limit was exceeded."""
        self._outputs.look(_LAST_WALK, afresh=True)
        _, files, size = self._others()
        self._take(files, size)
        return self.bytes > self.limit

    def _others(self) -> tuple[set[tuple[int, int]], int, int]:
        """Returns the files that need not be counted any more, and number and bytes of files that were open at an
        earlier check and are not outputs."""
        seen = [os.fstat(self._slot), *map(_stat, self._paths)]  # captured output is counted separately
        known = {(found.st_dev, found.st_ino) for found in seen if found is not None}
        files = size = 0
        for identity, path in self._written.items():
            found = _stat(path)
            if found is not None and (found.st_dev, found.st_ino) == identity and identity not in known:
                known.add(identity)
                files += 1
                size += found.st_size
        return known, files, size

    def _take(self, files: int, size: int) -> None:
        size += os.fstat(self._slot).st_size
        self.bytes = max(self.bytes, self._outputs.bytes + size)
        self.files = max(self.files, self._outputs.files + files)

    def excess(self, age: float) -> str:
        """Returns the message: by how much the limit was exceeded, and when."""
        limit = mebibytes(self.limit)
        if self.bytes - self.limit < _WORTH_TELLING:  # both numbers would look the same
            return f"used more than its {limit} of disk, after {age:.2f} s"
        return f"used {mebibytes(self.bytes)} of disk, more than its {limit}, after {age:.2f} s"


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _birth(path: str, found: os.stat_result) -> float:
    """Returns when a file was created; when it was changed, if the system does not know."""
    status = ctypes.create_string_buffer(_STATX_BYTES)
    try:
        if ctypes.CDLL(None).statx(_HERE, os.fsencode(path), 0, _BIRTH, status):
            return found.st_ctime
    except AttributeError:
        return found.st_ctime
    (mask,) = struct.unpack_from("=I", status)
    seconds, nanoseconds = struct.unpack_from("=qI", status, _BIRTH_AT)
    return float(seconds + nanoseconds / 1e9) if mask & _BIRTH else found.st_ctime
