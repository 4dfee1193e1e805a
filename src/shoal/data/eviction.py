"""What a full cache gives up: a decision without files or clocks.

The value of keeping an object is the time saved if it is wanted again, times the chance that it is. The time is
`seconds_to_get` (fetching or making it once more); the chance is taken to fall with the time since it was last used.
Room is what is short, so objects go in the order of value per byte, lowest first. Pinned objects and only copies are
not offered to this module at all.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

SHORTEST_AGE = 1.0
"""Seconds below which two uses count as equally recent, so that what was used just now has a finite value."""


class Candidate(msgspec.Struct, frozen=True):
    """An object that may go."""

    name: str
    size_bytes: int
    seconds_to_get: float
    used_at: float


def value_per_byte(candidate: Candidate, now: float) -> float:
    age = max(SHORTEST_AGE, now - candidate.used_at)
    return candidate.seconds_to_get / age / max(1, candidate.size_bytes)


def choose(candidates: Iterable[Candidate], need_bytes: int, now: float) -> list[str] | None:
    """Names of objects whose going frees at least that many bytes, or None if all of them together do not.

    None of those chosen could stay: a large object taken last may make smaller ones before it unnecessary, and they are
    spared, the most valuable first. Empty objects never help.
    """
    if need_bytes <= 0:
        return []
    order = sorted(
        (one for one in candidates if one.size_bytes > 0),
        key=lambda one: (value_per_byte(one, now), one.used_at, one.name),
    )
    taken: list[Candidate] = []
    freed = 0
    for one in order:
        if freed >= need_bytes:
            break
        taken.append(one)
        freed += one.size_bytes
    if freed < need_bytes:
        return None
    chosen = []
    for one in reversed(taken):
        if freed - one.size_bytes >= need_bytes:
            freed -= one.size_bytes
        else:
            chosen.append(one.name)
    chosen.reverse()
    return chosen
