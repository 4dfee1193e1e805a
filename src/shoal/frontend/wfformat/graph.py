"""From a trace to a graph of its own tasks, with the recorded commands: to plan with, to simulate, to convert.

The commands are as recorded, and the programs in them are most likely not on this machine; what really runs is a
replay, which `shoal.engine.replay` makes.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.frontend.wfformat.trace import Trace, TraceTask
from shoal.model.graph import Graph, GraphBuilder
from shoal.model.resources import FRACTION, Resources
from shoal.model.task import Profile

NO_COMMAND = ":"
"""The action of a task whose command is not recorded: a shell's word for doing nothing."""


def trace_graph(trace: Trace, source: str) -> Graph:
    """One task per task of the trace, in the same order and named by its id."""
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


def command_line(trace: Trace, task: TraceTask) -> str:
    """The recorded command; those who traced Makeflow put the whole line, split at its blanks, into the arguments."""
    if trace.system is not None and trace.system.name == "Makeflow" and task.arguments:
        first = task.arguments[0].rsplit("/", 1)[-1]
        if task.program == first or task.program.startswith(f"{first}_"):
            return " ".join(task.arguments)
    return task.command_line


def parents_without_files(task: TraceTask, makers: Sequence[int]) -> list[int]:
    """The parents that have to be named because no file leads to them."""
    by_files = {makers[file] for file in task.inputs}
    return [parent for parent in task.parents if parent not in by_files]


def profile_for(task: TraceTask, resources: Resources) -> Profile:
    """The profile of a task that is given this; cores that were recorded count as asked for."""
    declared = task.execution is not None and task.execution.cores is not None
    return Profile(task.category, resources, cores_declared=declared)


def requested(task: TraceTask, memory_scale: float = 1.0, most_cores: float | None = None) -> Resources:
    """What the task is given: the recorded cores, at least one, and its recorded peak of memory."""
    executed = task.execution
    cores = max(1.0, (executed.cores if executed else None) or 1.0)
    if most_cores is not None:
        cores = min(cores, max(1.0, most_cores))
    memory = (executed.memory if executed else None) or 0
    return Resources.of({"cores": round(cores * FRACTION), "memory": round(memory * memory_scale)})
