"""Mounts memory objects as files with FUSE: the files and their operations, and the mount itself (mfusepy, libfuse
3)."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

from shoal.data.memory.allocation_table import FreedError, UnknownError
from shoal.data.memory.handle import Allocation, Memory
from shoal.data.memory.segments import buffer_of, view_of, write_all
from shoal.errors import InputError
from shoal.resources.memory_layout import FullError

LISTED_SECONDS = 1.0
"""Seconds for which a list of objects is cached."""
WINDOW_BYTES = 8 << 20
"""Bytes that are fetched from another node at a time."""

P = ParamSpec("P")
R = TypeVar("R")
Path = tuple[str, str]
"""Run and name."""


class PendingFile:
    """Temporary file for content that is being written and not yet an allocation."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor = buffer_of(0)
        self.is_changed = True
        self.is_removed = False
        """It has no name any more, and disappears when it is closed."""
        self.opened = 0

    def size(self) -> int:
        return os.fstat(self.descriptor).st_size

    def close(self) -> None:
        os.close(self.descriptor)


class OpenedMemoryFile:
    """An allocation that is open for reading or writing."""

    def __init__(self, allocation: Allocation) -> None:
        self.allocation = allocation
        self._views: dict[int, tuple[int, memoryview]] = {}
        """By extent: the cached bytes, and their offset."""

    def read(self, memory: Memory, size: int, offset: int) -> bytes:
        end = min(offset + size, self.allocation.size)
        if offset >= end:
            return b""
        extents = self.allocation.extents
        index = next(number for number, extent in enumerate(extents) if offset < extent.end)
        found = []
        while offset < end:
            upto = min(end, extents[index].end)
            found.append(self._part(memory, index, offset, upto))
            offset, index = upto, index + 1
        return found[0] if len(found) == 1 else b"".join(found)

    def _part(self, memory: Memory, index: int, begin: int, end: int) -> bytes:
        at, view = self._views.get(index, (0, memoryview(b"")))
        if not at <= begin <= end <= at + len(view):
            extent = self.allocation.extents[index]
            at, upto = extent.begin, extent.end
            if not memory.has(self.allocation, index):
                at, upto = begin, min(extent.end, max(end, begin + WINDOW_BYTES))
            view = memory.get(self.allocation, at, upto)
            self._views[index] = (at, view)
        return bytes(view[begin - at : end - at])

    def forget(self) -> None:
        """Drops cached bytes, since something was written."""
        self._views.clear()


class MemoryFiles:
    """The objects of a run as files; or those of all runs, in a directory per run."""

    def __init__(self, memory: Memory, run: str) -> None:
        self.memory, self.run = memory, run
        self._guard = threading.RLock()
        self._listed: dict[Path, Allocation] = {}
        self._listed_at = 0.0
        self._pending: dict[Path, PendingFile] = {}
        self._open: dict[int, OpenedMemoryFile | PendingFile] = {}
        self._next = 1
        self._since = time.time_ns()

    # ---- names ---------------------------------------------------------------------------------------------------

    def path_of(self, path: str) -> Path:
        """Returns run and name of a path; the name is empty for a directory."""
        words = [word for word in path.split("/") if word]
        if self.run:
            words = [self.run, *words]
        if len(words) > 2:
            raise OSError(errno.ENOENT, "")
        return (words[0] if words else "", words[1] if len(words) > 1 else "")

    def objects(self, *, anew: bool = False) -> dict[Path, Allocation]:
        with self._guard:
            if anew or time.monotonic() - self._listed_at > LISTED_SECONDS:
                found = call_memory(self.memory.objects, self.run)
                self._listed = {(each.run, each.name): each for each in found if each.name}
                self._listed_at = time.monotonic()
            return self._listed

    def find(self, path: Path) -> Allocation:
        found = self.objects().get(path) or self.objects(anew=True).get(path)
        if found is None:
            raise OSError(errno.ENOENT, "")
        return found

    def names(self, run: str) -> list[str]:
        """Returns the entries of a directory."""
        paths = [*self.objects(anew=True), *self._pending]
        if not run and not self.run:
            return sorted({each for each, _ in paths})
        return sorted({name for each, name in paths if each == run})

    def describe(self, path: str) -> dict[str, int]:
        """Returns the attributes for `stat`."""
        run, name = self.path_of(path)
        times = {"st_atime": self._since, "st_mtime": self._since, "st_ctime": self._since}
        owner = {"st_uid": os.geteuid(), "st_gid": os.getegid(), **times}
        if not name:
            if run and run != self.run and run not in self.names(""):
                raise OSError(errno.ENOENT, "")
            return {"st_mode": stat.S_IFDIR | 0o700, "st_nlink": 2, **owner}
        pending = self._pending.get((run, name))
        size = pending.size() if pending is not None else self.find((run, name)).size
        return {"st_mode": stat.S_IFREG | 0o600, "st_nlink": 1, "st_size": size, **owner}

    # ---- opening and closing -------------------------------------------------------------------------------------

    def open(self, path: str, *, anew: bool) -> int:
        """Opens a file and returns its number; `anew`: its former content is dropped."""
        where = self.path_of(path)
        with self._guard:
            if not where[1]:
                raise OSError(errno.EISDIR, "")
            pending = self._pending.get(where)
            if pending is not None and anew:
                os.ftruncate(pending.descriptor, 0)
                pending.is_changed = True
            elif anew:
                pending = self._pending[where] = PendingFile(where)
            opened: OpenedMemoryFile | PendingFile = pending or OpenedMemoryFile(self.find(where))
            if isinstance(opened, PendingFile):
                opened.opened += 1
            number, self._next = self._next, self._next + 1
            self._open[number] = opened
            return number

    def keep(self, number: int) -> None:
        """Turns the temporary file of an open file into an allocation."""
        with self._guard:
            opened = self._open[number]
            if not isinstance(opened, PendingFile) or opened.is_removed or not opened.is_changed or not opened.size():
                return
            view = view_of(opened.descriptor, opened.size())
            run, name = opened.path
            before = self.objects(anew=True).get(opened.path)
            if before is not None and before.size == len(view):
                call_memory(self.memory.put, before, 0, view)
            elif before is None:
                call_memory(self.memory.alloc, len(view), view, name=name, run=run)
            else:  # the old allocation stays until the new one exists
                replicas, instead = before.replicas, before.id
                call_memory(self.memory.alloc, len(view), view, name=name, run=run, replicas=replicas, instead=instead)
                call_memory(self._free_if_there, before)
            opened.is_changed = False
            self._listed_at = 0.0

    def close(self, number: int) -> None:
        with self._guard:
            opened = self._open.pop(number)
            if isinstance(opened, PendingFile):
                opened.opened -= 1
                if not opened.opened and (opened.size() or opened.is_removed):
                    if self._pending.get(opened.path) is opened:
                        del self._pending[opened.path]
                    opened.close()

    # ---- content -------------------------------------------------------------------------------------------------

    def read(self, number: int, size: int, offset: int) -> bytes:
        opened = self._open[number]
        if isinstance(opened, PendingFile):
            return os.pread(opened.descriptor, size, offset)
        return call_memory(opened.read, self.memory, size, offset)

    def write(self, number: int, data: bytes, offset: int) -> int:
        opened = self._open[number]
        if isinstance(opened, PendingFile):
            write_all(opened.descriptor, memoryview(data), offset)
            opened.is_changed = True
            return len(data)
        if offset + len(data) > opened.allocation.size:
            with self._guard:
                pending = self._copy_to_pending(opened.allocation, opened.allocation.size)
            write_all(pending.descriptor, memoryview(data), offset)
            return len(data)
        call_memory(self.memory.put, opened.allocation, offset, data)
        with self._guard:
            for each in self._open.values():
                if isinstance(each, OpenedMemoryFile) and each.allocation.id == opened.allocation.id:
                    each.forget()
        return len(data)

    def cut(self, path: str, length: int) -> None:
        """Changes the length of a file."""
        where = self.path_of(path)
        with self._guard:
            pending = self._pending.get(where)
            if pending is None:
                found = self.find(where)
                if found.size == length:
                    return
                self._copy_to_pending(found, length)
                if not any(isinstance(each, PendingFile) and each.path == where for each in self._open.values()):
                    number = self.open(path, anew=False)
                    try:
                        self.keep(number)
                    finally:
                        self.close(number)
                return
            os.ftruncate(pending.descriptor, length)
            pending.is_changed = True

    def _copy_to_pending(self, found: Allocation, length: int) -> PendingFile:
        """Copies a file to a temporary one with another length; open files write there from now on."""
        content = call_memory(self.memory.get, found, 0, min(length, found.size))
        pending = self._pending[found.run, found.name] = PendingFile((found.run, found.name))
        write_all(pending.descriptor, content, 0)
        os.ftruncate(pending.descriptor, length)
        for each, opened in self._open.items():
            if isinstance(opened, OpenedMemoryFile) and opened.allocation.id == found.id:
                self._open[each] = pending
                pending.opened += 1
        return pending

    def _free_if_there(self, found: Allocation) -> None:
        try:
            self.memory.free(found)
        except (FreedError, UnknownError):
            pass  # another process has just freed it

    def remove(self, path: str) -> None:
        where = self.path_of(path)
        with self._guard:
            pending = self._pending.get(where)
            if pending is None or where in self.objects(anew=True):
                call_memory(self.memory.free, self.find(where))
            if pending is not None:
                del self._pending[where]
                pending.is_removed = True
                if not pending.opened:
                    pending.close()
            self._listed_at = 0.0


def call_memory(question: Callable[P, R], *words: P.args, **more: P.kwargs) -> R:
    """Calls the memory; translates its errors into file system errors, and prints the message for the user of the
    mount."""
    try:
        return question(*words, **more)
    except InputError as error:
        print(f"shoal mount: {error}", file=sys.stderr, flush=True)
        number = errno.EIO
        if isinstance(error, FullError):
            number = errno.ENOSPC
        elif isinstance(error, FreedError | UnknownError):
            number = errno.ESTALE
        raise OSError(number, os.strerror(number)) from None


DEVICE = "/dev/fuse"
REQUEST_BYTES = 1 << 20
"""Maximum bytes of a request of the kernel."""

THREADS = 4
_MOST_SAID = 4096
_LOOP_ENDED = 8
"""Exit status of libfuse's loop when a signal, not an unmount, has ended it."""


class Operations:
    """The callbacks of libfuse; paths are relative to the mount point."""

    use_ns = True

    def __init__(self, files: MemoryFiles, begun: Callable[[], object]) -> None:
        """`begun` is called when the mount is ready."""
        self._files, self._begun = files, begun

    def init_with_config(self, connection: Any, config: Any) -> None:
        """Configures direct I/O: programs' requests arrive unsplit, whereas the kernel's cache would split them into
        small ones."""
        self._begun()
        if config is not None:
            config.direct_io = True
            config.hard_remove = True  # an object cannot be renamed until it is closed
        if connection is not None:
            connection.max_write = connection.max_read = REQUEST_BYTES

    def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
        return self._files.describe(path)

    def readdir(self, path: str, fh: int) -> Iterator[str]:
        run, name = self._files.path_of(path)
        if name:
            raise OSError(errno.ENOTDIR, "")
        yield from (".", "..", *self._files.names(run))

    def open(self, path: str, flags: int) -> int:
        return self._files.open(path, anew=bool(flags & os.O_TRUNC))

    def create(self, path: str, mode: int) -> int:
        run, _ = self._files.path_of(path)
        if run != self._files.run and run not in self._files.names(""):
            raise OSError(errno.EPERM, "")
        return self._files.open(path, anew=True)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return self._files.read(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        return self._files.write(fh, data, offset)

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        self._files.cut(path, length)
        return 0

    def flush(self, path: str, fh: int) -> int:
        self._files.keep(fh)
        return 0

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        self._files.keep(fh)
        return 0

    def release(self, path: str, fh: int) -> int:
        self._files.close(fh)
        return 0

    def unlink(self, path: str) -> int:
        self._files.remove(path)
        return 0

    def rename(self, old: str, new: str) -> int:
        """Objects cannot be renamed; programs such as `mv` copy instead."""
        raise OSError(errno.EXDEV, "")

    def chmod(self, path: str, mode: int) -> int:
        return 0

    def chown(self, path: str, uid: int, gid: int) -> int:
        return 0

    def utimens(self, path: str, times: object = None) -> int:
        return 0


def library() -> Any:
    """Imports mfusepy, or explains what is missing."""
    os.environ.setdefault("FUSE_LIBRARY_NAME", "fuse3")  # by default it prefers libfuse 2, whose requests are small
    try:
        return import_module("mfusepy")
    except ImportError:
        raise InputError("a mount needs mfusepy, which is not installed", remedy="pip install 'shoal[mount]'") from None
    except OSError:
        raise InputError(
            "a mount needs libfuse 3, which is not installed", remedy="install the system's package fuse3"
        ) from None


def check_permitted(folder: str) -> None:
    """Raises `InputError` if a mount is not possible there."""
    if not os.path.isdir(folder):
        raise InputError(f"{folder!r} is not a directory", remedy="create it first")
    if os.path.ismount(folder):
        raise InputError(f"{folder!r} is already a mount point", remedy=f"unmount it with 'fusermount3 -u {folder}'")
    try:
        os.close(os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        raise _not_permitted(error.strerror or str(error)) from None
    if os.geteuid() != 0 and shutil.which("fusermount3") is None:
        raise InputError("a mount needs fusermount3, which is not installed", remedy="install the package fuse3")


def _not_permitted(why: str) -> InputError:
    return InputError(
        f"FUSE is not permitted here: {why}",
        remedy="ask for access to /dev/fuse (a container needs the device and SYS_ADMIN), or use handles instead",
    )


class _CapturedStderr:
    """Captures what libfuse writes to standard error while it mounts, so that errors appear as messages of Shoal."""

    def __init__(self) -> None:
        self._error = os.dup(2)
        self._said = os.memfd_create("said", os.MFD_CLOEXEC)
        os.dup2(self._said, 2)

    def end(self) -> str:
        """Stops the capture; returns the last line."""
        if self._error < 0:
            return ""
        os.dup2(self._error, 2)
        lines = os.pread(self._said, _MOST_SAID, 0).decode(errors="replace").split("\n")
        os.close(self._error)
        os.close(self._said)
        self._error = -1
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def mount(memory: Memory, run: str, folder: str) -> None:
    """Mounts the objects until the directory is unmounted or this process gets a signal."""
    fuse = library()
    check_permitted(folder)
    pending = _CapturedStderr()
    mounted: list[str] = []

    def begin() -> None:
        mounted.append(pending.end())

    try:
        fuse.FUSE(
            Operations(MemoryFiles(memory, run), begin),
            folder,
            foreground=True,
            fsname="shoal",
            subtype="shoal",
            max_read=REQUEST_BYTES,
            max_threads=THREADS,
        )
    except RuntimeError as error:
        if mounted and error.args == (_LOOP_ENDED,):
            return
        raise _not_permitted(pending.end() or f"libfuse ended with status {error}") from None
    finally:
        pending.end()
