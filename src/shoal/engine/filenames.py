"""Names of files below the workflow's directory, whatever way leads there."""

from __future__ import annotations

import os
import stat

from shoal.model.filenames import RealDirectory, Relative


def relative_to(base: str) -> Relative:
    """A function that turns an absolute name below `base` into one relative to it, also through symbolic links."""
    real_base = os.path.realpath(base)
    known: dict[str, str] = {}

    def relative(name: str) -> str:
        found = _below(name, base)
        if found is not None:
            return found
        folder, _, last = name.rpartition("/")
        real = known.get(folder)
        if real is None:  # many files stand in few directories, and each look costs a system call per part of the name
            real = known[folder] = os.path.realpath(folder or "/")
        return _below(os.path.join(real, last), real_base) or name

    return relative


def _below(name: str, top: str) -> str | None:
    if name == top:
        return "."
    inside = name.startswith(top if top.endswith("/") else top + "/")
    return name[len(top) :].lstrip("/") if inside else None


def real_directories() -> RealDirectory:
    """Resolves names of directories, seen from the current one, which is the workflow's own."""
    base = os.path.realpath(os.curdir)
    known: dict[str, str] = {}
    direct: set[str] = set()
    absent: set[str] = set()

    def is_direct(name: str) -> bool:
        """Whether neither it nor a directory around it is a link. Each directory is looked at once: many names have
        the same directories around them."""
        unknown = []
        while name and name not in direct:
            unknown.append(name)
            name = name.rpartition("/")[0]
        for each in reversed(unknown):
            if name not in absent:
                try:
                    if stat.S_ISLNK(os.lstat(each).st_mode):
                        return False
                except OSError:
                    absent.add(each)
            else:
                absent.add(each)  # nothing is below what is not there
            direct.add(each)
            name = each
        return True

    def real(name: str) -> str:
        found = known.get(name)
        if found is None:
            if name in direct or (".." not in name.split("/") and is_direct(name)):
                return name
            whole = os.path.realpath(name)
            inside = _below(whole, base)
            found = known[name] = whole if inside is None else "" if inside == "." else inside
        return found

    return real


def relative_here() -> Relative:
    """The same for the current directory, which is the workflow's own once it is loaded."""
    return relative_to(os.getcwd())
