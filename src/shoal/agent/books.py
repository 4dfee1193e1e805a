"""The books of a cluster, wherever they are: in Redis, with the head, or right here because this is the head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from shoal.agent.messages import Refused, StoreAsked, StoreTold, WireMessage, make_codec
from shoal.errors import InputError, RunError
from shoal.futures.farming import FarmsAsked
from shoal.model.work import Work
from shoal.store.base import Store
from shoal.store.directory import Directory
from shoal.store.link import Link
from shoal.store.redis import RedisStore, key_of
from shoal.store.redis_directory import RedisDirectory
from shoal.store.remote import RemoteDirectory, RemoteStore, Transport
from shoal.wire.access import Access, Role
from shoal.wire.caller import Caller, VersionError

if TYPE_CHECKING:
    from shoal.store.served import StoreServer

ANSWER_SECONDS = 10.0
GREETING_SECONDS = 2.0


class ClusterBooks(Protocol):
    """Who is there, what is being run, and the books of each run."""

    directory: Directory
    outlive_head: bool
    """Whether they are there without the head, so that every agent can answer clients."""

    def bring(self, run: str, work: Work, pieces: Mapping[str, bytes], *, managed: bool) -> None:
        """Opens the books of a new run; `managed`: they say where its files are."""

    def attach(self, run: str) -> tuple[Store, Work]:
        """The books of a run and its work, for whoever takes a share in it."""

    def open(self, run: str) -> Store:
        """The books of a run, for whoever only looks or cancels."""


class RedisBooks:
    """In Redis or Valkey; every run has a connection of its own."""

    outlive_head = True

    def __init__(self, url: str, cluster: str) -> None:
        self._addresses = url.split(",")
        self.directory: Directory = RedisDirectory(self._link(cluster), cluster)

    def _link(self, tag: str) -> Link:
        return Link(self._addresses, key_of(tag, "summary"))

    def bring(self, run: str, work: Work, pieces: Mapping[str, bytes], *, managed: bool) -> None:
        store = RedisStore.bring(self._link(run), run, work, 1, shared_files=not managed)
        for name, data in pieces.items():
            store.put_piece(name, data)
        store.close()

    def attach(self, run: str) -> tuple[Store, Work]:
        store = RedisStore.attach(self._link(run), run)
        return store, store.work()

    def open(self, run: str) -> Store:
        return RedisStore.attach(self._link(run), run)


class ServedBooks:
    """With the head, reached through a transport."""

    outlive_head = False

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.directory: Directory = RemoteDirectory(transport)

    def bring(self, run: str, work: Work, pieces: Mapping[str, bytes], *, managed: bool) -> None:
        store = RemoteStore.bring(self._transport, run, work, 1, shared_files=not managed)
        for name, data in pieces.items():
            store.put_piece(name, data)

    def attach(self, run: str) -> tuple[Store, Work]:
        store = RemoteStore.attach(self._transport, run)
        return store, store.work()

    def open(self, run: str) -> Store:
        return RemoteStore.attach(self._transport, run)


class ToHead:
    """Requests to the head's store, over the wire; a head that does not answer in time is asked again by the store."""

    def __init__(self, caller: Caller[WireMessage]) -> None:
        self._caller = caller

    def ask(self, request: bytes) -> bytes:
        try:
            answer = self._caller.ask(StoreAsked(request), ANSWER_SECONDS)
        except VersionError:
            raise
        except InputError as error:
            raise TimeoutError(str(error)) from None
        if isinstance(answer, StoreTold):
            return answer.answer
        why = answer.why if isinstance(answer, Refused) else "it answers something else"
        raise RunError(f"the head of the cluster refuses: {why}")


class Here:
    """Requests to a store in this very process."""

    def __init__(self, server: StoreServer, now: Callable[[], float]) -> None:
        self._server = server
        self._now = now

    def ask(self, request: bytes) -> bytes:
        return self._server.perform(request, self._now())


def check_version(access: Access) -> None:
    """Whether the others speak our version of the protocol: `VersionError` if not.

    With the head's store every agent finds out when it joins; with Redis nobody would, so somebody is asked. If nobody
    answers now, the agents are not there, and what they speak does not matter yet.
    """
    if access.store is None:
        return
    with Caller(access, make_codec(), role=Role.WORKER, patience=GREETING_SECONDS) as caller:
        try:
            caller.ask(FarmsAsked(), GREETING_SECONDS)
        except VersionError:
            raise
        except InputError:
            pass


def books_of(access: Access) -> ClusterBooks:
    """The books of a cluster, as its agents reach them."""
    if access.store is not None:
        return RedisBooks(access.store, access.cluster)
    return ServedBooks(ToHead(Caller(access, make_codec(), role=Role.WORKER)))
