"""Reading JX text, and with it JSON, into nodes.

Kept as in the original: all binary operators group to the right, `or` binds tighter than `and`, a `;` may end any
expression, a comma may follow the last item, and text behind the end of the expression is ignored. Unlike there, text
that breaks off in the middle is an error.
"""

from __future__ import annotations

from shoal.frontend.jx.limits import NESTING, deep_stack
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
from shoal.frontend.jx.tokens import Lexer
from shoal.frontend.source import Source

_LITERALS: dict[str, bool | None] = {"null": None, "true": True, "false": False}
_PREFIXES = ("-", "+", "not")
_POSTFIXES = ("[", "(", ".")


def parse_jx(text: bytes | str, source: str) -> Document:
    """The expression at the beginning of the text; `source` is the name that errors give to it."""
    content = Source(source, text)
    parser = Parser(content)
    if parser.lexer.kind == "end":
        raise content.error(len(content.text), "there is no expression here", remedy="the text is empty")
    with deep_stack():
        return Document(parser.expression(), content)


class Parser:
    """Recursive descent over the tokens of one text; nesting is counted, so that it ends in an error in good time."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.lexer = Lexer(source)
        self.depth = 0
        self.line_start = 0
        self.placed = 0

    def expression(self) -> Node:
        """Operands and binary operators, and the `;` that may follow."""
        self._deeper()
        node = self._operand()
        if self.lexer.kind in PRECEDENCE:
            node = self._chain(node)
        self.lexer.accept(";")
        self.depth -= 1
        return node

    def _chain(self, first: Node) -> Node:
        """Operands with operators between them; an operator takes its operands when a looser one follows."""
        operands = [first]
        operators: list[tuple[str, int]] = []
        while (kind := self.lexer.kind) in PRECEDENCE:
            while operators and PRECEDENCE[operators[-1][0]] < PRECEDENCE[kind]:
                _combine(operands, operators)
            operators.append((kind, self.lexer.position))
            self.lexer.advance()
            operands.append(self._operand())
        while operators:
            _combine(operands, operators)
        return operands[0]

    def _deeper(self) -> None:
        self.depth += 1
        if self.depth > NESTING:
            raise self.source.error(self.lexer.position, f"this nests deeper than {NESTING} levels")

    def _operand(self) -> Node:
        """An atom with its prefixes and what follows it directly."""
        if self.lexer.kind in _PREFIXES:
            return self._prefixed()
        if self.lexer.kind == "error":
            return self._failure()
        node = self._atom()
        return self._postfix(node) if self.lexer.kind in _POSTFIXES else node

    def _prefixed(self) -> Node:
        prefixes: list[tuple[str, int]] = []
        while self.lexer.kind in _PREFIXES:
            self._deeper()
            prefixes.append((self.lexer.kind, self.lexer.position))
            self.lexer.advance()
        node = self._operand()
        for sign, position in reversed(prefixes):
            if sign != "not" and isinstance(node, Constant) and type(node.value) in (int, float):
                # The sign belongs to the number, so that plain JSON has no operators.
                node = Constant(_negated(node) if sign == "-" else node.value, position=position)
            else:
                node = Unary(sign, node, position=position)
        self.depth -= len(prefixes)
        return node

    def _postfix(self, node: Node) -> Node:
        """The indexes and calls behind an atom."""
        levels = 0
        while (kind := self.lexer.kind) in _POSTFIXES:
            self._deeper()
            levels += 1
            position = self.lexer.position
            self.lexer.advance()
            if kind == "[":
                node = self._index(node, position)
            elif kind == ".":
                node = self._method(node)
            elif isinstance(node, Symbol):
                node = Call(node.name, self._items(")"), position=node.position)
            else:
                raise self.source.error(position, "only a name can be called as a function")
        self.depth -= levels
        return node

    def _method(self, receiver: Node) -> Node:
        position = self.lexer.position
        name = self._name("a '.' is followed by the name of a function")
        self._expect("(", f"the call .{name} has no '('")
        return Call(name, self._items(")"), receiver, position=position)

    def _index(self, base: Node, position: int) -> Node:
        start = None if self.lexer.kind == ":" else self.expression()
        if start is not None and self.lexer.kind != ":":
            self._expect("]", "the '[' of an index is not closed")
            return Index(base, start, position=position)
        self.lexer.advance()
        stop = None if self.lexer.kind == "]" else self.expression()
        self._expect("]", "the '[' of an index is not closed")
        return Slice(base, start, stop, position=position)

    def _atom(self) -> Node:
        lexer = self.lexer
        kind, value, position = lexer.kind, lexer.value, lexer.position
        if kind in ("string", "number"):
            lexer.advance()
            return Constant(value, position=position)
        if kind == "{":
            line, column = self._place(position)
            lexer.advance()
            return ObjectNode(self._pairs(), line, column, position=position)
        if kind == "[":
            line, column = self._place(position)
            lexer.advance()
            return ListNode(self._items("]"), line, column, position=position)
        if kind == "name":
            lexer.advance()
            return Symbol(str(value), position=position)
        if kind in _LITERALS:
            lexer.advance()
            return Constant(_LITERALS[kind], position=position)
        self._expect("(", "a value is missing")
        node = self.expression()
        self._expect(")", "a '(' is not closed")
        return node

    def _failure(self) -> Node:
        position = self.lexer.position
        self.lexer.advance()
        self._expect("(", "'error' is followed by '('")
        argument = self._postfix(self._atom())
        self._expect(")", "error(...) takes one value without operators")
        return Failure(argument, position=position)

    def _items(self, closing: str) -> tuple[Item, ...]:
        items: list[Item] = []
        while not self.lexer.accept(closing):
            position = self.lexer.position
            value = self.expression()
            clauses = self._clauses() if self.lexer.kind == "for" else ()
            items.append(Item(value, clauses, position=position))
            if not self.lexer.accept(","):
                self._expect(closing, f"here should stand ',' or '{closing}'")
                break
        return tuple(items)

    def _pairs(self) -> tuple[Pair, ...]:
        pairs: list[Pair] = []
        while not self.lexer.accept("}"):
            position = self.lexer.position
            key = self.expression()
            self._expect(":", "a key is followed by ':'")
            value = self.expression()
            clauses = self._clauses() if self.lexer.kind == "for" else ()
            pairs.append(Pair(key, value, clauses, position=position))
            if not self.lexer.accept(","):
                self._expect("}", "here should stand ',' or '}'")
                break
        return tuple(pairs)

    def _clauses(self) -> tuple[Clause, ...]:
        clauses: list[Clause] = []
        while self.lexer.kind == "for":
            self._deeper()
            position = self.lexer.position
            self.lexer.advance()
            variable = self._name("'for' is followed by the name of a variable")
            self._expect("in", f"'for {variable}' is followed by 'in'")
            elements = self.expression()
            condition = self.expression() if self.lexer.accept("if") else None
            clauses.append(Clause(variable, elements, condition, position=position))
        self.depth -= len(clauses)
        return tuple(clauses)

    def _name(self, complaint: str) -> str:
        name = str(self.lexer.value)
        self._expect("name", complaint)
        return name

    def _expect(self, kind: str, complaint: str) -> None:
        if not self.lexer.accept(kind):
            raise self.source.error(self.lexer.position, f"{complaint}, not {self.lexer.shown()}")

    def _place(self, position: int) -> tuple[int, int]:
        """Line and column; asked for in the order of the text, so that each stretch is searched once."""
        self.line_start = self.source.text.rfind("\n", self.placed, position) + 1 or self.line_start
        self.placed = position
        return self.source.line_at(position), position - self.line_start + 1


def _combine(operands: list[Node], operators: list[tuple[str, int]]) -> None:
    operator, position = operators.pop()
    right = operands.pop()
    operands[-1] = Binary(operator, operands[-1], right, position=position)


def _negated(node: Constant) -> int | float:
    assert isinstance(node.value, (int, float))
    return -node.value
