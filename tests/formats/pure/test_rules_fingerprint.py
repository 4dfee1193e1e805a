"""Fingerprints of functions: they follow what the function does and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from textwrap import dedent
from time import process_time
from types import ModuleType

import pytest

from shoal.formats.rules.fingerprint import Fingerprints, fingerprint

TESTS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
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
    program = "from formats.pure.test_rules_fingerprint import USES, digest; print(digest(USES))"
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


@pytest.mark.parametrize(
    ("text", "before", "after"),
    [
        ("import subprocess\nX = subprocess.CompletedProcess(['a'], 1)", "1", "2"),
        ("import subprocess\nX = subprocess.TimeoutExpired('a', 1)", "1", "2"),
        ("import io\nX = io.BytesIO(b'one')", "one", "two"),
        ("import io\nX = io.StringIO('one')", "one", "two"),
        ("import signal\nX = signal.SIGTERM", "SIGTERM", "SIGINT"),
        ("import socket\nX = socket.AF_INET", "INET", "INET6"),
        ("import logging\nX = logging.Formatter('%(message)s')", "message", "name"),
        ("import logging\nX = logging.getLogger('one')", "one", "two"),
        ("import queue\nX = queue.Queue(1)", "1", "2"),
        ("import threading\nX = threading.Semaphore(1)", "1", "2"),
        ("import ctypes\nX = ctypes.c_int(1)", "1", "2"),
        ("import os\nX = os.terminal_size((1, 5))", "1", "2"),
        ("X = {1: 0}.keys()", "1", "2"),
        ("X = {0: [1]}.items()", "1", "2"),
        ("X = memoryview(b'one')", "one", "two"),
        ("import random\nX = random.Random(1).choice", "1", "2"),
        ("import random\nX = random.Random(1).random", "1", "2"),
        ("class T(dict):\n    rate = 1\nX = T.fromkeys", "1", "2"),
        ("class T:\n    def __init__(s, n): s.n = n\n    def go(s): pass\nX = T(1).go", "1", "2"),
        ("class T:\n    def __init__(s, n): s.n = n\n    def go(s): pass\n_inst = T(1)\nX = _inst.go", "1", "2"),
        ("class T:\n    rate = 1\n    @classmethod\n    def go(s): pass\nX = T.go", "1", "2"),
        (
            "from dataclasses import *\n@dataclass\nclass T:\n    n: int = field(metadata={'u': 1})\nX = T",
            "1",
            "2",
        ),
        ("import enum\nclass T(enum.Enum):\n    A = 1\nX = {T.A}", "= 1", "= 2"),
        ("class T:\n    def __init__(s, n): s.n = [n]\nX = {T(0), T(1), T(7)}", "1", "2"),
        ("class T:\n    def __init__(s, n): s.n = [[n]]\nX = {(0, T(0)), (0, T(1))}", "T(1)", "T(2)"),
        ("class T:\n    def __init__(s, n): s.n = [n]\nX = {frozenset([T(0)]), frozenset([T(1)])}", "T(1)", "T(2)"),
        ("def make(n): return lambda: n\nX = {make(n) for n in range(1, 500)}", "1, 500", "2, 501"),
        (
            "class T:\n    def __init__(s, n):\n        for _ in range(30): n = [n]\n        s.n = n\nX = {T(0), T(1)}",
            "T(1)",
            "T(2)",
        ),
    ],
)
def test_objects_that_a_function_uses_count_with_what_they_hold(text: str, before: str, after: str) -> None:
    assert before in text
    text += "\ndef f(t): return X"
    assert digest(text.replace(before, after)) != digest(text)


ALIKE = """
    import functools, io, logging, logging.handlers, os, queue, random, signal, subprocess, tempfile, threading
    from random import random as drawn, shuffle

    FILE = tempfile.NamedTemporaryFile()
    HANDLER = logging.handlers.TimedRotatingFileHandler(FILE.name)
    LOGGER = logging.getLogger("one")
    LOGGER.addHandler(HANDLER)
    CHILD = subprocess.Popen(["true"], stdout=subprocess.PIPE)
    CHILD.communicate()
    THREAD = threading.Thread(target=len, args=([],))
    THREAD.start()
    THREAD.join()
    QUEUE, EVENT, LOCAL, LOCK = queue.Queue(), threading.Event(), threading.local(), threading.RLock()
    BYTES, SIGNALS = io.BytesIO(b"x"), {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    ENVIRONMENT = os.environ

    class Node:
        def __init__(self, name):
            self.name, self.near = [name], set()
    nodes = [Node(number // 2) for number in range(40)]
    for number, one in enumerate(nodes):
        one.near.update((nodes[number - 1], nodes[number - 7], nodes[number // 2]))
        one.all = nodes
    HEAP = {Node(number % 3) for number in range(300)} | {frozenset({"a", "b", "c"}), frozenset({"d", "e"})}

    def f(t):
        return (drawn, shuffle, FILE, HANDLER, LOGGER, CHILD, THREAD, QUEUE, EVENT, LOCAL, LOCK, BYTES, SIGNALS,
                ENVIRONMENT, nodes, HEAP)
"""


def test_what_differs_in_every_process_does_not_count() -> None:
    program = "from formats.pure.test_rules_fingerprint import ALIKE, digest; print(digest(ALIKE))"
    found = []
    for seed in "0123":
        told = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join([*sys.path, TESTS]), "OTHER": seed}
        done = subprocess.run([sys.executable, "-c", program], env=told, capture_output=True, text=True, check=True)
        found.append(done.stdout.strip())
    assert len(set(found)) == 1 and len(found[0]) == 32


def test_large_nets_of_objects_that_look_alike_have_a_fingerprint_soon() -> None:
    text = """
        class Node:
            def __init__(self, name):
                self.name, self.near = [name], set()
        nodes = [Node(name) for name in range(1000)]
        for number, one in enumerate(nodes):
            one.near.update((nodes[number - 1], nodes[number - 7]))
            one.all = nodes
        def f(t):
            return nodes
    """
    began = process_time()
    assert digest(text) != digest(text.replace("(1000)", "(1, 1001)"))
    assert process_time() - began < 10


def loaded_by_path(text: str, name: str) -> dict[str, object]:
    """A module that is not among `sys.modules`, as if loaded by `importlib.util.spec_from_file_location`."""
    names: dict[str, object] = {"__name__": name, "__file__": "/project/tools.py"}
    exec(dedent(text), names)
    return names


@pytest.mark.parametrize("name", ["nosuchmodule", "json"])
def test_code_that_was_loaded_by_its_path_counts_by_it(name: str) -> None:
    names = loaded_by_path("def g(): pass\nclass T:\n    def go(self): pass\nwhole = g", name)
    for used in (names["g"], names["T"]):
        asked: list[str] = []

        def modules(name: str, asked: list[str] = asked) -> str:
            asked.append(name)
            return "text"

        Fingerprints(modules).of(used)
        assert asked == ["/project/tools.py"]


@pytest.mark.parametrize("name", ["nosuchmodule", "json"])
def test_class_that_its_module_does_not_have_is_looked_into(name: str) -> None:
    one, two = (loaded_by_path(f"class T:\n    rate = {rate}", name)["T"] for rate in (1, 2))
    fingerprints = Fingerprints(lambda name: "text")
    assert fingerprints.of(one) != fingerprints.of(two)


def test_code_whose_module_cannot_be_found_is_looked_into() -> None:
    one, two = (loaded_by_path(f"def g(): return {number}", "nosuchmodule")["g"] for number in (1, 2))
    fingerprints = Fingerprints(lambda name: "")
    assert fingerprints.of(one) != fingerprints.of(two)
