"""Client side of Python calls on a cluster: sends bundles of calls to the agents' call servers and collects results.

The scheduler of the client sees the sum of the resources of all agents. Which agent gets a bundle is decided here: the
one with most free cores among those with room. A bundle for which no agent has room waits, and reserves one agent that
is large enough, so that narrow calls do not starve wide ones. Calls that are added to a place (a slot with the
resources of one call) go to the agent of that place, unless that agent is reserved: then they wait until the place or
the reservation is released. A call server gets calls for its cores and a few short calls in advance, so that none has a
backlog while another is idle.

Agents may join and leave: every few seconds the client asks one of the contacts in the access file for the list of
nodes. Calls on a lost agent are reported as lost, and the scheduler runs them elsewhere as their next attempt. A call
that no agent could hold for `NO_AGENT_SECONDS` fails.

The end of the module ends the tasks of a net whose client is gone (`end_farmed`, `end_by_command`).
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from shoal.cluster.call_protocol import (
    UNKNOWN,
    CallCancelled,
    CallsEnded,
    CallServersReply,
    CallServersRequest,
    CallServerStatus,
    CallsGiven,
    CallsRefusedReply,
    CallsReply,
    CallsRequest,
    CallStream,
    ClientItem,
    EndCallsCommand,
    FunctionDropped,
    FunctionGiven,
    ServerItem,
    SessionClosed,
    SessionOpened,
    decode_server_item,
    encode_item,
)
from shoal.cluster.messaging.access import Access, Role, access_path, read
from shoal.cluster.messaging.authenticator import Context, Socket, client_socket, connect
from shoal.cluster.messaging.caller import Caller
from shoal.cluster.messaging.envelope import BadFrame, Codec
from shoal.core.resources import Resources
from shoal.core.store.directory import NodeInfo
from shoal.errors import InputError
from shoal.execution.calls.messages import CallRequest, CallResult
from shoal.execution.calls.pickling import CallCancelledError, CallError
from shoal.execution.calls.protocol import function_payload
from shoal.execution.executor.call_pool import Watch, lost, not_run
from shoal.ledger.cluster_notes import NetClusterNote, drop_net_note, give_up_remedy, read_net_note
from shoal.ledger.workspace import LockHolder, Workspace

BEAT_SECONDS = 1.0
"""Seconds between two heartbeats to a call server."""
ASK_AGAIN_SECONDS = 5.0
"""Seconds between two requests to an agent that does not reply. They are rare, since unread requests fill its
socket."""
BROKEN_SECONDS = 2.0
"""Seconds after which a broken connection counts as lost; within them it may be re-established."""
SILENCE_SECONDS = 15.0
"""Seconds without a message after which an agent counts as lost: it may be busy, or the network interrupted."""

MOST_SOCKETS = 65_535
"""Maximum number of sockets; each connection takes three."""

Said = CallServersRequest | CallServersReply | CallsRequest | CallsReply | EndCallsCommand | CallsRefusedReply


def make_codec() -> Codec[Said]:
    """Returns the codec for the messages that clients with calls exchange with agents."""
    return Codec(Said)


class Wire:
    """The ZeroMQ context, codec and access of a client, shared by all its connections."""

    def __init__(self, context: Context, access: Access, sender: str) -> None:
        self.context, self.access, self.sender = context, access, sender
        context.set(zmq.MAX_SOCKETS, min(MOST_SOCKETS, int(context.get(zmq.SOCKET_LIMIT))))
        self.codec = make_codec()
        self._serial = 0

    def socket(self, *addresses: str) -> Socket:
        socket = client_socket(self.context, self.access, Role.CLIENT, self.codec.limit_bytes)
        # The application sends its own heartbeats. libzmq's heartbeat aborts the whole program (an assertion in
        # version 4.3.5) if the peer disappears while many received messages are unread, and this thread may wait
        # long for the interpreter lock.
        socket.setsockopt(zmq.HEARTBEAT_IVL, 0)
        for address in addresses:
            connect(socket, address)
        return socket

    def send(self, socket: Socket, message: Said) -> bool:
        """Sends a message; returns False if the socket's queue is full."""
        self._serial += 1
        frame = self.codec.frame(self.access.cluster, self.sender, self._serial, [self.codec.packed(message)])
        try:
            socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def received(self, socket: Socket) -> Iterator[Said]:
        """Yields all messages that have arrived; frames that cannot be decoded are dropped."""
        while True:
            try:
                frame = socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                envelope = self.codec.decode(frame)
            except BadFrame:
                continue
            if envelope.cluster == self.access.cluster:
                yield from envelope.messages


@dataclass(slots=True, eq=False)
class HeldPlace:
    """The resources that one place occupies on a call server until its last call has ended."""

    line: CallServerLine
    place: int
    needs: Resources
    left: int = 0


class CallServerLine:
    """The connection to one call server."""

    def __init__(self, wire: Wire, address: str, session: str, opening: SessionOpened, now: float) -> None:
        self.address = address
        self.session = session
        self.since = now
        self.status: CallServerStatus | None = None
        self.known: set[int] = set()
        """Numbers of the functions that the call server has received."""
        self.is_listed = True
        self.is_unknown = False
        self._wire = wire
        self._free: dict[str, int] = {}
        self._stream = CallStream()
        self._socket = wire.socket()
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._socket.connect(address)
        self.fd = int(self._socket.get(zmq.FD))
        self._sent_at = now
        self._asked_at: float | None = None
        self._broken_at: float | None = None
        self.put(opening)

    # ---- capacity
    # --------------------------------------------------------------------------------------------------

    @property
    def takes_calls(self) -> bool:
        status = self.status
        return status is not None and not status.refusal and not status.leaving and self.is_listed

    def could_hold(self, needs: Resources) -> bool:
        """Whether the call server is large enough for `needs` when it is empty."""
        return self.status is not None and not needs.lacking_in(self.status.resources)

    def has_room(self, needs: Resources) -> bool:
        for name, amount in needs.amounts:
            if amount > self._free.get(name, 0):
                return False
        return True

    def free_cores(self) -> int:
        return self._free.get("cores", 0)

    def hold(self, place: int, needs: Resources) -> HeldPlace:
        for name, amount in needs.amounts:
            self._free[name] -= amount
        return HeldPlace(self, place, needs)

    def release(self, held: HeldPlace) -> None:
        for name, amount in held.needs.amounts:
            self._free[name] += amount

    # ---- sending and receiving
    # -------------------------------------------------------------------------------------

    def put(self, item: ClientItem) -> None:
        self._stream.put(encode_item(item))

    def flush(self, now: float) -> bool:
        """Sends queued items; returns whether there may be messages that the poll no longer reports."""
        events = int(self._socket.get(zmq.EVENTS))
        while events & zmq.POLLOUT:
            first, parts = self._stream.next_run(now)
            if not parts and not self._stream.owes_confirmation():
                break
            self._say(CallsRequest(self.session, first, parts, self._stream.heard), now)
            events = int(self._socket.get(zmq.EVENTS))
        return bool(events & zmq.POLLIN)

    def _say(self, message: CallsRequest, now: float) -> None:
        if self._wire.send(self._socket, message):  # a message that was not sent is repeated later
            self._sent_at = now
            self._stream.said()

    def receive(self, now: float) -> list[ServerItem]:
        """Returns the items that have arrived."""
        items: list[ServerItem] = []
        for message in self._wire.received(self._socket):
            if not isinstance(message, CallsReply) or message.client != self.session:
                continue
            self._asked_at = self._broken_at = None
            if message.heard == UNKNOWN:
                self.is_unknown = True
                break
            self._stream.confirm(message.heard, now)
            items += [decode_server_item(item) for item in self._stream.take(message.first, message.parts)]
        return items

    def update_status(self, status: CallServerStatus) -> None:
        if self.status is None:
            self._free = dict(status.resources.amounts)
        self.status = status

    def beat(self, now: float) -> None:
        """Sends a heartbeat if nothing was sent lately; repeats unconfirmed parts."""
        while self._monitor.poll(0):
            recv_monitor_message(self._monitor)
            self._broken_at = now
        self._stream.repeat(now)
        pause = BEAT_SECONDS if self._asked_at is None else ASK_AGAIN_SECONDS
        if now - self._sent_at >= pause and int(self._socket.get(zmq.EVENTS)) & zmq.POLLOUT:
            self._say(CallsRequest(self.session, 0, [], self._stream.heard), now)
            if self._asked_at is None:
                self._asked_at = now

    def is_lost(self, now: float) -> bool:
        """Whether the call server counts as lost. Call it after everything that has arrived was received."""
        if self._broken_at is not None and now - self._broken_at >= BROKEN_SECONDS:
            return True
        return self.is_unknown or (self._asked_at is not None and now - self._asked_at >= SILENCE_SECONDS)

    def close(self, linger: float = 0.0) -> None:
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=int(1000 * linger))


NO_AGENT_SECONDS = 30.0
"""A call that no agent could hold fails after this time."""
TICK_SECONDS = 0.5
LOOK_SECONDS = 5.0
"""Seconds between two requests for the list of nodes; fewer while a bundle waits for an agent."""
URGENT_LOOK_SECONDS = 1.0
RENEWAL_SECONDS = 10.0
"""Seconds after which a connection without a reply is replaced: libzmq stops to reconnect after some failures."""
LINGER = 0.5


class Waiting(NamedTuple):
    """A bundle for which no agent has room."""

    calls: Sequence[CallRequest]
    place: int
    needs: Resources


def find_cluster(name_or_path: str) -> tuple[Access, dict[int, NodeInfo]]:
    """Returns a cluster and its nodes, by name or by the path of an access file; `InputError` if it does not reply."""
    access = read(access_path(name_or_path))
    with Caller(access, make_codec(), role=Role.CLIENT) as caller:
        answer = caller.ask(CallServersRequest())
    if isinstance(answer, CallsRefusedReply):
        raise InputError(f"the cluster refuses: {answer.why}")
    assert isinstance(answer, CallServersReply)
    if not answer.nodes:
        raise InputError(
            f"the cluster {access.name!r} has no nodes", remedy=f"add some: shoal cluster scale {access.name} 2"
        )
    return access, answer.nodes


def largest_of(nodes: Sequence[Resources]) -> Resources:
    """Returns the maximum of each resource over the nodes: the upper limit for one call."""
    most: dict[str, int] = {}
    for node in nodes:
        for name, amount in node.amounts:
            most[name] = max(amount, most.get(name, 0))
    return Resources.of(most)


class ClusterCallPool:
    """The call servers of a cluster as one pool of workers, for one client."""

    def __init__(
        self,
        access: Access,
        nodes: dict[int, NodeInfo],
        largest: Resources,
        client: str,
        on_open: Watch,
        on_close: Watch,
    ) -> None:
        """`client`: the name by which the agents know this client, without a dot."""
        self._name = access.name
        self._largest = largest
        self._on_open, self._on_close = on_open, on_close
        self._client = client
        self._opening = SessionOpened(
            (sys.version_info[0], sys.version_info[1]), os.getcwd(), [os.path.abspath(entry) for entry in sys.path]
        )
        self._wire = Wire(zmq.Context(), access, f"executor-{os.getpid()}")
        self._contact = self._wire.socket(*access.contacts)
        self._contact_fd = int(self._contact.get(zmq.FD))
        self._on_open(self._contact_fd)
        self._lines: dict[str, CallServerLine] = {}
        self._by_fd: dict[int, CallServerLine] = {}
        self._pending: dict[CallServerLine, None] = {}
        """Connections with items to send, or with messages that the poll may no longer report."""
        self._sessions = 0
        self._functions: dict[int, bytes] = {}
        self._registered = 0
        self._where: dict[int, tuple[int, HeldPlace]] = {}
        """By call that was sent: its attempt and its place."""
        self._held: dict[int, HeldPlace] = {}
        """The held places, by number."""
        self._waiting: deque[Waiting] = deque()
        self._reserved: CallServerLine | None = None
        """The agent that is reserved for the first waiting bundle."""
        self._unsent: list[CallResult] = []
        """Results of attempts that ended before they were sent to an agent."""
        self._capacity: Resources | None = None
        self._refusal = ""
        self._tick_at = 0.0
        self._look_at = time.monotonic() + LOOK_SECONDS
        self._changed_at = time.monotonic()
        """When the set of agents last changed."""
        self._see_nodes(nodes, time.monotonic())

    # ---- functions -----------------------------------------------------------------------------------------------

    def register(self, function: Callable[..., Any]) -> int:
        """Pickles the function and returns its number. Each call server gets the function with the first call of it."""
        pickled = function_payload(function)
        self._registered += 1
        self._functions[self._registered] = pickled
        return self._registered

    def release(self, function: int) -> None:
        """Forgets a function that has no calls in flight."""
        del self._functions[function]
        for line in self._lines.values():
            if function in line.known:
                line.known.discard(function)
                line.put(FunctionDropped(function))

    # ---- calls ---------------------------------------------------------------------------------------------------

    def put(self, calls: Sequence[CallRequest], place: int, needs: Resources) -> None:
        """Sends a bundle to the agent of its place, else to the one with most free cores; else the bundle waits."""
        held = self._held.get(place)
        if held is not None and held.line is not self._reserved:
            self._hand_over(held, calls)
            return
        self._waiting.append(Waiting(calls, place, needs))
        self._place_waiting()

    def _place_waiting(self) -> None:
        """Sends waiting bundles for which there is room, in order. The first that does not fit reserves an agent:
        without the reservation, a stream of narrow bundles would keep every agent too full for a wide one."""
        accepting = [line for line in self._lines.values() if line.takes_calls]
        reserved: CallServerLine | None = None
        for _ in range(len(self._waiting) if accepting else 0):
            waiting = self._waiting.popleft()
            held = self._held.get(waiting.place)
            if held is not None:
                if held.line is reserved:
                    self._waiting.append(waiting)
                else:
                    self._hand_over(held, waiting.calls)
                continue
            able = [line for line in accepting if line is not reserved and line.has_room(waiting.needs)]
            if able:
                line = max(able, key=CallServerLine.free_cores)
                self._held[waiting.place] = line.hold(waiting.place, waiting.needs)
                self._hand_over(self._held[waiting.place], waiting.calls)
                continue
            if reserved is None:
                large = [line for line in accepting if line.could_hold(waiting.needs)]
                reserved = max(large, key=CallServerLine.free_cores, default=None)
            self._waiting.append(waiting)
        self._reserved = reserved

    def _hand_over(self, held: HeldPlace, calls: Sequence[CallRequest]) -> None:
        line = held.line
        for call in calls:
            number = call.function
            if number not in line.known:
                line.known.add(number)
                line.put(FunctionGiven(number, self._functions[number]))
            self._where[call.task] = (call.attempt, held)
        held.left += len(calls)
        line.put(CallsGiven(held.place, held.needs, list(calls)))
        self._pending[line] = None  # sent together with everything else that this turn queues for the same agent

    def kill(self, task: int, attempt: int) -> bool:
        """Cancels a call; its result follows."""
        known = self._where.get(task)
        if known is not None and known[0] == attempt:
            line = known[1].line
            line.put(CallCancelled(task, attempt))
            self._pending[line] = None
            return True
        for at, waiting in enumerate(self._waiting):
            rest = [call for call in waiting.calls if call.task != task]
            if len(rest) < len(waiting.calls):
                if rest:
                    self._waiting[at] = waiting._replace(calls=rest)
                else:
                    del self._waiting[at]
                self._unsent.append(
                    not_run(task, attempt, CallCancelledError("the call was cancelled before it began"))
                )
                return True
        return False

    # ---- the loop ------------------------------------------------------------------------------------------------

    def collect(self, descriptor: int) -> list[CallResult]:
        """Returns the results that have arrived on a connection."""
        now = time.monotonic()
        if descriptor == self._contact_fd:
            self._receive_nodes(now)
            return []
        line = self._by_fd.get(descriptor)
        return self._hear(line, now) if line is not None else []

    def _hear(self, line: CallServerLine, now: float) -> list[CallResult]:
        results = self._take(line.receive(now), line, now)
        self._flush(line, now)
        if results and self._waiting:
            self._place_waiting()
        return results

    def _flush(self, line: CallServerLine, now: float) -> None:
        if line.flush(now):
            self._pending[line] = None

    def _take(self, items: list[ServerItem], line: CallServerLine, now: float) -> list[CallResult]:
        found: list[CallResult] = []
        for item in items:
            if isinstance(item, CallServerStatus):
                line.update_status(item)
                self._refusal = item.refusal or self._refusal
                self._agents_changed(now)
                continue
            assert isinstance(item, CallsEnded)
            for result in item.results:
                known = self._where.get(result.task)
                if known is None or known[0] != result.attempt:
                    continue
                del self._where[result.task]
                held = known[1]
                held.left -= 1
                if not held.left:
                    held.line.release(held)
                    del self._held[held.place]
                found.append(result)
        return found

    def next_deadline(self) -> float | None:
        """When to call `enforce`."""
        return 0.0 if self._pending or self._unsent else self._tick_at

    def enforce(self, now: float) -> list[CallResult]:
        """Receives what the poll does not report, sends heartbeats, and detects lost agents."""
        results, self._unsent = self._unsent, []
        pending, self._pending = self._pending, {}
        for line in pending:
            results += self._hear(line, now)
        if now < self._tick_at:
            return results
        self._tick_at = now + TICK_SECONDS
        for line in list(self._lines.values()):
            results += self._hear(line, now)
            line.beat(now)
            self._flush(line, now)
            if line.is_lost(now):
                results += self._lose(line, now)
        self._receive_nodes(now)
        if now >= self._look_at:
            is_urgent = self._waiting or not any(line.takes_calls for line in self._lines.values())
            self._look_at = now + (URGENT_LOOK_SECONDS if is_urgent else LOOK_SECONDS)
            self._wire.send(self._contact, CallServersRequest())
        return results + self._given_up(now)

    # ---- agents --------------------------------------------------------------------------------------------------

    def _receive_nodes(self, now: float) -> None:
        for message in self._wire.received(self._contact):
            if isinstance(message, CallServersReply):
                self._see_nodes(message.nodes, now)

    def _see_nodes(self, nodes: dict[int, NodeInfo], now: float) -> None:
        """Connects to new agents; disconnects from agents that have left and hold no calls of this client."""
        listed = {node.address: None for node in nodes.values()}
        busy = {held.line for held in self._held.values()}
        for line in list(self._lines.values()):
            was_listed, line.is_listed = line.is_listed, line.address in listed
            is_stuck = line.status is None and now - line.since >= RENEWAL_SECONDS
            if line not in busy and (is_stuck or not line.is_listed):
                self._drop(line)
                self._agents_changed(now)
            elif line.is_listed != was_listed:
                self._agents_changed(now)
        for address in listed:
            if address not in self._lines:
                self._sessions += 1
                line = CallServerLine(self._wire, address, f"{self._client}.{self._sessions}", self._opening, now)
                self._lines[address] = self._by_fd[line.fd] = line
                self._on_open(line.fd)
                self._flush(line, now)

    def _drop(self, line: CallServerLine, linger: float = 0.0) -> None:
        del self._lines[line.address], self._by_fd[line.fd]
        self._pending.pop(line, None)
        self._on_close(line.fd)
        line.close(linger)

    def _lose(self, line: CallServerLine, now: float) -> list[CallResult]:
        """Reports the calls of a lost agent as lost; the scheduler starts them elsewhere as new attempts."""
        self._drop(line)
        when = time.time()
        tasks = [(task, attempt) for task, (attempt, held) in self._where.items() if held.line is line]
        for task, _ in tasks:
            del self._where[task]
        for place in [place for place, held in self._held.items() if held.line is line]:
            del self._held[place]
        self._agents_changed(now)
        self._look_at = now + URGENT_LOOK_SECONDS
        return [lost(task, attempt, when) for task, attempt in tasks]

    def _agents_changed(self, now: float) -> None:
        """Recomputes the capacity for the scheduler: the sum over all agents, but at least what one call may
        request."""
        self._changed_at = now
        total: dict[str, int] = {}
        for line in self._lines.values():
            if line.takes_calls and line.status is not None:
                for name, amount in line.status.resources.amounts:
                    total[name] = total.get(name, 0) + amount
        self._capacity = largest_of([Resources.of(total), self._largest])
        self._place_waiting()

    def take_capacity(self) -> Resources | None:
        """Returns the capacity of all agents if it has changed."""
        capacity, self._capacity = self._capacity, None
        return capacity

    def _given_up(self, now: float) -> list[CallResult]:
        """Fails calls that no agent could hold for too long."""
        if not self._waiting or now - self._changed_at < NO_AGENT_SECONDS:
            return []
        accepting = [line for line in self._lines.values() if line.takes_calls]
        waiting, self._waiting = self._waiting, deque()
        hopeless: list[Waiting] = []
        for each in waiting:
            is_possible = any(line.could_hold(each.needs) for line in accepting)
            (self._waiting if is_possible else hopeless).append(each)
        why = f"no agent of the cluster {self._name!r} could run the call for {NO_AGENT_SECONDS:g} s"
        error = CallError(f"{why} ({self._refusal})" if self._refusal and not accepting else why)
        return [not_run(call.task, call.attempt, error) for each in hopeless for call in each.calls]

    def close(self, grace: float) -> None:
        """Closes all sessions; the call servers end what they still run for this client."""
        now = time.monotonic()
        for line in list(self._lines.values()):
            if line.status is not None:
                line.put(SessionClosed())
                line.flush(now)
            self._drop(line, LINGER)
        self._on_close(self._contact_fd)
        self._contact.close(linger=0)
        self._wire.context.term()


PATIENCE_SECONDS = 40.0
"""Longer than a cluster lists an agent that was killed."""
ANSWER_SECONDS = 15.0
CONNECT_SECONDS = 2.0
PAUSE_SECONDS = 0.2


def end_farmed(workspace: Workspace) -> str:
    """Ends the tasks of a net whose client is gone; returns the name of the cluster, or an empty string if there are
    none.

    The caller holds the lock. Raises `InputError` and keeps the note if it cannot be confirmed that the tasks have
    ended.
    """
    note = read_net_note(workspace)
    if note is None:
        return ""
    try:
        _end_calls(note)
    except InputError as error:
        name = os.path.basename(workspace.workflow)
        where = f"the cluster {note.cluster!r}, which may still run tasks of {name}, cannot be asked to end them"
        remedy = f"try again when it answers; if it is gone for good, {give_up_remedy(workspace)}"
        raise InputError(f"{where}: {error.message}", remedy=remedy) from None
    drop_net_note(workspace)
    return note.cluster


def end_by_command(workspace: Workspace, *, forget: bool) -> str:
    """Like `end_farmed`, as a command of its own; `forget` gives up tasks that cannot be ended."""
    workspace.acquire(LockHolder(os.getpid(), os.uname().nodename, "", time.time()), ending=True)
    try:
        return end_farmed(workspace)
    except InputError:
        if not forget:
            raise
        drop_net_note(workspace)
        return ""
    finally:
        workspace.release()


def _end_calls(note: NetClusterNote) -> None:
    if find_spec("zmq") is None:
        raise InputError("clusters need pyzmq, which is not installed", remedy="pip install 'shoal[cluster]'")
    from shoal.cluster.call_protocol import UNKNOWN, CallServersReply, CallServersRequest, CallsReply, EndCallsCommand
    from shoal.cluster.messaging.access import Role, access_path, read
    from shoal.cluster.messaging.caller import Caller

    access = read(access_path(note.cluster))

    def has_ended(address: str) -> bool:
        only = msgspec.structs.replace(access, contacts=[address], spare=[])
        try:
            with Caller(only, make_codec(), role=Role.CLIENT, patience=CONNECT_SECONDS) as caller:
                answer = caller.ask(EndCallsCommand(note.client), ANSWER_SECONDS)
        except InputError:
            return False
        return isinstance(answer, CallsReply) and answer.heard == UNKNOWN

    deadline = time.monotonic() + PATIENCE_SECONDS
    ended: set[str] = set()
    with Caller(access, make_codec(), role=Role.CLIENT) as caller:
        while True:
            status = caller.ask(CallServersRequest())
            if not isinstance(status, CallServersReply):
                raise InputError("it does not return its list of nodes")
            listed = {node.address: node.name for node in status.nodes.values()}
            ended |= {each for each in dict.fromkeys([*listed, *note.agents]) if each not in ended and has_ended(each)}
            silent = [name for address, name in listed.items() if address not in ended]
            if not silent:
                return
            if time.monotonic() >= deadline:
                raise InputError(f"its node {silent[0]} does not answer")
            time.sleep(PAUSE_SECONDS)
