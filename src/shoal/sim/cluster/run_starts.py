"""Simulations of the start of a cluster run, when nodes join it one by one and first messages get lost.

As in a live run, all nodes are known, and each agent opens its part of the run at its own time. The first one takes the
ready tasks and keeps or distributes them; all others start to steal. Messages to a node that has not opened its part
are kept and processed when it does. The first messages between any two nodes get lost, duplicated or delayed. A part
may open without knowing all nodes, event loops block, and nodes fail, return, or join later. Tasks are long: a node
that has missed a message would stay idle while others have more than enough tasks. `Idleness` detects that.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.core.peer_messages import Message, PeerMessageReceived, PeersChanged, Roster, TasksPlaced
from shoal.core.peer_scheduler import PeerScheduler
from shoal.core.policies.order import ORDERS
from shoal.core.scheduler_messages import CapsChanged, TimePassed
from shoal.core.store.memory import ReadyBatch
from shoal.core.work import Work, bytes_read, from_graph
from shoal.sim.cluster.fault_schedule import FaultInjectionRun, run_checked
from shoal.sim.cluster.result import ClusterTrace
from shoal.sim.cluster.run import SUBMISSIONS, SimulationOptions
from shoal.sim.cluster.scenario import CALM, ClusterFaults, ClusterScenario, draw_profiles
from shoal.sim.cluster.specification import ClusterSpec, NodeSpec
from shoal.sim.synthetic_graphs import SHAPES
from shoal.sim.workloads.registry import make_workload

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_EARLY = 64
"""Maximum number of messages that an agent keeps before it opens its part."""
LATEST_ATTACH = 1.0
BEAT = 1.0
"""Seconds after which an opened part learns of a node that it did not know."""
WORK = ("bag:tasks={}", "fan-out:tasks={},degree=3", "stacking:tasks={},locality=3,aggregate=1", "all-pairs:side=5")


class RunStart(msgspec.Struct, frozen=True):
    """Faults of the first messages; all fields but `first` and `late_nodes` are probabilities."""

    first: int = 0
    """Number of messages from one node to another that count as the first ones."""
    loses: float = 0.0
    doubles: float = 0.0
    delays: float = 0.0
    unknown: float = 0.0
    """Probability that a node does not know another one when it opens its part."""
    late_nodes: int = 0
    """Number of nodes that join during the run."""


class RunStartScenario(ClusterScenario):
    """A run with faults at its start."""

    beginning: RunStart = RunStart()


def draw_beginning(seed: int) -> RunStartScenario:
    """Draws the scenario of a seed."""
    random = Random(4 * seed + 1)
    cores = random.choice((1, 1, 2, 3))
    latency = random.choice((0.0002, 0.0002, 0.005, 0.08, 0.2))
    spec = ClusterSpec(random.randint(2, 7), NodeSpec(cores=cores), latency=latency, store_latency=0.0005)
    work = _draw_work(random, spec)
    options = SimulationOptions(
        policy=random.choice(("flds", "flds", "mlb", "auto")),
        order=random.choice(list(ORDERS)),
        look_ahead=random.choice((0, 1)),
        estimated=random.random() < 0.5,
        submission=random.choice(SUBMISSIONS),
        seed=seed,
    )
    until = random.uniform(2.5, 4.0)
    faults = ClusterFaults(
        deaths=random.choice((0.0, 0.0, 0.5)),
        suspicions=random.choice((0.0, 0.0, 0.3)),
        stalls=random.choice((0.0, 2.0, 10.0)),
        fails=random.choice((0.0, 0.1)),
        lease=random.uniform(0.1, 0.5),
        until=until,
    )
    beginning = RunStart(
        first=random.choice((1, 2, 4, 8)),
        loses=random.choice((0.0, 0.5, 1.0)),
        doubles=random.choice((0.0, 0.3)),
        delays=random.choice((0.0, 0.5)),
        unknown=random.choice((0.0, 0.5, 1.0)),
        late_nodes=random.choice((0, 0, 1, 2)),
    )
    return RunStartScenario(seed, work, spec, options, faults, direct=True, beginning=beginning)


def _draw_work(random: Random, spec: ClusterSpec) -> Work:
    """Tasks of some seconds each, at least ten per core."""
    tasks = min(60, 12 * spec.cores())
    if random.random() < 0.5:
        work = make_workload(random.choice(WORK).format(tasks), random.randrange(1 << 30))
        profiles = [msgspec.structs.replace(profile, retries=3) for profile in work.profiles]
        sizes = array("q", (1 + size % 20_000_000 for size in work.file_bytes))
        weight = bytes_read(len(work), work.input_start, work.inputs, sizes)
        work = msgspec.structs.replace(work, profiles=profiles, file_bytes=sizes, weight=weight)
    else:
        graph = SHAPES[random.choice(list(SHAPES))](random, tasks, draw_profiles(random, spec))
        sizes = array("q", (random.choice((1, random.randint(1, 20_000_000))) for _ in graph.file_names))
        work = from_graph(graph, array("d", [1.0] * len(graph)), sizes)
    length = random.choice((1.0, 3.0))
    seconds = array("d", (random.uniform(0.5, 1.5) * length for _ in range(len(work))))
    return msgspec.structs.replace(work, seconds=seconds)


class Unopened(msgspec.Struct):
    """A node that has not opened its part of the run."""

    member: PeerScheduler
    early: deque[tuple[Callable[..., None], Any]]
    """Messages from other nodes."""
    news: list[tuple[Callable[..., None], Any]] = []
    """Messages from the store, which must not get lost."""


class RunStartSimulation(FaultInjectionRun):
    """A simulation in which nodes open their parts one by one."""

    def __init__(self, scenario: RunStartScenario) -> None:
        self.beginning = scenario.beginning
        self._unopened: dict[int, Unopened] = {}
        self._said: Counter[tuple[int, int]] = Counter()
        """Number of messages by sender and receiver."""
        super().__init__(scenario)

    def submit(self, placeable: ReadyBatch) -> None:
        """Leaves the ready tasks without a node: the first one that opens its part takes them."""
        for node in list(self.members):
            self._unopened[node] = Unopened(self.members.pop(node), deque(maxlen=MOST_EARLY))
            soon = self.chance.random() < 0.5
            self.at(self.chance.uniform(0.0, 0.05 if soon else LATEST_ATTACH), self._open, node, None)
        for at in range(self.beginning.late_nodes):
            fresh = (at + 1) * 100 * self.spec.nodes  # no collision with the numbers of returning nodes
            self.at(self.chance.uniform(0.2, self.mix.until), self._join_late, fresh, None)

    def _join_late(self, node: int, _: None) -> None:
        self.join(node, self.spec.kind(node % self.spec.nodes))
        self._unopened[node] = Unopened(self.members.pop(node), deque(maxlen=MOST_EARLY))
        self.announce()
        self.place_waiting()
        self.at(self.now + self.chance.uniform(0.0, 0.2), self._open, node, None)
        self.trace.saw("late nodes")

    def _open(self, node: int, _: None) -> None:
        """Opens a part in the same way as `shoal.cluster.agent.run_share.RunShare.begin`."""
        unopened = self._unopened.pop(node)
        self.members[node] = unopened.member
        unknown = [other for other in self.known if other != node and self.chance.random() < self.beginning.unknown]
        if unknown:
            seen = {other: self.capacity[other] for other in self.known if other not in unknown}
            self.at(self.now + self.chance.uniform(0.0, BEAT), self.reach, node, (self._see_nodes, None))
            self.deliver(node, PeersChanged(Roster(seen, seen)))
            self.trace.saw("unknown nodes")
        taken = self.store.unowned(node)
        self.deliver(node, CapsChanged({}))
        to = self.options.submission if self.options.submission == "all" else ""
        self.deliver(node, TasksPlaced(taken.tickets, taken.holdings, to) if taken.tickets else TimePassed())
        for action, argument in [*unopened.news, *unopened.early]:
            action(node, argument)

    def _see_nodes(self, node: int, _: None) -> None:
        self.deliver(node, PeersChanged(self.roster))

    def reach(self, node: int, what: tuple[Callable[..., None], Any]) -> None:
        unopened = self._unopened.get(node)
        if unopened is None:
            super().reach(node, what)
        elif isinstance(what[1], PeerMessageReceived):
            unopened.early.append(what)
        else:
            unopened.news.append(what)

    def _transmit(self, sender: int, receiver: int, message: Message) -> None:
        beginning, chance = self.beginning, self.chance
        self._said[sender, receiver] += 1
        if self.mix is CALM or self._said[sender, receiver] > beginning.first:
            super()._transmit(sender, receiver, message)
            return
        if chance.random() < beginning.loses:
            self.trace.saw("first messages lost")
            return
        for _ in range(2 if chance.random() < beginning.doubles else 1):
            delay = chance.expovariate(4.0) if chance.random() < beginning.delays else 0.0
            self.at(
                self.now + self.spec.latency + delay,
                self.reach,
                receiver,
                (self.deliver, PeerMessageReceived(sender, message)),
            )


def run_beginning_seed(seed: int) -> ClusterTrace:
    """Simulates the scenario of a seed."""
    return run_checked(RunStartSimulation(draw_beginning(seed)), flag="--beginnings")
