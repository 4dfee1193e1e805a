"""A simulated cluster with faults and an oracle: the loop of `ClusterRun` with unreliable messages, store and nodes.

Messages between schedulers get lost, arrive twice or late. Requests of a scheduler to the store are queued and executed
in order; messages from the store to a node arrive in order. A node is *here* while it runs (`members`) and *known*
while the store relies on it. A failed node remains known until its lease ends. A node that was declared dead by mistake
is here for some time without being known.

`shoal.sim.cluster.fault_schedule` decides which faults occur when; `shoal.sim.cluster.oracle` checks the invariants.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgspec

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
)
from shoal.core.peer_scheduler import Alarm, Event, MemberCommand
from shoal.core.policies.retry import AttemptOutcome
from shoal.core.resources import Resources
from shoal.core.scheduler_messages import Accept, GiveUp, Kill, Start, TaskResult, TasksEnded, TimePassed, WakeAt
from shoal.core.store.memory import NOBODY, ReadyBatch
from shoal.sim.cluster.files import Activity
from shoal.sim.cluster.oracle import ClusterOracle
from shoal.sim.cluster.result import ClusterTrace
from shoal.sim.cluster.run import ClusterRun
from shoal.sim.cluster.scenario import ClusterScenario, draw_outcome
from shoal.sim.cluster.specification import NodeSpec
from shoal.sim.node import Violation

NOT_FOUND = 0.05
"""Seconds until a node gives up a transfer from a node that has failed."""
KILL_LATENCY = 0.01
MOST_EVENTS = 60_000


class Stall(msgspec.Struct):
    """What has arrived at a node since its event loop is blocked."""

    messages: list[tuple[Callable[..., None], Any]] = []
    """Actions with their arguments."""
    events: list[Event] = []


class FaultyRun(ClusterRun):
    """One simulated run with faults."""

    def __init__(self, scenario: ClusterScenario) -> None:
        self.scenario, self.mix = scenario, scenario.faults
        self.known: dict[int, None] = {}
        self.capacity: dict[int, Resources] = {}
        """By node, its present capacity."""
        self.chance = Random(2 * scenario.seed + 1)
        self.trace = ClusterTrace(scenario.seed)
        self.store_up = 0.0
        """When the store replies again."""
        self._requests: dict[int, deque[tuple[Callable[..., None], Any]]] = {}
        """By node, its requests to the store, oldest first."""
        self._delivered_until: dict[int, float] = {}
        """By node, when the last message from the store arrives."""
        self.ahead: list[Activity] = []
        """Prefetches for tasks that have not been started."""
        self.unplaceable: list[ReadyTask] = []
        """Tasks that are too large for all nodes known at present."""
        self.unplaced: list[ReadyBatch] = []
        """Tasks that became ready while no node was known."""
        self.alarms: dict[int, Alarm] = {}
        self._stalled: dict[int, Stall] = {}
        """Nodes whose event loop is blocked."""
        super().__init__(scenario.work, scenario.spec, scenario.options)
        self._waiting_for_store = not scenario.direct
        self.oracle = ClusterOracle(self)

    def join(self, node: int, kind: NodeSpec) -> None:
        super().join(node, kind)
        self.known[node] = None
        self.capacity[node] = kind.resources()
        self.alarms[node] = Alarm()

    # ---- events and commands of nodes ----------------------------------------------------------------------------

    def deliver(self, node: int, event: Event) -> None:
        member = self.members.get(node)
        if member is None:
            return
        if node in self._stalled:
            self._stalled[node].events.append(event)
            return
        self.oracle.before(node, event)
        commands = member.handle(self.now, event)
        self.trace.note(self.now, node, event, commands)
        if len(self.trace.entries) > MOST_EVENTS:
            raise Violation("the run does not end")
        self.oracle.after(node, event, commands)
        self.execute_commands(node, commands)
        self.oracle.idleness.after(node)

    def wake(self, node: int, when: float) -> None:
        """Wakes the node as the agent does: by one alarm, after the messages that have arrived."""
        if node in self.members and node not in self._stalled and self.alarms[node].goes_off(self.now):
            self.deliver(node, TimePassed())

    def reach(self, node: int, what: tuple[Callable[..., None], Any]) -> None:
        """A message arrives at the node, as an action and its argument."""
        if node in self._stalled:
            self._stalled[node].messages.append(what)
        else:
            what[0](node, what[1])

    def stall(self, node: int, seconds: float) -> None:
        """Blocks the event loop of a node for some time; what arrives meanwhile is queued."""
        if node not in self._stalled:
            self._stalled[node] = Stall()
            self.at(self.now + seconds, self._catch_up, node, None)

    def _catch_up(self, node: int, _: None) -> None:
        """Processes everything that was queued in one turn, in the order of the agent: messages, ends of tasks, the
        alarm."""
        stall = self._stalled.pop(node)
        for action, argument in stall.messages:
            action(node, argument)
        for event in stall.events:
            self.deliver(node, event)
        self.wake(node, self.now)

    def execute_commands(self, node: int, commands: Sequence[MemberCommand]) -> None:
        accepted: list[tuple[int, int]] = []
        for command in commands:
            match command:
                case Accept(task, attempt):
                    accepted.append((task, attempt))
                case Start(tasks, attempts):
                    for task, attempt in zip(tasks, attempts, strict=True):
                        self.start(node, task, attempt)
                case Send(peer, message):
                    self.send(node, peer, message)
                case WakeAt(when):
                    self.alarms[node].set(when)
                    self.at(when, self.wake, node, when)
                case GiveUp():
                    self.ask(node, self._give_up, command)
                case Prefetch(task):
                    self.prefetch(node, task)
                case HandBack():
                    self.ask(node, self._hand_back, command)
                case Kill(task):
                    slow = self.mix.slow_kills and self.chance.random() < self.mix.slow_kills
                    after = self.chance.uniform(0.0, 0.5) if slow else KILL_LATENCY
                    activity = self.activities[node].get(task)
                    self.at(self.now + after, self._killed, activity, command.outcome)
        if accepted:
            self.ask(node, self._complete, accepted)

    # ---- the store -----------------------------------------------------------------------------------------------

    def ask(self, node: int, operation: Callable[..., None], argument: Any) -> None:
        """Executes an operation of the store for a node, after all earlier requests of that node."""
        if self.scenario.direct:
            operation(node, argument)
            return
        line = self._requests.setdefault(node, deque())
        line.append((operation, argument))
        if len(line) == 1:
            self.at(self.now + self.spec.store_latency, self._serve, node, None)

    def _serve(self, node: int, _: None) -> None:
        line = self._requests[node]
        if not line:
            return
        if self.now < self.store_up:
            self.at(self.store_up, self._serve, node, None)
            return
        operation, argument = line.popleft()
        operation(node, argument)
        if line:
            self.at(self.now + self.spec.store_latency, self._serve, node, None)

    def is_being_recorded(self, node: int, task: int) -> bool:
        """Whether the node has sent the end of this task to the store, which has not processed it yet."""
        for operation, argument in self._requests.get(node, ()):
            if operation == self._complete and any(ended == task for ended, _ in argument):
                return True
            if operation == self._give_up and argument.task == task:
                return True
        return False

    def forget_requests(self, node: int) -> None:
        """Drops requests of a failed node that it had not sent yet; the first one may have reached the store
        already."""
        line = self._requests.get(node)
        while line and (len(line) > 1 or self.chance.random() < 0.5):
            line.pop()

    def notify(self, node: int, action: Callable[..., None], what: Any) -> None:
        """Delivers a message from the store to a node, after all earlier ones."""
        when = self.now + self.spec.latency
        if self.mix.delays and self.chance.random() < self.mix.delays:
            when += self.chance.expovariate(10.0)
        when = max(when, self._delivered_until.get(node, 0.0))
        self._delivered_until[node] = when
        self.at(when, self.reach, node, (action, what))

    def _complete(self, node: int, ended: list[tuple[int, int]]) -> None:
        accepted, placeable = self.oracle.complete(node, ended)
        self.tally.done += len(accepted)
        tickets = placeable.tickets
        self.store.owned([ticket.task for ticket in tickets], node)
        if tickets:
            self._watch_ready_count()
        member = self.members.get(node)
        if self.scenario.direct:
            if tickets or (member is not None and member.broker.awaiting_ready):
                self.deliver(node, TasksPlaced(tickets, placeable.holdings))
        elif tickets:
            self.notify(node, self.deliver, TasksPlaced(tickets, placeable.holdings))

    def _watch_ready_count(self) -> None:
        ready, cores = self.store.ready_count, self.tally.cores
        little = ready < cores if self._little_left else ready < cores // 2
        if little != self._little_left:
            self._little_left = little
            for node in self.known:
                self.notify(node, self.deliver, QueueNearlyEmpty(little))

    def _give_up(self, node: int, command: GiveUp) -> None:
        if command.outcome is AttemptOutcome.MISSING:
            self.place_again(self.oracle.missing(node, ReadyTask(command.task, command.attempt)), node)
        else:
            self.oracle.give_up(node, command)

    def place_again(self, placeable: ReadyBatch, node: int) -> None:
        if not placeable.tickets:
            return
        if not self.known:
            self.unplaced.append(placeable)
            return
        chosen = node if node in self.known else self.chance.choice(list(self.known))
        self.store.owned([ticket.task for ticket in placeable.tickets], chosen)
        self.notify(chosen, self.deliver, TasksPlaced(placeable.tickets, placeable.holdings))

    def _hand_back(self, node: int, command: HandBack) -> None:
        again = self.oracle.hand_back(node, command.ticket)
        if again is not None and command.for_room and node in self.known:
            self.store.owned([again.task], node)
            ticket = msgspec.structs.replace(again, cramped=command.ticket.cramped)
            self.notify(node, self.deliver, TasksPlaced([ticket]))
        elif again is not None:
            self.find_larger_node(node, again)

    def find_larger_node(self, node: int, ticket: ReadyTask) -> None:
        """Finds a node that is large enough now; if there is none, the task waits until one joins or grows."""
        request = self.work.profiles[self.work.category[ticket.task]].resources
        able = [other for other in self.known if not request.lacking_in(self.capacity[other])]
        if not able:
            self.unplaceable.append(ticket)
            return
        chosen = self.chance.choice(able)
        self.store.owned([ticket.task], chosen)
        self.notify(chosen, self.deliver, TasksPlaced([ticket]))

    def place_waiting(self) -> None:
        """Places waiting tasks again, after nodes have joined or grown."""
        unplaceable, self.unplaceable = self.unplaceable, []
        for ticket in unplaceable:
            if self.oracle.is_current(ticket):
                self.find_larger_node(NOBODY, ticket)
        unplaced, self.unplaced = self.unplaced, []
        for placeable in unplaced:
            self.place_again(placeable, NOBODY)

    # ---- membership ----------------------------------------------------------------------------------------------

    def declare_lost(self, node: int, _: None) -> None:
        """The lease of a node has ended: the store ignores whatever it may still do."""
        if node not in self.known:
            return
        if self.now < self.store_up:
            self.at(self.store_up, self.declare_lost, node, None)
            return
        del self.known[node]
        self.files.nodes[node].keeps = False  # the store does not record copies that it makes from now on
        placeable, promised = self.oracle.lose(node)
        self.announce()
        for owner, tickets in promised.items():
            self.notify(owner, self._offer, tickets)
        self.place_again(placeable, NOBODY)

    def announce(self) -> None:
        """Sends the list of known nodes to all of them."""
        self.roster = Roster(self.known, {node: self.capacity[node] for node in self.known})
        for node in self.known:
            self.notify(node, self.deliver, PeersChanged(self.roster))

    def _offer(self, node: int, tickets: list[ReadyTask]) -> None:
        """Offers a node the tasks that a failed node should have sent to it: it claims those that it does not have."""
        member = self.members.get(node)
        if member is not None:
            lacking = [ticket for ticket in tickets if ticket.task not in member.broker.state]
            if lacking:
                self.ask(node, self._claim, lacking)

    def _claim(self, node: int, tickets: list[ReadyTask]) -> None:
        self.place_again(self.oracle.claim(node, tickets), node)

    # ---- messages ------------------------------------------------------------------------------------------------

    def send(self, sender: int, receiver: int, message: Message) -> None:
        self.tally.messages += 1
        if type(message) is TaskTransfer and message.tickets:
            self.ask(sender, self._record_move, (receiver, message))
        else:
            self._transmit(sender, receiver, message)

    def _record_move(self, sender: int, what: tuple[int, TaskTransfer]) -> None:
        receiver, transfer = what
        again = self.oracle.move(sender, receiver, transfer)
        self.place_again(again, sender)
        if sender in self.known and receiver in self.known and sender in self.members:
            self.tally.transfer(transfer)
            self._transmit(sender, receiver, transfer)

    def _transmit(self, sender: int, receiver: int, message: Message) -> None:
        mix, chance = self.mix, self.chance
        if mix.loses and chance.random() < mix.loses:
            return
        copies = 2 if mix.doubles and chance.random() < mix.doubles else 1
        for _ in range(copies):
            delay = self.spec.latency
            if mix.delays and chance.random() < mix.delays:
                delay += chance.expovariate(5.0)
            self.at(self.now + delay, self.reach, receiver, (self.deliver, PeerMessageReceived(sender, message)))

    # ---- attempts ------------------------------------------------------------------------------------------------

    def start(self, node: int, task: int, attempt: int) -> None:
        self.oracle.started(node, task, attempt)
        super().start(node, task, attempt)
        activity = self.activities[node].get(task)
        if activity is not None and self._reads_from_failed_node(activity):
            self.break_off(activity, AttemptOutcome.MISSING, NOT_FOUND)

    def prefetch(self, node: int, task: int) -> None:
        activity = Activity(node, task, 0, self.now, [], ahead=True)
        self.files.fetch(activity)
        if self._reads_from_failed_node(activity):
            self.abandon(activity)
        elif activity.legs:
            self.ahead.append(activity)
            self.next_leg(activity)
        elif activity.fetched:
            self.arrived(activity)

    def _reads_from_failed_node(self, activity: Activity) -> bool:
        return any(leg.source >= 0 and leg.source not in self.members for leg in activity.legs)

    def arrived(self, activity: Activity) -> None:
        kept = list(self.files.nodes[activity.node].copies.files)
        self.oracle.arrives(activity)
        activity.over = activity.ahead
        super().arrived(activity)
        self.oracle.let_go(activity.node, kept)

    def break_off(self, activity: Activity, outcome: AttemptOutcome, after: float) -> None:
        """Ends an attempt early; its node gets the result a little later."""
        self.stop(activity)
        self.at(self.now + after, self.report, activity, outcome)

    def stop(self, activity: Activity) -> None:
        del self.activities[activity.node][activity.task]
        self.tally.stopped(self.now, activity)
        self.abandon(activity)

    def abandon(self, activity: Activity) -> None:
        """Abandons an activity; others on its node that wait for its transfers start again."""
        activity.over = True
        if 0 < activity.at <= len(activity.legs):
            pipe = activity.legs[activity.at - 1].pipe
            pipe.drop(self.now, {id(activity)})
            self.watch(pipe)
        arriving = self.files.nodes[activity.node].arriving
        for file in activity.fetched:
            for other in arriving.pop(file, ()):
                if not other.over:
                    self.break_off(other, AttemptOutcome.UNBEGUN, 0.0)

    def _killed(self, activity: Activity | None, outcome: AttemptOutcome) -> None:
        if activity is not None and not activity.over:
            self.stop(activity)
            self.report(activity, outcome)

    def end(self, activity: Activity, _: None) -> None:
        node, task = activity.node, activity.task
        activity.over = True
        del self.activities[node][task]
        outcome = draw_outcome(self.chance, self.mix)
        self.tally.ended(self.now, activity)
        if outcome is AttemptOutcome.OK:
            self.oracle.wrote(activity)
        if self.files.any:
            spent = self.now - activity.started - activity.computing
            self.members[node].placement.moved(spent, activity.computing)
        follows = self.scenario.direct and bool(len(self.work.children_of(task)))
        ended = TasksEnded([TaskResult(task, activity.attempt, outcome, activity.computing)], follows)
        if self.mix.echoes and self.chance.random() < self.mix.echoes:
            echo = TaskResult(
                task, activity.attempt, self.chance.choice((AttemptOutcome.OK, outcome)), activity.computing
            )
            self.at(self.now + self.chance.expovariate(2.0), self.deliver, node, TasksEnded([echo], follows))
        self.deliver(node, ended)
