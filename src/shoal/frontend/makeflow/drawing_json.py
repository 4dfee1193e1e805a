"""A Makeflow as the JSON that `makeflow-viz -D json` prints, laid out as the original lays it out.

Unlike the original's, it can be read again: a renamed file has its two names the right way round, the resources of
categories stand under "resources", and a sub-workflow without arguments has none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from shoal.frontend.makeflow.document import DEFAULT_CATEGORY, Makeflow, MakeflowRule
from shoal.frontend.makeflow.drawing import amount_of
from shoal.frontend.makeflow.drawing_order import listing_order

Value = None | bool | int | float | str | list["Value"] | dict[str, "Value"]

_RESOURCES = (
    ("gpus", "GPUS", 0),
    ("mpi-processes", "MPI_PROCESSES", 1),
    ("wall-time", "WALL_TIME", 1),
    ("memory", "MEMORY", 1),
    ("disk", "DISK", 1),
    ("cores", "CORES", 1),
)
"""Name in JSON, name of the variable, and the least amount that is worth saying."""


def draw_json(makeflow: Makeflow) -> Iterator[str]:
    """The pieces of the text."""
    names = backwards(makeflow.categories)
    yield from printed(
        {
            "default_category": makeflow.default_category,
            "categories": {name: _category(makeflow.variables.table(name)) for name in names},
            "rules": [_rule(rule) for rule in makeflow.rules],
        }
    )


def backwards(names: Iterable[str]) -> list[str]:
    """Names as the original prints those of an object: its table's order, the last one first."""
    return listing_order(names)[::-1]


def _category(variables: dict[str, str]) -> dict[str, Value]:
    described: dict[str, Value] = {}
    _describe(described, variables)
    return described


def _describe(described: dict[str, Value], variables: dict[str, str]) -> None:
    """Adds variables and resources, if there are any."""
    if variables:
        described["environment"] = {name: variables[name] for name in backwards(variables)}
    amounts = ((name, amount_of(variables, variable), least) for name, variable, least in _RESOURCES)
    resources: dict[str, Value] = {name: amount for name, amount, least in amounts if amount >= least}
    if resources:
        described["resources"] = resources


def _rule(rule: MakeflowRule) -> dict[str, Value]:
    described: dict[str, Value] = {}
    if rule.workflow:
        if rule.arguments:
            described["args"] = json.loads(rule.arguments)
        described["workflow"] = rule.workflow
    else:
        described["command"] = rule.command
    if rule.local:
        described["local_job"] = True
    there = dict(rule.renames)
    described["inputs"] = [_file(name, there) for name in rule.inputs]
    described["outputs"] = [_file(name, there) for name in rule.outputs]
    _describe(described, dict(rule.variables))
    if rule.category != DEFAULT_CATEGORY:
        described["category"] = rule.category
    if rule.allocation not in ("", "first"):
        described["allocation"] = rule.allocation
    return described


def _file(name: str, there: dict[str, str]) -> Value:
    return {"dag_name": name, "task_name": there[name]} if name in there else name


def printed(value: Value, level: int = 0) -> Iterator[str]:
    """The value with objects and arrays on lines of their own, indented by `level`."""
    margin = " " * level
    if isinstance(value, dict):
        yield f"\n{margin}{{"
        separator = "\n"
        for name, member in value.items():
            yield f"{separator}{margin}  {json.dumps(name, ensure_ascii=False)}:"
            yield from printed(member, level + 4)
            separator = ",\n"
        yield f"\n{margin}}}"
    elif isinstance(value, list):
        yield f"\n{margin}["
        separator = "\n"
        for item in value:
            yield f"{separator}{margin}  "
            yield from printed(item, level + 2)
            separator = ",\n"
        yield f"\n{margin}]"
    else:
        yield json.dumps(value, ensure_ascii=False)
