"""Simulates a workflow on a cluster: real peer schedulers and a real store, with virtual nodes, links and time.

The loop takes the next event from a heap, passes it to the scheduler of its node, and executes the commands that
follow. It makes no scheduling decisions. `shoal.sim.cluster.faulty_run` adds faults by overriding methods of
`ClusterRun`. Runs are deterministic for a given seed.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from random import Random
from typing import Any

import msgspec

from shoal.core.peer_messages import (
    HandBack,
    Message,
    PeerMessageReceived,
    Prefetch,
    QueueNearlyEmpty,
    ReadyTask,
    Roster,
    Send,
    TasksPlaced,
    TaskTransfer,
)
from shoal.core.peer_scheduler import Event, MemberCommand, PeerOptions, PeerScheduler
from shoal.core.policies.order import DEFAULT_ORDER, ORDERS, TaskColumns, TwoLevelQueue
from shoal.core.policies.placement import Gathering, is_of_use
from shoal.core.policies.retry import AttemptOutcome
from shoal.core.policies.stealing import DEFAULT_POLICY, THRESHOLD, Stealing
from shoal.core.resources import Resources
from shoal.core.scheduler import Lane, Scheduler
from shoal.core.scheduler_messages import Accept, GiveUp, Kill, Retry, Start, TaskResult, TasksEnded, TimePassed, WakeAt
from shoal.core.store.memory import MemoryStore, ReadyBatch
from shoal.core.work import Work
from shoal.sim.cluster.files import Activity, ModelledFiles, Pipe
from shoal.sim.cluster.result import RunCounters, SimulationResult
from shoal.sim.cluster.specification import ClusterSpec, NodeSpec

SUBMISSIONS = ("all", "one")


class SimulationOptions(msgspec.Struct, frozen=True):
    """Scheduling options, with the same names as in a live run."""

    policy: str = DEFAULT_POLICY
    order: str = DEFAULT_ORDER
    stealing: Stealing = Stealing()
    threshold: float = THRESHOLD
    patience: float | None = None
    """Seconds that a task may wait for a node with its data; None: as the policy decides."""
    look_ahead: int = 1
    """Number of queued tasks per core whose inputs are prefetched."""
    submission: str = "all"
    """Where the first tasks go: to all nodes in random order (`all`), to one node (`one`), or, for a label, to one node
    that distributes them among the nodes with it."""
    estimated: bool = True
    """Whether the mean duration of each category is known in advance, as it is after earlier runs."""
    seed: int = 0


def mean_seconds(work: Work) -> list[float | None]:
    """Mean duration of the tasks of each category."""
    total, count = [0.0] * len(work.profiles), [0] * len(work.profiles)
    for category, seconds in zip(work.category, work.seconds, strict=True):
        total[category] += seconds
        count[category] += 1
    return [one / many if many else None for one, many in zip(total, count, strict=True)]


class ClusterRun:
    """One simulated run; `execute` runs it to the end."""

    def __init__(self, work: Work, spec: ClusterSpec, options: SimulationOptions | None = None) -> None:
        self.work, self.spec, self.options = work, spec.check(), options or SimulationOptions()
        self.random = Random(self.options.seed)
        self.now = 0.0
        self.heap: list[tuple[float, int, Callable[..., None], Any, Any]] = []
        self.post: deque[tuple[float, int, Callable[..., None], Any, Any]] = deque()
        """Messages, which all have the same latency. They arrive in the order of sending, so they need no heap."""
        self._serial = 0
        self.store = MemoryStore(work, spec.nodes, shared_files=spec.shared_files)
        self.files = ModelledFiles(work, spec, self.store)
        self.columns = TaskColumns(
            lane=array("i", iter(work.category)),
            rank=work.rank if any(work.rank) else (),
            input_bytes=work.weight,
            upward_length=work.upward_length,
        )
        self.members: dict[int, PeerScheduler] = {}
        self.kinds: dict[int, NodeSpec] = {}
        self.activities: dict[int, dict[int, Activity]] = {}
        """Running attempts, by node and task."""
        self.tally = RunCounters(work, spec)
        self._means = mean_seconds(work) if self.options.estimated else [None] * len(work.profiles)
        self._waiting_for_store = spec.store_latency > 0
        self._little_left = False
        self._at_home: dict[int, list[int]] | None = None
        """By node, the source files that it has at the start; None if files play no role."""
        if self.files.is_distributed and is_of_use(work):
            at_home = self._at_home = {}
            for file, home in enumerate(work.file_home):
                if home >= 0:
                    at_home.setdefault(home % spec.nodes, []).append(file)
        self.roster = Roster(range(spec.nodes), self._capacities())
        for node in range(spec.nodes):
            self.join(node, spec.kind(node))

    def _capacities(self) -> dict[int, Resources]:
        """Capacity of each node, with one shared object per kind of node, to save memory."""
        spec = self.spec
        values = {id(kind): kind.resources() for kind in (spec.node, *(kind for _, kind in spec.others))}
        return {node: values[id(spec.kind(node))] for node in range(spec.nodes)}

    def join(self, node: int, kind: NodeSpec) -> None:
        """Adds a node with an empty scheduler; the caller informs the other nodes."""
        options, work = self.options, self.work
        capacity = kind.resources()
        lanes = [
            Lane(profile.resources, profile.retries, mean_duration=mean, prefers=profile.prefers)
            for profile, mean in zip(work.profiles, self._means, strict=True)
        ]
        order, cores, random = ORDERS[options.order], kind.cores, Random(options.seed + node)
        tiers = TwoLevelQueue(lambda: order(self.columns, cores, random), work.weight)
        scheduler = Scheduler(capacity, self.columns, lanes, queue=tiers)
        self.members[node] = PeerScheduler(
            node,
            scheduler,
            self.roster,
            PeerOptions(
                policy=options.policy,
                threshold=options.threshold,
                patience=options.patience,
                stealing=options.stealing,
                look_ahead=options.look_ahead * kind.cores if self.files.is_distributed else 0,
                seed=options.seed,
            ),
            bandwidth=kind.link,
            gathering=self._gathering(node),
        )
        self.kinds[node] = kind
        self.activities[node] = {}
        self.files.join(node, kind)

    def _gathering(self, node: int) -> Gathering | None:
        """Source files that a node has at the start, for placement."""
        return Gathering(self.work, self._at_home.get(node, ())) if self._at_home is not None else None

    # ---- main loop -----------------------------------------------------------------------------------------------

    def execute(self) -> SimulationResult:
        """Runs until all tasks have ended."""
        self.submit(self.store.begin())
        heap, post = self.heap, self.post
        store = self.store
        while store.left:
            if post and (not heap or post[0] < heap[0]):
                self.now, _, action, one, other = post.popleft()
            elif heap:
                self.now, _, action, one, other = heappop(heap)
            else:
                raise AssertionError(f"{store.left} tasks wait for an event that never comes")
            action(one, other)
        return self.tally.played(self)

    def at(self, when: float, action: Callable[..., None], one: Any, other: Any) -> None:
        self._serial += 1
        heappush(self.heap, (when, self._serial, action, one, other))

    def submit(self, placeable: ReadyBatch) -> None:
        """Sends the first tasks to the schedulers."""
        tickets, holdings = placeable.tickets, placeable.holdings
        nodes, to = sorted(self.members), self.options.submission
        if to != "all":
            shares: dict[int, Sequence[int]] = {self.random.choice(nodes): range(len(tickets))}
        else:
            dealt = list(range(len(tickets)))
            if holdings:  # otherwise all tasks are alike
                self.random.shuffle(dealt)
            shares = {node: dealt[at :: len(nodes)] for at, node in enumerate(nodes)}
        for node, share in shares.items():
            mine = [tickets[at] for at in share]
            self.store.owned([ticket.task for ticket in mine], node)
            label = to if to not in SUBMISSIONS else ""
            self.deliver(node, TasksPlaced(mine, [holdings[at] for at in share] if holdings else [], label))
        for node in nodes:  # nodes without tasks start to steal
            if not len(self.members[node].tiers) and not self.activities[node]:
                self.deliver(node, TimePassed())

    def deliver(self, node: int, event: Event) -> None:
        member = self.members.get(node)
        if member is not None:
            self.execute_commands(node, member.handle(self.now, event))

    def execute_commands(self, node: int, commands: Sequence[MemberCommand]) -> None:
        """Executes the commands of a scheduler."""
        accepted: list[tuple[int, int]] = []
        for command in commands:
            kind = type(command)
            if kind is Accept:
                accepted.append((command.task, command.attempt))  # type: ignore[union-attr]
            elif kind is Start:
                for task, attempt in zip(command.tasks, command.attempts):  # type: ignore[union-attr]  # noqa: B905
                    self.start(node, task, attempt)
            elif kind is Send:
                self.send(node, command.peer, command.message)  # type: ignore[union-attr]
            elif kind is WakeAt:
                self.at(command.when, self.wake, node, command.when)  # type: ignore[union-attr]
            else:
                self._execute_rare(node, command)
        if accepted:
            if self._waiting_for_store:
                self.at(self.now + self.spec.store_latency, self.complete, node, accepted)
            else:
                self.complete(node, accepted)

    def _execute_rare(self, node: int, command: MemberCommand) -> None:
        match command:
            case GiveUp(task, attempt, outcome):
                if outcome is AttemptOutcome.MISSING:
                    self.place_again(self.store.missing(ReadyTask(task, attempt)), node)
                else:
                    self.store.give_up(task)
            case Kill(task, attempt):
                activity = self.activities[node].pop(task, None)
                if activity is not None:
                    activity.over = True
                    self.tally.stopped(self.now, activity)
                    self.deliver(node, TasksEnded([TaskResult(task, attempt, command.outcome)]))
            case Prefetch(task):
                self.prefetch(node, task)
            case HandBack(ticket, _, True):
                self.deliver(node, TasksPlaced([ticket]))
            case HandBack(ticket):
                self.find_larger_node(node, ticket)
            case Retry():
                pass

    def wake(self, node: int, when: float) -> None:
        """Wakes a scheduler at the requested time, unless it has changed its timer since."""
        member = self.members.get(node)
        if member is not None and (member.timer == when or member.broker.resting):
            self.deliver(node, TimePassed())

    def complete(self, node: int, ended: list[tuple[int, int]]) -> None:
        """Completes results in the store; the node that sent them places the tasks that became ready."""
        accepted, placeable = self.store.complete(node, ended)
        self.tally.done += len(accepted)
        member = self.members.get(node)
        if not placeable.tickets and (self._waiting_for_store or member is None or not member.broker.awaiting_ready):
            return
        if member is None:
            self.place_again(placeable, node)
            return
        if placeable.tickets:
            self._watch_ready_count()
        self.deliver(node, TasksPlaced(placeable.tickets, placeable.holdings))

    def _watch_ready_count(self) -> None:
        """Informs all nodes when fewer tasks are ready than there are cores, and when that ends."""
        ready, cores = self.store.ready_count, self.tally.cores
        little = ready < cores if self._little_left else ready < cores // 2
        if little != self._little_left:
            self._little_left = little
            for node in list(self.members):
                self.at(self.now + self.spec.latency, self.deliver, node, QueueNearlyEmpty(little))

    def place_again(self, placeable: ReadyBatch, node: int) -> None:
        """Sends tasks without a scheduler to a living node, which places them."""
        if placeable.tickets:
            nodes = sorted(self.members)
            if not nodes:
                self.at(self.now + 1.0, self.place_again, placeable, node)
                return
            chosen = node if node in self.members else self.random.choice(nodes)
            self.store.owned([ticket.task for ticket in placeable.tickets], chosen)
            self.deliver(chosen, TasksPlaced(placeable.tickets, placeable.holdings))

    def find_larger_node(self, node: int, ticket: ReadyTask) -> None:
        """Sends a task to a node that is large enough; without such a node the task fails."""
        request = self.work.profiles[self.work.category[ticket.task]].resources
        able = [
            other
            for other, kind in sorted(self.kinds.items())
            if other in self.members and other != node and not request.lacking_in(kind.resources())
        ]
        if not able:
            self.store.give_up(ticket.task)
            return
        chosen = self.random.choice(able)
        self.store.owned([ticket.task], chosen)
        self.at(self.now + self.spec.latency, self.deliver, chosen, TasksPlaced([ticket]))

    # ---- messages ------------------------------------------------------------------------------------------------

    def send(self, sender: int, receiver: int, message: Message) -> None:
        self.tally.messages += 1
        if type(message) is TaskTransfer and message.tickets:
            self.tally.transfer(message)
            self.store.moved(message.tickets, sender, receiver)
        self._serial += 1
        self.post.append(
            (self.now + self.spec.latency, self._serial, self.deliver, receiver, PeerMessageReceived(sender, message))
        )

    # ---- attempts ------------------------------------------------------------------------------------------------

    def start(self, node: int, task: int, attempt: int) -> None:
        activity = Activity(node, task, attempt, self.now)
        running = self.activities[node]
        running[task] = activity
        tally = self.tally
        tally.busy += 1
        if tally.ramp is None:
            tally.began(self.now)
        if self.files.any:
            need, most, now = self.files.room(node, task, running)
            outcome = AttemptOutcome.NO_ROOM if need > now else AttemptOutcome.MISSING
            if outcome is AttemptOutcome.NO_ROOM or not self.files.fetch(activity):
                del running[task]
                activity.over = True
                tally.stopped(self.now, activity)
                result = TaskResult(task, attempt, outcome, need=need, room=min(most, need))
                self.at(self.now, self.deliver, node, TasksEnded([result]))
                return
            if activity.legs or activity.expects or activity.fetched:
                self.next_leg(activity)
                return
        self.compute(activity)

    def prefetch(self, node: int, task: int) -> None:
        """Prefetches the existing inputs of a queued task that are not on the node."""
        activity = Activity(node, task, 0, self.now, [], ahead=True)
        self.files.fetch(activity)
        if activity.legs:
            self.next_leg(activity)
        elif activity.fetched:
            self.arrived(activity)

    def arrived(self, activity: Activity) -> None:
        """Completes the transfers of an activity, and starts the computation of others that waited for them."""
        for other in self.files.arrived(activity):
            if not other.over and not other.expects and not other.reading:
                self.compute(other)

    def next_leg(self, activity: Activity) -> None:
        """Continues with the next pipe, or with the next step after the last pipe."""
        if activity.at < len(activity.legs):
            leg = activity.legs[activity.at]
            activity.at += 1
            activity.reading = not activity.computed
            leg.pipe.add(self.now, leg.amount, activity)
            self.watch(leg.pipe)
        elif activity.computed:
            self.end(activity, None)
        else:
            activity.reading = False
            self.arrived(activity)
            if not activity.expects and not activity.ahead:
                self.compute(activity)

    def watch(self, pipe: Pipe[Activity]) -> None:
        if len(pipe):
            self.at(pipe.next_end(), self.through, pipe, pipe.version)

    def through(self, pipe: Pipe[Activity], version: int) -> None:
        """Handles the end of a flow, unless flows were added or removed since it was scheduled."""
        if version != pipe.version:
            return
        activity = pipe.take(self.now)
        self.watch(pipe)
        if not activity.over:
            self.next_leg(activity)

    def compute(self, activity: Activity) -> None:
        kind = self.kinds[activity.node]
        seconds = self.work.seconds[activity.task] / kind.speed
        if kind.contention:
            together = len(self.activities[activity.node])
            seconds *= kind.contention[min(together, len(kind.contention)) - 1]
        activity.computing = seconds
        self._serial += 1
        heappush(self.heap, (self.now + seconds + self.spec.overhead, self._serial, self.computed, activity, None))

    def computed(self, activity: Activity, _: None) -> None:
        if activity.over:
            return
        activity.computed = True
        if self.files.any:
            activity.legs = self.files.write(activity)
            activity.at = 0
            if activity.legs:
                self.next_leg(activity)
                return
        self.end(activity, None)

    def end(self, activity: Activity, _: None) -> None:
        node, task = activity.node, activity.task
        activity.over = True
        del self.activities[node][task]
        self.tally.ended(self.now, activity)
        first = self.work.child_start
        follows = not self._waiting_for_store and first[task] != first[task + 1]
        result = TaskResult(task, activity.attempt, AttemptOutcome.OK, activity.computing)
        member = self.members[node]
        if self.files.any:
            member.placement.moved(self.now - activity.started - activity.computing, activity.computing)
        self.execute_commands(node, member.handle(self.now, TasksEnded([result], follows)))

    def report(self, activity: Activity, outcome: AttemptOutcome) -> None:
        self.deliver(activity.node, TasksEnded([TaskResult(activity.task, activity.attempt, outcome)]))
