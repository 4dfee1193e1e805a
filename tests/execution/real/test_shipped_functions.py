"""Functions with caches and locks, which `concurrent.futures.ProcessPoolExecutor` runs, and so do we."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.command import PATIENCE, environment, shoal

DEFINITIONS = """
import functools, threading
LOCK, AGAIN, EVENT, OWN = threading.Lock(), threading.RLock(), threading.Event(), threading.local()
CONDITION, PLACES = threading.Condition(), threading.BoundedSemaphore(2)

@functools.cache
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)

@functools.lru_cache(maxsize=3)
def square(x):
    return x * x

class Holder:
    guard = threading.Lock()

    @functools.cached_property
    def value(self):
        return 7

    @staticmethod
    @functools.cache
    def more(x):
        return x + 2

@functools.singledispatch
def kind(x):
    return "other"

@kind.register
def _(x: int):
    return "int"

def value_of(holder):
    with holder.guard:
        return holder.value

def together(n):
    with LOCK, AGAIN, CONDITION, PLACES:
        OWN.x = Holder().value
        return fib(n) + square(2) + OWN.x + Holder.more(1), kind(3), EVENT.is_set()
"""
EXECUTOR = """
if __name__ == "__main__":
    from shoal import Executor
    calls = (together, 10), (fib, 20), (square, 3), (kind, "a"), (Holder.more, 4), (functools.partial(fib, 9),)
    calls += ((value_of, Holder()),)
    with Executor(1) as executor:
        print([executor.submit(function, *arguments).result() for function, *arguments in calls])
        print(executor.submit(square.cache_parameters).result())
"""
RULES = """
from shoal import file, task

@file("result")
def make(t):
    open(t.out, "w").write(repr(together(10)))

@task("also", needs="result")
@functools.cache
def also(t):
    print("also", fib(7))
"""
EXPECTED = "[(69, 'int', False), 6765, 9, 'other', 6, 34, 7]\n{'maxsize': 3, 'typed': False}\n"


def test_executor_runs_functions_with_caches_and_locks(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(DEFINITIONS + EXECUTOR)
    done = subprocess.run(
        [sys.executable, program], env=environment(), capture_output=True, text=True, timeout=PATIENCE * 5
    )
    assert (done.stdout, done.stderr) == (EXPECTED, "")


def test_rules_run_functions_with_caches_and_locks(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(DEFINITIONS + RULES)
    assert "2 tasks done" in shoal(tmp_path, "run").stdout
    assert (tmp_path / "result").read_text() == "(69, 'int', False)"
    assert shoal(tmp_path, "output", "also").stdout.endswith("also 13\n")
    assert shoal(tmp_path, "run").stdout == "nothing to do: 2 tasks are up to date\n"


def test_lock_in_an_argument_is_refused(tmp_path: Path) -> None:
    import threading

    from shoal import Executor
    from shoal.execution.executor.arguments import UnpicklableArgumentError

    with Executor(1) as executor, pytest.raises(UnpicklableArgumentError, match="lock"):
        executor.submit(id, threading.Lock()).result()
