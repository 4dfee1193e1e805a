"""Writer and reader of the ledger file: an append-only log with group commit, one writer and any number of readers.

Group commit: `add` collects records and `flush` passes them to the kernel in one write, so they survive a crash of this
process. A thread calls fdatasync at most `SYNC_SECONDS` later, so they also survive a power failure.

Full disk: a ballast file reserves space beside the ledger. When a write finds no space, the writer deletes the ballast
and repeats the write, so that the results of running tasks can still be recorded. `full` then tells the run to stop.
"""

from __future__ import annotations

import errno
import os
import threading

from shoal.errors import RunError
from shoal.ledger.records import Damage, Record, encode, frames

SYNC_SECONDS = 0.05
BALLAST_BYTES = 1 << 20
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class LedgerWriter:
    """Appends records to a ledger file."""

    def __init__(self, path: str, ballast: str) -> None:
        self.path = path
        self.ballast = ballast
        self.full = False
        """The disk is full or a sync failed: the run must not start further tasks."""
        self._pending: list[bytes] = []
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._lay_ballast()
        self._dirty = threading.Event()
        self._closing = threading.Event()
        self._syncer = threading.Thread(target=self._sync_loop, name="shoal-ledger-sync", daemon=True)
        self._syncer.start()

    def _lay_ballast(self) -> None:
        try:
            descriptor = os.open(self.ballast, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise RunError(f"cannot write {self.ballast}: {error.strerror}") from None
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptor, 0, BALLAST_BYTES)
            else:
                os.pwrite(descriptor, bytes(BALLAST_BYTES), 0)
        except OSError as error:
            os.close(descriptor)
            os.unlink(self.ballast)
            raise RunError(f"no room for the ledger beside {self.path}: {error.strerror}") from None
        os.close(descriptor)

    def add(self, record: Record) -> None:
        self._pending.append(encode(record))

    def flush(self) -> None:
        """Writes the collected records. Raises RunError only if the space of the ballast is used up, too."""
        if not self._pending:
            return
        data = b"".join(self._pending)
        self._pending.clear()
        self._write(data)
        if not self._dirty.is_set():  # set() takes a lock on each call, is_set() does not
            self._dirty.set()

    def _write(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except OSError as error:
                if error.errno in _NO_ROOM and not self.full:
                    self.full = True
                    self._drop_ballast()
                    continue
                raise RunError(f"cannot write the ledger {self.path}: {error.strerror}") from None

    def _drop_ballast(self) -> None:
        try:
            os.unlink(self.ballast)
        except OSError:
            pass

    def _sync_loop(self) -> None:
        while True:
            self._dirty.wait()
            if self._closing.is_set():
                return
            self._dirty.clear()
            try:
                os.fdatasync(self._descriptor)
            except OSError:
                self.full = True  # the next write raises the error; durability is not guaranteed any more
            self._closing.wait(SYNC_SECONDS)

    def close(self) -> None:
        """Writes and syncs the remaining records."""
        try:
            self.flush()
        finally:
            self._closing.set()
            self._dirty.set()
            self._syncer.join()
            try:
                os.fdatasync(self._descriptor)
            except OSError:
                pass
            os.close(self._descriptor)
            self._drop_ballast()


class LedgerReader:
    """Reads a ledger incrementally: the first call returns the whole file, each later call what was appended since."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.offset = 0
        self.damage: list[Damage] = []
        self.tail = Damage(0, 0)
        """Bytes after the last complete record: a write in progress, or a record truncated by a crash."""

    def payloads(self) -> list[bytes]:
        """Returns the payloads of all complete records since the last call; appends damaged ranges to `damage`.

        An incomplete last record is left for the next call.
        """
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                data = file.read()
        except FileNotFoundError:
            return []
        found: list[bytes] = []
        damage: list[Damage] = []
        end = 0
        for end, payload in frames(data, damage):  # noqa: B007  the last `end` is used below
            found.append(payload)
        base = self.offset
        for stretch in damage:
            if stretch.offset < end:
                self.damage.append(Damage(base + stretch.offset, stretch.size))
        self.tail = Damage(base + end, len(data) - end)
        self.offset = base + end
        return found
