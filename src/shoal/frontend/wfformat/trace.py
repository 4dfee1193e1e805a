"""What a WfFormat file says, whichever version it was written in: tasks, files, how each was executed, and where.

Tasks and files are referred to by position. What is not recorded is None, or empty. Fields WfFormat does not know are
not kept.
"""

from __future__ import annotations

import re

import msgspec


class RuntimeSystem(msgspec.Struct, frozen=True):
    """The program that ran the workflow."""

    name: str
    version: str
    url: str = ""


class Author(msgspec.Struct, frozen=True):
    """Who made the file."""

    name: str
    email: str
    institution: str = ""
    country: str = ""


class Machine(msgspec.Struct, frozen=True):
    """One of the machines that tasks ran on."""

    name: str
    system: str = ""
    architecture: str = ""
    release: str = ""
    memory: int | None = None
    cores: int | None = None
    speed: int | None = None
    """In MHz."""
    vendor: str = ""
    has_cpu: bool = False
    """Whether there is a description of the processor, even if it is an empty one."""


class Execution(msgspec.Struct, frozen=True):
    """How a task was executed."""

    seconds: float
    started_at: str = ""
    cores: float | None = None
    cpu_percent: float | None = None
    """CPU time used, in percent of the run time: 200 are two busy cores."""
    read_bytes: float | None = None
    written_bytes: float | None = None
    memory: float | None = None
    """Peak resident memory in bytes."""
    energy: float | None = None
    power: float | None = None
    priority: float | None = None
    machines: tuple[str, ...] = ()
    exit_status: int = 0
    """Not part of WfFormat, which only knows of runs that went well; written as `exitStatus` when it is not 0."""


class TraceFile(msgspec.Struct, frozen=True):
    """A file; its id is a name and need not be a path."""

    id: str
    size: int


class TraceTask(msgspec.Struct, frozen=True):
    """One task, and how it was executed if it was."""

    id: str
    name: str
    parents: tuple[int, ...] = ()
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    program: str = ""
    arguments: tuple[str, ...] = ()
    declared_category: str = ""
    """Only 1.4 has a field for it."""
    kind: str = ""
    """In 1.4 one of compute, transfer and auxiliary."""
    execution: Execution | None = None

    @property
    def category(self) -> str:
        """The key for learning: the name, without the number behind it where the name is one task's own."""
        if self.declared_category or not self.name.endswith(self.id):
            return self.declared_category or self.name
        return _NUMBER_AT_END.sub("", self.name) or self.name

    @property
    def command_line(self) -> str:
        """The recorded command as a shell takes it; empty if none is recorded."""
        if self.program == SHELL and len(self.arguments) == 2 and self.arguments[0] == "-c":
            return self.arguments[1]
        if not self.program or not self.arguments:
            return self.program
        if any(word in _SPLIT_LINE for word in self.arguments):
            return " ".join([self.program, *self.arguments])
        return " ".join([self.program, *map(quote, self.arguments)])


class Trace(msgspec.Struct, frozen=True):
    """A whole file."""

    name: str
    tasks: tuple[TraceTask, ...]
    files: tuple[TraceFile, ...] = ()
    description: str = ""
    created_at: str = ""
    version: str = "1.5"
    system: RuntimeSystem | None = None
    author: Author | None = None
    makespan: float | None = None
    """Seconds; None if the workflow was not executed."""
    executed_at: str = ""
    machines: tuple[Machine, ...] = ()

    def producers(self) -> list[int]:
        """For each file the task that makes it, or -1."""
        makers = [-1] * len(self.files)
        for number, task in enumerate(self.tasks):
            for file in task.outputs:
                makers[file] = number
        return makers


SHELL = "/bin/sh"
_SPLIT_LINE = frozenset(("<", ">", ">>", "2>", "2>>", "&>", "2>&1", "|", "||", "&&", ";"))
"""A recorded argument like these shows that the tracer split a shell's line at the blanks."""
_NUMBER_AT_END = re.compile(r"[_-](?:ID)?[0-9]+$")
_SAFE_WORD = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")


def quote(word: str) -> str:
    """The word as the shell must see it to take it as one."""
    return word if _SAFE_WORD.fullmatch(word) else "'" + word.replace("'", "'\"'\"'") + "'"


def is_plain_line(line: str) -> bool:
    """Whether the line is words with blanks between them, and nothing a shell would have to do anything about."""
    return all(_SAFE_WORD.fullmatch(word) for word in line.split(" ")) and "=" not in line.split(" ")[0]
