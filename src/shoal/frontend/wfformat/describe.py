"""From a graph and what was measured of its tasks to a `Trace`, ready to be written as WfFormat.

A task's WfFormat id is its name, changed where the schema allows fewer characters; its WfFormat name is its category. A
task that only groups others is a task there, too: one that took no time.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.frontend.wfformat.schema import FILE_ID, PLAIN_TASK_ID
from shoal.frontend.wfformat.trace import Execution, Trace, TraceFile, TraceTask, is_plain_line
from shoal.frontend.wfformat.write import fitting
from shoal.model.graph import Graph
from shoal.model.resources import FRACTION
from shoal.model.shell import words_elsewhere
from shoal.model.task import Action, Call


def describe_graph(graph: Graph, name: str, executions: Sequence[Execution | None], sizes: Sequence[int]) -> Trace:
    """The graph's tasks and files; `executions` has an entry per task and `sizes` one per file, in bytes."""
    ids = fitting(_distinct(graph.names), PLAIN_TASK_ID)
    any_executed = any(executed is not None for executed in executions)
    tasks = []
    for task, action in enumerate(graph.actions):
        executed = executions[task]
        if action is None and any_executed:
            executed = Execution(0.0)
        tasks.append(
            TraceTask(
                ids[task],
                graph.profile_of(task).category,
                tuple(dict.fromkeys(graph.predecessors_of(task))),
                tuple(dict.fromkeys(graph.inputs_of(task))),
                tuple(graph.outputs_of(task)),
                *command_of(action, graph.profile_of(task).shell),
                kind="compute" if action is not None else "auxiliary",
                execution=executed,
            )
        )
    files = fitting(graph.file_names, FILE_ID)
    return Trace(name, tuple(tasks), tuple(map(TraceFile, files, sizes)))


def cores_of(graph: Graph, task: int) -> float:
    """The cores a task asks for, as WfFormat wants them: never less than one."""
    return max(1.0, graph.profile_of(task).resources.get("cores") / FRACTION)


def command_of(action: Action, shell: str = "") -> tuple[str, tuple[str, ...]]:
    """Program and arguments; a line that needs a shell is given to one."""
    if action is None:
        return "", ()
    if isinstance(action, Call):
        return str(getattr(action.function, "__name__", "call")), ()
    if is_plain_line(action):
        program, *arguments = action.split(" ")
        return program, tuple(arguments)
    program, *options = words_elsewhere(shell)
    return program, (*options, "-c", action)


def _distinct(names: Sequence[str]) -> list[str]:
    """The names with a number behind those that are there already; a graph's names need not be different."""
    taken = set(names)
    seen: set[str] = set()
    found = []
    for name in names:
        number, base = 1, name
        while name in seen or (number > 1 and name in taken):
            number += 1
            name = f"{base}_{number}"
        seen.add(name)
        found.append(name)
    return found
