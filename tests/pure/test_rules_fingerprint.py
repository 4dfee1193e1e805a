"""Fingerprints of functions: they follow what the function does and nothing else."""

from __future__ import annotations

from functools import partial
from textwrap import dedent

import pytest

from shoal.frontend.rules.fingerprint import fingerprint

BASE = """
    LIMIT = 3
    TABLE = []
    def helper(x):
        return x + 1
    def f(t, k=2):
        return [helper(t) for t in (1, LIMIT) if t in {"a", "b", "c"}], lambda: k, TABLE
"""


def digest(text: str) -> str:
    names: dict[str, object] = {"__name__": "shoal_rules"}
    exec(dedent(text), names)
    function = names["f"]
    assert callable(function)
    return fingerprint(function)


def test_moving_and_commenting_a_function_keeps_its_fingerprint() -> None:
    moved = "\n\n" + BASE.replace("def f(", "# a word\n    def f(").replace("LIMIT = 3", "LIMIT  =  3")
    assert digest(moved) == digest(BASE)
    assert digest(BASE.replace("TABLE = []", "TABLE = [1]")) == digest(BASE)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("k=2", "k=3"),
        ("lambda: k", "lambda: -k"),
        ("(1, LIMIT)", "(2, LIMIT)"),
        ("x + 1", "x + 2"),
        ("LIMIT = 3", "LIMIT = 4"),
        ('"c"}', '"d"}'),
        ("t in {", "t not in {"),
    ],
)
def test_editing_a_function_or_what_it_uses_changes_its_fingerprint(before: str, after: str) -> None:
    assert before in BASE
    assert digest(BASE.replace(before, after)) != digest(BASE)


def test_what_a_function_closes_over_counts() -> None:
    text = "def make(n):\n    def inner(): return n\n    return inner\nf = make({})"
    assert digest(text.format(1)) != digest(text.format(2))
    assert digest(text.format("[1]")) == digest(text.format("[1]"))


def test_functions_that_call_each_other_have_a_fingerprint() -> None:
    text = "def f(n): return g(n)\ndef g(n): return f(n - {})"
    assert digest(text.format(1)) != digest(text.format(2))


def test_partials_and_builtins_have_fingerprints() -> None:
    assert fingerprint(partial(int, base=2)) != fingerprint(partial(int, base=3))
    assert fingerprint(len) != fingerprint(max)
