"""What a crate says of a run, as plain data: whoever has gathered this can have the metadata built."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from urllib.parse import quote

import msgspec


class Person(msgspec.Struct, frozen=True):
    """Who ran the workflow."""

    name: str
    url: str = ""
    """As `https://orcid.org/0000-0002-1825-0097`; empty if there is none."""


class Licence(msgspec.Struct, frozen=True):
    """What others may do with the crate."""

    name: str
    url: str = ""
    description: str = ""


class WorkflowFile(msgspec.Struct, frozen=True):
    """The file that was run; it is always in the crate."""

    place: str
    name: str
    language: str
    encoding: str
    size: int
    sha256: str


class FileFacts(msgspec.Struct, frozen=True):
    """A file or directory that the run read or made."""

    id: str
    name: str
    """As the workflow writes it, fit to be shown."""
    is_inside: bool
    """Whether it is in the crate; else the crate only tells of it."""
    is_directory: bool = False
    size: int = -1
    """Bytes; -1 if that is not known."""
    sha256: str = ""
    encoding: str = ""
    note: str = ""
    """Why it is not as the run left it, if it is not."""


class TaskFacts(msgspec.Struct, frozen=True):
    """The last attempt of a task, or all tasks of a category together."""

    number: int
    name: str
    step: int
    command: str
    started: float
    ended: float
    error: str
    """Why it did not succeed; empty if it did."""
    attempts: int
    cpu: float
    memory: int
    """Peak in bytes; 0 if it is not known."""
    node: int = -1
    """Position of the node; -1 if there were several."""
    inputs: Sequence[str] = ()
    outputs: Sequence[str] = ()
    environment: tuple[tuple[str, str | None], ...] = ()
    """Variables with their values; None for one that is not told."""
    tasks: int = 1
    """How many tasks this stands for."""
    failed: int = 0
    """How many of these have failed, if it stands for several."""


class NodeFacts(msgspec.Struct, frozen=True):
    """A machine that took part."""

    name: str
    cores: float
    memory: int


class RunFacts(msgspec.Struct):
    """Everything."""

    name: str
    description: str
    published: float
    author: Person
    licence: Licence
    workflow: WorkflowFile
    version: str
    """Of Shoal, when it ran."""
    run: str
    started: float
    ended: float
    error: str
    """Why the run did not come to a good end; empty if it did."""
    words: Sequence[str]
    """Targets and `name=value` parameters it was run with."""
    nodes: Sequence[NodeFacts]
    steps: Sequence[str]
    """Categories; tasks refer to them by position."""
    positions: Sequence[int] | None
    """Of the steps in the order of execution; None if they have none."""
    numbers: Sequence[int]
    """Of the tasks, in the order in which `tasks` has them."""
    step_of: Sequence[int]
    """By the same order."""
    tasks: Iterable[TaskFacts]
    """Read once."""
    files: Iterable[FileFacts]
    """Read once."""
    parts: Sequence[str]
    """Identifiers of the files that are in the crate."""
    inputs: Sequence[str]
    outputs: Sequence[str]
    """Identifiers of what the workflow as a whole has read and made."""


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


class CratePaths:
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


def positions(count: int, needs: Sequence[tuple[int, int]]) -> list[int] | None:
    """For each of `count` steps a number above those of all steps that it needs, by pairs of (needed, needing).

    None if steps need each other in a circle, as categories may where tasks do not. A step that needs itself has tasks
    that come one after another, which says nothing about its place among the others.
    """
    later: list[list[int]] = [[] for _ in range(count)]
    pending = [0] * count
    for needed, needing in dict.fromkeys(needs):
        if needed != needing:
            later[needed].append(needing)
            pending[needing] += 1
    found = [0] * count
    ready = [step for step in range(count) if not pending[step]]
    for step in ready:
        for needing in later[step]:
            found[needing] = max(found[needing], found[step] + 1)
            pending[needing] -= 1
            if not pending[needing]:
                ready.append(needing)
    return found if len(ready) == count else None
