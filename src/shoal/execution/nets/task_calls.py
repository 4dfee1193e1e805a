"""What a worker receives for a task of a net: a function that times the user's function, or runs a command.

Every worker of a net imports this module, so it imports only what it needs.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager, nullcontext
from types import AsyncGeneratorType, CoroutineType, GeneratorType

from shoal.errors import InputError, RunError

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

SHOWN_BYTES = 2000
"""Size of the end of a failed command's output that its error message contains."""


class TimedResult:
    """The result of a task, its start and end times, and its CPU time."""

    __slots__ = ("cpu", "ended", "started", "value")

    def __init__(self, value: Any, started: float, ended: float, cpu: float) -> None:
        self.value = value
        self.started, self.ended, self.cpu = started, ended, cpu


def timed(
    function: Callable[..., Any], environment: Mapping[str, str] | None = None, directory: str | None = None
) -> Callable[..., TimedResult]:
    """Returns the function that workers run, sent once for all its calls; it runs with these variables, in this
    directory."""
    variables = dict(environment or {})
    is_placed = bool(variables) or directory is not None

    def perform(*arguments: Any, **keywords: Any) -> TimedResult:
        started, cpu = time.time(), time.process_time()
        with placed(variables, directory) if is_placed else nullcontext():
            value = sendable(function(*arguments, **keywords))
        return TimedResult(value, started, time.time(), time.process_time() - cpu)

    perform.__name__ = perform.__qualname__ = getattr(function, "__name__", "task")
    return perform


@contextmanager
def placed(environment: Mapping[str, str], directory: str | None) -> Iterator[None]:
    """Sets environment variables and working directory inside the block; the process runs one call at a time."""
    before = {name: os.environ.get(name) for name in environment}
    home = os.getcwd() if directory is not None else ""
    os.environ.update(environment)
    try:
        if directory is not None:
            os.chdir(directory)
        yield
    finally:
        if directory is not None:
            os.chdir(home)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def sendable(value: Any) -> Any:
    """Returns the return value of a task, unless its kind of object cannot leave its process."""
    if isinstance(value, (GeneratorType, AsyncGeneratorType, CoroutineType)):
        if isinstance(value, CoroutineType):
            value.close()  # otherwise Python would warn that it was never awaited
        raise InputError(
            f"it returned a {type(value).__name__}, which cannot be sent", remedy="return a list or a value"
        )
    return value


def run_command(line: str, environment: Mapping[str, str], directory: str, shell: str) -> TimedResult:
    """Runs a command by the shell in the run's directory; its standard output is the value."""
    import subprocess

    from shoal.execution.processes.shell import in_shell

    started, before = time.time(), os.times()
    with in_shell(line, shell) as words:
        try:
            done = subprocess.run(
                words,
                cwd=directory,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            raise RunError(f"cannot run the command {line!r} by {words[0]}: {error.strerror}") from None
    if done.returncode != 0:
        how = f"status {done.returncode}" if done.returncode > 0 else f"signal {-done.returncode}"
        said = done.stdout[-SHOWN_BYTES:].decode(errors="replace").strip()
        raise RunError(f"the command {line!r} ended with {how}" + (f": {said}" if said else ""))
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return TimedResult(done.stdout.decode(errors="replace"), started, time.time(), cpu)
