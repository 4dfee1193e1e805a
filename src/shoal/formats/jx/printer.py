"""Writes values as JSON and expressions as JX, byte for byte like the original.

The original prints floats with up to 16 digits and without a trailing `.0`, and escapes `'`, too. One exception:
characters beyond ASCII are printed unchanged, because no program can read the original's escapes for them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator

from shoal.errors import InputError
from shoal.formats.jx.nodes import (
    PRECEDENCE,
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
from shoal.formats.jx.values import BUDGET, Value, deep_stack, pairs_of, weight_of

_SPECIAL = re.compile(r"[\x00-\x1f\x7f\"'\\]")
_ESCAPES = {
    '"': '\\"',
    "'": "\\'",
    "\\": "\\\\",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
}


def quoted(text: str) -> str:
    """Returns a string in double quotes."""
    return '"' + _SPECIAL.sub(lambda found: _ESCAPES.get(found[0]) or f"\\u{ord(found[0]):04x}", text) + '"'


def plain(value: bool | int | float | None) -> str:
    """Returns the text of a value that is neither string nor list nor object."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if math.isnan(value):
        return "-nan" if math.copysign(1.0, value) < 0 else "nan"
    return f"{value:.16g}"


def to_json(value: Value, pretty: bool = False) -> str:
    """Returns the value as JSON on one line, or with one item per line."""
    if weight_of(value) > BUDGET:
        raise InputError(f"the value is too large to be printed: it contains more than {BUDGET} values")
    pieces: list[str] = []
    levels = [_pretty(value, 0) if pretty else _compact(value)]
    while levels:  # one generator per level of nesting, instead of recursion
        for piece in levels[-1]:
            if isinstance(piece, str):
                pieces.append(piece)
                continue
            inner, level = piece
            levels.append(_pretty(inner, level) if pretty else _compact(inner))
            break
        else:
            levels.pop()
    return "".join(pieces)


def _compact(value: Value) -> Iterator[str | tuple[Value, int]]:
    """Yields the pieces of a value; a tuple stands for a nested value."""
    if isinstance(value, list):
        yield "["
        for number, item in enumerate(value):
            if number:
                yield ","
            yield item, 0
        yield "]"
    elif isinstance(value, dict):
        yield "{"
        for number, (key, item) in enumerate(pairs_of(value)):
            yield f"{',' if number else ''}{quoted(key)}:"
            yield item, 0
        yield "}"
    else:
        yield quoted(value) if isinstance(value, str) else plain(value)


def _pretty(value: Value, level: int) -> Iterator[str | tuple[Value, int]]:
    indent = "  " * level
    if isinstance(value, list):
        yield f"\n{indent}[\n"
        for number, item in enumerate(value):
            yield (",\n" if number else "") + indent + "  "
            yield item, level + 1
        yield f"\n{indent}]" if value else f"{indent}]"
    elif isinstance(value, dict):
        yield f"\n{indent}{{\n"
        for number, (key, item) in enumerate(pairs_of(value)):
            yield (",\n" if number else "") + f"{indent}  {quoted(key)}:"
            yield item, level + 2
        yield f"\n{indent}}}" if value else f"{indent}}}"
    else:
        yield quoted(value) if isinstance(value, str) else plain(value)


def to_jx(expression: Document | JxNode) -> str:
    """Returns the expression on one line."""
    with deep_stack():
        return _write(expression.body if isinstance(expression, Document) else expression)


def _write(node: JxNode) -> str:
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
    current: JxNode = node
    while isinstance(current, Binary) and PRECEDENCE[current.operator] == level:  # the right-hand side may be long
        pieces.append(_inside(current.left, level - 1))
        pieces.append(f" {current.operator} " if current.operator.isalpha() else current.operator)
        current = current.right
    return "".join(pieces) + _inside(current, level)


def _inside(node: JxNode, level: int) -> str:
    """Returns an operand, in parentheses if they are needed."""
    text = _write(node)
    return f"({text})" if isinstance(node, Binary) and PRECEDENCE[node.operator] > level else text


def _base(node: JxNode) -> str:
    """Returns the text of the operand of an index or a call."""
    text = _write(node)
    loose = isinstance(node, (Binary, Unary, ErrorLiteral)) or (
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


def _items(items: tuple[ListItem, ...]) -> str:
    return ",".join([_write(item.value) + _clauses(item.clauses) for item in items])


def _pair(pair: ObjectPair) -> str:
    return f"{_write(pair.key)}:{_write(pair.value)}{_clauses(pair.clauses)}"


def _slice(node: Slice) -> str:
    start = "" if node.start is None else _write(node.start)
    stop = "" if node.stop is None else _write(node.stop)
    return f"{_base(node.base)}[{start}:{stop}]"


def _call(node: JxCall) -> str:
    receiver = "" if node.receiver is None else f"{_base(node.receiver)}."
    return f"{receiver}{node.function}({_items(node.arguments)})"


def _failure(node: ErrorLiteral) -> str:
    loose = isinstance(node.argument, (Binary, Unary, ErrorLiteral))
    negative = isinstance(node.argument, Constant) and _constant(node.argument).startswith("-")
    text = _write(node.argument)
    return f"error(({text}))" if loose or negative else f"error({text})"


_WRITERS: dict[type[JxNode], Callable[..., str]] = {
    Constant: _constant,
    Symbol: lambda node: node.name,
    ErrorLiteral: _failure,
    Unary: _unary,
    Binary: _binary,
    Index: lambda node: f"{_base(node.base)}[{_write(node.index)}]",
    Slice: _slice,
    JxCall: _call,
    ListNode: lambda node: f"[{_items(node.items)}]",
    ObjectNode: lambda node: f"{{{','.join([_pair(pair) for pair in node.pairs])}}}",
}
