"""The scheduler of one node among several: places ready tasks, steals work when idle, answers requests of peers.

It wraps a `Scheduler`, which starts tasks and handles failed attempts, and adds placement and load balancing. The
interface is the same: `handle(now, event) -> [command]`. Additional events and commands are in
`shoal.core.peer_messages`.

A task is pushed at most once, by the scheduler that found it ready, and never after it was stolen: two schedulers
cannot pass it back and forth. Tasks travel in transfers that are repeated until the receiver acknowledges them. If the
receiver dies instead, the store makes its tasks ready again with a new generation of attempt numbers, which fences all
earlier attempts.

An idle scheduler asks several peers for their load and steals from the one with the most tasks. It never stops asking:
the interval between two rounds grows up to a limit. In addition, a scheduler with surplus tasks wakes the peers whose
requests it could not satisfy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import islice
from math import ceil, inf
from random import Random
from typing import TypeAlias

import msgspec

from shoal.core.distribution import ALL, Distribution, Distributor
from shoal.core.peer_messages import (
    HandBack,
    LoadReply,
    LoadRequest,
    PeerMessageReceived,
    PeersChanged,
    PolicyChanged,
    Prefetch,
    QueueNearlyEmpty,
    ReadyTask,
    Roster,
    Send,
    StealRequest,
    TasksPlaced,
    TaskTransfer,
    TransferReceivedReply,
    Transfers,
    WorkAvailableEvent,
)
from shoal.core.policies.order import TwoLevelQueue
from shoal.core.policies.placement import ANYWHERE, SHORTEST_TASK, Gathering, Placement, divide, is_worth_dividing
from shoal.core.policies.retry import AttemptOutcome
from shoal.core.policies.stealing import DEFAULT_POLICY, THRESHOLD, Release, Stealing, policy_named
from shoal.core.scheduler import Scheduler, TaskState
from shoal.core.scheduler_messages import (
    CancelRequested,
    CapacityChanged,
    Command,
    Cramped,
    DrainRequested,
    GiveUp,
    Start,
    TaskResult,
    TasksEnded,
    TimePassed,
    WakeAt,
)
from shoal.core.scheduler_messages import Event as BrokerEvent
from shoal.core.steal_rounds import StealRounds

MOST_COMPARED = 1024
"""Maximum number of tasks examined for one choice."""
SMALLEST_SHARE = 1 / 16
"""Smallest part of a queue given to a thief. When tasks are chosen by their files, the thief returns for more, so it
need not be half."""


class DataAffinity:
    """Chooses tasks by the files that they read, for one node."""

    def __init__(self, here: int, scheduler: Scheduler, gathering: Gathering) -> None:
        assert isinstance(scheduler.queue, TwoLevelQueue)
        self._here, self._scheduler, self._tiers = here, scheduler, scheduler.queue
        self.gathering = gathering

    def divided(
        self, event: TasksPlaced, nodes: Sequence[int], placement: Placement
    ) -> dict[int, list[ReadyTask]] | None:
        """Divides the tasks of an event among nodes; None if they need not be divided together."""
        if not event.holdings:
            return None
        gathering, tickets = self.gathering, {ticket.task: ticket for ticket in event.tickets}
        tasks = list(tickets)
        if len(tasks) < len(event.tickets) or not is_worth_dividing(event.holdings, len(nodes)):
            return None
        most = max(range(len(tasks)), key=lambda at: sum([amount for _, amount in event.holdings[at]]))
        if not self._takes_long(tasks[most], sum([amount for _, amount in event.holdings[most]]), placement):
            return None
        shares = divide(gathering.work, tasks, event.holdings, nodes, gathering.size)
        return {node: [tickets[task] for task in share] for node, share in shares.items()}

    def _counts(self, task: int, placement: Placement) -> bool:
        return self._takes_long(task, self.gathering.weight(task), placement)

    def _takes_long(self, task: int, weight: int, placement: Placement) -> bool:
        """Whether moving the data takes long compared with the task; also true while the task's duration is unknown."""
        seconds = self._scheduler.lanes[self._scheduler.columns.lane[task]].mean_duration or SHORTEST_TASK
        return placement.choose(self._here, ((self._here, weight),), seconds) != ANYWHERE

    def started(self, commands: Sequence[object]) -> None:
        """Records the files that arrive here because of started tasks."""
        for command in commands:
            if type(command) is Start:
                for task in command.tasks:
                    self.gathering.started(task)

    def choose_next(self, cores: int, placement: Placement) -> None:
        """Moves the tasks that fit best to the local files to the front. Used when no task is local to this node."""
        tiers = self._tiers
        if tiers.local or not tiers.shared_tasks or not self._counts(next(iter(tiers.shared_tasks)), placement):
            return
        some = islice(tiers.shared_tasks, MOST_COMPARED)
        tiers.claim(self.gathering.choose(some, self.gathering.near, 2 * cores))

    def part(self, request: StealRequest, nodes: int, placement: Placement) -> float | None:
        """Fraction of the shared queue that a thief gets; None if data plays no role."""
        shared = self._tiers.shared_tasks
        if not request.near or not shared or not self._counts(next(iter(shared)), placement):
            return None
        return max(1 / nodes, SMALLEST_SHARE)

    def share_of(self, request: StealRequest, count: int, without: Collection[int], bandwidth: float) -> list[int]:
        """Up to `count` tasks that suit the files of the thief; none if it would finish them later than this node.

        Tasks of the lanes in `without` are not given.
        """
        lane_of = self._scheduler.columns.lane
        some = islice(self._tiers.shared_tasks, max(MOST_COMPARED, count))
        tasks = [task for task in some if lane_of[task] not in without] if without else some
        near = frozenset(request.near)
        chosen = self.gathering.choose(tasks, near, count)
        return chosen if chosen and self._is_worth_moving(chosen[0], near, bandwidth) else []

    def _is_worth_moving(self, task: int, near: Collection[int], bandwidth: float) -> bool:
        """Whether a thief could start the task before this node had finished its whole queue."""
        gathering, scheduler = self.gathering, self._scheduler
        missing = sum(gathering.size(file) for file in gathering.work.inputs_of(task) if file not in near)
        lanes = {scheduler.columns.lane[task], *(bundle.lane for bundle in scheduler.running.values())}
        known = [scheduler.lanes[lane].mean_duration for lane in lanes]
        longest = max((seconds for seconds in known if seconds is not None), default=0.0)
        if None in known:
            return True
        return (
            missing / bandwidth
            < (len(self._tiers) + len(scheduler.running)) * longest / scheduler.contract.whole_cores()
        )


MOST_PARKED = 64
MOST_UNWANTED = 10_000
"""Maximum number of cancelled tasks that are remembered; messages in flight at the time of a cancellation have arrived
long before this limit matters."""
SURPLUS = 2
"""Tasks per core in the shared queue beyond which waiting peers are informed that there is work."""
Event: TypeAlias = BrokerEvent | TasksPlaced | PeerMessageReceived | PeersChanged | QueueNearlyEmpty | PolicyChanged
MemberCommand: TypeAlias = Command | Send | Prefetch | HandBack


class PeerOptions(msgspec.Struct, frozen=True):
    """How a node shares tasks with its peers."""

    policy: str = DEFAULT_POLICY
    threshold: float = THRESHOLD
    patience: float | None = None
    """Seconds that a task may wait for the node that has its data; None: as the policy says."""
    stealing: Stealing | None = None
    look_ahead: int = 0
    """Number of queued tasks whose inputs are fetched before they start."""
    seed: int = 0


class PeerScheduler:
    """The scheduler of one node in a cluster."""

    def __init__(
        self,
        here: int,
        scheduler: Scheduler,
        roster: Roster,
        options: PeerOptions | None = None,
        *,
        bandwidth: float = 125e6,
        gathering: Gathering | None = None,
    ) -> None:
        """`gathering`: the files that the node has; None: all nodes have the same files, or there are none."""
        options = options or PeerOptions()
        assert isinstance(scheduler.queue, TwoLevelQueue), "a peer scheduler needs a two-level queue"
        self.here = here
        self.broker = scheduler
        scheduler.has_peers = True
        self.tiers = scheduler.queue
        self.roster = roster
        self.stealing = options.stealing or Stealing()
        self.rounds = StealRounds(here, scheduler, self.stealing, Random(options.seed * 1_000_003 + here))
        self.gathering = gathering
        self._nearness = DataAffinity(here, scheduler, gathering) if gathering is not None else None
        self._bandwidth, self._threshold, self._patience = bandwidth, options.threshold, options.patience
        self._set_policy(options.policy)
        self.dealer = Distributor(here, scheduler.lanes, roster)
        self.parcels = Transfers()
        self.parked: dict[int, tuple[int, ...]] = {}
        """Peers whose steal requests failed, the longest waiting first, with the lanes of which they can start
        nothing."""
        self.unwanted: dict[int, None] = {}
        """Cancelled tasks; one that is still in transit to this node ends when it arrives."""
        self.little_left = False
        self.look_ahead = options.look_ahead
        self._ahead: dict[int, None] = {}
        """The latest tasks whose inputs were prefetched."""
        self.timer = inf
        """The earliest wake-up that this class has requested; wake-ups of the inner scheduler are separate."""
        self._handlers = self._build_handlers()
        self._hearers: dict[type, Callable[..., None]] = {
            LoadRequest: self._on_load_request,
            LoadReply: self.rounds.on_load_reply,
            StealRequest: self._on_steal_request,
            TaskTransfer: self._on_transfer,
            TransferReceivedReply: self._on_transfer_received,
            WorkAvailableEvent: self._on_work_available,
        }

    def _build_handlers(self) -> dict[type, Callable[..., None]]:
        """Handlers of the events that the inner scheduler does not know."""
        return {
            TasksPlaced: self._on_placed,
            PeerMessageReceived: self._on_peer_message,
            PeersChanged: self._on_peers,
            QueueNearlyEmpty: self._on_little_left,
            PolicyChanged: self._on_policy,
            TasksEnded: self._on_ended,
            CancelRequested: self._on_cancel,
            CapacityChanged: self._on_capacity,
            DrainRequested: self._on_drain,
            TimePassed: self._on_time,
        }

    def handle(self, now: float, event: Event) -> list[MemberCommand]:
        """Processes one event. Returns commands in the order in which they must be executed."""
        commands: list[MemberCommand] = []
        nearness = self.nearness
        if nearness is not None and self.tiers.shared_tasks and not self.tiers.local and not self.little_left:
            nearness.choose_next(self.broker.contract.whole_cores(), self.placement)
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(now, event, commands)
        else:
            self.broker.take_in(now, event, commands)  # type: ignore[arg-type]
        if nearness is not None and commands:
            nearness.started(commands)
        tiers, rounds = self.tiers, self.rounds
        if rounds.is_open:
            if now >= rounds.deadline:
                rounds.next_victim(now, commands)  # peers that have not replied by now are skipped
        elif now >= rounds.next_try:
            rounds.begin(now, self.roster, commands)
        if self.look_ahead and (tiers.local or tiers.shared_tasks) and not rounds.is_open:
            self._prepare(commands)
        if rounds.is_open or self.parcels.unsettled or rounds.next_try > now:
            self._set_timer(now, commands)
        return commands

    def links_measured(self, bandwidth: float) -> None:
        """Updates the bandwidth of transfers to this node, as measured by the driver, in bytes per second."""
        self._bandwidth = bandwidth
        self.placement.set_bandwidth(bandwidth)

    def idle_cores(self) -> int:
        """Number of cores on which a task could start immediately."""
        return self.rounds.idle_cores()

    def _set_policy(self, name: str) -> None:
        policy = policy_named(name)
        self.policy = name
        self.nearness = self._nearness if policy.gathers else None
        self.rounds.near = self.nearness.gathering.advertised if self.nearness is not None else tuple
        self.placement = policy.placement(self._threshold, self._bandwidth)
        patience = policy.patience if self._patience is None or policy.patience == inf else self._patience
        self.release = Release(patience, self.broker.contract.whole_cores())

    # ---- tasks arrive --------------------------------------------------------------------------------------------

    def _on_placed(self, now: float, event: TasksPlaced, commands: list[MemberCommand]) -> None:
        """Finds a node for each task; starts those that stay here if resources are free."""
        deal = Distribution()
        if event.tickets and event.tickets[0].cramped is not None:
            self._redirect_for_room(now, event.tickets, commands)
            return
        shares = self._divided(event)
        if shares is not None:
            self.little_left = False  # a `QueueNearlyEmpty` event will confirm it
            kept = shares.pop(self.here, [])
            local = [ticket.task for ticket in kept]
            for node, share in shares.items():
                for ticket in share:
                    deal.push(node, ticket)
        elif event.to or self.dealer.has_preferences or (event.holdings and not self.little_left):
            kept, local = self._choose(event, deal)
        else:
            kept, local = event.tickets, []
        kept = self._fitting(kept, commands, deal)
        if local:
            fitting = {ticket.task for ticket in kept}
            for task in local:
                if task in fitting:
                    self.tiers.make_local(task)
        for peer, tickets, is_dealt in deal.parcels():
            parcel = self.parcels.wrap(now, peer, tickets, len(self.tiers.shared), dealt=is_dealt)
            commands.append(Send(peer, parcel))
        self._take_in(now, kept, commands)

    def _divided(self, event: TasksPlaced) -> dict[int, list[ReadyTask]] | None:
        """Tasks per node for many tasks with scattered data; None if each task is placed individually."""
        if self.nearness is None or event.to not in ("", ALL):
            return None
        if self.dealer.has_preferences or not self.dealer.is_homogeneous():
            return None
        return self.nearness.divided(event, self.roster.ids, self.placement)

    def _redirect_for_room(self, now: float, tickets: list[ReadyTask], commands: list[MemberCommand]) -> None:
        """Sends tasks whose inputs do not fit on this node to nodes that may have room; fails those that fit
        nowhere."""
        deal = Distribution()
        for ticket in tickets:
            assert ticket.cramped is not None
            node = self.dealer.roomy(self.broker.columns.lane[ticket.task], ticket.cramped)
            if node == ANYWHERE:
                commands.append(self._give_up_for_room(ticket, ticket.cramped))
            else:
                deal.deal(node, ticket)
        for peer, some, is_dealt in deal.parcels():
            commands.append(Send(peer, self.parcels.wrap(now, peer, some, len(self.tiers.shared), dealt=is_dealt)))

    def _give_up_for_room(self, ticket: ReadyTask, cramped: Cramped) -> GiveUp:
        request = self.broker.lanes[self.broker.columns.lane[ticket.task]].resources
        disk = self.roster.largest_disk(request)
        most = disk if disk and disk < cramped.need else cramped.most
        return GiveUp(ticket.task, ticket.attempt, AttemptOutcome.NO_ROOM, msgspec.structs.replace(cramped, most=most))

    def _choose(self, event: TasksPlaced, deal: Distribution) -> tuple[list[ReadyTask], list[int]]:
        """Returns the tasks that stay here and which of them are local; puts the others into the distribution."""
        lanes, lane_of, here, peers = self.broker.lanes, self.broker.columns.lane, self.here, self.roster.known
        dealer, wishes, to = self.dealer, self.dealer.has_preferences, event.to
        keeps_preferences = self.release.first < inf  # without release, preferred labels could make tasks wait forever
        kept: list[ReadyTask] = []
        local: list[int] = []
        dealt: dict[int, int] = {}
        everything = event.holdings or [()] * len(event.tickets)
        for ticket, holdings in zip(event.tickets, everything, strict=True):
            lane = lane_of[ticket.task]
            node, belongs = ANYWHERE, keeps_preferences
            if wishes:
                node = dealer.preferred(lane, holdings, dealt)
            if node == ANYWHERE and holdings and not self.little_left:
                node = self.placement.choose(here, dealer.allowed(lane, holdings), lanes[lane].mean_duration)
                belongs = True
            if node == ANYWHERE and to:
                node, belongs = dealer.share_of(ticket.task, lane, to), False
            if node == here or node not in peers:
                kept.append(ticket)
                if belongs and node == here:
                    local.append(ticket.task)
            elif belongs:
                deal.push(node, ticket)
            else:
                deal.deal(node, ticket)
        return kept, local

    def _take_in(self, now: float, tickets: list[ReadyTask], commands: list[MemberCommand]) -> None:
        if tickets:
            self.rounds.has_work()
        self.broker.receive(tickets)
        if self.nearness is not None and not self.tiers.local and not self.little_left:
            self.nearness.choose_next(self.broker.contract.whole_cores(), self.placement)
        self.broker.advance(commands)  # type: ignore[arg-type]
        if self.tiers.local:
            self._release_waiting(commands)
        self._wake_parked_peers(commands)

    def _fitting(
        self, tickets: list[ReadyTask], commands: list[MemberCommand], deal: Distribution | None = None
    ) -> list[ReadyTask]:
        """Tasks that are wanted and fit on this node; others go into the distribution or are handed back."""
        hopeless, lane_of, held = self.broker.contract.hopeless, self.broker.columns.lane, self.broker.state
        if not hopeless and not self.unwanted and not held:
            return tickets
        fitting = []
        for ticket in tickets:
            task = ticket.task
            if task in held:  # it has already arrived in another way
                if ticket.is_later_than(self.broker.attempt.get(task, 0)):
                    self._replace_outdated(ticket, commands)
            elif task not in self.unwanted:
                if lane_of[task] in hopeless:
                    another = ANYWHERE if deal is None else self.dealer.another(lane_of[task])
                    if deal is None or another == ANYWHERE:
                        commands.append(HandBack(ticket, self.broker.lanes[lane_of[task]].resources))
                    else:
                        deal.deal(another, ticket)
                else:
                    fitting.append(ticket)
        return fitting

    def _replace_outdated(self, ticket: ReadyTask, commands: list[MemberCommand]) -> None:
        """Replaces a task of which a later generation has arrived: the earlier one is fenced."""
        if self.broker.state[ticket.task] in (TaskState.QUEUED, TaskState.RESTING):
            self.broker.attempt[ticket.task] = ticket.attempt
        else:
            commands.append(HandBack(ticket))

    # ---- releasing tasks -----------------------------------------------------------------------------------------

    def _release_waiting(self, commands: list[MemberCommand]) -> None:
        """Moves local tasks that would wait too long for this node to the shared queue."""
        local = self.tiers.local
        if not local:
            return
        everything = self.little_left or self.broker.draining
        surplus = len(local) if everything else self._surplus(len(local), next(iter(local)))
        if surplus:
            self.tiers.release(surplus)
            if not self.little_left:
                self.release.has_released()
            self._wake_parked_peers(commands)

    def _surplus(self, local: int, task: int) -> int:
        """Number of surplus tasks in a local queue of this length that contains this task."""
        return self.release.surplus(local, self.broker.lanes[self.broker.columns.lane[task]].mean_duration)

    def _wake_parked_peers(self, commands: list[MemberCommand]) -> None:
        """Wakes a few parked peers. Each steals half of what it finds and wakes others in turn, so a few are enough."""
        if not self.parked:
            return
        load = len(self.tiers.shared)
        surplus = load - SURPLUS * self.broker.contract.whole_cores() if not self.little_left else load
        woken = max(surplus, 0).bit_length()
        if not woken:
            return
        there: dict[tuple[int, ...], int] = {(): load}
        for peer, unable in list(self.parked.items()):
            if unable not in there:
                there[unable] = self._load_for(unable)
            if there[unable]:
                del self.parked[peer]
                commands.append(Send(peer, WorkAvailableEvent(load)))
                woken -= 1
                if not woken:
                    return

    def _send_stolen(self, now: float, peer: int, request: StealRequest, commands: list[MemberCommand]) -> None:
        """Replies to a steal request. Anything still queued is surplus: if it could run here, it would be running."""
        shared, round = self.tiers.shared, request.round
        chosen = self.chosen_for(peer, request)
        if not chosen:
            commands.append(Send(peer, TaskTransfer(0, [], 0, round)))
            self._park(peer, request.unable)
            return
        tickets = self.broker.give_away(chosen)
        commands.append(Send(peer, self.parcels.wrap(now, peer, tickets, len(shared), round)))

    def chosen_for(self, peer: int, request: StealRequest) -> list[int]:
        """Tasks for a thief; none if it cannot start any of them, or would start them too late."""
        shared, near = self.tiers.shared, self.nearness
        load = self._load_for(request.unable) if request.unable else len(shared)
        part = near.part(request, len(self.roster.ids), self.placement) if near is not None else None
        count = load if self.broker.draining else ceil((part or self.stealing.share) * load)
        without = self._lanes_of(request.unable)
        if near is not None and part is not None and not self.broker.draining:
            chosen = near.share_of(request, count, without, self._bandwidth)
        else:
            chosen = self.tiers.lightest(shared, count, without)
        return [task for task in chosen if self._has_room(peer, task)] if self.broker.cramped else chosen

    def _has_room(self, peer: int, task: int) -> bool:
        """Whether another node may have room for the inputs of a task."""
        cramped = self.broker.cramped.get(task)
        if cramped is None:
            return True
        return peer in self.roster.roomy(self.broker.lanes[self.broker.columns.lane[task]].resources, cramped)

    def _load_for(self, unable: tuple[int, ...]) -> int:
        """Number of tasks available to a thief that can start nothing of the lanes in `unable`."""
        shared = self.tiers.shared
        return len(shared) - sum(shared.queued_in(lane) for lane in self._lanes_of(unable))

    def _lanes_of(self, unable: tuple[int, ...]) -> list[int]:
        """Lanes of the shared queue that the lanes named by a peer refer to, including lanes derived from them."""
        if not unable:
            return []
        return [lane for lane in self.tiers.shared.lanes() if self.broker.origin(lane) in unable]

    def _park(self, peer: int, unable: tuple[int, ...]) -> None:
        if len(self.parked) < MOST_PARKED or peer in self.parked:
            self.parked[peer] = unable
        if self.tiers.local:
            self.release.thief_failed()

    def _prepare(self, commands: list[MemberCommand]) -> None:
        """Prefetches inputs of queued tasks while others run: one task for each task that starts.

        With more, tasks that arrive in many transfers would fill the links with data that is not needed soon.
        """
        starts = sum([type(command) is Start for command in commands])
        for task in self.tiers.peek(self.look_ahead) if starts else ():
            if starts and task not in self._ahead:
                starts -= 1
                if len(self._ahead) >= 4 * self.look_ahead:
                    del self._ahead[next(iter(self._ahead))]
                self._ahead[task] = None
                commands.append(Prefetch(task))

    # ---- messages ------------------------------------------------------------------------------------------------

    def _on_peer_message(self, now: float, event: PeerMessageReceived, commands: list[MemberCommand]) -> None:
        peer, message = event.peer, event.message
        if peer not in self.roster.known:
            return  # its tasks have been placed again: a late message must not bring back one of them
        self._hearers[type(message)](now, peer, message, commands)

    def _on_load_request(self, now: float, peer: int, request: LoadRequest, commands: list[MemberCommand]) -> None:
        if self.tiers.local:
            self._release_waiting(commands)
        load = self._load_for(request.unable) if request.unable else len(self.tiers.shared_tasks)
        if not load:
            self._park(peer, request.unable)
        commands.append(Send(peer, LoadReply(request.round, load)))

    def _on_steal_request(self, now: float, peer: int, request: StealRequest, commands: list[MemberCommand]) -> None:
        self._release_waiting(commands)
        self._send_stolen(now, peer, request, commands)

    def _on_transfer_received(
        self, now: float, peer: int, reply: TransferReceivedReply, commands: list[MemberCommand]
    ) -> None:
        self.parcels.settle(reply.number)
        if reply.load:
            self.rounds.promising = peer

    def _on_work_available(
        self, now: float, peer: int, message: WorkAvailableEvent, commands: list[MemberCommand]
    ) -> None:
        self.rounds.ask_at_once(now, peer, commands)

    def _on_transfer(self, now: float, peer: int, parcel: TaskTransfer, commands: list[MemberCommand]) -> None:
        answers_us = self.rounds.is_answered_by(parcel)
        if parcel.number:
            fresh = self.parcels.is_fresh(peer, parcel)
            commands.append(Send(peer, TransferReceivedReply(parcel.number, len(self.tiers.shared))))
            if parcel.load and parcel.load > SURPLUS:
                self.rounds.promising = peer
            if answers_us:
                self.rounds.close()
            if fresh:
                tickets = self._fitting(parcel.tickets, commands)
                is_pushed = not parcel.round and not parcel.dealt
                if is_pushed and not self.little_left and not self.broker.draining:
                    self._mark_local(tickets)
                self._take_in(now, tickets, commands)
        else:
            self.rounds.has_declined(now, peer)
            if answers_us:
                self.rounds.next_victim(now, commands)

    def _mark_local(self, tickets: list[ReadyTask]) -> None:
        """Makes tasks local that were sent because their data is here; tasks that would wait too long stay shared."""
        if not tickets:
            return
        room = len(tickets) - self._surplus(len(self.tiers.local) + len(tickets), tickets[0].task)
        for ticket in tickets[: max(0, room)]:
            self.tiers.make_local(ticket.task)

    # ---- other events --------------------------------------------------------------------------------------------

    def _on_ended(self, now: float, event: TasksEnded, commands: list[MemberCommand]) -> None:
        self.broker.take_in(now, event, commands)  # type: ignore[arg-type]
        if self.tiers.own is not self.tiers.shared:  # there have been local tasks that could be released
            self.release.completed(now, len(event.results))
        for result in event.results:
            if result.outcome is AttemptOutcome.NO_ROOM and result.room < result.need:
                self._move_for_room(result, commands)
        if self.broker.contract.hopeless:
            self._hand_back(self.broker.contract.hopeless, commands)

    def _move_for_room(self, result: TaskResult, commands: list[MemberCommand]) -> None:
        """A task whose inputs never fit here, even if it runs alone, goes to a node with room for them, or fails."""
        task, scheduler = result.task, self.broker
        if scheduler.state.get(task) is not TaskState.RESTING or scheduler.attempt[task] != result.attempt:
            return
        before = scheduler.cramped.get(task, Cramped(0))
        cramped = Cramped(result.need, (*before.tried, self.here), max(before.most, result.room))
        (ticket,) = scheduler.give_away([task])
        request = scheduler.lanes[scheduler.columns.lane[task]].resources
        if self.roster.roomy(request, cramped):
            commands.append(HandBack(msgspec.structs.replace(ticket, cramped=cramped), for_room=True))
        else:
            commands.append(self._give_up_for_room(ticket, cramped))

    def _on_peers(self, now: float, event: PeersChanged, commands: list[MemberCommand]) -> None:
        """Updates the roster. The tasks in transfers to a lost peer are made ready again through the store."""
        self.roster = event.roster
        self.dealer.set_roster(event.roster)
        known = self.roster.known
        self.parcels.forget_others(known)
        self.parked = {peer: unable for peer, unable in self.parked.items() if peer in known}
        self.rounds.forget_others(known)

    def _on_little_left(self, now: float, event: QueueNearlyEmpty, commands: list[MemberCommand]) -> None:
        self.little_left = event.is_so
        self._release_waiting(commands)

    def _on_policy(self, now: float, event: PolicyChanged, commands: list[MemberCommand]) -> None:
        self._set_policy(event.policy)
        self._release_waiting(commands)

    def _on_cancel(self, now: float, event: CancelRequested, commands: list[MemberCommand]) -> None:
        held = self.broker.state
        self.unwanted.update((task, None) for task in event.tasks if task not in held)
        while len(self.unwanted) > MOST_UNWANTED:
            del self.unwanted[next(iter(self.unwanted))]
        commands += self.broker.handle(now, event)

    def _on_capacity(self, now: float, event: CapacityChanged, commands: list[MemberCommand]) -> None:
        """Hands back tasks for which this node has become too small; they may fit elsewhere."""
        lanes = self.broker.lanes
        self._hand_back([at for at, lane in enumerate(lanes) if lane.resources.lacking_in(event.node)], commands)
        commands += self.broker.handle(now, event)

    def _hand_back(self, hopeless: Collection[int], commands: list[MemberCommand]) -> None:
        """Hands back the tasks that are queued or resting in these lanes."""
        scheduler, lane_of = self.broker, self.broker.columns.lane
        waits = (TaskState.QUEUED, TaskState.RESTING)
        misfits = [task for task, state in scheduler.state.items() if state in waits and lane_of[task] in hopeless]
        for ticket in scheduler.give_away(misfits):
            commands.append(HandBack(ticket, scheduler.lanes[lane_of[ticket.task]].resources))

    def _on_drain(self, now: float, event: DrainRequested, commands: list[MemberCommand]) -> None:
        """No task starts here any more: peers may take all of them."""
        commands += self.broker.handle(now, event)
        self._release_waiting(commands)

    def _on_time(self, now: float, event: TimePassed, commands: list[MemberCommand]) -> None:
        """The driver's alarm (`Alarm`) has fired and is unset; requests it again for whatever is due later.

        Otherwise a message that arrives in the turn in which a timer is due, and moves it, would leave no alarm set.
        """
        self.timer = inf
        self.broker.take_in(now, event, commands)  # type: ignore[arg-type]

    def _set_timer(self, now: float, commands: list[MemberCommand]) -> None:
        """Requests a wake-up for the earliest deadline, and resends transfers that have not been acknowledged."""
        moment = inf
        if self.parcels.unsettled:
            commands += [Send(peer, parcel) for peer, parcel in self.parcels.due(now)]
            moment = self.parcels.next_due()
        rounds = self.rounds
        if rounds.is_open:
            moment = min(moment, rounds.deadline)
        elif now < rounds.next_try < moment and (not self.tiers or rounds.is_searching(self.roster)):
            moment = rounds.next_try
        if moment < self.timer or self.timer <= now:
            self.timer = moment
            if moment < inf:
                commands.append(WakeAt(moment))


class Alarm:
    """The single alarm of one peer scheduler, for its driver."""

    def __init__(self) -> None:
        self.when = inf

    def set(self, when: float) -> None:
        """Sets the alarm to this time unless it is set to an earlier one."""
        self.when = min(when, self.when)

    def goes_off(self, now: float) -> bool:
        """Whether the alarm is due; true once per alarm."""
        if now < self.when:
            return False
        self.when = inf
        return True
