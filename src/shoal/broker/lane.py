"""Lanes, the bundles started from them, and the adviser that sizes what nobody declared.

A lane is a distinct request with its tasks. What is done with lanes is the broker's; how sizes are learned is left to
`shoal.policy.sizing`.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from shoal.model.resources import Resources
from shoal.policy.sizing.panel import NONE_TRIED, NOTHING, SIZED, Amounts, Tried

BUNDLE_SECONDS = 0.05
LARGEST_BUNDLE = 512
ONE_IN = 16
"""Share of the results of short tasks that an adviser is told of."""


class Adviser(Protocol):
    """Says how much of each of `SIZED` the next attempt gets, and learns from how attempts end."""

    def ask(self, tried: Tried) -> Amounts:
        """The sizes for an attempt at a task that has exhausted those in `tried`; 0 for what it does not size."""

    def hopeless(self, tried: Tried) -> bool:
        """Whether a task has exhausted all there is of a resource."""

    def observe(self, used: Amounts, duration: float, tried: Tried, sizes: Amounts, exhausted: int = -1) -> None:
        """An attempt that had these sizes has ended by itself, or over its size of the resource `exhausted`."""

    def resize(self, node: Resources) -> None:
        """The node has this from now on."""


class Lane(msgspec.Struct):
    """What the tasks of one lane have in common, and what was learned of them."""

    resources: Resources
    retries: int = 0
    bundled: bool = False
    refilled: bool = False
    """Whether its places take more tasks while they work."""
    mean_duration: float | None = None
    """Moving average over finished attempts, in seconds."""
    passed_over: int = 0
    adviser: Adviser | None = None
    """Who says how much its tasks get of what they did not declare themselves."""
    tried: Tried = NONE_TRIED
    """Sizes that the tasks of this lane have exhausted; only in lanes that the broker made for them."""
    sizes: Amounts = NOTHING
    """What the adviser said last."""
    origin: int = -1
    """The lane that its tasks came from, if the broker made it."""
    unheard: int = ONE_IN - 1
    """Results since the last one that the adviser was told of."""
    prefers: tuple[str, ...] = ()
    """Labels of nodes to which its tasks are pushed, if there are such nodes."""
    cap: str = ""
    """The cap under which its places are, together with those of other lanes; empty if there is none."""
    elastic: bool = False
    """How many run together is not a matter of cores: nobody declared them, and there is a throttle that finds out."""

    def is_worth_learning(self, used: Amounts) -> bool:
        """Of short tasks that stay within their size one in so many is enough; learning costs as much as they do."""
        if self.bundle_size() == 1:
            return True
        for amount, size in zip(used, self.sizes, strict=True):
            if amount > size > 0:
                return True
        self.unheard = (self.unheard + 1) % ONE_IN
        return not self.unheard

    def bundle_size(self) -> int:
        if not self.bundled or self.mean_duration is None:
            return 1
        return max(1, min(LARGEST_BUNDLE, int(BUNDLE_SECONDS / max(self.mean_duration, 1e-7))))

    def request(self) -> Resources:
        """What its tasks take: what they declared, and the sizes that were learned in place of the rest."""
        amounts = dict(self.resources.amounts)
        amounts.update((name, size) for name, size in zip(SIZED, self.sizes, strict=True) if size)
        if self.elastic:
            amounts.pop("cores", None)
        return Resources.of(amounts)


class Bundle(msgspec.Struct):
    """Tasks that were started together and hold one lane's resources until the last of them ends."""

    lane: int
    left: int
    taken: list[tuple[int, int]]
    """What it holds of the node."""
    place: int = 0
    low: int = 0
    """When no more than so many are left, more may be added."""
    sizes: Amounts = NOTHING
    """What is reckoned with for each of its tasks, where the broker decided that."""
    condemned: int = -1
    """The resource, by its place in `SIZED`, that its task used more of than the node has: it was told to end."""


def with_size(tried: Tried, at: int, size: int) -> Tried:
    """What a task has tried after it exhausted another size of one resource."""
    return (*tried[:at], (*tried[at], size), *tried[at + 1 :])


def larger_of(one: Tried, other: Tried) -> Tried:
    """For each resource the sizes that reach further."""
    return tuple(
        mine if max(mine, default=0) >= max(theirs, default=0) else theirs
        for mine, theirs in zip(one, other, strict=True)
    )
