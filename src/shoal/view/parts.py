"""How the runs of a ledger follow one another, and what machines there were: the same for everybody who shows a run.

Needs no numpy, since `shoal status` shall answer at once.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from shoal.ledger.records import DETACHED, RunEnded, RunStarted


def has_nothing_to_do(start: RunStarted) -> bool:
    """Everything is up to date; a net, of which nobody knows how many tasks it will have, counts none at all."""
    return start.total > 0 and start.to_run == 0


def passes(start: RunStarted, before: RunStarted | None, end: RunEnded | None) -> bool:
    """Whether a run had nothing to do while the one before it came to its own end: then that one is shown. What goes on
    with a run that did not come to its end is a part of it."""
    if before is None or end is None or end.outcome == DETACHED or before.run == start.run:
        return False
    return has_nothing_to_do(start)


def since_before(start: RunStarted, before: RunStarted | None, last: float) -> RunStarted:
    """The same, beginning where its story begins. A run that is attached to again goes on under its old name, and what
    has ended meanwhile is recorded now: it goes on from the last moment that is known of it, not from now."""
    if before is None or before.run != start.run:
        return start
    return msgspec.structs.replace(start, time=min(start.time, max(before.time, last)))


Span = tuple[float, float | None]
"""From when until when a machine was there; None: until the end."""
There = tuple[int, float, float, float]
"""A machine, its cores, and from when until when it was there."""


def there(spans: Iterable[tuple[int, float, Span]], origin: float, last: float) -> list[There]:
    """The same within a run. Machines that were seen first had been there before anybody looked."""
    known = list(spans)
    first = min((begin for *_, (begin, _) in known), default=origin)
    found = []
    for number, cores, (begin, end) in known:
        since = origin if begin == first else max(begin, origin)
        found.append((number, cores, since, max(since, last if end is None else min(end, last))))
    return found


def within(begin: float, end: float, origin: float) -> float:
    """Seconds of an attempt that lie in its run: what is attached to began before its record, and clocks differ."""
    return max(0.0, end - max(begin, origin))
