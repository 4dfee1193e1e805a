"""Fingerprints of functions: they follow what the function does and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from textwrap import dedent
from types import ModuleType

import pytest

from shoal.frontend.rules.fingerprint import Fingerprints, fingerprint

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BASE = """
    LIMIT = 3
    TABLE = []
    def helper(x):
        return x + 1
    def f(t, k=2):
        return [helper(t) for t in (1, LIMIT) if t in {"a", "b", "c"}], lambda: k, TABLE
"""


def digest(text: str) -> str:
    module = ModuleType("shoal_rules")
    names = module.__dict__
    sys.modules["shoal_rules"] = module  # where dataclasses look for it
    try:
        exec(dedent(text), names)
    finally:
        del sys.modules["shoal_rules"]
    function = names["f"]
    assert callable(function)
    return fingerprint(function)


def test_moving_and_commenting_a_function_keeps_its_fingerprint() -> None:
    moved = "\n\n" + BASE.replace("def f(", "# a word\n    def f(").replace("LIMIT = 3", "LIMIT  =  3")
    assert digest(moved) == digest(BASE)
    assert digest(BASE + "\n    UNUSED = 7\n    name = 'of an attribute only'") == digest(BASE)


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
        ("TABLE = []", "TABLE = [1]"),
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


USES = """
    import functools, re, sys, threading, random, collections, datetime, decimal, enum
    from dataclasses import dataclass, field
    from pathlib import Path
    from random import choice

    P = Path("data/one")
    WORD = re.compile("[a-z]+", re.I)
    TABLE = {"a": 1, "b": [2, {"c": (3,)}]}
    NAMES = {"one", "two", "three", ("four", 4)}
    class Words(set):
        pass
    WORDS = Words({"alpha", "beta", "gamma", "delta"})
    WHEN = datetime.date(2020, 1, 5)
    COST = decimal.Decimal("1.5")
    COUNTS = collections.Counter(x=6)
    GET = TABLE.get
    LOCK = threading.Lock()
    EVENT = threading.Event()
    LOG = sys.__stdout__

    class Base:
        def scale(self):
            return 7

    class Model(Base):
        rate = 8
        def __init__(self, size=9):
            self.size = size
        @property
        def area(self):
            return self.size * 10
        @staticmethod
        def twice(x):
            return x * 11
        @classmethod
        def make(cls):
            return cls(12)

    @dataclass
    class Point:
        x: int = 13
        y: list = field(default_factory=lambda: [14])

    class Colour(enum.Enum):
        RED = 15

    Pair = collections.namedtuple("Pair", "left right", defaults=[16])
    MODEL = Model(17)
    POINT = Point(18)
    POINTS = {Pair(19, 20), Colour.RED}
    OBJECTS = {MODEL}
    MODEL.others = OBJECTS

    @functools.cache
    def cached(x):
        return x + 21

    def twice(function):
        @functools.wraps(function)
        def both(*words):
            return function(*words), 22
        return both

    @twice
    def wrapped(x):
        return x + 23

    def power(base, exponent):
        return base ** exponent
    square = functools.partial(power, exponent=24)

    def loop(x):
        return loop(x - 25)

    def f(t):
        with LOCK, LOG:
            pass
        choice([1])
        EVENT.set()
        return (P, WORD, TABLE, NAMES, WHEN, COST, COUNTS, GET, Model, Point, Colour.RED, Pair(1), MODEL, POINT, POINTS,
                OBJECTS, WORDS, cached, wrapped, square, loop)
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"data/one"', '"data/two"'),
        ("[a-z]+", "[a-y]+"),
        ("re.I", "re.M"),
        ('"a": 1', '"a": 2'),
        ("(3,)", "(4,)"),
        ('"three"', '"four"'),
        ('("four", 4)', '("four", 5)'),
        ('"gamma"', '"omega"'),
        ("1, 5", "1, 6"),
        ('"1.5"', '"1.6"'),
        ("x=6", "x=7"),
        ("return 7", "return 8"),
        ("rate = 8", "rate = 9"),
        ("size=9", "size=10"),
        ("* 10", "* 11"),
        ("x * 11", "x * 12"),
        ("cls(12)", "cls(13)"),
        ("= 13", "= 14"),
        ("[14]", "[15]"),
        ("RED = 15", "RED = 16"),
        ("defaults=[16]", "defaults=[17]"),
        ("Model(17)", "Model(18)"),
        ("Point(18)", "Point(19)"),
        ("Pair(19, 20)", "Pair(19, 21)"),
        ("x + 21", "x + 22"),
        ("words), 22", "words), 23"),
        ("x + 23", "x + 24"),
        ("exponent=24", "exponent=25"),
        ("x - 25", "x - 26"),
        ("class Model(Base)", "class Model"),
        ("        @property\n", ""),
    ],
)
def test_editing_anything_that_a_function_uses_changes_its_fingerprint(before: str, after: str) -> None:
    assert before in USES
    assert digest(USES.replace(before, after)) != digest(USES)


def test_fingerprints_are_the_same_in_every_process() -> None:
    program = "from pure.test_rules_fingerprint import USES, digest; print(digest(USES))"
    found = {digest(USES)}
    for seed in "01234":
        told = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join([*sys.path, TESTS])}
        found.add(
            subprocess.run([sys.executable, "-c", program], env=told, capture_output=True, text=True).stdout.strip()
        )
    assert len(found) == 1


def test_objects_that_refer_to_each_other_through_sets_have_a_fingerprint() -> None:
    text = """
        class Node:
            def __init__(self, name):
                self.name, self.near = name, set()
        nodes = [Node(name) for name in range(30)]
        for one in nodes:
            one.near.update(nodes)
        nodes[3].name = {}
        def f(t):
            return nodes
    """
    assert digest(text.format(1)) == digest(text.format(1)) != digest(text.format(2))


def test_very_long_chains_of_helpers_and_deep_values_do_not_recurse() -> None:
    text = "deep = None\nfor _ in range(5000):\n    deep = [deep]\n" + "".join(
        f"def f{number}(t):\n    return f{number + 1}(t), deep\n" for number in range(2000)
    )
    assert len(digest(f"{text}\nf = f0")) == 32


def test_what_many_functions_share_is_walked_once() -> None:
    looked: list[str] = []

    def modules(name: str) -> str:
        looked.append(name)
        return name

    names: dict[str, object] = {"__name__": "shoal_rules"}
    exec("import json\ntable = [json] * 1000\nmade = [lambda t, n=n: table[n] for n in range(50)]", names)
    made = names["made"]
    assert isinstance(made, list)
    fingerprints = Fingerprints(modules)
    assert len({fingerprints.of(function) for function in made}) == 50
    assert looked == ["json"]


def test_modules_that_a_function_imports_are_asked_about() -> None:
    names: dict[str, object] = {"__name__": "shoal_rules"}
    exec("import os.path\ndef f(t):\n    import one.two\n    from three import four\n    return os.path", names)
    asked: list[str] = []

    def modules(name: str) -> str:
        asked.append(name)
        return "text"

    Fingerprints(modules).of(names["f"])
    assert {"os", "one.two", "three", "three.four"} <= set(asked)
