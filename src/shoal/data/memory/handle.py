"""The handle of an allocation: small, picklable, and usable in every task of the run, on whichever node that runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, Self

import msgspec

from shoal.data.memory.allocation_table import AllocationRequest, check_data, wished
from shoal.resources.memory_layout import EVEN, AllocationRecord, Range

if TYPE_CHECKING:
    import numpy
    from _typeshed import ReadableBuffer


class Ahead(msgspec.Struct, frozen=True):
    """Ranges that are being fetched before they are needed; of use on the node where that was asked for."""

    token: str
    ranges: tuple[Range, ...]


class Allocation(AllocationRecord, frozen=True):
    """Bytes that are spread over the shared memory of nodes.

    The methods ask through whatever memory this process is attached to: the agent of its node in a task, the cluster
    or the local memory in a program that has connected to it.
    """

    def get(self, begin: int = 0, end: int | None = None, *, ahead: Ahead | None = None) -> memoryview:
        """Some of the bytes, to be read; what lies on this node in one piece is not copied."""
        return _memory().get(self, begin, self.size if end is None else end, ahead=ahead)

    def array(self, dtype: object = "u1", begin: int = 0, end: int | None = None) -> numpy.ndarray:
        """The same as a NumPy array on the same memory."""
        import numpy

        return numpy.frombuffer(self.get(begin, end), dtype=dtype)  # type: ignore[call-overload, no-any-return]

    def put(self, begin: int, data: ReadableBuffer) -> None:
        """Writes bytes from there on."""
        _memory().put(self, begin, data)

    def prefetch(self, ranges: Sequence[Range]) -> Ahead:
        """Begins to fetch ranges that are needed soon."""
        return _memory().prefetch(self, ranges)

    def partition(self) -> dict[str, list[Range]]:
        """By name of node, the ranges that it holds now."""
        return _memory().partition(self)

    def free(self) -> None:
        """Gives the memory back."""
        _memory().free(self)


class ClosingHandle:
    """Something that is closed at the end of a `with` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives back what it holds."""
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
        wish = wished(size, replicas, spread, block_bytes, name, run or self.run)
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
    """What a program or task can do with the memory of a cluster; may be used from several threads."""

    run: str
    """Whose allocations are made unless told otherwise."""

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
        """So many bytes, zeros or `data`. `instead`: the id of an object that has the name and is about to be freed."""

    def get(self, allocation: AllocationRecord, begin: int, end: int, *, ahead: Ahead | None = None) -> memoryview: ...

    def put(self, allocation: AllocationRecord, begin: int, data: ReadableBuffer) -> None: ...

    def prefetch(self, allocation: AllocationRecord, ranges: Sequence[Range]) -> Ahead: ...

    def partition(self, allocation: AllocationRecord) -> dict[str, list[Range]]: ...

    def free(self, allocation: AllocationRecord) -> None: ...

    def objects(self, run: str = "") -> list[Allocation]:
        """All allocations of a run, or of all runs."""

    def has(self, allocation: AllocationRecord, index: int) -> bool:
        """Whether an extent can be read here without a copy."""

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def _memory() -> Memory:
    from shoal.data.memory.client import attach

    return attach()
