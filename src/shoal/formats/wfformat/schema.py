"""The schema of WfFormat, and a validator: known and required fields, their types and allowed values.

There is one `SchemaRule` tree per version, with exactly the rules of the published JSON schema. References of ids,
cycles and the like are checked by the reader. As in the schema, unknown fields are allowed everywhere, and `format`
annotations are not checked. The published versions of 1.5 allow different characters in ids; the tree follows the last
one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import msgspec

VERSIONS = ("1.4", "1.5", "1.6")
DEFAULT_VERSION = "1.5"

PLAIN_TASK_ID = "[0-9a-zA-Z_.-]*"
TASK_ID = "[0-9a-zA-Z_.#/-]*"
TASK_ID_16 = "[0-9a-zA-Z_.#:/-]+"
FILE_ID = "[0-9a-zA-Z_./:#-]*"

LEXICAL_PROBLEMS = ("pattern", "length")
"""Kinds of problems that concern the characters of a text only; the reader accepts them."""


class Problem(msgspec.Struct, frozen=True):
    """A violation of the schema."""

    path: str
    """The path of the value, such as `workflow.specification.tasks[3].id`; empty for the whole file."""
    kind: str
    """`type`, `missing`, `minimum`, `choice`, `items`, `pattern` or `length`."""
    message: str


class SchemaRule(msgspec.Struct, frozen=True):
    """The schema of one value."""

    kind: str
    """`text`, `number`, `integer`, `list` or `object`."""
    least: float | None = None
    """Minimum of a number, of the length of a text, or of the number of items."""
    pattern: str = ""
    choices: tuple[str, ...] = ()
    items: SchemaRule | None = None
    fields: Mapping[str, SchemaRule] = {}
    required: tuple[str, ...] = ()


_NAMES = {
    "text": "a string",
    "number": "a number",
    "integer": "a whole number",
    "list": "a list",
    "object": "an object",
}
_TEXT = SchemaRule("text", 1)
_NUMBER = SchemaRule("number")
_COUNT = SchemaRule("integer", 1)
_SIZE = SchemaRule("integer", 0)


def schema_problems(value: Any, version: str | None = None) -> Iterator[Problem]:
    """Yields the violations of the schema of `version`, or of the version that the value names."""
    named = version or (value.get("schemaVersion") if isinstance(value, dict) else None)
    yield from _check(value, rules(named if named in VERSIONS else DEFAULT_VERSION), "")


@cache
def rules(version: str) -> SchemaRule:
    """Returns the schema of a whole file of one version."""
    versions = ("1.0", "1.1", "1.2", "1.3", "1.4") if version == "1.4" else (version,)
    system = _object("name version", name=_TEXT, version=_TEXT, url=_TEXT)
    author = _object("name email", name=_TEXT, email=_TEXT, institution=_TEXT, country=_TEXT)
    fields = {
        "name": _TEXT,
        "description": _TEXT,
        "createdAt": _TEXT,
        "schemaVersion": SchemaRule("text", choices=versions),
        "wms" if version == "1.4" else "runtimeSystem": system,
        "author": author,
        "workflow": _workflow_14() if version == "1.4" else _workflow(version),
    }
    return SchemaRule("object", fields=fields, required=("name", "schemaVersion", "workflow"))


def _object(required: str = "", /, **fields: SchemaRule) -> SchemaRule:
    return SchemaRule("object", fields=fields, required=tuple(required.split()))


def _list(items: SchemaRule, least: float | None = None) -> SchemaRule:
    return SchemaRule("list", least, items=items)


def _workflow_14() -> SchemaRule:
    file = _object(
        "name sizeInBytes link", name=_TEXT, sizeInBytes=_SIZE, link=SchemaRule("text", choices=("input", "output"))
    )
    task = _object(
        "name type",
        name=_TEXT,
        id=_TEXT,
        category=_TEXT,
        type=SchemaRule("text", choices=("compute", "transfer", "auxiliary")),
        command=_command(),
        parents=_list(SchemaRule("text", 1, PLAIN_TASK_ID)),
        files=_list(file),
        runtimeInSeconds=_NUMBER,
        cores=SchemaRule("number", 1),
        energy=_NUMBER,
        avgPower=_NUMBER,
        machine=_TEXT,
        **_MEASURES,
    )
    return _object(
        "makespanInSeconds executedAt tasks",
        makespanInSeconds=_NUMBER,
        executedAt=_TEXT,
        machines=_list(_machine("count", "speed"), 1),
        tasks=_list(task, 1),
    )


def _workflow(version: str) -> SchemaRule:
    latest = version == "1.6"
    task_id = SchemaRule("text", 1, TASK_ID_16) if latest else _TEXT
    relative = task_id if latest else SchemaRule("text", pattern=TASK_ID)
    file_id = SchemaRule("text", 1, FILE_ID)
    task = _object(
        "name id parents children",
        name=_TEXT,
        id=task_id,
        parents=_list(relative),
        children=_list(relative),
        inputFiles=_list(file_id),
        outputFiles=_list(file_id),
    )
    file = _object("id sizeInBytes", id=file_id, sizeInBytes=_SIZE)
    executed = _object(
        "id runtimeInSeconds",
        id=task_id,
        runtimeInSeconds=_NUMBER,
        executedAt=_TEXT,
        command=_command(),
        coreCount=SchemaRule("number", 1),
        energyInKWh=_NUMBER,
        avgPowerInW=_NUMBER,
        machines=_list(_TEXT),
        **_MEASURES,
    )
    specification = {"tasks": _list(task, 1), "files": _list(file)}
    execution = {
        "makespanInSeconds": _NUMBER,
        "executedAt": _TEXT,
        "tasks": _list(executed, 1),
        "machines": _list(_machine("coreCount", "speedInMHz"), 1),
    }
    if latest:
        specification["metrics"] = _object(**dict.fromkeys(SPECIFICATION_METRICS, _SIZE))
        sums = {
            "sumTaskRuntimesInSeconds": SchemaRule("number", 0),
            "totalNumBytesRead": _SIZE,
            "totalNumBytesWritten": _SIZE,
        }
        execution["metrics"] = _object(**sums)
    return _object(
        "specification",
        specification=_object("tasks", **specification),
        execution=_object("makespanInSeconds executedAt tasks", **execution),
    )


SPECIFICATION_METRICS = (
    *("numberOfTasks", "numberOfFiles", "sumOfFileSizesInBytes"),
    *("numberOfLevels", "minimumWidth", "maximumWidth"),
)
_MEASURES = dict.fromkeys(("avgCPU", "readBytes", "writtenBytes", "memoryInBytes", "priority"), _NUMBER)


def _command() -> SchemaRule:
    return _object(program=_TEXT, arguments=_list(_TEXT))


def _machine(cores: str, speed: str) -> SchemaRule:
    return _object(
        "nodeName",
        nodeName=_TEXT,
        system=SchemaRule("text", choices=("linux", "macos", "windows")),
        architecture=_TEXT,
        release=_TEXT,
        memoryInBytes=_COUNT,
        cpu=_object(**{cores: _COUNT, speed: _COUNT, "vendor": _TEXT}),
    )


def _check(value: Any, rule: SchemaRule, path: str) -> Iterator[Problem]:
    if not _IS_KIND[rule.kind](value):
        yield Problem(path, "type", f"must be {_NAMES[rule.kind]}, not {_shown(value)}")
    elif rule.kind == "object":
        yield from _check_object(value, rule, path)
    elif rule.kind == "list":
        if rule.least is not None and len(value) < rule.least:
            yield Problem(path, "items", f"must have at least {_items(rule.least)}")
        assert rule.items is not None
        for position, item in enumerate(value):
            yield from _check(item, rule.items, f"{path}[{position}]")
    elif rule.kind == "text":
        yield from _check_text(value, rule, path)
    elif rule.least is not None and value < rule.least:
        yield Problem(path, "minimum", f"must be at least {rule.least:g}, not {_shown(value)}")


def _check_object(value: dict[str, Any], rule: SchemaRule, path: str) -> Iterator[Problem]:
    for name in rule.required:
        if name not in value:
            yield Problem(path, "missing", f"must have a field {name!r}")
    for name, item in value.items():
        inner = rule.fields.get(name)
        if inner is not None:
            yield from _check(item, inner, f"{path}.{name}" if path else name)


def _check_text(value: str, rule: SchemaRule, path: str) -> Iterator[Problem]:
    if rule.choices and value not in rule.choices:
        yield Problem(path, "choice", f"must be one of {', '.join(rule.choices)}, not {_shown(value)}")
    if rule.least is not None and len(value) < rule.least:
        yield Problem(path, "length", "must not be empty")
    if rule.pattern and not _compiled(rule.pattern).fullmatch(value):
        yield Problem(path, "pattern", f"must match {rule.pattern}, not {_shown(value)}")


_compiled = cache(re.compile)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return _is_number(value) and value == value // 1


_IS_KIND: dict[str, Callable[[Any], bool]] = {
    "text": lambda value: isinstance(value, str),
    "number": _is_number,
    "integer": _is_whole,
    "list": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


def _items(least: float) -> str:
    return "one item" if least == 1 else f"{least:g} items"


def _shown(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else text[:57] + "..."
