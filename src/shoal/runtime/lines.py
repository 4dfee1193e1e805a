"""The connections of a task to its driver, and what is said over them.

They are of `shoal.wire`, with keys of one job server alone. Arguments and answers are pickled: driver and tasks are
parts of one program. Loaded in a task when it asks its driver for the first time.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from shoal.errors import InputError, RunError, ShoalError
from shoal.runner.call_pickle import dumps_by_value
from shoal.wire.access import Access, Role
from shoal.wire.caller import Caller
from shoal.wire.envelope import Codec

AT_ONCE = 8
"""Calls of one task under way, and calls of all tasks that a driver runs at the same time."""


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


class Lines:
    """The connections of one task to its driver: one for each thread that asks at the same time, up to a bound."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._lock = threading.Lock()
        self._room = threading.Semaphore(AT_ONCE)
        self._idle: list[Caller[Message]] = []
        self._is_closed = False
        self._turn = 0

    def call(self, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any], timeout: float) -> Any:
        return self._ask(Called(name, dumps_by_value((arguments, keywords))), timeout)

    def meet(self, value: object, rank: int, ranks: int, timeout: float) -> list[Any]:
        with self._lock:
            self._turn += 1
            turn = self._turn
        found = self._ask(Met(self._driver.task, turn, rank, ranks, dumps_by_value(value)), timeout)
        return [pickle.loads(each) for each in found]

    def _ask(self, message: Message, timeout: float) -> Any:
        began = time.monotonic()
        with self._caller() as caller:
            try:
                answer = caller.ask(message, timeout)
            except ShoalError as error:
                late = time.monotonic() - began >= timeout
                what = f"did not answer within {timeout:g} s" if late else "cannot be asked"
                # The connection speaks of agents, which the driver is not.
                raise RunError(f"the driver of this task {what}" + ("" if late else f": {_said(error)}")) from error
        assert isinstance(answer, Answered)
        if answer.problem:
            raise RunError(answer.problem)
        return pickle.loads(answer.value)

    @contextmanager
    def _caller(self) -> Iterator[Caller[Message]]:
        """A connection that nobody else uses meanwhile."""
        driver = self._driver
        with self._room:
            with self._lock:
                idle = self._idle.pop() if self._idle else None
            caller = idle or Caller(driver.access, make_codec(), role=Role.CLIENT, sender=driver.task)
            try:
                yield caller
            finally:
                with self._lock:
                    is_kept = not self._is_closed
                    if is_kept:
                        self._idle.append(caller)
                if not is_kept:
                    caller.close()

    def close(self) -> None:
        """Those in use are closed by whoever uses them."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for caller in idle:
            caller.close()


def _said(error: ShoalError) -> str:
    return (error.message if isinstance(error, InputError) else str(error)).replace("the agent at", "the driver at")
