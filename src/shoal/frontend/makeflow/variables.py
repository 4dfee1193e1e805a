"""Variables of a Makeflow: one table per category, each value remembered with the moment it was assigned.

A rule sees the values assigned before its place in the file, yet which names it exports may be said further down. So
tables keep histories: every assignment gets the next version number, a rule notes the version it was read at, and
`assigned` finds the value of that moment by bisection. Values of single rules stay with the rules.

A value that is appended to is a growing list of parts, of which each entry of the history sees the first few: a
hundred thousand `+=` on one name cost no more than their text.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping


class History:
    """The values of one name in one table; entry *i* is the first `counts[i]` of `parts[i]`."""

    __slots__ = ("counts", "parts", "versions")

    def __init__(self) -> None:
        self.versions: list[int] = []
        self.parts: list[list[str]] = []
        self.counts: list[int] = []

    def add(self, version: int, parts: list[str]) -> None:
        self.versions.append(version)
        self.parts.append(parts)
        self.counts.append(len(parts))

    def at(self, version: int | None) -> str | None:
        """The value as of `version`, or the last one; None if that was before the first."""
        entry = len(self.versions) if version is None else bisect_right(self.versions, version)
        if not entry:
            return None
        return " ".join(self.parts[entry - 1][: self.counts[entry - 1]])


class Variables:
    """Assignments per category, and the environment behind them."""

    def __init__(self, environment: Mapping[str, str], default_category: str) -> None:
        self.environment = environment
        self.version = 0
        self._default: dict[str, History] = {}
        self._tables = {default_category: self._default}

    def assign(self, category: str, name: str, value: str) -> None:
        self.version += 1
        self._tables.setdefault(category, {}).setdefault(name, History()).add(self.version, [value])

    def append(self, name: str, value: str) -> None:
        """`NAME += value` outside a rule: as in the original it works on the default category, whichever is open."""
        self.version += 1
        history = self._default.setdefault(name, History())
        if not history.parts and name in self.environment:
            history.add(self.version, [self.environment[name]])
        parts = history.parts[-1] if history.parts else []
        parts.append(value)
        history.add(self.version, parts)

    def latest(self, category: str, name: str) -> str | None:
        """The value now: of the category, else of the default category, else of the environment."""
        found = self.assigned(category, name)
        return self.environment.get(name) if found is None else found

    def assigned(self, category: str, name: str, version: int | None = None) -> str | None:
        """The value the file itself gives, as of `version` or now."""
        for table in (self._tables.get(category), self._default):
            history = table.get(name) if table else None
            value = history.at(version) if history is not None else None
            if value is not None:
                return value
        return None

    def table(self, category: str) -> dict[str, str]:
        """The last value of each name that was assigned in this very category, in the order of first assignment."""
        histories = self._tables.get(category, {})
        return {name: value for name, history in histories.items() if (value := history.at(None)) is not None}
