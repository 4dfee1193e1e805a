"""The syntax tree of a JX expression.

Two nodes are equal if they mean the same, wherever they are in the text. `evaluation` computes the value of a tree,
`printer` writes it as text.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.formats.source_text import SourceText


@dataclass(slots=True, kw_only=True)
class JxNode:
    """Any part of an expression, with its place in the text."""

    position: int = field(default=0, compare=False)


@dataclass(slots=True)
class Constant(JxNode):
    """A number, a string, true, false or null."""

    value: bool | int | float | str | None

    def __eq__(self, other: object) -> bool:
        """Distinguishes 1, 1.0 and true, like the language."""
        if not isinstance(other, Constant):
            return NotImplemented
        return type(self.value) is type(other.value) and repr(self.value) == repr(other.value)

    __hash__ = None  # type: ignore[assignment]  # nodes are compared, not hashed


@dataclass(slots=True)
class Symbol(JxNode):
    """A name, looked up at evaluation."""

    name: str


@dataclass(slots=True)
class ErrorLiteral(JxNode):
    """The literal `error(...)`; its argument is never evaluated."""

    argument: JxNode


@dataclass(slots=True)
class Clause(JxNode):
    """One `for NAME in LIST [if CONDITION]` of a comprehension."""

    variable: str
    elements: JxNode
    condition: JxNode | None


@dataclass(slots=True)
class ListItem(JxNode):
    """One item of a list or one argument, possibly repeated by a comprehension."""

    value: JxNode
    clauses: tuple[Clause, ...] = ()


@dataclass(slots=True)
class ObjectPair(JxNode):
    """One key and value of an object, possibly repeated by a comprehension."""

    key: JxNode
    value: JxNode
    clauses: tuple[Clause, ...] = ()


@dataclass(slots=True)
class ListNode(JxNode):
    """`[...]`"""

    items: tuple[ListItem, ...]
    line: int = field(default=1, compare=False)
    column: int = field(default=1, compare=False)


@dataclass(slots=True)
class ObjectNode(JxNode):
    """`{...}`"""

    pairs: tuple[ObjectPair, ...]
    line: int = field(default=1, compare=False)
    column: int = field(default=1, compare=False)


@dataclass(slots=True)
class Unary(JxNode):
    """`-x`, `+x` or `not x`."""

    operator: str
    operand: JxNode


@dataclass(slots=True)
class Binary(JxNode):
    """`left operator right`. Chains of operators with equal precedence nest on the right-hand side, at any length."""

    operator: str
    left: JxNode
    right: JxNode


@dataclass(slots=True)
class Index(JxNode):
    """`base[index]`"""

    base: JxNode
    index: JxNode


@dataclass(slots=True)
class Slice(JxNode):
    """`base[start:stop]`"""

    base: JxNode
    start: JxNode | None
    stop: JxNode | None


@dataclass(slots=True)
class JxCall(JxNode):
    """`function(arguments)`, or `receiver.function(arguments)`."""

    function: str
    arguments: tuple[ListItem, ...]
    receiver: JxNode | None = None


@dataclass(slots=True)
class Document:
    """A whole expression and the text it was read from."""

    body: JxNode
    source: SourceText = field(compare=False, repr=False)


PRECEDENCE = {
    "*": 1,
    "/": 1,
    "%": 1,
    "+": 2,
    "-": 2,
    "==": 3,
    "!=": 3,
    "<": 3,
    "<=": 3,
    ">": 3,
    ">=": 3,
    "or": 4,
    "and": 5,
}
"""Precedence of binary operators, tightest first; `or` binds tighter than `and`, as in the original."""
