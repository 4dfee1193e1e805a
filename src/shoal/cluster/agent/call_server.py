"""The call server of an agent: worker processes that run the Python calls of clients, beside the agent's share of a
run.

Each client has its own worker processes. They start with its first call, in the client's directory and with its module
path as far as these exist on the node. The agent unpickles nothing: functions, arguments and results are bytes that
only workers and clients open.

A *place* is a slot with the resources of one call. Bundles of a place run one after another. The places of all clients
together never exceed the node's resources; further places wait for their turn, in order of arrival. Tasks of a run do
not count here: while both exist, the operating system divides the cores among them.

Calls that wait in a place behind a long call go back to their client, which runs them elsewhere. Workers that were idle
for a while are ended, and so is everything of a client that was silent for long.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence

from shoal.cluster.call_protocol import (
    UNKNOWN,
    CallCancelled,
    CallsEnded,
    CallServerStatus,
    CallsGiven,
    CallsReply,
    CallsRequest,
    CallStream,
    ClientItem,
    FunctionDropped,
    FunctionGiven,
    ServerItem,
    SessionClosed,
    SessionOpened,
    client_of,
    decode_client_item,
    encode_item,
)
from shoal.cluster.messaging.messenger import Route
from shoal.core.resources import Resources
from shoal.errors import RunError
from shoal.execution.calls.messages import CallRequest, CallResult
from shoal.execution.calls.pickling import CallCancelledError, CallError
from shoal.execution.calls.worker_pool import MAX_CALLS, PATIENCE, WorkerPool
from shoal.execution.executor.call_pool import lost, not_run
from shoal.execution.processes.wakeup import Wakeup

GONE_SECONDS = 30.0
"""Seconds of silence after which a client's calls are ended."""
IDLE_SECONDS = 60.0
"""Seconds after which an idle worker is ended."""
GRACE = 0.2
"""Seconds that idle workers may take to exit by themselves; the agent waits meanwhile."""
ROUND_SECONDS = 1.0
REMEMBERED = 1000
PYTHON = (sys.version_info[0], sys.version_info[1])


class CallServerRunner(WorkerPool):
    """A pool of workers that receives functions as numbered, pickled bytes."""

    def learn(self, number: int, pickled: bytes) -> None:
        self._functions[number] = pickled


class CallPlace:
    """A slot with the resources of one call; its bundles run one after another."""

    def __init__(self, session: CallSession, number: int, needs: Resources) -> None:
        self.session, self.number, self.needs = session, number, needs
        self.bundles: deque[list[CallRequest]] = deque()
        """Bundles that were not started."""
        self.left = 0
        """Unfinished calls of the current bundle."""
        self.moved_at = 0.0
        """When a call was last started or ended here."""


class CallSession:
    """One connection of one client, from its opening to its closing."""

    def __init__(self, client: str, now: float) -> None:
        self.client = client
        self.route: Route | None = None
        self.stream = CallStream()
        self.opening: SessionOpened | None = None
        self.functions: dict[int, bytes] = {}
        self.runner: CallServerRunner | None = None
        self.places: dict[int, CallPlace] = {}
        self.place_of: dict[int, CallPlace] = {}
        """By unfinished call: its place."""
        self.results: list[CallResult] = []
        self.heard_at = now
        self.busy_at = now
        self.is_closed = False

    def put(self, item: ServerItem) -> None:
        self.stream.put(encode_item(item))


class CallServer:
    """The sessions of all clients of one agent."""

    def __init__(self, node: Resources, spool: str, answer: Callable[[Route, CallsReply], None]) -> None:
        self._node, self._spool, self._answer = node, spool, answer
        self._free = dict(node.amounts)
        self._sessions: dict[str, CallSession] = {}
        self._ended: dict[str, None] = {}
        """Connections and clients that have ended, the oldest first: their late messages must not open them again."""
        self._by_descriptor: dict[int, CallSession] = {}
        self._waiting: deque[CallPlace] = deque()
        """Places for which there is no room yet."""
        self._wakeup: Wakeup | None = None
        self._next_round = 0.0
        self._leaving = False

    def attend(self, wakeup: Wakeup) -> None:
        """Registers the workers' descriptors with the agent's loop."""
        self._wakeup = wakeup

    def busy(self) -> bool:
        """Whether a call is unfinished."""
        return any(session.place_of for session in self._sessions.values())

    def at_work(self) -> int:
        """Number of places that run or wait for room."""
        return sum(len(session.places) for session in self._sessions.values())

    def leave(self) -> None:
        """Tells the clients that no more calls are accepted."""
        self._leaving = True
        for session in self._sessions.values():
            session.put(CallServerStatus(self._node, leaving=True))
            self._send(session)

    # ---- the loop ------------------------------------------------------------------------------------------------

    def turn(self, readable: Sequence[int]) -> None:
        """Reads the workers' results and does what is due."""
        if not self._sessions:
            return
        now = time.monotonic()
        for descriptor in readable:
            session = self._by_descriptor.get(descriptor)
            if session is not None and session.runner is not None:
                self._take_results(session, session.runner.collect(descriptor), now)
        for session in self._sessions.values():
            if session.runner is not None:
                self._take_results(session, session.runner.enforce(now), now)
            for place in session.places.values():
                if place.bundles and place.left and now - place.moved_at >= PATIENCE:
                    self._give_back(place)
        self._start_waiting(now)
        for session in self._sessions.values():
            self._tell(session)
        if now >= self._next_round:
            self._next_round = now + ROUND_SECONDS
            self._go_round(now)

    def patience(self) -> float:
        """Seconds until `turn` must be called again."""
        now = time.monotonic()
        until = now + 60.0
        for session in self._sessions.values():
            due = session.runner.next_deadline() if session.runner is not None else None
            until = until if due is None else min(until, due)
            for place in session.places.values():
                if place.bundles and place.left:
                    until = min(until, place.moved_at + PATIENCE)
        return max(0.0, until - now)

    def _go_round(self, now: float) -> None:
        """Ends idle workers and silent clients; repeats lost parts."""
        for session in list(self._sessions.values()):
            if now - session.heard_at >= GONE_SECONDS:
                self._end(session)
                continue
            if session.place_of:
                session.busy_at = now
            elif session.runner is not None and now - session.busy_at >= IDLE_SECONDS:
                session.runner.close(GRACE)
                session.runner = None
            if session.stream.repeat(now):
                self._send(session)

    def _end(self, session: CallSession) -> None:
        del self._sessions[session.client]
        self._remember(session.client)
        session.is_closed = True
        if session.runner is not None:
            session.runner.close(0.0)
        for place in session.places.values():
            if place in self._waiting:
                self._waiting.remove(place)
            else:
                self._make_room(place.needs)

    def _remember(self, client: str) -> None:
        self._ended[client] = None
        if len(self._ended) > REMEMBERED:
            del self._ended[next(iter(self._ended))]

    def end_client(self, client: str) -> CallsReply:
        """Ends everything of a client and accepts nothing more of it; the reply says that the client is unknown."""
        for session in list(self._sessions.values()):
            if client_of(session.client) == client:
                self._end(session)
        self._remember(client)
        return CallsReply(client, 0, [], UNKNOWN)

    def close(self) -> None:
        """Ends all sessions and workers."""
        for session in list(self._sessions.values()):
            self._end(session)

    # ---- clients -------------------------------------------------------------------------------------------------

    def hear(self, message: CallsRequest, route: Route) -> CallsReply | None:
        """Takes a request of a client; returns the reply, unless results are sent anyway."""
        now = time.monotonic()
        session = self._sessions.get(message.client)
        if session is None:
            if message.first != 1 or message.client in self._ended or client_of(message.client) in self._ended:
                return CallsReply(message.client, 0, [], UNKNOWN)
            session = self._sessions[message.client] = CallSession(message.client, now)
        session.route, session.heard_at = route, now
        session.stream.confirm(message.heard, now)
        for item in session.stream.take(message.first, message.parts):
            self._do(session, decode_client_item(item), now)
            if session.is_closed:
                return None
        self._start_waiting(now)
        self._tell(session)
        if message.parts and not session.stream.owes_confirmation():
            return None
        session.stream.said()
        return CallsReply(session.client, 0, [], session.stream.heard)

    def _tell(self, session: CallSession) -> None:
        """Sends the available results."""
        if session.results:
            session.put(CallsEnded(session.results))
            session.results = []
        self._send(session)

    def _send(self, session: CallSession) -> None:
        assert session.route is not None
        now = time.monotonic()
        while True:
            first, parts = session.stream.next_run(now)
            if not parts:
                return
            session.stream.said()
            self._answer(session.route, CallsReply(session.client, first, parts, session.stream.heard))

    def _do(self, session: CallSession, item: ClientItem, now: float) -> None:
        match item:
            case SessionOpened():
                session.opening = item
                session.put(CallServerStatus(self._node, _refusal(item), self._leaving))
            case FunctionGiven(number, pickled):
                session.functions[number] = pickled
                if session.runner is not None:
                    session.runner.learn(number, pickled)
            case FunctionDropped(number):
                if session.functions.pop(number, None) is not None and session.runner is not None:
                    session.runner.release(number)
            case CallsGiven():
                self._take_calls(session, item)
            case CallCancelled(task, attempt):
                self._cancel(session, task, attempt)
            case SessionClosed():
                self._end(session)

    # ---- calls ---------------------------------------------------------------------------------------------------

    def _take_calls(self, session: CallSession, given: CallsGiven) -> None:
        if not _is_proper(session, given):  # after such an error nothing of this client can be trusted
            self._end(session)
            return
        place = session.places.get(given.place)
        if place is None:
            place = session.places[given.place] = CallPlace(session, given.place, given.needs)
            self._waiting.append(place)
        place.bundles.append(given.calls)
        session.place_of.update((call.task, place) for call in given.calls)

    def _start_waiting(self, now: float) -> None:
        """Starts waiting places in their order of arrival, as far as there is room. A place that does not fit stops the
        ones behind it: that keeps wide calls from being starved."""
        while self._waiting:
            place = self._waiting[0]
            if place.needs.lacking_in(self._node):
                self._waiting.popleft()
                self._fail(place, CallError(f"the call needs more than the node has: {place.needs}"))
                continue
            if any(amount > self._free[name] for name, amount in place.needs.amounts):
                return
            self._waiting.popleft()
            for name, amount in place.needs.amounts:
                self._free[name] -= amount
            self._go_on(place, now)

    def _go_on(self, place: CallPlace, now: float) -> None:
        """Starts the next bundle of a place that has room; a place without bundles releases its room."""
        session = place.session
        while place.bundles:
            calls = place.bundles.popleft()
            try:
                self._runner_of(session).start(calls)
            except RunError as error:
                session.results += [self._over(session, call, CallError(str(error))) for call in calls]
                continue
            place.left, place.moved_at = len(calls), now
            return
        del session.places[place.number]
        self._make_room(place.needs)

    def _make_room(self, needs: Resources) -> None:
        for name, amount in needs.amounts:
            self._free[name] += amount

    def _take_results(self, session: CallSession, results: list[CallResult], now: float) -> None:
        for result in results:
            place = session.place_of.pop(result.task)
            place.left -= 1
            place.moved_at = now
            session.results.append(result)
            if not place.left:
                self._go_on(place, now)

    def _give_back(self, place: CallPlace) -> None:
        """Returns bundles that wait behind a long call to the client: another place may be free."""
        for calls in place.bundles:
            for call in calls:
                del place.session.place_of[call.task]
                place.session.results.append(lost(call.task, call.attempt, 0.0))
        place.bundles.clear()

    def _fail(self, place: CallPlace, error: CallError) -> None:
        """Fails all calls of a place that can never have room."""
        session = place.session
        session.results += [self._over(session, call, error) for calls in place.bundles for call in calls]
        del session.places[place.number]

    def _over(self, session: CallSession, call: CallRequest, error: CallError) -> CallResult:
        del session.place_of[call.task]
        return not_run(call.task, call.attempt, error)

    def _cancel(self, session: CallSession, task: int, attempt: int) -> None:
        place = session.place_of.get(task)
        if place is None or (session.runner is not None and session.runner.kill(task, attempt)):
            return  # it is over, or its result follows
        for calls in place.bundles:
            for call in calls:
                if call.task == task and call.attempt == attempt:
                    calls.remove(call)
                    error = CallCancelledError("the call was cancelled before it began")
                    session.results.append(self._over(session, call, error))
                    break
        place.bundles = deque(calls for calls in place.bundles if calls)
        if place in self._waiting and not place.bundles:
            self._waiting.remove(place)
            del session.places[place.number]

    def _runner_of(self, session: CallSession) -> CallServerRunner:
        if session.runner is None:
            assert session.opening is not None and self._wakeup is not None
            theirs = [entry for entry in session.opening.sys_path if os.path.exists(entry)]
            directory = session.opening.directory
            session.runner = CallServerRunner(
                directory=directory if os.path.isdir(directory) else self._spool,
                environment=os.environ,
                sys_path=[*theirs, *(entry for entry in sys.path if entry not in theirs)],
                run_id=f"farm-{os.getpid()}",
                on_open=lambda descriptor: self._watch(descriptor, session),
                on_close=self._unwatch,
            )
            for number, pickled in session.functions.items():
                session.runner.learn(number, pickled)
        return session.runner

    def _watch(self, descriptor: int, session: CallSession) -> None:
        assert self._wakeup is not None
        self._by_descriptor[descriptor] = session
        self._wakeup.add(descriptor)

    def _unwatch(self, descriptor: int) -> None:
        assert self._wakeup is not None
        del self._by_descriptor[descriptor]
        self._wakeup.discard(descriptor)


def _is_proper(session: CallSession, given: CallsGiven) -> bool:
    """Whether a bundle is valid: known functions, and no call that is there already."""
    calls, known = given.calls, session.place_of
    return (
        session.opening is not None
        and 0 < len(calls) <= MAX_CALLS
        and {call.function for call in calls} <= session.functions.keys()
        and len({call.task for call in calls if call.task not in known}) == len(calls)
        and all(amount > 0 for _, amount in given.needs.amounts)
    )


def _refusal(opening: SessionOpened) -> str:
    """Why calls of this program cannot run here; empty if they can."""
    if opening.python == PYTHON:
        return ""
    ours, theirs = (".".join(map(str, version)) for version in (PYTHON, opening.python))
    return f"the agent has Python {ours}, the program {theirs}"
