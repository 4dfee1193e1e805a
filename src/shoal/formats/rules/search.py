"""Who makes a file: the search from a name back to the definition, or to the rule and wildcards that fit.

An explicit definition comes first, then pattern rules in the order of their definition. As in Rake, a rule is passed
over if something it needs cannot be had, that is, neither exists nor is made by anything. The search is iterative,
so a chain of a million rules works; a name met again below itself cannot be had there. If no rule applies fully and the
file does not exist, the first rule that matches is taken anyway: then the missing input at the far end is reported,
not the target.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from shoal.errors import InputError
from shoal.formats.rules.definitions import Blame, RuleDefinitions
from shoal.formats.rules.needs import NO_GROUPS, Groups
from shoal.formats.rules.patterns import Match, Pattern

NOBODY = -1
_HOPELESS = -2
_UNKNOWN = -3
_OPEN = -4
"""The name at depth d on the way down has the state `_OPEN - d`."""
_NEVER = 1 << 62

LONGEST_NAME = 4096
"""No file system has longer paths; stops rules whose needs grow: `{x}` from `{x}.src`."""
DEEPEST_CHAIN = 1_500_000
"""Rules in a row. A rule that counts down without end must be stopped; honest chains of a million must not."""


class Instance(NamedTuple):
    """A rule with its wildcards filled in: one task."""

    rule: int
    values: tuple[str, ...]
    """Of the rule's wildcards, in their order."""
    outs: tuple[str, ...]
    names: tuple[str, ...]
    groups: Groups
    """What it needs, as in `Needed`."""


SPENT = Instance(-1, (), (), (), NO_GROUPS)
"""What remains of an instance that is in the graph."""


class Lacking(NamedTuple):
    """Why a rule that matches a file was passed over."""

    outs: tuple[str, ...]
    """What the rule would make."""
    need: str
    """What cannot be had."""


class _Attempt:
    """One name on the way down: which rule is being tried, and how far its needs are known to be available."""

    __slots__ = ("instance", "lacking", "low", "name", "next_pattern", "node", "position")

    def __init__(self, name: str) -> None:
        self.name = name
        self.next_pattern = 0
        self.instance: Instance | None = None
        self.lacking: Lacking | None = None
        """The first rule that was passed over."""
        self.position = 0
        self.low = _NEVER
        """Depth of the highest name on the way down that stood in the way: a failure holds only below it."""
        self.node = _UNKNOWN


class Search:
    """Finds makers, and keeps what it found. Nodes are numbers of definitions, then (from `base`) of instances."""

    def __init__(self, definitions: RuleDefinitions, exists: Callable[[str], bool]) -> None:
        self.base = len(definitions.names)
        self.instances: list[Instance] = []
        self._definitions = definitions
        self.exists = exists
        self._patterns: list[tuple[int, Pattern]] = [
            (number, pattern) for number, rule in enumerate(definitions.rules) for pattern in rule.patterns
        ]
        # Most names that match no rule, such as sources, are told apart by these alone.
        self._prefixes = tuple(pattern.prefix for _, pattern in self._patterns)
        self._suffixes = tuple(pattern.suffix for _, pattern in self._patterns)
        self._states: dict[str, int] = {}
        """The maker of each name looked into; `NOBODY` makes a source that exists."""
        self._absent: dict[str, None] = {}
        """Names that nobody makes, though a rule may have matched, and that do not exist."""
        self._refusals: dict[str, InputError] = {}
        self.passed_over: dict[str, Lacking] = {}
        """By file that is there and so counts as a source, although a rule matches it."""

    def maker(self, name: str, consumer: Instance | None = None) -> int:
        """The node that makes `name`, or `NOBODY`; `consumer` is who needs it, if that is a rule."""
        node = self._definitions.explicit.get(name)
        if node is not None:
            return node
        if "/" in name:  # no other name can be written in more than one way
            plain = self._definitions.plain(name)
            if plain != name:
                return self.maker(plain, consumer)
        if not self._patterns:
            return NOBODY
        node = self._states.get(name)
        if node is None:
            node = NOBODY if name in self._absent else self._search(name)
        return node if node != _HOPELESS else self._guess(name, consumer)

    def _search(self, name: str) -> int:
        stack = [_Attempt(name)]
        self._states[name] = _OPEN
        while True:
            attempt = stack[-1]
            deeper = self._advance(attempt, len(stack) - 1)
            if deeper is not None:
                if len(stack) >= DEEPEST_CHAIN:
                    raise self._endless(attempt)
                self._states[deeper] = _OPEN - len(stack)
                stack.append(_Attempt(deeper))
                continue
            stack.pop()
            if not stack:
                return attempt.node
            above = stack[-1]
            if attempt.node == _HOPELESS:
                self._pass_over(above)
                above.low = min(above.low, attempt.low)
            else:
                above.position += 1

    def _advance(self, attempt: _Attempt, depth: int) -> str | None:
        """Goes on with an attempt until it is settled (None) or a need must be looked into first (its name)."""
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
                if state < NOBODY:
                    if state <= _OPEN:
                        attempt.low = min(attempt.low, _OPEN - state)
                    self._pass_over(attempt)
                    break
                attempt.position += 1
            else:
                attempt.node = self._settle(attempt.instance)
                return None

    @staticmethod
    def _pass_over(attempt: _Attempt) -> None:
        """Gives up the rule that is being tried: the need that it has come to cannot be had."""
        instance = attempt.instance
        if instance is not None and attempt.lacking is None:
            attempt.lacking = Lacking(instance.outs, instance.names[attempt.position])
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
            return _HOPELESS
        if need.startswith(self._prefixes) and need.endswith(self._suffixes):
            return _UNKNOWN
        if self.exists(need):
            self._states[need] = NOBODY
            return NOBODY
        self._absent[need] = None
        return _HOPELESS

    def _without_rule(self, attempt: _Attempt, depth: int) -> int:
        if self.exists(attempt.name):
            self._states[attempt.name] = NOBODY
            if attempt.lacking is not None:
                self.passed_over[attempt.name] = attempt.lacking
            return NOBODY
        if attempt.low < depth:
            del self._states[attempt.name]
        else:
            self._states[attempt.name] = _HOPELESS
        return _HOPELESS

    def _next_instance(self, attempt: _Attempt) -> Instance | None:
        """The next rule that fits the name, with its needs."""
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
            with Blame(definitions.texts, rule.place):
                needed = rule.needs.expand(Match(outs[0], outs, wildcards))
        except InputError as error:
            # A table that does not know the name: the rule is not meant for it, unless no other is.
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
            if self._states.get(out, NOBODY) < 0:
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
            return NOBODY
        return self._settle(instance)

    def _endless(self, attempt: _Attempt) -> InputError:
        assert attempt.instance is not None
        rule = self._definitions.rules[attempt.instance.rule]
        error = InputError(f"the rule for {rule.patterns[0].text!r} leads to itself without end, at {attempt.name!r}")
        return self._definitions.placed(error, rule.place)
