"""The allocation state of all machines: trees of units with counters of free units that are always up to date.

Taking a unit updates all units around it, so the cost is the depth of the tree and not its size: parts of a held unit
are not marked, they are only no longer counted above. All machines are parts of one `top`, so that machines are taken
like any other unit. `best_fit` and `manager` decide which units are taken, and by which ticket.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from shoal.errors import InputError
from shoal.resources.machine import MachinePart

_NOTHING: dict[str, int] = {}
"""Counts of units without parts; never modified."""

Holding = tuple["ResourceUnit", str, int]
"""Held siblings: the unit they are in, their class, and the bit mask of their positions in it."""


class ResourceUnit:
    """A node of the tree. Its free parts are counted as if no unit around it were held.

    A unit is available if it is not held, nothing in it is held (`busy` is 0), and nothing around it is. The first two
    conditions are its bit in `ready` of the unit around it.
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

    def __init__(self, kind: str, name: str, number: int, parent: ResourceUnit | None, bit: int) -> None:
        self.kind, self.name, self.number = kind, name, number
        self.parent = parent
        self.bit = bit
        """Bit of its position among the parts of its parent."""
        self.parts: list[ResourceUnit] = []
        self.inner: list[ResourceUnit] = []
        """Its parts that have parts themselves."""
        self.held = False
        self.busy = 0
        """Number of held units in it."""
        self.gone = False
        self.free: dict[str, int] = _NOTHING
        """Number of available units in it, by class."""
        self.total: dict[str, int] = _NOTHING
        """Number of units in it, by class."""
        self.ready: dict[str, int] = _NOTHING
        """Mask of the parts that are neither held nor busy, by class."""
        self.memory = 0
        self.memory_free = 0
        self.cpu: int | None = None
        self.device: str | None = None

    def around(self) -> Iterator[ResourceUnit]:
        """The units that contain it, up to the machine, without the top of the tree."""
        unit = self.parent
        while unit is not None and unit.parent is not None:
            yield unit
            unit = unit.parent

    def root(self) -> ResourceUnit:
        """The machine that contains it, or itself."""
        unit = self
        for above in self.around():
            unit = above
        return unit

    def walk(self) -> Iterator[ResourceUnit]:
        """The unit and everything in it, from the top down."""
        if not self.gone:
            yield self
            for part in self.parts:
                yield from part.walk()

    def path(self) -> str:
        """`machine/socket0/core3`."""
        names = [self.name, *(unit.name for unit in self.around())]
        return "/".join(reversed(names))

    def is_ready(self) -> bool:
        """Whether neither the unit nor anything in it is held."""
        return self.parent is not None and self.parent.ready.get(self.kind, 0) & self.bit != 0

    def is_enclosed(self) -> bool:
        """Whether a unit that contains it is held as a whole."""
        return any(unit.held for unit in self.around())

    def usage(self) -> int:
        """Number of held units that it is, contains or is in; it is available at 0."""
        return self.busy + self.held_itself() + sum(unit.held for unit in self.around())

    def held_itself(self) -> int:
        """1 if it is held itself; for a unit without parts only its bit shows that."""
        return int(self.held or not (self.parts or self.gone or self.is_ready()))


_FINENESS = 3
"""Bits after the leading one that are kept of an amount of memory: a precision of one eighth."""


class FreeLevels:
    """Index of machines by their number of free units."""

    __slots__ = ("masks", "occupied")

    def __init__(self) -> None:
        self.masks: dict[int, int] = {}
        self.occupied = 0
        """Bit n is set if any machine is at level n."""

    def put(self, bit: int, level: int) -> None:
        mask = self.masks.get(level, 0)
        if not mask:
            self.occupied |= 1 << level
        self.masks[level] = mask | bit

    def drop(self, bit: int, level: int) -> None:
        left = self.masks[level] ^ bit
        self.masks[level] = left
        if not left:
            self.occupied ^= 1 << level

    def move(self, bit: int, old: int, new: int) -> None:
        """`drop` and `put` in one call, because every grant does both."""
        if old == new:
            return
        masks = self.masks
        left = masks[old] ^ bit
        masks[old] = left
        if not left:
            self.occupied ^= 1 << old
        mask = masks.get(new, 0)
        if not mask:
            self.occupied |= 1 << new
        masks[new] = mask | bit

    def upward(self, lowest: int) -> Iterator[int]:
        """Masks of the levels from `lowest` up: fullest machines first."""
        rest = self.occupied >> lowest
        while rest:
            low = rest & -rest
            yield self.masks[lowest + low.bit_length() - 1]
            rest ^= low

    def downward(self) -> Iterator[int]:
        """All masks, emptiest machines first."""
        rest = self.occupied
        while rest:
            level = rest.bit_length() - 1
            yield self.masks[level]
            rest ^= 1 << level

    def at_least(self, lowest: int) -> int:
        found = 0
        for mask in self.upward(lowest):
            found |= mask
        return found


def memory_level(size: int) -> int:
    """Level of an amount of memory; monotonic in the amount."""
    bits = size.bit_length()
    if bits <= _FINENESS:
        return size
    return (bits - _FINENESS << _FINENESS) + (size >> bits - _FINENESS - 1 & (1 << _FINENESS) - 1)


def members(mask: int) -> Iterator[int]:
    """The single bits of a mask, lowest first."""
    while mask:
        low = mask & -mask
        yield low
        mask ^= low


def lowest(mask: int, count: int) -> int:
    """The lowest `count` of the set bits."""
    if count == 1:
        return mask & -mask
    if mask.bit_count() == count:
        return mask
    found = 0
    for _ in range(count):
        low = mask & -mask
        found |= low
        mask ^= low
    return found


Memory = tuple[ResourceUnit, int]
"""Bytes taken of a unit's memory."""


class ResourceTree:
    """All machines, with counters of free units and memory."""

    def __init__(self) -> None:
        self.top = ResourceUnit("", "", 0, None, 0)
        self.top.free, self.top.total, self.top.ready = {}, {}, {}
        self.levels: dict[str, FreeLevels] = {}
        """By class: index of the machines by available units."""
        self.memory = FreeLevels()
        """Index of the machines by `memory_level` of their free memory."""
        self.room: dict[int, int] = {}
        """Free bytes on each machine, by its number."""
        self.capacity: dict[int, int] = {}
        """Total bytes of each machine."""
        self.banks: dict[int, list[ResourceUnit]] = {}
        """Units with memory of their own, by machine."""
        self.units: dict[int, ResourceUnit] = {}
        self.machines: dict[str, ResourceUnit] = {}
        self.labels: dict[str, int] = {}
        """Mask of the machines that carry each label."""
        self.labels_of: dict[int, tuple[str, ...]] = {}
        self.everyone = 0
        """Mask of all machines."""
        self._last = 0
        self._vacant: list[int] = []

    def add(self, part: MachinePart) -> ResourceUnit:
        """Adds a machine."""
        if part.name in self.machines:
            raise InputError(f"there is already a machine named {part.name!r}", remedy="remove that one first")
        if not part.name or "=" in part.name or "/" in part.name:
            raise InputError(f"{part.name!r} is not a valid machine name", remedy="leave out '=' and '/'")
        top = self.top
        place = self._vacant.pop() if self._vacant else len(top.parts)
        root = self._make(part, top, 1 << place)
        if place == len(top.parts):
            top.parts.append(root)
        else:
            top.parts[place] = root
        self.machines[part.name] = root
        self.everyone |= root.bit
        self.labels_of[root.number] = part.labels
        for label in part.labels:
            self.labels[label] = self.labels.get(label, 0) | root.bit
        for kind, count in root.free.items():
            self.levels.setdefault(kind, FreeLevels()).put(root.bit, count)
        for kind, count in _with_itself(root):
            top.free[kind] = top.free.get(kind, 0) + count
            top.total[kind] = top.total.get(kind, 0) + count
        top.ready[root.kind] = top.ready.get(root.kind, 0) | root.bit
        self.banks[root.number] = [unit for unit in root.walk() if unit.memory]
        self.room[root.number] = self.capacity[root.number] = sum(unit.memory for unit in self.banks[root.number])
        self.memory.put(root.bit, memory_level(self.room[root.number]))
        return root

    def _make(self, part: MachinePart, parent: ResourceUnit, bit: int) -> ResourceUnit:
        self._last += 1
        unit = ResourceUnit(part.kind, part.name, self._last, parent, bit)
        self.units[unit.number] = unit
        unit.memory = unit.memory_free = part.memory
        unit.cpu, unit.device = part.cpu, part.device
        if part.parts:
            unit.total, unit.ready = {}, {}
            for place, inside in enumerate(part.parts):
                made = self._make(inside, unit, 1 << place)
                unit.parts.append(made)
                for kind, count in _with_itself(made):
                    unit.total[kind] = unit.total.get(kind, 0) + count
                unit.ready[made.kind] = unit.ready.get(made.kind, 0) | made.bit
            unit.free = dict(unit.total)
            unit.inner = [made for made in unit.parts if made.parts]
        return unit

    def roots(self, mask: int | None = None) -> Iterator[ResourceUnit]:
        """The machines of the mask, in order of their positions."""
        for bit in members(self.everyone if mask is None else mask):
            yield self.top.parts[bit.bit_length() - 1]

    def find(self, wanted: int | str) -> ResourceUnit | None:
        """A unit by its number or path; None if it does not exist (any more)."""
        if isinstance(wanted, int):
            return self.units.get(wanted)
        name, *rest = wanted.split("/")
        unit = self.machines.get(name)
        for step in rest:
            if unit is not None:
                unit = next((part for part in unit.parts if part.name == step and not part.gone), None)
        return unit

    def take(self, parent: ResourceUnit, kind: str, mask: int) -> None:
        """Marks available units as held."""
        assert parent.ready[kind] & mask == mask, "held twice"
        parent.ready[kind] ^= mask
        count, lost = self._contents(parent, kind, mask, True)
        top, levels = self.top, self.levels
        unit = parent
        while unit is not top:
            free = unit.free
            for each, number in lost.items():
                free[each] -= number
            above = unit.parent
            assert above is not None
            if above is top:
                bit = unit.bit
                for each, number in lost.items():
                    left = free[each]
                    levels[each].move(bit, left + number, left)
            if not unit.busy:
                above.ready[unit.kind] ^= unit.bit
                lost[unit.kind] = lost.get(unit.kind, 0) + 1
            unit.busy += count
            unit = above
        free = top.free
        for each, number in lost.items():
            free[each] -= number

    def give(self, parent: ResourceUnit, kind: str, mask: int) -> None:
        """Makes held units available again."""
        assert not parent.ready[kind] & mask, "given back twice"
        parent.ready[kind] |= mask
        count, gained = self._contents(parent, kind, mask, False)
        top, levels = self.top, self.levels
        unit = parent
        while unit is not top:
            free = unit.free
            for each, number in gained.items():
                free[each] += number
            above = unit.parent
            assert above is not None
            if above is top:
                bit = unit.bit
                for each, number in gained.items():
                    there = free[each]
                    levels[each].move(bit, there - number, there)
            unit.busy -= count
            if not unit.busy:
                above.ready[unit.kind] |= unit.bit
                gained[unit.kind] = gained.get(unit.kind, 0) + 1
            unit = above
        free = top.free
        for each, number in gained.items():
            free[each] += number

    def _contents(self, parent: ResourceUnit, kind: str, mask: int, held: bool) -> tuple[int, dict[str, int]]:
        """Number of units in the mask, and per class how many become (un)available with them."""
        parts = parent.parts
        count = mask.bit_count()
        counts = {kind: count}
        if not parent.inner and parent is not self.top:
            return count, counts
        for bit in members(mask):
            unit = parts[bit.bit_length() - 1]
            if unit.parts:
                unit.held = held
                for each, number in unit.total.items():
                    counts[each] = counts.get(each, 0) + number
                if parent is self.top:
                    for each, number in unit.free.items():
                        self.levels[each].move(bit, number if held else 0, 0 if held else number)
        return count, counts

    def take_memory(self, root: ResourceUnit, size: int, near: ResourceUnit | None) -> list[Memory]:
        """Takes memory of a machine, nearest to a unit first."""
        close = [near, *near.around()] if near is not None else []
        banks = self.banks[root.number]
        order = [bank for bank in close if bank.memory] + [bank for bank in banks if bank not in close]
        taken: list[Memory] = []
        for bank in order:
            share = min(size, bank.memory_free)
            if share:
                bank.memory_free -= share
                size -= share
                taken.append((bank, share))
        assert not size, "more memory taken than there is"
        self._room_changed(root, -sum(share for _, share in taken))
        return taken

    def give_memory(self, root: ResourceUnit, taken: Iterable[Memory]) -> None:
        for bank, share in taken:
            bank.memory_free += share
            self._room_changed(root, share)

    def retake_memory(self, root: ResourceUnit, taken: Iterable[Memory]) -> None:
        """Takes exactly these bytes again."""
        for bank, share in taken:
            bank.memory_free -= share
            self._room_changed(root, -share)

    def _room_changed(self, root: ResourceUnit, change: int) -> None:
        old = self.room[root.number]
        self.room[root.number] = old + change
        self.memory.move(root.bit, memory_level(old), memory_level(old + change))

    def cut(self, unit: ResourceUnit) -> None:
        """Removes a unit of which nothing is held, and of whose memory nothing is taken."""
        assert unit.is_ready() and not unit.is_enclosed(), "something of it is held"
        parent, root = unit.parent, unit.root()
        assert parent is not None
        parent.ready[unit.kind] ^= unit.bit
        for above in (*unit.around(), self.top):
            for kind, count in _with_itself(unit):
                if above is root:
                    self.levels[kind].move(root.bit, above.free[kind], above.free[kind] - count)
                above.free[kind] -= count
                above.total[kind] -= count
        for inside in list(unit.walk()):
            del self.units[inside.number]
        if unit is root:
            self._remove_machine(unit)
        else:
            self._shrink_memory(root, unit)
        for inside in list(unit.walk()):
            inside.gone = inside.held = True

    def _shrink_memory(self, root: ResourceUnit, unit: ResourceUnit) -> None:
        lost = sum(inside.memory for inside in unit.walk())
        if lost:
            self.capacity[root.number] -= lost
            self._room_changed(root, -lost)
            inside = [each.number for each in unit.walk()]
            self.banks[root.number] = [bank for bank in self.banks[root.number] if bank.number not in inside]

    def _remove_machine(self, root: ResourceUnit) -> None:
        """Removes a whole machine; its position is reused."""
        for kind, count in root.free.items():
            self.levels[kind].drop(root.bit, count)
        self.memory.drop(root.bit, memory_level(self.room[root.number]))
        del self.machines[root.name], self.room[root.number], self.capacity[root.number], self.banks[root.number]
        del self.labels_of[root.number]
        for label, mask in list(self.labels.items()):
            if mask & ~root.bit:
                self.labels[label] = mask & ~root.bit
            else:
                del self.labels[label]
        self.everyone ^= root.bit
        self._vacant.append(root.bit.bit_length() - 1)


def _with_itself(unit: ResourceUnit) -> list[tuple[str, int]]:
    """The unit itself and everything in it, by class."""
    counts = dict(unit.total)
    counts[unit.kind] = counts.get(unit.kind, 0) + 1
    return list(counts.items())


def units_of(holding: Holding) -> list[ResourceUnit]:
    """The single units of a holding."""
    parent, _, mask = holding
    return [parent.parts[bit.bit_length() - 1] for bit in members(mask)]


def holdings_of(units: Sequence[ResourceUnit]) -> list[Holding]:
    """The same units as holdings, grouped by parent and class."""
    masks: dict[tuple[int, str], Holding] = {}
    for unit in units:
        parent = unit.parent
        assert parent is not None
        _, _, mask = masks.get((parent.number, unit.kind), (parent, unit.kind, 0))
        masks[parent.number, unit.kind] = (parent, unit.kind, mask | unit.bit)
    return list(masks.values())
