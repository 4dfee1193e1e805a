"""The parts of a JX expression after reading.

Two nodes are equal if they mean the same; where they stood in the text does not count. What an expression is worth is
found by `evaluate`, how it is written again by `write`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.frontend.source import Source


@dataclass(slots=True, kw_only=True)
class Node:
    """Any part of an expression, with its place in the text."""

    position: int = field(default=0, compare=False)


@dataclass(slots=True)
class Constant(Node):
    """A number, a string, true, false or null."""

    value: bool | int | float | str | None

    def __eq__(self, other: object) -> bool:
        """Tells 1 from 1.0 and from true, as the language does."""
        if not isinstance(other, Constant):
            return NotImplemented
        return type(self.value) is type(other.value) and repr(self.value) == repr(other.value)

    __hash__ = None  # type: ignore[assignment]  # nodes are compared, not hashed


@dataclass(slots=True)
class Symbol(Node):
    """A name, to be looked up when it is evaluated."""

    name: str


@dataclass(slots=True)
class Failure(Node):
    """The literal `error(...)`; its argument is never evaluated."""

    argument: Node


@dataclass(slots=True)
class Clause(Node):
    """One `for NAME in LIST [if CONDITION]` of a comprehension."""

    variable: str
    elements: Node
    condition: Node | None


@dataclass(slots=True)
class Item(Node):
    """One item of a list or one argument, perhaps repeated by a comprehension."""

    value: Node
    clauses: tuple[Clause, ...] = ()


@dataclass(slots=True)
class Pair(Node):
    """One key and value of an object, perhaps repeated by a comprehension."""

    key: Node
    value: Node
    clauses: tuple[Clause, ...] = ()


@dataclass(slots=True)
class ListNode(Node):
    """`[...]`"""

    items: tuple[Item, ...]
    line: int = field(default=1, compare=False)
    column: int = field(default=1, compare=False)


@dataclass(slots=True)
class ObjectNode(Node):
    """`{...}`"""

    pairs: tuple[Pair, ...]
    line: int = field(default=1, compare=False)
    column: int = field(default=1, compare=False)


@dataclass(slots=True)
class Unary(Node):
    """`-x`, `+x` or `not x`."""

    operator: str
    operand: Node


@dataclass(slots=True)
class Binary(Node):
    """`left operator right`; chains of equal operators nest on the right-hand side, however long they are."""

    operator: str
    left: Node
    right: Node


@dataclass(slots=True)
class Index(Node):
    """`base[index]`"""

    base: Node
    index: Node


@dataclass(slots=True)
class Slice(Node):
    """`base[start:stop]`"""

    base: Node
    start: Node | None
    stop: Node | None


@dataclass(slots=True)
class Call(Node):
    """`function(arguments)`, or `receiver.function(arguments)`."""

    function: str
    arguments: tuple[Item, ...]
    receiver: Node | None = None


@dataclass(slots=True)
class Document:
    """A whole expression and the text it was read from."""

    body: Node
    source: Source = field(compare=False, repr=False)


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
"""How loosely a binary operator binds; `or` binds tighter than `and`, as in the original."""
