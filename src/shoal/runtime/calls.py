"""Calls from a running task to the program that drives its workflow: `call` a function there, `meet` the other ranks.

In a task that a job server runs, `call("name", ...)` runs the function which the driver registered under that name and
returns what it gave. `meet(value)` is for tasks on several machines: it returns the values of all ranks, in their
order, once all have come. The connections are `shoal.runtime.lines`, the driver's side is `shoal.runtime.desk`. Every
worker loads this module, and few of its tasks ask anything, so the rest is loaded by those who do.
"""

from __future__ import annotations

import os
import threading

from shoal.errors import InputError

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from shoal.runtime.lines import Lines

CALL_SECONDS = 300.0
"""A driver that says nothing for so long does not answer any more."""

_lock = threading.Lock()
_driver: bytes | None = None
_lines: Lines | None = None


def attach(driver: bytes | None) -> None:
    """From now on this process has this driver, a pickled `Driver`; connected when something is asked."""
    global _driver, _lines
    with _lock:
        before = _lines
        _driver, _lines = driver, None
    if before is not None:
        before.close()


def _connected() -> Lines:
    global _lines
    with _lock:
        if _lines is None:
            if _driver is None:
                raise InputError(
                    "this process is no task of a job server, so there is no driver to call",
                    remedy="call it in a task that shoal.runtime.JobServer runs",
                )
            import pickle

            from shoal.runtime.lines import Lines

            _lines = Lines(pickle.loads(_driver))
        return _lines


def call(name: str, /, *arguments: Any, timeout: float = CALL_SECONDS, **keywords: Any) -> Any:
    """Run a function of the driver, which registered it under this name; raises `RunError` if that failed.

    Threads of a task may call at the same time; eight are heard, and the others wait for them.
    """
    return _connected().call(name, arguments, keywords, timeout)


def meet(value: object = None, *, timeout: float = CALL_SECONDS) -> list[Any]:
    """Wait for all ranks of this task; what each of them brought, by rank."""
    rank, ranks = int(os.environ.get("SHOAL_RANK", "0")), int(os.environ.get("SHOAL_RANKS", "1"))
    return _connected().meet(value, rank, ranks, timeout)
