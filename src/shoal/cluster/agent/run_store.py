"""Run stores of a cluster in Redis, at the head, or in this process; and submissions, which become runs in the
store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

import msgspec

from shoal.cluster.agent.messages import (
    RefusedReply,
    StoreReply,
    StoreRequest,
    SubmissionPiece,
    WireMessage,
    make_codec,
)
from shoal.cluster.agent.run_description import RunDescription
from shoal.cluster.agent.task_files import SOURCES, decode_sources
from shoal.cluster.call_protocol import CallServersRequest
from shoal.cluster.messaging.access import Access, Role
from shoal.cluster.messaging.caller import Caller, VersionError
from shoal.cluster.stores.redis import RedisDirectory, RedisLink, RedisStore, key_of
from shoal.cluster.stores.remote import RemoteDirectory, RemoteStore, Transport
from shoal.core.store.directory import Directory
from shoal.core.store.interface import Store
from shoal.core.store.packed_columns import ColumnsSummary, flaw, unpack_work
from shoal.core.work import Work
from shoal.errors import InputError, RunError

if TYPE_CHECKING:
    from shoal.cluster.stores.server import StoreServer


ANSWER_SECONDS = 10.0
GREETING_SECONDS = 2.0


class ClusterStores(Protocol):
    """The directory of nodes and runs, and the store of each run."""

    directory: Directory
    outlive_head: bool
    """Whether they are available without the head, so that every agent can reply to clients."""

    def bring(self, run: str, work: Work, pieces: Mapping[str, bytes], *, managed: bool) -> None:
        """Creates the store of a new run; `managed`: it records where files are."""

    def attach(self, run: str) -> tuple[Store, Work]:
        """Opens the store of a run and reads its work, for an agent that takes a share."""

    def open(self, run: str) -> Store:
        """Opens the store of a run, for reading or cancelling."""


class RedisStores:
    """Stores in Redis or Valkey; every run has a connection of its own."""

    outlive_head = True

    def __init__(self, url: str, cluster: str) -> None:
        self._addresses = url.split(",")
        self.directory: Directory = RedisDirectory(self._link(cluster), cluster)

    def _link(self, tag: str) -> RedisLink:
        return RedisLink(self._addresses, key_of(tag, "summary"))

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


class ServedStores:
    """Stores at the head, reached through a transport."""

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


class HeadTransport:
    """Sends requests to the head's store; the store client repeats a request without a reply."""

    def __init__(self, caller: Caller[WireMessage]) -> None:
        self._caller = caller

    def ask(self, request: bytes) -> bytes:
        try:
            answer = self._caller.ask(StoreRequest(request), ANSWER_SECONDS)
        except VersionError:
            raise
        except InputError as error:
            raise TimeoutError(str(error)) from None
        if isinstance(answer, StoreReply):
            return answer.answer
        why = answer.why if isinstance(answer, RefusedReply) else "unexpected reply"
        raise RunError(f"the head of the cluster refuses: {why}")


class LocalTransport:
    """Sends requests to a store in the same process."""

    def __init__(self, server: StoreServer, now: Callable[[], float]) -> None:
        self._server = server
        self._now = now

    def ask(self, request: bytes) -> bytes:
        return self._server.perform(request, self._now())


def check_version(access: Access) -> None:
    """Raises `VersionError` if the other agents use another version of the protocol.

    With the head's store every agent detects that when it joins. With Redis none would, so an agent is asked. If none
    replies now, no agent runs, and their version does not matter yet.
    """
    if access.store is None:
        return
    with Caller(access, make_codec(), role=Role.WORKER, patience=GREETING_SECONDS) as caller:
        try:
            caller.ask(CallServersRequest(), GREETING_SECONDS)
        except VersionError:
            raise
        except InputError:
            pass


def stores_of(access: Access) -> ClusterStores:
    """Returns the stores of a cluster, as its agents reach them."""
    if access.store is not None:
        return RedisStores(access.store, access.cluster)
    return ServedStores(HeadTransport(Caller(access, make_codec(), role=Role.WORKER)))


PATIENCE = 600.0
"""Seconds after which an incomplete submission is dropped."""
MOST_BYTES = 4 << 30
SUMMARY, TASK_SPECS = "summary", "deeds:"

_decode_summary = msgspec.msgpack.Decoder(ColumnsSummary).decode


class IncompleteError(InputError):
    """A piece that was submitted before is missing, for instance after a restart."""


class _Arriving:
    def __init__(self) -> None:
        self.pieces: dict[str, bytearray] = {}
        self.touched = 0.0
        self.bytes = 0


class Submissions:
    """Pieces that one agent has received of runs that are not complete yet."""

    def __init__(self) -> None:
        self._arriving: dict[str, _Arriving] = {}

    def take(self, piece: SubmissionPiece, now: float) -> None:
        """Takes a piece; one that arrives a second time changes nothing."""
        for run, arriving in list(self._arriving.items()):
            if now - arriving.touched > PATIENCE:
                del self._arriving[run]
        arriving = self._arriving.setdefault(piece.run, _Arriving())
        arriving.touched = now
        column = arriving.pieces.setdefault(piece.name, bytearray())
        if piece.at < len(column):
            return
        if piece.at > len(column):
            raise IncompleteError(
                f"a piece of {piece.name} of run {piece.run} is missing", remedy="submit the run again"
            )
        arriving.bytes += len(piece.data)
        if arriving.bytes > MOST_BYTES:
            del self._arriving[piece.run]
            raise InputError(f"the run {piece.run} is too large", remedy="split it into several")
        column += piece.data

    def under_way(self) -> list[str]:
        """Runs of which a piece has arrived."""
        return list(self._arriving)

    def bring(
        self, run: str, about: RunDescription, stores: ClusterStores, has_source: Callable[[str, int], bool]
    ) -> None:
        """Creates the run: all pieces have arrived."""
        arriving = self._arriving.pop(run, None)
        if arriving is None:
            raise IncompleteError(f"nothing of the run {run} has arrived", remedy="submit it again")
        pieces = {name: bytes(column) for name, column in arriving.pieces.items()}
        work = work_of(pieces)
        if len(work) != about.tasks:
            raise IncompleteError(f"the run {run} has arrived in parts only", remedy="submit it again")
        what = flaw(work)
        if what is not None:
            raise InputError(f"the submitted data is not a valid run: {what}")
        if about.managed:
            _look_for_sources(run, work, pieces, has_source)
        try:
            # an agent that received the run before may have ended before it listed the run in the directory
            stores.open(run).forget()
        except InputError:
            pass  # there is none, as expected
        kept = {name: data for name, data in pieces.items() if name.startswith(TASK_SPECS) or name == SOURCES}
        stores.bring(run, work, kept, managed=about.managed)


def _look_for_sources(run: str, work: Work, pieces: dict[str, bytes], has_source: Callable[[str, int], bool]) -> None:
    """Checks that every input file has arrived; otherwise tasks would wait for it for ever."""
    told = decode_sources(pieces.get(SOURCES, b"\x80"))
    made = set(work.outputs)
    for file in set(work.inputs) - made:
        if file not in told or not has_source(run, file):
            raise IncompleteError("an input file has not arrived", remedy="submit it again")


def work_of(pieces: dict[str, bytes]) -> Work:
    """Decodes the submitted work; `InputError` if it is invalid."""
    try:
        return unpack_work(_decode_summary(pieces[SUMMARY]), pieces)
    except KeyError:
        raise IncompleteError("the run has arrived in parts only", remedy="submit it again") from None
    except (ValueError, msgspec.MsgspecError) as error:
        raise InputError(f"the submitted data is not a valid run: {error}") from None
