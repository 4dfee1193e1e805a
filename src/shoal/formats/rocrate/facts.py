"""The facts of a run that its crate describes, as plain data, and the names of files in a crate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from urllib.parse import quote

import msgspec


class Person(msgspec.Struct, frozen=True):
    """The person who ran the workflow."""

    name: str
    url: str = ""
    """A URL such as `https://orcid.org/0000-0002-1825-0097`; may be empty."""


class Licence(msgspec.Struct, frozen=True):
    """The licence of the crate."""

    name: str
    url: str = ""
    description: str = ""


class WorkflowFile(msgspec.Struct, frozen=True):
    """The workflow file; it is always in the crate."""

    place: str
    name: str
    language: str
    encoding: str
    size: int
    sha256: str


class FileFacts(msgspec.Struct, frozen=True):
    """A file or directory that the run has read or made."""

    id: str
    name: str
    """The name in the workflow, in printable form."""
    is_inside: bool
    """Whether the file is in the crate; otherwise the crate only describes it."""
    is_directory: bool = False
    size: int = -1
    """Size in bytes; -1 if not known."""
    sha256: str = ""
    encoding: str = ""
    note: str = ""
    """Why the file differs from its state after the run; empty if it does not."""


class TaskFacts(msgspec.Struct, frozen=True):
    """The last attempt of a task, or a summary of all tasks of a category."""

    number: int
    name: str
    step: int
    command: str
    started: float
    ended: float
    error: str
    """Why the task failed; empty if it succeeded."""
    attempts: int
    cpu: float
    memory: int
    """Peak memory in bytes; 0 if not known."""
    node: int = -1
    """Position of the node in `RunFacts.nodes`; -1 if there were several."""
    inputs: Sequence[str] = ()
    outputs: Sequence[str] = ()
    environment: tuple[tuple[str, str | None], ...] = ()
    """Variables with their values; None for a withheld value."""
    tasks: int = 1
    """Number of tasks that are described together."""
    failed: int = 0
    """Number of failed tasks, if several are described together."""


class NodeFacts(msgspec.Struct, frozen=True):
    """A machine that ran tasks."""

    name: str
    cores: float
    memory: int


class RunFacts(msgspec.Struct):
    """All facts about a run that its crate describes."""

    name: str
    description: str
    published: float
    author: Person
    licence: Licence
    workflow: WorkflowFile
    version: str
    """Version of Shoal that ran the workflow."""
    run: str
    started: float
    ended: float
    error: str
    """Why the run failed; empty if it succeeded."""
    words: Sequence[str]
    """Targets and `name=value` parameters of the run."""
    nodes: Sequence[NodeFacts]
    steps: Sequence[str]
    """Categories; tasks refer to them by position."""
    positions: Sequence[int] | None
    """Positions of the steps in the order of execution; None if there is no such order."""
    numbers: Sequence[int]
    """Numbers of the tasks, in the order of `tasks`."""
    step_of: Sequence[int]
    """Steps of the tasks, in the order of `tasks`."""
    tasks: Iterable[TaskFacts]
    """Iterated once."""
    files: Iterable[FileFacts]
    """Iterated once."""
    parts: Sequence[str]
    """Identifiers of the files that are in the crate."""
    inputs: Sequence[str]
    outputs: Sequence[str]
    """Identifiers of the outputs of the whole workflow."""


INSIDE, OUTSIDE = "data", "outside"
"""Directories of a crate: for files in the workflow's directory, and for all other files."""
_RESERVED = (INSIDE, OUTSIDE, "workflow")
_FIRST_ESCAPE, _LAST_ESCAPE = 0xDC80, 0xDCFF
"""Range of the surrogates that Python uses for bytes of file names that are not UTF-8."""


def encoded(text: str) -> str:
    """Percent-encodes a text for a URI; slashes stay."""
    return quote(text.encode("utf-8", "surrogateescape"), safe="/")


def fragment(kind: str, text: str) -> str:
    """Returns a local identifier such as `#tool-align`, for an entity that is only described in the crate."""
    return f"#{kind}-{encoded(text)}"


def path_in_crate(name: str, base: str) -> str:
    """Returns the path in the crate of a file that a workflow in the directory `base` names; never outside the
    crate."""
    root = _resolved(base)
    parts = _resolved(name if name.startswith("/") else f"{base}/{name}")
    if len(parts) > len(root) and parts[: len(root)] == root:
        return "/".join([INSIDE, *map(storable, parts[len(root) :])])
    return "/".join([OUTSIDE, *map(storable, parts)])


def _resolved(path: str) -> list[str]:
    """Returns the parts of an absolute path without `.` and `..`; does not resolve links."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return parts


def storable(part: str) -> str:
    """Returns a part of a path for ZIP files and JSON: bytes that are not UTF-8 are percent-encoded."""
    if part.isascii():
        return part
    return "".join(f"%{ord(c) - 0xDC00:02X}" if _FIRST_ESCAPE <= ord(c) <= _LAST_ESCAPE else c for c in part)


def workflow_place(name: str) -> str:
    """Returns the path of the workflow file in the crate: at the top, unless the name is reserved."""
    reserved = name in _RESERVED or name.startswith("ro-crate-")
    return f"workflow/{storable(name)}" if reserved else storable(name)


class CratePaths:
    """Assigns distinct paths in one crate."""

    def __init__(self, taken: str) -> None:
        self._taken = {taken}

    def give(self, wanted: str) -> str:
        """Returns the wanted path, or a similar one if it is taken."""
        place, number = wanted, 2
        while place in self._taken:
            place, number = f"{wanted}~{number}", number + 1
        self._taken.add(place)
        return place


def positions(count: int, needs: Sequence[tuple[int, int]]) -> list[int] | None:
    """Returns, for each of `count` steps, a number greater than those of all steps it needs.

    `needs` are pairs (needed, needing). Returns None if the steps form a cycle: categories can, even though tasks
    cannot. A step that needs itself has tasks that depend on each other, which does not affect its position.
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
