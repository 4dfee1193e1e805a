"""Every invariant of a steward, found out again from who holds what. For tests; the steward does not call it."""

from __future__ import annotations

from shoal.resources.best_fit import place
from shoal.resources.manager import ResourceManager
from shoal.resources.reservations import Reservation, is_possible
from shoal.resources.tickets import TicketQueue, TicketState
from shoal.resources.tree import ResourceTree, ResourceUnit, memory_level, units_of


def check_steward(steward: ResourceManager, *, judging: bool = True) -> None:
    """Raises AssertionError for whatever is wrong; if `judging`, also judges again who can ever be served."""
    holders: dict[int, str] = {}
    memory: dict[int, int] = {}
    for ticket in steward.held.values():
        assert ticket.state is TicketState.GRANTED
        for share in ticket.shares:
            for holding in share.holdings:
                for unit in units_of(holding):
                    _note(holders, unit, f"ticket {ticket.number}")
            for bank, size in share.memory:
                assert not bank.gone and size > 0
                memory[bank.number] = memory.get(bank.number, 0) + size
    if steward.fence is not None:
        _check_fence(steward, steward.fence, holders, memory)
    _check_disjoint(steward.forest, holders)
    _check_counts(steward.forest, holders)
    _check_memory(steward.forest, memory)
    _check_lines(steward)
    if judging:
        for line in (*(entry[2] for entry in steward.order), *steward.hoping.values()):
            assert line.possible == is_possible(steward.forest, line.request, line.order)
    if judging and not steward.untried:
        # Only of what is all of one class: a search for more may succeed because something else was taken.
        for line in [line for _, _, line in steward.order if _is_plain(line)]:
            assert place(steward.forest, line.request, line.order) is None, f"{line.request} waits for what is free"


def _is_plain(line: TicketQueue) -> bool:
    return len(line.request) == 1 and all(len(choice.needs) == 1 for choice in line.request[0].choices)


def _note(holders: dict[int, str], unit: ResourceUnit, who: str) -> None:
    assert not unit.gone, f"{who} holds {unit.path()}, which is gone"
    assert unit.number not in holders, f"{unit.path()} is held by {holders[unit.number]} and {who}"
    holders[unit.number] = who


def _check_fence(steward: ResourceManager, fence: Reservation, holders: dict[int, str], memory: dict[int, int]) -> None:
    assert fence.owner in steward.waiting, "a fence for nobody"
    assert not fence.is_complete(), "a complete fence that was not handed over"
    for unit in fence.held.values():
        _note(holders, unit, "the fence")
    for _, (bank, size) in fence.memory:
        memory[bank.number] = memory.get(bank.number, 0) + size


def _check_disjoint(forest: ResourceTree, holders: dict[int, str]) -> None:
    for number, who in holders.items():
        for above in forest.units[number].around():
            assert above.number not in holders, f"{who} and {holders[above.number]} share {above.path()}"


def _check_counts(forest: ResourceTree, holders: dict[int, str]) -> None:
    """Usage counts, free units and the levels, all from the bottom up."""
    in_all: dict[str, int] = {}
    for root in forest.roots():
        _busy, free, total = _count(root, holders)
        for kind, count in free.items():
            in_all[kind] = in_all.get(kind, 0) + count
        is_held = root.number in holders
        for kind in root.free:
            level = 0 if is_held else root.free[kind]
            assert forest.levels[kind].masks[level] & root.bit, f"{root.path()}: {kind} at a wrong level"
        assert {kind: count for kind, count in total.items() if count} == _some(root.total, root.kind)
    assert {kind: count for kind, count in forest.top.free.items() if count} == {k: c for k, c in in_all.items() if c}
    for levels in forest.levels.values():
        seen = 0
        for level, mask in levels.masks.items():
            assert not seen & mask, "a machine at two levels"
            seen |= mask
            assert bool(levels.occupied >> level & 1) == bool(mask)
        assert not seen & ~forest.everyone


def _some(counts: dict[str, int], kind: str) -> dict[str, int]:
    """Counts with one more of a class, zeros left out."""
    found = {each: count for each, count in counts.items() if count}
    found[kind] = found.get(kind, 0) + 1
    return found


def _count(unit: ResourceUnit, holders: dict[int, str]) -> tuple[int, dict[str, int], dict[str, int]]:
    """How many units in and at a unit are held, what is available of it, and what there is of it, by class."""
    busy, inside, total = 0, dict[str, int](), dict[str, int]()
    for part in unit.parts:
        if part.gone:
            continue
        if not part.parts:  # most are such, and this is done after every step
            kind = part.kind
            is_held = part.number in holders
            assert is_held is not (unit.ready[kind] & part.bit != 0), f"{part.path()} is wrong about being available"
            busy += is_held
            inside[kind] = inside.get(kind, 0) + 1 - is_held
            total[kind] = total.get(kind, 0) + 1
            continue
        more, free, there = _count(part, holders)
        busy += more
        for kind, count in free.items():
            inside[kind] = inside.get(kind, 0) + count
        for kind, count in there.items():
            total[kind] = total.get(kind, 0) + count
    assert unit.busy == busy >= 0, f"{unit.path()} counts {unit.busy} held units in it, there are {busy}"
    for kind, count in unit.free.items():
        assert count == inside.get(kind, 0), f"{unit.path()} miscounts {kind}"
    is_held = unit.number in holders
    if unit.parts:
        assert unit.held == is_held, f"{unit.path()} is wrong about being held"
    assert unit.is_ready() == (not is_held and not busy), f"{unit.path()} is wrong about being available"
    total[unit.kind] = total.get(unit.kind, 0) + 1
    if is_held:
        return busy + 1, {}, total
    if not busy:
        inside[unit.kind] = inside.get(unit.kind, 0) + 1
    return busy, inside, total


def _check_memory(forest: ResourceTree, taken: dict[int, int]) -> None:
    for root in forest.roots():
        banks = forest.banks[root.number]
        for bank in banks:
            assert bank.memory_free == bank.memory - taken.pop(bank.number, 0) >= 0, f"{bank.path()} miscounts memory"
        room = forest.room[root.number]
        assert room == sum(bank.memory_free for bank in banks)
        assert forest.capacity[root.number] == sum(bank.memory for bank in banks)
        assert forest.memory.masks[memory_level(room)] & root.bit
    assert not taken, "memory taken of what is not there"


def _check_lines(steward: ResourceManager) -> None:
    assert [entry[:2] for entry in steward.order] == sorted(entry[:2] for entry in steward.order)
    assert not steward.order or steward.held, "tickets wait though nothing is held"
    if steward.order and steward.fence is None:
        assert steward.passed_by() <= steward.patience, "passed too often, and still without a fence"
    sizes = 0
    for number, _, line in steward.order:
        assert line.possible and line.head().number == number
        assert line.size == len(line.waiting())
        sizes += line.size
    for line in steward.hoping.values():
        assert not line.possible and line.size == len(line.waiting()) > 0
        sizes += line.size
    assert sizes == len(steward.waiting)
