"""Reads and validates WfFormat files: returns a `WorkflowTrace`, or raises an error with the path of the value.

The file must conform to the schema, except for the characters of ids: traces with other characters exist, and an id is
only a name. `resolve_relations` checks the references between tasks and files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from shoal.core.graph import GraphBuilder
from shoal.errors import InputError
from shoal.formats.source_text import SourceText
from shoal.formats.wfformat.schema import LEXICAL_PROBLEMS, VERSIONS, schema_problems
from shoal.formats.wfformat.trace import (
    Author,
    Execution,
    TraceFile,
    TraceMachine,
    TraceRuntimeSystem,
    TraceTask,
    WorkflowTrace,
)


class RawTask(msgspec.Struct):
    """One task with the names that its file uses."""

    path: str
    """The path of the task in the file."""
    id: str
    parents: list[str]
    inputs: list[str]
    outputs: list[str]
    children: list[str] | None = None
    """None if the version has no such field."""


class Relations(msgspec.Struct):
    """By task: the positions of its parents, inputs and outputs."""

    parents: list[tuple[int, ...]]
    inputs: list[tuple[int, ...]]
    outputs: list[tuple[int, ...]]


def resolve_relations(
    raw_tasks: Sequence[RawTask], references: dict[str, int], files: Sequence[TraceFile], source: str
) -> Relations:
    """Resolves and checks every reference; `references` maps ids and other names of tasks to positions."""
    file_numbers = {file.id: number for number, file in enumerate(files)}
    inputs = [_files(raw, raw.inputs, "inputFiles", file_numbers, source) for raw in raw_tasks]
    outputs = [_files(raw, raw.outputs, "outputFiles", file_numbers, source) for raw in raw_tasks]
    makers = _makers(raw_tasks, outputs, files, source)
    by_files = [tuple(dict.fromkeys(makers[file] for file in files_read if makers[file] >= 0)) for files_read in inputs]
    for raw, makers_of_inputs, position in zip(raw_tasks, by_files, range(len(raw_tasks)), strict=True):
        if position in makers_of_inputs:
            raise error_at(source, raw.path, f"task {raw.id!r} reads a file that it makes itself")
    parents = [_tasks(raw, raw.parents, "parents", references, source) for raw in raw_tasks]
    children = [_tasks(raw, raw.children or [], "children", references, source) for raw in raw_tasks]
    if any(parents) or any(children):
        _check_parents_and_children(raw_tasks, parents, children, by_files, source)
    else:
        parents = by_files
    _refuse_cycles(raw_tasks, parents, source)
    return Relations(parents, inputs, outputs)


def error_at(source: str, path: str, message: str, remedy: str | None = None) -> InputError:
    """Returns an error for the value at a path of the file."""
    return InputError(f"{message} (at {path})" if path else message, file=source, remedy=remedy)


def _tasks(raw: RawTask, names: list[str], field: str, references: dict[str, int], source: str) -> tuple[int, ...]:
    found = []
    for position, name in enumerate(names):
        number = references.get(name)
        if number is None:
            raise error_at(source, f"{raw.path}.{field}[{position}]", f"unknown task {name!r}")
        found.append(number)
    return tuple(dict.fromkeys(found))


def _files(raw: RawTask, names: list[str], field: str, numbers: dict[str, int], source: str) -> tuple[int, ...]:
    found = []
    for position, name in enumerate(names):
        number = numbers.get(name)
        if number is None:
            raise error_at(source, f"{raw.path}.{field}[{position}]", f"the file {name!r} is not in the list of files")
        found.append(number)
    return tuple(dict.fromkeys(found))


def _makers(
    raw_tasks: Sequence[RawTask], outputs: list[tuple[int, ...]], files: Sequence[TraceFile], source: str
) -> list[int]:
    makers = [-1] * len(files)
    for number, made in enumerate(outputs):
        for file in made:
            if makers[file] >= 0:
                first, second = raw_tasks[makers[file]].id, raw_tasks[number].id
                message = f"two tasks make the file {files[file].id!r}: {first!r} and {second!r}"
                raise error_at(source, raw_tasks[number].path, message)
            makers[file] = number
    return makers


def _check_parents_and_children(
    raw_tasks: Sequence[RawTask],
    parents: list[tuple[int, ...]],
    children: list[tuple[int, ...]],
    by_files: list[tuple[int, ...]],
    source: str,
) -> None:
    declared = {(parent, number) for number, row in enumerate(parents) for parent in row}
    mirrored = {(number, child) for number, row in enumerate(children) for child in row}
    if mirrored:
        for parent, child in sorted(declared ^ mirrored):
            owner, missing, role, other = child, parent, "parent", "child"
            if (parent, child) not in declared:
                owner, missing, role, other = parent, child, "child", "parent"
            message = (
                f"task {raw_tasks[owner].id!r} has {raw_tasks[missing].id!r} as a {role}, "
                f"but {raw_tasks[missing].id!r} does not have it as a {other}"
            )
            raise error_at(source, raw_tasks[owner].path, message)
    for number, row in enumerate(by_files):
        for maker in row:
            if (maker, number) not in declared:
                message = (
                    f"task {raw_tasks[number].id!r} reads a file that {raw_tasks[maker].id!r} makes, "
                    "but does not have it as a parent"
                )
                raise error_at(source, raw_tasks[number].path, message)


def _refuse_cycles(raw_tasks: Sequence[RawTask], parents: list[tuple[int, ...]], source: str) -> None:
    builder = GraphBuilder(source, as_written=True)
    for raw, row in zip(raw_tasks, parents, strict=True):
        builder.task(raw.id, None, after=row)
    builder.build()


LARGEST_SIZE = 1 << 62
LONGEST_SECONDS = 1e12
MOST_CORES = 1e6

_SCHEMA_VERSION = re.compile(r'"schemaVersion"\s*:\s*"')
_WORKFLOW = re.compile(r'"workflow"\s*:\s*\{\s*"(?:specification|execution|tasks|makespanInSeconds|executedAt)"')
_BYTE = re.compile(r"\(byte ([0-9]+)\)")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def is_wfformat(content: object) -> bool:
    """Whether a decoded value, or the (beginning of the) text of a file, looks like WfFormat."""
    if isinstance(content, (bytes, str)):
        text = content.decode("utf-8", "replace") if isinstance(content, bytes) else content
        text = text.removeprefix("\ufeff").lstrip()
        return text.startswith("{") and bool(_SCHEMA_VERSION.search(text) or _WORKFLOW.search(text))
    if not isinstance(content, dict):
        return False
    workflow = content.get("workflow")
    return isinstance(workflow, dict) and ("schemaVersion" in content or "specification" in workflow)


def read_wfformat(text: bytes, source: str) -> WorkflowTrace:
    """Returns the trace in the text of a file; `source` is the file's name for errors."""
    value = _decode(text, source)
    version = value.get("schemaVersion") if isinstance(value, dict) else None
    if isinstance(version, str) and version not in VERSIONS:
        raise InputError(
            f"this is WfFormat {version}, and only {VERSIONS[0]} to {VERSIONS[-1]} can be read (at schemaVersion)",
            file=source,
            remedy="convert it to a newer version with WfCommons' migration tool",
        )
    for problem in schema_problems(value):
        if problem.kind not in LEXICAL_PROBLEMS:
            raise error_at(source, problem.path, _sentence(problem.path, problem.message))
    return _Reader(value, source).trace()


def _sentence(path: str, message: str) -> str:
    name = re.sub(r"\[[0-9]+\]", "", path.rsplit(".", 1)[-1]) if path else "the file"
    return f"{name!r} {message}" if path else f"{name} {message}"


def _decode(text: bytes, source: str) -> Any:
    text = text.removeprefix(_BYTE_ORDER_MARK)
    try:
        text.decode()
        return msgspec.json.decode(text)
    except RecursionError:
        raise InputError("the JSON is nested too deeply", file=source, line=1) from None
    except UnicodeDecodeError as error:
        raise _malformed(text, error.start, "the file is not UTF-8", source) from None
    except msgspec.DecodeError as error:
        reason = str(error)
    where = _BYTE.search(reason)
    if where is None:  # the text is incomplete, or a number is out of range
        sentence = "a number is too large" if "range" in reason else "the JSON ends too early"
        raise _malformed(text, len(text.rstrip()), sentence, source)
    raise _malformed(text, int(where[1]), reason[: where.start()].strip(), source)


def _malformed(text: bytes, byte: int, message: str, source: str) -> InputError:
    position = len(text[:byte].decode("utf-8", "replace").replace("\r\n", "\n"))
    shown = SourceText(source, text.decode("utf-8", "replace").replace("\0", " "))
    return shown.error(min(position, len(shown.text)), message)


class _Reader:
    """Converts a value that conforms to the schema to a trace."""

    def __init__(self, value: dict[str, Any], source: str) -> None:
        self.value = value
        self.source = source
        self.workflow: dict[str, Any] = value["workflow"]
        self.version: str = value["schemaVersion"]

    def trace(self) -> WorkflowTrace:
        value = self.value
        tasks, files = self._tasks_14() if self.version == "1.4" else self._tasks()
        executed = self.workflow if self.version == "1.4" else self.workflow.get("execution") or {}
        where = "workflow" if self.version == "1.4" else "workflow.execution"
        system = value.get("wms" if self.version == "1.4" else "runtimeSystem")
        author = value.get("author")
        return WorkflowTrace(
            name=value["name"],
            tasks=tuple(tasks),
            files=tuple(files),
            description=value.get("description", ""),
            created_at=value.get("createdAt", ""),
            version=self.version,
            system=TraceRuntimeSystem(system["name"], system["version"], system.get("url", "")) if system else None,
            author=_author(author) if author else None,
            makespan=self._number(executed, "makespanInSeconds", where, LONGEST_SECONDS),
            executed_at=executed.get("executedAt", ""),
            machines=tuple(self._machines(executed.get("machines", []))),
        )

    def _tasks(self) -> tuple[list[TraceTask], list[TraceFile]]:
        """Reads the layout since 1.5, with two lists: the specification and the execution of tasks."""
        specification = self.workflow["specification"]
        where = "workflow.specification.tasks"
        rows = specification["tasks"]
        raw_tasks = []
        for position, row in enumerate(rows):
            lists = (row.get("inputFiles", []), row.get("outputFiles", []), row["children"])
            raw_tasks.append(RawTask(f"{where}[{position}]", row["id"], row["parents"], *lists))
        references = self._unique([raw.id for raw in raw_tasks], where, "task")
        files = self._files(specification, raw_tasks)
        relations = resolve_relations(raw_tasks, references, files, self.source)
        executions = self._executions(references)
        tasks = []
        for position, row in enumerate(rows):
            executed_at, executed = executions.get(position, ("", None))
            command = row.get("command") if executed is None else executed.get("command")
            task = TraceTask(
                row["id"],
                row["name"],
                relations.parents[position],
                relations.inputs[position],
                relations.outputs[position],
                *_command(command),
                execution=None if executed is None else self._execution(executed, executed_at, "coreCount"),
            )
            tasks.append(task)
        return tasks, files

    def _files(self, specification: dict[str, Any], raw_tasks: list[RawTask]) -> list[TraceFile]:
        rows = specification.get("files")
        if rows is None:  # the list is optional; without it, only the names are known
            names = dict.fromkeys(name for raw in raw_tasks for name in (*raw.inputs, *raw.outputs))
            return [TraceFile(name, 0) for name in names]
        where = "workflow.specification.files"
        self._unique([row["id"] for row in rows], where, "file")
        sizes = [self._size(row, f"{where}[{position}]") for position, row in enumerate(rows)]
        return [TraceFile(row["id"], size) for row, size in zip(rows, sizes, strict=True)]

    def _executions(self, references: dict[str, int]) -> dict[int, tuple[str, dict[str, Any]]]:
        """Returns, for each executed task, the path of its record and the record."""
        found: dict[int, tuple[str, dict[str, Any]]] = {}
        for position, row in enumerate((self.workflow.get("execution") or {}).get("tasks", [])):
            path = f"workflow.execution.tasks[{position}]"
            number = references.get(row["id"])
            if number is None:
                raise error_at(self.source, path, f"the task {row['id']!r} is not in the specification")
            if number in found:
                raise error_at(self.source, path, f"task {row['id']!r} is listed twice")
            found[number] = (path, row)
        return found

    def _tasks_14(self) -> tuple[list[TraceTask], list[TraceFile]]:
        """Reads the layout of 1.4, with one list: tasks refer to each other by name or id and contain their files."""
        where = "workflow.tasks"
        rows = self.workflow["tasks"]
        ids = [row.get("id", row["name"]) for row in rows]
        references = self._unique(ids, where, "task")
        for name, positions in _places([row["name"] for row in rows]).items():
            if len(positions) == 1:
                references.setdefault(name, positions[0])
        raw_tasks = []
        sizes: dict[str, int] = {}
        for position, row in enumerate(rows):
            path = f"{where}[{position}]"
            read, made = [], []
            for number, file in enumerate(row.get("files", [])):
                size = self._size(file, f"{path}.files[{number}]")
                name = file["name"]
                if file["link"] == "output":
                    made.append(name)
                    sizes[name] = size  # the size recorded by the maker has precedence
                else:
                    read.append(name)
                    sizes.setdefault(name, size)
            raw_tasks.append(RawTask(path, ids[position], row.get("parents", []), read, made))
        names = dict.fromkeys(name for raw in raw_tasks for name in (*raw.inputs, *raw.outputs))
        self._unique(list(names), f"{where}.files", "file")
        files = [TraceFile(name, sizes[name]) for name in names]
        relations = resolve_relations(raw_tasks, references, files, self.source)
        tasks = [self._task_14(row, ids[at], at, relations.parents[at]) for at, row in enumerate(rows)]
        pairs = zip(tasks, relations.inputs, relations.outputs, strict=True)
        return [msgspec.structs.replace(task, inputs=read, outputs=made) for task, read, made in pairs], files

    def _task_14(self, row: dict[str, Any], name: str, position: int, parents: tuple[int, ...]) -> TraceTask:
        path = f"workflow.tasks[{position}]"
        return TraceTask(
            name,
            row["name"],
            parents,
            (),
            (),
            *_command(row.get("command")),
            declared_category=row.get("category", ""),
            kind=row["type"],
            execution=self._execution(row, path, "cores") if "runtimeInSeconds" in row else None,
        )

    def _unique(self, names: list[str], where: str, what: str) -> dict[str, int]:
        """Returns positions by name; refuses empty and duplicate names."""
        numbers: dict[str, int] = {}
        for position, name in enumerate(names):
            if not name:
                raise error_at(self.source, f"{where}[{position}]", f"a {what} must have an id")
            if name in numbers:
                raise error_at(self.source, f"{where}[{position}]", f"there are two {what}s {name!r}")
            numbers[name] = position
        return numbers

    def _execution(self, row: dict[str, Any], path: str, cores: str) -> Execution:
        old = cores == "cores"
        seconds = self._number(row, "runtimeInSeconds", path, LONGEST_SECONDS)
        machine = [row["machine"]] if "machine" in row else []
        status = row.get("exitStatus")
        return Execution(
            seconds or 0.0,
            row.get("executedAt", "") if not old else "",
            self._number(row, cores, path, MOST_CORES),
            self._number(row, "avgCPU", path),
            self._number(row, "readBytes", path),
            self._number(row, "writtenBytes", path),
            self._number(row, "memoryInBytes", path),
            self._number(row, "energy" if old else "energyInKWh", path, least=-LARGEST_SIZE),
            self._number(row, "avgPower" if old else "avgPowerInW", path, least=-LARGEST_SIZE),
            self._number(row, "priority", path, least=-LARGEST_SIZE),
            tuple(machine if old else row.get("machines", [])),
            status if isinstance(status, int) and abs(status) < 1 << 16 else 0,
        )

    def _number(
        self, row: dict[str, Any], name: str, path: str, most: float = LARGEST_SIZE, least: float = 0
    ) -> float | None:
        """Returns a number, if it is present; refuses values out of the plausible range."""
        number: float | None = row.get(name)
        if number is not None and not least <= number <= most:
            message = f"{name!r} must be between {least:g} and {most:g}, not {number!r:.40}"
            raise error_at(self.source, f"{path}.{name}", message)
        return number

    def _size(self, row: dict[str, Any], path: str) -> int:
        size = self._number(row, "sizeInBytes", path)
        return int(size or 0)

    def _machines(self, rows: list[dict[str, Any]]) -> list[TraceMachine]:
        cores, speed = ("count", "speed") if self.version == "1.4" else ("coreCount", "speedInMHz")
        machines = []
        for row in rows:
            cpu = row.get("cpu") or {}
            machines.append(
                TraceMachine(
                    row["nodeName"],
                    row.get("system", ""),
                    row.get("architecture", ""),
                    row.get("release", ""),
                    _whole(row.get("memoryInBytes")),
                    _whole(cpu.get(cores)),
                    _whole(cpu.get(speed)),
                    cpu.get("vendor", ""),
                    "cpu" in row,
                )
            )
        return machines


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)


def _author(row: dict[str, str]) -> Author:
    return Author(row["name"], row["email"], row.get("institution", ""), row.get("country", ""))


def _command(command: dict[str, Any] | None) -> tuple[str, tuple[str, ...]]:
    """Returns program and arguments. The schema defines the field for executed tasks only; elsewhere it may be
    anything."""
    if not isinstance(command, dict):
        return "", ()
    program, arguments = command.get("program", ""), command.get("arguments", [])
    plain = isinstance(program, str) and isinstance(arguments, list) and all(isinstance(one, str) for one in arguments)
    return (program, tuple(arguments)) if plain else ("", ())


def _places(names: list[str]) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for position, name in enumerate(names):
        places.setdefault(name, []).append(position)
    return places
