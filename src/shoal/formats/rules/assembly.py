"""From targets to the columnar graph: what they need, and no more, each task behind those it needs.

The walk is depth first, without recursion, in the order needs are written; a task is added to the graph when everything
it needs has been, so its predecessors' numbers are known. A need that is a task becomes an edge of order (`after`),
a need that is a file an input; `shoal.core.graph` connects files by name.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from types import FunctionType

from shoal.core.file_names import without_ways_up
from shoal.core.graph import Graph, GraphBuilder
from shoal.core.task import Action, Call
from shoal.errors import InputError
from shoal.formats.rules.definitions import FILE, Blame, RuleDefinitions, Run, SourcePlace
from shoal.formats.rules.fingerprint import Fingerprints, ModuleText
from shoal.formats.rules.needs import NOTHING, DeferredNeeds, Needed
from shoal.formats.rules.patterns import Match
from shoal.formats.rules.search import NOBODY, SPENT, Instance, Search
from shoal.formats.rules.template import TemplateNames


class FunctionCalls:
    """Makes calls; what depends on the function alone is worked out once."""

    def __init__(self, modules: ModuleText) -> None:
        self._fingerprints = Fingerprints(modules)
        self._plain: dict[int, Call] = {}
        """By `id(function)`; the calls keep the functions alive."""

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
    """Whether it takes a parameter without default; `lambda i=i: ...` keeps its own."""
    required, keywords = required_parameters(function)
    if required > 1 or keywords:
        name = getattr(function, "__name__", "the function")
        raise InputError(
            f"{name}() takes {required + keywords} parameters, but an action takes the task or nothing",
            remedy="give the others default values, or use param()",
        )
    return required == 1


def required_parameters(function: Callable[..., object]) -> tuple[int, int]:
    """How many positional and keyword-only parameters have no default."""
    if isinstance(function, FunctionType):
        code = function.__code__
        keywords = code.co_kwonlyargcount - len(function.__kwdefaults__ or {})
        return code.co_argcount - len(function.__defaults__ or ()), keywords
    import inspect  # costs milliseconds, and is needed for unusual callables only

    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin that does not tell
        return 0, 0
    required = [one.kind for one in parameters if one.default is one.empty]
    keywords = required.count(inspect.Parameter.KEYWORD_ONLY)
    variable = required.count(inspect.Parameter.VAR_POSITIONAL) + required.count(inspect.Parameter.VAR_KEYWORD)
    return len(required) - keywords - variable, keywords


_OPEN, _DONE = 1, 2
_SOURCE = -1
"""Number of a file that was declared without anything to run: it is no task."""


class Assembly:
    """Builds one graph."""

    def __init__(self, definitions: RuleDefinitions, search: Search, modules: ModuleText = str) -> None:
        self._definitions = definitions
        self._search = search
        self._builder = GraphBuilder(definitions.source, definitions.relative)
        self._calls = FunctionCalls(modules)
        self._states = bytearray(search.base)
        self._numbers = array("i", [_SOURCE]) * search.base
        self._expanded: dict[int, Needed] = {}
        self._folders: dict[str, tuple[str, int]] = {}
        """By directory that holds sources, one of them and a node that needs it."""

    def build(self, targets: Sequence[int]) -> tuple[Graph, list[int]]:
        """The graph of everything the target nodes need, and the targets' task numbers."""
        for target in targets:
            self._visit(target)
        if self._folders:
            self._refuse_parts()
        numbers = dict.fromkeys(self._numbers[node] for node in targets)
        return self._builder.build(), [number for number in numbers if number != _SOURCE]

    def _visit(self, target: int) -> None:
        """Adds what the target needs, then the target."""
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
            child = NOBODY
            if positions[-1] < len(names):
                child, positions[-1] = self._next_child(node, names, positions[-1])
            if child == NOBODY:
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
        """Rule instances are found while we walk, so the columns grow."""
        missing = node + 1 - len(self._states)
        if missing > 0:
            self._states.extend(bytes(missing))
            self._numbers.extend([_SOURCE] * missing)

    def _next_child(self, node: int, names: Sequence[str], position: int) -> tuple[int, int]:
        """The next maker among the needs that is not in the graph yet, and the position behind it.

        Makers that need nothing themselves are added on the way.
        """
        search, states, needs = self._search, self._states, self._definitions.needs
        base = search.base
        consumer = search.instances[node - base] if node >= base else None
        for place in range(position, len(names)):
            child = search.maker(names[place], consumer)
            if child >= base:
                self._make_room(child)
            if child == NOBODY:
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
        return NOBODY, len(names)

    def _refuse_other_name(self, name: str, node: int) -> None:
        """As the graph does for files that are in it: here the other one may be none that the targets need."""
        other = without_ways_up(self._definitions.plain(name))
        if other in self._definitions.explicit:
            error = InputError(f"{name!r} may be another name of {other!r}", remedy="write the file's name in one way")
            raise self._definitions.placed(error, self._place(node))

    def _refuse_parts(self) -> None:
        """A need that nobody makes by its name, and that lies in a directory that a task makes, is no source."""
        graph, definitions = self._builder.graph, self._definitions
        made = {graph.file_names[file] for file in graph.outputs} if self._search.instances else ()
        for directory, (name, node) in self._folders.items():
            above = definitions.plain(directory)
            while above:
                maker = definitions.explicit.get(above, NOBODY)
                is_made = maker != NOBODY and definitions.kinds[maker] == FILE and definitions.runs[maker] is not None
                if is_made or above in made:
                    error = InputError(
                        f"{name!r} is part of {above!r}, which a task makes as a whole",
                        remedy=f"need {above!r}, or name {name!r} as one more output of that task",
                    )
                    raise definitions.placed(error, self._place(node))
                above = above.rpartition("/")[0]

    def _names(self, node: int) -> Sequence[str]:
        """What a node needs, by full name."""
        if node >= self._search.base:
            return self._search.instances[node - self._search.base].names
        column = self._definitions.needs[node]
        if column is None:
            return ()
        if type(column) is DeferredNeeds or node in self._definitions.scopes:
            return self._expand(node).names
        return (column,) if type(column) is str else column  # type: ignore[return-value]

    def _expand(self, node: int) -> Needed:
        """The needs of a definition that has functions or keys among them, or stands in a namespace."""
        known = self._expanded.get(node)
        if known is not None:
            return known
        definitions = self._definitions
        column = definitions.needs[node]
        if isinstance(column, DeferredNeeds):
            match = Match(definitions.names[node], definitions.outputs(node), {})
            with Blame(definitions.texts, definitions.places.of(node)):
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
        """Files among the names, and the numbers of the tasks among them."""
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
            self._search.instances[node - base] = SPENT
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
            error = InputError(f"the rule for {rule.patterns[0].text!r} has nothing to run", remedy="give it run=")
            raise self._definitions.placed(error, rule.place)
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
            raise self._definitions.placed(error, self._place(node)) from None

    def _cycle(self, node: int, path: Sequence[int]) -> InputError:
        shown = " needs ".join(self._describe(one) for one in path[path.index(node) :])
        error = InputError(f"the tasks form a cycle: {shown}", remedy="remove one of these needs")
        return self._definitions.placed(error, self._place(node))

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
