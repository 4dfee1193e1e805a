"""The handle of an allocation: small, picklable, and usable in every task of the run, on any node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, Self

import msgspec

from shoal.data.memory.allocation_table import AllocationRequest, check_data, checked_request
from shoal.resources.memory_layout import EVEN, AllocationRecord, Range

if TYPE_CHECKING:
    import numpy
    from _typeshed import ReadableBuffer


class Ahead(msgspec.Struct, frozen=True):
    """Ranges that are being prefetched; valid on the node that was asked for it."""

    token: str
    ranges: tuple[Range, ...]


class Allocation(AllocationRecord, frozen=True):
    """A handle for bytes that are spread over the shared memory of nodes.

    The methods use the memory to which this process is attached: that of its node's agent in a task, that of the
    cluster or the local one in a program that has connected to it.
    """

    def get(self, begin: int = 0, end: int | None = None, *, ahead: Ahead | None = None) -> memoryview:
        """Returns bytes for reading. A range that lies on this node in one piece is not copied."""
        return _memory().get(self, begin, self.size if end is None else end, ahead=ahead)

    def array(self, dtype: object = "u1", begin: int = 0, end: int | None = None) -> numpy.ndarray:
        """Like `get`, as a NumPy array on the same memory."""
        import numpy

        return numpy.frombuffer(self.get(begin, end), dtype=dtype)  # type: ignore[call-overload, no-any-return]

    def put(self, begin: int, data: ReadableBuffer) -> None:
        """Writes `data` at offset `begin`."""
        _memory().put(self, begin, data)

    def prefetch(self, ranges: Sequence[Range]) -> Ahead:
        """Starts to fetch ranges that are needed soon."""
        return _memory().prefetch(self, ranges)

    def partition(self) -> dict[str, list[Range]]:
        """Returns, per node name, the ranges that the node holds now."""
        return _memory().partition(self)

    def free(self) -> None:
        """Frees the allocation."""
        _memory().free(self)


class ClosingHandle:
    """A resource that is closed at the end of a `with` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Releases all resources."""
        raise NotImplementedError


class AllocatingHandle(ClosingHandle):
    """Allocates memory with initial data; how the memory is found is left to the subclass."""

    run: str

    def alloc(
        self,
        size: int,
        data: ReadableBuffer | None = None,
        *,
        replicas: int = 1,
        spread: str = EVEN,
        block_bytes: int | None = None,
        name: str = "",
        run: str = "",
        instead: str = "",
    ) -> Allocation:
        """So many bytes over the nodes, zeros or `data`."""
        wish = checked_request(size, replicas, spread, block_bytes, name, run or self.run)
        view = check_data(wish, data)
        allocation = self._allocate(wish, instead)
        if view is not None:
            try:
                self.put(allocation, 0, view)
            except BaseException:
                self.free(allocation)
                raise
        return allocation

    def _allocate(self, wish: AllocationRequest, instead: str) -> Allocation:
        """Allocates zeros."""
        raise NotImplementedError

    def put(self, allocation: AllocationRecord, begin: int, data: ReadableBuffer) -> None:
        """Writes `data` at offset `begin`."""
        raise NotImplementedError

    def free(self, allocation: AllocationRecord) -> None:
        """Frees the memory."""
        raise NotImplementedError


class Memory(Protocol):
    """The operations of programs and tasks on the memory of a cluster. Thread-safe."""

    run: str
    """The run of new allocations, unless `alloc` names another one."""

    def alloc(
        self,
        size: int,
        data: ReadableBuffer | None = None,
        *,
        replicas: int = 1,
        spread: str = "even",
        block_bytes: int | None = None,
        name: str = "",
        run: str = "",
        instead: str = "",
    ) -> Allocation:
        """Allocates bytes, filled with zeros or with `data`. `instead`: the id of an allocation of the same name that
        is about to be freed."""

    def get(self, allocation: AllocationRecord, begin: int, end: int, *, ahead: Ahead | None = None) -> memoryview: ...

    def put(self, allocation: AllocationRecord, begin: int, data: ReadableBuffer) -> None: ...

    def prefetch(self, allocation: AllocationRecord, ranges: Sequence[Range]) -> Ahead: ...

    def partition(self, allocation: AllocationRecord) -> dict[str, list[Range]]: ...

    def free(self, allocation: AllocationRecord) -> None: ...

    def objects(self, run: str = "") -> list[Allocation]:
        """Returns all allocations of a run; with an empty run, of all runs."""

    def has(self, allocation: AllocationRecord, index: int) -> bool:
        """Whether an extent can be read here without a copy."""

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def _memory() -> Memory:
    from shoal.data.memory.client import attach

    return attach()
