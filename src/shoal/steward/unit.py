"""One resource of the forest, and what is counted in it."""

from __future__ import annotations

from collections.abc import Iterator

_NOTHING: dict[str, int] = {}
"""The counts of everything that has no parts; never written to."""

Holding = tuple["Unit", str, int]
"""Siblings that are held: the unit they are in, their class, and the bits of their places in it."""


class Unit:
    """A node of the tree. What is free in it is counted as if nothing around it were held.

    A unit is available if it is not `held`, nothing in it is (`busy` is 0), and nothing around it is. The first two are
    what its bit in `ready` of the unit around it says.
    """

    __slots__ = (
        "bit",
        "busy",
        "cpu",
        "device",
        "free",
        "gone",
        "held",
        "inner",
        "kind",
        "memory",
        "memory_free",
        "name",
        "number",
        "parent",
        "parts",
        "ready",
        "total",
    )

    def __init__(self, kind: str, name: str, number: int, parent: Unit | None, bit: int) -> None:
        self.kind, self.name, self.number = kind, name, number
        self.parent = parent
        self.bit = bit
        """Of its place among the parts of its parent."""
        self.parts: list[Unit] = []
        self.inner: list[Unit] = []
        """Those of its parts that have parts."""
        self.held = False
        self.busy = 0
        """Units in it that are held."""
        self.gone = False
        self.free: dict[str, int] = _NOTHING
        """Units in it that are available, by class."""
        self.total: dict[str, int] = _NOTHING
        """Units in it, by class."""
        self.ready: dict[str, int] = _NOTHING
        """Bits of the parts that are neither held nor busy, by class."""
        self.memory = 0
        self.memory_free = 0
        self.cpu: int | None = None
        self.device: str | None = None

    def around(self) -> Iterator[Unit]:
        """The units it is in, up to the machine; not the top of the forest."""
        unit = self.parent
        while unit is not None and unit.parent is not None:
            yield unit
            unit = unit.parent

    def root(self) -> Unit:
        """The machine it is in, or is."""
        unit = self
        for above in self.around():
            unit = above
        return unit

    def walk(self) -> Iterator[Unit]:
        """It and everything in it that is there, from the top down."""
        if not self.gone:
            yield self
            for part in self.parts:
                yield from part.walk()

    def path(self) -> str:
        """`machine/socket0/core3`."""
        names = [self.name, *(unit.name for unit in self.around())]
        return "/".join(reversed(names))

    def is_ready(self) -> bool:
        """Whether neither it nor anything in it is held."""
        return self.parent is not None and self.parent.ready.get(self.kind, 0) & self.bit != 0

    def is_enclosed(self) -> bool:
        """Whether something that it is in is held as a whole."""
        return any(unit.held for unit in self.around())

    def usage(self) -> int:
        """How many held units it is, contains or is in; it is available at 0."""
        return self.busy + self.held_itself() + sum(unit.held for unit in self.around())

    def held_itself(self) -> int:
        """1 if it is held; of what has no parts only its bit tells."""
        return int(self.held or not (self.parts or self.gone or self.is_ready()))
