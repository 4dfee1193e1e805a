"""Expressions as text: what is written reads back as the same expression.

Close to what `jx2json --noeval` prints, but with the parentheses and decimal points that it leaves out.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from shoal.frontend.jx.limits import deep_stack
from shoal.frontend.jx.nodes import (
    PRECEDENCE,
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
from shoal.frontend.jx.printing import plain, quoted


def to_jx(expression: Document | Node) -> str:
    """The expression on one line."""
    with deep_stack():
        return _write(expression.body if isinstance(expression, Document) else expression)


def _write(node: Node) -> str:
    return _WRITERS[type(node)](node)


def _constant(node: Constant) -> str:
    value = node.value
    if isinstance(value, str):
        return quoted(value)
    if not isinstance(value, float):
        return plain(value)
    if math.isinf(value):
        return "1e999" if value > 0 else "-1e999"
    text = plain(value)
    if float(text) == value and not text.lstrip("-").isdigit():
        return text
    return repr(value)


def _unary(node: Unary) -> str:
    sign = " not " if node.operator == "not" else node.operator
    return sign + (f"({_write(node.operand)})" if isinstance(node.operand, Binary) else _write(node.operand))


def _binary(node: Binary) -> str:
    pieces: list[str] = []
    level = PRECEDENCE[node.operator]
    current: Node = node
    while isinstance(current, Binary) and PRECEDENCE[current.operator] == level:  # the right-hand side may be long
        pieces.append(_inside(current.left, level - 1))
        pieces.append(f" {current.operator} " if current.operator.isalpha() else current.operator)
        current = current.right
    return "".join(pieces) + _inside(current, level)


def _inside(node: Node, level: int) -> str:
    """An operand, in parentheses if it would fall apart without them."""
    text = _write(node)
    return f"({text})" if isinstance(node, Binary) and PRECEDENCE[node.operator] > level else text


def _base(node: Node) -> str:
    """What an index or a call applies to."""
    text = _write(node)
    loose = isinstance(node, (Binary, Unary, Failure)) or (
        isinstance(node, Constant) and not isinstance(node.value, str)
    )
    return f"({text})" if loose else text


def _clauses(clauses: tuple[Clause, ...]) -> str:
    pieces = []
    for clause in clauses:
        pieces.append(f" for {clause.variable} in {_write(clause.elements)}")
        if clause.condition is not None:
            pieces.append(f" if {_write(clause.condition)}")
    return "".join(pieces)


def _items(items: tuple[Item, ...]) -> str:
    return ",".join([_write(item.value) + _clauses(item.clauses) for item in items])


def _pair(pair: Pair) -> str:
    return f"{_write(pair.key)}:{_write(pair.value)}{_clauses(pair.clauses)}"


def _slice(node: Slice) -> str:
    start = "" if node.start is None else _write(node.start)
    stop = "" if node.stop is None else _write(node.stop)
    return f"{_base(node.base)}[{start}:{stop}]"


def _call(node: Call) -> str:
    receiver = "" if node.receiver is None else f"{_base(node.receiver)}."
    return f"{receiver}{node.function}({_items(node.arguments)})"


def _failure(node: Failure) -> str:
    loose = isinstance(node.argument, (Binary, Unary, Failure))
    negative = isinstance(node.argument, Constant) and _constant(node.argument).startswith("-")
    text = _write(node.argument)
    return f"error(({text}))" if loose or negative else f"error({text})"


_WRITERS: dict[type[Node], Callable[..., str]] = {
    Constant: _constant,
    Symbol: lambda node: node.name,
    Failure: _failure,
    Unary: _unary,
    Binary: _binary,
    Index: lambda node: f"{_base(node.base)}[{_write(node.index)}]",
    Slice: _slice,
    Call: _call,
    ListNode: lambda node: f"[{_items(node.items)}]",
    ObjectNode: lambda node: f"{{{','.join([_pair(pair) for pair in node.pairs])}}}",
}
