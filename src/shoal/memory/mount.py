"""Shows memory objects as files with FUSE, through mfusepy and libfuse 3. What the operations mean is in `files`."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from shoal.errors import InputError
from shoal.memory.files import Files
from shoal.memory.handle import Memory

DEVICE = "/dev/fuse"
REQUEST_BYTES = 1 << 20
"""The most that the kernel asks for or brings at once."""

THREADS = 4
_MOST_SAID = 4096
_LOOP_ENDED = 8
"""The status of libfuse after its loop has ended otherwise than by unmounting: a signal told it to."""


class Operations:
    """What libfuse calls; paths begin at the mount."""

    use_ns = True

    def __init__(self, files: Files, begun: Callable[[], object]) -> None:
        """`begun` is called when it is mounted."""
        self._files, self._begun = files, begun

    def init_with_config(self, connection: Any, config: Any) -> None:
        """Programs' own requests come as they are: with the kernel's cache they would come in small ones."""
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
        """Objects keep their names; programs such as `mv` copy instead."""
        raise OSError(errno.EXDEV, "")

    def chmod(self, path: str, mode: int) -> int:
        return 0

    def chown(self, path: str, uid: int, gid: int) -> int:
        return 0

    def utimens(self, path: str, times: object = None) -> int:
        return 0


def library() -> Any:
    """mfusepy, or one sentence about what is missing."""
    os.environ.setdefault("FUSE_LIBRARY_NAME", "fuse3")  # it would rather have the old one, whose requests are small
    try:
        return import_module("mfusepy")
    except ImportError:
        raise InputError("a mount needs mfusepy, which is not installed", remedy="pip install 'shoal[mount]'") from None
    except OSError:
        raise InputError(
            "a mount needs libfuse 3, which is not installed", remedy="install the system's package fuse3"
        ) from None


def check_permitted(folder: str) -> None:
    """One sentence if a mount there cannot be had."""
    if not os.path.isdir(folder):
        raise InputError(f"{folder!r} is not a folder", remedy="make it first: objects are shown in it")
    if os.path.ismount(folder):
        raise InputError(
            f"something is mounted on {folder!r} already", remedy=f"end that with 'fusermount3 -u {folder}'"
        )
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


class _Aside:
    """Takes what libfuse writes to standard error while it mounts: we say it in words of ours, or not at all."""

    def __init__(self) -> None:
        self._error = os.dup(2)
        self._said = os.memfd_create("said", os.MFD_CLOEXEC)
        os.dup2(self._said, 2)

    def end(self) -> str:
        """The last line that was said; from now on it is written where it should be."""
        if self._error < 0:
            return ""
        os.dup2(self._error, 2)
        lines = os.pread(self._said, _MOST_SAID, 0).decode(errors="replace").split("\n")
        os.close(self._error)
        os.close(self._said)
        self._error = -1
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def mount(memory: Memory, run: str, folder: str) -> None:
    """Shows the objects until the folder is unmounted or this process is told to end."""
    fuse = library()
    check_permitted(folder)
    aside = _Aside()
    mounted: list[str] = []

    def begin() -> None:
        mounted.append(aside.end())

    try:
        fuse.FUSE(
            Operations(Files(memory, run), begin),
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
        raise _not_permitted(aside.end() or f"libfuse ended with status {error}") from None
    finally:
        aside.end()
