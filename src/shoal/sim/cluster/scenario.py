"""Random scenarios for clusters with faults: the complete input of a simulated run, from one seed.

Scenarios are small, so that thousands of them can be simulated: at most a dozen nodes with a few cores, and a few dozen
tasks.
"""

from __future__ import annotations

from array import array
from random import Random

import msgspec

from shoal.core.policies.order import ORDERS
from shoal.core.policies.retry import AttemptOutcome
from shoal.core.policies.stealing import POLICIES, Stealing
from shoal.core.resources import FRACTION, Resources, requiring
from shoal.core.task import Profile
from shoal.core.work import Work, bytes_read, from_graph
from shoal.sim.cluster.run import SUBMISSIONS, SimulationOptions
from shoal.sim.cluster.specification import ClusterSpec, NodeSpec
from shoal.sim.synthetic_graphs import CATEGORIES, SHAPES, several_lanes
from shoal.sim.workloads.registry import make_workload


class ClusterFaults(msgspec.Struct, frozen=True):
    """Fault probabilities per message, attempt or result, and fault rates per virtual second; 0 disables a kind of
    fault."""

    loses: float = 0.0
    """Messages between schedulers that never arrive."""
    doubles: float = 0.0
    """Messages that arrive twice."""
    delays: float = 0.0
    """Messages with a long delay, so that later ones overtake them."""
    fails: float = 0.0
    attempts_lost: float = 0.0
    """Attempts that are lost for a reason outside the task."""
    echoes: float = 0.0
    """Results that are reported a second time, later."""
    slow_kills: float = 0.0
    deaths: float = 0.0
    """A node fails; the failure is detected when its lease ends."""
    suspicions: float = 0.0
    """A node is declared dead although it is alive, and continues for some time."""
    slow_nodes: float = 0.0
    outages: float = 0.0
    """The store does not reply for some time."""
    full_disks: float = 0.0
    stays_full: float = 0.0
    """Probability that a full disk stays full until the end of the run."""
    capacity_changes: float = 0.0
    cancels: float = 0.0
    policy_changes: float = 0.0
    stalls: float = 0.0
    """The event loop of a node blocks for some time. What arrives meanwhile is then processed together, messages before
    timers."""
    lease: float = 0.5
    """Seconds after which a silent node is declared dead."""
    until: float = 0.0
    """No faults occur after this time, and all remaining tasks must finish."""


CALM = ClusterFaults()
STRIKES = (
    *("deaths", "suspicions", "slow_nodes", "outages", "full_disks", "capacity_changes", "cancels"),
    *("policy_changes", "stalls"),
)
"""The kinds of faults that occur at random times, independently of messages and attempts."""

_LARGEST = {
    "loses": 0.3,
    "doubles": 0.3,
    "delays": 0.3,
    "fails": 0.25,
    "attempts_lost": 0.3,
    "echoes": 0.5,
    "slow_kills": 0.5,
}
_MOST_PER_RUN = {
    "deaths": 6.0,
    "suspicions": 4.0,
    "slow_nodes": 4.0,
    "outages": 3.0,
    "full_disks": 3.0,
    "capacity_changes": 6.0,
    "cancels": 4.0,
    "policy_changes": 3.0,
}


def swarm(random: Random, horizon: float) -> ClusterFaults:
    """Draws a fault mix for a run of about `horizon` seconds without faults. Each kind of fault is left out at random,
    so that rare combinations occur (swarm testing)."""
    chosen = {name: random.uniform(0.02, most) if random.random() < 0.5 else 0.0 for name, most in _LARGEST.items()}
    for name, most in _MOST_PER_RUN.items():
        chosen[name] = random.uniform(0.5, most) / horizon if random.random() < 0.4 else 0.0
    return ClusterFaults(
        **chosen,
        stays_full=random.choice((0.0, 0.5)),
        lease=random.uniform(0.1, 1.0),
        until=random.uniform(0.5, 3.0) * horizon,
    )


def draw_outcome(random: Random, mix: ClusterFaults) -> AttemptOutcome:
    """Draws the outcome of an attempt that is not interrupted."""
    if mix.fails and random.random() < mix.fails:
        return random.choice((AttemptOutcome.FAILED, AttemptOutcome.CRASHED))
    if mix.attempts_lost and random.random() < mix.attempts_lost:
        return AttemptOutcome.LOST
    return AttemptOutcome.OK


NAMED = (
    *("bag:tasks={}", "fan-out:tasks={},degree=3", "fan-in:tasks={},degree=3", "pipeline:tasks={},degree=4"),
    *("stacking:tasks={},locality=3,aggregate=1", "all-pairs:side=5", "copyfile:files={}", "moldyn:molecules=1"),
    *("fmri:volumes=6",),
)
ONE_IN_LABELLED = 3
"""One in this number of seeds has nodes with labels, which tasks require or prefer."""
ONE_IN_CRAMPED = 4
"""One in this number of seeds has nodes with little room for the inputs of tasks."""
LONGEST_TASK = 0.6
LARGEST_FILE = 20_000_000
"""Bytes; equals a tenth of a second on the slowest link."""


class ClusterScenario(msgspec.Struct):
    """The complete input of one simulated cluster run."""

    seed: int
    work: Work
    spec: ClusterSpec
    options: SimulationOptions = SimulationOptions()
    faults: ClusterFaults = CALM
    direct: bool = True
    """The store replies immediately; otherwise replies take time, and requests of a node are queued."""

    def can_lose_a_node_for_good(self) -> bool:
        """Whether tasks of a node that starts nothing any more can always run elsewhere."""
        return self.spec.nodes > 1 and not self.spec.others and self.options.stealing.enabled


def draw_cluster(seed: int) -> ClusterScenario:
    """Draws the scenario of a seed."""
    random = Random(2 * seed)
    spec = _draw_spec(random)
    work = _draw_work(random, spec)
    if seed % ONE_IN_LABELLED == 1 and spec.nodes > 1:
        spec, work = _draw_labels(Random(~seed), spec, work)
    if seed % ONE_IN_CRAMPED == 2:
        spec = _draw_spools(Random(~seed), spec, work)
    options = SimulationOptions(
        policy=random.choice(list(POLICIES)),
        order=random.choice(list(ORDERS)),
        stealing=Stealing(
            enabled=random.random() < 0.95,
            neighbours=random.choice((0, 0, 1, 4)),
            share=random.choice((0.5, 0.5, 0.1, 1.0)),
            longest_interval=random.choice((0.25, 2.0, 2.0)),
        ),
        patience=random.choice((None, 0.1, 1.0)),
        look_ahead=random.choice((0, 1, 1, 2)),
        estimated=random.random() < 0.5,
        submission=random.choice(SUBMISSIONS),
        seed=seed,
    )
    horizon = max(0.5, sum(work.seconds) / spec.cores())
    faults = swarm(random, horizon) if random.random() < 0.9 else CALM
    return ClusterScenario(seed, work, spec, options, faults, direct=not faults.outages and random.random() < 0.4)


def _draw_spec(random: Random) -> ClusterSpec:
    kind = NodeSpec(
        cores=random.randint(1, 4),
        memory=random.choice((0, 4 << 30)),
        link=random.choice((2e8, 1.25e9)),
        disk_rate=random.choice((5e8, float("inf"))),
        cache=random.choice((0, 0, -1, LARGEST_FILE)),
    )
    nodes = random.randint(1, 12)
    others: tuple[tuple[int, NodeSpec], ...] = ()
    if nodes > 1 and random.random() < 0.3:
        larger = msgspec.structs.replace(kind, cores=kind.cores + 2, memory=2 * kind.memory, speed=1.5)
        others = ((random.randint(1, nodes - 1), larger),)
    return ClusterSpec(
        nodes,
        kind,
        others,
        store_latency=random.choice((0.0005, 0.01)),
        shared_files=random.random() < 0.15,
        shared_rate=random.choice((1e9, float("inf"))),
    )


def _draw_spools(random: Random, spec: ClusterSpec, work: Work) -> ClusterSpec:
    """Draws disk sizes that are sufficient for the inputs of some tasks only."""
    needs = sorted(sum(work.file_bytes[file] for file in work.inputs_of(task)) for task in range(len(work)))
    largest = max(1, needs[-1])

    def spool() -> int:
        return random.choice((0, int(largest * random.uniform(0.5, 3.0)), 1 + largest // 2))

    others = tuple((count, msgspec.structs.replace(kind, spool=spool())) for count, kind in spec.others)
    return msgspec.structs.replace(spec, node=msgspec.structs.replace(spec.node, spool=spool()), others=others)


def _draw_labels(random: Random, spec: ClusterSpec, work: Work) -> tuple[ClusterSpec, Work]:
    """Gives labels to nodes: some are of site b, and some of these have a GPU. Categories require one of these labels,
    or prefer some."""
    count = random.randint(1, spec.nodes - 1)
    special = random.randint(0, count)
    kind = spec.kind(spec.nodes - 1)  # the largest kind, so that all tasks fit on nodes with labels
    there = msgspec.structs.replace(kind, labels=("site=b",))
    with_gpu = msgspec.structs.replace(kind, labels=("gpu=x", "site=b"))
    here = msgspec.structs.replace(kind, labels=("site=a",))
    others = ((count - special, there), *(((special, with_gpu),) if special else ()))
    profiles = []
    for profile in work.profiles:
        if profile.resources.amounts:
            required = random.choice(((), (), ("site=a",), ("site=b",), ("gpu=x",) if special else ()))
            preferred = random.choice(((), ("site=a",), ("site=b",), ("gpu=x", "site=b"), ("site=nowhere",)))
            request = requiring(profile.resources, required)
            profile = msgspec.structs.replace(profile, resources=request, prefers=preferred)
        profiles.append(profile)
    labelled = msgspec.structs.replace(spec, node=here, others=others)
    return labelled, msgspec.structs.replace(work, profiles=profiles)


def _draw_work(random: Random, spec: ClusterSpec) -> Work:
    tasks = random.randint(4, 45)
    if random.random() < 0.4:
        work = make_workload(random.choice(NAMED).format(tasks), random.randrange(1 << 30))
        longest = max(work.seconds, default=0.0) or 1.0
        seconds = array("d", (max(0.001, LONGEST_TASK * each / longest) for each in work.seconds))
        sizes = array("q", (1 + size % LARGEST_FILE for size in work.file_bytes))
        retries = random.choice((0, 1, 3))
        profiles = [msgspec.structs.replace(profile, retries=retries) for profile in work.profiles]
        weight = bytes_read(len(work), work.input_start, work.inputs, sizes)
        return msgspec.structs.replace(work, seconds=seconds, file_bytes=sizes, profiles=profiles, weight=weight)
    shape = SHAPES[random.choice(list(SHAPES))]
    graph = shape(random, tasks, draw_profiles(random, spec))
    seconds = array("d", (random.uniform(0.02, LONGEST_TASK) for _ in range(len(graph))))
    sizes = array("q", (random.choice((1, random.randint(1, LARGEST_FILE))) for _ in graph.file_names))
    return from_graph(graph, seconds, sizes)


def draw_profiles(random: Random, spec: ClusterSpec) -> dict[str, Profile]:
    """Profiles for several lanes, some as wide as the largest node; or equal ones."""
    retries = random.choice((0, 1, 3))
    if random.random() < 0.5:
        largest = spec.kind(spec.nodes - 1).resources()
        amounts = {name: amount for name, amount in largest.amounts if name != "cores"}
        cores = Resources.of({**amounts, "cores": max(FRACTION, largest.get("cores"))})
        return several_lanes(random, cores, retries)
    return {category: Profile(category, retries=retries) for category in CATEGORIES}
