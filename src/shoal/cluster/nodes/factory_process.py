"""The factory process of a cluster: reads the demand from the cluster's store, and starts and ends nodes of all groups.

`shoal.cluster.nodes.factory` decides for each group. This module collects the state, with one request to the cluster
and one to each batch system for all groups, and carries out the decisions. The record of started nodes is in the
cluster's directory, under its lock, so a process that was killed is simply restarted.
"""

from __future__ import annotations

import re
import signal
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from shoal.cluster.agent.messages import ClusterReply, ClusterRunFacts, WireMessage, make_codec
from shoal.cluster.agent.run_description import decode_entry
from shoal.cluster.agent.run_store import stores_of
from shoal.cluster.home import ClusterHome, ClusterRecord, GroupRecord
from shoal.cluster.messaging.access import Access, read
from shoal.cluster.messaging.caller import Caller
from shoal.cluster.nodes.demand import (
    Ability,
    CategoryDemand,
    DemandShare,
    UncountedTasks,
    ability_of_node,
    expected_ability,
    most_of,
)
from shoal.cluster.nodes.factory import (
    Action,
    Bounds,
    CancelNode,
    DrainNode,
    Factory,
    FactoryNode,
    PollInterval,
    QueueLength,
    SubmitNodes,
)
from shoal.cluster.nodes.groups import ask_to_end, drop_ended, forget_closed, read_cluster, standings_of, starter_of
from shoal.cluster.nodes.ssh import SshStarter
from shoal.cluster.nodes.starters import Handle, LocalHandle, NodePhase, NodeStatus, NotAnsweringError, Starter
from shoal.cluster.stores.redis import RedisStore
from shoal.cluster.stores.remote import RemoteStore
from shoal.core.resources import Resources
from shoal.core.store.directory import NodeInfo
from shoal.core.store.interface import LEASE, TaskStanding
from shoal.core.task import Profile
from shoal.errors import InputError, ShoalError
from shoal.execution.processes.wakeup import catchable

if TYPE_CHECKING:
    from shoal.cluster.agent.run_store import ClusterStores


ROUND_SECONDS = 2.0
TASKS_PER_SECOND = 50_000
"""Seconds between two reads of the states of all tasks; longer for a large run."""
RESULTS_AT_ONCE = 32
"""Maximum number of log entries read each time; each may carry the output of its task."""
REMEMBERED = 50
"""Number of durations per category from which the mean is computed."""
SILENCE_SECONDS = 30.0
"""Seconds, and multiples of the mean, without a result after which a category's mean is considered outdated."""
SILENT_MEANS = 4


class Backlog:
    """The tasks of the active run, as far as the factories need them; holds no durable state."""

    def __init__(self, open_books: Callable[[], ClusterStores], now: Callable[[], float]) -> None:
        self._open_books, self._now = open_books, now
        self._books: ClusterStores | None = None
        self._run = ""
        self._store: RedisStore | RemoteStore | None = None
        self._category: Sequence[int] = ()
        self._profiles: list[Profile] = []
        self._next = 0.0
        self._ready: list[int] = []
        self._seconds: list[deque[float]] = []
        self._heard: list[float] = []
        """By category, when a result was last seen."""
        self._next_result = 0

    def demands(self, found: ClusterReply) -> list[CategoryDemand]:
        """Returns the ready tasks by category. If the store does not reply, all tasks count as one kind that fits
        anywhere."""
        run = served(found)
        if run is None or not run.ready:
            if run is None:
                self._leave()
            return []
        try:
            self._read(run)
        except (ShoalError, msgspec.MsgspecError, LookupError):  # the run was forgotten, or the store does not reply
            self._leave()
            return [CategoryDemand(Resources(), run.ready)]
        return self._counted(run.ready)

    def _read(self, run: ClusterRunFacts) -> None:
        now = self._now()
        if run.run != self._run:
            self._leave()
            self._attach(run.run)
        elif now < self._next:
            return
        assert self._store is not None
        self._next = now + max(ROUND_SECONDS, self._store.size / TASKS_PER_SECOND)
        self._ready = ready_by_category(self._store.standings(), self._category, len(self._profiles))
        # The log has at least one entry per done task; of a long one, only the end is read.
        first = max(self._next_result, run.tasks - run.left - RESULTS_AT_ONCE)
        results = self._store.log(first, RESULTS_AT_ONCE)
        self._next_result = first + len(results)
        self._note_durations(results)

    def _attach(self, run: str) -> None:
        self._books = self._books or self._open_books()
        store, work = self._books.attach(run)
        assert isinstance(store, (RedisStore, RemoteStore))
        self._store, self._category, self._profiles = store, array("i", work.category), work.profiles
        self._seconds = [deque(maxlen=REMEMBERED) for _ in work.profiles]
        self._heard = [0.0] * len(work.profiles)
        self._run = run

    def _leave(self) -> None:
        store, self._store, self._run, self._next_result = self._store, None, "", 0
        if store is not None:
            try:
                store.close()
            except ShoalError:
                pass  # it does not reply, so there is nothing to close either

    def _note_durations(self, entries: Sequence[bytes]) -> None:
        for data in entries:
            entry = decode_entry(data)
            if entry.verdict == "done" and 0 <= entry.task < len(self._category):
                category = self._category[entry.task]
                self._seconds[category].append(max(0.0, entry.ended - entry.started))
                self._heard[category] = self._now()

    def _counted(self, ready: int) -> list[CategoryDemand]:
        """Scales the counts of the last read to the current number of ready tasks."""
        seen = sum(self._ready)
        if not seen:
            return [CategoryDemand(Resources(), ready)]
        return [
            CategoryDemand(self._profiles[category].resources, round(count * ready / seen), self._mean(category))
            for category, count in enumerate(self._ready)
            if count
        ]

    def _mean(self, category: int) -> float | None:
        """Returns the mean duration of a category, unless its last results are too old to predict the remaining
        tasks."""
        seconds = self._seconds[category]
        if not seconds:
            return None
        mean = sum(seconds) / len(seconds)
        return mean if self._now() - self._heard[category] <= SILENCE_SECONDS + SILENT_MEANS * mean else None


def served(found: ClusterReply) -> ClusterRunFacts | None:
    """Returns the active run: runs are served one after another, so it is the first one that has not ended."""
    return next((run for run in found.runs if run.state != "ended"), None)


def ready_by_category(standings: bytes, category: Sequence[int], categories: int) -> list[int]:
    """Returns the number of ready tasks by category."""
    import numpy as np

    is_ready = np.frombuffer(standings, dtype="u1") == int(TaskStanding.READY)
    return [int(count) for count in np.bincount(np.asarray(category, dtype="i4")[is_ready], minlength=categories)]


FIND_SECONDS = 2 * LEASE
"""While tasks wait, no node counts as idle before this time: the tasks of a lost node are free only after its lease."""


class GroupFactory:
    """Manages one group of nodes. All durable state is in the cluster's directory."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.factory: Factory | None = None
        self._standings: dict[Handle, NodeStatus] = {}
        self._running_since: dict[str, float] = {}
        self._asked_at: dict[str, float] = {}
        self._joined: set[str] = set()
        """Names of nodes that have joined."""
        self._said = ""

    # ---- state ---------------------------------------------------------------------------------------------------

    def notice(self, group: GroupRecord, found: ClusterReply) -> bool:
        """Takes the nodes that have joined and their resources; returns whether a node that had joined is gone."""
        ours = {handle.name for handle in group.all_nodes}
        here = [node for node in found.nodes.values() if node.labels.get("node", "") in ours]
        names = {node.labels["node"] for node in here}
        if here:
            group.offers = most_of([node.resources for node in here])
        if names - self._joined and self.factory is not None:
            self.factory.node_joined()
        self._joined |= names
        return bool((self._joined & ours) - names)

    def learn(self, group: GroupRecord, standings: Mapping[Handle, NodeStatus], now: float) -> None:
        """Takes the starter's report on the nodes, and drops those that have ended from the record."""
        self._standings = {handle: standings.get(handle, NodeStatus(NodePhase.WAITING)) for handle in group.all_nodes}
        for handle, standing in self._standings.items():
            if standing.phase is NodePhase.RUNNING:
                self._running_since.setdefault(handle.name, now)
            elif standing.phase is NodePhase.ENDED:
                self._ended(handle, standing, now)
        drop_ended(group, self._standings)

    def _ended(self, handle: Handle, standing: NodeStatus, now: float) -> None:
        self._running_since.pop(handle.name, None)
        self._asked_at.pop(handle.name, None)
        if handle.name in self._joined:
            self._joined.discard(handle.name)
            self.say(f"node {handle.name}: {standing.reason or 'ended'}")
            return
        self.say(f"node {handle.name} has ended before it joined: {standing.reason}")
        if self.factory is not None:
            self.factory.start_failed(now)

    # ---- actions -------------------------------------------------------------------------------------------------

    def act(
        self, group: GroupRecord, starter: Starter, access: Access, found: ClusterReply, share: DemandShare, now: float
    ) -> tuple[bool, float]:
        """Carries out the factory's decisions; returns whether there were any, and how many of the queued tasks the
        group takes."""
        assert group.bounds is not None
        bounds = _fitted(group.bounds, starter, share)
        if self.factory is None:
            self.factory = Factory(bounds)
        self.factory.bounds = bounds
        nodes = self._nodes(group, found, now, share.queue)
        actions = self.factory.decide(now, share.queue, nodes)
        for action in actions:
            self._do(action, group, starter, access, found, share.queue, now)
        pause = self.factory.pause(now)
        if pause:
            self.say_once(re.sub(r" in [0-9]+ s", " later", pause))
        return bool(actions), self.factory.reach(now, share.queue, nodes)

    def _nodes(self, group: GroupRecord, found: ClusterReply, now: float, queue: QueueLength) -> list[FactoryNode]:
        numbers = {node.labels.get("node", ""): number for number, node in found.nodes.items()}
        nodes = []
        for handle in group.all_nodes:
            standing = self._standings.get(handle, NodeStatus(NodePhase.WAITING))
            number = numbers.get(handle.name)
            phase, idle_since, ends_at, draining = standing.phase, None, standing.ends_at, handle in group.leaving
            if number is not None:
                phase = NodePhase.RUNNING  # its agent knows that better than an older reply of the batch system
                ends_at = found.nodes[number].ends_at or ends_at
                note = found.notes.get(number)
                if note is not None:
                    patience = FIND_SECONDS if queue.waiting else 0.0
                    idle_since = _since(note.idle_seconds, now, patience)
                    draining = draining or note.draining
            since, asked = self._running_since.get(handle.name), self._asked_at.setdefault(handle.name, now)
            nodes.append(
                FactoryNode(handle.name, phase, number is not None, since, idle_since, ends_at, draining, asked)
            )
        return nodes

    def _do(
        self,
        action: Action,
        group: GroupRecord,
        starter: Starter,
        access: Access,
        found: ClusterReply,
        queue: QueueLength,
        now: float,
    ) -> None:
        if isinstance(action, SubmitNodes):
            self._submit(action.count, group, starter, queue, now)
            return
        (handle,) = [each for each in group.all_nodes if each.name == action.node]
        if isinstance(action, DrainNode) and _drain(access, handle, found.nodes):
            group.nodes.remove(handle)
            group.leaving.append(handle)
            self.say(f"node {handle.name} is idle and is drained")
        elif isinstance(action, CancelNode):
            starter.stop([handle])
            self.say(f"node {handle.name} is surplus or has never joined, and is cancelled")

    def _submit(self, count: int, group: GroupRecord, starter: Starter, queue: QueueLength, now: float) -> None:
        begun = starter.start(count, group.all_nodes)
        group.nodes += begun.handles
        if begun.handles:
            asked = f"requesting {len(begun.handles)} more"
            self.say_once(f"{queue.running} tasks running, {queue.waiting} queued: {asked}", always=True)
        for problem in begun.problems:
            self.say_once(problem)
        if begun.problems and self.factory is not None:
            self.factory.start_failed(now)

    def say_once(self, words: str, *, always: bool = False) -> None:
        """Logs a message unless it equals the last one."""
        if words != self._said or always:
            self._said = words
            self.say(words)


def ability_of(group: GroupRecord) -> Ability:
    """Returns the ability of the group's next node, as far as it is known."""
    return expected_ability(group.kind, group.name, group.agent, group.options, group.labels, group.offers)


def _fitted(bounds: Bounds, starter: Starter, share: DemandShare) -> Bounds:
    """Sets the tasks per node from the demand, and limits the maximum to the starter's capacity."""
    room = starter.room if isinstance(starter, SshStarter) else bounds.maximum
    most = max(bounds.minimum, min(bounds.maximum, room))
    return msgspec.structs.replace(bounds, tasks_per_node=share.at_once, maximum=most)


def _drain(access: Access, handle: Handle, nodes: Mapping[int, NodeInfo]) -> bool:
    address = next((node.address for node in nodes.values() if node.labels.get("node") == handle.name), None)
    return address is not None and ask_to_end(access, address, at_once=False)


def _since(idle_seconds: float | None, now: float, patience: float) -> float | None:
    """Returns since when a node has been idle; None if for less time than work may need to reach it."""
    return None if idle_seconds is None or idle_seconds < patience else now - idle_seconds


START_SECONDS = {"local": 2.0, "ssh": 5.0}
"""Expected seconds to start a node without a batch system."""


def bounds_of(kind: str, minimum: int, maximum: int, idle_seconds: float) -> Bounds:
    """Returns the settings of a factory from the user's bounds and the kind of nodes."""
    usual = Bounds()
    start = START_SECONDS.get(kind, usual.start_seconds)
    return Bounds(minimum, maximum, idle_seconds, start_seconds=start).checked()


class FactoryProcess:
    """The factories of all groups of one cluster."""

    def __init__(
        self, home: ClusterHome, backlog: Backlog, say: Callable[[str], None], now: Callable[[], float] = time.time
    ) -> None:
        self.home, self.backlog, self.say, self.now = home, backlog, say, now
        self.pace = PollInterval()
        self._tenders: dict[str, GroupFactory] = {}
        self._last: dict[Handle, NodeStatus] = {}
        self._complained = ""

    def turn(self, caller: Caller[WireMessage]) -> bool:
        """Makes one round: reads the state and acts on it. Returns whether there is still a group to manage."""
        try:
            found = read_cluster(caller)
        except InputError as error:
            self._report_problem(f"the cluster does not reply: {error.message}")
            return self.home.read_started().head is not None
        self._complained = ""
        demands = self.backlog.demands(found)
        with self.home.locked():
            started = self.home.read_started()
            if started.head is None:
                return False
            if not started.has_bounds:
                started.factory = None  # under the lock: a command that sets bounds now starts another process
                self.home.write_started(started)
                return False
            try:
                silent = self._look(started, found)
                self._act(started, found, demands, silent)
            finally:
                self.home.write_started(started)
        return True

    def _report_problem(self, words: str) -> None:
        if words != self._complained:
            self._complained = words
            self.say(words)

    def _factory_of(self, group: GroupRecord) -> GroupFactory:
        def say(words: str) -> None:
            self.say(f"group {group.name}: {words}")

        return self._tenders.setdefault(group.name, GroupFactory(say))

    def _look(self, started: ClusterRecord, found: ClusterReply) -> dict[str, str]:
        """Asks the starters for their nodes if it is time; returns, by group, why that failed."""
        now = self.now()
        looked_after = [group for group in started.groups if group.bounds is not None or group.closing]
        for group in looked_after:
            if self._factory_of(group).notice(group, found) and group.kind != "local":
                self.pace.hurry(now)  # a node is gone
        elsewhere = self.pace.due(now)
        asked = [group for group in looked_after if group.kind == "local" or elsewhere]
        standings, silent = standings_of(self.home, asked)
        if elsewhere:
            seen: dict[Handle, NodeStatus] = {
                handle: each for handle, each in standings.items() if not isinstance(handle, LocalHandle)
            }
            self.pace.polled(now, seen != self._last)
            self._last = seen
        for group in asked:
            if group.name in silent:
                self._factory_of(group).say_once(silent[group.name])
            else:
                self._factory_of(group).learn(group, standings, now)
        forget_closed(started)
        return silent

    def _act(
        self, started: ClusterRecord, found: ClusterReply, demands: list[CategoryDemand], silent: Mapping[str, str]
    ) -> None:
        """Assigns queued tasks to nodes without a factory first; then each group counts what earlier ones leave."""
        access = read(self.home.access)
        groups = [group for group in started.groups if group.bounds is not None]
        abilities = [ability_of(group) for group in groups]
        running = running_on(found)
        pot = UncountedTasks(demands, running.values(), abilities)
        kept = {number for group in groups for number in present_of(group, found)}
        for number, (ability, count) in running.items():
            if number not in kept and not found.notes[number].draining:
                pot.take(ability, max(0.0, pot.share(ability, count).at_once - count))
        for group, ability in zip(groups, abilities, strict=True):
            if group.name not in silent:
                count = sum(running[number][1] for number in present_of(group, found) if number in running)
                pot.take(ability, self._act_on_group(group, access, found, pot.share(ability, count)))

    def _act_on_group(self, group: GroupRecord, access: Access, found: ClusterReply, share: DemandShare) -> float:
        """Runs the factory of a group; returns how many of the queued tasks it takes."""
        tender, now = self._factory_of(group), self.now()
        try:
            acted, taken = tender.act(group, starter_of(self.home, group), access, found, share, now)
        except NotAnsweringError as error:
            tender.say_once(str(error))
            return 0.0
        if acted:
            self.pace.hurry(now)
        return taken


def running_on(found: ClusterReply) -> dict[int, tuple[Ability, int]]:
    """Returns, by node, its ability and number of running tasks; nodes without a status are left out."""
    return {
        number: (ability_of_node(node.resources, node.labels), found.notes[number].running)
        for number, node in found.nodes.items()
        if number in found.notes
    }


def present_of(group: GroupRecord, found: ClusterReply) -> list[int]:
    """Returns the numbers of the group's current nodes."""
    names = {handle.name for handle in group.all_nodes}
    return [number for number, node in found.nodes.items() if node.labels.get("node", "") in names]


def keep(home: ClusterHome) -> None:
    """Runs the process: rounds, until it gets a signal or no group has bounds any more."""
    enough = threading.Event()
    for number in catchable((signal.SIGTERM, signal.SIGINT, signal.SIGHUP)):
        signal.signal(number, lambda *_: enough.set())  # not in the midst of a round: what was asked for must be noted
    access = read(home.access)

    def say(words: str) -> None:
        print(time.strftime("%F %T"), words, flush=True)

    keeper = FactoryProcess(home, Backlog(lambda: stores_of(access), time.monotonic), say)
    say("factory started")
    with Caller(access, make_codec()) as caller:
        while keeper.turn(caller) and not enough.wait(ROUND_SECONDS):
            pass
