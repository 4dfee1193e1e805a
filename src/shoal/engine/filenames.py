"""Names of files below the workflow's directory, whatever way leads there."""

from __future__ import annotations

import os

from shoal.model.filenames import Relative


def relative_to(base: str) -> Relative:
    """A function that turns an absolute name below `base` into one relative to it, also through symbolic links."""
    real_base = os.path.realpath(base)
    known: dict[str, str] = {}

    def below(name: str, top: str) -> str | None:
        if name == top:
            return "."
        inside = name.startswith(top if top.endswith("/") else top + "/")
        return name[len(top) :].lstrip("/") if inside else None

    def relative(name: str) -> str:
        found = below(name, base)
        if found is not None:
            return found
        folder, _, last = name.rpartition("/")
        real = known.get(folder)
        if real is None:  # many files stand in few directories, and each look costs a system call per part of the name
            real = known[folder] = os.path.realpath(folder or "/")
        return below(os.path.join(real, last), real_base) or name

    return relative


def relative_here() -> Relative:
    """The same for the current directory, which is the workflow's own once it is loaded."""
    return relative_to(os.getcwd())
