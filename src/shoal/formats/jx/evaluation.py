"""Evaluates JX expressions, and reads the definitions given on a command line.

Scoping is dynamic: names are looked up where they are used, not where they are defined. A definition that mentions `i`
sees the `i` of the comprehension in which it is used. The original works this way, and existing files rely on it. The
value of a definition is cached together with the names that it has read, and reused where these names mean the same.

Unlike in the original there are no error values: the first error ends the evaluation.
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
    ExternalAccess,
    JxFailure,
    JxList,
    JxObject,
    Value,
    deep_stack,
    kind_of,
    to_jx_value,
    weight_of,
)

_NONE_READ = 1 << 62


class Frame:
    """Local names of one iteration of a comprehension or of one object's fields, with the enclosing frame."""

    __slots__ = ("depth", "names", "outer")

    def __init__(self, names: Mapping[str, Value], outer: Frame | None) -> None:
        self.names = names
        self.outer = outer
        self.depth: int = 1 if outer is None else outer.depth + 1

    def find(self, name: str) -> Frame | None:
        """Returns the innermost frame that has this name."""
        frame: Frame | None = self
        while frame is not None and name not in frame.names:
            frame = frame.outer
        return frame


@dataclass(slots=True)
class NameUse:
    """The names that a running evaluation has read: global names, and the depth of the outermost frame it read from."""

    depth: int
    names: dict[str, None] = field(default_factory=dict)
    outermost: int = _NONE_READ


class JxDefinitions:
    """The `define` of a document, with a cache of the values computed so far."""

    def __init__(self, body: JxNode) -> None:
        self.bodies: dict[str, JxNode] = {}
        self.uses: list[NameUse] = []
        self.cache: dict[str, tuple[Value, NameUse]] = {}
        for pair in _literal_pairs(body)[::-1]:
            if pair[0] == "define":
                self.bodies = dict(_literal_pairs(pair[1]))

    def note_local(self, depth: int) -> None:
        if self.uses and depth < self.uses[-1].outermost:
            self.uses[-1].outermost = depth

    def note_global(self, name: str) -> None:
        if self.uses:
            self.uses[-1].names[name] = None

    def cached(self, name: str, frame: Frame | None) -> tuple[Value] | None:
        """Returns the cached value of a definition, in a tuple, if it is valid in this frame; else None."""
        known = self.cache.get(name)
        if known is None:
            return None
        value, use = known
        if frame is not None and any(frame.find(read) is not None for read in use.names):
            return None
        self._propagate(use)
        return (value,)

    def begin(self, frame: Frame | None) -> NameUse:
        """Starts to record the names that the evaluation of a definition reads."""
        use = NameUse(0 if frame is None else frame.depth)
        self.uses.append(use)
        return use

    def end(self, name: str, use: NameUse, value: Value) -> None:
        """Ends the recording, and caches the value unless it depends on local names of enclosing frames."""
        self.uses.pop()
        self._propagate(use)
        if use.outermost > use.depth:
            self.cache[name] = (value, use)

    def _propagate(self, use: NameUse) -> None:
        """Adds the names that a definition has read to those of the definition that uses it."""
        if self.uses:
            self.uses[-1].names.update(use.names)
            self.note_local(use.outermost)


def _literal_pairs(node: JxNode) -> list[tuple[str, JxNode]]:
    """Returns the pairs of an object whose keys are literals."""
    if not isinstance(node, ObjectNode):
        return []
    return [
        (pair.key.value, pair.value)
        for pair in node.pairs
        if not pair.clauses and isinstance(pair.key, Constant) and isinstance(pair.key.value, str)
    ]


MAX_NESTED_TRIALS = 2
"""Maximum nesting of trial evaluations. Without a limit, the time until an error would grow exponentially."""


class CallContext(Protocol):
    """The part of the evaluator that function calls need."""

    outside: ExternalAccess | None
    definitions: JxDefinitions
    depth: int
    trials: int
    exhausted: bool

    def value(self, node: JxNode, frame: Frame | None) -> Value: ...

    def arguments(self, items: tuple[ListItem, ...], frame: Frame | None) -> list[Value]: ...

    def look_up(self, name: str, node: JxNode, frame: Frame | None) -> Value: ...

    def fetched(self, content: bytes, place: str) -> Value: ...


def perform(evaluation: CallContext, node: JxCall, frame: Frame | None) -> Value:
    """Evaluates a function call."""
    name = node.function
    items = node.arguments if node.receiver is None else (ListItem(node.receiver), *node.arguments)
    if name in ("select", "where", "project"):
        return _on_objects(evaluation, node, items, frame)
    if name in ("listdir", "fetch"):
        return _read_outside(evaluation, node, items, frame)
    if name == "template":
        return _template(evaluation, node, evaluation.arguments(items, frame), frame)
    if name not in FUNCTIONS:
        raise JxFailure("unknown function")
    arguments = evaluation.arguments(items, frame)
    if name == "like" and node.receiver is not None:
        arguments[:2] = arguments[1::-1]  # text.like(pattern), but like(pattern, text)
    return FUNCTIONS[name](arguments)


def _template(evaluation: CallContext, node: JxCall, arguments: list[Value], frame: Frame | None) -> Value:
    count(arguments, 1, 2)
    text = text_argument(arguments, 0, "the template")
    names = arguments[1] if len(arguments) > 1 else {}
    if not isinstance(names, dict):
        raise JxFailure("the second argument must be an object")
    return expand_template(text, lambda name: names[name] if name in names else evaluation.look_up(name, node, frame))


def _on_objects(evaluation: CallContext, node: JxCall, items: tuple[ListItem, ...], frame: Frame | None) -> Value:
    if len(items) != 2 or items[0].clauses or items[1].clauses:
        raise JxFailure("takes an expression and a list of objects")
    objects, each = _objects_and_expression(evaluation, node, items, frame)
    found: list[Value] = []
    for entry in objects:
        assert isinstance(entry, dict)
        value = evaluation.value(each, Frame(entry, frame))
        if node.function == "project":
            found.append(value)
        elif not isinstance(value, bool):
            raise JxFailure(f"the condition must be true or false, not {kind_of(value)}")
        elif value:
            found.append(entry)
    return JxList(found)


def _objects_and_expression(
    evaluation: CallContext, node: JxCall, items: tuple[ListItem, ...], frame: Frame | None
) -> tuple[list[Value], JxNode]:
    """Returns the list of objects and the expression, in whichever order they are given.

    Newer versions of the original take them in the other order, so the first argument is evaluated on trial.
    """
    nodes = [item.value for item in items]
    if node.receiver is None:
        nodes.reverse()
    objects, problem = _try_value(evaluation, nodes[0], frame)
    if _are_objects(objects):
        return objects, nodes[1]
    if problem is not None and evaluation.trials >= MAX_NESTED_TRIALS:
        raise problem
    try:
        objects = evaluation.value(nodes[1], frame)
    except InputError as error:
        raise problem or error from None
    if _are_objects(objects):
        return objects, nodes[0]
    raise problem or JxFailure("takes an expression and a list of objects")


def _try_value(evaluation: CallContext, node: JxNode, frame: Frame | None) -> tuple[Value, InputError | None]:
    """Evaluates a node on trial: returns its value, or the error."""
    depth, uses = evaluation.depth, len(evaluation.definitions.uses)
    evaluation.trials += 1
    try:
        return evaluation.value(node, frame), None
    except InputError as error:
        if evaluation.exhausted:
            raise
        evaluation.depth = depth
        del evaluation.definitions.uses[uses:]
        return None, error
    finally:
        evaluation.trials -= 1


def _are_objects(value: Value) -> TypeGuard[list[Value]]:
    return isinstance(value, list) and all(isinstance(entry, dict) for entry in value)


def _read_outside(evaluation: CallContext, node: JxCall, items: tuple[ListItem, ...], frame: Frame | None) -> Value:
    if evaluation.outside is None:
        raise JxFailure("other files cannot be read here")
    arguments = evaluation.arguments(items, frame)
    count(arguments, 1, 1)
    place = text_argument(arguments, 0, "the path")
    try:
        if node.function == "listdir":
            return JxList(evaluation.outside.listdir(place))
        content = evaluation.outside.fetch(place)
    except OSError as error:
        raise JxFailure(f"{place!r}: {error.strerror or error}") from None
    return evaluation.fetched(content, place)


def evaluate(document: Document, context: Mapping[str, Value], outside: ExternalAccess | None = None) -> Value:
    """Returns the value of a document; `context` has precedence over the document's own `define`."""
    evaluator = Evaluator(document, context, outside)
    with deep_stack():
        return evaluator.value(document.body, None)


def constant(document: Document) -> Value:
    """Returns the value of a document that must be plain data."""
    evaluator = Evaluator(document, {}, None)
    evaluator.only_data = True
    with deep_stack():
        return evaluator.value(document.body, None)


class Evaluator:
    """One evaluation of a document, with its names and its remaining budget."""

    def __init__(self, document: Document, context: Mapping[str, Value], outside: ExternalAccess | None) -> None:
        self.source = document.source
        self.context = {name: to_jx_value(value) for name, value in context.items()}
        self.definitions = JxDefinitions(document.body)
        self.outside = outside
        self.only_data = False
        self.depth = 0
        self.trials = 0
        self.exhausted = False
        self.budget = BUDGET
        self.line_starts: list[int] = []

    def value(self, node: JxNode, frame: Frame | None) -> Value:
        """Returns the value of a node; errors point to the node's position."""
        if type(node) is Constant:
            return node.value
        if self.only_data and not isinstance(node, (ListNode, ObjectNode)):
            raise self.error(node, "expected plain data, not an expression")
        self.enter(node)
        try:
            found: Value = _EVALUATE[type(node)](self, node, frame)
        except JxFailure as failure:
            raise self.error(node, failure.message, failure.remedy) from None
        self.depth -= 1
        return found

    def enter(self, node: JxNode) -> None:
        self.depth += 1
        if self.depth > EVALUATION_DEPTH:
            self.exhausted = True
            raise self.error(node, "the expression is nested too deeply", "check for definitions that use themselves")

    def error(self, node: JxNode, message: str, remedy: str | None = None) -> InputError:
        return self.source.error(node.position, message, remedy=remedy)

    def spend(self, node: JxNode, value: Value) -> Value:
        """Charges the budget for a value that an operation has produced."""
        self.budget -= weight_of(value)
        if self.budget < 0:
            self.exhausted = True
            raise self.error(node, f"the expression yields more than {BUDGET} values")
        return value

    def item_value(self, node: JxNode, frame: Frame | None) -> Value:
        """Returns the value of an item and charges the budget for it: a list can be an item many times without a
        copy."""
        value = self.value(node, frame)
        self.budget -= 1 if type(node) in (Constant, ListNode, ObjectNode) else weight_of(value)
        if self.budget < 0:
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
        if name in self.context:
            return self.context[name]
        body = self.definitions.bodies.get(name)
        if body is None:
            raise self.error(node, f"{name!r} is not defined")
        known = self.definitions.cached(name, frame)
        if known is not None:
            return known[0]
        use = self.definitions.begin(frame)
        found = self.value(body, frame)
        self.definitions.end(name, use, found)
        return found

    def raise_error(self, node: ErrorLiteral, frame: Frame | None) -> Value:
        argument = node.argument
        text = argument.value if isinstance(argument, Constant) and isinstance(argument.value, str) else to_jx(argument)
        raise self.error(node, f"error: {text}")

    def unary(self, node: Unary, frame: Frame | None) -> Value:
        return apply_unary(node.operator, self.value(node.operand, frame))

    def binary(self, node: Binary, frame: Frame | None) -> Value:
        """Evaluates a chain of operators without recursion: first along the right-hand sides, then back."""
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
                self.spend(step, self.with_place(result, step))
        return result

    def index(self, node: Index, frame: Frame | None) -> Value:
        base, index = self.value(node.base, frame), self.value(node.index, frame)
        if isinstance(base, dict) and isinstance(index, str):
            if index not in base:
                raise self.error(node, f"the object has no key {index!r}")
            return base[index]
        if isinstance(base, list) and isinstance(index, int) and not isinstance(index, bool):
            if not -len(base) <= index < len(base):
                raise self.error(node, f"index {index} is out of range: the list has {len(base)} items")
            return base[index]
        raise self.error(node, f"{kind_of(base)} cannot be indexed with {kind_of(index)}")

    def slice(self, node: Slice, frame: Frame | None) -> Value:
        base = self.value(node.base, frame)
        if not isinstance(base, list):
            raise self.error(node, f"only lists can be sliced, not {kind_of(base)}")
        start, stop = self._bound(node.start, 0, base, frame), self._bound(node.stop, len(base), base, frame)
        return self.spend(node, self.with_place(JxList(base[max(start, 0) : max(stop, 0)]), node))

    def _bound(self, node: JxNode | None, default: int, base: list[Value], frame: Frame | None) -> int:
        bound = default if node is None else self.value(node, frame)
        if not isinstance(bound, int) or isinstance(bound, bool):
            assert node is not None
            raise self.error(node, f"the bounds of a slice must be whole numbers, not {kind_of(bound)}")
        return bound if bound >= 0 else bound + len(base)

    def array(self, node: ListNode, frame: Frame | None) -> Value:
        return JxList(self.items(node.items, frame), self.source.name, node.line, node.column)

    def items(self, items: tuple[ListItem, ...], frame: Frame | None) -> list[Value]:
        found: list[Value] = []
        for item in items:
            if not item.clauses:
                found.append(self.item_value(item.value, frame))
                continue

            def add(inner: Frame | None, item: ListItem = item) -> None:
                found.append(self.item_value(item.value, inner))

            self.iterate(item.clauses, 0, frame, add)
        return found

    def arguments(self, items: tuple[ListItem, ...], frame: Frame | None) -> list[Value]:
        """Evaluates arguments. They are not charged to the budget, unless a comprehension produces them."""
        if any(item.clauses for item in items):
            return self.items(items, frame)
        return [self.value(item.value, frame) for item in items]

    def object(self, node: ObjectNode, frame: Frame | None) -> Value:
        pairs: list[tuple[str, Value]] = []
        for pair in node.pairs:
            if not pair.clauses:
                pairs.append((self.key(pair, frame), self.item_value(pair.value, frame)))
                continue

            def add(inner: Frame | None, pair: ObjectPair = pair) -> None:
                pairs.append((self.key(pair, inner), self.item_value(pair.value, inner)))

            self.iterate(pair.clauses, 0, frame, add)
        return JxObject(pairs, self.source.name, node.line, node.column)

    def key(self, pair: ObjectPair, frame: Frame | None) -> str:
        key = self.value(pair.key, frame)
        if not isinstance(key, str):
            raise self.error(pair, f"a key must be a string, not {kind_of(key)}")
        return key

    def iterate(
        self, clauses: tuple[Clause, ...], number: int, frame: Frame | None, act: Callable[[Frame | None], None]
    ) -> None:
        """Calls `act` once per iteration of a comprehension, or once if there is no clause."""
        if number == len(clauses):
            act(frame)
            return
        clause = clauses[number]
        if self.only_data:
            raise self.error(clause, "expected plain data, not a comprehension")
        self.enter(clause)
        elements = self.value(clause.elements, frame)
        if not isinstance(elements, list):
            raise self.error(clause, f"a comprehension needs a list, not {kind_of(elements)}")
        for element in elements:
            inner = Frame({clause.variable: element}, frame)
            if clause.condition is not None:
                wanted = self.value(clause.condition, inner)
                if not isinstance(wanted, bool):
                    raise self.error(clause.condition, f"a condition must be true or false, not {kind_of(wanted)}")
                if not wanted:
                    continue
            self.iterate(clauses, number + 1, inner, act)
        self.depth -= 1

    def call(self, node: JxCall, frame: Frame | None) -> Value:
        try:
            return self.spend(node, self.with_place(perform(self, node, frame), node))
        except JxFailure as failure:
            raise self.error(node, f"{node.function}: {failure.message}", failure.remedy) from None

    def fetched(self, content: bytes, place: str) -> Value:
        return constant(parse_jx(content, place))

    def with_place(self, value: Value, node: JxNode) -> Value:
        """Sets the position of a list or object that has none to that of the operation that made it."""
        if isinstance(value, (JxList, JxObject)) and not value.line:
            if not self.line_starts:
                self.line_starts = [0, *(match.end() for match in re.finditer("\n", self.source.text))]
            value.file = self.source.name
            value.line = bisect_right(self.line_starts, node.position)
            value.column = node.position - self.line_starts[value.line - 1] + 1
        return value


_EVALUATE: dict[type[JxNode], Callable[..., Value]] = {
    Symbol: Evaluator.symbol,
    ErrorLiteral: Evaluator.raise_error,
    Unary: Evaluator.unary,
    Binary: Evaluator.binary,
    Index: Evaluator.index,
    Slice: Evaluator.slice,
    JxCall: Evaluator.call,
    ListNode: Evaluator.array,
    ObjectNode: Evaluator.object,
}


Setting: TypeAlias = tuple[Literal["args", "define"], str]
"""`("args", name of a file)` or `("define", "NAME=EXPRESSION")`."""


def read_context(
    settings: Iterable[Setting],
    read: Callable[[str], bytes],
    outside: ExternalAccess | None = None,
    *,
    first_counts: bool = False,
) -> dict[str, Value]:
    """Returns the names that the settings define; `read` returns the content of a file.

    If a name is defined several times, the last definition counts, as in `makeflow`. With `first_counts` the first one
    counts, and a file overrides all definitions, as in `jx2json`.
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
    name: str, read: Callable[[str], bytes], known: dict[str, Value], outside: ExternalAccess | None
) -> dict[str, Value]:
    found = evaluate(parse_jx(read(name), name), known, outside)
    if not isinstance(found, dict):
        raise InputError("a file of definitions must be an object", file=name, remedy='write { "NAME": VALUE, ... }')
    return found


def _definition(text: str, known: dict[str, Value], outside: ExternalAccess | None) -> tuple[str, Value]:
    name, equals, expression = text.partition("=")
    if not equals:
        raise InputError(f"the definition {text!r} has no '='", remedy="write NAME=EXPRESSION")
    return name, evaluate(parse_jx(expression, f"definition of {name}"), known, outside)
