"""The functions that a rules file imports: `rule`, `file`, `task`, `directory`, `include`, `param` and others.

Each adds to the current `Rules`, which `collecting` sets while a rules file is executed. Errors name the line of the
caller. `Rules` holds everything that one rules file defines, its parameters and its access to files, and builds the
graph for the targets. `refuse_aliases` rejects files that a workflow names in two ways.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from types import FrameType, ModuleType
from typing import TypeAlias, TypeVar, Unpack, overload

from shoal.core.file_names import RealDirectory, Relative, join_name, real_name, refuse_unusable
from shoal.core.graph import NO_TASK, Graph
from shoal.core.task import parse_shell
from shoal.errors import InputError
from shoal.formats.rules.assembly import NO_MAKER, Assembly, Search
from shoal.formats.rules.definitions import FILE, TASK, Function, RuleDefinitions, SourcePlace, place_of
from shoal.formats.rules.fingerprint import ModuleText
from shoal.formats.rules.needs import Needs
from shoal.formats.rules.options import DefinitionOptions, SupportsPath
from shoal.formats.rules.patterns import FileList, Pattern, pathmap


def refuse_aliases(graph: Graph, definitions: RuleDefinitions, search: Search, real: RealDirectory) -> None:
    """Refuses a file that has several names (through symbolic links) if a task makes it.

    Tasks that are defined but not in the graph count, too: without the second name, the graph would have an edge to
    such a task.
    """
    linked = {}
    for directory in _directories(graph.file_names) | _directories(definitions.explicit):
        resolved = real(directory)
        if resolved != directory:
            linked[directory] = resolved
    if linked:
        _Aliases(graph, definitions, search, linked).refuse()


def _directories(names: Iterable[str]) -> set[str]:
    return {name.rpartition("/")[0] for name in names if "/" in name}


class _Aliases:
    """The files whose names lead through symbolic links."""

    def __init__(self, graph: Graph, definitions: RuleDefinitions, search: Search, linked: dict[str, str]) -> None:
        self._graph = graph
        self._definitions = definitions
        self._search = search
        self._linked = linked
        self._made = {graph.file_names[file]: None for file in graph.outputs}
        """Outputs in the order of their tasks, then outputs of definitions that are not in the graph."""
        for name, node in definitions.explicit.items():
            if definitions.kinds[node] == FILE and definitions.runs[node] is not None:
                self._made[definitions.plain(name)] = None

    def refuse(self) -> None:
        names = dict.fromkeys([*self._graph.file_names, *self._made])
        groups: dict[str, list[str]] = {}
        for name in names:
            real = self._real(name)
            if real != name:
                groups.setdefault(real, []).append(name)
        for real, group in groups.items():
            others = [real] if real in names else group[1:]
            if others and not self._made.keys().isdisjoint([*group, *others]):
                raise self._same(group[0], others[0], real)
            if self._made.keys().isdisjoint(group):
                self._refuse_source(group[0], real)

    def _refuse_source(self, name: str, real: str) -> None:
        """Refuses a source that a rule makes under its real name, or that is in a directory which a task makes."""
        if self._search.maker(real) != NO_MAKER:
            raise self._same(name, real, real)
        above = real.rpartition("/")[0]
        while above:
            if above in self._made:
                message = f"{name!r} is the file {real!r}, which is part of {above!r}, which a task makes as a whole"
                raise self._located(name, message, f"need {above!r}")
            above = above.rpartition("/")[0]

    def _real(self, name: str) -> str:
        directory, slash, last = name.rpartition("/")
        return join_name(self._linked[directory], last) if slash and directory in self._linked else name

    def _same(self, name: str, other: str, real: str) -> InputError:
        return self._located(name, f"{name!r} and {other!r} are the same file, and a task makes it", f"write {real!r}")

    def _located(self, name: str, message: str, remedy: str) -> InputError:
        """Returns an error at the line of a task that makes or needs the file."""
        graph, node = self._graph, self._definitions.explicit.get(name)
        if node is not None:
            return self._definitions.located(InputError(message, remedy=remedy), self._definitions.places.of(node))
        file = graph.file_names.index(name)
        task = graph.producer[file]
        if task == NO_TASK:
            task = next(task for task in range(len(graph)) if file in graph.inputs_of(task))
        return InputError(message, file=graph.source, line=graph.lines[task] or None, remedy=remedy)


USUAL_TARGETS = ("default", "all")
NO_DEFAULT = object()
_TRUTH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_COMPARED_NAMES = 10_000
_NEAR_LENGTH = 4
_VERY_NEAR = 0.75
"""Minimum similarity for suggestions among files made by rules. Higher than for other names, because rules make many
similar names."""


class Rules(RuleDefinitions):
    """The definitions of one rules file, with its parameters and its access to files and other rules files."""

    def __init__(
        self,
        source: str = "<rules>",
        parameters: Mapping[str, str] | None = None,
        *,
        load: Callable[[str, str], ModuleType] | None = None,
        glob: Callable[[str], Sequence[str]] | None = None,
        modules: ModuleText = str,
        relative: Relative | None = None,
    ) -> None:
        super().__init__(source, relative)
        self.parameters = dict(parameters or {})
        self.known_parameters: list[str] = []
        self.load = load
        """Executes an included file with this registry. Takes the name as written and the name of the including
        file."""
        self.glob = glob
        self.modules = modules
        """Maps a module's name to the text that represents it in fingerprints of functions."""
        self._expected: dict[int, SourcePlace] = {}
        """Places of decorators that have not been applied to a function yet, by `id`."""

    def expect_function(self, decorator: object, frame: FrameType) -> None:
        self._expected[id(decorator)] = place_of(frame, self.source)

    def function_received(self, decorator: object) -> None:
        self._expected.pop(id(decorator), None)

    def graph(
        self, targets: Sequence[str], exists: Callable[[str], bool], real: RealDirectory = str
    ) -> tuple[Graph, list[int]]:
        """Returns the graph of everything the targets need, and the task numbers of the targets.

        A target that exists and that no task makes has no number. Without targets, builds `default`, else `all`, else
        everything that is defined by name. `real` resolves symbolic links of directories.
        """
        for place in self._expected.values():
            error = InputError("task() without a name must decorate a function", remedy="give it a name")
            raise self.located(error, place)
        self.normalize_names()
        search = Search(self, exists)
        known = [self._known_name(name, search, real) for name in targets]
        nodes = [*map(partial(self._target, search), targets, known)] if targets else self._usual_targets()
        graph, numbers = Assembly(self, search, self.modules).build([node for node in nodes if node != NO_MAKER])
        refuse_aliases(graph, self, search, real)
        if search.skipped_rules:
            sources = {name for name, maker in zip(graph.file_names, graph.producer, strict=True) if maker == NO_TASK}
            sources.update(map(self.plain, known))
            graph.lacking = {name: why for name, why in search.skipped_rules.items() if name in sources}
        return graph, numbers

    def _usual_targets(self) -> list[int]:
        for name in USUAL_TARGETS:
            if name in self.explicit:
                return [self.explicit[name]]
        if self.names:
            return list(range(len(self.names)))
        if self.rules:
            raise InputError(
                "the file has rules but no target",
                file=self.source,
                remedy="name a target, or define task('all', needs=...)",
            )
        raise InputError("the file defines no task, file or rule", file=self.source)

    def _known_name(self, name: str, search: Search, real: RealDirectory) -> str:
        """Returns the name under which a task makes a target, because another path may lead to the same file.

        A name that the rules file defines is returned unchanged, even if it contains links.
        """
        plain = self.plain(name)
        if name in self.explicit or plain in self.explicit:
            return name
        found = real_name(plain, real)
        if found == plain and "/" not in plain:
            return plain
        if search.maker(found) != NO_MAKER:
            return found
        others = (each for each in self.explicit if "/" in each and real_name(self.plain(each), real) == found)
        return next(others, plain)

    def _target(self, search: Search, name: str, known: str) -> int:
        node = search.maker(known)
        if node != NO_MAKER or search.exists(known):
            return node
        raise InputError(f"nothing makes the target {name!r}", file=self.source, remedy=self._suggestion(name, search))

    def _suggestion(self, name: str, search: Search) -> str:
        close = _close(name, self.names) or _close(name, self._made(search), _VERY_NEAR)
        if close:
            return f"did you mean {' or '.join(map(repr, close))}?"
        some = [*self.names[:3], *(rule.patterns[0].text for rule in self.rules[:3])]
        more = ", ..." if len(self.names) + len(self.rules) > 6 else ""
        return f"the file defines {', '.join(map(repr, some))}{more}"

    def _made(self, search: Search) -> list[str]:
        """Returns the files that the default targets make, also by rules; empty if their graph cannot be built."""
        if not self.rules:
            return []
        try:
            graph, _ = Assembly(self, search, self.modules).build(
                [node for node in self._usual_targets() if node != NO_MAKER]
            )
        except InputError:
            return []
        return [graph.file_names[file] for file, maker in enumerate(graph.producer) if maker != NO_TASK]

    def parameter(self, name: str, default: object) -> object:
        """Returns the value of parameter `name`, converted to the type of the default."""
        if name not in self.known_parameters:
            self.known_parameters.append(name)
        if name in self.parameters:
            return convert(name, self.parameters[name], default)
        if default is NO_DEFAULT:
            raise InputError(f"the parameter {name!r} has no value", remedy=f"add {name}=... to the command line")
        return default

    def check_parameters(self) -> None:
        """Refuses parameters on the command line that the file does not read."""
        for name in self.parameters:
            if name not in self.known_parameters:
                known = ", ".join(self.known_parameters) or "none"
                raise InputError(
                    f"there is no parameter {name!r}", file=self.source, remedy=f"the file's parameters are: {known}"
                )

    def include(self, path: str, prefix: str | None, frame: FrameType) -> ModuleType:
        """Executes another rules file; with a prefix, its tasks are put into that namespace."""
        if self.load is None:
            raise InputError("include() needs a file system", remedy="run this file with shoal run")
        outer, shell = self.scope, self.profiles.shell
        self.enter(prefix)
        try:
            return self.load(path, frame.f_code.co_filename)
        finally:
            self.scope, self.profiles.shell = outer, shell

    def set_shell(self, program: str, frame: FrameType) -> None:
        """Sets the shell of the commands that follow and do not name one."""
        try:
            self.profiles.shell = parse_shell(program)
        except InputError as error:
            raise self.located(error, frame) from None

    def enter(self, prefix: str | None) -> None:
        """Enters a namespace; the caller restores `scope`."""
        if prefix:
            self.scope = f"{self.scope}:{prefix}" if self.scope else prefix

    def find_files(self, patterns: Sequence[str]) -> FileList:
        """Returns the files that match, sorted, each once. `{x}` matches like `*`; the list keeps the pattern for
        `map`."""
        if self.glob is None:
            raise InputError("files() needs a file system", remedy="run this file with shoal run")
        found: dict[str, None] = {}
        for text in patterns:
            refuse_unusable(text, "the pattern")
            if "{" in text:
                pattern = Pattern(text)
                found.update(dict.fromkeys(name for name in self.glob(pattern.glob()) if pattern.match(name)))
            else:
                found.update(dict.fromkeys(self.glob(text)))
        names = FileList(sorted(found))
        names.pattern = patterns[0] if len(patterns) == 1 and "{" in patterns[0] else None
        return names


def _close(name: str, known: Iterable[str], nearness: float = 0.6) -> list[str]:
    from difflib import get_close_matches

    alike = (each for each in known if abs(len(each) - len(name)) < _NEAR_LENGTH)
    return get_close_matches(name, list(islice(alike, _COMPARED_NAMES)), 3, nearness)


def convert(name: str, text: str, default: object) -> object:
    """Converts the text to the type of the default; returns it unchanged if there is no default."""
    if isinstance(default, bool):
        if text.lower() not in _TRUTH:
            raise InputError(f"{name}={text}: {name} must be yes or no")
        return _TRUTH[text.lower()]
    if default is None or default is NO_DEFAULT or isinstance(default, str):
        return text
    if isinstance(default, (int, float)) or hasattr(default, "__fspath__"):
        try:
            return type(default)(text)  # type: ignore[call-arg]
        except ValueError:
            kind = "a whole number" if isinstance(default, int) else "a number"
            raise InputError(f"{name}={text}: {name} must be {kind}") from None
    raise InputError(f"the default of the parameter {name!r} must be text, a number, yes/no or a path")


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
    """Adds all definitions made inside the context to `rules`."""
    global _current
    outer, _current = _current, rules
    try:
        yield rules
    finally:
        _current = outer


class Defined(str):
    """The name of a task or file defined without `run=`: usable as a need, and as a decorator of the function to
    run."""

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
    """`@task(needs=...)` before it is applied to the function that gives the task its name."""

    __slots__ = ("_needs", "_options", "_rules")

    def __init__(self, rules: Rules, needs: Needs, options: DefinitionOptions, frame: FrameType) -> None:
        self._rules = rules
        self._needs = needs
        self._options = options
        rules.expect_function(self, frame)

    def __call__(self, function: F) -> F:
        self._rules.function_received(self)
        return _define_function(self._rules, function, self._needs, self._options, sys._getframe(1))


class DefinedRule:
    """A rule, usable as a decorator of the function that it runs."""

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
    """Defines a task by name. It makes no file; tasks that need it wait for it.

    Without `run` it groups its needs. As a decorator it runs the function: `@task`, `@task(needs=[...])` (the task has
    the name of the function) or `@task("name", ...)`.
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
    raise rules.located(error, frame)


def file(
    outputs: Name | Sequence[Name], needs: Needs = None, run: Action = None, **options: Unpack[DefinitionOptions]
) -> str:
    """Defines how a file, or several files together, are made. As a decorator, they are made by the function.

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
    """Defines how every file that matches a pattern is made: `rule("p/{x}.fits", needs="r/{x}.fits", run="...")`."""
    frame = sys._getframe(1)
    rules = _current or _registry(frame)
    patterns = [outputs] if isinstance(outputs, re.Pattern) else _names(outputs, rules, frame)
    return DefinedRule(rules, rules.add_rule(patterns, needs, run, options, frame))


def directory(name: Name) -> str:
    """Defines a directory that other tasks can need. Directories of outputs are created without it."""
    frame = sys._getframe(1)
    rules = _current or _registry(frame)
    return rules.add_directory(_names(name, rules, frame)[0], frame)


@contextmanager
def namespace(name: str) -> Iterator[None]:
    """Prefixes the names of tasks defined inside with `name:`; files keep their names."""
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
    """Sets the shell of all commands that are defined after it and have no `shell=`: `shell("bash -e")`.

    An included file starts with the shell of the including file. A shell that it sets is reset at its end.
    """
    frame = sys._getframe(1)
    rules = _current or _registry(frame)
    rules.set_shell(program, frame)


def files(*patterns: Name) -> FileList:
    """Returns the existing files that match globs such as `r/*.fits` or patterns such as `r/{x}.fits`, sorted."""
    rules = _current or _registry(sys._getframe(1))
    return rules.find_files([str(pattern) for pattern in patterns])


@overload
def param(name: str) -> str: ...
@overload
def param(name: str, default: T) -> T: ...
def param(name: str, default: object = NO_DEFAULT) -> object:
    """Returns the value of `name=value` on the command line, converted to the type of the default."""
    rules = _current or _registry(sys._getframe(1))
    return rules.parameter(name, default)


def _registry(frame: FrameType) -> Rules:
    """Raises the error for a definition outside a rules file. Only called when there is no current registry."""
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
        raise rules.located(InputError("the function has no name for the task", remedy="give task() a name"), frame)
    rules.set_function(rules.add(TASK, name, needs, None, options, frame), function)
    return function


def _names(outputs: Name | Sequence[Name], rules: Rules, frame: FrameType) -> list[str]:
    if type(outputs) is str and outputs:
        return [outputs]
    single = isinstance(outputs, str) or hasattr(outputs, "__fspath__")
    given = [outputs] if single or not isinstance(outputs, (list, tuple)) else list(outputs)
    for name in given:
        if not (isinstance(name, str) or hasattr(name, "__fspath__")) or not str(name):
            raise rules.located(InputError(f"an output must be a name or a path, not {name!r}"), frame)
    if not given:
        raise rules.located(InputError("at least one output is needed"), frame)
    return [str(name) for name in given]
