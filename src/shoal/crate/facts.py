"""What a crate says of a run, as plain data: whoever has gathered this can have the metadata built."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
