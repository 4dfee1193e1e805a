"""Settings of many rules (resources, environment) said once where they agree: for all, per category, per rule.

Used by printers whose language has these three places. A place further out must never give a rule a setting that it
did not have, so only names that every rule concerned has are moved there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

Settings = Mapping[str, str]


class Shared(NamedTuple):
    """Settings by place; what a rule has is the sum, the narrower place counting first."""

    common: dict[str, str]
    of_category: dict[str, dict[str, str]]
    of_rule: list[dict[str, str]]


def share(rules: Sequence[tuple[str, Settings]], default_category: str, never_common: str = "") -> Shared:
    """Splits the settings of all rules, each given with its category; the default category shares with all others.

    The name `never_common` is said per category at most.
    """
    groups: dict[str, list[Settings]] = {}
    for category, settings in rules:
        groups.setdefault(category, []).append(settings)
    common = _agreed([settings for _, settings in rules])
    common.pop(never_common, None)
    of_category = {}
    for category, members in groups.items():
        if category == default_category:
            of_category[category] = common
        else:
            of_category[category] = common | _agreed(members)
    own = [
        {name: value for name, value in settings.items() if of_category[category].get(name) != value}
        for category, settings in rules
    ]
    narrowed = {
        category: {name: value for name, value in settings.items() if common.get(name) != value}
        for category, settings in of_category.items()
    }
    return Shared(common, {category: settings for category, settings in narrowed.items() if settings}, own)


def _agreed(rules: Sequence[Settings]) -> dict[str, str]:
    """The names that all have, each with its most frequent value (the first of those that are equally frequent)."""
    if not rules:
        return {}
    counts: dict[str, Counter[str]] = {}
    for settings in rules:
        for name, value in settings.items():
            counts.setdefault(name, Counter())[value] += 1
    return {name: found.most_common(1)[0][0] for name, found in counts.items() if found.total() == len(rules)}
