"""Size adviser of one category: combines one sizer per undeclared resource.

Amounts are tuples over `SIZED`, in the smallest units of `Resources`; 0 means unknown or not sized. Single resources
are sized by `sizer` (memory, disk) and `undeclared` (cores); Work Queue's algorithm in `work_queue` sizes all resources
together. GPUs cannot be measured, so they are used only as declared. Durations are learned for display only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import msgspec

from shoal.core.resources import Resources

SIZED = ("cores", "memory", "disk")
"""Resources that are learned where the user did not declare them."""
Amounts: TypeAlias = tuple[int, ...]
Tried: TypeAlias = tuple[tuple[int, ...], ...]
"""For each of `SIZED` the sizes that a task has exhausted."""
NOTHING: Amounts = (0,) * len(SIZED)
CROWD = 64
"""Tasks per core for which sizes must leave room where cores do not limit how many tasks run."""
NONE_TRIED: Tried = ((),) * len(SIZED)


class ResourceSizer(Protocol):
    """Sizes one resource."""

    def ask(self, tried: Sequence[float] = ()) -> float:
        """The size for an attempt of a task that has exhausted the sizes in `tried`."""

    def hopeless(self, tried: Sequence[float]) -> bool:
        """Whether a task has exhausted everything the node has."""

    def observe(
        self,
        peak: float,
        duration: float,
        exhausted_at: float | None = None,
        tried: Sequence[float] = (),
        size: float | None = None,
    ) -> None:
        """Learns from an attempt: it ended by itself with this peak, or exceeded its limit `exhausted_at`."""

    def resize(self, node_size: float, places: int, panel: int = 0) -> None:
        """Sets the node's amount, and how many tasks of this panel fit by their other resources."""


class Durations(msgspec.Struct):
    """Durations of the tasks of a category."""

    tasks: int = 0
    mean: float = 0.0
    """Moving average, mostly of the latest tasks."""
    largest: float = 0.0

    def add(self, seconds: float) -> None:
        self.tasks += 1
        self.mean += max(0.1, 1.0 / self.tasks) * (seconds - self.mean)
        self.largest = max(self.largest, seconds)


class SizeAdviser:
    """Sizers for the resources that a profile leaves open; several panels (profiles of a category) may share sizers."""

    def __init__(
        self,
        node: Resources,
        cores: int,
        parts: dict[str, ResourceSizer],
        durations: Durations | None = None,
        crowded: bool = False,
    ) -> None:
        """`cores`: cores of each task if no sizer determines them.

        `crowded`: many more tasks than cores may run together, so memory and disk must be divided among all of them.
        """
        self._per_core = CROWD if crowded else 1
        self.parts: tuple[ResourceSizer | None, ...] = tuple(parts.get(name) for name in SIZED)
        self.durations = durations if durations is not None else Durations()
        self._cores = cores
        self._spread = 0
        self.resize(node)

    def resize(self, node: Resources) -> None:
        """Sets new total resources of the node."""
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
        """Sizes of each resource for the next attempt."""
        return tuple(
            0 if part is None else round(part.ask(sizes)) for part, sizes in zip(self.parts, tried, strict=True)
        )

    def hopeless(self, tried: Tried) -> bool:
        """Whether a task has exhausted everything that the node has of a resource."""
        return any(part is not None and part.hopeless(sizes) for part, sizes in zip(self.parts, tried, strict=True))

    def observe(self, used: Amounts, duration: float, tried: Tried, sizes: Amounts, exhausted: int = -1) -> None:
        """Learns from an attempt that ended by itself, or exceeded its size of the resource with index `exhausted`.

        From an attempt that was killed nothing is learned about the other resources.
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
