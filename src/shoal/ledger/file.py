"""The ledger as a file: appended to by one run at a time, read by anybody.

Group commit: `add` gathers records, `flush` hands them to the system in one write (from then on they survive the death
of this process), and a thread makes them durable against loss of power at most `SYNC_SECONDS` later.

Full disk: a ballast file is kept beside the ledger. When a write finds no room the ballast is given up and the write is
repeated, so that what has already finished can still be recorded; `full` then tells the run to stop.
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
        """The disk was found full; the run must start nothing more."""
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
        """Writes what was gathered. Raises RunError only if even the ballast's room is used up."""
        if not self._pending:
            return
        data = b"".join(self._pending)
        self._pending.clear()
        self._write(data)
        if not self._dirty.is_set():  # setting takes a lock each time, asking does not
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
                self.full = True  # the next write tells; durability can no longer be promised
            self._closing.wait(SYNC_SECONDS)

    def close(self) -> None:
        """Writes and syncs what is left."""
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
    """Reads a ledger from the beginning and, asked again, what was added since."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.offset = 0
        self.damage: list[Damage] = []
        self.tail = Damage(0, 0)
        """Bytes behind the last whole record: being written just now, or cut off by a kill."""

    def payloads(self) -> list[bytes]:
        """The payloads of all whole records since the last call; damage found on the way is added to `damage`.

        A last record that is only half written is left for the next call.
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
