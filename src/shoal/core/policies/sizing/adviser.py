"""One adviser for all resources of a category that nobody declared: each resource has its own part.

Amounts travel as tuples over `SIZED`, in the smallest units of `Resources`; 0 stands for "not known" and "not sized".
How a single resource is sized is left to the parts (`sizer`, `cores`); Work Queue's way, which decides all resources
together, is in `labels`. GPUs cannot be measured, so they are only what is declared; wall time is learned and shown,
and nothing is decided by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import msgspec

from shoal.core.resources import Resources

SIZED = ("cores", "memory", "disk")
"""The resources that are learned where nobody declared them."""
Amounts: TypeAlias = tuple[int, ...]
Tried: TypeAlias = tuple[tuple[int, ...], ...]
"""For each of `SIZED` the sizes that a task has exhausted."""
NOTHING: Amounts = (0,) * len(SIZED)
CROWD = 64
"""Tasks for each core that sizes leave room for where cores do not limit how many run."""
NONE_TRIED: Tried = ((),) * len(SIZED)


class ResourceSizer(Protocol):
    """Sizes one resource."""

    def ask(self, tried: Sequence[float] = ()) -> float:
        """The size for an attempt at a task that has exhausted the sizes in `tried`."""

    def hopeless(self, tried: Sequence[float]) -> bool:
        """Whether a task has exhausted all there is."""

    def observe(
        self,
        peak: float,
        duration: float,
        exhausted_at: float | None = None,
        tried: Sequence[float] = (),
        size: float | None = None,
    ) -> None:
        """An attempt has ended by itself with this peak, or over its limit `exhausted_at`."""

    def resize(self, node_size: float, places: int, panel: int = 0) -> None:
        """The node has so much from now on, and holds so many tasks of this panel by its other resources."""


class Durations(msgspec.Struct):
    """How long the tasks of a category take."""

    tasks: int = 0
    mean: float = 0.0
    """Of the latest tasks, mostly."""
    largest: float = 0.0

    def add(self, seconds: float) -> None:
        self.tasks += 1
        self.mean += max(0.1, 1.0 / self.tasks) * (seconds - self.mean)
        self.largest = max(self.largest, seconds)


class SizeAdviser:
    """The parts for the resources that a profile leaves open; parts may be shared between panels."""

    def __init__(
        self,
        node: Resources,
        cores: int,
        parts: dict[str, ResourceSizer],
        durations: Durations | None = None,
        crowded: bool = False,
    ) -> None:
        """`cores` are those that each task takes if there is no part for them.

        `crowded`: many more tasks may run together than there are cores, so memory and disk must go round.
        """
        self._per_core = CROWD if crowded else 1
        self.parts: tuple[ResourceSizer | None, ...] = tuple(parts.get(name) for name in SIZED)
        self.durations = durations if durations is not None else Durations()
        self._cores = cores
        self._spread = 0
        self.resize(node)

    def resize(self, node: Resources) -> None:
        """The node has this from now on."""
        self._node = node
        cores = self.parts[0]
        if cores is not None:
            cores.resize(node.get("cores"), 1)
        self._spread = self._cores_each()
        self._resize_others()

    def _cores_each(self) -> int:
        cores = self.parts[0]
        return max(1, self._cores if cores is None else round(cores.ask()))

    def _resize_others(self) -> None:
        places = max(1, self._per_core * self._node.get("cores") // self._spread)
        for name, part in zip(SIZED[1:], self.parts[1:], strict=True):
            if part is not None:
                part.resize(self._node.get(name), places, id(self))

    def ask(self, tried: Tried) -> Amounts:
        """What the next attempt gets of each resource."""
        return tuple(
            0 if part is None else round(part.ask(sizes)) for part, sizes in zip(self.parts, tried, strict=True)
        )

    def hopeless(self, tried: Tried) -> bool:
        """Whether a task has exhausted all there is of a resource."""
        return any(part is not None and part.hopeless(sizes) for part, sizes in zip(self.parts, tried, strict=True))

    def observe(self, used: Amounts, duration: float, tried: Tried, sizes: Amounts, exhausted: int = -1) -> None:
        """An attempt has ended by itself, or because it used up its size of the resource number `exhausted`.

        Of an attempt that was cut short nothing is learned about the other resources.
        """
        if exhausted >= 0:
            part = self.parts[exhausted]
            if part is not None:
                size = sizes[exhausted]
                part.observe(max(used[exhausted], size), duration, size, tried[exhausted])
            return
        self.durations.add(duration)
        for at, part in enumerate(self.parts):
            if part is not None and used[at]:
                part.observe(used[at], duration, None, tried[at], sizes[at])
        if self.parts[0] is not None and self._cores_each() != self._spread:
            self._spread = self._cores_each()
            self._resize_others()
