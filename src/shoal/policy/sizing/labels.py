"""Work Queue's own sizing in place of ours: cores, memory and disk of a category decided together.

Whole nodes until the category is steady, then its first allocations, then the largest seen, then a whole node. The
arithmetic is that of `workqueue`, in its units: cores, and megabytes rounded up.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.model.resources import FRACTION, Resources
from shoal.policy.sizing.panel import SIZED, Amounts, Tried
from shoal.policy.sizing.workqueue import Category, Summary

_MEGABYTE = 1 << 20
_UNITS = {"cores": FRACTION, "memory": _MEGABYTE, "disk": _MEGABYTE}


def labelled_category(mode: str = "max-throughput") -> Category:
    """The state of a category that Work Queue would label by itself."""
    return Category(mode, automatic=SIZED)


class Labels:
    """The adviser of profiles of one category that leave the same resources open."""

    def __init__(self, node: Resources, names: Sequence[str], category: Category) -> None:
        self.names = tuple(names)
        self.category = category
        self.resize(node)

    def resize(self, node: Resources) -> None:
        """The node has this from now on."""
        self._whole = {name: max(node.get(name), _UNITS[name]) for name in self.names}
        self._worker = {name: node.get(name) / _UNITS[name] for name in SIZED if node.get(name)}

    def ask(self, tried: Tried) -> Amounts:
        """What the next attempt gets of each resource; a whole node of what Work Queue leaves open."""
        asked = self.category.ask(first_attempt=not any(tried))
        return tuple(self._size(name, asked.get(name), sizes) for name, sizes in zip(SIZED, tried, strict=True))

    def _size(self, name: str, asked: float | None, tried: Sequence[int]) -> int:
        if name not in self.names:
            return 0
        size = 0 if asked is None else round(asked * _UNITS[name])
        if size <= 0 or (tried and (len(tried) > 1 or size <= tried[-1])):
            return self._whole[name]
        least = FRACTION if name == "cores" else 1
        return max(least, min(self._whole[name], size))

    def hopeless(self, tried: Tried) -> bool:
        """Whether a task has exhausted all there is of a resource."""
        return any(
            sizes and name in self.names and max(sizes) >= self._whole[name]
            for name, sizes in zip(SIZED, tried, strict=True)
        )

    def observe(self, used: Amounts, duration: float, tried: Tried, sizes: Amounts, exhausted: int = -1) -> None:
        """An attempt has ended by itself, or because it used up its size of the resource number `exhausted`."""
        measured = {}
        for at, name in enumerate(SIZED):
            amount = max(used[at], sizes[at]) if at == exhausted else used[at]
            if amount:
                measured[name] = amount / FRACTION if name == "cores" else float(-(-amount // _MEGABYTE))
        self.category.accumulate(Summary(measured, duration, normal=exhausted < 0), self._worker)
