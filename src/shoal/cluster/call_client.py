"""The crew of a cluster: bundles of calls go to the farms of its agents, spread by free cores.

Theory of operation. The broker counts with everything that all agents have together; which agent gets a bundle is
decided here: the one with most free cores among those with room. A bundle for which no agent has room waits, and keeps
one agent that could hold it from getting anything else, so that wide calls are not starved by narrow ones. What is
added to a place goes where that place is, unless that agent is kept: then it waits until the place is given up there,
or the agent is kept no more. Each farm is given no more than it has cores, and short calls a little ahead (the broker's
refilled lanes), so none has a backlog while another idles.

Agents come and go: one of the contacts in the access file is asked every few seconds who is there. The calls of an
agent that is lost come back as lost, and the broker has them run elsewhere as their next attempt. If for
`NOBODY_SECONDS` no agent could hold a call, it fails.
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
    EndCallsCommand,
    FromFarm,
    FunctionDropped,
    FunctionGiven,
    SessionClosed,
    SessionOpened,
    ToFarm,
    decode_from_farm,
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
"""So often we say that we live, and ask the same."""
ASK_AGAIN_SECONDS = 5.0
"""An agent that does not answer is asked seldom: what it has not read must not fill its socket."""
BROKEN_SECONDS = 2.0
"""A connection that broke may come back within this time."""
SILENCE_SECONDS = 15.0
"""An agent may take so long to answer: it may be busy, or the network away for a while."""

MOST_SOCKETS = 65_535
"""Each line takes three."""

Said = CallServersRequest | CallServersReply | CallsRequest | CallsReply | EndCallsCommand | CallsRefusedReply


def make_codec() -> Codec[Said]:
    """That part of what agents say which clients with calls need."""
    return Codec(Said)


class Wire:
    """What all lines of a client share: how frames are made, and read from a socket."""

    def __init__(self, context: Context, access: Access, sender: str) -> None:
        self.context, self.access, self.sender = context, access, sender
        context.set(zmq.MAX_SOCKETS, min(MOST_SOCKETS, int(context.get(zmq.SOCKET_LIMIT))))
        self.codec = make_codec()
        self._serial = 0

    def socket(self, *addresses: str) -> Socket:
        socket = client_socket(self.context, self.access, Role.CLIENT, self.codec.limit_bytes)
        # We beat ourselves. libzmq's own heartbeat ends the whole program (an assertion in version 4.3.5) if the other
        # side goes while so much has arrived that was not read; our thread may wait for the interpreter lock for long.
        socket.setsockopt(zmq.HEARTBEAT_IVL, 0)
        for address in addresses:
            connect(socket, address)
        return socket

    def send(self, socket: Socket, message: Said) -> bool:
        """Whether it could be handed over."""
        self._serial += 1
        frame = self.codec.frame(self.access.cluster, self.sender, self._serial, [self.codec.packed(message)])
        try:
            socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def received(self, socket: Socket) -> Iterator[Said]:
        """Everything that has arrived; what is not understood is as good as lost."""
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
    """What one place holds on a line: resources, until its last call is over."""

    line: CallServerLine
    place: int
    needs: Resources
    left: int = 0


class CallServerLine:
    """The connection to one farm."""

    def __init__(self, wire: Wire, address: str, session: str, opening: SessionOpened, now: float) -> None:
        self.address = address
        self.session = session
        self.since = now
        self.told: CallServerStatus | None = None
        self.known: set[int] = set()
        """Functions that the farm has been given."""
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

    # ---- what there is, and what is taken ------------------------------------------------------------------------

    @property
    def takes_calls(self) -> bool:
        told = self.told
        return told is not None and not told.refusal and not told.leaving and self.is_listed

    def could_hold(self, needs: Resources) -> bool:
        """Whether there would be room if nothing else were there."""
        return self.told is not None and not needs.lacking_in(self.told.resources)

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

    def let_go(self, held: HeldPlace) -> None:
        for name, amount in held.needs.amounts:
            self._free[name] += amount

    # ---- talking -------------------------------------------------------------------------------------------------

    def put(self, item: ToFarm) -> None:
        self._stream.put(encode_item(item))

    def flush(self, now: float) -> bool:
        """Sends what can be sent; whether there is something to be read, which the poll might not tell any more."""
        events = int(self._socket.get(zmq.EVENTS))
        while events & zmq.POLLOUT:
            first, parts = self._stream.next_run(now)
            if not parts and not self._stream.owes_word():
                break
            self._say(CallsRequest(self.session, first, parts, self._stream.heard), now)
            events = int(self._socket.get(zmq.EVENTS))
        return bool(events & zmq.POLLIN)

    def _say(self, message: CallsRequest, now: float) -> None:
        if self._wire.send(self._socket, message):  # if not: what is not heard of is repeated
            self._sent_at = now
            self._stream.said()

    def receive(self, now: float) -> list[FromFarm]:
        """The items that have arrived."""
        items: list[FromFarm] = []
        for message in self._wire.received(self._socket):
            if not isinstance(message, CallsReply) or message.client != self.session:
                continue
            self._asked_at = self._broken_at = None
            if message.heard == UNKNOWN:
                self.is_unknown = True
                break
            self._stream.confirm(message.heard, now)
            items += [decode_from_farm(item) for item in self._stream.take(message.first, message.parts)]
        return items

    def hear_told(self, told: CallServerStatus) -> None:
        if self.told is None:
            self._free = dict(told.resources.amounts)
        self.told = told

    def beat(self, now: float) -> None:
        """Says that we live if nothing was said lately; repeats what was lost."""
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
        """Whether nothing more is to be expected; to be asked after everything that has arrived was received."""
        if self._broken_at is not None and now - self._broken_at >= BROKEN_SECONDS:
            return True
        return self.is_unknown or (self._asked_at is not None and now - self._asked_at >= SILENCE_SECONDS)

    def close(self, linger: float = 0.0) -> None:
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=int(1000 * linger))


NOBODY_SECONDS = 30.0
"""A call that no agent could hold fails after this time."""
TICK_SECONDS = 0.5
LOOK_SECONDS = 5.0
"""How often we ask who is there; more often while something waits for an agent."""
ANXIOUS_SECONDS = 1.0
RENEWAL_SECONDS = 10.0
"""A line over which nobody answers is made anew: libzmq gives up for good after some failures."""
LINGER = 0.5


class Waiting(NamedTuple):
    """A bundle for which no agent has room."""

    calls: Sequence[CallRequest]
    place: int
    needs: Resources


def find_cluster(name_or_path: str) -> tuple[Access, dict[int, NodeInfo]]:
    """A cluster and its nodes, by name or by the path of an access file; `InputError` if it cannot be asked."""
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
    """Of each resource what the node with the most of it has: no call can ask for more."""
    most: dict[str, int] = {}
    for node in nodes:
        for name, amount in node.amounts:
            most[name] = max(amount, most.get(name, 0))
    return Resources.of(most)


class ClusterCallPool:
    """All farms of a cluster, seen from one client."""

    def __init__(
        self,
        access: Access,
        nodes: dict[int, NodeInfo],
        largest: Resources,
        client: str,
        on_open: Watch,
        on_close: Watch,
    ) -> None:
        """`client` is the name under which the agents know us, without a dot."""
        self._name = access.name
        self._largest = largest
        self._on_open, self._on_close = on_open, on_close
        self._client = client
        self._opening = SessionOpened(
            (sys.version_info[0], sys.version_info[1]), os.getcwd(), [os.path.abspath(entry) for entry in sys.path]
        )
        self._wire = Wire(zmq.Context(), access, f"executor-{os.getpid()}")
        self._desk = self._wire.socket(*access.contacts)
        self._desk_fd = int(self._desk.get(zmq.FD))
        self._on_open(self._desk_fd)
        self._lines: dict[str, CallServerLine] = {}
        self._by_fd: dict[int, CallServerLine] = {}
        self._restless: dict[CallServerLine, None] = {}
        """Lines with something to be sent, or to be read that the poll might not tell of."""
        self._sessions = 0
        self._functions: dict[int, bytes] = {}
        self._registered = 0
        self._where: dict[int, tuple[int, HeldPlace]] = {}
        """For each call on a line: its attempt, and what it is part of."""
        self._held: dict[int, HeldPlace] = {}
        """By place."""
        self._waiting: deque[Waiting] = deque()
        self._kept: CallServerLine | None = None
        """Gets nothing but the first of those that wait."""
        self._unsent: list[CallResult] = []
        """Attempts that ended before they reached an agent."""
        self._capacity: Resources | None = None
        self._refusal = ""
        self._tick_at = 0.0
        self._look_at = time.monotonic() + LOOK_SECONDS
        self._changed_at = time.monotonic()
        """When the agents that there are became others."""
        self._see_nodes(nodes, time.monotonic())

    # ---- functions -----------------------------------------------------------------------------------------------

    def register(self, function: Callable[..., Any]) -> int:
        """A number for the function, which is pickled now; each farm is given it with the first call of it."""
        pickled = function_payload(function)
        self._registered += 1
        self._functions[self._registered] = pickled
        return self._registered

    def release(self, function: int) -> None:
        """Forget a function of which no call is under way."""
        del self._functions[function]
        for line in self._lines.values():
            if function in line.known:
                line.known.discard(function)
                line.put(FunctionDropped(function))

    # ---- calls ---------------------------------------------------------------------------------------------------

    def put(self, calls: Sequence[CallRequest], place: int, needs: Resources) -> None:
        """Give a bundle to the agent of its place, else to the one with most free cores, else keep it for a while."""
        held = self._held.get(place)
        if held is not None and held.line is not self._kept:
            self._hand_over(held, calls)
            return
        self._waiting.append(Waiting(calls, place, needs))
        self._place_waiting()

    def _place_waiting(self) -> None:
        """Hands over what there is room for, in order; the first that must wait keeps an agent for itself."""
        takers = [line for line in self._lines.values() if line.takes_calls]
        kept: CallServerLine | None = None
        for _ in range(len(self._waiting) if takers else 0):
            waiting = self._waiting.popleft()
            held = self._held.get(waiting.place)
            if held is not None:
                if held.line is kept:
                    self._waiting.append(waiting)
                else:
                    self._hand_over(held, waiting.calls)
                continue
            able = [line for line in takers if line is not kept and line.has_room(waiting.needs)]
            if able:
                line = max(able, key=CallServerLine.free_cores)
                self._held[waiting.place] = line.hold(waiting.place, waiting.needs)
                self._hand_over(self._held[waiting.place], waiting.calls)
                continue
            if kept is None:
                large = [line for line in takers if line.could_hold(waiting.needs)]
                kept = max(large, key=CallServerLine.free_cores, default=None)
            self._waiting.append(waiting)
        self._kept = kept

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
        self._restless[line] = None  # sent with whatever else this turn has for the same agent

    def kill(self, task: int, attempt: int) -> bool:
        """Cancel a call; its result follows."""
        known = self._where.get(task)
        if known is not None and known[0] == attempt:
            line = known[1].line
            line.put(CallCancelled(task, attempt))
            self._restless[line] = None
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
        """What has arrived over a line."""
        now = time.monotonic()
        if descriptor == self._desk_fd:
            self._hear_desk(now)
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
            self._restless[line] = None

    def _take(self, items: list[FromFarm], line: CallServerLine, now: float) -> list[CallResult]:
        found: list[CallResult] = []
        for item in items:
            if isinstance(item, CallServerStatus):
                line.hear_told(item)
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
                    held.line.let_go(held)
                    del self._held[held.place]
                found.append(result)
        return found

    def next_deadline(self) -> float | None:
        """When to call `enforce`."""
        return 0.0 if self._restless or self._unsent else self._tick_at

    def enforce(self, now: float) -> list[CallResult]:
        """Reads what the poll does not tell, says that we live, looks who else does."""
        results, self._unsent = self._unsent, []
        restless, self._restless = self._restless, {}
        for line in restless:
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
        self._hear_desk(now)
        if now >= self._look_at:
            anxious = self._waiting or not any(line.takes_calls for line in self._lines.values())
            self._look_at = now + (ANXIOUS_SECONDS if anxious else LOOK_SECONDS)
            self._wire.send(self._desk, CallServersRequest())
        return results + self._given_up(now)

    # ---- agents --------------------------------------------------------------------------------------------------

    def _hear_desk(self, now: float) -> None:
        for message in self._wire.received(self._desk):
            if isinstance(message, CallServersReply):
                self._see_nodes(message.nodes, now)

    def _see_nodes(self, nodes: dict[int, NodeInfo], now: float) -> None:
        """Opens lines to agents that are new; gives up those to agents that are gone and have nothing of ours."""
        listed = {node.address: None for node in nodes.values()}
        busy = {held.line for held in self._held.values()}
        for line in list(self._lines.values()):
            was_listed, line.is_listed = line.is_listed, line.address in listed
            is_stuck = line.told is None and now - line.since >= RENEWAL_SECONDS
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
        self._restless.pop(line, None)
        self._on_close(line.fd)
        line.close(linger)

    def _lose(self, line: CallServerLine, now: float) -> list[CallResult]:
        """Nothing more is heard of an agent: its calls are to be run elsewhere, as other attempts."""
        self._drop(line)
        when = time.time()
        tasks = [(task, attempt) for task, (attempt, held) in self._where.items() if held.line is line]
        for task, _ in tasks:
            del self._where[task]
        for place in [place for place, held in self._held.items() if held.line is line]:
            del self._held[place]
        self._agents_changed(now)
        self._look_at = now + ANXIOUS_SECONDS
        return [lost(task, attempt, when) for task, attempt in tasks]

    def _agents_changed(self, now: float) -> None:
        """The broker counts with what all have, and at least with what one call may ask for."""
        self._changed_at = now
        total: dict[str, int] = {}
        for line in self._lines.values():
            if line.takes_calls and line.told is not None:
                for name, amount in line.told.resources.amounts:
                    total[name] = total.get(name, 0) + amount
        self._capacity = largest_of([Resources.of(total), self._largest])
        self._place_waiting()

    def take_capacity(self) -> Resources | None:
        """What all agents have together, if that has changed."""
        capacity, self._capacity = self._capacity, None
        return capacity

    def _given_up(self, now: float) -> list[CallResult]:
        """Calls that nobody could run for too long."""
        if not self._waiting or now - self._changed_at < NOBODY_SECONDS:
            return []
        takers = [line for line in self._lines.values() if line.takes_calls]
        waiting, self._waiting = self._waiting, deque()
        hopeless: list[Waiting] = []
        for each in waiting:
            is_possible = any(line.could_hold(each.needs) for line in takers)
            (self._waiting if is_possible else hopeless).append(each)
        why = f"no agent of the cluster {self._name!r} could run the call for {NOBODY_SECONDS:g} s"
        error = CallError(f"{why} ({self._refusal})" if self._refusal and not takers else why)
        return [not_run(call.task, call.attempt, error) for each in hopeless for call in each.calls]

    def close(self, grace: float) -> None:
        """Tell all farms that nothing more is wanted; they end what they still run for us."""
        now = time.monotonic()
        for line in list(self._lines.values()):
            if line.told is not None:
                line.put(SessionClosed())
                line.flush(now)
            self._drop(line, LINGER)
        self._on_close(self._desk_fd)
        self._desk.close(linger=0)
        self._wire.context.term()


PATIENCE_SECONDS = 40.0
"""Longer than a cluster lists an agent that was killed."""
ANSWER_SECONDS = 15.0
CONNECT_SECONDS = 2.0
PAUSE_SECONDS = 0.2


def end_farmed(workspace: Workspace) -> str:
    """Ends the tasks of a net whose client is gone, and returns the name of the cluster; nothing if there are none.

    The caller has the lock. Raises `InputError`, and leaves the note, if it cannot be known that they have ended.
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
    """The same for who only wants that; to `forget` is to give up what cannot be ended."""
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
            told = caller.ask(CallServersRequest())
            if not isinstance(told, CallServersReply):
                raise InputError("it does not say which nodes it has")
            listed = {node.address: node.name for node in told.nodes.values()}
            ended |= {each for each in dict.fromkeys([*listed, *note.agents]) if each not in ended and has_ended(each)}
            silent = [name for address, name in listed.items() if address not in ended]
            if not silent:
                return
            if time.monotonic() >= deadline:
                raise InputError(f"its node {silent[0]} does not answer")
            time.sleep(PAUSE_SECONDS)
