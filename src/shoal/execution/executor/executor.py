"""`shoal.Executor`, a `concurrent.futures.Executor` whose futures may depend on each other.

This is the public interface; `shoal.execution.executor.client` and `call_loop` do the work.
"""

from __future__ import annotations

import concurrent.futures
import functools
import os
import secrets
import sys
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import partial
from importlib.util import find_spec
from types import MethodType, TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, Unpack, overload

from shoal.errors import InputError
from shoal.execution.executor.arguments import name_of
from shoal.execution.executor.client import ExecutorClient
from shoal.execution.executor.future import CallFuture
from shoal.execution.executor.options import CallOptions, CallOptionValues, node_of
from shoal.execution.executor.worker_side import Chunked, Definition
from shoal.extensions import load_extension
from shoal.ledger.cluster_notes import NetClusterNote

if TYPE_CHECKING:
    from shoal.execution.nets.run import NetRun
    from shoal.petri import Net


Name: TypeAlias = str | os.PathLike[str]

active: ContextVar[tuple[Submitter, ...]] = ContextVar("shoal_active_executors", default=())
"""The executors of the enclosing `with` blocks, innermost last."""


class DefinitionWithOptions(Definition):
    """A definition with options for its calls."""

    overrides: CallOptionValues
    options: CallOptions


class Submitter(concurrent.futures.Executor):
    """Base class of executors and their configured views: `submit`, `map` and `with_options`."""

    _client: ExecutorClient
    _overrides: CallOptionValues
    _options: CallOptions

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> CallFuture:
        """Calls `fn` in a worker process once all futures among the arguments are done; passes their results."""
        return self._client.submit(fn, args, kwargs, self._options_for(fn))

    def map(
        self, fn: Callable[..., Any], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[Any]:
        """Returns the results of `fn` over the iterables, in order; submits all calls at once.

        Short calls are bundled automatically. With a `chunksize` above 1, that many calls become one call: the chunk
        fails as a whole. Closing the iterator, or an exception raised by it, cancels the rest.
        """
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        options = self._options_for(fn)
        calls = list(zip(*iterables, strict=False))
        if chunksize > 1:
            chunks = [(calls[at : at + chunksize],) for at in range(0, len(calls), chunksize)]
            return _flattened(self._client.map(Chunked(fn, name_of(fn)), chunks, timeout, options))
        return self._client.map(fn, calls, timeout, options)

    def _options_for(self, fn: object) -> CallOptions:
        """Returns the options of a call: `with_options` overrides the function's decorator."""
        if not isinstance(fn, DefinitionWithOptions):
            return self._options
        options = CallOptions().changed({**fn.overrides, **self._overrides}) if self._overrides else fn.options
        options.check_fits(self._client.node, self._client.cluster)
        return options

    def with_options(self, **overrides: Unpack[CallOptionValues]) -> ConfiguredExecutor:
        """Returns a view of this executor whose calls have these options."""
        return ConfiguredExecutor(self, {**self._overrides, **overrides})

    def start(self, net: Net, *, ledger: Name | None = None, seed: int | None = None, afresh: bool = False) -> NetRun:
        """Starts a run of a net whose tasks are calls of this executor.

        With `ledger`, a name in the directory `.shoal`, an interrupted run is resumed, unless `afresh`.
        """
        from shoal.execution.nets.run import start

        return start(net, self._client, ledger=ledger, seed=seed, afresh=afresh, defaults=self._overrides)

    def run(self, net: Net, *, ledger: Name | None = None, seed: int | None = None, afresh: bool = False) -> Any:
        """Runs a net to its end and returns its result."""
        return self.start(net, ledger=ledger, seed=seed, afresh=afresh).result()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accepts no more calls; the workers end when the accepted calls have ended."""
        self._client.close(cancel_unbegun=cancel_futures)
        if wait:
            self._client.join()

    def __enter__(self) -> Self:
        active.set((*active.get(), self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        active.set(tuple(other for other in active.get() if other is not self))
        if kind is not None and not issubclass(kind, Exception):
            # after a Ctrl-C, do not wait for the rest
            self._client.close(stop=True)
        self.shutdown()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._client.summary()}>"

    def _repr_html_(self) -> str:
        return str(load_extension("executor_html")(self._client))

    def _ipython_display_(self) -> None:
        load_extension("show_executor")(self._client)

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("an executor cannot be sent to another process; create one where it is needed")


class Executor(Submitter):
    """Runs Python calls in worker processes on this machine, or on a cluster."""

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        cores: float | None = None,
        memory: str | float | None = None,
        gpus: float | None = None,
        resources: Mapping[str, str | float] | None = None,
        cluster: str | None = None,
    ) -> None:
        """Uses all resources of the machine that are not given; `max_workers` is the standard library's name for cores.

        With `cluster`, the name of a running cluster or the path of its access file, calls run on its agents.
        """
        if cluster is None:
            self._client = ExecutorClient(node_of(max_workers, cores, memory, gpus, resources))
        elif any(given is not None for given in (max_workers, cores, memory, gpus, resources)):
            raise InputError("an executor on a cluster has the resources of its agents", remedy="give only cluster=…")
        else:
            self._client = cluster_client(cluster)
        self._overrides = {}
        self._options = CallOptions()
        # A program that drops an executor without shutting it down does not need its workers any more.
        weakref.finalize(self, self._client.close).atexit = False


class ConfiguredExecutor(Submitter):
    """An executor with other options; shutting it down shuts down the executor."""

    def __init__(self, of: Submitter, overrides: CallOptionValues) -> None:
        self._of = of  # keeps the executor alive: a dropped executor ends its workers
        self._client = of._client
        self._overrides = overrides
        self._options = CallOptions().changed(overrides)
        self._options.check_fits(self._client.node, self._client.cluster)


def cluster_client(cluster: str) -> ExecutorClient:
    """Returns a client whose calls run on a cluster; imports the libraries for that."""
    if find_spec("zmq") is None:
        raise InputError("clusters need pyzmq, which is not installed", remedy="pip install 'shoal[cluster]'")
    access, nodes = load_extension("find_cluster")(cluster)
    largest = load_extension("largest_of")([node.capacity() for node in nodes.values()])
    word = os.path.abspath(cluster) if os.path.isfile(cluster) else cluster
    note = NetClusterNote(word, secrets.token_hex(8), [node.address for node in nodes.values()])
    return ExecutorClient(
        largest,
        partial(load_extension("ClusterCallPool"), access, nodes, largest, note.client),
        cluster=access.name,
        note=note,
    )


def _flattened(chunks: Iterator[list[Any]]) -> Generator[Any, None, None]:
    for chunk in chunks:
        yield from chunk


class DecoratedFunction(DefinitionWithOptions):
    """Submits its calls to the active executor; without one, as in a worker, calls the function directly."""

    __name__: str
    __qualname__: str
    __module__: str

    def __init__(self, function: Callable[..., Any], overrides: CallOptionValues) -> None:
        self.overrides = overrides
        self.options = CallOptions().changed(overrides)
        functools.update_wrapper(self, function)
        self.__wrapped__ = function

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        executors = active.get()
        if executors:
            return executors[-1].submit(self, *arguments, **keywords)
        return self.__wrapped__(*arguments, **keywords)

    def submit(self, executor: Submitter, /, *arguments: Any, **keywords: Any) -> CallFuture:
        """Submits a call to the given executor, active or not."""
        return executor.submit(self, *arguments, **keywords)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<shoal.function {self.__module__}.{self.__qualname__}>"

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickles by name if a worker can import it, otherwise with the function."""
        found: Any = sys.modules.get(self.__module__) if self.__module__ != "__main__" else None
        for name in self.__qualname__.split("."):
            found = getattr(found, name, None)
        return self.__qualname__ if found is self else (DecoratedFunction, (self.__wrapped__, self.overrides))


@overload
def function(of: Callable[..., Any], /) -> DecoratedFunction: ...
@overload
def function(**overrides: Unpack[CallOptionValues]) -> Callable[[Callable[..., Any]], DecoratedFunction]: ...


def function(of: Callable[..., Any] | None = None, /, **overrides: Unpack[CallOptionValues]) -> Any:
    """Makes calls of a function return futures: `@shoal.function`, or `@shoal.function(cores=2, retries=1, …)`."""
    if of is None:
        return lambda of: DecoratedFunction(of, overrides)
    return DecoratedFunction(of, overrides)
