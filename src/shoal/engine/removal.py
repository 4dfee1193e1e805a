"""Removes trees of any depth.

The functions of Python's library go down by calling themselves, and end at about 1,000 levels; a path that names all
levels at once ends at PATH_MAX. Here each step is one level, from an open directory to the next one, and back by `..`,
so that one descriptor is enough. No symbolic link is followed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

import msgspec

T = TypeVar("T")
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: str, *, force: bool = True) -> None:
    """Removes a file, a link or a directory with everything in it, by `force` also from directories that are read-only.

    Nothing is done if nothing is there. OSError if something cannot be removed; all that can be is removed before.
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
    """As `remove_tree`; what cannot be removed stays."""
    with suppress(OSError):
        remove_tree(path)


def remove_empty_directories(top: str) -> None:
    """Removes every directory from here down in which nothing is left, this one included; whatever else there is stays,
    as does what cannot be removed."""
    try:
        _from_the_bottom(top, _enter, _folders_in, _remove_if_empty)
        os.rmdir(top)
    except OSError:
        pass  # something is left in it, or it is not there


# ---- the way down and up -------------------------------------------------------------------------------------------


class _Level(msgspec.Struct):
    """A directory around the one where we are, or that one."""

    name: str
    identity: tuple[int, int]
    folders: list[str]
    """Those in it that are still to be entered."""


def _from_the_bottom(
    top: str,
    enter: Callable[[str, int | None], int],
    arrive: Callable[[int], list[str]],
    leave: Callable[[str, int], None],
) -> None:
    """Goes through all directories from `top` down.

    `enter` opens one by its name in an open one; `arrive` returns the names of those in it that are to be entered;
    `leave` is called for each below `top`, with its name and the open one around it, when all below it have been left,
    and for those that cannot be entered.
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
                raise OSError(errno.ESTALE, "was moved while it was removed", level.name)
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
    """Names of directories, and of everything else."""
    folders: list[str] = []
    others: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            (folders if entry.is_dir(follow_symlinks=False) else others).append(entry.name)
    return folders, others


# ---- removing everything -------------------------------------------------------------------------------------------


class _Remover:
    """Removes what is in directories; goes on after an error, and keeps the first."""

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
        """Does something in a directory, and if that is read-only, makes it ours to write first."""
        try:
            try:
                return action()
            except PermissionError:
                if not self._force:
                    raise
                os.fchmod(folder, stat.S_IRWXU)
                return action()
        except FileNotFoundError:
            pass  # somebody else has removed it
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
