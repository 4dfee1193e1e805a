"""What an expression is worth.

Names are looked up where they are used, not where they are defined: a definition that mentions `i` sees the `i` of the
comprehension it is used in. The original works so and files rely on it. Values of definitions are remembered together
with the names they have read, and used again wherever none of these means something else.

Unlike the original there are no error values: the first error ends the evaluation.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping

from shoal.errors import InputError
from shoal.frontend.jx.calls import perform
from shoal.frontend.jx.limits import BUDGET, EVALUATION_DEPTH, deep_stack
from shoal.frontend.jx.nodes import (
    Binary,
    Call,
    Clause,
    Constant,
    Document,
    Failure,
    Index,
    Item,
    ListNode,
    Node,
    ObjectNode,
    Pair,
    Slice,
    Symbol,
    Unary,
)
from shoal.frontend.jx.operators import apply_binary, apply_unary
from shoal.frontend.jx.parser import parse_jx
from shoal.frontend.jx.scope import Definitions, Frame
from shoal.frontend.jx.values import JxFailure, JxList, JxObject, Outside, Value, adopt, kind_of, weight_of
from shoal.frontend.jx.writing import to_jx


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
        self.definitions = Definitions(document.body)
        self.outside = outside
        self.only_data = False
        self.depth = 0
        self.trials = 0
        self.exhausted = False
        self.left = BUDGET
        self.line_starts: list[int] = []

    def value(self, node: Node, frame: Frame | None) -> Value:
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

    def deeper(self, node: Node) -> None:
        self.depth += 1
        if self.depth > EVALUATION_DEPTH:
            self.exhausted = True
            raise self.error(node, "this goes too deep", "is something defined by itself?")

    def error(self, node: Node, message: str, remedy: str | None = None) -> InputError:
        return self.source.error(node.position, message, remedy=remedy)

    def spend(self, node: Node, value: Value) -> Value:
        """Charges for a value that an operation has made."""
        self.left -= weight_of(value)
        if self.left < 0:
            self.exhausted = True
            raise self.error(node, f"the expression yields more than {BUDGET} values")
        return value

    def held(self, node: Node, frame: Frame | None) -> Value:
        """The value of an item; charges for it, for whole lists may be held many times without being copied."""
        value = self.value(node, frame)
        self.left -= 1 if type(node) in (Constant, ListNode, ObjectNode) else weight_of(value)
        if self.left < 0:
            self.exhausted = True
            raise self.error(node, f"the expression yields more than {BUDGET} values")
        return value

    def symbol(self, node: Symbol, frame: Frame | None) -> Value:
        return self.look_up(node.name, node, frame)

    def look_up(self, name: str, node: Node, frame: Frame | None) -> Value:
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

    def failure(self, node: Failure, frame: Frame | None) -> Value:
        argument = node.argument
        text = argument.value if isinstance(argument, Constant) and isinstance(argument.value, str) else to_jx(argument)
        raise self.error(node, f"error: {text}")

    def unary(self, node: Unary, frame: Frame | None) -> Value:
        return apply_unary(node.operator, self.value(node.operand, frame))

    def binary(self, node: Binary, frame: Frame | None) -> Value:
        """Walks along the right-hand sides first, for a chain may be long, and then back."""
        waiting: list[tuple[Binary, Value]] = []
        current: Node = node
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

    def _bound(self, node: Node | None, default: int, base: list[Value], frame: Frame | None) -> int:
        bound = default if node is None else self.value(node, frame)
        if not isinstance(bound, int) or isinstance(bound, bool):
            assert node is not None
            raise self.error(node, f"the bounds of a slice are whole numbers, not {kind_of(bound)}")
        return bound if bound >= 0 else bound + len(base)

    def array(self, node: ListNode, frame: Frame | None) -> Value:
        return JxList(self.items(node.items, frame), self.source.name, node.line, node.column)

    def items(self, items: tuple[Item, ...], frame: Frame | None) -> list[Value]:
        found: list[Value] = []
        for item in items:
            if not item.clauses:
                found.append(self.held(item.value, frame))
                continue

            def add(inner: Frame | None, item: Item = item) -> None:
                found.append(self.held(item.value, inner))

            self.turns(item.clauses, 0, frame, add)
        return found

    def arguments(self, items: tuple[Item, ...], frame: Frame | None) -> list[Value]:
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

            def add(inner: Frame | None, pair: Pair = pair) -> None:
                pairs.append((self.key(pair, inner), self.held(pair.value, inner)))

            self.turns(pair.clauses, 0, frame, add)
        return JxObject(pairs, self.source.name, node.line, node.column)

    def key(self, pair: Pair, frame: Frame | None) -> str:
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

    def call(self, node: Call, frame: Frame | None) -> Value:
        try:
            return self.spend(node, self.placed(perform(self, node, frame), node))
        except JxFailure as failure:
            raise self.error(node, f"{node.function}: {failure.message}", failure.remedy) from None

    def fetched(self, content: bytes, place: str) -> Value:
        return constant(parse_jx(content, place))

    def placed(self, value: Value, node: Node) -> Value:
        """Gives a list or object without a place the place of the operation that made it."""
        if isinstance(value, (JxList, JxObject)) and not value.line:
            if not self.line_starts:
                self.line_starts = [0, *(match.end() for match in re.finditer("\n", self.source.text))]
            value.file = self.source.name
            value.line = bisect_right(self.line_starts, node.position)
            value.column = node.position - self.line_starts[value.line - 1] + 1
        return value


_EVALUATE: dict[type[Node], Callable[..., Value]] = {
    Symbol: Evaluator.symbol,
    Failure: Evaluator.failure,
    Unary: Evaluator.unary,
    Binary: Evaluator.binary,
    Index: Evaluator.index,
    Slice: Evaluator.part,
    Call: Evaluator.call,
    ListNode: Evaluator.array,
    ObjectNode: Evaluator.record,
}
