"""What a rules file's functions see when they run: the task (`RunningTask`), and `sh` and `capture` to run commands.

This runs in a worker process. What a command prints becomes part of the task's output because it inherits the worker's
streams.
"""

from __future__ import annotations

import os
import pickle
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from shoal.core.task import STRICT, parse_shell
from shoal.errors import ShoalError
from shoal.execution.processes.shell import in_shell

Command: TypeAlias = str | Sequence[str | os.PathLike[str]]


class CommandFailed(ShoalError):  # noqa: N818  # rules files read better with this name
    """A command ended with a status other than 0; a negative status is the number of the signal that killed it."""

    def __init__(self, command: str, status: int) -> None:
        super().__init__(command, status)
        self.command = command
        self.status = status

    def __str__(self) -> str:
        how = f"exit status {self.status}" if self.status >= 0 else f"signal {-self.status}"
        return f"command failed with {how}: {self.command}"


class CommandResult(NamedTuple):
    """How a command ended."""

    status: int

    @property
    def ok(self) -> bool:
        """Whether it ended with status 0."""
        return self.status == 0


def sh(command: Command, check: bool = True, shell: str = STRICT) -> CommandResult:
    """Runs a command: text through a strict shell, or through `shell`; a list of words without a shell.

    Raises `CommandFailed` unless it ends with status 0 or `check` is false. Braces are not replaced: use an f-string.
    """
    return CommandResult(_run(command, check, shell, None)[0])


def capture(command: Command, shell: str = STRICT) -> str:
    """Runs a command as `sh` does and returns what it prints, without the newlines at the end."""
    import subprocess

    return _run(command, True, shell, subprocess.PIPE)[1].rstrip("\n")


def _run(command: Command, check: bool, shell: str, stdout: int | None) -> tuple[int, str]:
    if isinstance(command, str):
        with in_shell(command, parse_shell(shell)) as words:
            status, text = _run_words(words, stdout)
    else:
        words = [os.fspath(word) for word in command]
        status, text = _run_words(words, stdout)
    if check and status:
        raise CommandFailed(command if isinstance(command, str) else shlex.join(words), status)
    return status, text


def _run_words(words: Sequence[str], stdout: int | None) -> tuple[int, str]:
    # Rules files without commands need not import it: that costs about 10 ms.
    import subprocess
    import sys

    sys.stdout.flush()
    sys.stderr.flush()
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=stdout, text=True, check=False)
        return done.returncode, done.stdout or ""
    except OSError as error:
        # The statuses a shell would return: not found, or found but not executable.
        print(f"{words[0]}: {error.strerror}", file=sys.stderr)
        return (127 if isinstance(error, FileNotFoundError) else 126), ""


class UnknownValue:
    """Replaces the return value of a task that was adopted without a record; reading it raises an error."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> tuple[Callable[[str], Any], tuple[str]]:
        return refuse_value, (self.name,)


def refuse_value(name: str) -> Any:
    """Raises the error; unpickling an unknown value calls this."""
    raise LookupError(
        f"the return value of {name!r} is unknown: its files were recorded by 'shoal adopt'; "
        "remove them to run it again"
    )


class Need(str):
    """The name of something a task needs, with the value of the task that made it."""

    _pickled: bytes | None
    _unpickled: Any

    def __new__(cls, name: str, pickled: bytes | None = None) -> Need:
        """Stores the pickled value, which is unpickled when it is read."""
        need = super().__new__(cls, name)
        need._pickled = pickled
        need._unpickled = None
        return need

    @property
    def name(self) -> str:
        """The plain name."""
        return str(self)

    @property
    def value(self) -> Any:
        """What the task that made this returned, or None."""
        if self._pickled is not None:
            self._unpickled = pickle.loads(self._pickled)
            self._pickled = None
        return self._unpickled


class TaskFileNames(list[str]):
    """File names; as text they are quoted for the shell, so that `sh(f"cat {t.outs}")` is right."""

    def __str__(self) -> str:
        return shlex.join(self)


class TaskNeeds(list[Need]):
    """What a task needs, in order; needs given as a dict also by name (`t.needs.img`)."""

    def __init__(self, needs: Iterable[Need], named: Mapping[str, Need | TaskNeeds]) -> None:
        super().__init__(needs)
        self._named = named

    def __str__(self) -> str:
        return shlex.join(self)

    def __getattr__(self, name: str) -> Need | TaskNeeds:
        try:
            return self.__dict__["_named"][name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(f"this task has no need named {name!r}") from None


class Wildcards:
    """The values of the rule's wildcards in the output's name."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> str:
        raise AttributeError(f"this rule has no wildcard {name!r}")


class RunningTask:
    """The task that is running, as its action sees it."""

    def __init__(
        self,
        name: str,
        outs: Sequence[str],
        needs: Sequence[str],
        values: Mapping[str, bytes],
        named: Mapping[str, str | Sequence[str]],
        wildcards: Mapping[str, str],
    ) -> None:
        made = {need: Need(need, values.get(need)) for need in needs}

        def of(names: str | Sequence[str]) -> Need | TaskNeeds:
            if isinstance(names, str):
                return made.get(names) or Need(names)
            return TaskNeeds([made.get(one) or Need(one) for one in names], {})

        self.name = name
        self.outs = TaskFileNames(outs)
        self.needs = TaskNeeds([made[need] for need in needs], {key: of(names) for key, names in named.items()})
        self.wild = Wildcards(wildcards)
        self.value: Any = None
        """What successors see; an action may set this instead of returning it."""

    @property
    def out(self) -> str:
        """The first output; for a task without files, its name."""
        return self.outs[0] if self.outs else self.name

    @property
    def source(self) -> Need | None:
        """The first need, or None."""
        return self.needs[0] if self.needs else None

    def __getattr__(self, name: str) -> str:
        """Returns a wildcard by its name."""
        try:
            return self.__dict__["wild"].__dict__[name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(
                f"a task has no attribute {name!r}, and its rule has no wildcard of that name"
            ) from None
