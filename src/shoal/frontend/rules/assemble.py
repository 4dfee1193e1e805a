"""From targets to the columnar graph: what they need, and no more, each task behind those it needs.

The walk is depth first, without recursion, in the order needs are written; a task is added to the graph when everything
it needs has been, so its predecessors' numbers are known. A need that is a task becomes an edge of order (`after`),
a need that is a file an input; `shoal.model.graph` connects files by name.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from shoal.errors import InputError
from shoal.frontend.rules.calls import Calls
from shoal.frontend.rules.definitions import FILE, Definitions, Run
from shoal.frontend.rules.needs import NO_GROUPS, NOTHING, Needed, Wanted
from shoal.frontend.rules.pattern import Match
from shoal.frontend.rules.places import Blame, Place
from shoal.frontend.rules.search import NOBODY, Instance, Search
from shoal.frontend.rules.template import Names
from shoal.model.graph import Graph, GraphBuilder
from shoal.model.task import Action, Profile

_UNSEEN, _OPEN, _DONE = 0, 1, 2
_SOURCE = -1
"""Number of a file that was declared without anything to run: it is no task."""


class Assembly:
    """Builds one graph."""

    def __init__(self, definitions: Definitions, search: Search) -> None:
        self._definitions = definitions
        self._search = search
        self._builder = GraphBuilder(definitions.source)
        self._calls = Calls()
        self._states = bytearray(search.base)
        self._numbers = array("i", [_SOURCE]) * search.base
        self._expanded: dict[int, Needed] = {}

    def build(self, targets: Sequence[int]) -> tuple[Graph, list[int]]:
        """The graph of everything the target nodes need, and the targets' task numbers."""
        stack = list(reversed(targets))
        states = self._states
        while stack:
            node = stack.pop()
            if node < 0:
                self._add(~node)
                continue
            if node >= len(states):
                self._grow()
            if states[node] == _DONE:
                continue
            if states[node] == _OPEN:
                raise self._cycle(node, stack)
            names = self._names(node)
            children = self._children(node, names) if names else None
            if not children:
                self._add(node)
                continue
            states[node] = _OPEN
            stack.append(~node)
            children.reverse()
            stack += children
        numbers = dict.fromkeys(self._numbers[node] for node in targets)
        return self._builder.build(), [number for number in numbers if number != _SOURCE]

    def _grow(self) -> None:
        """Makes room for the rule instances found since."""
        missing = self._search.base + len(self._search.instances) - len(self._states)
        self._states.extend(bytes(missing))
        self._numbers.extend([_SOURCE] * missing)

    def _children(self, node: int, names: Sequence[str]) -> list[int]:
        maker = self._search.maker
        consumer = self._search.instances[node - self._search.base] if node >= self._search.base else None
        children = [maker(name, consumer) for name in names]
        self._grow()
        states = self._states
        return [child for child in children if child != NOBODY and states[child] != _DONE]

    def _names(self, node: int) -> Sequence[str]:
        """What a node needs, by full name."""
        if node >= self._search.base:
            return self._search.instances[node - self._search.base].needed.names
        column = self._definitions.needs[node]
        if column is None:
            return ()
        if type(column) is Wanted or node in self._definitions.scopes:
            return self._expand(node).names
        return (column,) if type(column) is str else column  # type: ignore[return-value]

    def _needed(self, node: int) -> Needed:
        return self._expanded.get(node) or Needed(tuple(self._names(node)))

    def _expand(self, node: int) -> Needed:
        """The needs of a definition that has functions or keys among them, or stands in a namespace."""
        known = self._expanded.get(node)
        if known is not None:
            return known
        definitions = self._definitions
        column = definitions.needs[node]
        if isinstance(column, Wanted):
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
            if node is None or kinds[node] == FILE:
                inputs.append(name)
            else:
                after.append(numbers[node])
        return inputs, after

    def _add(self, node: int) -> None:
        if node >= self._search.base:
            self._add_instance(node, self._search.instances[node - self._search.base])
        else:
            self._add_definition(node)
        self._states[node] = _DONE

    def _add_definition(self, node: int) -> None:
        definitions = self._definitions
        names = self._names(node)
        run = definitions.runs[node]
        outs = definitions.outputs(node)
        if run is None and outs and not names:
            return
        inputs, after = self._split(names) if names else ((), ())
        action: Action
        if run is None or type(run) is str:
            action = run
        else:
            action = self._action(run, node, self._needed(node), inputs, outs, {}, definitions.places.of(node))
        self._numbers[node] = self._builder.task(
            definitions.names[node],
            action,
            inputs=inputs,
            outputs=outs,
            after=after,
            profile=self._profile(definitions.profile_numbers[node]),
            line=definitions.places.main_line(node),
        )

    def _add_instance(self, node: int, instance: Instance) -> None:
        rule = self._definitions.rules[instance.rule]
        if rule.run is None:
            error = InputError(f"the rule for {rule.patterns[0].text!r} has nothing to run", remedy="give it run=")
            raise self._definitions.placed(error, rule.place)
        inputs, after = self._split(instance.needed.names)
        outs = instance.outs
        action = self._action(rule.run, node, instance.needed, inputs, outs, instance.wildcards, rule.place)
        self._numbers[node] = self._builder.task(
            outs[0],
            action,
            inputs=inputs,
            outputs=outs,
            after=after,
            profile=self._profile(rule.profile),
            line=rule.place.main_line,
        )

    def _action(
        self,
        run: Run,
        node: int,
        needed: Needed,
        inputs: Sequence[str],
        outs: Sequence[str],
        wildcards: dict[str, str],
        place: Place,
    ) -> Action:
        if run is None or isinstance(run, str):
            return run
        try:
            if callable(run):
                return self._calls.make(run, needed, wildcards)
            name = outs[0] if outs else self._definitions.names[node]
            return run.command(Names(name, outs, inputs, needed.groups or NO_GROUPS, wildcards))
        except InputError as error:
            raise self._definitions.placed(error, place) from None

    def _profile(self, number: int) -> Profile | None:
        return self._definitions.profiles.all[number] if number else None

    def _cycle(self, node: int, stack: Sequence[int]) -> InputError:
        path = [~marker for marker in stack if marker < 0]
        path = path[path.index(node) :]
        shown = " needs ".join(self._describe(one) for one in [*path, node])
        error = InputError(f"the tasks form a cycle: {shown}", remedy="remove one of these needs")
        return self._definitions.placed(error, self._place(node))

    def _place(self, node: int) -> Place:
        if node < self._search.base:
            return self._definitions.places.of(node)
        return self._definitions.rules[self._search.instances[node - self._search.base].rule].place

    def _describe(self, node: int) -> str:
        base = self._search.base
        name = self._definitions.names[node] if node < base else self._search.instances[node - base].outs[0]
        place = self._place(node)
        file = "" if place.file == self._definitions.source else f"{place.file}, "
        return f"{name!r} ({file}line {place.line})"
