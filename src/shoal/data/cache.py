"""Objects on the disk of one node.

    DIRECTORY/objects/KEY    the bytes, read-only        KEY: a digest of the object's name
    DIRECTORY/partial/KEY    bytes that are still arriving
    DIRECTORY/catalogue      the descriptions of the objects
    DIRECTORY/lock           held by the process that uses the cache

An object is there when its bytes stand under `objects`, and its description was written before. So a process killed at
any moment leaves whole objects, descriptions without an object (dropped on opening) and partial files (kept: a fetch
goes on where it was). Nothing is forced to the disk: after a loss of power a file whose size is wrong is
dropped, and one whose bytes are wrong is found out by whoever fetches it.

Tasks get hard links to the same bytes. These are read-only, which stops everybody but root. What to evict is decided in
`evict`; who has which object is known elsewhere. Any thread may call.
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
"""Seconds below which two uses count as equally recent, so that what was used just now has a finite value."""


class Candidate(msgspec.Struct, frozen=True):
    """An object that may go."""

    name: str
    size_bytes: int
    seconds_to_get: float
    used_at: float


def value_per_byte(candidate: Candidate, now: float) -> float:
    age = max(SHORTEST_AGE, now - candidate.used_at)
    return candidate.seconds_to_get / age / max(1, candidate.size_bytes)


def choose(candidates: Iterable[Candidate], need_bytes: int, now: float) -> list[str] | None:
    """Names of objects whose going frees at least that many bytes, or None if all of them together do not.

    None of those chosen could stay: a large object taken last may make smaller ones before it unnecessary, and they are
    spared, the most valuable first. Empty objects never help.
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
"""Descriptions of no use that do not matter, however few objects there are."""
_HEAD = struct.Struct("<4sII")

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ObjectDescription).decode


class Catalogue:
    """The descriptions of one cache, on its disk. Used by one thread at a time."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = _open(path)
        self._size = os.fstat(self._descriptor).st_size
        self._entries = 0

    def read(self) -> list[ObjectDescription]:
        """All that is told of names, the last of each."""
        with open(self._path, "rb") as file:
            found = list(_read(file.read()))
        self._entries = len(found)
        return list({description.name: description for description in found}.values())

    def add(self, description: ObjectDescription, others: Collection[ObjectDescription]) -> None:
        """Appends one; `others` are those that should stay if this is the time to write all anew."""
        if self._entries > 2 * len(others) + SPARE:
            self.write(others)
        self._append(_frame(description))
        self._entries += 1

    def write(self, descriptions: Collection[ObjectDescription]) -> None:
        """Replaces all that is told by these; on a full disk it stays as it is, which is longer but not wrong."""
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
        """The whole frame or nothing of it."""
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
    """Every description that is whole; after a broken one it goes on at the next mark."""
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
"""Share of the limit that is freed beyond what is needed, so that not every new object means a decision."""
USUAL_BYTES_PER_SECOND = 100e6
"""What it takes to get an object again if nobody said."""
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.EACCES)


class DepotFullError(ShoalError):
    """There is no room for an object; everything that was there still is."""


class ArrivingError(ShoalError):
    """Somebody else is filling the partial file of that object."""


class Cache:
    """The objects of one node, at most `limit_bytes` of them (None: as many as the disk holds)."""

    def __init__(
        self, directory: str, limit_bytes: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.directory = os.path.abspath(directory)
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        """Of objects, and of what is promised to those that are arriving."""
        self._clock = clock
        self._guard = threading.RLock()
        self._held: dict[str, ObjectDescription] = {}
        self._used_at: dict[str, float] = {}
        self._pins: dict[str, int] = {}
        self._arriving: dict[str, int] = {}
        """By key, the bytes promised."""
        self._left: dict[str, int] = {}
        """By key, the bytes of partial files that nobody is filling now; the first to go."""
        for folder in ("objects", "partial"):
            os.makedirs(os.path.join(self.directory, folder), mode=0o700, exist_ok=True)
        self._lock_file = self._take_lock()
        self._catalogue = Catalogue(os.path.join(self.directory, "catalogue"))
        self._look_around()

    # What is here

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
        """Bytes that these objects may take together: at most, when nothing else is pinned; and now.

        So many bytes of them are missing. Objects in `coming` have a promise, whether they have begun to arrive or not.
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
        """What the disk has left."""
        room = os.statvfs(self.directory)
        return room.f_bavail * room.f_frsize

    def open(self, name: str) -> OpenedObject | None:
        """The object ready to be sent, or None; counts as a use."""
        with self._guard:
            description = self._held.get(name)
            if description is None:
                return None
            try:
                descriptor = os.open(self._path("objects", name), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:  # somebody has tidied up
                self.drop(name)
                return None
            self._used_at[name] = self._clock()
            return OpenedObject(descriptor, description)

    def mapped(self, name: str) -> mmap.mmap | bytes:
        """The object's bytes without a copy; they stay readable even if the object is evicted."""
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
        """Keeps an object from being evicted until as many `unpin`; False if it is not here."""
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
        """Says whether this is the only copy. Also known after a restart."""
        with self._guard, self._disk():
            changed = msgspec.structs.replace(self._known(name), precious=precious)
            self._catalogue.add(changed, self._held.values())
            self._held[name] = changed

    # How objects get in

    def begin(self, name: str, size: int) -> str:
        """Where to write an object; room for it is kept from now on. Bytes from an earlier time may stand there."""
        with self._guard:
            key = key_of(name)
            if key in self._arriving:
                raise ArrivingError(f"{name} is arriving already")
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
        """Ends an arrival without an object; what has arrived is kept for the next time, or not."""
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
        """Makes the partial file an object, if it is what it should be (`DamagedError` if not; the file is then kept).

        `chunks` are the checksums of what was written, by whoever wrote it; without them the file is read.
        """
        path = self._path("partial", name)
        if (found := os.stat(path).st_size) != size:
            raise DamagedError(f"{name} has {found} bytes and not {size}")
        if chunks is None:
            with open(path, "rb") as file:
                chunks = read_chunks(file.fileno(), size)
        if whole(chunks, size) != checksum:
            raise DamagedError(f"{name} does not have its checksum")
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
        """Takes a task's output in, without a copy where the file system allows that; the file itself is then gone.

        With `keep` the file stays as it is and its bytes are copied: a link would make somebody's file read-only. A
        process killed in between leaves the file where it was.
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

    # How objects get out

    def link(self, name: str, target: str) -> None:
        """Puts the object where a task wants it, in place of what was there: a hard link, or a read-only copy."""
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
        """Forgets an object whatever it is worth; nothing if it is not here."""
        with self._guard:
            description = self._held.pop(name, None)
            if description is None:
                return
            _remove(self._path("objects", name))
            self._used_at.pop(name, None)
            self._pins.pop(name, None)
            self.used_bytes -= description.size

    def drop_partial(self) -> None:
        """Removes partial files that nobody is filling; what is arriving stays."""
        with self._guard:
            for key, size in self._left.items():
                _remove(f"{self.directory}/partial/{key}")
                self.used_bytes -= size
            self._left.clear()

    def close(self) -> None:
        self._catalogue.close()
        os.close(self._lock_file)

    # Inside

    def _known(self, name: str) -> ObjectDescription:
        description = self._held.get(name)
        if description is None:
            raise AbsentError(f"there is no object {name} in {self.directory}")
        return description

    def _path(self, folder: str, name: str) -> str:
        return f"{self.directory}/{folder}/{key_of(name)}"

    def _put(self, description: ObjectDescription) -> None:
        """The step that makes a partial file an object."""
        name = description.name
        old = self._held.get(name)
        if old is not None and (old.size, old.checksum) != (description.size, description.checksum):
            self.drop(name)
            old = None
        partial = self._path("partial", name)
        os.chmod(partial, _mode(description))
        if old is None:  # of the same object there is one already, which must not be lost if this write is
            self._catalogue.add(description, self._held.values())
        os.rename(partial, self._path("objects", name))
        self.used_bytes -= self._arriving.pop(key_of(name), 0)
        if old is None:
            self.used_bytes += description.size
        self._held[name] = description if old is None else old
        self._used_at[name] = self._clock()

    def _make_room(self, need: int) -> None:
        """Evicts until so many bytes fit, or says that they cannot and evicts nothing."""
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
        """A full disk becomes one sentence."""
        try:
            yield
        except OSError as error:
            if error.errno in FULL_DISK:
                raise DepotFullError(
                    f"the disk that holds {self.directory} is full; nothing that was there is lost"
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
        """Takes stock, and drops what a killed process left half done."""
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
    """The file name of an object: names are any text, file names are not."""
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
