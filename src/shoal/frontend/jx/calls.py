"""Calls of functions: those that need more than their values are done here, the others by `functions`.

`select` and `project` evaluate one of their arguments once for each object, `template` looks names up, `listdir` and
`fetch` look outside.
"""

from __future__ import annotations

from typing import Protocol, TypeGuard

from shoal.errors import InputError
from shoal.frontend.jx.functions import FUNCTIONS, count, expand_template, text_argument
from shoal.frontend.jx.nodes import Call, Item, Node
from shoal.frontend.jx.scope import Definitions, Frame
from shoal.frontend.jx.values import JxFailure, JxList, Outside, Value, kind_of

DEEPEST_TRIAL = 2
"""How many trials may stand inside of each other: without a limit, they would multiply the time until an error."""


class Surroundings(Protocol):
    """What a call needs of the evaluation around it."""

    outside: Outside | None
    definitions: Definitions
    depth: int
    trials: int
    exhausted: bool

    def value(self, node: Node, frame: Frame | None) -> Value: ...

    def arguments(self, items: tuple[Item, ...], frame: Frame | None) -> list[Value]: ...

    def look_up(self, name: str, node: Node, frame: Frame | None) -> Value: ...

    def fetched(self, content: bytes, place: str) -> Value: ...


def perform(around: Surroundings, node: Call, frame: Frame | None) -> Value:
    """What a call yields."""
    name = node.function
    items = node.arguments if node.receiver is None else (Item(node.receiver), *node.arguments)
    if name in ("select", "where", "project"):
        return _on_objects(around, node, items, frame)
    if name in ("listdir", "fetch"):
        return _look_outside(around, node, items, frame)
    if name == "template":
        return _template(around, node, around.arguments(items, frame), frame)
    if name not in FUNCTIONS:
        raise JxFailure("there is no such function")
    arguments = around.arguments(items, frame)
    if name == "like" and node.receiver is not None:
        arguments[:2] = arguments[1::-1]  # text.like(pattern), but like(pattern, text)
    return FUNCTIONS[name](arguments)


def _template(around: Surroundings, node: Call, arguments: list[Value], frame: Frame | None) -> Value:
    count(arguments, 1, 2)
    text = text_argument(arguments, 0, "the template")
    names = arguments[1] if len(arguments) > 1 else {}
    if not isinstance(names, dict):
        raise JxFailure("the second argument must be an object")
    return expand_template(text, lambda name: names[name] if name in names else around.look_up(name, node, frame))


def _on_objects(around: Surroundings, node: Call, items: tuple[Item, ...], frame: Frame | None) -> Value:
    if len(items) != 2 or items[0].clauses or items[1].clauses:
        raise JxFailure("takes an expression and a list of objects")
    objects, each = _told_apart(around, node, items, frame)
    found: list[Value] = []
    for entry in objects:
        assert isinstance(entry, dict)
        value = around.value(each, Frame(entry, frame))
        if node.function == "project":
            found.append(value)
        elif not isinstance(value, bool):
            raise JxFailure(f"the condition is true or false, not {kind_of(value)}")
        elif value:
            found.append(entry)
    return JxList(found)


def _told_apart(
    around: Surroundings, node: Call, items: tuple[Item, ...], frame: Frame | None
) -> tuple[list[Value], Node]:
    """The list of objects and the expression: newer versions of the original take them in the other order."""
    nodes = [item.value for item in items]
    if node.receiver is None:
        nodes.reverse()
    objects, problem = _tried(around, nodes[0], frame)
    if _are_objects(objects):
        return objects, nodes[1]
    if problem is not None and around.trials >= DEEPEST_TRIAL:
        raise problem
    try:
        objects = around.value(nodes[1], frame)
    except InputError as error:
        raise problem or error from None
    if _are_objects(objects):
        return objects, nodes[0]
    raise problem or JxFailure("takes an expression and a list of objects")


def _tried(around: Surroundings, node: Node, frame: Frame | None) -> tuple[Value, InputError | None]:
    """The value of what may be a list of objects, or the error that it is not."""
    depth, readings = around.depth, len(around.definitions.readings)
    around.trials += 1
    try:
        return around.value(node, frame), None
    except InputError as error:
        if around.exhausted:
            raise
        around.depth = depth
        del around.definitions.readings[readings:]
        return None, error
    finally:
        around.trials -= 1


def _are_objects(value: Value) -> TypeGuard[list[Value]]:
    return isinstance(value, list) and all(isinstance(entry, dict) for entry in value)


def _look_outside(around: Surroundings, node: Call, items: tuple[Item, ...], frame: Frame | None) -> Value:
    if around.outside is None:
        raise JxFailure("nothing outside of the file can be looked at here")
    arguments = around.arguments(items, frame)
    count(arguments, 1, 1)
    place = text_argument(arguments, 0, "the path")
    try:
        if node.function == "listdir":
            return JxList(around.outside.listdir(place))
        content = around.outside.fetch(place)
    except OSError as error:
        raise JxFailure(f"{place!r}: {error.strerror or error}") from None
    return around.fetched(content, place)
