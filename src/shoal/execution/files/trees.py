"""Directory trees: lists them, computes one signature for the whole tree, removes them, at any depth.

The listing is iterative and opens directories by descriptor in short pieces, so neither the recursion limit nor the
length limit of a path (4,096 bytes) bounds the depth. Entries that vanish meanwhile are skipped. Symbolic links are
listed as links and never followed into directories: a link to `/` must not make a task read the whole disk.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import blake2b
from typing import NamedTuple, TypeVar

import msgspec

from shoal.ledger.ownership import DirectoryEntry, Kind

ALWAYS_LEFT_OUT = frozenset({".shoal", "__pycache__"})
"""Directories that are never part of a tree: our own, and Python's compiled modules."""
_PIECE = 1000
"""Maximum characters of a path opened at once: at most 4,000 bytes."""


class TreeEntry(NamedTuple):
    """An entry below a directory."""

    name: str
    """Relative to the listed directory, with `/` between components."""
    kind: Kind
    size: int
    """Bytes of a file, or of a link's target file; 0 for everything else, -1 for a dangling link."""
    number: int
    """For a file (also behind a link): its modification time in nanoseconds, or a number made from its content.
    Otherwise 0."""
    target: str
    """The target of a link; empty for everything else."""


def list_tree(
    directory: str,
    *,
    by_content: bool = False,
    is_left_out: Callable[[str], bool] | None = None,
    always_left_out: Container[str] = ALWAYS_LEFT_OUT,
) -> Iterator[TreeEntry]:
    """Yields everything below the directory, in an order that depends on the names only.

    Calls `is_left_out` with each relative name; everything below a directory that is left out is left out, too.
    """
    pending = [""]
    while pending:
        prefix = pending.pop()
        try:
            descriptor = open_directory(directory, prefix)
        except OSError:
            continue  # removed in the meantime, or no permission
        inside = prefix + "/" if prefix else ""
        below = []
        try:
            for name in _names(descriptor):
                whole = inside + name
                if name in always_left_out or (is_left_out is not None and is_left_out(whole)):
                    continue
                entry = _look(descriptor, name, whole, by_content)
                if entry is not None:
                    yield entry
                    if entry.kind == "directory":
                        below.append(whole)
        finally:
            os.close(descriptor)
        pending += reversed(below)


def open_directory(directory: str, below: str = "") -> int:
    """Opens a directory, or one below it, with a path of any length; the caller closes the descriptor.

    Only `directory` itself may be a symbolic link or contain one.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    descriptor = _open_far(directory, flags)
    for piece in _pieces(below):
        try:
            following = os.open(piece, flags | os.O_NOFOLLOW, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = following
    return descriptor


def _open_far(path: str, flags: int) -> int:
    """Like `os.open`, in several steps if the path is too long for one."""
    if len(path) <= _PIECE:
        return os.open(path, flags)
    descriptor = os.open("/" if path.startswith("/") else ".", flags)
    for piece in _pieces(path.lstrip("/")):
        try:
            following = os.open(piece, flags, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = following
    return descriptor


@contextmanager
def reachable(path: str) -> Iterator[str]:
    """Yields a path that the system accepts for `path`, which may be too long."""
    if len(path) <= _PIECE:
        yield path
        return
    parent, last = os.path.split(path)
    descriptor = open_directory(parent)
    try:
        yield f"/proc/self/fd/{descriptor}/{last}"
    finally:
        os.close(descriptor)


def make_directories(path: str) -> None:
    """Like `os.makedirs(exist_ok=True)`, which recurses for each level."""
    missing = []
    while path and not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for each in reversed(missing):
        try:
            os.mkdir(each)
        except FileExistsError:
            if not os.path.isdir(each):
                raise


def _pieces(path: str) -> Iterator[str]:
    while len(path) > _PIECE:
        cut = path.rfind("/", 0, _PIECE)
        if cut < 0:
            break
        yield path[:cut]
        path = path[cut + 1 :]
    if path:
        yield path


def _names(descriptor: int) -> list[str]:
    try:
        return sorted(os.listdir(descriptor))
    except OSError:
        return []


def _look(descriptor: int, name: str, whole: str, by_content: bool) -> TreeEntry | None:
    try:
        found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode):
            return TreeEntry(whole, "directory", 0, 0, "")
        if stat.S_ISREG(found.st_mode):
            return TreeEntry(whole, "file", found.st_size, _number(descriptor, name, found, by_content), "")
        if not stat.S_ISLNK(found.st_mode):
            return TreeEntry(whole, "other", 0, 0, "")
        target = os.readlink(name, dir_fd=descriptor)
    except OSError:
        return None
    try:
        found = os.stat(name, dir_fd=descriptor)
    except OSError:
        return TreeEntry(whole, "link", -1, 0, target)
    if stat.S_ISREG(found.st_mode):
        return TreeEntry(whole, "link", found.st_size, _number(descriptor, name, found, by_content), target)
    return TreeEntry(whole, "link", 0, 0, target)


def _number(descriptor: int, name: str, found: os.stat_result, by_content: bool) -> int:
    if not by_content:
        return found.st_mtime_ns
    try:
        return number_of_content(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=descriptor))
    except OSError:
        return found.st_mtime_ns  # not readable: a change at least shows in the modification time


def number_of_content(descriptor: int) -> int:
    """Returns a 62-bit number made from the bytes of an open file, and closes it."""
    state = blake2b(digest_size=8)
    with open(descriptor, "rb", buffering=0) as file:
        while piece := file.read(1 << 20):
            state.update(piece)
    return int.from_bytes(state.digest(), "little") >> 2


def tree_signature(
    directory: str, *, by_content: bool = False, is_left_out: Callable[[str], bool] | None = None
) -> tuple[int, int]:
    """Returns the total bytes of all files below the directory, and a 62-bit number made from its listing."""
    return signature_of_entries(list_tree(directory, by_content=by_content, is_left_out=is_left_out))


def signature_of_entries(entries: Iterable[TreeEntry]) -> tuple[int, int]:
    """Like `tree_signature`, for an existing listing."""
    total = 0
    state = blake2b(digest_size=8)
    for name, kind, size, number, target in entries:
        total += max(size, 0)
        line = f"{kind}\0{name}\0{size}\0{number}\0{target}\0"
        state.update(line.encode("utf-8", "surrogateescape"))
    return total, int.from_bytes(state.digest(), "little") >> 2


def as_listing(entries: Iterable[TreeEntry]) -> dict[str, DirectoryEntry]:
    """Returns the entries by name, for a ledger and for comparisons."""
    return {each.name: DirectoryEntry(each.kind, each.size, each.number, each.target) for each in entries}


class OwnVersions:
    """Names that have a version of their own in a workflow, and so are left out of the directories that contain them.

    Declared outputs change during a run, and tasks that read one declare it; they must not make a directory stale.
    Names are normalised here, because stand-ins for other programs take them as the user wrote them.
    """

    def __init__(self, made: Iterable[str], base: str) -> None:
        self._base = base.rstrip("/") + "/"
        self._names = {name if _is_plain(name) else self._plain(name) for name in made}

    def _plain(self, name: str) -> str:
        whole = os.path.normpath(os.path.join(self._base, name))
        return whole.removeprefix(self._base)

    def below(self, directory: str) -> Callable[[str], bool]:
        """Returns a function that tells whether a name relative to this directory has a version of its own."""
        names, base = self._names, self._base
        whole = os.path.normpath(os.path.join(base, directory)) + "/"
        if whole.startswith(base):
            prefix = whole[len(base) :]
            return lambda name: prefix + name in names
        return lambda name: (whole + name).removeprefix(base) in names


def _is_plain(name: str) -> bool:
    """Returns whether `normpath` certainly leaves a relative name unchanged."""
    return name[:1] not in "./" and "//" not in name and "/." not in name and name[-1:] != "/"


T = TypeVar("T")
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: str, *, force: bool = True) -> None:
    """Removes a file, a link or a directory tree; with `force` also from read-only directories.

    Does nothing if it does not exist. Raises OSError if something cannot be removed, after removing everything else.
    """
    path = path.rstrip("/") or path
    try:
        is_directory = stat.S_ISDIR(os.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return
    if not is_directory:
        os.unlink(path)
        return
    remover = _Remover(force)
    _from_the_bottom(path, remover.enter, remover.remove_files, remover.remove_folder)
    if remover.error is not None:
        raise remover.error
    os.rmdir(path)


def remove_quietly(path: str) -> None:
    """Like `remove_tree`; ignores errors."""
    with suppress(OSError):
        remove_tree(path)


def remove_empty_directories(top: str) -> None:
    """Removes every empty directory from here down, including this one; everything else stays, as does what cannot be
    removed."""
    try:
        _from_the_bottom(top, _enter, _folders_in, _remove_if_empty)
        os.rmdir(top)
    except OSError:
        pass  # not empty, or does not exist


# ---- the way down and up -------------------------------------------------------------------------------------------


class _Level(msgspec.Struct):
    """The current directory or one of its ancestors during the walk."""

    name: str
    identity: tuple[int, int]
    folders: list[str]
    """Its subdirectories that are still to be entered."""


def _from_the_bottom(
    top: str,
    enter: Callable[[str, int | None], int],
    arrive: Callable[[int], list[str]],
    leave: Callable[[str, int], None],
) -> None:
    """Visits all directories from `top` down.

    `enter` opens one by its name in an open one; `arrive` returns the names of the subdirectories to enter; `leave` is
    called for each one below `top`, with its name and its open parent, when all below it have been left, and for those
    that cannot be entered.
    """
    here = enter(top, None)
    try:
        levels = [_Level("", _identity(here), arrive(here))]
        while True:
            level = levels[-1]
            if level.folders:
                name = level.folders.pop()
                try:
                    here = _moved(here, enter(name, here))
                except OSError:
                    leave(name, here)
                    continue
                levels.append(_Level(name, _identity(here), []))
                levels[-1].folders = arrive(here)
                continue
            levels.pop()
            if not levels:
                return
            here = _moved(here, os.open("..", _FLAGS, dir_fd=here))
            if _identity(here) != levels[-1].identity:
                raise OSError(errno.ESTALE, "was moved while it was being removed", level.name)
            leave(level.name, here)
    finally:
        os.close(here)


def _moved(old: int, new: int) -> int:
    os.close(old)
    return new


def _identity(folder: int) -> tuple[int, int]:
    found = os.fstat(folder)
    return found.st_dev, found.st_ino


def _enter(name: str, around: int | None) -> int:
    return os.open(name, _FLAGS, dir_fd=around)


def _entries(folder: int) -> tuple[list[str], list[str]]:
    """Returns the names of directories, and of everything else."""
    folders: list[str] = []
    others: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            (folders if entry.is_dir(follow_symlinks=False) else others).append(entry.name)
    return folders, others


# ---- removing everything -------------------------------------------------------------------------------------------


class _Remover:
    """Removes the content of directories; continues after an error, and keeps the first."""

    def __init__(self, force: bool) -> None:
        self.error: OSError | None = None
        self._force = force

    def enter(self, name: str, around: int | None) -> int:
        try:
            return _enter(name, around)
        except PermissionError:
            if not self._force:
                raise
        if around is not None:
            os.fchmod(around, stat.S_IRWXU)
        os.chmod(name, stat.S_IRWXU, dir_fd=around)
        return _enter(name, around)

    def remove_files(self, folder: int) -> list[str]:
        folders, others = self._do(folder, lambda: _entries(folder)) or ([], [])
        for name in others:
            self._do(folder, partial(os.unlink, name, dir_fd=folder))
        return folders

    def remove_folder(self, name: str, around: int) -> None:
        self._do(around, partial(os.rmdir, name, dir_fd=around))

    def _do(self, folder: int, action: Callable[[], T]) -> T | None:
        """Performs an action in a directory; makes the directory writable first if it is read-only."""
        try:
            try:
                return action()
            except PermissionError:
                if not self._force:
                    raise
                os.fchmod(folder, stat.S_IRWXU)
                return action()
        except FileNotFoundError:
            pass  # another process has removed it
        except OSError as error:
            self.error = self.error or error
        return None


# ---- removing what is empty ----------------------------------------------------------------------------------------


def _folders_in(folder: int) -> list[str]:
    try:
        return _entries(folder)[0]
    except OSError:
        return []


def _remove_if_empty(name: str, around: int) -> None:
    try:
        os.rmdir(name, dir_fd=around)
    except OSError:
        pass
