"""One node's share of a run: connects the pure scheduler of the node to its launcher, the run's store and the other
agents.

The share decides nothing. It passes events to the scheduler and carries out the scheduler's commands. Requests to the
store keep the order of the commands that cause them, and tasks are sent to a peer only after the store has recorded the
transfer. Everything that follows from a result is in the store before any of it is started: an agent that dies in
between loses no task, and the store rejects results of attempts that were meanwhile given to another node.
"""

from __future__ import annotations

import os
import signal
from array import array
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import msgspec

from shoal.cluster.agent.explain_source import ExplainCache
from shoal.cluster.agent.heartbeat import BusyPeer, IdleWatch
from shoal.cluster.agent.messages import (
    AgentClock,
    ClusterNodeFacts,
    MessageSender,
    PeersChangedEvent,
    PeerSchedulerMessage,
    PieceReceivedReply,
)
from shoal.cluster.agent.node_cache import NodeCache
from shoal.cluster.agent.node_throttle import NodeThrottle
from shoal.cluster.agent.run_description import JOINED, LEFT, ONE, LogEntry, RunDescription, Seen, TaskSpecs, encode
from shoal.cluster.agent.task_files import (
    SOURCES,
    FileOrigins,
    NodeStorage,
    NoRoomError,
    TaskFiles,
    checksums_of,
    decode_sources,
    no_room_sentence,
)
from shoal.cluster.agent.task_setup import TaskSetup
from shoal.cluster.agent.unplaceable import UnplaceableTasks
from shoal.core.peer_messages import (
    HandBack,
    Message,
    PeerMessageReceived,
    PeersChanged,
    Prefetch,
    QueueNearlyEmpty,
    ReadyTask,
    Roster,
    Send,
    TasksPlaced,
    TaskTransfer,
    WorkAvailableEvent,
)
from shoal.core.peer_scheduler import Alarm, Event, MemberCommand, PeerOptions, PeerScheduler
from shoal.core.policies.order import ORDERS, TaskColumns, TwoLevelQueue
from shoal.core.policies.placement import Gathering, is_of_use
from shoal.core.policies.retry import NOTICE, AttemptOutcome, can_finish, typical_duration
from shoal.core.policies.throttle.registry import Regime, regime
from shoal.core.quantities import show_seconds
from shoal.core.resources import FRACTION, Resources
from shoal.core.scheduler import Lane, Scheduler
from shoal.core.scheduler_messages import (
    Accept,
    CancelRequested,
    DrainEnded,
    DrainRequested,
    GiveUp,
    Kill,
    Retry,
    Start,
    TaskResult,
    TasksEnded,
    TimePassed,
    WakeAt,
)
from shoal.core.store.directory import NodeInfo
from shoal.core.store.interface import NOBODY, ReadyBatch, Store
from shoal.core.task import Profile
from shoal.core.work import Work
from shoal.execution.files.trees import remove_quietly
from shoal.execution.processes.launcher_client import LauncherClient
from shoal.execution.processes.orders import seating_for
from shoal.execution.processes.wakeup import Wakeup
from shoal.ledger.records import Usage

_LEAST_CORES = 100


def make_scheduler(here: int, about: RunDescription, work: Work, capacity: Resources, roster: Roster) -> PeerScheduler:
    """Makes the scheduler of one node. Where nodes share no file system, tasks are started one by one, since each waits
    for its own inputs."""
    rank = work.rank if any(work.rank) else ()
    columns = TaskColumns(array("i", work.category), rank, work.weight, work.upward_length)
    throttle = regime(about.throttle)
    lanes = [_lane(profile, throttle, alone=about.managed) for profile in work.profiles]
    cores, random = max(1, capacity.get("cores") // FRACTION), Random(here)
    tiers = TwoLevelQueue(lambda: ORDERS[about.order](columns, cores, random), work.weight)
    broker = Scheduler(capacity, columns, lanes, queue=tiers, retry_pause=about.retry_pause)
    return PeerScheduler(
        here,
        broker,
        roster,
        PeerOptions(policy=about.policy, look_ahead=cores if about.managed else 0, seed=here),
        gathering=Gathering(work) if about.managed and is_of_use(work) else None,
    )


def _lane(profile: Profile, throttle: Regime, *, alone: bool) -> Lane:
    """Makes the lane of a category. A task without requests occupies a hundredth of a core, so that not all of them
    start at once."""
    request, elastic = profile.resources, throttle.limits and not profile.declares("cores")
    if elastic:
        request = request.without("cores")
    elif not request.amounts:
        request = Resources((("cores", _LEAST_CORES),))
    lane = Lane(request, profile.retries, bundled=not alone, refilled=not alone, prefers=profile.prefers)
    lane.cap, lane.elastic = throttle.cap_for(profile.category), elastic
    return lane


DOUBT_SECONDS = 1.0
"""Maximum seconds between the end of a task by SIGTERM and the agent's own SIGTERM, if both have the same cause."""
DRAIN_LOOK_SECONDS = 1.0
_TERMINATED = (signal.SIGTERM, -signal.SIGTERM, 128 + signal.SIGTERM)
_SUSPECT = (AttemptOutcome.CRASHED.value, AttemptOutcome.FAILED.value)
_OUTCOME, _STATUS = 3, 4
"""Indexes into the launcher's report of an ended task."""


class NodeEnding:
    """The end of the node's time, and the verdict on tasks that end with the node.

    A batch system that ends a node sends SIGTERM to its tasks and to the agent, in any order. A task that dies by
    SIGTERM is therefore held back for `DOUBT_SECONDS`. If the agent gets its own signal within that time, the attempt
    counts as lost, not as failed, so it costs no retry.
    """

    def __init__(self, ends_at: float | None) -> None:
        self.ends_at = ends_at
        self.leaving = False
        """The agent was asked to stop."""
        self._undecided: list[tuple[float, tuple[Any, ...]]] = []
        self._next_look = 0.0

    # ---- tasks that end with their node --------------------------------------------------------------------------

    def take_ended(self, rows: Sequence[tuple[Any, ...]], now: float) -> list[tuple[Any, ...]]:
        """Takes reports of ended tasks; returns those whose cause is known, among them earlier ones."""
        clear = []
        for row in rows:
            if self.leaving or row[_OUTCOME] not in _SUSPECT or row[_STATUS] not in _TERMINATED:
                clear.append(self._without_blame(row))
            else:
                self._undecided.append((now + DOUBT_SECONDS, row))
        return clear + self.take_decided(now)

    def take_decided(self, now: float) -> list[tuple[Any, ...]]:
        """Returns reports whose cause has become known."""
        if not self._undecided:
            return []
        known = [row for until, row in self._undecided if self.leaving or until <= now]
        self._undecided = [each for each in self._undecided if not self.leaving and each[0] > now]
        return [self._without_blame(row) for row in known]

    def _without_blame(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        if self.leaving and row[_OUTCOME] in _SUSPECT:
            return (*row[:_OUTCOME], AttemptOutcome.LOST.value, *row[_OUTCOME + 1 :])
        return row

    def decided_at(self) -> float | None:
        """When the first doubtful report is decided at the latest."""
        return self._undecided[0][0] if self._undecided else None

    # ---- known end of the node's time
    # ------------------------------------------------------------------------------

    def is_due(self, now: float) -> bool:
        """Whether to check again whether the queued tasks still fit into the remaining time."""
        if self.ends_at is None or self.leaving or now < self._next_look:
            return False
        self._next_look = now + DRAIN_LOOK_SECONDS
        return True

    def expected(self, broker: Scheduler) -> float | None:
        """Expected duration of the next tasks: the queued ones, else the longest category seen."""
        lanes = [(broker.queue.queued_in(lane), broker.lanes[lane].mean_duration) for lane in broker.queue.lanes()]
        known = [lane.mean_duration for lane in broker.lanes if lane.mean_duration is not None]
        return typical_duration(lanes) if lanes else max(known, default=None)

    def is_too_late(self, broker: Scheduler, now: float) -> bool:
        """Whether a task that starts now could not finish here."""
        return not can_finish(self.ends_at, now, self.expected(broker))


def longest_time(nodes: dict[int, NodeInfo], now: float) -> float | None:
    """Returns the longest remaining time for tasks of any node, in seconds; None if one of them has no end."""
    ends = [node.ends_at for node in nodes.values()]
    if any(end is None for end in ends):
        return None
    return max((end for end in ends if end is not None), default=now) - now - NOTICE


OUTCOMES = {outcome.value: outcome for outcome in AttemptOutcome}
LOOK_SECONDS = 5.0
"""Seconds of idleness after which a node asks the store for tasks without an owner."""


class StoredRun(msgspec.Struct, frozen=True):
    """A run as its store describes it, the same for all nodes."""

    identity: str
    about: RunDescription
    work: Work
    store: Store
    specs: TaskSpecs
    """The commands and calls of its tasks."""


class RunShare:
    """The tasks of one run on one node."""

    def __init__(
        self,
        stored: StoredRun,
        here: int,
        nodes: dict[int, NodeInfo],
        spool: str,
        messenger: MessageSender,
        clock: AgentClock,
        wakeup: Wakeup,
        node_cache: NodeCache | None = None,
    ) -> None:
        """With a `node_cache`, nodes share no file system. The launcher wakes the agent's loop through `wakeup`."""
        self._watch, self._unwatch = wakeup.add, wakeup.discard
        run, about, work, store = stored.identity, stored.about, stored.work, stored.store
        self.run, self.about, self.work, self.store, self.here = run, about, work, store, here
        self.messenger, self.clock = messenger, clock
        self.nodes = nodes
        self.name = nodes[here].name
        self.mark = f"{here}.{run}"
        """Other agents of the run may be on this machine, and its client: what is ours is marked with the node."""
        self.task_setup = TaskSetup(run, about, work.profiles, stored.specs)
        self.task_files = self._make_task_files(node_cache, spool) if node_cache is not None else None
        self._places: dict[int, int] = {}
        """By task that waits for its inputs: the place in which it will run."""
        self._fetching: dict[int, float] = {}
        """By task: when it began to wait for its inputs."""
        self._made: dict[int, list[tuple[int, int, bytes]]] = {}
        """By task: the files that its last attempt made."""
        self._absent: set[int] = set()
        """Nodes that are in the cluster but take no part in this run."""
        self.unplaceable = UnplaceableTasks(work)
        self.scheduler = make_scheduler(here, about, work, nodes[here].capacity(), self._roster())
        capacity = nodes[here].capacity()
        self.node_throttle = NodeThrottle(about, self.scheduler.broker, capacity, store, self.name, clock())
        self.alarm = Alarm()
        self.results: list[TaskResult] = []
        """Results that arose while commands were carried out; the scheduler gets them in the next turn."""
        self._ended: dict[int, LogEntry] = {}
        """Log entries of ended attempts that the scheduler has not judged yet, by task."""
        self._courses: dict[tuple[int, int], bytes] = {}
        """Usage series by task and attempt."""
        self.since = ExplainCache()
        self._idle_since = clock()
        self.idle = IdleWatch()
        self._little_left = False
        self.ending = NodeEnding(nodes[here].ends_at)
        self._has_told_of_time = False
        self.launcher = self._make_launcher(spool, clock.offset)
        self.node_throttle.throttling.exclude(self.launcher.pid)

    def _roster(self) -> Roster:
        capacity = {number: node.capacity() for number, node in self.nodes.items() if number not in self._absent}
        return Roster(capacity, capacity)

    def _make_task_files(self, node_cache: NodeCache, spool: str) -> TaskFiles:
        listed = self.store.get_piece(SOURCES)
        sources = decode_sources(listed) if listed else {}
        sandboxes = os.path.join(spool, self.mark, "tasks")
        return TaskFiles(
            self.run,
            self.here,
            self.work,
            self.store,
            NodeStorage(node_cache.cache, node_cache.fetcher, sandboxes),
            FileOrigins(
                lambda node: node_cache.grant(self.nodes[node].data) if node in self.nodes else None,
                sources,
                node_cache.origin,
            ),
            self.clock,
        )

    def _make_launcher(self, spool: str, offset: float) -> LauncherClient:
        folder = self._folder = os.path.join(spool, self.mark)
        running = os.path.join(folder, "running")
        os.makedirs(running, exist_ok=True)
        self.output = os.path.join(folder, "output")
        # The launcher's working directory is that of the tasks.
        os.chdir(running if self.task_files else self.about.base)
        launcher = LauncherClient(self.mark)
        launcher.configure(running, self.output, os.path.join(folder, "processes"), offset)
        launcher.seating = seating_for(self.work.profiles, self.work.category.__getitem__)
        self.task_setup.read_output_from(self.output)
        return launcher

    # ---- turns ---------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Takes tasks without an owner, to distribute them if that is requested; without any, looks for work at
        peers."""
        resources = self.nodes[self.here].resources.amounts
        self.store.note(encode(LogEntry(-1, 0, JOINED, "", self.name, started=self.clock(), resources=resources)))
        placeable = self.store.unowned(self.here)
        self.handle(self.node_throttle.begin([ticket.task for ticket in placeable.tickets]))
        to = "" if self.about.to == ONE else self.about.to
        self.handle(TasksPlaced(placeable.tickets, placeable.holdings, to) if placeable.tickets else TimePassed())

    def turn(self, launcher_has_news: bool) -> None:
        """Passes everything that has happened since the last turn to the scheduler."""
        now = self.clock()
        if self.task_files is not None:
            self._take_arrivals(self.task_files)
        results, self.results = self.results, []
        if launcher_has_news:
            results += self._hear_launcher()
        results += [self._process_ended(row) for row in self.ending.take_decided(now)]
        if self.ending.is_due(now):
            self._check_remaining_time(now)
        if results:
            self.node_throttle.ended(now, results)
            self.handle(TasksEnded(results, ready_follows=True))
        caps = self.node_throttle.look(now)
        if caps is not None:
            self.handle(caps)
        if self.alarm.goes_off(now):
            self.handle(TimePassed())
        if self.scheduler.tiers or not self.scheduler.idle_cores():
            self._idle_since = now
        elif now - self._idle_since > LOOK_SECONDS:
            self._idle_since = now
            self.look_around()

    def look_around(self) -> None:
        placeable = self.store.unowned(self.here)
        if placeable.tickets:
            self.place(placeable)

    def beside(self, now: float, notes: Callable[[], Mapping[int, ClusterNodeFacts]]) -> BusyPeer | None:
        """Returns a peer with tasks that could run here, if a core was idle for long; `notes` returns the status of all
        nodes and is costly.

        The scheduler then sends a steal request to the peer at once, whatever it knew of it before.
        """
        scheduler = self.scheduler
        rounds, others = scheduler.rounds, scheduler.roster.others()
        if not self.idle.is_time(now, is_searching=rounds.is_searching(scheduler.roster)):
            return None
        told = {number: note for number, note in notes().items() if number in self.nodes and number != self.here}
        allowed = rounds.longest_search(others)
        found = self.idle.look(now, self.run, allowed, rounds.unable(), told, rounds.declined)
        if found is not None:
            self.handle(PeersChanged(self._roster()))
            self.handle(PeerMessageReceived(found.peer, WorkAvailableEvent(found.shared)))
        return found

    def patience(self) -> float:
        """Seconds until `turn` must be called again."""
        if self.results:
            return 0.0
        soonest = min(self._idle_since + LOOK_SECONDS, self.alarm.when)
        soonest = min(soonest, self.ending.decided_at() or soonest, self.node_throttle.due() or soonest)
        return soonest - self.clock()

    def handle(self, event: Event) -> None:
        """Passes an event to the scheduler, carries out its commands, and repeats that with the events that follow."""
        waiting: list[Event] = [event]
        while waiting:
            waiting += self._execute(self.scheduler.handle(self.clock(), waiting.pop(0)))

    def place(self, placeable: ReadyBatch) -> None:
        if placeable.tickets:
            self.handle(TasksPlaced(placeable.tickets, placeable.holdings))

    def _execute(self, commands: Sequence[MemberCommand]) -> list[Event]:
        """Carries out commands of the scheduler; returns the events that follow from them."""
        accepted: list[tuple[int, int]] = []
        follows: list[Event] = []
        for command in commands:
            match command:
                case Start():
                    self._start(command)
                case Accept(task, attempt):
                    accepted.append((task, attempt))
                case Send(peer, message):
                    follows += self._send(peer, message)
                case WakeAt(when):
                    self.alarm.set(when)
                case GiveUp():
                    follows += self._give_up(command)
                case Retry(task, attempt, outcome):
                    entry = self._ended.pop(task, None)
                    if entry is not None and outcome is not AttemptOutcome.UNBEGUN:
                        self.store.note(encode(msgspec.structs.replace(entry, verdict="retry")))
                case Kill(task, attempt, outcome):
                    self._kill(task, attempt, outcome)
                case HandBack():
                    follows += self._hand_back(command)
                case Prefetch(task):
                    if self.task_files is not None:
                        self.task_files.fetch_ahead(task)
        if accepted or self.scheduler.broker.awaiting_ready:
            follows += self._complete(accepted)
        return follows

    def _complete(self, ended: list[tuple[int, int]]) -> list[Event]:
        placeable = ReadyBatch([], [])
        if ended:
            entries = [encode(self._ended.pop(task)) for task, _ in ended]
            made = [self._made.pop(task, []) for task, _ in ended] if self.task_files is not None else ()
            _, placeable = self.store.complete(self.here, ended, entries, made)
        return [TasksPlaced(placeable.tickets, placeable.holdings), *self._what_is_left()]

    def _what_is_left(self) -> list[Event]:
        """Reports once when the run has fewer ready tasks than cores: from then on data locality no longer decides
        placement."""
        ready = self.store.seen_ready
        cores = sum(node.resources.get("cores") for node in self.nodes.values()) // FRACTION
        little = ready < cores if self._little_left else ready < cores // 2
        if little == self._little_left:
            return []
        self._little_left = little
        return [QueueNearlyEmpty(little)]

    def _give_up(self, command: GiveUp) -> list[Event]:
        task = command.task
        if command.outcome is AttemptOutcome.MISSING:
            placeable = self.store.missing(ReadyTask(task, command.attempt), self.here)
            return [TasksPlaced(placeable.tickets, placeable.holdings)] if placeable.tickets else []
        entry = self._ended.pop(task, None)
        if command.cramped is not None:
            now, why = self.clock(), no_room_sentence(self.task_setup.spec(task).inputs, command.cramped)
            entry = LogEntry(task, command.attempt, "failed", "failed", self.name, 127, now, now, message=why)
        if entry is None:
            entry = LogEntry(task, command.attempt, "failed", command.outcome.value, self.name)
        self.store.give_up(task, command.attempt, encode(msgspec.structs.replace(entry, verdict="failed")))
        return []

    def _hand_back(self, command: HandBack) -> list[Event]:
        """Returns a task that this node cannot run to the store and notifies a node that can run it; without such a
        node the task waits here."""
        lacking = command.lacking
        if command.for_room:
            again = self.store.hand_back(command.ticket, self.here)
            ticket = again and msgspec.structs.replace(again, cramped=command.ticket.cramped)
            return [TasksPlaced([ticket])] if ticket is not None else []
        able = [node for node in self.scheduler.roster.able(lacking) if node != self.here] if lacking else []
        if lacking is not None and not able:
            told = self.unplaceable.keep(command.ticket, self._capacities())
            if told is not None:
                self.store.note(encode(LogEntry(-1, 0, "note", "", self.name, message=told)))
        elif self.store.hand_back(command.ticket, NOBODY) is not None and able:
            self.messenger.send(self.nodes[able[0]].address, PeersChangedEvent(self.run))
        return []

    def _capacities(self) -> list[Resources]:
        """Resources of all nodes that take part."""
        return [node.capacity() for number, node in self.nodes.items() if number not in self._absent]

    # ---- others --------------------------------------------------------------------------------------------------

    def _send(self, peer: int, message: Message) -> list[Event]:
        if type(message) is TaskTransfer and message.tickets:
            again = self.store.moved(message.tickets, self.here, peer, message.number)
            if again.tickets:
                self.scheduler.parcels.settle(message.number)
                self._absent.add(peer)  # the store counts it as lost: nothing more may be sent to it
                return [PeersChanged(self._roster()), TasksPlaced(again.tickets, again.holdings)]
            if self.store.recorded(self.here) < message.number:
                return []  # this node was declared lost: other nodes have requeued its tasks
        node = self.nodes.get(peer)
        if node is not None:
            self.messenger.send(node.address, PeerSchedulerMessage(self.run, self.here, message))
        return []

    def hear(self, said: PeerSchedulerMessage) -> None:
        self.handle(PeerMessageReceived(said.sender, said.message))

    def promised(self, tickets: Sequence[ReadyTask]) -> None:
        """Takes tasks that were in transfer from a lost node: those that have not arrived are claimed in the store."""
        lacking = [ticket for ticket in tickets if not self.has(ticket.task)]
        if lacking:
            self.place(self.store.claim(self.here, lacking))

    def peers_changed(self, nodes: dict[int, NodeInfo]) -> None:
        self.nodes = nodes
        self.handle(PeersChanged(self._roster()))
        found = self.unplaceable.take(self._capacities())
        if found:
            self.handle(TasksPlaced(found))

    def lose(self, node: int) -> None:
        """A node's lease has expired: its tasks are requeued from here."""
        placeable, promised = self.store.lose(node, self.here)
        for owner, tickets in promised.items():
            if owner == self.here:
                self.promised(tickets)
            elif owner in self.nodes:
                self.messenger.send(self.nodes[owner].address, PieceReceivedReply(self.run, tickets))
        self.place(placeable)

    def cancel(self, tasks: Sequence[int]) -> None:
        self.unplaceable.drop(tasks)
        self.handle(CancelRequested(list(tasks)))

    def note_gone(self, name: str) -> None:
        """Writes to the log that a node no longer takes part."""
        self.store.note(encode(LogEntry(-1, 0, LEFT, "", name, ended=self.clock())))

    # ---- what runs -----------------------------------------------------------------------------------------------

    def _start(self, command: Start) -> None:
        orders = []
        for task, attempt in zip(command.tasks, command.attempts, strict=True):
            if self.task_files is not None:
                self._want(self.task_files, task, attempt, command.place)
                continue
            order, obstacle = self.task_setup.order(task, attempt, self.work.category[task])
            if obstacle is None:
                orders.append(order)
            else:
                self._could_not_start(task, attempt, obstacle)
        if orders:
            self.launcher.start(command.place, orders)
        self._log_notes()

    def _log_notes(self) -> None:
        while self.task_setup.notes:
            self.store.note(encode(LogEntry(-1, 0, "note", "", self.name, message=self.task_setup.notes.pop())))

    def _could_not_start(self, task: int, attempt: int, why: str) -> None:
        now = self.clock()
        self._ended[task] = LogEntry(task, attempt, "failed", "failed", self.name, 127, now, now, message=why)
        self.results.append(TaskResult(task, attempt, AttemptOutcome.FAILED))

    def _want(self, task_files: TaskFiles, task: int, attempt: int, place: int) -> None:
        """Starts a task as soon as all its inputs are here."""
        self._places[task] = place
        self._fetching[task] = self.clock()
        is_here = task_files.want(task, attempt)
        if is_here is True:
            self._start_in_folder(task_files, task, attempt)
        elif is_here is not False:
            self._never_began(task, attempt, is_here)

    def _never_began(self, task: int, attempt: int, no_room: NoRoomError | None) -> None:
        """Ends an attempt whose inputs no longer exist, or do not fit on this disk."""
        outcome = AttemptOutcome.MISSING if no_room is None else AttemptOutcome.NO_ROOM
        need, room = (no_room.need, no_room.room) if no_room is not None else (0, 0)
        self.results.append(TaskResult(task, attempt, outcome, need=need, room=room))

    def _start_in_folder(self, task_files: TaskFiles, task: int, attempt: int) -> None:
        self._fetching[task] = self.clock() - self._fetching[task]
        folder, obstacle = task_files.prepare_directory(task, attempt, self.task_setup.spec(task))
        if obstacle is None:
            order = self.task_setup.order_in(folder, task, attempt, self.work.category[task])
            self.launcher.start(self._places.pop(task), [order])
            self._log_notes()
        else:
            task_files.clear(task, attempt)
            self._could_not_start(task, attempt, obstacle)

    def _take_arrivals(self, task_files: TaskFiles) -> None:
        ready, failed = task_files.arrived()
        if task_files.inflow.rate is not None:
            self.scheduler.links_measured(task_files.inflow.rate)
        for task, attempt in ready:
            self._start_in_folder(task_files, task, attempt)
        for task, attempt, no_room in failed:
            self._never_began(task, attempt, no_room)

    def _remember_sizes(self, made: Sequence[tuple[int, int, bytes]]) -> None:
        if self.scheduler.gathering is not None:
            for file, size, _ in made:
                self.scheduler.gathering.made(file, size)

    def _kill(self, task: int, attempt: int, outcome: AttemptOutcome) -> None:
        if self.task_files is not None and self.task_files.is_coming(task):
            self.task_files.forget(task)
            self.results.append(TaskResult(task, attempt, outcome))
        else:
            self.launcher.kill(task, outcome, "cancelled")

    def _hear_launcher(self) -> list[TaskResult]:
        told = self.launcher.collect()
        if told is None:
            return self._replace_launcher()
        self.since.hear(told, self.scheduler.broker.running)
        self._courses |= {row[1:3]: row[3] for row in told if row[0] == "course"}
        ended = self.ending.take_ended([row for row in told if row[0] == "ended"], self.clock())
        return [self._process_ended(row) for row in ended]

    def _replace_launcher(self) -> list[TaskResult]:
        self._unwatch(self.launcher.descriptor)
        lost = self.launcher.replace()
        self._watch(self.launcher.descriptor)
        self.node_throttle.throttling.exclude(self.launcher.pid)
        now = self.clock()
        for task, attempt in lost:
            if self.task_files is not None:
                self.task_files.clear(task, attempt)
            self._ended[task] = LogEntry(task, attempt, "failed", "lost", self.name, 0, now, now, message="lost")
        return [TaskResult(task, attempt, AttemptOutcome.LOST) for task, attempt in lost]

    def _process_ended(self, row: tuple[Any, ...]) -> TaskResult:
        _, task, attempt, ended_as, status, started, ended, user, system, max_rss, at, size, message, tail, *used = row
        outcome = OUTCOMES[ended_as]
        made: list[tuple[int, int, bytes]] = []
        seen: tuple[Seen, ...] = ()
        listing = b""
        if outcome is AttemptOutcome.OK:
            if self.task_files is None:
                seen, listing, missing = self.task_setup.look(task)
            else:
                made, missing = self.task_files.collect(task, attempt, self.task_setup.spec(task), ended - started)
                self._made[task] = made
                self._remember_sizes(made)
            if missing is not None:
                outcome, message = AttemptOutcome.FAILED, missing
        if self.task_files is None and outcome not in (AttemptOutcome.OK, AttemptOutcome.UNBEGUN):
            message = "; ".join(filter(None, (message, self._take_away(task))))
        if self.task_files is not None:
            self.task_files.clear(task, attempt)
            self.scheduler.placement.moved(self._fetching.pop(task, 0.0), ended - started)
        self.node_throttle.weigh(task, max(max_rss, Usage(*used).tree_memory))
        verdict = "done" if outcome is AttemptOutcome.OK else "failed"
        figures = (status, started, ended, user, system, max_rss, message)
        output = self.task_setup.output_of(at, size, tail)
        sizes = tuple(size for _, size, _ in made)
        self._ended[task] = LogEntry(
            *(task, attempt, verdict, outcome.value, self.name, *figures, output, tuple(used), 0, sizes),
            course=self._courses.pop((task, attempt), b""),
            seen=seen,
            listing=listing,
            checksums=checksums_of(made),
        )
        return TaskResult(task, attempt, outcome, ended - started)

    def _take_away(self, task: int) -> str:
        """Moves half-made outputs away, so that none keeps its final name. If this node was declared lost, they may
        belong to the attempt that another node has begun since."""
        if not self.task_setup.has_half_made(task) or self.store.whereabouts(task)[2] != self.here:
            return ""
        return self.task_setup.take_away(task)

    # ---- the end -------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Starts no further task; peers may steal what is queued here."""
        self.ending.leaving = True
        self.handle(DrainRequested())

    def _check_remaining_time(self, now: float) -> None:
        """Starts nothing that could not finish before the end of the node's time."""
        broker = self.scheduler.broker
        too_late = self.ending.is_too_late(broker, now)
        if too_late != broker.draining:
            self.handle(DrainRequested() if too_late else DrainEnded())
        expected, most = self.ending.expected(broker), longest_time(self.nodes, now)
        if self._has_told_of_time or not too_late or not broker.queue or min(self.nodes) != self.here:
            return
        if expected is not None and most is not None and expected > most:
            self._has_told_of_time = True
            about = show_seconds(round(expected))
            why = f"the queued tasks take about {about}, longer than any node remains; they wait for another node"
            self.store.note(encode(LogEntry(-1, 0, "note", "", self.name, message=why)))

    def has(self, task: int) -> bool:
        return task in self.scheduler.broker.state or task in self.unplaceable or task in self._ended

    def running(self) -> int:
        return len(self.scheduler.broker.running)

    def close(self) -> None:
        """Kills whatever still runs here."""
        self.launcher.close()
        self.node_throttle.close()
        self.task_setup.close()
        if self.task_files is not None:
            self.task_files.close()
        remove_quietly(self._folder)
