"""Builds the graph of the targets: a backward search through the rules, then a depth-first walk over the needs.

`Search` finds the definition or the rule that makes a file. It tries the rules in order and skips a rule whose needs
are not available. `Assembly` adds exactly what the targets need, each task after its predecessors: the walk is depth
first, without recursion, in the order in which needs are written, so the numbers of the predecessors are known when a
task is added. A need that is a task becomes an ordering edge (`after`), a need that is a file an input;
`shoal.core.graph` connects files by name.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import NamedTuple

from shoal.core.file_names import without_ways_up
from shoal.core.graph import Graph, GraphBuilder
from shoal.core.task import Action, Call
from shoal.errors import InputError
from shoal.formats.rules.definitions import FILE, RuleDefinitions, Run, SourcePlace, UserCodeErrors
from shoal.formats.rules.fingerprint import Fingerprints, ModuleText
from shoal.formats.rules.needs import NO_GROUPS, NOTHING, DeferredNeeds, Groups, Needed
from shoal.formats.rules.patterns import Match, Pattern, TemplateNames

NO_MAKER = -1
_UNAVAILABLE = -2
_UNKNOWN = -3
_OPENED = -4
"""A name at depth d of the current search path has the state `_OPENED - d`."""
_NEVER = 1 << 62

LONGEST_NAME = 4096
"""Longest name to search for. No file system has longer paths; stops rules whose needs grow: `{x}` from `{x}.src`."""
DEEPEST_CHAIN = 1_500_000
"""Maximum number of rules in a chain. Stops a rule that counts down without end, but not a real chain of a million."""


class Instance(NamedTuple):
    """A rule with its wildcards filled in: one task."""

    rule: int
    values: tuple[str, ...]
    """Values of the rule's wildcards, in their order."""
    outs: tuple[str, ...]
    names: tuple[str, ...]
    groups: Groups
    """Names by key, as in `Needed`."""


ADDED_INSTANCE = Instance(-1, (), (), (), NO_GROUPS)
"""Replaces an instance once it is in the graph, to free its memory."""


class SkippedRule(NamedTuple):
    """A rule that matches a file and was skipped, with the reason."""

    outs: tuple[str, ...]
    """The outputs of the rule."""
    need: str
    """The need that is not available."""


class _Attempt:
    """One name of the current search path: the rule that is being tried, and how many of its needs are available."""

    __slots__ = ("instance", "low", "name", "next_pattern", "node", "position", "skipped")

    def __init__(self, name: str) -> None:
        self.name = name
        self.next_pattern = 0
        self.instance: Instance | None = None
        self.skipped: SkippedRule | None = None
        """The first rule that was skipped."""
        self.position = 0
        self.low = _NEVER
        """Depth of the topmost name of the search path that caused a failure by a cycle.

        The failure is certain only below that name: reached by another path, the same rule may succeed. So it is not
        cached as long as the search is below that depth.
        """
        self.node = _UNKNOWN


class Search:
    """Finds the node that makes a name, and caches it. Nodes are numbers of definitions, then, from `base` on, of rule
    instances."""

    def __init__(self, definitions: RuleDefinitions, exists: Callable[[str], bool]) -> None:
        self.base = len(definitions.names)
        self.instances: list[Instance] = []
        self._definitions = definitions
        self.exists = exists
        self._patterns: list[tuple[int, Pattern]] = [
            (number, pattern) for number, rule in enumerate(definitions.rules) for pattern in rule.patterns
        ]
        # Most names that match no rule, such as sources, are ruled out by these alone.
        self._prefixes = tuple(pattern.prefix for _, pattern in self._patterns)
        self._suffixes = tuple(pattern.suffix for _, pattern in self._patterns)
        self._states: dict[str, int] = {}
        """The node that makes each searched name; `NO_MAKER` for a source that exists."""
        self._absent: dict[str, None] = {}
        """Names that do not exist and that no rule can make, although a rule may match."""
        self._refusals: dict[str, InputError] = {}
        self.skipped_rules: dict[str, SkippedRule] = {}
        """By existing file that is used as a source although a rule matches it."""

    def maker(self, name: str, consumer: Instance | None = None) -> int:
        """Returns the node that makes `name`, or `NO_MAKER`. `consumer` is the rule instance that needs it, if any."""
        node = self._definitions.explicit.get(name)
        if node is not None:
            return node
        if "/" in name:  # no other name can be written in more than one way
            plain = self._definitions.plain(name)
            if plain != name:
                return self.maker(plain, consumer)
        if not self._patterns:
            return NO_MAKER
        node = self._states.get(name)
        if node is None:
            node = NO_MAKER if name in self._absent else self._search(name)
        return node if node != _UNAVAILABLE else self._guess(name, consumer)

    def _search(self, name: str) -> int:
        stack = [_Attempt(name)]
        self._states[name] = _OPENED
        while True:
            attempt = stack[-1]
            deeper = self._advance(attempt, len(stack) - 1)
            if deeper is not None:
                if len(stack) >= DEEPEST_CHAIN:
                    raise self._endless(attempt)
                self._states[deeper] = _OPENED - len(stack)
                stack.append(_Attempt(deeper))
                continue
            stack.pop()
            if not stack:
                return attempt.node
            above = stack[-1]
            if attempt.node == _UNAVAILABLE:
                self._skip_rule(above)
                above.low = min(above.low, attempt.low)
            else:
                above.position += 1

    def _advance(self, attempt: _Attempt, depth: int) -> str | None:
        """Continues an attempt until it is decided (returns None) or a need must be searched first (returns its
        name)."""
        while True:
            if attempt.instance is None:
                attempt.instance = self._next_instance(attempt)
                attempt.position = 0
                if attempt.instance is None:
                    attempt.node = self._without_rule(attempt, depth)
                    return None
            names = attempt.instance.names
            while attempt.position < len(names):
                need = names[attempt.position]
                state = self._state(need)
                if state == _UNKNOWN:
                    return self._definitions.plain(need)
                if state < NO_MAKER:
                    if state <= _OPENED:
                        attempt.low = min(attempt.low, _OPENED - state)
                    self._skip_rule(attempt)
                    break
                attempt.position += 1
            else:
                attempt.node = self._settle(attempt.instance)
                return None

    @staticmethod
    def _skip_rule(attempt: _Attempt) -> None:
        """Skips the rule that is being tried, because its current need is not available."""
        instance = attempt.instance
        if instance is not None and attempt.skipped is None:
            attempt.skipped = SkippedRule(instance.outs, instance.names[attempt.position])
        attempt.instance = None

    def _state(self, need: str) -> int:
        node = self._definitions.explicit.get(need)
        if node is None:
            node = self._states.get(need)
        if node is None and "/" in need:
            plain = self._definitions.plain(need)
            if plain != need:
                return self._state(plain)
        if node is not None:
            return node
        if need in self._absent:
            return _UNAVAILABLE
        if need.startswith(self._prefixes) and need.endswith(self._suffixes):
            return _UNKNOWN
        if self.exists(need):
            self._states[need] = NO_MAKER
            return NO_MAKER
        self._absent[need] = None
        return _UNAVAILABLE

    def _without_rule(self, attempt: _Attempt, depth: int) -> int:
        if self.exists(attempt.name):
            self._states[attempt.name] = NO_MAKER
            if attempt.skipped is not None:
                self.skipped_rules[attempt.name] = attempt.skipped
            return NO_MAKER
        if attempt.low < depth:
            del self._states[attempt.name]
        else:
            self._states[attempt.name] = _UNAVAILABLE
        return _UNAVAILABLE

    def _next_instance(self, attempt: _Attempt) -> Instance | None:
        """Returns the next rule that matches the name, with its needs."""
        name = attempt.name
        if len(name) > LONGEST_NAME:
            return None
        for index in range(attempt.next_pattern, len(self._patterns)):
            number, pattern = self._patterns[index]
            wildcards = pattern.match(name)
            if wildcards is None:
                continue
            attempt.next_pattern = index + 1
            instance = self._instance(number, name, wildcards)
            if instance is not None:
                return instance
        attempt.next_pattern = len(self._patterns)
        return None

    def _instance(self, number: int, name: str, wildcards: dict[str, str]) -> Instance | None:
        definitions = self._definitions
        rule = definitions.rules[number]
        first = rule.patterns[0]
        outs = (name,) if len(rule.patterns) == 1 else tuple([pattern.fill(wildcards) for pattern in rule.patterns])
        try:
            with UserCodeErrors(definitions.texts, rule.place):
                needed = rule.needs.expand(Match(outs[0], outs, wildcards))
        except InputError as error:
            # The needs function looked the name up in a table that does not have it: the rule does not apply. The error
            # is shown if no other rule applies.
            if not isinstance(error.__cause__, LookupError):
                raise
            self._refusals[name] = error
            return None
        if rule.scope:
            needed = needed.renamed(lambda need: definitions.in_scope(need, rule.scope))
        values = tuple([wildcards[wildcard] for wildcard in first.wildcards])
        return Instance(number, values, outs, needed.names, needed.groups)

    def _settle(self, instance: Instance) -> int:
        node = self.base + len(self.instances)
        self.instances.append(instance)
        for out in instance.outs:
            if self._states.get(out, NO_MAKER) < 0:
                self._states[out] = node
        return node

    def _guess(self, name: str, consumer: Instance | None) -> int:
        instance = self._next_instance(_Attempt(name))
        if instance is None and name in self._refusals:
            raise self._refusals[name]
        growing = (
            instance is not None
            and consumer is not None
            and consumer.rule == instance.rule
            and len(name) > len(consumer.outs[0])
        )
        if instance is None or growing:
            self._states.pop(name, None)
            self._absent[name] = None
            return NO_MAKER
        return self._settle(instance)

    def _endless(self, attempt: _Attempt) -> InputError:
        assert attempt.instance is not None
        rule = self._definitions.rules[attempt.instance.rule]
        error = InputError(
            f"the rule for {rule.patterns[0].text!r} needs itself in an endless chain, at {attempt.name!r}"
        )
        return self._definitions.located(error, rule.place)


class FunctionCalls:
    """Builds the `Call` of each task that runs a function; the part that depends on the function alone is cached."""

    def __init__(self, modules: ModuleText) -> None:
        self._fingerprints = Fingerprints(modules)
        self._plain: dict[int, Call] = {}
        """By `id(function)`. The calls keep the functions alive, so that an id is never reused."""

    def make(self, function: Callable[..., object], names: TemplateNames) -> Call:
        plain = self._plain.get(id(function))
        if plain is None:
            plain = Call(function, self._fingerprints.of(function), wants_task(function))
            self._plain[id(function)] = plain
        if not plain.wants_task or not (names.groups or names.wildcards):
            return plain
        return Call(
            function,
            plain.fingerprint,
            wants_task=True,
            wildcards=tuple(names.wildcards.items()),
            named=tuple(names.groups.items()),
        )


def wants_task(function: Callable[..., object]) -> bool:
    """Whether the function has a parameter without default; `lambda i=i: ...` has none and is called without the
    task."""
    required, keywords = required_parameters(function)
    if required > 1 or keywords:
        name = getattr(function, "__name__", "the function")
        raise InputError(
            f"{name}() takes {required + keywords} parameters, but an action takes the task or nothing",
            remedy="give the others default values, or use param()",
        )
    return required == 1


def required_parameters(function: Callable[..., object]) -> tuple[int, int]:
    """Returns the numbers of positional and of keyword-only parameters without default."""
    if isinstance(function, FunctionType):
        code = function.__code__
        keywords = code.co_kwonlyargcount - len(function.__kwdefaults__ or {})
        return code.co_argcount - len(function.__defaults__ or ()), keywords
    import inspect  # takes milliseconds to import, needed for unusual callables only

    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin without signature
        return 0, 0
    required = [one.kind for one in parameters if one.default is one.empty]
    keywords = required.count(inspect.Parameter.KEYWORD_ONLY)
    variable = required.count(inspect.Parameter.VAR_POSITIONAL) + required.count(inspect.Parameter.VAR_KEYWORD)
    return len(required) - keywords - variable, keywords


_OPEN, _DONE = 1, 2
_SOURCE = -1
"""Task number of a file that is declared without an action: it has no task."""


class Assembly:
    """Builds the graph of some targets from the definitions."""

    def __init__(self, definitions: RuleDefinitions, search: Search, modules: ModuleText = str) -> None:
        self._definitions = definitions
        self._search = search
        self._builder = GraphBuilder(definitions.source, definitions.relative)
        self._calls = FunctionCalls(modules)
        self._states = bytearray(search.base)
        self._numbers = array("i", [_SOURCE]) * search.base
        self._expanded: dict[int, Needed] = {}
        self._folders: dict[str, tuple[str, int]] = {}
        """By directory with sources: one of the sources and a node that needs it."""

    def build(self, targets: Sequence[int]) -> tuple[Graph, list[int]]:
        """Returns the graph of everything the target nodes need, and the task numbers of the targets."""
        for target in targets:
            self._visit(target)
        if self._folders:
            self._refuse_parts()
        numbers = dict.fromkeys(self._numbers[node] for node in targets)
        return self._builder.build(), [number for number in numbers if number != _SOURCE]

    def _visit(self, target: int) -> None:
        """Adds everything the target needs, then the target."""
        self._make_room(target)
        states = self._states
        if states[target] == _DONE:
            return
        states[target] = _OPEN
        path = array("i", [target])
        positions = array("i", [0])
        while path:
            node = path[-1]
            names = self._names(node)
            child = NO_MAKER
            if positions[-1] < len(names):
                child, positions[-1] = self._next_child(node, names, positions[-1])
            if child == NO_MAKER:
                self._add(node, names)
                path.pop()
                positions.pop()
                continue
            if states[child] == _OPEN:
                raise self._cycle(child, [*path, child])
            states[child] = _OPEN
            path.append(child)
            positions.append(0)

    def _make_room(self, node: int) -> None:
        """Grows the columns up to `node`: rule instances are found during the walk."""
        missing = node + 1 - len(self._states)
        if missing > 0:
            self._states.extend(bytes(missing))
            self._numbers.extend([_SOURCE] * missing)

    def _next_child(self, node: int, names: Sequence[str], position: int) -> tuple[int, int]:
        """Returns the next node among the needs that is not in the graph yet, and the position after it.

        Nodes without needs are added immediately.
        """
        search, states, needs = self._search, self._states, self._definitions.needs
        base = search.base
        consumer = search.instances[node - base] if node >= base else None
        for place in range(position, len(names)):
            child = search.maker(names[place], consumer)
            if child >= base:
                self._make_room(child)
            if child == NO_MAKER:
                directory = names[place].rpartition("/")[0] if "/" in names[place] else ""
                if directory:
                    self._folders.setdefault(directory, (names[place], node))
                    if "/.." in directory:
                        self._refuse_other_name(names[place], node)
                continue
            if states[child] == _DONE:
                continue
            if child >= base or needs[child] is not None:
                return child, place + 1
            self._add(child, ())
        return NO_MAKER, len(names)

    def _refuse_other_name(self, name: str, node: int) -> None:
        """Refuses a name that may be another name of a defined file.

        The graph checks the files in it; this covers defined files that the targets do not need.
        """
        other = without_ways_up(self._definitions.plain(name))
        if other in self._definitions.explicit:
            error = InputError(f"{name!r} may be another name of {other!r}", remedy="write the file's name in one way")
            raise self._definitions.located(error, self._place(node))

    def _refuse_parts(self) -> None:
        """Refuses a source inside a directory that a task makes as a whole: without an edge, the file may not exist
        yet."""
        graph, definitions = self._builder.graph, self._definitions
        made = {graph.file_names[file] for file in graph.outputs} if self._search.instances else ()
        for directory, (name, node) in self._folders.items():
            above = definitions.plain(directory)
            while above:
                maker = definitions.explicit.get(above, NO_MAKER)
                is_made = maker != NO_MAKER and definitions.kinds[maker] == FILE and definitions.runs[maker] is not None
                if is_made or above in made:
                    error = InputError(
                        f"{name!r} is part of {above!r}, which a task makes as a whole",
                        remedy=f"need {above!r}, or name {name!r} as one more output of that task",
                    )
                    raise definitions.located(error, self._place(node))
                above = above.rpartition("/")[0]

    def _names(self, node: int) -> Sequence[str]:
        """Returns the full names of a node's needs."""
        if node >= self._search.base:
            return self._search.instances[node - self._search.base].names
        column = self._definitions.needs[node]
        if column is None:
            return ()
        if type(column) is DeferredNeeds or node in self._definitions.scopes:
            return self._expand(node).names
        return (column,) if type(column) is str else column  # type: ignore[return-value]

    def _expand(self, node: int) -> Needed:
        """Returns the needs of a definition that has functions or keys among its needs, or is in a namespace."""
        known = self._expanded.get(node)
        if known is not None:
            return known
        definitions = self._definitions
        column = definitions.needs[node]
        if isinstance(column, DeferredNeeds):
            match = Match(definitions.names[node], definitions.outputs(node), {})
            with UserCodeErrors(definitions.texts, definitions.places.of(node)):
                needed = column.expand(match)
        elif column is None:
            needed = NOTHING
        else:
            needed = Needed((column,) if isinstance(column, str) else column)
        scope = definitions.scopes.get(node)
        if scope:
            needed = needed.renamed(lambda name: definitions.in_scope(name, scope))
        self._expanded[node] = needed
        return needed

    def _split(self, names: Sequence[str]) -> tuple[list[str], list[int]]:
        """Splits names into files and task numbers."""
        explicit, kinds, numbers = self._definitions.explicit, self._definitions.kinds, self._numbers
        inputs: list[str] = []
        after: list[int] = []
        for name in names:
            node = explicit.get(name)
            if node is None and "/" in name:  # no other name can be written in more than one way
                node = explicit.get(self._definitions.plain(name))
            if node is None or kinds[node] == FILE:
                inputs.append(name)
            else:
                after.append(numbers[node])
        return inputs, after

    def _add(self, node: int, names: Sequence[str]) -> None:
        base = self._search.base
        if node < base:
            self._add_definition(node, names)
        else:
            self._add_instance(node, self._search.instances[node - base])
            self._search.instances[node - base] = ADDED_INSTANCE
        self._states[node] = _DONE

    def _add_definition(self, node: int, names: Sequence[str]) -> None:
        definitions = self._definitions
        run = definitions.runs[node]
        outs = definitions.outputs(node)
        if run is None and outs and not names:
            return
        inputs, after = self._split(names) if names else ((), ())
        action: Action
        if run is None or type(run) is str:
            action = run
        else:
            needed = self._expanded.get(node) or Needed(tuple(names))
            name = definitions.names[node]
            action = self._action(run, TemplateNames(name, outs, inputs, needed.groups, {}), node)
        profile = definitions.profile_numbers[node]
        self._numbers[node] = self._builder.task(
            definitions.names[node],
            action,
            inputs=inputs,
            outputs=outs,
            after=after,
            profile=definitions.profiles.all[profile],
            line=definitions.places.main_line(node),
        )

    def _add_instance(self, node: int, instance: Instance) -> None:
        rule = self._definitions.rules[instance.rule]
        if rule.run is None:
            error = InputError(f"the rule for {rule.patterns[0].text!r} has no action", remedy="give it run=")
            raise self._definitions.located(error, rule.place)
        inputs, after = self._split(instance.names)
        outs = instance.outs
        wildcards = dict(zip(rule.patterns[0].wildcards, instance.values, strict=True))
        action = self._action(rule.run, TemplateNames(outs[0], outs, inputs, instance.groups, wildcards), node)
        self._numbers[node] = self._builder.task(
            outs[0],
            action,
            inputs=inputs,
            outputs=outs,
            after=after,
            profile=self._definitions.profiles.all[rule.profile],
            line=rule.place.main_line,
        )

    def _action(self, run: Run, names: TemplateNames, node: int) -> Action:
        if run is None or isinstance(run, str):
            return run
        try:
            if callable(run):
                return self._calls.make(run, names)
            return run.command(names)
        except InputError as error:
            raise self._definitions.located(error, self._place(node)) from None

    def _cycle(self, node: int, path: Sequence[int]) -> InputError:
        shown = " needs ".join(self._describe(one) for one in path[path.index(node) :])
        error = InputError(f"the tasks form a cycle: {shown}", remedy="remove one of these needs")
        return self._definitions.located(error, self._place(node))

    def _place(self, node: int) -> SourcePlace:
        if node < self._search.base:
            return self._definitions.places.of(node)
        return self._definitions.rules[self._search.instances[node - self._search.base].rule].place

    def _describe(self, node: int) -> str:
        base = self._search.base
        name = self._definitions.names[node] if node < base else self._search.instances[node - base].outs[0]
        place = self._place(node)
        file = "" if place.file == self._definitions.source else f"{place.file}, "
        return f"{name!r} ({file}line {place.line})"
