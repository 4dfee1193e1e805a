"""Calls from a running task to the program that drives its workflow: `call` a function there, `meet` the other ranks.

In a task that a job server runs, `call("name", ...)` runs the function which the driver registered under that name and
returns what it gave. `meet(value)` is for tasks on several machines: it returns the values of all ranks, in their
order, once all have come. The connection is one of `shoal.wire` with keys of this job server alone. Arguments and
answers are pickled: driver and tasks are parts of one program. The driver's side is `shoal.runtime.desk`.
"""

from __future__ import annotations

import os
import pickle
from typing import Any

import msgspec

from shoal.errors import InputError, RunError
from shoal.runner.call_pickle import dumps_by_value
from shoal.wire.access import Access, Role
from shoal.wire.caller import Caller
from shoal.wire.envelope import Codec

CALL_SECONDS = 300.0
"""A driver that says nothing for so long does not answer any more."""


class Called(msgspec.Struct, frozen=True, tag=True):
    """A task wants a function of the driver to be run."""

    name: str
    arguments: bytes
    """Pickled: positions and keywords."""


class Met(msgspec.Struct, frozen=True, tag=True):
    """A rank of a task has come to where all meet."""

    task: str
    turn: int
    rank: int
    ranks: int
    value: bytes


class Answered(msgspec.Struct, frozen=True, tag=True):
    """What came of it: a pickled value, or a sentence."""

    value: bytes = b""
    problem: str = ""


Message = Called | Met | Answered


def make_codec() -> Codec[Message]:
    return Codec[Message](Message)


class Driver(msgspec.Struct, frozen=True):
    """Where a task finds its driver."""

    access: Access
    task: str
    """Tells this attempt from all others."""


class Line:
    """The connection of one task to its driver."""

    def __init__(self, driver: Driver) -> None:
        self._task = driver.task
        self._caller = Caller(driver.access, make_codec(), role=Role.CLIENT, sender=driver.task)
        self._turn = 0

    def call(self, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any], timeout: float) -> Any:
        return self._ask(Called(name, dumps_by_value((arguments, keywords))), timeout)

    def meet(self, value: object, rank: int, ranks: int, timeout: float) -> list[Any]:
        self._turn += 1
        found = self._ask(Met(self._task, self._turn, rank, ranks, dumps_by_value(value)), timeout)
        return [pickle.loads(each) for each in found]

    def _ask(self, message: Message, timeout: float) -> Any:
        answer = self._caller.ask(message, timeout)
        assert isinstance(answer, Answered)
        if answer.problem:
            raise RunError(answer.problem)
        return pickle.loads(answer.value)

    def close(self) -> None:
        self._caller.close()


_driver: Driver | None = None
_line: Line | None = None


def attach(driver: Driver | None) -> None:
    """From now on this process has this driver; connected when something is asked."""
    global _driver, _line
    if _line is not None:
        _line.close()
    _driver, _line = driver, None


def _connected() -> Line:
    global _line
    if _line is None:
        if _driver is None:
            raise InputError(
                "this process is no task of a job server, so there is no driver to call",
                remedy="call it in a task that shoal.runtime.JobServer runs",
            )
        _line = Line(_driver)
    return _line


def call(name: str, /, *arguments: Any, timeout: float = CALL_SECONDS, **keywords: Any) -> Any:
    """Run a function of the driver, which registered it under this name; raises `RunError` if that failed."""
    return _connected().call(name, arguments, keywords, timeout)


def meet(value: object = None, *, timeout: float = CALL_SECONDS) -> list[Any]:
    """Wait for all ranks of this task; what each of them brought, by rank."""
    rank, ranks = int(os.environ.get("SHOAL_RANK", "0")), int(os.environ.get("SHOAL_RANKS", "1"))
    return _connected().meet(value, rank, ranks, timeout)
