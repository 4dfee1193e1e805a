"""What a definition needs: one name, nested lists, a dict whose keys become `needs.key`, paths, or a function.

`simplify` brings what the user wrote into the most compact form at definition; what can be known only at search time
(functions, wildcards) stays a `DeferredNeeds` and is expanded then. Which of the names are tasks, files made by someone
or sources is decided by `search`.
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
    """Names in the order written, and those given under a key: one name, or a tuple if a list was given."""

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
    """Needs that must wait for the search: functions, dicts, and templates with wildcards."""

    tree: object

    def expand(self, match: Match) -> Needed:
        """Calls the functions and fills in the wildcards for one task."""
        tree = self.tree
        if callable(tree):
            tree = call_needs(tree, match)
        if not isinstance(tree, Mapping):
            if isinstance(tree, list):
                offered = offer(match)
                flat = [item.text(offered) if type(item) is Template else item for item in tree]
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
"""How a definition keeps its needs."""


def simplify(value: object) -> Column:
    """The needs of an explicit definition, whose names are plain text."""
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
    """The needs of a rule: every text in them is a template over its wildcards."""
    if isinstance(value, str):
        return DeferredNeeds(template_of(value))
    if callable(value) or hasattr(value, "__fspath__") or value is None:
        return DeferredNeeds(value)
    if isinstance(value, Mapping):
        return DeferredNeeds({key: prepare(item, template_of).tree for key, item in value.items()})
    return DeferredNeeds([prepare(item, template_of).tree for item in members(value)])


def is_deferred(value: object) -> bool:
    """Whether there is a dict or a function in it, so that it cannot be flattened to names now."""
    if isinstance(value, Mapping) or callable(value):
        return not isinstance(value, str)
    if isinstance(value, (list, tuple)):
        return any(is_deferred(item) for item in value)
    return False


def snapshot(value: object) -> object:
    """A copy, so that a list that grows after the definition does not change it."""
    if isinstance(value, Mapping):
        return {key: snapshot(item) for key, item in value.items()}
    return [snapshot(item) for item in value] if isinstance(value, (list, tuple)) else value


def offer(match: Match) -> TemplateNames:
    """What the templates among the needs may refer to."""
    return TemplateNames(match.name, match.outs, (), NO_GROUPS, match.wildcards)


def leaves(value: object, match: Match | None) -> Iterator[str]:
    """The names in a nested structure, in order; functions in it are called with `match`."""
    if value is None:
        return
    if isinstance(value, Template):
        assert match is not None
        yield check_name(value.text(offer(match)))
    elif isinstance(value, str) or hasattr(value, "__fspath__"):
        yield check_name(str(value))
    elif callable(value) and match is not None:
        yield from leaves(call_needs(value, match), match)
    else:
        for item in members(value):
            yield from leaves(item, match)


def members(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        raise InputError("needs holds a dict inside a list", remedy="pass the dict itself, with lists as its values")
    if isinstance(value, (bytes, bytearray)) or not isinstance(value, Iterable):
        raise InputError(f"needs holds {value!r}, which is neither a name nor a path")
    return value


def check_name(name: str) -> str:
    if not name:
        raise InputError("needs holds an empty name")
    return name


def call_needs(function: Callable[..., object], match: Match) -> object:
    """Calls the user's function with the match, or with nothing if it takes nothing."""
    code = getattr(function, "__code__", None)
    return function() if code is not None and not code.co_argcount and not code.co_flags & 4 else function(match)
