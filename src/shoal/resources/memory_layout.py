"""Which node holds which bytes of an allocation: laying it out, finding ranges, and telling who has most of them.

An allocation is cut into *extents*, each of which lies whole on one node, or on several if it has replicas. The first
holder of an extent that is alive orders what is written to it. Nodes are known by their numbers in the cluster, which
are never used twice. Pure: how much room nodes have is told.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from operator import index as whole

import msgspec

from shoal.core.quantities import show_bytes
from shoal.errors import InputError

PAGE = 4096
MOST_EXTENTS = 16_384
EVEN, FREE, TURNS, HERE = "even", "free", "turns", "here"
SPREADS = (EVEN, FREE, TURNS, HERE)
TURN_BYTES = 4 << 20
"""What a node gets at a time when blocks are dealt in turns, unless told otherwise."""

Range = tuple[int, int]
"""From a byte to, but without, another."""


class FullError(InputError):
    """There is not so much shared memory left."""


class AllocationExtent(msgspec.Struct, frozen=True, array_like=True):
    """A part of an allocation that lies in one piece."""

    begin: int
    end: int
    holders: tuple[int, ...]
    """Numbers of the nodes that hold it."""
    changes: int = 0
    """How often it has found other holders."""


class AllocationRecord(msgspec.Struct, frozen=True):
    """What is known of an allocation wherever a part of it is held."""

    run: str
    id: str
    size: int
    extents: tuple[AllocationExtent, ...]
    name: str = ""
    """By which a mount shows it; nothing: it is not shown."""
    replicas: int = 1
    owner: int = -1
    """The node through which it was made; -1: a program that is no node."""
    kept: str = "run"
    """What keeps it: its `run`, the `session` of the program that made it, or the `node` through which it was made."""


class ExtentPart(msgspec.Struct, frozen=True, array_like=True):
    """A range within one extent."""

    index: int
    begin: int
    end: int


# ---- laying out ----------------------------------------------------------------------------------------------------


def lay_out(
    size: int,
    room: Mapping[int, int],
    *,
    spread: str = EVEN,
    block_bytes: int | None = None,
    replicas: int = 1,
    here: int | None = None,
    after: int | None = None,
) -> tuple[AllocationExtent, ...]:
    """Extents for so many bytes on nodes with so much room each, in the order of `room`.

    `even`: equal shares, less where there is less room. `free`: in proportion to the room. `turns`: blocks dealt to one
    node after the other, beginning behind the node `after`. `here`: all of it on one node.
    """
    _check(size, room, spread, block_bytes, replicas)
    left = dict(room)
    nodes = list(left)
    asked, there = size * replicas, sum(left.values())
    if asked > there:
        raise _full(asked, there, len(nodes))
    if spread == HERE:
        primary = here if here is not None else max(nodes, key=lambda node: left[node])
        if left.get(primary, 0) < size:
            raise _full(size, left.get(primary, 0), 1)
        placed = [(0, size, primary)]
        left[primary] -= size
    elif spread == TURNS:
        placed = _dealt(size, block_bytes or TURN_BYTES, left, after)
    else:
        usable = {node: amount // replicas for node, amount in left.items()}
        shares = _levelled(size, usable) if spread == EVEN else _proportional(size, usable)
        placed = list(_in_blocks(shares, block_bytes))
        for begin, end, node in placed:
            left[node] -= end - begin
    return tuple(_with_replicas(placed, replicas, nodes, left))


def _check(size: int, room: Mapping[int, int], spread: str, block_bytes: int | None, replicas: int) -> None:
    if size < 1:
        raise InputError(f"an allocation has at least 1 byte, not {size}")
    if spread not in SPREADS:
        raise InputError(f"spread cannot be {spread!r}", remedy=f"it is one of {', '.join(SPREADS)}")
    if block_bytes is not None and (block_bytes < PAGE or block_bytes % PAGE):
        raise InputError(f"block_bytes must be a multiple of {PAGE}, not {block_bytes}")
    if not room:
        raise InputError("there is no node that has shared memory", remedy="wait until the cluster has a node")
    if not 1 <= replicas <= len(room):
        many = f"{len(room)} {'node' if len(room) == 1 else 'nodes'}"
        raise InputError(f"{replicas} replicas need as many nodes, and there are {many}", remedy="ask for fewer")
    block = block_bytes or (TURN_BYTES if spread == TURNS else None)
    if block and -(-size // block) > MOST_EXTENTS:
        least = -(-size // MOST_EXTENTS // PAGE) * PAGE
        raise InputError(
            f"{show_bytes(size)} in blocks of {show_bytes(block)} are more than {MOST_EXTENTS} blocks",
            remedy=f"give block_bytes={least} or more",
        )


def _full(asked: int, there: int, nodes: int) -> FullError:
    where = "one node" if nodes == 1 else f"{nodes} nodes"
    return FullError(
        f"{show_bytes(asked)} of shared memory are asked for, and {show_bytes(there)} are free on {where}",
        remedy="free what is not needed, start more nodes, or give agents more with --shared-memory",
    )


def _levelled(size: int, room: Mapping[int, int]) -> list[tuple[int, int]]:
    """Equal shares, none above its room: those with little room are filled first, the rest is divided anew."""
    shares: dict[int, int] = {}
    left, waiting = size, sorted(room, key=lambda node: room[node])
    for at, node in enumerate(waiting):
        fair = -(-left // (len(waiting) - at))
        shares[node] = min(room[node], left, _up(fair))
        left -= shares[node]
    if left:
        raise _full(size, size - left, len(room))
    return [(node, shares[node]) for node in room]


def _proportional(size: int, room: Mapping[int, int]) -> list[tuple[int, int]]:
    total, left, shares = sum(room.values()), size, []
    for node, amount in room.items():
        share = min(left, amount, _up(size * amount // total) if total else 0)
        shares.append((node, share))
        left -= share
    if left:
        raise _full(size, size - left, len(room))
    return shares


def _in_blocks(shares: Iterable[tuple[int, int]], block_bytes: int | None) -> Iterable[tuple[int, int, int]]:
    at = 0
    for node, share in shares:
        end = at + share
        while at < end:
            upto = end if block_bytes is None else min(end, at + block_bytes)
            yield at, upto, node
            at = upto


def _dealt(size: int, block: int, left: dict[int, int], after: int | None) -> list[tuple[int, int, int]]:
    """Deals blocks in turn, passing over nodes that are full.

    `after` is the node that got the last block of the allocation before. Without it every allocation of one block would
    go to the first node.
    """
    nodes, placed, turn = list(left), [], 0
    if after is not None:
        turn = next((at for at, node in enumerate(nodes) if node > after), 0)
    for begin in range(0, size, block):
        end = min(size, begin + block)
        ring = (nodes[(turn + step) % len(nodes)] for step in range(len(nodes)))
        node = next((each for each in ring if left[each] >= end - begin), None)
        if node is None:
            raise _full(size, begin, len(nodes))
        left[node] -= end - begin
        placed.append((begin, end, node))
        turn = nodes.index(node) + 1
    return placed


def _with_replicas(
    placed: Sequence[tuple[int, int, int]], replicas: int, nodes: Sequence[int], left: dict[int, int]
) -> Iterable[AllocationExtent]:
    """Further holders are the next nodes after the first that have room."""
    for begin, end, first in placed:
        holders, at = [first], nodes.index(first)
        for step in range(1, len(nodes)):
            node = nodes[(at + step) % len(nodes)]
            if len(holders) < replicas and left[node] >= end - begin:
                left[node] -= end - begin
                holders.append(node)
        if len(holders) < replicas:
            raise FullError(
                f"no node has room for replica {len(holders) + 1} of a block of {show_bytes(end - begin)}",
                remedy="give a smaller block_bytes, fewer replicas, or more --shared-memory to the agents",
            )
        yield AllocationExtent(begin, end, tuple(holders))


def _up(amount: int) -> int:
    return -(-amount // PAGE) * PAGE


# ---- ranges --------------------------------------------------------------------------------------------------------


def check_range(record: AllocationRecord, begin: int, end: int) -> Range:
    """The range as plain numbers; one sentence if the allocation has not got it, or if the handle is none."""
    if not record.extents or record.extents[-1].end != record.size or not record.id.isalnum():
        raise damaged(record)
    try:
        begin, end = whole(begin), whole(end)
    except TypeError:
        raise InputError(f"a range goes from a whole number to another, not from {begin!r} to {end!r}") from None
    if not 0 <= begin <= end <= record.size:
        raise InputError(
            f"bytes {begin} to {end} are out of bounds: allocation {shown(record)} has {record.size} bytes",
            remedy="give 0 <= begin <= end <= size",
        )
    return begin, end


def damaged(record: AllocationRecord) -> InputError:
    return InputError(f"the handle of allocation {shown(record)} is damaged", remedy="use the one that alloc returned")


def shown(record: AllocationRecord) -> str:
    """An allocation as a sentence names it."""
    return f"{record.name!r} ({record.id})" if record.name else record.id


def parts_of(extents: Sequence[AllocationExtent], begin: int, end: int) -> list[ExtentPart]:
    """The range cut at the borders of extents."""
    found = []
    index = bisect_right(extents, begin, key=lambda extent: extent.begin) - 1
    while begin < end:
        upto = min(end, extents[index].end)
        found.append(ExtentPart(index, begin, upto))
        begin, index = upto, index + 1
    return found


def with_holders(record: AllocationRecord, index: int, holders: tuple[int, ...]) -> AllocationRecord:
    """The same allocation with other holders of an extent."""
    extents = list(record.extents)
    extents[index] = AllocationExtent(extents[index].begin, extents[index].end, holders, extents[index].changes + 1)
    return msgspec.structs.replace(record, extents=tuple(extents))


def merged(one: AllocationRecord, other: AllocationRecord) -> AllocationRecord:
    """What two nodes know of an allocation: of each extent the later holders. The first itself if it knows it all."""
    if len(one.extents) != len(other.extents):
        raise damaged(other)
    if all(mine.changes >= theirs.changes for mine, theirs in zip(one.extents, other.extents, strict=True)):
        return one
    extents = tuple(
        mine if mine.changes >= theirs.changes else theirs
        for mine, theirs in zip(one.extents, other.extents, strict=True)
    )
    return msgspec.structs.replace(one, extents=extents)


# ---- who has what --------------------------------------------------------------------------------------------------


def partition_of(extents: Iterable[AllocationExtent], names: Mapping[int, str]) -> dict[str, list[Range]]:
    """By name of node, in the order of `names`, the ranges that it holds; nodes that are not named hold nothing."""
    found: dict[str, list[Range]] = {}
    for extent in extents:
        for holder in extent.holders:
            if holder not in names:
                continue
            ranges = found.setdefault(names[holder], [])
            if ranges and ranges[-1][1] == extent.begin:
                ranges[-1] = (ranges[-1][0], extent.end)
            else:
                ranges.append((extent.begin, extent.end))
    return {name: found[name] for name in names.values() if name in found}


def bytes_held(partition: Mapping[str, Sequence[Range]], needs: Sequence[Range]) -> dict[str, int]:
    """How many bytes of the needed ranges each host has; both lists are in ascending order without overlaps."""
    return {host: _common(ranges, needs) for host, ranges in partition.items()}


def preferences(partition: Mapping[str, Sequence[Range]], needs: Sequence[Range]) -> list[str]:
    """Hosts that have some of the needed bytes, those with the most first."""
    return ranked(bytes_held(partition, needs))


def ranked(held: Mapping[str, int]) -> list[str]:
    """Hosts in the order of bytes held; to weigh several allocations, add up what is held of each."""
    return sorted((host for host, amount in held.items() if amount), key=lambda host: -held[host])


def _common(ranges: Sequence[Range], needs: Sequence[Range]) -> int:
    total = at = 0
    for begin, end in ranges:
        while at < len(needs) and needs[at][1] <= begin:
            at += 1
        further = at
        while further < len(needs) and needs[further][0] < end:
            total += min(end, needs[further][1]) - max(begin, needs[further][0])
            further += 1
    return total
