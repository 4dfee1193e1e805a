"""What an expression is worth.

Names are looked up where they are used, not where they are defined: a definition that mentions `i` sees the `i` of the
comprehension it is used in. The original works so and files rely on it. Values of definitions are remembered together
with the names they have read, and used again wherever none of these means something else.

Unlike the original there are no error values: the first error ends the evaluation.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, TypeGuard

from shoal.errors import InputError
from shoal.formats.jx.functions import FUNCTIONS, apply_binary, apply_unary, count, expand_template, text_argument
from shoal.formats.jx.nodes import (
    Binary,
    Clause,
    Constant,
    Document,
    ErrorLiteral,
    Index,
    JxCall,
    JxNode,
    ListItem,
    ListNode,
    ObjectNode,
    ObjectPair,
    Slice,
    Symbol,
    Unary,
)
from shoal.formats.jx.parser import parse_jx
from shoal.formats.jx.printer import to_jx
from shoal.formats.jx.values import (
    BUDGET,
    EVALUATION_DEPTH,
    JxFailure,
    JxList,
    JxObject,
    Outside,
    Value,
    adopt,
    deep_stack,
    kind_of,
    weight_of,
)

_NONE_READ = 1 << 62


class Frame:
    """Local names, of one turn of a comprehension or of the fields of one object, before those of the frame around."""

    __slots__ = ("around", "depth", "names")

    def __init__(self, names: Mapping[str, Value], around: Frame | None) -> None:
        self.names = names
        self.around = around
        self.depth: int = 1 if around is None else around.depth + 1

    def find(self, name: str) -> Frame | None:
        """The innermost frame that has this name."""
        frame: Frame | None = self
        while frame is not None and name not in frame.names:
            frame = frame.around
        return frame


@dataclass(slots=True)
class NameUse:
    """What an evaluation under way has read: global names, and the outermost frame of which it read a local name."""

    depth: int
    names: dict[str, None] = field(default_factory=dict)
    outermost: int = _NONE_READ


class JxDefinitions:
    """The `define` of a document, and the values found so far."""

    def __init__(self, body: JxNode) -> None:
        self.bodies: dict[str, JxNode] = {}
        self.readings: list[NameUse] = []
        self.known: dict[str, tuple[Value, NameUse]] = {}
        for pair in _literal_pairs(body)[::-1]:
            if pair[0] == "define":
                self.bodies = dict(_literal_pairs(pair[1]))

    def note_local(self, depth: int) -> None:
        if self.readings and depth < self.readings[-1].outermost:
            self.readings[-1].outermost = depth

    def note_global(self, name: str) -> None:
        if self.readings:
            self.readings[-1].names[name] = None

    def remembered(self, name: str, frame: Frame | None) -> tuple[Value] | None:
        """The value of a definition if it is known and holds here."""
        known = self.known.get(name)
        if known is None:
            return None
        value, reading = known
        if frame is not None and any(frame.find(read) is not None for read in reading.names):
            return None
        self._pass_on(reading)
        return (value,)

    def begin(self, frame: Frame | None) -> NameUse:
        """A definition is about to be evaluated in this frame."""
        reading = NameUse(0 if frame is None else frame.depth)
        self.readings.append(reading)
        return reading

    def end(self, name: str, reading: NameUse, value: Value) -> None:
        """It has been evaluated: remembers its value if that does not depend on local names around it."""
        self.readings.pop()
        self._pass_on(reading)
        if reading.outermost > reading.depth:
            self.known[name] = (value, reading)

    def _pass_on(self, reading: NameUse) -> None:
        """What a definition has read, the one that uses it has read as well."""
        if self.readings:
            self.readings[-1].names.update(reading.names)
            self.note_local(reading.outermost)


def _literal_pairs(node: JxNode) -> list[tuple[str, JxNode]]:
    """The pairs of an object whose keys are written out."""
    if not isinstance(node, ObjectNode):
        return []
    return [
        (pair.key.value, pair.value)
        for pair in node.pairs
        if not pair.clauses and isinstance(pair.key, Constant) and isinstance(pair.key.value, str)
    ]


DEEPEST_TRIAL = 2
"""How many trials may stand inside of each other: without a limit, they would multiply the time until an error."""


class CallContext(Protocol):
    """What a call needs of the evaluation around it."""

    outside: Outside | None
    definitions: JxDefinitions
    depth: int
    trials: int
    exhausted: bool

    def value(self, node: JxNode, frame: Frame | None) -> Value: ...

    def arguments(self, items: tuple[ListItem, ...], frame: Frame | None) -> list[Value]: ...

    def look_up(self, name: str, node: JxNode, frame: Frame | None) -> Value: ...

    def fetched(self, content: bytes, place: str) -> Value: ...


def perform(around: CallContext, node: JxCall, frame: Frame | None) -> Value:
    """What a call yields."""
    name = node.function
    items = node.arguments if node.receiver is None else (ListItem(node.receiver), *node.arguments)
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


def _template(around: CallContext, node: JxCall, arguments: list[Value], frame: Frame | None) -> Value:
    count(arguments, 1, 2)
    text = text_argument(arguments, 0, "the template")
    names = arguments[1] if len(arguments) > 1 else {}
    if not isinstance(names, dict):
        raise JxFailure("the second argument must be an object")
    return expand_template(text, lambda name: names[name] if name in names else around.look_up(name, node, frame))


def _on_objects(around: CallContext, node: JxCall, items: tuple[ListItem, ...], frame: Frame | None) -> Value:
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
    around: CallContext, node: JxCall, items: tuple[ListItem, ...], frame: Frame | None
) -> tuple[list[Value], JxNode]:
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


def _tried(around: CallContext, node: JxNode, frame: Frame | None) -> tuple[Value, InputError | None]:
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


def _look_outside(around: CallContext, node: JxCall, items: tuple[ListItem, ...], frame: Frame | None) -> Value:
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


def evaluate(document: Document, context: Mapping[str, Value], outside: Outside | None = None) -> Value:
    """The value of a document; `context` has precedence over the document's own `define`."""
    evaluator = Evaluator(document, context, outside)
    with deep_stack():
        return evaluator.value(document.body, None)


def constant(document: Document) -> Value:
    """The value of a document that must be plain data."""
    evaluator = Evaluator(document, {}, None)
    evaluator.only_data = True
    with deep_stack():
        return evaluator.value(document.body, None)


class Evaluator:
    """One evaluation: the names it knows, and what it may still cost."""

    def __init__(self, document: Document, context: Mapping[str, Value], outside: Outside | None) -> None:
        self.source = document.source
        self.given = {name: adopt(value) for name, value in context.items()}
        self.definitions = JxDefinitions(document.body)
        self.outside = outside
        self.only_data = False
        self.depth = 0
        self.trials = 0
        self.exhausted = False
        self.left = BUDGET
        self.line_starts: list[int] = []

    def value(self, node: JxNode, frame: Frame | None) -> Value:
        """The value of a node, with every problem named at its place in the text."""
        if type(node) is Constant:
            return node.value
        if self.only_data and not isinstance(node, (ListNode, ObjectNode)):
            raise self.error(node, "this is an expression, and only plain data can stand here")
        self.deeper(node)
        try:
            found: Value = _EVALUATE[type(node)](self, node, frame)
        except JxFailure as failure:
            raise self.error(node, failure.message, failure.remedy) from None
        self.depth -= 1
        return found

    def deeper(self, node: JxNode) -> None:
        self.depth += 1
        if self.depth > EVALUATION_DEPTH:
            self.exhausted = True
            raise self.error(node, "this goes too deep", "is something defined by itself?")

    def error(self, node: JxNode, message: str, remedy: str | None = None) -> InputError:
        return self.source.error(node.position, message, remedy=remedy)

    def spend(self, node: JxNode, value: Value) -> Value:
        """Charges for a value that an operation has made."""
        self.left -= weight_of(value)
        if self.left < 0:
            self.exhausted = True
            raise self.error(node, f"the expression yields more than {BUDGET} values")
        return value

    def held(self, node: JxNode, frame: Frame | None) -> Value:
        """The value of an item; charges for it, for whole lists may be held many times without being copied."""
        value = self.value(node, frame)
        self.left -= 1 if type(node) in (Constant, ListNode, ObjectNode) else weight_of(value)
        if self.left < 0:
            self.exhausted = True
            raise self.error(node, f"the expression yields more than {BUDGET} values")
        return value

    def symbol(self, node: Symbol, frame: Frame | None) -> Value:
        return self.look_up(node.name, node, frame)

    def look_up(self, name: str, node: JxNode, frame: Frame | None) -> Value:
        holder = frame.find(name) if frame is not None else None
        if holder is not None:
            self.definitions.note_local(holder.depth)
            return holder.names[name]
        self.definitions.note_global(name)
        if name in self.given:
            return self.given[name]
        body = self.definitions.bodies.get(name)
        if body is None:
            raise self.error(node, f"{name!r} is not defined")
        known = self.definitions.remembered(name, frame)
        if known is not None:
            return known[0]
        reading = self.definitions.begin(frame)
        found = self.value(body, frame)
        self.definitions.end(name, reading, found)
        return found

    def failure(self, node: ErrorLiteral, frame: Frame | None) -> Value:
        argument = node.argument
        text = argument.value if isinstance(argument, Constant) and isinstance(argument.value, str) else to_jx(argument)
        raise self.error(node, f"error: {text}")

    def unary(self, node: Unary, frame: Frame | None) -> Value:
        return apply_unary(node.operator, self.value(node.operand, frame))

    def binary(self, node: Binary, frame: Frame | None) -> Value:
        """Walks along the right-hand sides first, for a chain may be long, and then back."""
        waiting: list[tuple[Binary, Value]] = []
        current: JxNode = node
        while isinstance(current, Binary):
            left = self.value(current.left, frame)
            if left is (current.operator == "or") and current.operator in ("and", "or"):
                break
            waiting.append((current, left))
            current = current.right
        else:
            left = self.value(current, frame)
        result = left
        for step, left in reversed(waiting):
            try:
                result = apply_binary(step.operator, left, result)
            except JxFailure as failure:
                raise self.error(step, failure.message, failure.remedy) from None
            if isinstance(result, (str, list)):
                self.spend(step, self.placed(result, step))
        return result

    def index(self, node: Index, frame: Frame | None) -> Value:
        base, index = self.value(node.base, frame), self.value(node.index, frame)
        if isinstance(base, dict) and isinstance(index, str):
            if index not in base:
                raise self.error(node, f"the object has no key {index!r}")
            return base[index]
        if isinstance(base, list) and isinstance(index, int) and not isinstance(index, bool):
            if not -len(base) <= index < len(base):
                raise self.error(node, f"the list has {len(base)} items, and none with the index {index}")
            return base[index]
        raise self.error(node, f"{kind_of(base)} cannot be indexed with {kind_of(index)}")

    def part(self, node: Slice, frame: Frame | None) -> Value:
        base = self.value(node.base, frame)
        if not isinstance(base, list):
            raise self.error(node, f"only lists have slices, and this is {kind_of(base)}")
        start, stop = self._bound(node.start, 0, base, frame), self._bound(node.stop, len(base), base, frame)
        return self.spend(node, self.placed(JxList(base[max(start, 0) : max(stop, 0)]), node))

    def _bound(self, node: JxNode | None, default: int, base: list[Value], frame: Frame | None) -> int:
        bound = default if node is None else self.value(node, frame)
        if not isinstance(bound, int) or isinstance(bound, bool):
            assert node is not None
            raise self.error(node, f"the bounds of a slice are whole numbers, not {kind_of(bound)}")
        return bound if bound >= 0 else bound + len(base)

    def array(self, node: ListNode, frame: Frame | None) -> Value:
        return JxList(self.items(node.items, frame), self.source.name, node.line, node.column)

    def items(self, items: tuple[ListItem, ...], frame: Frame | None) -> list[Value]:
        found: list[Value] = []
        for item in items:
            if not item.clauses:
                found.append(self.held(item.value, frame))
                continue

            def add(inner: Frame | None, item: ListItem = item) -> None:
                found.append(self.held(item.value, inner))

            self.turns(item.clauses, 0, frame, add)
        return found

    def arguments(self, items: tuple[ListItem, ...], frame: Frame | None) -> list[Value]:
        """Arguments are held by nobody, unless a comprehension yields them."""
        if any(item.clauses for item in items):
            return self.items(items, frame)
        return [self.value(item.value, frame) for item in items]

    def record(self, node: ObjectNode, frame: Frame | None) -> Value:
        pairs: list[tuple[str, Value]] = []
        for pair in node.pairs:
            if not pair.clauses:
                pairs.append((self.key(pair, frame), self.held(pair.value, frame)))
                continue

            def add(inner: Frame | None, pair: ObjectPair = pair) -> None:
                pairs.append((self.key(pair, inner), self.held(pair.value, inner)))

            self.turns(pair.clauses, 0, frame, add)
        return JxObject(pairs, self.source.name, node.line, node.column)

    def key(self, pair: ObjectPair, frame: Frame | None) -> str:
        key = self.value(pair.key, frame)
        if not isinstance(key, str):
            raise self.error(pair, f"a key must be a string, not {kind_of(key)}")
        return key

    def turns(
        self, clauses: tuple[Clause, ...], number: int, frame: Frame | None, act: Callable[[Frame | None], None]
    ) -> None:
        """Acts once in each turn of a comprehension, or just once if there is none."""
        if number == len(clauses):
            act(frame)
            return
        clause = clauses[number]
        if self.only_data:
            raise self.error(clause, "this is a comprehension, and only plain data can stand here")
        self.deeper(clause)
        elements = self.value(clause.elements, frame)
        if not isinstance(elements, list):
            raise self.error(clause, f"a comprehension goes over a list, not over {kind_of(elements)}")
        for element in elements:
            inner = Frame({clause.variable: element}, frame)
            if clause.condition is not None:
                wanted = self.value(clause.condition, inner)
                if not isinstance(wanted, bool):
                    raise self.error(clause.condition, f"a condition is true or false, not {kind_of(wanted)}")
                if not wanted:
                    continue
            self.turns(clauses, number + 1, inner, act)
        self.depth -= 1

    def call(self, node: JxCall, frame: Frame | None) -> Value:
        try:
            return self.spend(node, self.placed(perform(self, node, frame), node))
        except JxFailure as failure:
            raise self.error(node, f"{node.function}: {failure.message}", failure.remedy) from None

    def fetched(self, content: bytes, place: str) -> Value:
        return constant(parse_jx(content, place))

    def placed(self, value: Value, node: JxNode) -> Value:
        """Gives a list or object without a place the place of the operation that made it."""
        if isinstance(value, (JxList, JxObject)) and not value.line:
            if not self.line_starts:
                self.line_starts = [0, *(match.end() for match in re.finditer("\n", self.source.text))]
            value.file = self.source.name
            value.line = bisect_right(self.line_starts, node.position)
            value.column = node.position - self.line_starts[value.line - 1] + 1
        return value


_EVALUATE: dict[type[JxNode], Callable[..., Value]] = {
    Symbol: Evaluator.symbol,
    ErrorLiteral: Evaluator.failure,
    Unary: Evaluator.unary,
    Binary: Evaluator.binary,
    Index: Evaluator.index,
    Slice: Evaluator.part,
    JxCall: Evaluator.call,
    ListNode: Evaluator.array,
    ObjectNode: Evaluator.record,
}


Setting: TypeAlias = tuple[Literal["args", "define"], str]
"""`("args", name of a file)` or `("define", "NAME=EXPRESSION")`."""


def read_context(
    settings: Iterable[Setting],
    read: Callable[[str], bytes],
    outside: Outside | None = None,
    *,
    first_counts: bool = False,
) -> dict[str, Value]:
    """The names that the settings define; `read` gives the content of a file.

    Of several definitions of a name the last counts. With `first_counts` it is the first, and a file overrules all
    definitions: so does `jx2json`, whereas `makeflow` behaves as one expects.
    """
    newest: dict[str, Value] = {}
    oldest: dict[str, Value] = {}
    for kind, text in settings:
        if kind == "args":
            found = _file(text, read, newest, outside)
            oldest.update(found)
            newest = newest | found if not first_counts else dict(oldest)
        else:
            name, value = _definition(text, newest, outside)
            newest[name] = value
            oldest.setdefault(name, value)
    return oldest if first_counts else newest


def _file(
    name: str, read: Callable[[str], bytes], known: dict[str, Value], outside: Outside | None
) -> dict[str, Value]:
    found = evaluate(parse_jx(read(name), name), known, outside)
    if not isinstance(found, dict):
        raise InputError("a file of definitions holds an object", file=name, remedy='write { "NAME": VALUE, ... }')
    return found


def _definition(text: str, known: dict[str, Value], outside: Outside | None) -> tuple[str, Value]:
    name, equals, expression = text.partition("=")
    if not equals:
        raise InputError(f"the definition {text!r} has no '='", remedy="write NAME=EXPRESSION")
    return name, evaluate(parse_jx(expression, f"definition of {name}"), known, outside)
