"""Layout of shared-memory allocations over nodes: extents, replicas, ranges, and which node holds which bytes.

An allocation is divided into *extents*, each of which is stored contiguously on one node, or on several if it has
replicas. The first live holder of an extent orders the writes to it. Nodes are identified by their numbers in the
cluster, which are never reused. Pure: the caller passes the free space of the nodes.
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
"""Default block size when blocks are dealt to nodes in turn."""

Range = tuple[int, int]
"""Begin and end in bytes; the end is exclusive."""


class FullError(InputError):
    """Not enough free shared memory."""


class AllocationExtent(msgspec.Struct, frozen=True, array_like=True):
    """A contiguous part of an allocation."""

    begin: int
    end: int
    holders: tuple[int, ...]
    """Numbers of the nodes that hold it."""
    changes: int = 0
    """Number of times its holders have changed."""


class AllocationRecord(msgspec.Struct, frozen=True):
    """Metadata of an allocation, known to every node that holds a part of it."""

    run: str
    id: str
    size: int
    extents: tuple[AllocationExtent, ...]
    name: str = ""
    """File name in a mount; empty: not visible there."""
    replicas: int = 1
    owner: int = -1
    """The node through which it was allocated; -1: a program outside the nodes."""
    kept: str = "run"
    """Lifetime: its `run`, the `session` of the program that allocated it, or the `node` through which it was
    allocated."""


class ExtentPart(msgspec.Struct, frozen=True, array_like=True):
    """A range within one extent."""

    index: int
    begin: int
    end: int


# ---- layout --------------------------------------------------------------------------------------------------------


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
    """Divides `size` bytes into extents on nodes with this free space, in the order of `room`.

    `even`: equal shares, less where there is less space. `free`: in proportion to the free space. `turns`: blocks are
    dealt to the nodes in turn, beginning behind the node `after`. `here`: everything on one node.
    """
    _check(size, room, spread, block_bytes, replicas)
    left = dict(room)
    nodes = list(left)
    asked, there = size * replicas, sum(left.values())
    if asked > there:
        raise _no_space_error(asked, there, len(nodes))
    if spread == HERE:
        primary = here if here is not None else max(nodes, key=lambda node: left[node])
        if left.get(primary, 0) < size:
            raise _no_space_error(size, left.get(primary, 0), 1)
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
        raise InputError(f"the size of an allocation must be at least 1 byte, not {size}")
    if spread not in SPREADS:
        raise InputError(f"spread cannot be {spread!r}", remedy=f"use one of {', '.join(SPREADS)}")
    if block_bytes is not None and (block_bytes < PAGE or block_bytes % PAGE):
        raise InputError(f"block_bytes must be a multiple of {PAGE}, not {block_bytes}")
    if not room:
        raise InputError("no node has shared memory", remedy="wait until the cluster has a node")
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


def _no_space_error(asked: int, there: int, nodes: int) -> FullError:
    where = "one node" if nodes == 1 else f"{nodes} nodes"
    return FullError(
        f"{show_bytes(asked)} of shared memory are asked for, and {show_bytes(there)} are free on {where}",
        remedy="free memory that is not needed, start more nodes, or give agents more with --shared-memory",
    )


def _levelled(size: int, room: Mapping[int, int]) -> list[tuple[int, int]]:
    """Equal shares within the free space: nodes with little space are filled first, the rest is divided again."""
    shares: dict[int, int] = {}
    left, waiting = size, sorted(room, key=lambda node: room[node])
    for at, node in enumerate(waiting):
        fair = -(-left // (len(waiting) - at))
        shares[node] = min(room[node], left, _up(fair))
        left -= shares[node]
    if left:
        raise _no_space_error(size, size - left, len(room))
    return [(node, shares[node]) for node in room]


def _proportional(size: int, room: Mapping[int, int]) -> list[tuple[int, int]]:
    total, left, shares = sum(room.values()), size, []
    for node, amount in room.items():
        share = min(left, amount, _up(size * amount // total) if total else 0)
        shares.append((node, share))
        left -= share
    if left:
        raise _no_space_error(size, size - left, len(room))
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
    """Deals blocks in turn, skipping nodes that are full.

    `after` is the node that got the last block of the previous allocation. Without it every allocation of one block
    would go to the first node.
    """
    nodes, placed, turn = list(left), [], 0
    if after is not None:
        turn = next((at for at, node in enumerate(nodes) if node > after), 0)
    for begin in range(0, size, block):
        end = min(size, begin + block)
        ring = (nodes[(turn + step) % len(nodes)] for step in range(len(nodes)))
        node = next((each for each in ring if left[each] >= end - begin), None)
        if node is None:
            raise _no_space_error(size, begin, len(nodes))
        left[node] -= end - begin
        placed.append((begin, end, node))
        turn = nodes.index(node) + 1
    return placed


def _with_replicas(
    placed: Sequence[tuple[int, int, int]], replicas: int, nodes: Sequence[int], left: dict[int, int]
) -> Iterable[AllocationExtent]:
    """Adds replicas on the next nodes after the first holder that have space."""
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
    """The range as plain integers; raises InputError if it is out of bounds, or if the handle is damaged."""
    if not record.extents or record.extents[-1].end != record.size or not record.id.isalnum():
        raise damaged(record)
    try:
        begin, end = whole(begin), whole(end)
    except TypeError:
        raise InputError(f"the bounds of a range must be integers, not {begin!r} and {end!r}") from None
    if not 0 <= begin <= end <= record.size:
        raise InputError(
            f"bytes {begin} to {end} are out of bounds: allocation {shown(record)} has {record.size} bytes",
            remedy="give 0 <= begin <= end <= size",
        )
    return begin, end


def damaged(record: AllocationRecord) -> InputError:
    return InputError(f"the handle of allocation {shown(record)} is damaged", remedy="use the one that alloc returned")


def shown(record: AllocationRecord) -> str:
    """The name of an allocation for messages."""
    return f"{record.name!r} ({record.id})" if record.name else record.id


def parts_of(extents: Sequence[AllocationExtent], begin: int, end: int) -> list[ExtentPart]:
    """Splits the range at extent boundaries."""
    found = []
    index = bisect_right(extents, begin, key=lambda extent: extent.begin) - 1
    while begin < end:
        upto = min(end, extents[index].end)
        found.append(ExtentPart(index, begin, upto))
        begin, index = upto, index + 1
    return found


def with_holders(record: AllocationRecord, index: int, holders: tuple[int, ...]) -> AllocationRecord:
    """A copy of the record with other holders of one extent."""
    extents = list(record.extents)
    extents[index] = AllocationExtent(extents[index].begin, extents[index].end, holders, extents[index].changes + 1)
    return msgspec.structs.replace(record, extents=tuple(extents))


def merged(one: AllocationRecord, other: AllocationRecord) -> AllocationRecord:
    """Merges two nodes' records of an allocation: the newest holders of each extent. Returns `one` if nothing is
    newer."""
    if len(one.extents) != len(other.extents):
        raise damaged(other)
    if all(mine.changes >= theirs.changes for mine, theirs in zip(one.extents, other.extents, strict=True)):
        return one
    extents = tuple(
        mine if mine.changes >= theirs.changes else theirs
        for mine, theirs in zip(one.extents, other.extents, strict=True)
    )
    return msgspec.structs.replace(one, extents=extents)


# ---- holders -------------------------------------------------------------------------------------------------------


def partition_of(extents: Iterable[AllocationExtent], names: Mapping[int, str]) -> dict[str, list[Range]]:
    """The ranges held by each node in `names`, by name and in that order; other nodes are ignored."""
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
    """Number of the needed bytes that each host holds; both lists must be ascending and without overlaps."""
    return {host: _common(ranges, needs) for host, ranges in partition.items()}


def preferences(partition: Mapping[str, Sequence[Range]], needs: Sequence[Range]) -> list[str]:
    """Hosts that hold needed bytes, those with the most first."""
    return ranked(bytes_held(partition, needs))


def ranked(held: Mapping[str, int]) -> list[str]:
    """Hosts by bytes held, descending; for several allocations add up the bytes first."""
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
