"""JX: whatever is read either has a meaning or one error with a position, and what is written reads back the same."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import InputError
from shoal.formats.jx import Value, evaluate, parse_json, parse_jx, to_json, to_jx
from shoal.formats.jx.nodes import (
    PRECEDENCE,
    Binary,
    Clause,
    Constant,
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
from shoal.formats.jx.parser import KEYWORDS
from support.fuzz_jx import cases

LARGEST = 2**63 - 1
NAMES = st.from_regex("[A-Za-z_][A-Za-z0-9_]{0,5}", fullmatch=True).filter(lambda name: name not in KEYWORDS)
TEXTS = st.text(max_size=8).map(lambda text: text.replace("\0", ""))
CONSTANTS: st.SearchStrategy[JxNode] = st.builds(
    Constant,
    st.none() | st.booleans() | st.integers(-LARGEST, LARGEST) | st.floats(allow_nan=False) | TEXTS,
)
SYMBOLS: st.SearchStrategy[JxNode] = st.builds(Symbol, NAMES)


def signed(sign: str, operand: JxNode) -> JxNode:
    """A sign before a number is part of the number, so the parser never makes an operator of it."""
    number = isinstance(operand, Constant) and type(operand.value) in (int, float)
    return Unary("not" if number else sign, operand)


def larger(inner: st.SearchStrategy[JxNode]) -> st.SearchStrategy[JxNode]:
    clauses = st.lists(st.builds(Clause, NAMES, inner, st.none() | inner), max_size=2).map(tuple)
    items = st.lists(st.builds(ListItem, inner, clauses), max_size=3).map(tuple)
    pairs = st.lists(st.builds(ObjectPair, inner, inner, clauses), max_size=3).map(tuple)
    return st.one_of(
        st.builds(ListNode, items),
        st.builds(ObjectNode, pairs),
        st.builds(signed, st.sampled_from(["-", "+", "not"]), inner),
        st.builds(Binary, st.sampled_from(sorted(PRECEDENCE)), inner, inner),
        st.builds(Index, inner, inner),
        st.builds(Slice, inner, st.none() | inner, st.none() | inner),
        st.builds(JxCall, NAMES, items),
        st.builds(JxCall, NAMES, items, inner),
        st.builds(ErrorLiteral, inner),
    )


# Fifteen digits survive being printed and read again, sixteen need not.
FLOATS = st.floats(-1e300, 1e300).map(lambda number: float(f"{number:.15g}") or 0.5)
NODES = st.recursive(CONSTANTS | SYMBOLS, larger, max_leaves=12)
VALUES: st.SearchStrategy[Value] = st.recursive(
    st.none() | st.booleans() | st.integers(-LARGEST, LARGEST) | FLOATS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


@given(NODES)
@settings(max_examples=300, deadline=None)
def test_a_written_expression_reads_back_the_same(node: JxNode) -> None:
    assert parse_jx(to_jx(node), "t").body == node


@given(VALUES, st.booleans())
@settings(max_examples=200, deadline=None)
def test_printed_values_read_back_and_print_the_same(value: Value, pretty: bool) -> None:
    text = to_json(value, pretty)
    assert to_json(parse_json(text, "t"), pretty) == text


def outcome(text: bytes) -> str:
    """Reads, evaluates and prints; anything but a value or one InputError with a position fails the test."""
    try:
        document = parse_jx(text, "t")
        to_jx(document)
        return to_json(evaluate(document, {"x": 1}))
    except InputError as error:
        assert error.line is not None and error.line >= 1, error
        assert error.column is not None and error.column >= 1, error
        return str(error)


@given(st.binary(max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_bytes_have_a_value_or_one_error_with_a_position(text: bytes) -> None:
    assert outcome(text)


def test_damaged_expressions_have_a_value_or_one_error_with_a_position() -> None:
    for text in cases(seed=3, count=3000):
        assert outcome(text), text


def test_the_same_damaged_expression_has_the_same_outcome_twice() -> None:
    assert [outcome(text) for text in cases(5, 200)] == [outcome(text) for text in cases(5, 200)]
