"""What a rules file imports: `rule`, `file`, `task` and their companions.

Each acts on the current registry, which `collecting` sets while a rules file is executed. Errors name the line of
the caller.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import TypeAlias, TypeVar, Unpack, overload

from shoal.errors import InputError
from shoal.formats.rules.definitions import TASK, Function
from shoal.formats.rules.needs import Needs
from shoal.formats.rules.options import DefinitionOptions, SupportsPath
from shoal.formats.rules.patterns import FileList, pathmap
from shoal.formats.rules.registry import NO_DEFAULT, Rules

__all__ = [
    "collecting",
    "directory",
    "file",
    "files",
    "include",
    "namespace",
    "param",
    "pathmap",
    "rule",
    "shell",
    "task",
]

F = TypeVar("F", bound=Function)
T = TypeVar("T")
Action: TypeAlias = str | Sequence[str | SupportsPath | int | float] | Function | None
"""Everything `run=` accepts: a command, its words, or a function."""
Name: TypeAlias = str | SupportsPath

_current: Rules | None = None


@contextmanager
def collecting(rules: Rules) -> Iterator[Rules]:
    """While it lasts, definitions go to `rules`."""
    global _current
    outer, _current = _current, rules
    try:
        yield rules
    finally:
        _current = outer


class Defined(str):
    """The name of something defined without `run=`: usable as a need, and as a decorator of the function to run."""

    __slots__ = ("_number", "_rules")
    _number: int
    _rules: Rules

    def __new__(cls, rules: Rules, number: int) -> Defined:
        made = super().__new__(cls, rules.names[number])
        made._rules = rules
        made._number = number
        return made

    def __call__(self, function: F) -> F:
        self._rules.set_function(self._number, function)
        return function


class UnnamedTask:
    """`@task(needs=...)` before it meets the function that gives the task its name."""

    __slots__ = ("_needs", "_options", "_rules")

    def __init__(self, rules: Rules, needs: Needs, options: DefinitionOptions, frame: FrameType) -> None:
        self._rules = rules
        self._needs = needs
        self._options = options
        rules.await_function(self, frame)

    def __call__(self, function: F) -> F:
        self._rules.function_came(self)
        return _define_function(self._rules, function, self._needs, self._options, sys._getframe(1))


class DefinedRule:
    """A rule, as a decorator of the function it runs."""

    __slots__ = ("_number", "_rules")

    def __init__(self, rules: Rules, number: int) -> None:
        self._rules = rules
        self._number = number

    def __call__(self, function: F) -> F:
        self._rules.set_rule_function(self._number, function)
        return function


@overload
def task(name: F) -> F: ...
@overload
def task(name: str, needs: Needs = None, run: Action = None, **options: Unpack[DefinitionOptions]) -> str: ...
@overload
def task(*, needs: Needs = None, **options: Unpack[DefinitionOptions]) -> UnnamedTask: ...
def task(
    name: str | Function | None = None, needs: Needs = None, run: Action = None, **options: Unpack[DefinitionOptions]
) -> object:
    """Defines a task by name: it makes no file, and what needs it waits for it.

    Without `run` it groups its needs, or, as a decorator, runs the function: `@task`, `@task(needs=[...])` (the
    function's name is the task's) or `@task("name", ...)`.
    """
    frame = sys._getframe(1)
    rules = _current or _registry(frame)
    if type(name) is str and name:
        number = rules.add(TASK, name, needs, run, options, frame)
        return rules.names[number] if run is not None else Defined(rules, number)
    if name is None and run is None:
        return UnnamedTask(rules, needs, options, frame)
    if callable(name) and not isinstance(name, str):
        return _define_function(rules, name, needs, options, frame)
    error = InputError(f"a task's name must be text, not {name!r}")
    raise rules.placed(error, frame)


def file(
    outputs: Name | Sequence[Name], needs: Needs = None, run: Action = None, **options: Unpack[DefinitionOptions]
) -> str:
    """Defines how a file, or several at once, are made; as a decorator, by a function.

    Without `run` and `needs` it only declares that the file is a source.
    """
    frame = sys._getframe(1)
    rules = _current or _registry(frame)
    number = rules.add_file(_names(outputs, rules, frame), needs, run, options, frame)
    return rules.names[number] if run is not None else Defined(rules, number)


def rule(
    outputs: Name | re.Pattern[str] | Sequence[Name],
    needs: Needs = None,
    run: Action = None,
    **options: Unpack[DefinitionOptions],
) -> DefinedRule:
    """Defines how every file that fits a pattern is made: `rule("p/{x}.fits", needs="r/{x}.fits", run="...")`."""
    frame = sys._getframe(1)
    rules = _current or _registry(frame)
    patterns = [outputs] if isinstance(outputs, re.Pattern) else _names(outputs, rules, frame)
    return DefinedRule(rules, rules.add_rule(patterns, needs, run, options, frame))


def directory(name: Name) -> str:
    """Defines a directory that others may need; directories of outputs are made anyway."""
    frame = sys._getframe(1)
    rules = _current or _registry(frame)
    return rules.add_directory(_names(name, rules, frame)[0], frame)


@contextmanager
def namespace(name: str) -> Iterator[None]:
    """Puts the tasks defined inside under `name:`; files keep their names."""
    rules = _current or _registry(sys._getframe(2))
    outer = rules.scope
    rules.enter(name)
    try:
        yield
    finally:
        rules.scope = outer


def include(path: Name, prefix: str | None = None) -> ModuleType:
    """Executes another rules file, named relative to this one, and returns it as a module."""
    frame = sys._getframe(1)
    rules = _current or _registry(frame)
    return rules.include(str(path), prefix, frame)


def shell(program: str) -> None:
    """Sets what runs the commands that are defined after it and have no `shell=`: `shell("bash -e")`.

    An included file begins with the shell of the file that includes it; what it sets ends with it.
    """
    frame = sys._getframe(1)
    rules = _current or _registry(frame)
    rules.set_shell(program, frame)


def files(*patterns: Name) -> FileList:
    """The existing files that match globs such as `r/*.fits`, or patterns such as `r/{x}.fits`; sorted."""
    rules = _current or _registry(sys._getframe(1))
    return rules.find_files([str(pattern) for pattern in patterns])


@overload
def param(name: str) -> str: ...
@overload
def param(name: str, default: T) -> T: ...
def param(name: str, default: object = NO_DEFAULT) -> object:
    """The value of `name=value` on the command line, in the type of the default."""
    rules = _current or _registry(sys._getframe(1))
    return rules.parameter(name, default)


def _registry(frame: FrameType) -> Rules:
    """Only called when there is none."""
    code = frame.f_code
    raise InputError(
        "this file defines a workflow and cannot run by itself",
        file=code.co_filename,
        line=frame.f_lineno,
        remedy="run this file with shoal run",
    )


def _define_function(rules: Rules, function: F, needs: Needs, options: DefinitionOptions, frame: FrameType) -> F:
    name = getattr(function, "__name__", None)
    if not name or name == "<lambda>":
        raise rules.placed(InputError("the function has no name for the task", remedy="give task() a name"), frame)
    rules.set_function(rules.add(TASK, name, needs, None, options, frame), function)
    return function


def _names(outputs: Name | Sequence[Name], rules: Rules, frame: FrameType) -> list[str]:
    if type(outputs) is str and outputs:
        return [outputs]
    single = isinstance(outputs, str) or hasattr(outputs, "__fspath__")
    given = [outputs] if single or not isinstance(outputs, (list, tuple)) else list(outputs)
    for name in given:
        if not (isinstance(name, str) or hasattr(name, "__fspath__")) or not str(name):
            raise rules.placed(InputError(f"an output must be a name or a path, not {name!r}"), frame)
    if not given:
        raise rules.placed(InputError("there is no output"), frame)
    return [str(name) for name in given]
