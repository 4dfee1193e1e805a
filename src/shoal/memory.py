"""The memory layer: bytes spread over the shared memory of a cluster's nodes, used from programs and tasks by handle.

`connect` (a cluster) or `local` (this process) opens a memory for a program; in a task `attach` finds that of its node.
`alloc`, `get`, `put`, `free`, `partition` and `prefetch` use whatever the process is attached to. Nothing of it is
loaded before it is used.
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
    """So many bytes over the nodes, zeros or `data`.

    `spread`: `even` (equal shares in one piece each), `free` (in proportion to what is free), `turns` (blocks dealt to
    one node after the other) or `here` (all on this node). `replicas`: how many nodes hold each byte. A `name` makes it
    visible in a mount.
    """
    return _attached().alloc(size, data, replicas=replicas, spread=spread, block_bytes=block_bytes, name=name, run=run)


def get(allocation: Allocation, begin: int = 0, end: int | None = None, *, ahead: Ahead | None = None) -> memoryview:
    """Some of the bytes, to be read; what lies on this node in one piece is not copied."""
    return allocation.get(begin, end, ahead=ahead)


def put(allocation: Allocation, begin: int, data: ReadableBuffer) -> None:
    """Writes bytes from there on."""
    allocation.put(begin, data)


def free(allocation: Allocation) -> None:
    """Gives the memory back."""
    allocation.free()


def partition(allocation: Allocation) -> dict[str, list[Range]]:
    """By name of node, the ranges that it holds now."""
    return allocation.partition()


def prefetch(allocation: Allocation, ranges: Sequence[Range]) -> Ahead:
    """Begins to fetch ranges; `get(..., ahead=...)` waits only for what has not come yet."""
    return allocation.prefetch(ranges)
