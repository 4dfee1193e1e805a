"""Writes a `WorkflowTrace` as WfFormat of any version, and describes a graph as a trace.

The result is a value for a JSON encoder that is valid against the version's schema. Ids that the schema does not allow
are changed as little as possible and stay distinct. Values without a field in the version are left out, with two
exceptions that become additional fields (which the schemas allow): the command of a task that was never executed, and
the exit status of a failed task.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from shoal.core.graph import Graph
from shoal.core.resources import FRACTION
from shoal.core.task import Action, Call, words_elsewhere
from shoal.formats.wfformat.schema import DEFAULT_VERSION, FILE_ID, PLAIN_TASK_ID, TASK_ID, TASK_ID_16
from shoal.formats.wfformat.trace import Execution, TraceFile, TraceMachine, TraceTask, WorkflowTrace, is_plain_line

Row = dict[str, Any]
UNKNOWN_TIME = "1970-01-01T00:00:00+00:00"
"""Time for required fields whose time is not known."""


def write_wfformat(trace: WorkflowTrace, version: str = DEFAULT_VERSION) -> Row:
    """Returns the content of the file. For a trace read from the same version, reading it gives the same trace."""
    old = version == "1.4"
    system, author = trace.system, trace.author
    top = _without_empty(name=text(trace.name) or "workflow", description=text(trace.description))
    top |= _without_empty(createdAt=trace.created_at) | {"schemaVersion": version}
    if author is not None and author.name and author.email:
        fields = {"institution": author.institution, "country": author.country}
        top["author"] = {"name": author.name, "email": author.email, **_without_empty(**fields)}
    if system is not None and system.name and system.version:
        named = {"name": system.name, "version": system.version, **_without_empty(url=system.url)}
        top["wms" if old else "runtimeSystem"] = named
    top["workflow"] = _workflow_14(trace) if old else _workflow(trace, version)
    return top


def text(value: str) -> str:
    """Returns a text for JSON: bytes that are not UTF-8 become replacement characters."""
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def valid_ids(ids: Sequence[str], pattern: str) -> list[str]:
    """Returns the ids with every character that the pattern does not allow replaced, and numbers to keep them
    distinct."""
    allowed = re.compile(pattern)
    taken = {name for name in ids if name and allowed.fullmatch(name)}
    found = []
    for name in ids:
        if not name or not allowed.fullmatch(name):
            base = "".join(sign if allowed.fullmatch(sign) else "_" for sign in name) or "_"
            name, number = base, 1
            while name in taken:
                number += 1
                name = f"{base}_{number}"
            taken.add(name)
        found.append(name)
    return found


def _workflow(trace: WorkflowTrace, version: str) -> Row:
    ids = valid_ids([task.id for task in trace.tasks], TASK_ID_16 if version == "1.6" else TASK_ID)
    file_ids = valid_ids([file.id for file in trace.files], FILE_ID)
    children: list[list[str]] = [[] for _ in trace.tasks]
    for number, task in enumerate(trace.tasks):
        for parent in task.parents:
            children[parent].append(ids[number])
    tasks = []
    for number, task in enumerate(trace.tasks):
        row: Row = {"name": text(task.name) or ids[number], "id": ids[number]}
        row["parents"] = [ids[parent] for parent in task.parents]
        row["children"] = children[number]
        row["inputFiles"] = [file_ids[file] for file in task.inputs]
        row["outputFiles"] = [file_ids[file] for file in task.outputs]
        if task.execution is None:
            row |= _command(task)
        tasks.append(row)
    files = [{"id": name, "sizeInBytes": file.size} for name, file in zip(file_ids, trace.files, strict=True)]
    workflow: Row = {"specification": {"tasks": tasks, "files": files}}
    executed = [(name, task, task.execution) for name, task in zip(ids, trace.tasks, strict=True) if task.execution]
    if executed:
        workflow["execution"] = _without_empty(
            makespanInSeconds=trace.makespan if trace.makespan is not None else 0.0,
            executedAt=trace.executed_at or trace.created_at or UNKNOWN_TIME,
            tasks=[{"id": name} | _execution(task, run) for name, task, run in executed],
            machines=[_machine(machine, "coreCount", "speedInMHz") for machine in trace.machines],
        )
    return workflow


def _execution(task: TraceTask, run: Execution) -> Row:
    return (
        {"runtimeInSeconds": run.seconds}
        | _without_empty(executedAt=run.started_at)
        | _command(task)
        | _known(coreCount=run.cores)
        | _measures(run)
        | _known(energyInKWh=run.energy, avgPowerInW=run.power, priority=run.priority)
        | _without_empty(machines=[text(name) for name in run.machines if name])
        | _known(exitStatus=run.exit_status or None)
    )


def _workflow_14(trace: WorkflowTrace) -> Row:
    ids = valid_ids([task.id for task in trace.tasks], PLAIN_TASK_ID)
    tasks = []
    for number, task in enumerate(trace.tasks):
        files = [("input", file) for file in task.inputs] + [("output", file) for file in task.outputs]
        row: Row = {"name": text(task.name) or ids[number], "id": ids[number]}
        row |= _without_empty(category=text(task.declared_category)) | {"type": task.kind or "compute"}
        row |= _command(task)
        row["parents"] = [ids[parent] for parent in task.parents]
        row["files"] = [
            {"name": text(trace.files[file].id), "sizeInBytes": trace.files[file].size, "link": link}
            for link, file in files
        ]
        run = task.execution
        if run is not None:
            row |= {"runtimeInSeconds": run.seconds} | _known(cores=run.cores) | _measures(run)
            row |= _known(energy=run.energy, avgPower=run.power, priority=run.priority)
            row |= _without_empty(machine=text(run.machines[0]) if run.machines else "")
            row |= _known(exitStatus=run.exit_status or None)
        tasks.append(row)
    return _without_empty(
        makespanInSeconds=trace.makespan if trace.makespan is not None else 0.0,
        executedAt=trace.executed_at or trace.created_at or UNKNOWN_TIME,
        machines=[_machine(machine, "count", "speed") for machine in trace.machines],
        tasks=tasks,
    )


def _command(task: TraceTask) -> Row:
    program, arguments = text(task.program), [text(word) for word in task.arguments]
    if not program and not arguments:
        return {}
    return {"command": _without_empty(program=program) | {"arguments": [word for word in arguments if word]}}


def _measures(run: Execution) -> Row:
    return _known(
        avgCPU=run.cpu_percent, readBytes=run.read_bytes, writtenBytes=run.written_bytes, memoryInBytes=run.memory
    )


def _machine(machine: TraceMachine, cores: str, speed: str) -> Row:
    cpu = _known(**{cores: machine.cores, speed: machine.speed}) | _without_empty(vendor=machine.vendor)
    row: Row = {"nodeName": text(machine.name) or "unknown"}
    row |= _without_empty(system=machine.system, architecture=machine.architecture, release=machine.release)
    return row | _known(memoryInBytes=machine.memory, cpu=cpu if machine.has_cpu or cpu else None)


def _known(**fields: Any) -> Row:
    return {name: value for name, value in fields.items() if value is not None}


def _without_empty(**fields: Any) -> Row:
    return {name: value for name, value in fields.items() if value not in ("", [])}


def describe_graph(
    graph: Graph, name: str, executions: Sequence[Execution | None], sizes: Sequence[int]
) -> WorkflowTrace:
    """Returns a trace of the graph; `executions` has one entry per task, `sizes` one per file, in bytes."""
    ids = valid_ids(_distinct(graph.names), PLAIN_TASK_ID)
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
    files = valid_ids(graph.file_names, FILE_ID)
    return WorkflowTrace(name, tuple(tasks), tuple(map(TraceFile, files, sizes)))


def cores_of(graph: Graph, task: int) -> float:
    """Returns the cores that a task requests; at least one, as WfFormat requires."""
    return max(1.0, graph.profile_of(task).resources.get("cores") / FRACTION)


def command_of(action: Action, shell: str = "") -> tuple[str, tuple[str, ...]]:
    """Returns program and arguments of an action; a command that needs a shell becomes `sh -c`."""
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
    """Returns distinct names, with a number after repeated ones: names of tasks in a graph need not be distinct."""
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
