"""Identifiers of a crate's entities, and the places of files in it.

An identifier is a URI reference, so whatever a user may write is percent-encoded. Different texts have different
encodings, so different things have different identifiers. Whether a file is there at all is left to others.
"""

from __future__ import annotations

from urllib.parse import quote

INSIDE, OUTSIDE = "data", "outside"
"""Where files of the workflow's directory are put in a crate, and where all others are."""
_RESERVED = (INSIDE, OUTSIDE, "workflow")
_FIRST_ESCAPE, _LAST_ESCAPE = 0xDC80, 0xDCFF
"""How Python writes bytes of file names that are no UTF-8."""


def encoded(text: str) -> str:
    """The text as part of a URI; slashes stay."""
    return quote(text.encode("utf-8", "surrogateescape"), safe="/")


def fragment(kind: str, text: str) -> str:
    """The identifier of something that is only described in the crate, as `#tool-align`."""
    return f"#{kind}-{encoded(text)}"


def path_in_crate(name: str, base: str) -> str:
    """Where a file lies in a crate, by the name that a workflow in the directory `base` gives it; never beside it."""
    root = _resolved(base)
    parts = _resolved(name if name.startswith("/") else f"{base}/{name}")
    if len(parts) > len(root) and parts[: len(root)] == root:
        return "/".join([INSIDE, *map(storable, parts[len(root) :])])
    return "/".join([OUTSIDE, *map(storable, parts)])


def _resolved(path: str) -> list[str]:
    """The parts of an absolute path, without `.` and `..`; links are not looked at."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return parts


def storable(part: str) -> str:
    """The part as ZIP files and JSON can hold it, too."""
    if part.isascii():
        return part
    return "".join(f"%{ord(c) - 0xDC00:02X}" if _FIRST_ESCAPE <= ord(c) <= _LAST_ESCAPE else c for c in part)


def workflow_place(name: str) -> str:
    """Where a workflow file of this name lies in the crate: at its top, unless something else is there."""
    reserved = name in _RESERVED or name.startswith("ro-crate-")
    return f"workflow/{storable(name)}" if reserved else storable(name)


class Places:
    """Places in one crate, of which no two are the same."""

    def __init__(self, taken: str) -> None:
        self._taken = {taken}

    def give(self, wanted: str) -> str:
        """The place, or one beside it if it is taken."""
        place, number = wanted, 2
        while place in self._taken:
            place, number = f"{wanted}~{number}", number + 1
        self._taken.add(place)
        return place
