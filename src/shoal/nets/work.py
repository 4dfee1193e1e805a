"""What a node is sent for a task of a net: a function that times the user's own, or runs a command."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from shoal.errors import RunError

SHOWN_BYTES = 2000
"""The end of what a failed command wrote that is told with its failure."""


class Timed(msgspec.Struct, frozen=True):
    """What a task gave, when it ran and the processor time it took there."""

    value: Any
    started: float
    ended: float
    cpu: float


def timed(function: Callable[..., Any]) -> Callable[..., Timed]:
    """The function as it is sent to nodes, once for all its calls."""

    def perform(*arguments: Any, **keywords: Any) -> Timed:
        started, cpu = time.time(), time.process_time()
        value = function(*arguments, **keywords)
        return Timed(value, started, time.time(), time.process_time() - cpu)

    perform.__name__ = perform.__qualname__ = getattr(function, "__name__", "task")
    return perform


def run_command(line: str, environment: Mapping[str, str], directory: str) -> Timed:
    """Runs a command by the shell in the directory of the run; what it writes to standard output is the value."""
    started, before = time.time(), os.times()
    done = subprocess.run(
        ["/bin/sh", "-c", line],
        cwd=directory,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode != 0:
        how = f"status {done.returncode}" if done.returncode > 0 else f"signal {-done.returncode}"
        said = done.stdout[-SHOWN_BYTES:].decode(errors="replace").strip()
        raise RunError(f"the command {line!r} ended with {how}" + (f": {said}" if said else ""))
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return Timed(done.stdout.decode(errors="replace"), started, time.time(), cpu)
