"""The object cache of one node: objects on disk with descriptions, eviction by value, and partial files of transfers.

    DIRECTORY/objects/KEY    the bytes, read-only        KEY: a digest of the object's name
    DIRECTORY/partial/KEY    bytes that are still arriving
    DIRECTORY/catalogue      the descriptions of the objects
    DIRECTORY/lock           held by the process that uses the cache

An object exists when its bytes are under `objects`; its description was written before. So a process killed at any
moment leaves complete objects, descriptions without an object (dropped on opening) and partial files (kept: a fetch
resumes them). Nothing is forced to disk: after a power failure a file of the wrong size is dropped, and wrong bytes are
detected by the node that fetches the file.

Tasks get hard links to the same bytes. They are read-only, which stops every user except root. Which node has which
object is recorded elsewhere. Thread-safe.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import mmap
import os
import secrets
import shutil
import struct
import threading
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import inf

import msgspec

from shoal.data.shelf import (
    FORMAT,
    AbsentError,
    DamagedError,
    ObjectDescription,
    OpenedObject,
    describe,
    pack_chunks,
    read_chunks,
)
from shoal.data.transfer_messages import whole
from shoal.errors import InputError, ShoalError

SHORTEST_AGE = 1.0
"""Seconds below which two uses count as equally recent, so that an object that was just used has a finite value."""


class Candidate(msgspec.Struct, frozen=True):
    """An object that may be evicted."""

    name: str
    size_bytes: int
    seconds_to_get: float
    used_at: float


def value_per_byte(candidate: Candidate, now: float) -> float:
    age = max(SHORTEST_AGE, now - candidate.used_at)
    return candidate.seconds_to_get / age / max(1, candidate.size_bytes)


def choose(candidates: Iterable[Candidate], need_bytes: int, now: float) -> list[str] | None:
    """Names of objects whose eviction frees at least that many bytes, or None if all of them together do not.

    None of those chosen could stay: a large object chosen last may make smaller ones before it unnecessary, and they
    are kept, the most valuable first. Empty objects never help.
    """
    if need_bytes <= 0:
        return []
    order = sorted(
        (one for one in candidates if one.size_bytes > 0),
        key=lambda one: (value_per_byte(one, now), one.used_at, one.name),
    )
    taken: list[Candidate] = []
    freed = 0
    for one in order:
        if freed >= need_bytes:
            break
        taken.append(one)
        freed += one.size_bytes
    if freed < need_bytes:
        return None
    chosen = []
    for one in reversed(taken):
        if freed - one.size_bytes >= need_bytes:
            freed -= one.size_bytes
        else:
            chosen.append(one.name)
    chosen.reverse()
    return chosen


MARK = b"\xf1obj"
SPARE = 1000
"""Number of outdated descriptions that are tolerated, however few objects there are."""
_HEAD = struct.Struct("<4sII")

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ObjectDescription).decode


class Catalogue:
    """The descriptions of one cache, on disk. Used by one thread at a time."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = _open(path)
        self._size = os.fstat(self._descriptor).st_size
        self._entries = 0

    def read(self) -> list[ObjectDescription]:
        """Returns the last description of each name."""
        with open(self._path, "rb") as file:
            found = list(_read(file.read()))
        self._entries = len(found)
        return list({description.name: description for description in found}.values())

    def add(self, description: ObjectDescription, others: Collection[ObjectDescription]) -> None:
        """Appends a description; if it is time to rewrite the file, keeps `others` with it."""
        if self._entries > 2 * len(others) + SPARE:
            self.write(others)
        self._append(_frame(description))
        self._entries += 1

    def write(self, descriptions: Collection[ObjectDescription]) -> None:
        """Replaces all descriptions; on a full disk the file stays unchanged, which is longer but not wrong."""
        fresh = f"{self._path}.new"
        try:
            with open(fresh, "wb") as file:
                file.writelines(_frame(description) for description in descriptions)
            os.rename(fresh, self._path)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            os.unlink(fresh)
            return
        os.close(self._descriptor)
        self._descriptor = _open(self._path)
        self._size = os.fstat(self._descriptor).st_size
        self._entries = len(descriptions)

    def close(self) -> None:
        os.close(self._descriptor)

    def _append(self, frame: bytes) -> None:
        """Appends the complete frame, or nothing."""
        written = os.write(self._descriptor, frame)
        if written < len(frame):
            os.ftruncate(self._descriptor, self._size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._size += written


def _open(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def _frame(description: ObjectDescription) -> bytes:
    payload = _encode(description)
    return _HEAD.pack(MARK, len(payload), zlib.crc32(payload)) + payload


def _read(data: bytes) -> Iterator[ObjectDescription]:
    """Yields every complete description; after a broken one, continues at the next mark."""
    at = data.find(MARK)
    while 0 <= at <= len(data) - _HEAD.size:
        _, length, checksum = _HEAD.unpack_from(data, at)
        end = at + _HEAD.size + length
        payload = data[at + _HEAD.size : end]
        if len(payload) == length and zlib.crc32(payload) == checksum:
            try:
                description = _decode(payload)
            except msgspec.MsgspecError:
                pass  # of another version
            else:
                if description.version == FORMAT:
                    yield description
            at = data.find(MARK, end)
        else:
            at = data.find(MARK, at + 1)


SLACK = 0.05
"""Fraction of the limit that is freed in addition, so that not every new object requires an eviction."""
USUAL_BYTES_PER_SECOND = 100e6
"""Default of the seconds to fetch an object again."""
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.EACCES)


class DepotFullError(ShoalError):
    """There is no room for an object; all existing objects are kept."""


class ArrivingError(ShoalError):
    """Another fetch is filling the partial file of that object."""


class Cache:
    """The objects of one node, at most `limit_bytes` of them (None: as many as the disk holds)."""

    def __init__(
        self, directory: str, limit_bytes: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.directory = os.path.abspath(directory)
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        """Bytes of objects, and of reservations for those that are arriving."""
        self._clock = clock
        self._guard = threading.RLock()
        self._held: dict[str, ObjectDescription] = {}
        self._used_at: dict[str, float] = {}
        self._pins: dict[str, int] = {}
        self._arriving: dict[str, int] = {}
        """By key, the reserved bytes."""
        self._left: dict[str, int] = {}
        """By key, the bytes of partial files that no fetch is filling; they are evicted first."""
        for folder in ("objects", "partial"):
            os.makedirs(os.path.join(self.directory, folder), mode=0o700, exist_ok=True)
        self._lock_file = self._take_lock()
        self._catalogue = Catalogue(os.path.join(self.directory, "catalogue"))
        self._look_around()

    # Lookup

    def has(self, name: str) -> bool:
        return name in self._held

    def names(self) -> list[str]:
        with self._guard:
            return list(self._held)

    def describe(self, name: str) -> ObjectDescription:
        with self._guard:
            return self._known(name)

    def size(self, name: str) -> int:
        return self.describe(name).size

    def room_for(self, names: Collection[str], missing: int, coming: Mapping[str, int]) -> tuple[float, float]:
        """Returns the bytes that these objects may occupy together: at most, when nothing else is pinned; and now.

        `missing`: bytes of them that are not here. Objects in `coming` have a reservation, whether they have begun to
        arrive or not.
        """
        if self.limit_bytes is None or self.used_bytes + missing + sum(coming.values()) <= self.limit_bytes:
            return inf, inf
        with self._guard:
            others = [about for name, about in self._held.items() if name not in names]
            precious = sum(about.size for about in others if about.precious)
            pinned = sum(about.size for about in others if about.name in self._pins and not about.precious)
        promised = sum(size for name, size in coming.items() if name not in names)
        return self.limit_bytes - precious, self.limit_bytes - precious - pinned - promised

    def free_bytes(self) -> int:
        """Returns the free bytes of the disk."""
        room = os.statvfs(self.directory)
        return room.f_bavail * room.f_frsize

    def open(self, name: str) -> OpenedObject | None:
        """Opens the object for sending, or returns None; counts as a use."""
        with self._guard:
            description = self._held.get(name)
            if description is None:
                return None
            try:
                descriptor = os.open(self._path("objects", name), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:  # the file was deleted by another program
                self.drop(name)
                return None
            self._used_at[name] = self._clock()
            return OpenedObject(descriptor, description)

    def mapped(self, name: str) -> mmap.mmap | bytes:
        """Maps the object's bytes without a copy; they stay readable even if the object is evicted."""
        opened = self.open(name)
        if opened is None:
            raise AbsentError(f"there is no object {name} in {self.directory}")
        try:
            if opened.description.size == 0:
                return b""
            return mmap.mmap(opened.descriptor, opened.description.size, prot=mmap.PROT_READ)
        finally:
            os.close(opened.descriptor)

    def pin(self, name: str) -> bool:
        """Protects an object from eviction until `unpin` was called as often; False if it is not here."""
        with self._guard:
            if name not in self._held:
                return False
            self._pins[name] = self._pins.get(name, 0) + 1
            self._used_at[name] = self._clock()
            return True

    def unpin(self, name: str) -> None:
        with self._guard:
            count = self._pins.pop(name, 0)
            if count > 1:
                self._pins[name] = count - 1

    def set_precious(self, name: str, precious: bool) -> None:
        """Sets whether this is the only copy. Survives a restart."""
        with self._guard, self._disk():
            changed = msgspec.structs.replace(self._known(name), precious=precious)
            self._catalogue.add(changed, self._held.values())
            self._held[name] = changed

    # Adding objects

    def begin(self, name: str, size: int) -> str:
        """Reserves room for an object and returns the path to write it to. Bytes of an earlier transfer may be
        there."""
        with self._guard:
            key = key_of(name)
            if key in self._arriving:
                raise ArrivingError(f"{name} is already arriving")
            left = self._left.pop(key, 0)
            self.used_bytes -= left
            try:
                self._make_room(size)
            except DepotFullError:
                if left:
                    self._left[key] = left
                    self.used_bytes += left
                raise
            self._arriving[key] = size
            self.used_bytes += size
            return self._path("partial", name)

    def leave(self, name: str, *, keep: bool = True) -> None:
        """Ends an arrival without an object; the partial file is kept for the next attempt if `keep` is set."""
        with self._guard:
            key = key_of(name)
            self.used_bytes -= self._arriving.pop(key, 0)
            path = self._path("partial", name)
            size = os.stat(path).st_size if os.path.exists(path) else 0
            if keep and size:
                self._left[key] = size
                self.used_bytes += size
            else:
                _remove(path)

    def commit(
        self,
        name: str,
        size: int,
        checksum: int,
        chunks: list[int] | None = None,
        *,
        executable: bool = False,
        precious: bool = False,
        seconds_to_get: float | None = None,
    ) -> ObjectDescription:
        """Makes the partial file an object if size and checksum match (`DamagedError` if not; the file is then kept).

        `chunks`: the checksums of the written bytes, as computed by the writer; without them the file is read.
        """
        path = self._path("partial", name)
        if (found := os.stat(path).st_size) != size:
            raise DamagedError(f"{name} has {found} bytes, expected {size}")
        if chunks is None:
            with open(path, "rb") as file:
                chunks = read_chunks(file.fileno(), size)
        if whole(chunks, size) != checksum:
            raise DamagedError(f"{name} has a wrong checksum")
        cost = size / USUAL_BYTES_PER_SECOND if seconds_to_get is None else seconds_to_get
        description = ObjectDescription(name, size, checksum, pack_chunks(chunks), executable, precious, cost)
        with self._guard, self._disk():
            self._put(description)
        return description

    def adopt(
        self,
        path: str,
        name: str,
        *,
        keep: bool = False,
        precious: bool = True,
        seconds_to_get: float | None = None,
    ) -> ObjectDescription:
        """Moves a task's output into the cache, without a copy where the file system allows it; the file itself is then
        gone.

        With `keep` the file stays and its bytes are copied: a link would make the user's file read-only. A process
        killed in between leaves the file where it was.
        """
        source = os.path.realpath(path)
        size = os.stat(source).st_size
        partial = self.begin(name, size)
        try:
            with self._disk():
                _remove(partial)
                if keep or os.path.islink(path) or not _linked(source, partial):
                    shutil.copyfile(source, partial)
                    shutil.copymode(source, partial)
            cost = size / USUAL_BYTES_PER_SECOND if seconds_to_get is None else seconds_to_get
            description = describe(partial, name, precious=precious, seconds_to_get=cost)
            with self._guard, self._disk():
                self._put(description)
        except BaseException:
            self.leave(name, keep=False)
            raise
        if not keep:
            os.unlink(path)
        return description

    # Using and removing objects

    def link(self, name: str, target: str) -> None:
        """Puts the object at the path that a task expects, in place of an existing file: a hard link, or a read-only
        copy."""
        temporary = f"{target}.{secrets.token_hex(4)}"
        source = self._path("objects", name)
        with self._guard:
            description = self._known(name)
            self.pin(name)
        try:
            with self._disk():
                if not _linked(source, temporary):
                    shutil.copyfile(source, temporary)
                    os.chmod(temporary, _mode(description))
                os.replace(temporary, target)
        finally:
            _remove(temporary)
            self.unpin(name)

    def drop(self, name: str) -> None:
        """Removes an object regardless of its value; does nothing if it is not here."""
        with self._guard:
            description = self._held.pop(name, None)
            if description is None:
                return
            _remove(self._path("objects", name))
            self._used_at.pop(name, None)
            self._pins.pop(name, None)
            self.used_bytes -= description.size

    def drop_partial(self) -> None:
        """Removes partial files that no fetch is filling."""
        with self._guard:
            for key, size in self._left.items():
                _remove(f"{self.directory}/partial/{key}")
                self.used_bytes -= size
            self._left.clear()

    def close(self) -> None:
        self._catalogue.close()
        os.close(self._lock_file)

    # Internal

    def _known(self, name: str) -> ObjectDescription:
        description = self._held.get(name)
        if description is None:
            raise AbsentError(f"there is no object {name} in {self.directory}")
        return description

    def _path(self, folder: str, name: str) -> str:
        return f"{self.directory}/{folder}/{key_of(name)}"

    def _put(self, description: ObjectDescription) -> None:
        """Makes a partial file an object."""
        name = description.name
        old = self._held.get(name)
        if old is not None and (old.size, old.checksum) != (description.size, description.checksum):
            self.drop(name)
            old = None
        partial = self._path("partial", name)
        os.chmod(partial, _mode(description))
        if old is None:  # if the same object exists already, a failed write must not lose it
            self._catalogue.add(description, self._held.values())
        os.rename(partial, self._path("objects", name))
        self.used_bytes -= self._arriving.pop(key_of(name), 0)
        if old is None:
            self.used_bytes += description.size
        self._held[name] = description if old is None else old
        self._used_at[name] = self._clock()

    def _make_room(self, need: int) -> None:
        """Evicts until so many bytes fit; if that is impossible, raises an error and evicts nothing."""
        if self.limit_bytes is None or (missing := self.used_bytes + need - self.limit_bytes) <= 0:
            return
        candidates = [
            Candidate(name, about.size, about.seconds_to_get, self._used_at[name])
            for name, about in self._held.items()
            if not about.precious and name not in self._pins
        ]
        spare = sum(self._left.values())
        chosen: list[str] | None = []
        if missing > spare:
            more = missing - spare
            slack = int(self.limit_bytes * SLACK)
            chosen = choose(candidates, more + slack, self._clock())
            if chosen is None:
                chosen = choose(candidates, more, self._clock())
        if chosen is None:
            raise DepotFullError(
                f"{need} bytes do not fit into {self.directory}: its limit is {self.limit_bytes} bytes, of which "
                f"{self.used_bytes} are in use and too few may be given up"
            )
        self.drop_partial()
        for name in chosen:
            self.drop(name)

    @contextmanager
    def _disk(self) -> Iterator[None]:
        """Translates the error of a full disk."""
        try:
            yield
        except OSError as error:
            if error.errno in FULL_DISK:
                raise DepotFullError(
                    f"the disk that holds {self.directory} is full; existing objects are kept"
                ) from None
            raise

    def _take_lock(self) -> int:
        descriptor = os.open(os.path.join(self.directory, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise InputError(
                f"{self.directory} is in use by another agent", remedy="give each agent a directory of its own"
            ) from None
        return descriptor

    def _look_around(self) -> None:
        """Reads the state of the directory, and drops what a killed process left incomplete."""
        now = self._clock()
        present = {entry.name: entry.stat().st_size for entry in os.scandir(f"{self.directory}/objects")}
        told = self._catalogue.read()
        for description in told:
            key = key_of(description.name)
            if present.get(key) == description.size:
                del present[key]
                self._held[description.name] = description
                self._used_at[description.name] = now
                self.used_bytes += description.size
        if len(self._held) < len(told):
            self._catalogue.write(self._held.values())
        for key in present:
            _remove(f"{self.directory}/objects/{key}")
        for entry in sorted(os.scandir(f"{self.directory}/partial"), key=lambda entry: entry.name):
            self._left[entry.name] = entry.stat().st_size
            self.used_bytes += entry.stat().st_size


def key_of(name: str) -> str:
    """Returns the file name of an object: its name may be any text."""
    return hashlib.blake2b(name.encode(), digest_size=20).hexdigest()


def _mode(description: ObjectDescription) -> int:
    return 0o555 if description.executable else 0o444


def _linked(source: str, target: str) -> bool:
    """Whether a hard link could be made."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno in _NO_LINK:
            return False
        raise
    return True


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
