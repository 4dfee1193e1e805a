"""Best-fit placement of a request: the fullest machine that fits, and in it the fullest socket that fits.

Units are taken as they are found. If a later part of the request does not fit, everything is given back, so a request
holds everything or nothing, and never waits while it holds units. `shoal.resources.manager` decides which requests are
placed, and what happens to those that do not fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from shoal.resources.requests import ANYWHERE, Choice, Requirement, Wanted
from shoal.resources.tree import Holding, Memory, ResourceTree, ResourceUnit, lowest, members, memory_level


class MachineShare:
    """The units and memory of a request on one machine for one of its requirements."""

    __slots__ = ("choice", "holdings", "memory", "requirement", "root")

    def __init__(
        self,
        requirement: int,
        choice: int,
        root: ResourceUnit,
        holdings: list[Holding],
        memory: list[Memory] | None = None,
    ) -> None:
        self.requirement = requirement
        self.choice = choice
        """Index of the selected choice of the requirement."""
        self.root = root
        self.holdings = holdings
        self.memory: list[Memory] = memory or []


def place(forest: ResourceTree, request: Sequence[Requirement], order: Sequence[int]) -> list[MachineShare] | None:
    """Takes everything a request needs; None, with nothing taken, if that is not possible now.

    Requirements are placed in `order`, hardest first.
    """
    taken: list[MachineShare] = []
    for at in order:
        found = _place_requirement(forest, request[at], at)
        if found is None:
            give_back(forest, taken)
            return None
        taken += found
    if len(order) > 1:
        taken.sort(key=_requirement_of)
    return taken


def _requirement_of(share: MachineShare) -> int:
    return share.requirement


def give_back(forest: ResourceTree, shares: Iterable[MachineShare]) -> None:
    for share in shares:
        for holding in share.holdings:
            forest.give(*holding)
        if share.memory:
            forest.give_memory(share.root, share.memory)


def allowed_by(forest: ResourceTree, only: Iterable[str]) -> int:
    """Mask of the machines that match all of these labels and names; several names match each of their machines."""
    mask, names = forest.everyone, 0
    named = False
    for word in only:
        if "=" in word:
            mask &= forest.labels.get(word, 0)
        else:
            named = True
            machine = forest.machines.get(word)
            names |= machine.bit if machine is not None else 0
    return mask & names if named else mask


def _place_requirement(forest: ResourceTree, wanted: Requirement, at: int) -> list[MachineShare] | None:
    allowed = allowed_by(forest, wanted.only) if wanted.only else None
    for number, choice in enumerate(wanted.choices):
        if wanted.nodes == ANYWHERE:
            found = _place_anywhere(forest, wanted, choice, allowed)
        else:
            found = _place_on_nodes(forest, wanted, choice, allowed)
        if found is not None:
            for share in found:
                share.requirement, share.choice = at, number
            return found
    return None


def _place_on_nodes(
    forest: ResourceTree, wanted: Requirement, choice: Choice, allowed: int | None
) -> list[MachineShare] | None:
    """Places the choice on this number of different machines."""
    if wanted.nodes > 1 and not _are_enough(forest, choice, wanted.nodes):
        return None
    found: list[MachineShare] = []
    for _ in range(wanted.nodes):
        share = _preferred(forest, wanted.prefer, choice, allowed) if wanted.prefer else None
        share = share or _best_fit(forest, choice, allowed)
        if share is None:
            give_back(forest, found)
            return None
        found.append(share)
        if wanted.nodes > 1:
            allowed = (forest.everyone if allowed is None else allowed) & ~share.root.bit
    return found


def _are_enough(forest: ResourceTree, choice: Choice, nodes: int) -> bool:
    """Whether enough machines have the first need free: a fast check that avoids taking and giving back."""
    kind, count = choice.needs[0]
    found = forest.top.ready.get(kind, 0).bit_count() if count == 1 else 0
    levels = forest.levels.get(kind)
    if levels is not None:
        for mask in levels.upward(count):
            if found >= nodes:
                break
            found += mask.bit_count()
    return found >= nodes


def _best_fit(forest: ResourceTree, choice: Choice, allowed: int | None) -> MachineShare | None:
    """Places the choice on the machine with the least to spare."""
    if allowed is None and len(choice.needs) == 1 and not choice.memory:
        kind, count = choice.needs[0]
        levels = forest.levels.get(kind)
        fitting = levels.occupied >> count if levels is not None else 0
        if levels is not None and fitting:  # the common case
            mask = levels.masks[count + (fitting & -fitting).bit_length() - 1]
            root = forest.top.parts[(mask & -mask).bit_length() - 1]
            holdings: list[Holding] = []
            pick(root, kind, count, holdings)
            for holding in holdings:
                forest.take(*holding)
            return MachineShare(0, 0, root, holdings)
    for root in _candidates(forest, choice, forest.everyone if allowed is None else allowed):
        share = _try_machine(forest, root, choice)
        if share is not None:
            return share
    return None


def _candidates(forest: ResourceTree, choice: Choice, allowed: int) -> Iterator[ResourceUnit]:
    """Machines on which enough of each class is free, the fullest first."""
    for kind, count in choice.needs[1:]:
        allowed &= _with_enough(forest, kind, count)
    if choice.memory:
        allowed &= forest.memory.at_least(memory_level(choice.memory))
    if not allowed:
        return
    kind, count = choice.needs[0]
    levels = forest.levels.get(kind)
    if levels is not None:
        for mask in levels.upward(count):
            yield from forest.roots(mask & allowed)
    if count == 1:
        yield from forest.roots(forest.top.ready.get(kind, 0) & allowed)


def _with_enough(forest: ResourceTree, kind: str, count: int) -> int:
    levels = forest.levels.get(kind)
    inside = levels.at_least(count) if levels is not None else 0
    return inside | (forest.top.ready.get(kind, 0) if count == 1 else 0)


def _try_machine(
    forest: ResourceTree, root: ResourceUnit, choice: Choice, near: ResourceUnit | None = None
) -> MachineShare | None:
    """Takes a choice on one machine, if possible within one unit; None if it is not free there."""
    if forest.room[root.number] < choice.memory:
        return None
    share = MachineShare(0, 0, root, [])
    for kind, count in sorted(choice.needs, key=lambda need: _scarcity(root, need[0]), reverse=True):
        found: list[Holding] = []
        inside = root
        if near is not None and near.free.get(kind, 0) >= count and not near.held and not near.is_enclosed():
            inside = near
        if inside.free.get(kind, 0) >= count and not inside.held:
            pick(inside, kind, count, found)
        elif count == 1 and kind == root.kind and root.is_ready():
            found.append((forest.top, kind, root.bit))
        else:
            give_back(forest, [share])
            return None
        for holding in found:
            forest.take(*holding)
        share.holdings += found
    if choice.memory:
        share.memory = forest.take_memory(root, choice.memory, _unit_with_memory(share.holdings))
    return share


def _unit_with_memory(holdings: Iterable[Holding]) -> ResourceUnit | None:
    """A unit among these that has memory, or is part of one that has."""
    for parent, _, mask in holdings:
        unit = parent.parts[mask.bit_length() - 1]
        if unit.memory or any(above.memory for above in unit.around()):
            return unit
    return None


def _scarcity(root: ResourceUnit, kind: str) -> int:
    """Cost of taking a unit of the class: higher if the machine has fewer of them."""
    return -root.total.get(kind, 0)


def pick(unit: ResourceUnit, kind: str, count: int, found: list[Holding]) -> None:
    """Chooses available units within one unit: few groups, and the fullest that suffice."""
    ready = unit.ready.get(kind, 0)
    if ready:
        there = ready.bit_count()
        if there >= count:
            found.append((unit, kind, lowest(ready, count)))
            return
        found.append((unit, kind, ready))
        count -= there
    groups = [part for part in unit.inner if not part.held and part.free.get(kind, 0)]
    while True:
        best, most = None, groups[0]
        for part in groups:
            room = part.free[kind]
            if room >= count and (best is None or room < best.free[kind]):
                best = part
            if room > most.free[kind]:
                most = part
        if best is not None:
            pick(best, kind, count, found)
            return
        pick(most, kind, most.free[kind], found)
        count -= most.free[kind]
        groups.remove(most)


def _preferred(
    forest: ResourceTree, prefer: Iterable[Wanted], choice: Choice, allowed: int | None
) -> MachineShare | None:
    """Places the choice at the first preference where it is free."""
    everywhere = forest.everyone if allowed is None else allowed
    for wanted in prefer:
        if isinstance(wanted, str) and "=" in wanted:
            share = _best_fit(forest, choice, forest.labels.get(wanted, 0) & everywhere)
        else:
            unit = forest.find(wanted)
            if unit is None or not unit.root().bit & everywhere:
                continue
            share = _near(forest, unit, choice)
        if share is not None:
            return share
    return None


def _near(forest: ResourceTree, unit: ResourceUnit, choice: Choice) -> MachineShare | None:
    """Places the choice at one unit: on the unit itself, or within it."""
    root = unit.root()
    if unit is root:
        return _try_machine(forest, root, choice)
    if unit.held or unit.is_enclosed():
        return None
    if choice.needs == ((unit.kind, 1),):
        if not unit.is_ready() or unit.parent is None or forest.room[root.number] < choice.memory:
            return None
        holding = (unit.parent, unit.kind, unit.bit)
        forest.take(*holding)
        memory = forest.take_memory(root, choice.memory, unit) if choice.memory else None
        return MachineShare(0, 0, root, [holding], memory)
    if any(unit.free.get(kind, 0) >= count for kind, count in choice.needs):
        return _try_machine(forest, root, choice, near=unit)
    return None


def _place_anywhere(
    forest: ResourceTree, wanted: Requirement, choice: Choice, allowed: int | None
) -> list[MachineShare] | None:
    """Takes the units of a choice on any machines, as few as possible."""
    everywhere = forest.everyone if allowed is None else allowed
    found: list[MachineShare] = []
    for kind, count in choice.needs:
        if forest.top.free.get(kind, 0) < count:
            give_back(forest, found)
            return None
        for mask in (*_masks_of(forest, wanted.prefer, everywhere), everywhere):
            count -= _take_some(forest, kind, count, mask, found)
            if not count:
                break
        if count:
            give_back(forest, found)
            return None
    return found


def _masks_of(forest: ResourceTree, prefer: Iterable[Wanted], everywhere: int) -> Iterator[int]:
    """Mask of the machines of each preference."""
    for wanted in prefer:
        if isinstance(wanted, str) and "=" in wanted:
            yield forest.labels.get(wanted, 0) & everywhere
        else:
            unit = forest.find(wanted)
            yield unit.root().bit & everywhere if unit is not None else 0


def _take_some(forest: ResourceTree, kind: str, count: int, mask: int, found: list[MachineShare]) -> int:
    """Takes up to `count` units on these machines: all on the fullest that suffices, or from the emptiest on."""
    left = count
    levels = forest.levels.get(kind)
    while left and levels is not None:
        suffices = next((each & mask for each in levels.upward(left) if each & mask), 0)
        bits = suffices or next((each & mask for each in levels.downward() if each & mask), 0)
        if not bits:
            break
        root = forest.top.parts[(bits & -bits).bit_length() - 1]
        number = min(left, root.free[kind])
        if root.held or not number:
            break
        share = MachineShare(0, 0, root, [])
        pick(root, kind, number, share.holdings)
        for holding in share.holdings:
            forest.take(*holding)
        found.append(share)
        left -= number
    for bit in members(lowest_of(forest.top.ready.get(kind, 0) & mask, left)):
        forest.take(forest.top, kind, bit)
        found.append(MachineShare(0, 0, forest.top.parts[bit.bit_length() - 1], [(forest.top, kind, bit)]))
        left -= 1
    return count - left


def lowest_of(mask: int, count: int) -> int:
    """The lowest `count` bits, or all if there are fewer."""
    return lowest(mask, min(count, mask.bit_count())) if mask and count else 0
