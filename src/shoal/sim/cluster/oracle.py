"""The oracle of simulated clusters: observes all nodes, the store and all messages, and checks invariants after every
event.

All store operations go through the oracle. `check_broker` checks the internal consistency of one scheduler; the oracle
checks all of them together:

- One scheduler has a task at a time: of nodes that are here and known, no two have it, and no two run it.
- A task starts only after all its dependencies are done, where starts are permitted, on a node with the required
  labels, and with a higher attempt number than all before. The store's locations of files on living nodes are right.
- A result counts once, until the store has a reason to run the task again: no copy of an output is left.
- Fencing: messages of a node that was declared dead have no effect on the store.
- A task is pushed at most once per generation, and does not move between nodes endlessly.
- No task is without a scheduler for longer than it takes to detect a failed node and to repeat a transfer.
- A node does not stay idle while a peer has a task for it (`Idleness`).
- No task is given up without a cause. At the end each task is done, failed, cancelled, or doomed by another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from shoal.core.invariants import check_broker
from shoal.core.peer_messages import (
    LONGEST_PAUSE,
    LoadReply,
    LoadRequest,
    PeerMessageReceived,
    ReadyTask,
    Send,
    StealRequest,
    TaskTransfer,
    TransferReceivedReply,
    WorkAvailableEvent,
)
from shoal.core.peer_scheduler import Event, MemberCommand, PeerScheduler
from shoal.core.policies.order import LaneQueue
from shoal.core.policies.retry import MOST_LOSSES, AttemptOutcome
from shoal.core.resources import required_labels
from shoal.core.scheduler import TaskState
from shoal.core.scheduler_messages import GiveUp, TasksEnded, TimePassed, WakeAt
from shoal.core.store.memory import GONE, STRIDE, ReadyBatch, TaskStanding
from shoal.core.work import Work
from shoal.sim.cluster.files import Activity
from shoal.sim.cluster.scenario import CALM
from shoal.sim.node import Violation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.sim.cluster.faulty_run import FaultyRun


WAYS = 6
"""Maximum number of consecutive messages until a task arrives: request and reply twice, one more for a request that
came before there was a task, and the announcement of the peer."""
ROUNDING = 1e-6


class Idleness:
    """Checks that nodes do not stay idle while others have tasks for them; one instance per run."""

    def __init__(self, run: FaultyRun) -> None:
        self.run = run
        self._idle: dict[int, tuple[float, tuple[int, ...]]] = {}
        """By searching node, since when it searches, and the lanes that it could not start during all that time."""
        self._rich: dict[int, dict[int, float]] = {}
        """By node and lane of its shared tasks, since when it has some."""
        self.longest = 0.0
        """The longest idle time beside a task so far, relative to the allowed time."""

    def after(self, node: int) -> None:
        """Updates the state of a node after it has processed an event."""
        member, now = self.run.members.get(node), self.run.now
        if member is None:
            self._idle.pop(node, None)
            self._rich.pop(node, None)
            return
        if member.rounds.is_searching(member.roster):
            unable = member.rounds.unable()
            if node not in self._idle or self._idle[node][1] != unable:
                self._idle[node] = now, unable
            self._expect_alarm(node, member)
        else:
            self._idle.pop(node, None)
        origin, before = member.broker.origin, self._rich.get(node, {})
        lanes = {origin(lane) for lane in member.tiers.shared.lanes()}
        self._rich[node] = {lane: before.get(lane, now) for lane in lanes}

    def _expect_alarm(self, node: int, member: PeerScheduler) -> None:
        rounds, alarm = member.rounds, self.run.alarms[node]
        goes_on = rounds.deadline if rounds.is_open else rounds.next_try
        if alarm.when > max(goes_on, self.run.now) + ROUNDING:
            raise Violation(f"node {node} searches until {goes_on:g}, but wakes at {alarm.when:g}")

    def check_over_time(self, since: float) -> None:
        """Checks all idle nodes; there are no faults from time `since` on."""
        for node, (idle, unable) in self._idle.items():
            if node in self.run.known and node in self.run.members:
                self._look_at(node, max(idle, since), unable)

    def _look_at(self, node: int, since: float, unable: tuple[int, ...]) -> None:
        run, member = self.run, self.run.members[node]
        others = sum(1 for other in run.known if other != node)
        allowed = member.rounds.longest_search(others) + WAYS * run.spec.latency
        if run.now - since <= allowed * self.longest:
            return
        asked = StealRequest(0, unable, member.rounds.near())
        for other in run.known:
            if other == node or other not in run.members:
                continue
            scheduler, rich = run.members[other].broker, self._rich.get(other, {})
            lanes = {
                scheduler.origin(scheduler.columns.lane[task]) for task in run.members[other].chosen_for(node, asked)
            }
            beside = max((run.now - max(since, rich[lane]) for lane in lanes if lane in rich), default=0.0)
            self.longest = max(self.longest, beside / allowed)
            if beside > allowed:
                raise Violation(
                    f"node {node} has been idle for {beside:g} s although node {other} has tasks for it;"
                    f" at most {allowed:g} s are allowed"
                )


MOST_MOVES = 50
"""Of one task in one generation."""
LONGEST_UNHELD = 60.0
"""Maximum seconds that no scheduler has a ready task, while messages get lost."""


CHAT = (LoadRequest, LoadReply, TransferReceivedReply, WorkAvailableEvent)
ONE_IN = 16
"""Fraction of no-op events that are checked anyway (1 in N)."""


class ClusterTaskHistory(msgspec.Struct):
    """What the oracle knows of one task."""

    generation: int = 0
    attempt: int = 0
    failures: int = 0
    losses: int = 0
    moves: int = 0
    pushes: int = 0
    """`failures` to `pushes` count within this generation; losses and failures continue after a task was handed
    back."""
    counted: bool = False
    """A result was accepted, and the task has not run again since."""
    made: bool = False
    """A result was accepted at least once."""
    cancelled: bool = False
    cause: str = ""
    """The outcome with which it was given up."""
    unheld_since: float | None = None


class ClusterOracle:
    """Checks every event of one run."""

    def __init__(self, run: FaultyRun) -> None:
        self.run, self.store, self.work = run, run.store, run.work
        self.histories = [ClusterTaskHistory() for _ in range(len(self.work))]
        self.needs = needs_of(self.work)
        self.holder: dict[int, int] = {}
        self._held: dict[int, list[int]] = {}
        self.copies: list[set[int]] = [set() for _ in self.work.file_bytes]
        """By file, the nodes that really have it, as far as the store can know."""
        if not self.run.spec.shared_files and self.work.input_start:
            for file, node in enumerate(self.store.location):
                if node >= 0:
                    self.copies[file].add(node)
        self.healed_at: float | None = None
        self.idleness = Idleness(run)
        self._quiet = 0
        """Number of consecutive no-op events."""

    def counts(self, node: int) -> bool:
        """Whether a node is here and known."""
        return node in self.run.known and node in self.run.members

    # ---- events of nodes -----------------------------------------------------------------------------------------

    def before(self, node: int, event: Event) -> None:
        """Counts failures of tasks, as their scheduler should."""
        if not isinstance(event, TasksEnded) or node not in self.run.known:
            return
        scheduler = self.run.members[node].broker
        seen: set[int] = set()
        for result in event.results:
            task = result.task
            is_current = task in scheduler.running and scheduler.attempt[task] == result.attempt and task not in seen
            if not is_current or scheduler.state[task] is TaskState.ENDING:
                continue
            seen.add(task)
            if result.outcome is AttemptOutcome.LOST:
                self.histories[task].losses += 1
            elif result.outcome in (AttemptOutcome.FAILED, AttemptOutcome.CRASHED):
                self.histories[task].failures += 1

    def after(self, node: int, event: Event, commands: Sequence[MemberCommand]) -> None:
        member = self.run.members[node]
        self._quiet = self._quiet + 1 if is_quiet(member, event, commands) else 0
        if self._quiet % ONE_IN:
            return
        check_broker(member.broker)
        check_tiers(member)
        if node in self.run.known:
            self._note_holders(node, member)
            for command in commands:
                if isinstance(command, GiveUp):
                    self._expect_cause(command)
                    if command.outcome is AttemptOutcome.NO_ROOM:
                        self._expect_no_room(member, command)

    def _note_holders(self, node: int, member: PeerScheduler) -> None:
        state, holder = member.broker.state, self.holder
        for task in self._held.get(node, ()):
            if task not in state and holder.get(task) == node:
                del holder[task]
        for task in state:
            other = holder.get(task)
            if other is None:
                holder[task] = node
            elif other != node:
                raise Violation(f"task {task} is on node {other} and on node {node}")
        self._held[node] = list(state)

    def _expect_cause(self, command: GiveUp) -> None:
        history = self.histories[command.task]
        match command.outcome:
            case AttemptOutcome.CANCELLED:
                is_just = history.cancelled
            case AttemptOutcome.FAILED | AttemptOutcome.CRASHED:
                is_just = history.failures > self.work.profiles[self.work.category[command.task]].retries
            case AttemptOutcome.LOST:
                is_just = history.losses > MOST_LOSSES
            case _:
                is_just = command.outcome in (AttemptOutcome.MISSING, AttemptOutcome.NO_ROOM)
        if not is_just:
            raise Violation(f"{command} without a cause: {history}")

    def _expect_no_room(self, member: PeerScheduler, command: GiveUp) -> None:
        """Checks that no known node has ever had room for the inputs of the task."""
        assert command.cramped is not None
        need = sum(self.work.file_bytes[file] for file in set(self.work.inputs_of(command.task)))
        request = self.work.profiles[self.work.category[command.task]].resources
        for node in member.roster.able(request):
            disk = member.roster.disk(node)
            if node not in command.cramped.tried and (not disk or disk >= need):
                raise Violation(f"task {command.task} is given up, although node {node} may have room for it")
        if not command.cramped.most < need == command.cramped.need:
            raise Violation(f"{command}, but it reads {need} bytes")
        self.run.trace.saw("no room")

    def started(self, node: int, task: int, attempt: int) -> None:
        if node not in self.run.known:
            return
        history, standing = self.histories[task], self.store.standing[task]
        if standing != TaskStanding.READY and not history.cancelled:
            raise Violation(f"task {task} starts on node {node} although it is {TaskStanding(standing).name}")
        if attempt <= history.attempt or attempt // STRIDE != self.store.generation[task]:
            raise Violation(f"task {task}: attempt {attempt} after {history.attempt}, generation {history.generation}")
        history.attempt = attempt
        for other in self.run.known:
            if task in self.run.activities.get(other, ()):
                raise Violation(f"task {task} starts on node {node} while it runs on node {other}")
        self._check_labels(node, task)
        if self.run.members[node].broker.draining:
            raise Violation(f"task {task} starts on node {node}, which is draining")
        unmade = [other for other in self.needs[task] if not self.histories[other].made]
        if unmade:
            raise Violation(f"task {task} starts before its dependencies {unmade} are done")
        self._check_files(task)

    def _check_labels(self, node: int, task: int) -> None:
        carried = self.run.spec.kind(node % self.run.spec.nodes).labels
        for label in required_labels(self.work.profiles[self.work.category[task]].resources):
            if label not in carried:
                raise Violation(f"task {task} starts on node {node}, which does not have the label {label}")

    def _check_files(self, task: int) -> None:
        if self.run.spec.shared_files:
            return
        for file in self.work.inputs_of(task):
            for node in self.store.copies(file):
                if self.counts(node) and node not in self.copies[file]:
                    raise Violation(f"the store has file {file} on node {node}, where it is not")

    def arrives(self, activity: Activity) -> None:
        if self.run.files.nodes[activity.node].keeps:
            for file in activity.fetched:
                if self.store.location[file] != GONE:  # otherwise the store does not record the copy
                    self.copies[file].add(activity.node)

    def let_go(self, node: int, kept: list[int]) -> None:
        """Updates copies that a node has removed to make room."""
        shelf = self.run.files.nodes[node].copies.files
        for file in kept:
            if file not in shelf and node not in self.store.copies(file):
                self.copies[file].discard(node)

    def wrote(self, activity: Activity) -> None:
        for file in self.work.outputs_of(activity.task):
            self.copies[file].add(activity.node)

    def gone(self, node: int) -> None:
        """A node is not here or not known any more: its tasks and files do not count."""
        self.holder = {task: other for task, other in self.holder.items() if other != node}
        if node not in self.run.members:
            for nodes in self.copies:
                nodes.discard(node)

    # ---- operations of the store ---------------------------------------------------------------------------------

    def complete(self, node: int, ended: list[tuple[int, int]]) -> tuple[list[int], ReadyBatch]:
        before = self._store_state(node)
        accepted, placeable = self.store.complete(node, ended)
        self._expect_unchanged(node, before)
        for task in accepted:
            history = self.histories[task]
            if history.counted:
                raise Violation(f"task {task} has a second accepted result")
            history.counted = history.made = True
            for file in self.work.outputs_of(task):
                self.copies[file] = {node}  # the store drops older copies
        if node in self.run.known:
            refused = [task for task, _ in ended if task not in accepted and not self.histories[task].cancelled]
            if refused:
                raise Violation(f"the store rejects results of {refused} from node {node}, which is known")
        if self.store.complete(node, ended) != ([], ReadyBatch([], [])):
            raise Violation(f"{ended} is counted twice")
        return accepted, placeable

    def missing(self, node: int, ticket: ReadyTask) -> ReadyBatch:
        before = self._store_state(node)
        placeable = self.store.missing(ticket)
        self._expect_unchanged(node, before)
        self._follow()
        self.run.trace.saw("missing")
        return placeable

    def give_up(self, node: int, command: GiveUp) -> None:
        before = self._store_state(node)
        self.store.give_up(command.task, command.attempt)
        self._expect_unchanged(node, before)
        if node in self.run.known:
            self.histories[command.task].cause = command.outcome.value

    def hand_back(self, node: int, ticket: ReadyTask) -> ReadyTask | None:
        before = self._store_state(node)
        again = self.store.hand_back(ticket)
        self._expect_unchanged(node, before)
        history = self.histories[ticket.task]
        charged = history.failures, history.losses
        self._follow()
        if again is not None:
            history.failures, history.losses = charged
            if (again.failures, again.losses) != charged:
                raise Violation(f"{again}, but the task has (failures, losses) {charged}")
        self.run.trace.saw("handed back")
        return again

    def is_current(self, ticket: ReadyTask) -> bool:
        """Whether the store still waits for this generation of the task."""
        task = ticket.task
        return (
            self.store.standing[task] == TaskStanding.READY and ticket.attempt == self.store.generation[task] * STRIDE
        )

    def lose(self, node: int) -> tuple[ReadyBatch, dict[int, list[ReadyTask]]]:
        self.gone(node)
        found = self.store.lose(node)
        self._follow()
        for owner in found[1]:
            if owner not in self.run.known:
                raise Violation(f"tasks are promised to node {owner}, which is not known")
        self.run.trace.saw("lost")
        return found

    def claim(self, node: int, tickets: list[ReadyTask]) -> ReadyBatch:
        before = self._store_state(node)
        placeable = self.store.claim(node, tickets)
        self._expect_unchanged(node, before)
        for ticket in placeable.tickets:
            if ticket.task in self.holder:
                raise Violation(f"node {node} claims task {ticket.task}, which node {self.holder[ticket.task]} has")
        self._follow()
        self.run.trace.saw("claimed" if placeable.tickets else "claimed in vain")
        return placeable

    def move(self, giver: int, node: int, transfer: TaskTransfer) -> ReadyBatch:
        before = self._store_state(giver)
        is_new = transfer.number > self.store.recorded(giver)
        again = self.store.moved(transfer.tickets, giver, node, transfer.number)
        self._expect_unchanged(giver, before)
        if is_new and giver in self.run.known:
            for ticket in transfer.tickets:
                self._expect_few_moves(ticket, transfer)
        self._follow()
        if again.tickets:
            self.run.trace.saw("refused")
        return again

    def _expect_few_moves(self, ticket: ReadyTask, transfer: TaskTransfer) -> None:
        history = self.histories[ticket.task]
        history.moves += 1
        history.pushes += not transfer.round
        if history.pushes > 1:
            raise Violation(f"task {ticket.task} is pushed for the second time")
        # A steal share of 1 leaves the victim without a task to start next, so the victim steals back.
        most = MOST_MOVES if self.run.options.stealing.share <= 0.5 else 3 * len(self.histories)
        if history.moves > most:
            raise Violation(f"task {ticket.task} moves between nodes endlessly")

    def _store_state(self, node: int) -> tuple[object, ...]:
        """A copy of the store's state if the node is not known: its requests must not change that state."""
        if node in self.run.known:
            return ()
        store = self.store
        arrays = (store.standing, store.pending, store.generation, store.owner, store.location)
        return (*(bytes(each) for each in arrays), dict(store.giver), store.left, store.ready_count)

    def _expect_unchanged(self, node: int, before: tuple[object, ...]) -> None:
        if before and before != self._store_state(node):
            raise Violation(f"a request of node {node}, which was declared dead, has changed the store")
        if before:
            self.run.trace.saw("fenced")

    def _follow(self) -> None:
        """Records which tasks the store runs again, and checks that it has a reason."""
        for task, history in enumerate(self.histories):
            generation = self.store.generation[task]
            if history.generation != generation:
                history.generation, history.failures, history.losses, history.moves, history.pushes = (
                    generation,
                    0,
                    0,
                    0,
                    0,
                )
            if history.counted and self.store.standing[task] != TaskStanding.DONE:
                history.counted = False
                self.run.trace.saw("made again")
                made = self.work.outputs_of(task)
                if all(any(self.counts(node) for node in self.copies[file]) for file in made):
                    raise Violation(f"task {task} runs again although all its outputs exist")

    # ---- over time -----------------------------------------------------------------------------------------------

    def check_over_time(self) -> None:
        """Looks for tasks that no scheduler has for too long, and for nodes that are idle while others have tasks for
        them."""
        run, now = self.run, self.run.now
        if self.healed_at is not None:
            self.idleness.check_over_time(self.healed_at)
        elif run.mix is CALM:
            self.idleness.check_over_time(0.0)
        waiting = {ticket.task for ticket in run.unplaceable}
        waiting |= {ticket.task for placeable in run.unplaced for ticket in placeable.tickets}
        most = LONGEST_UNHELD if self.healed_at is None else 2 * LONGEST_PAUSE + 2.0
        for task, history in enumerate(self.histories):
            if self.store.standing[task] != TaskStanding.READY or task in self.holder or task in waiting:
                history.unheld_since = None
            elif history.unheld_since is None:
                history.unheld_since = now
            elif now - max(history.unheld_since, self.healed_at or 0.0) > most:
                raise Violation(
                    f"no node has task {task} since {history.unheld_since:g}; for the store it is on node"
                    f" {self.store.owner[task]}, from {self.store.giver.get(task)}"
                )

    def unfinished_tasks(self) -> dict[int, str]:
        """Where the unfinished tasks are, for debugging."""
        found = {}
        for task, standing in enumerate(self.store.standing):
            if standing <= TaskStanding.READY:
                node = self.holder.get(task)
                state = self.run.members[node].broker.state[task].name if node is not None else "with nobody"
                found[task] = f"{TaskStanding(standing).name}, node {node}, {state}, pending {self.store.pending[task]}"
        return found

    def finish(self) -> dict[str, int]:
        """Checks that every task has ended; returns the number of tasks by kind of end."""
        ends: dict[str, int] = {}
        for task, history in enumerate(self.histories):
            end = TaskStanding(self.store.standing[task]).name.lower()
            if end in ("waiting", "ready"):
                raise Violation(f"task {task} is {end} at the end")
            if end == "failed":
                end = "cancelled" if history.cancelled else history.cause
                if not end:
                    raise Violation(f"task {task} failed without a cause")
            if end == "done" and not history.counted and self.work.profiles[self.work.category[task]].resources.amounts:
                raise Violation(f"task {task} is done, but no result was accepted")
            ends[end] = ends.get(end, 0) + 1
        if self.store.left or self.store.ready_count:
            raise Violation(f"wrong counters of the store: {self.store.left} left, {self.store.ready_count} ready")
        if "doomed" in ends and len(ends.keys() - {"done", "doomed"}) == 0:
            raise Violation("tasks are doomed although no task failed")
        return ends


def is_quiet(member: PeerScheduler, event: Event, commands: Sequence[MemberCommand]) -> bool:
    """Whether the event is a message that moves no task, or a timer that only causes messages."""
    if isinstance(event, PeerMessageReceived):
        return isinstance(event.message, CHAT) and not member.tiers.local
    if not isinstance(event, TimePassed) or member.broker.resting:
        return False
    return all(isinstance(command, Send | WakeAt) for command in commands)


def check_tiers(member: PeerScheduler) -> None:
    """Checks that the local queue has exactly the tasks that are marked as local."""
    tiers = member.tiers
    own = tiers.own
    assert isinstance(own, LaneQueue)
    queued = own.live.keys() if own is not tiers.shared else set()
    if queued != tiers.local.keys():
        raise Violation(f"node {member.here}: marked as local {list(tiers.local)}, but queued as local {list(queued)}")


def needs_of(work: Work) -> list[list[int]]:
    """For each task the tasks that must run before it; groups are replaced by their members."""
    found: list[dict[int, None]] = [{} for _ in range(len(work))]
    left = list(work.waits_for)
    order = [task for task, count in enumerate(left) if not count]
    for task in order:  # the list grows during the iteration
        runs = bool(work.profiles[work.category[task]].resources.amounts)
        passed_on = {task: None} if runs else found[task]
        for child in work.children_of(task):
            found[child].update(passed_on)
            left[child] -= 1
            if not left[child]:
                order.append(child)
    return [list(each) for each in found]


def lower_bound(run: FaultyRun) -> float:
    """A lower bound for runs without faults: all cores busy all the time, or the longest path on the fastest node."""
    work, kinds = run.work, [run.spec.kind(node) for node in range(run.spec.nodes)]
    fastest = max(kind.speed for kind in kinds)
    length = [0.0] * len(work)
    total = 0.0
    left = list(work.waits_for)
    order = [task for task, count in enumerate(left) if not count]
    for task in order:  # the list grows during the iteration
        length[task] += work.seconds[task] / fastest
        cores = work.profiles[work.category[task]].resources.get("cores")
        total += work.seconds[task] * cores
        for child in work.children_of(task):
            length[child] = max(length[child], length[task])
            left[child] -= 1
            if not left[child]:
                order.append(child)
    rate = sum(kind.resources().get("cores") * kind.speed for kind in kinds)
    return max(total / rate, max(length, default=0.0))
