"""Extents as files in shared memory: one directory per process, removed with it, or by the next process if it was
killed.

The directory is locked by its process. A process that starts removes the directories of the same user whose lock is
free, so what a killed agent leaves stays until the next one starts. A removed file stays readable for processes that
have mapped it. Memory is allocated when a file is made: if the system is full, that is an error then, not a SIGBUS
later.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Collection, Mapping
from zlib import crc32

from shoal.core.quantities import show_bytes
from shoal.data.memory.allocation_table import AllocationTable, check_handle, check_names
from shoal.data.memory.handle import Allocation
from shoal.errors import InputError
from shoal.resources.memory_layout import AllocationRecord, FullError, shown

PREFIX = "shoal-memory-"
SOCKET_NAME = "door"
"""The name of the socket for tasks of this machine."""
_NEW, _LOCK = ".new", "lock"
_NEW_SECONDS = 60.0


def shared_memory() -> str:
    """Returns the directory of the shared memory file system."""
    return "/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir()


def shared_memory_bytes() -> int:
    """Returns its total size in bytes."""
    found = os.statvfs(shared_memory())
    return found.f_frsize * found.f_blocks


def folders_of(cluster: str) -> list[str]:
    """Returns the accessible directories of a cluster's agents on this machine."""
    base = shared_memory()
    names = sorted(name for name in os.listdir(base) if name.startswith(f"{PREFIX}{cluster}-"))
    paths = [os.path.join(base, name) for name in names if not name.endswith(_NEW)]
    return [path for path in paths if _is_ours(path)]


def sweep() -> None:
    """Removes directories of this user's processes that have ended."""
    base = shared_memory()
    for name in os.listdir(base):
        path = os.path.join(base, name)
        if name.startswith(PREFIX) and _is_ours(path) and _is_left(path):
            shutil.rmtree(path, ignore_errors=True)


def _is_ours(path: str) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return found.st_uid == os.geteuid() and os.path.isdir(path) and not os.path.islink(path)


def _is_left(path: str) -> bool:
    """Whether the process of a directory has ended. A directory that is being made has a locked file after a moment."""
    try:
        if path.endswith(_NEW) and time.time() - os.stat(path).st_mtime <= _NEW_SECONDS:
            return False
        descriptor = os.open(os.path.join(path, _LOCK), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:  # its lock was never made, or it has been removed meanwhile
        return path.endswith(_NEW) and os.path.isdir(path)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def file_name(identity: str, index: int) -> str:
    """Returns the file name of an extent."""
    return f"{identity}.{index}"


class Segments:
    """The directory of one process."""

    def __init__(self, cluster: str) -> None:
        sweep()
        base = shared_memory()
        name = os.path.join(base, f"{PREFIX}{cluster}-{os.getpid()}-{secrets.token_hex(4)}")
        os.mkdir(name + _NEW, 0o700)
        self._lock = os.open(os.path.join(name + _NEW, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.rename(name + _NEW, name)
        self.folder = name

    @property
    def socket_path(self) -> str:
        return os.path.join(self.folder, SOCKET_NAME)

    def path(self, identity: str, index: int) -> str:
        return os.path.join(self.folder, file_name(identity, index))

    def make(self, identity: str, index: int, size: int, *, coming: bool = False) -> None:
        """Makes an extent filled with zeros; one that is `coming` has a name where readers do not look for it."""
        path = self.path(identity, index) + (_NEW if coming else "")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            os.unlink(path)
            if error.errno not in (errno.ENOSPC, errno.ENOMEM):
                raise
            raise FullError(
                f"{show_bytes(size)} of shared memory are requested, more than is free in {shared_memory()}",
                remedy="delete unused files there, or make it larger",
            ) from None
        finally:
            os.close(descriptor)

    def open(self, identity: str, index: int, *, coming: bool = False) -> int:
        """Opens an extent for reading and writing; the caller closes the descriptor."""
        return os.open(self.path(identity, index) + (_NEW if coming else ""), os.O_RDWR | os.O_CLOEXEC)

    def has_come(self, identity: str, index: int) -> None:
        """Makes an extent that was `coming` visible to readers."""
        os.rename(self.path(identity, index) + _NEW, self.path(identity, index))

    def remove(self, identity: str, index: int) -> None:
        for ending in ("", _NEW):
            try:
                os.unlink(self.path(identity, index) + ending)
            except FileNotFoundError:
                continue

    def close(self) -> None:
        """Removes all files and the directory."""
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)


def mapped(path: str) -> mmap.mmap | None:
    """Maps a file for reading, without a copy; None if it does not exist."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
    finally:
        os.close(descriptor)


def buffer_of(length: int) -> int:
    """Makes anonymous memory that can be filled, mapped and passed to another process; the caller closes the
    descriptor."""
    descriptor = os.memfd_create("shoal", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, length)
    except OSError as error:
        os.close(descriptor)
        raise InputError(f"cannot allocate {show_bytes(length)} of memory: {error.strerror}") from None
    return descriptor


def view_of(descriptor: int, length: int) -> memoryview:
    """Returns the content of such memory, without a copy; the descriptor may be closed afterwards."""
    if length == 0:
        return memoryview(b"")
    return memoryview(mmap.mmap(descriptor, length, prot=mmap.PROT_READ))


def write_all(descriptor: int, data: memoryview, offset: int) -> None:
    """Writes all bytes at that offset."""
    while len(data):
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written


def copy_range(source: int, offset: int, target: int, at: int, length: int) -> None:
    """Copies a range from one file to another, within the kernel."""
    os.lseek(target, at, os.SEEK_SET)
    while length:
        moved = os.sendfile(target, source, offset, length)
        if moved == 0:
            raise OSError(errno.EIO, "an extent is shorter than it was")
        offset, length = offset + moved, length - moved


_LOCKS = 64


class NodeExtents:
    """The extents of one node."""

    def __init__(self, segments: Segments, limit: int) -> None:
        self.segments = segments
        self._table = AllocationTable(limit)
        self._guard = threading.Lock()
        self._orders = [threading.Lock() for _ in range(_LOCKS)]

    def order(self, identity: str, index: int) -> threading.Lock:
        """Returns the lock that serialises writes to an extent with replicas, until all of them are written."""
        return self._orders[crc32(f"{identity}.{index}".encode()) % _LOCKS]

    def free_bytes(self) -> int:
        with self._guard:
            return max(0, self._table.free - self._table.ahead)

    def take_ahead(self, amount: int) -> bool:
        """Reserves room for prefetched bytes; returns whether there was any."""
        with self._guard:
            if amount > self._table.free - self._table.ahead:
                return False
            self._table.ahead += amount
            return True

    def give_ahead(self, amount: int) -> None:
        with self._guard:
            self._table.ahead -= amount

    def reserve(self, record: AllocationRecord, indexes: Collection[int], *, coming: bool = False) -> None:
        """Reserves extents, all or none; those that are `coming` are not read before `update` announces them."""
        check_names(record)
        check_handle(record)
        if any(not 0 <= index < len(record.extents) for index in indexes):
            raise InputError(f"allocation {shown(record)} has no such extent")
        with self._guard:
            held = self._table.held.get(record.id)
            before = None if held is None else held.record
            new = self._table.reserve(record, indexes, time.monotonic(), coming=coming)
        try:
            for index in new:
                size = record.extents[index].end - record.extents[index].begin
                self.segments.make(record.id, index, size, coming=coming)
        except BaseException:
            with self._guard:
                self._table.take_back(record, new, before)
            for index in new:
                self.segments.remove(record.id, index)
            raise

    def drop(self, record: AllocationRecord) -> Allocation:
        """Frees an allocation; returns its record."""
        with self._guard:
            held = self._table.expect(record)
            indexes = self._table.give_up(record.id)
        for index in indexes:
            self.segments.remove(record.id, index)
        return _as_handle(held.record)

    def drop_all(self) -> None:
        for record in self.objects(""):
            self._drop_if_there(record)

    def tell(self, runs: Collection[str]) -> None:
        """Takes the list of active runs."""
        with self._guard:
            self._table.runs = frozenset(runs)

    def drop_unkept(self, sessions: Collection[str], nodes: Mapping[int, object]) -> list[AllocationRecord]:
        """Frees the allocations that nothing keeps any more."""
        with self._guard:
            found = self._table.unkept(time.monotonic(), sessions, nodes)
            records = [self._table.held[identity].record for identity in found]
        return [record for record in records if self._drop_if_there(record)]

    def _drop_if_there(self, record: AllocationRecord) -> bool:
        try:
            self.drop(record)
        except InputError:
            return False  # another thread has just freed it
        return True

    def open(self, record: AllocationRecord, index: int, offset: int, length: int, *, coming: bool = False) -> int:
        """Opens the extent that contains these bytes; the caller closes the descriptor."""
        with self._guard:
            held = self._table.expect(record)
            coming = coming and index in held.coming
            if index not in held.indexes or (index in held.coming and not coming):
                raise self._table.missing(record)
            extent = held.record.extents[index]
            if not 0 <= offset <= offset + length <= extent.end - extent.begin:
                raise InputError(
                    f"bytes {offset} to {offset + length} are out of bounds of an extent of {shown(record)}"
                )
        try:
            return self.segments.open(record.id, index, coming=coming)
        except FileNotFoundError:  # it was freed between the two steps
            with self._guard:
                raise self._table.missing(record) from None

    def has(self, record: AllocationRecord, index: int) -> bool:
        with self._guard:
            held = self._table.held.get(record.id)
            return held is not None and index in held.indexes and index not in held.coming

    def record(self, record: AllocationRecord) -> tuple[Allocation, list[int]]:
        """Returns the record of an allocation, and which of its extents are here."""
        with self._guard:
            held = self._table.expect(record)
            return _as_handle(held.record), [index for index in held.indexes if index not in held.coming]

    def known(self, record: AllocationRecord) -> Allocation | None:
        """Returns the record of an allocation if an extent of it is here."""
        with self._guard:
            held = self._table.held.get(record.id)
            return None if held is None else _as_handle(held.record)

    def update(self, record: AllocationRecord) -> None:
        with self._guard:
            for index in self._table.update(record):
                self.segments.has_come(record.id, index)

    def objects(self, run: str) -> list[Allocation]:
        with self._guard:
            return [_as_handle(record) for record in self._table.of_run(run)]

    def close(self) -> None:
        self.segments.close()


def _as_handle(record: AllocationRecord) -> Allocation:
    assert isinstance(record, Allocation)
    return record
