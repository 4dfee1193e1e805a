"""The workflow trace of a WfFormat file of any version (tasks, files, executions, machines), and its graph.

Tasks and files are referred to by position. Values that are not recorded are None or empty. Fields that WfFormat does
not define are dropped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from shoal.core.graph import Graph, GraphBuilder
from shoal.core.resources import FRACTION, Resources
from shoal.core.task import Profile


class TraceRuntimeSystem(msgspec.Struct, frozen=True):
    """The program that ran the workflow."""

    name: str
    version: str
    url: str = ""


class Author(msgspec.Struct, frozen=True):
    """The author of the file."""

    name: str
    email: str
    institution: str = ""
    country: str = ""


class TraceMachine(msgspec.Struct, frozen=True):
    """A machine on which tasks ran."""

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
    """Whether the file has a description of the processor, even an empty one."""


class Execution(msgspec.Struct, frozen=True):
    """How a task was executed."""

    seconds: float
    started_at: str = ""
    cores: float | None = None
    cpu_percent: float | None = None
    """CPU time in percent of the run time: 200 means two busy cores."""
    read_bytes: float | None = None
    written_bytes: float | None = None
    memory: float | None = None
    """Peak resident memory in bytes."""
    energy: float | None = None
    power: float | None = None
    priority: float | None = None
    machines: tuple[str, ...] = ()
    exit_status: int = 0
    """Not part of WfFormat, which describes successful runs only; written as `exitStatus` if it is not 0."""


class TraceFile(msgspec.Struct, frozen=True):
    """A file; its id is a name and need not be a path."""

    id: str
    size: int


class TraceTask(msgspec.Struct, frozen=True):
    """One task, with its execution if it was executed."""

    id: str
    name: str
    parents: tuple[int, ...] = ()
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    program: str = ""
    arguments: tuple[str, ...] = ()
    declared_category: str = ""
    """The category of the file; only 1.4 has a field for it."""
    kind: str = ""
    """The task type, in 1.4 only: compute, transfer or auxiliary."""
    execution: Execution | None = None

    @property
    def category(self) -> str:
        """The category for which usage is learned: the declared one, or the name.

        If the name ends with the task's id, the number at its end is removed.
        """
        if self.declared_category or not self.name.endswith(self.id):
            return self.declared_category or self.name
        return _NUMBER_AT_END.sub("", self.name) or self.name

    @property
    def command_line(self) -> str:
        """The recorded command, quoted for a shell; empty if none is recorded."""
        if self.program == SHELL and len(self.arguments) == 2 and self.arguments[0] == "-c":
            return self.arguments[1]
        if not self.program or not self.arguments:
            return self.program
        if any(word in _SPLIT_LINE for word in self.arguments):
            return " ".join([self.program, *self.arguments])
        return " ".join([self.program, *map(quote, self.arguments)])


class WorkflowTrace(msgspec.Struct, frozen=True):
    """A workflow with its recorded executions: the content of one file."""

    name: str
    tasks: tuple[TraceTask, ...]
    files: tuple[TraceFile, ...] = ()
    description: str = ""
    created_at: str = ""
    version: str = "1.5"
    system: TraceRuntimeSystem | None = None
    author: Author | None = None
    makespan: float | None = None
    """Seconds; None if the workflow was not executed."""
    executed_at: str = ""
    machines: tuple[TraceMachine, ...] = ()

    def producers(self) -> list[int]:
        """Returns, for each file, the task that makes it, or -1."""
        makers = [-1] * len(self.files)
        for number, task in enumerate(self.tasks):
            for file in task.outputs:
                makers[file] = number
        return makers


SHELL = "/bin/sh"
_SPLIT_LINE = frozenset(("<", ">", ">>", "2>", "2>>", "&>", "2>&1", "|", "||", "&&", ";"))
"""An argument like these shows that the tracer split a shell command at blanks, so the arguments are not quoted."""
_NUMBER_AT_END = re.compile(r"[_-](?:ID)?[0-9]+$")
_SAFE_WORD = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")


def quote(word: str) -> str:
    """Quotes a word for the shell."""
    return word if _SAFE_WORD.fullmatch(word) else "'" + word.replace("'", "'\"'\"'") + "'"


def is_plain_line(line: str) -> bool:
    """Whether the command consists of plain words separated by blanks, so that it needs no shell."""
    return all(_SAFE_WORD.fullmatch(word) for word in line.split(" ")) and "=" not in line.split(" ")[0]


NO_COMMAND = ":"
"""The action of a task whose command is not recorded: the no-op command of the shell."""


def trace_graph(trace: WorkflowTrace, source: str) -> Graph:
    """Returns the graph of a trace. Tasks are in the same order and are named by their ids."""
    builder = GraphBuilder(source, as_written=True)
    makers = trace.producers()
    names = [file.id for file in trace.files]
    profiles: dict[Profile, Profile] = {}
    for task in trace.tasks:
        profile = profile_for(task, requested(task))
        builder.task(
            task.id,
            command_line(trace, task) or NO_COMMAND,
            inputs=[names[file] for file in task.inputs],
            outputs=[names[file] for file in task.outputs],
            after=parents_without_files(task, makers),
            profile=profiles.setdefault(profile, profile),
        )
    return builder.build()


def command_line(trace: WorkflowTrace, task: TraceTask) -> str:
    """Returns the recorded command.

    Traces of Makeflow have the whole command line, split at blanks, in the arguments.
    """
    if trace.system is not None and trace.system.name == "Makeflow" and task.arguments:
        first = task.arguments[0].rsplit("/", 1)[-1]
        if task.program == first or task.program.startswith(f"{first}_"):
            return " ".join(task.arguments)
    return task.command_line


def parents_without_files(task: TraceTask, makers: Sequence[int]) -> list[int]:
    """Returns the parents that are not makers of input files: these edges must be explicit."""
    by_files = {makers[file] for file in task.inputs}
    return [parent for parent in task.parents if parent not in by_files]


def profile_for(task: TraceTask, resources: Resources) -> Profile:
    """Returns the profile of a task with these resources; recorded cores count as declared."""
    declared = task.execution is not None and task.execution.cores is not None
    return Profile(task.category, resources, cores_declared=declared)


def requested(task: TraceTask, memory_scale: float = 1.0, most_cores: float | None = None) -> Resources:
    """Returns the resources of a task: its recorded cores, at least one, and its recorded peak memory."""
    executed = task.execution
    cores = max(1.0, (executed.cores if executed else None) or 1.0)
    if most_cores is not None:
        cores = min(cores, max(1.0, most_cores))
    memory = (executed.memory if executed else None) or 0
    return Resources.of({"cores": round(cores * FRACTION), "memory": round(memory * memory_scale)})
