"""Public API of the cluster's shared memory: allocate, read and write bytes that are spread over nodes, by handle.

`connect` opens the memory of a cluster for a program, `local` opens a memory in this process, and `attach` finds the
memory of the node inside a task. `alloc`, `get`, `put`, `free`, `partition` and `prefetch` use the memory that the
process is attached to. The implementation is imported on first use.
"""

from __future__ import annotations

from importlib import import_module

__path__: list[str] = []  # lets the former names of its modules be found

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Sequence

    from _typeshed import ReadableBuffer

    from shoal.cluster.memory_access import connect, local
    from shoal.data.memory.client import attach
    from shoal.data.memory.handle import Ahead, Allocation, Memory
    from shoal.resources.memory_layout import Range, bytes_held, preferences, ranked

_HOMES = {
    "attach": "shoal.data.memory.client",
    "Ahead": "shoal.data.memory.handle",
    "Allocation": "shoal.data.memory.handle",
    "Memory": "shoal.data.memory.handle",
    "bytes_held": "shoal.resources.memory_layout",
    "preferences": "shoal.resources.memory_layout",
    "ranked": "shoal.resources.memory_layout",
    "connect": "shoal.cluster.memory_access",
    "local": "shoal.cluster.memory_access",
}
__all__ = [
    "Ahead",
    "Allocation",
    "Memory",
    "alloc",
    "attach",
    "bytes_held",
    "connect",
    "free",
    "get",
    "local",
    "partition",
    "preferences",
    "prefetch",
    "put",
    "ranked",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'shoal.memory' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def _attached() -> Memory:
    from shoal.data.memory.client import attach

    return attach()


def alloc(
    size: int,
    data: ReadableBuffer | None = None,
    *,
    replicas: int = 1,
    spread: str = "even",
    block_bytes: int | None = None,
    name: str = "",
    run: str = "",
) -> Allocation:
    """Allocates `size` bytes over the nodes, filled with zeros or with `data`.

    `spread`: `even` (one piece of equal size per node), `free` (in proportion to free memory), `turns` (blocks assigned
    to the nodes round-robin) or `here` (everything on this node). `replicas`: the number of nodes that hold each byte.
    An allocation with a `name` is visible in a mount.
    """
    return _attached().alloc(size, data, replicas=replicas, spread=spread, block_bytes=block_bytes, name=name, run=run)


def get(allocation: Allocation, begin: int = 0, end: int | None = None, *, ahead: Ahead | None = None) -> memoryview:
    """Returns bytes for reading. A range that lies on this node in one piece is not copied."""
    return allocation.get(begin, end, ahead=ahead)


def put(allocation: Allocation, begin: int, data: ReadableBuffer) -> None:
    """Writes `data` at offset `begin`."""
    allocation.put(begin, data)


def free(allocation: Allocation) -> None:
    """Frees the allocation."""
    allocation.free()


def partition(allocation: Allocation) -> dict[str, list[Range]]:
    """Returns, per node name, the ranges that the node holds now."""
    return allocation.partition()


def prefetch(allocation: Allocation, ranges: Sequence[Range]) -> Ahead:
    """Starts to fetch ranges; `get(..., ahead=...)` then waits only for the ranges that have not arrived."""
    return allocation.prefetch(ranges)
