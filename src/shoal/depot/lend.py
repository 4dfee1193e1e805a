"""Files offered to peers where they lie, without a copy: the inputs on the submitting machine.

Such a file belongs to its user, who may change it at any time. Then it is no longer the object that was promised, and
is not given away. Finding out costs one `fstat` per chunk; what changes within one is found by the checksum.
"""

from __future__ import annotations

import os
import threading

from shoal.depot.shelf import Description, Opened, describe


class Lender:
    """A shelf of files of other people."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lent: dict[str, tuple[str, tuple[int, ...], Description]] = {}

    def lend(self, path: str, name: str) -> Description:
        """Offers the file as it is now; lending the same name again replaces what was lent."""
        before = _signature(os.stat(path))
        description = describe(path, name, precious=True, seconds_to_get=0.0)
        with self._lock:
            self._lent[name] = (path, before, description)
        return description

    def withdraw(self, name: str) -> None:
        with self._lock:
            self._lent.pop(name, None)

    def open(self, name: str) -> Opened | None:
        with self._lock:
            lent = self._lent.get(name)
        if lent is None:
            return None
        path, signature, description = lent
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return None
        if _signature(os.fstat(descriptor)) != signature:
            os.close(descriptor)
            return None
        return Opened(descriptor, description)


def _signature(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
