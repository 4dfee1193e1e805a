"""Parses JX text, and therefore JSON, into a syntax tree.

As in the original, all binary operators group to the right, `or` binds tighter than `and`, a `;` may end any
expression, a comma may follow the last item, and text after the end of the expression is ignored. Unlike there,
incomplete text is an error.
"""

from __future__ import annotations

import re

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
from shoal.formats.jx.values import NESTING, deep_stack
from shoal.formats.source_text import SourceText

LARGEST_INTEGER = 2**63 - 1
KEYWORDS = frozenset(("null", "true", "false", "or", "and", "not", "for", "in", "if", "error"))
_TOKEN = re.compile(
    r"""
    (?:[ \t\n\r\v\f]+ | \#[^\n\r]*)*
    (?:
        "([^"\\]*(?:\\.[^"\\]*)*)"
        | ([A-Za-z_][A-Za-z0-9_]*)
        | ((?:[0-9]|\.[0-9])(?:[0-9.]|[eE][-+]?)*)
        | (==|!=|<=|>=|&&|\|\||[-+*/%<>!()\[\]{},:;.])
        | ()
    )
    """,
    re.VERBOSE | re.DOTALL,
)
_STRING, _WORD, _NUMBER, _MARK = range(1, 5)
_ESCAPE = re.compile(r"\\(?:u(.{0,4})|(.))", re.DOTALL)
_ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_SPELLINGS = {"&&": "and", "||": "or", "!": "not"}
_DOUBLED = {"=": "==", "&": "&&", "|": "||"}


class JxLexer:
    """Reads one token at a time and keeps its kind, position and value.

    The kind of a keyword or an operator is the word itself; other kinds are name, string, number and end.
    """

    def __init__(self, source: SourceText) -> None:
        self.source = source
        self.text = source.text
        self.end = 0
        self.kind = ""
        self.position = 0
        self.value: int | float | str = ""
        self.advance()

    def advance(self) -> None:
        """Reads the next token."""
        before = self.end
        match = _TOKEN.match(self.text, before)
        assert match is not None  # the last alternative is empty
        group = match.lastindex
        assert group is not None
        found = match[group]
        self.position = match.start(group)
        self.end = match.end()
        if group == _STRING:
            self.position -= 1
            self.kind = "string"
            self.value = self._unescaped(found) if "\\" in found else found
        elif group == _MARK:
            self.kind = _SPELLINGS.get(found, found)
        elif group == _WORD:
            self.kind = found if found in KEYWORDS else "name"
            self.value = found
        elif group == _NUMBER:
            self.kind = "number"
            self.value = self._number(found)
        else:
            self._check_end(before)

    def accept(self, kind: str) -> bool:
        """Reads the next token if the current one has this kind; returns whether it has."""
        if self.kind == kind:
            self.advance()
            return True
        return False

    def shown(self) -> str:
        """Returns the token as it is named in errors."""
        names = {"end": "the end of the text", "string": "a string"}
        return names.get(self.kind) or repr(self.text[self.position : self.end][:40])

    def _check_end(self, before: int) -> None:
        start = self.position
        if start == len(self.text):
            self.kind = "end"
            self.position = before  # errors point behind the last token, where something is missing
            return
        found = self.text[start]
        if found == '"':
            raise self.source.error(start, "this string is not closed", remedy='close it with "')
        if found == "'":
            raise self.source.error(start, "a string must be in double quotes", remedy='write "..."')
        if found in _DOUBLED:
            raise self.source.error(start, f"unknown operator {found}", remedy=f"did you mean {_DOUBLED[found]}?")
        raise self.source.error(start, f"unexpected character {found!r} outside a string")

    def _unescaped(self, text: str) -> str:
        def plain(match: re.Match[str]) -> str:
            digits, other = match.groups()
            if digits is None:
                return _ESCAPED.get(other, other)
            return self._code(self.position + 1 + match.start(), digits)

        return _ESCAPE.sub(plain, text)

    def _code(self, position: int, digits: str) -> str:
        if not re.fullmatch("[0-9A-Fa-f]{4}", digits):
            raise self.source.error(position, r"\u must be followed by four hexadecimal digits")
        code = int(digits, 16)
        if code > 0x7F:
            remedy = "write the character itself"
            raise self.source.error(position, rf"\u{digits} is not an ASCII character", remedy=remedy)
        if code == 0:
            raise self.source.error(position, "a string cannot contain a zero byte")
        return chr(code)

    def _number(self, text: str) -> int | float:
        if text.isdigit():
            digits = text.lstrip("0") or "0"
            return LARGEST_INTEGER if len(digits) > 19 else min(int(digits), LARGEST_INTEGER)
        try:
            return float(text)
        except ValueError:
            raise self.source.error(self.position, f"{text[:40]!r} is not a number") from None


_LITERALS: dict[str, bool | None] = {"null": None, "true": True, "false": False}
_PREFIXES = ("-", "+", "not")
_POSTFIXES = ("[", "(", ".")


def parse_jx(text: bytes | str, source: str) -> Document:
    """Parses the expression at the beginning of the text; `source` is its name in errors."""
    content = SourceText(source, text)
    parser = JxParser(content)
    if parser.lexer.kind == "end":
        raise content.error(len(content.text), "an expression is missing", remedy="the text is empty")
    with deep_stack():
        return Document(parser.expression(), content)


class JxParser:
    """Recursive-descent parser of one text. Counts nesting and raises an error before Python's stack overflows."""

    def __init__(self, source: SourceText) -> None:
        self.source = source
        self.lexer = JxLexer(source)
        self.depth = 0
        self.line_start = 0
        self.placed = 0

    def expression(self) -> JxNode:
        """Parses operands and binary operators, and an optional `;`."""
        self._deeper()
        node = self._operand()
        if self.lexer.kind in PRECEDENCE:
            node = self._chain(node)
        self.lexer.accept(";")
        self.depth -= 1
        return node

    def _chain(self, first: JxNode) -> JxNode:
        """Parses a chain of operands and binary operators.

        An operator is combined with its operands when an operator follows that binds less tightly.
        """
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
            raise self.source.error(self.lexer.position, f"the expression is nested deeper than {NESTING} levels")

    def _operand(self) -> JxNode:
        """Parses an atom with its prefixes, indexes and calls."""
        if self.lexer.kind in _PREFIXES:
            return self._prefixed()
        if self.lexer.kind == "error":
            return self._failure()
        node = self._atom()
        return self._postfix(node) if self.lexer.kind in _POSTFIXES else node

    def _prefixed(self) -> JxNode:
        prefixes: list[tuple[str, int]] = []
        while self.lexer.kind in _PREFIXES:
            self._deeper()
            prefixes.append((self.lexer.kind, self.lexer.position))
            self.lexer.advance()
        node = self._operand()
        for sign, position in reversed(prefixes):
            if sign != "not" and isinstance(node, Constant) and type(node.value) in (int, float):
                # The sign becomes part of the number, so that plain JSON has no operators.
                node = Constant(_negated(node) if sign == "-" else node.value, position=position)
            else:
                node = Unary(sign, node, position=position)
        self.depth -= len(prefixes)
        return node

    def _postfix(self, node: JxNode) -> JxNode:
        """Parses the indexes and calls after an atom."""
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
                node = JxCall(node.name, self._items(")"), position=node.position)
            else:
                raise self.source.error(position, "only a name can be called as a function")
        self.depth -= levels
        return node

    def _method(self, receiver: JxNode) -> JxNode:
        position = self.lexer.position
        name = self._name("expected the name of a function after '.'")
        self._expect("(", f"expected '(' after .{name}")
        return JxCall(name, self._items(")"), receiver, position=position)

    def _index(self, base: JxNode, position: int) -> JxNode:
        start = None if self.lexer.kind == ":" else self.expression()
        if start is not None and self.lexer.kind != ":":
            self._expect("]", "the '[' of an index is not closed")
            return Index(base, start, position=position)
        self.lexer.advance()
        stop = None if self.lexer.kind == "]" else self.expression()
        self._expect("]", "the '[' of an index is not closed")
        return Slice(base, start, stop, position=position)

    def _atom(self) -> JxNode:
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
        self._expect("(", "expected a value")
        node = self.expression()
        self._expect(")", "expected ')'")
        return node

    def _failure(self) -> JxNode:
        position = self.lexer.position
        self.lexer.advance()
        self._expect("(", "expected '(' after 'error'")
        argument = self._postfix(self._atom())
        self._expect(")", "error(...) takes one value without operators, so expected ')'")
        return ErrorLiteral(argument, position=position)

    def _items(self, closing: str) -> tuple[ListItem, ...]:
        items: list[ListItem] = []
        while not self.lexer.accept(closing):
            position = self.lexer.position
            value = self.expression()
            clauses = self._clauses() if self.lexer.kind == "for" else ()
            items.append(ListItem(value, clauses, position=position))
            if not self.lexer.accept(","):
                self._expect(closing, f"expected ',' or '{closing}'")
                break
        return tuple(items)

    def _pairs(self) -> tuple[ObjectPair, ...]:
        pairs: list[ObjectPair] = []
        while not self.lexer.accept("}"):
            position = self.lexer.position
            key = self.expression()
            self._expect(":", "expected ':' after the key")
            value = self.expression()
            clauses = self._clauses() if self.lexer.kind == "for" else ()
            pairs.append(ObjectPair(key, value, clauses, position=position))
            if not self.lexer.accept(","):
                self._expect("}", "expected ',' or '}'")
                break
        return tuple(pairs)

    def _clauses(self) -> tuple[Clause, ...]:
        clauses: list[Clause] = []
        while self.lexer.kind == "for":
            self._deeper()
            position = self.lexer.position
            self.lexer.advance()
            variable = self._name("expected the name of a variable after 'for'")
            self._expect("in", f"expected 'in' after 'for {variable}'")
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
        """Returns line and column. Positions must not decrease from call to call, so that no text is searched twice."""
        self.line_start = self.source.text.rfind("\n", self.placed, position) + 1 or self.line_start
        self.placed = position
        return self.source.line_at(position), position - self.line_start + 1


def _combine(operands: list[JxNode], operators: list[tuple[str, int]]) -> None:
    operator, position = operators.pop()
    right = operands.pop()
    operands[-1] = Binary(operator, operands[-1], right, position=position)


def _negated(node: Constant) -> int | float:
    assert isinstance(node.value, (int, float))
    return -node.value
