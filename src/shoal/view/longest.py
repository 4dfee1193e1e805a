"""The longest chain of tasks of a plan, and what is left of it while tasks end. Needs no numpy.

Chains are counted in tasks that run something, since before they have run nobody knows how long they take. If several
are as long, what is left of them is the mean, step by step: whichever ends last, so much of it lies before us.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, islice
from math import inf

from shoal.ledger.records import TasksLinked, numbers
from shoal.model.graph import NO_TASK
from shoal.view.pace import Chain, Tally

MOST_LINKED = 100_000
"""Dependencies that are looked at whenever anybody asks how far a run is."""
_AT_ONCE = 10_000
"""Tasks that are looked through once a second; more of them, less often."""
_FEW = 100
"""Tasks that are looked through whenever anybody asks."""


def steps_of_longest(parents: Sequence[int], children: Sequence[int], runs: Sequence[bool]) -> list[int]:
    """By task: which step of a longest chain it is, from 1; 0 for tasks that are on none, and for those that run
    nothing. Parents and children are pairs: the one is needed by the other."""
    before, behind = _depths(parents, children, runs), _depths(children, parents, runs)
    through = [one + other - own for one, other, own in zip(before, behind, runs, strict=True)]  # it is in both itself
    most = max(through, default=0)
    return [step if own and long == most else 0 for step, own, long in zip(before, runs, through, strict=True)]


def _depths(parents: Sequence[int], children: Sequence[int], runs: Sequence[bool]) -> list[int]:
    """Tasks on the longest chain that ends with each task, itself included; those that run nothing do not count."""
    start, left = [0] * (len(runs) + 1), [0] * len(runs)
    for parent, child in zip(parents, children, strict=True):
        start[parent + 1] += 1
        left[child] += 1
    start = list(accumulate(start))
    free, below = start[:], [0] * len(parents)  # one list for all: a list for each task would take ten times as much
    for parent, child in zip(parents, children, strict=True):
        below[free[parent]] = child
        free[parent] += 1
    depth = [0] * len(runs)
    front = [task for task, count in enumerate(left) if not count]
    for task in front:  # grows while we walk it
        here = depth[task] = depth[task] + runs[task]
        for child in below[start[task] : start[task + 1]]:
            left[child] -= 1
            if here > depth[child]:
                depth[child] = here
            if not left[child]:
                front.append(child)
    return depth


def chain_of(left: Iterable[tuple[int, Tally, int]], begun: float) -> Chain | None:
    """From what is left: which step, which category, and how many tasks of both; None if nothing is. `begun` are the
    seconds that the first step has behind it."""
    rows = list(left)
    there: Counter[int] = Counter()
    for step, _, count in rows:
        there[step] += count
    shares: dict[int, tuple[Tally, float]] = {}
    for step, tally, count in rows:
        _, so_far = shares.get(id(tally), (tally, 0.0))
        shares[id(tally)] = tally, so_far + count / there[step]
    return Chain(list(shares.values()), begun) if shares else None


class Longest:
    """Follows the longest chain of one run."""

    def __init__(self, steps: Sequence[int], category_of: Callable[[int], str]) -> None:
        self._key = {task: (step, category_of(task)) for task, step in enumerate(steps) if step}
        self._left = list(self._key)
        self._counts: Counter[tuple[int, str]] = Counter(self._key.values())
        self._ahead: list[list[int]] = []
        """The tasks that are left of each step; the first step stands last."""
        self._looked, self._due = inf, 0.0

    def look(self, is_over: Callable[[int], object], now: float) -> None:
        """Finds out which tasks of it are over; at all of them it looks not more often than is worth it."""
        if self._looked <= now < self._due:  # a clock may have been put back
            self._go_on(is_over)
            return
        self._left = [task for task in self._left if not is_over(task)]
        self._looked, self._due = now, now + max(1, len(self._left) // _AT_ONCE)
        self._counts = Counter(map(self._key.__getitem__, self._left))
        ahead: dict[int, list[int]] = {}
        for task in self._left:
            ahead.setdefault(self._key[task][0], []).append(task)
        self._ahead = [ahead[step] for step in sorted(ahead, reverse=True)]

    def _go_on(self, is_over: Callable[[int], object]) -> None:
        """From steps that have ended since to the next one: however long they took, they would count as not begun. Of
        a step with many tasks the next look will tell."""
        while self._ahead and len(self._ahead[-1]) <= _FEW:
            first, rest = self._ahead[-1], [task for task in self._ahead[-1] if not is_over(task)]
            for key in map(self._key.__getitem__, set(first).difference(rest)):
                self._counts[key] -= 1
                if not self._counts[key]:
                    del self._counts[key]
            self._ahead[-1] = rest
            if rest:
                return
            self._ahead.pop()

    def chain(self, tallies: Mapping[str, Tally], begun: Mapping[int, float]) -> Chain | None:
        """What was left of it at the last look; `begun` are the seconds that running tasks have behind them."""
        unplanned = Tally()
        rows = [(step, tallies.get(name, unplanned), count) for (step, name), count in self._counts.items()]
        first, behind = self._ahead[-1] if self._ahead else [], 0.0
        if len(first) <= len(begun):  # or else one of them has not begun
            means = ((task, tallies.get(self._key[task][1], unplanned).mean(0.0)) for task in first)
            behind = min((min(begun.get(task, 0.0), mean) for task, mean in means), default=0.0)
        return chain_of(rows, behind)


def longest_of(links: Sequence[TasksLinked], category_of: Mapping[int, str]) -> Longest:
    """From records; tasks that have a category are those that run something."""
    parents: list[int] = []
    children: list[int] = []
    for record in links:
        needed = iter(numbers(record.needs))
        for task, count in zip(numbers(record.tasks), numbers(record.counts), strict=True):
            known = [parent for parent in islice(needed, count) if parent != NO_TASK]
            parents += known
            children += [task] * len(known)
    size = 1 + max(max(parents, default=-1), max(children, default=-1), max(category_of, default=-1))
    steps = steps_of_longest(parents, children, [task in category_of for task in range(size)])
    return Longest(steps, category_of.__getitem__)
