"""The `needs=` of a definition: one name, nested lists, a dict whose keys become `needs.key`, paths, or a function.

`simplify` brings the value into the most compact form when it is defined. Functions and wildcards are known later: they
stay a `DeferredNeeds`, which is expanded for each task. `shoal.formats.rules.assembly` decides which of the names are
tasks, files that a task makes, or sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from shoal.errors import InputError
from shoal.formats.rules.options import SupportsPath
from shoal.formats.rules.patterns import Match, Template, TemplateNames

Needs: TypeAlias = (
    "str | SupportsPath | Mapping[str, Needs] | Iterable[Needs] | Callable[[Match], Needs] | Callable[[], Needs] | None"
)
"""Everything `needs=` accepts."""

Groups: TypeAlias = Mapping[str, str | tuple[str, ...]]
NO_GROUPS: Groups = {}


class Needed(NamedTuple):
    """Names in the order written, and by key those of a dict: one name, or a tuple if a list was given."""

    names: tuple[str, ...]
    groups: Groups = NO_GROUPS

    def renamed(self, new_name: Callable[[str], str]) -> Needed:
        groups = {
            key: new_name(group) if isinstance(group, str) else tuple(map(new_name, group))
            for key, group in self.groups.items()
        }
        return Needed(tuple(map(new_name, self.names)), groups)


NOTHING = Needed(())


class DeferredNeeds(NamedTuple):
    """Needs that are expanded for each task: functions, dicts, and templates with wildcards."""

    tree: object

    def expand(self, match: Match) -> Needed:
        """Calls the functions and fills in the wildcards for one task."""
        tree = self.tree
        if callable(tree):
            tree = call_needs(tree, match)
        if not isinstance(tree, Mapping):
            if isinstance(tree, list):
                known = template_names(match)
                flat = [item.text(known) if type(item) is Template else item for item in tree]
                if {*map(type, flat)} == {str} and "" not in flat:
                    return Needed(tuple(flat))
            return Needed(tuple(leaves(tree, match)))
        names: list[str] = []
        groups: dict[str, str | tuple[str, ...]] = {}
        for key, value in tree.items():
            found = tuple(leaves(value, match))
            names += found
            single = isinstance(value, (str, Template)) or hasattr(value, "__fspath__")
            groups[str(key)] = found[0] if single else found
        return Needed(tuple(names), groups)


Column: TypeAlias = str | tuple[str, ...] | DeferredNeeds | None
"""The needs of a definition as they are stored."""


def simplify(value: object) -> Column:
    """Returns the compact form of the needs of an explicit definition, whose names are plain text."""
    if value is None:
        return None
    kind = type(value)
    if kind is str or isinstance(value, str):
        return check_name(str(value))
    if (kind is list or kind is tuple) and {*map(type, value)} <= {str}:  # type: ignore[call-overload]
        names: tuple[str, ...] = tuple(value)  # type: ignore[arg-type]
        if "" in names:
            check_name("")
        return names
    if is_deferred(value):
        return DeferredNeeds(snapshot(value))
    return tuple(leaves(value, None))


def prepare(value: object, template_of: Callable[[str], str | Template]) -> DeferredNeeds:
    """Returns the needs of a rule, in which every text is a template over the wildcards."""
    if isinstance(value, str):
        return DeferredNeeds(template_of(value))
    if callable(value) or hasattr(value, "__fspath__") or value is None:
        return DeferredNeeds(value)
    if isinstance(value, Mapping):
        return DeferredNeeds({key: prepare(item, template_of).tree for key, item in value.items()})
    return DeferredNeeds([prepare(item, template_of).tree for item in needs_items(value)])


def is_deferred(value: object) -> bool:
    """Whether the value contains a dict or a function, so that it cannot be flattened to names yet."""
    if isinstance(value, Mapping) or callable(value):
        return not isinstance(value, str)
    if isinstance(value, (list, tuple)):
        return any(is_deferred(item) for item in value)
    return False


def snapshot(value: object) -> object:
    """Copies dicts and lists, so that later changes of a list do not affect the definition."""
    if isinstance(value, Mapping):
        return {key: snapshot(item) for key, item in value.items()}
    return [snapshot(item) for item in value] if isinstance(value, (list, tuple)) else value


def template_names(match: Match) -> TemplateNames:
    """Returns the names that templates among the needs can refer to."""
    return TemplateNames(match.name, match.outs, (), NO_GROUPS, match.wildcards)


def leaves(value: object, match: Match | None) -> Iterator[str]:
    """Yields the names in a nested structure, in order; calls functions in it with `match`."""
    if value is None:
        return
    if isinstance(value, Template):
        assert match is not None
        yield check_name(value.text(template_names(match)))
    elif isinstance(value, str) or hasattr(value, "__fspath__"):
        yield check_name(str(value))
    elif callable(value) and match is not None:
        yield from leaves(call_needs(value, match), match)
    else:
        for item in needs_items(value):
            yield from leaves(item, match)


def needs_items(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        raise InputError("needs contains a dict inside a list", remedy="pass the dict itself, with lists as its values")
    if isinstance(value, (bytes, bytearray)) or not isinstance(value, Iterable):
        raise InputError(f"needs contains {value!r}, which is neither a name nor a path")
    return value


def check_name(name: str) -> str:
    if not name:
        raise InputError("needs contains an empty name")
    return name


def call_needs(function: Callable[..., object], match: Match) -> object:
    """Calls the user's function with the match, or without arguments if it has no parameters."""
    code = getattr(function, "__code__", None)
    return function() if code is not None and not code.co_argcount and not code.co_flags & 4 else function(match)
