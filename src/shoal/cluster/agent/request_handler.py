"""Handles requests of clients and viewers on an agent, with replies from the cluster's run stores.

Every agent has a request handler, and so has the head: clients may ask any of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from shoal.cluster.agent.explain_source import explain_from_store, served_first, standings, whole_run
from shoal.cluster.agent.messages import (
    MAY_ASK,
    NO_RUN,
    CancelCommand,
    ClusterReply,
    ClusterRequest,
    ClusterRunFacts,
    DoneReply,
    FilesReply,
    FilesRequest,
    ForgetCommand,
    LogReply,
    LogRequest,
    RefusedReply,
    RunExplainRequest,
    SourcePart,
    StagedFileFacts,
    StopCommand,
    SubmissionPiece,
    SubmitCommand,
    TaskReply,
    TaskRequest,
    TaskStatesRequest,
    WireMessage,
    read_note,
)
from shoal.cluster.agent.node_cache import NodeCache
from shoal.cluster.agent.run_description import ONE, LogEntry, RunDescription, decode_about, encode
from shoal.cluster.agent.run_store import ClusterStores, IncompleteError, Submissions
from shoal.cluster.agent.task_files import SOURCE, object_name
from shoal.cluster.call_protocol import CallServersReply, CallServersRequest, CallsRequest, EndCallsCommand
from shoal.cluster.memory_access import MemoryReply, MemoryRequest
from shoal.cluster.messaging.access import Role
from shoal.cluster.messaging.envelope import BadFrame
from shoal.cluster.messaging.messenger import Messenger, Received, Route
from shoal.core.distribution import ALL
from shoal.core.explain.answer import Answer, RunAnswer
from shoal.core.policies.order import ORDERS
from shoal.core.policies.stealing import policy_named
from shoal.core.resources import parse_label
from shoal.core.store.directory import Directory, RunInfo
from shoal.core.store.interface import GoneError, Store, UnknownRunError
from shoal.data.memory.protocol import MemoryNode
from shoal.errors import InputError, ShoalError

if TYPE_CHECKING:
    from shoal.cluster.agent.call_server import CallServer

MOST_ENTRIES = 2_000
MOST_ENTRY_BYTES = 4 << 20
CANCELLED_AT_ONCE = 5_000
LOST = (GoneError, UnknownRunError)
"""Errors of a store that does not have the run."""
MOST_READ = 16
"""Maximum number of run stores that a handler keeps open."""


class RequestHandlerOwner(Protocol):
    """The agent as seen by its request handler."""

    def hear(self, message: WireMessage) -> WireMessage | None:
        """Takes a message of another agent."""

    def runs_changed(self) -> None:
        """A run was submitted or forgotten."""

    def unwanted(self, run: str, tasks: list[int]) -> None:
        """Tasks were cancelled that a scheduler may have."""

    def running_of(self, run: str) -> int:
        """Returns how many tasks of a run run here."""

    def explain(self, run: str, task: int) -> Answer | None:
        """Explains why a task does not run, if it is here."""

    def explain_run(self, run: str) -> RunAnswer | None:
        """Explains which tasks of a run are here, and why they wait."""

    def leave(self, *, at_once: bool) -> None:
        """Stops the agent."""


class RequestHandler:
    """Receives messages, checks that the sender's role permits them, and replies."""

    def __init__(
        self,
        owner: RequestHandlerOwner,
        messenger: Messenger[WireMessage],
        stores: ClusterStores,
        node_cache: NodeCache,
        *,
        keeps_sources: bool,
    ) -> None:
        """`keeps_sources`: clients' input files are kept in this node's cache, for all agents."""
        self.owner, self.messenger, self.stores, self.node_cache = owner, messenger, stores, node_cache
        self._keeps_sources = keeps_sources
        self._submissions = Submissions()
        self.call_server: CallServer | None = None
        """Runs the Python calls of clients; the head has none."""
        self._read: dict[str, Store] = {}
        """Run stores that were opened for requests, the latest last; each may be a connection."""

    def serve(self, now: float) -> None:
        """Handles all messages that have arrived."""
        for received in self.messenger.receive():
            self._take(received, now)

    def _take(self, received: Received[WireMessage], now: float) -> None:
        may = MAY_ASK[received.role]
        for message in received.messages:
            if type(message) in may:
                answer = self._answered(message, received.route, now)
            elif type(message) in MAY_ASK[Role.WORKER]:
                answer = RefusedReply(f"a {received.role} may not send this request")
            else:
                continue  # a reply to a request that this agent has not sent
            if answer is not None:
                try:
                    self.messenger.answer(received.route, answer)
                except BadFrame as error:
                    self.messenger.answer(received.route, RefusedReply(str(error)))

    def _answered(self, message: WireMessage, route: Route, now: float) -> WireMessage | None:
        try:
            if isinstance(message, CallsRequest) and self.call_server is not None:
                return self.call_server.hear(message, route)
            if isinstance(message, EndCallsCommand) and self.call_server is not None:
                return self.call_server.end_client(message.client)
            return self._answer(message, now)
        except (ShoalError, msgspec.MsgspecError) as error:
            return RefusedReply(str(error), isinstance(error, IncompleteError))
        # a full disk, or a message that no client of Shoal sends
        except (OSError, ValueError, LookupError, TypeError) as error:
            return RefusedReply(f"{type(error).__name__}: {error}")

    def _answer(self, message: WireMessage, now: float) -> WireMessage | None:
        match message:
            case SubmissionPiece():
                self._submissions.take(message, now)
            case SubmitCommand(run, about):
                if self._info_of(run) is None:  # the request may have been sent twice
                    self._bring(run, decode_about(about))
            case SourcePart(run, file, at, data, size, checksum, executable):
                self.node_cache.take(object_name(run, file, SOURCE), at, data, size, checksum, executable)
            case FilesRequest(run, files):
                return self._files(run, files)
            case LogRequest(run, start):
                return self._entries(run, start)
            case TaskRequest(run, task):
                return self._why(run, task)
            case TaskStatesRequest(run, tasks):
                return standings(self._known(run)[0], tasks)
            case RunExplainRequest(run):
                gone = self.stores.directory.expired()
                first = served_first(self.stores.directory.runs(), run)
                return whole_run(self._known(run)[0], lambda: self.owner.explain_run(run), gone, first)
            case CancelCommand(run, tasks):
                self._cancel(run, tasks)
            case ForgetCommand(run):
                self._forget(run)
            case ClusterRequest():
                directory = self.stores.directory
                notes = {number: read_note(note) for number, note in directory.notes().items()}
                runs = [self._told(run) for run in directory.runs()]
                return ClusterReply(directory.nodes(), runs, notes, self.stores.outlive_head)
            case CallServersRequest():
                return CallServersReply(self.stores.directory.nodes())
            case MemoryRequest():
                return MemoryReply(memory_places(self.stores.directory), self.node_cache.token)
            case StopCommand(at_once):
                self.owner.leave(at_once=at_once)
            case _:
                return self.owner.hear(message)
        return DoneReply()

    def _bring(self, run: str, about: RunDescription) -> None:
        if about.managed:
            if not self._keeps_sources:
                raise InputError(
                    "this agent does not keep clients' files", remedy="send them to the head of the cluster"
                )
            about = msgspec.structs.replace(about, origin=self.node_cache.address)
        if about.order not in ORDERS:
            raise InputError(f"there is no order {about.order!r}")
        policy_named(about.policy)
        if about.to not in (ONE, ALL):
            parse_label(about.to, "where the first tasks go")
        self._submissions.bring(run, about, self.stores, self._has_source)
        self.stores.directory.submit(run, encode(about))
        self.owner.runs_changed()

    def _has_source(self, run: str, file: int) -> bool:
        return self.node_cache.cache.has(object_name(run, file, SOURCE))

    def _files(self, run: str, files: list[int]) -> FilesReply:
        """Returns the locations of files, for a client that downloads them."""
        store, nodes = self._store_of(run), self.stores.directory.nodes()
        told = []
        for file in files:
            made = store.about_of(file)
            places = [nodes[node].data for node in store.copies(file) if node in nodes]
            told.append(StagedFileFacts(made or b"", places))
        return FilesReply(told, self.node_cache.token, self.node_cache.encrypted)

    def _store_of(self, run: str) -> Store:
        """Returns a store for reading a run, separate from that of a share."""
        store = self._read.pop(run, None) or self.stores.open(run)
        self._read[run] = store
        if len(self._read) > MOST_READ:
            self._read.pop(next(iter(self._read))).close()
        return store

    def _info_of(self, run: str) -> RunInfo | None:
        return next((each for each in self.stores.directory.runs() if each.run == run), None)

    def _entries(self, run: str, start: int) -> LogReply:
        info = self._info_of(run)
        if info is None:
            return LogReply(start, [], 0, "unknown")
        try:
            store = self._store_of(run)
            left = store.left  # both before the log: when nothing is left, the log that is read afterwards is complete
            found = store.log(start, MOST_ENTRIES)
            if not found and not left:
                left = store.left  # raises if the store lost the run in between: then the log is not complete, but gone
        except LOST:
            self._drop(run)
            return LogReply(start, [], 0, "unknown")
        size = 0
        for at, entry in enumerate(found):
            size += len(entry)
            if size > MOST_ENTRY_BYTES:
                found = found[: at + 1]
                break
        return LogReply(start, found, left, info.state, self.owner.running_of(run))

    def _told(self, run: RunInfo) -> ClusterRunFacts:
        about = decode_about(run.about)
        try:
            store = self._store_of(run.run)
            return ClusterRunFacts(run.run, about.name, run.state, about.tasks, store.left, store.ready_count)
        except LOST:  # an agent soon removes it from the list
            self._drop(run.run)
            return ClusterRunFacts(run.run, about.name, "lost", about.tasks, about.tasks)

    def _known(self, run: str) -> tuple[Store, RunInfo]:
        """Returns the store and the state of a run; raises an error if there is none."""
        info = self._info_of(run)
        if info is None:
            raise InputError(NO_RUN)
        return self._store_of(run), info

    def _why(self, run: str, task: int) -> TaskReply:
        """Explains why a task does not run, as far as this agent knows."""
        store, info = self._known(run)
        directory = self.stores.directory
        gone = directory.expired()
        nodes = {number: node for number, node in directory.nodes().items() if number not in gone}
        return explain_from_store(
            store, info, nodes, task, self.owner.explain(run, task), served_first(directory.runs(), run)
        )

    def _cancel(self, run: str, tasks: list[int]) -> None:
        info = self._info_of(run)
        if info is None:
            return
        store = self._store_of(run)
        held: list[int] = []
        for some in batches(tasks or range(decode_about(info.about).tasks), CANCELLED_AT_ONCE):
            held += store.cancel(some)
        self.owner.unwanted(run, held)
        if not store.left:
            self.stores.directory.end(run, "cancelled")
            self.owner.runs_changed()

    def end_given_up(self, run: str, name: str, why: str) -> None:
        """Ends a run that its user has given up; nodes drop their shares when they notice."""
        try:
            self._store_of(run).note(encode(LogEntry(-1, 0, "note", "", name, message=why)))
        except LOST:
            self._drop(run)
        self.stores.directory.end(run, "cancelled")
        self.owner.runs_changed()

    def _forget(self, run: str) -> None:
        info = self._info_of(run)
        if info is not None:
            try:
                self._store_of(run).forget()
            except LOST:
                pass
            self.stores.directory.forget(run)
            listed = [each.run for each in self.stores.directory.runs()]
            self.node_cache.keep_only([*listed, *self._submissions.under_way()])
            self.owner.runs_changed()
        self._drop(run)

    def _drop(self, run: str) -> None:
        """Closes the store of a run."""
        store = self._read.pop(run, None)
        if store is not None:
            store.close()


def batches(items: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """Splits a sequence into slices of at most `size` items."""
    for at in range(0, len(items), size):
        yield items[at : at + size]


def memory_places(directory: Directory) -> dict[int, MemoryNode]:
    """Returns, by node number, the memory services that nodes have reported."""
    notes = {number: read_note(note) for number, note in directory.notes().items()}
    return {
        number: MemoryNode(node.name, notes[number].memory, not notes[number].memory_plain)
        for number, node in directory.nodes().items()
        if number in notes and notes[number].memory
    }
