"""What is simulated: a graph, a node, an order, durations and a mix of faults, all drawn from one seed."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from random import Random

import msgspec

from shoal.broker.broker import PASSED_OVER_LIMIT, Lane
from shoal.model.generate import CATEGORIES, SHAPES, Profiles, several_lanes
from shoal.model.graph import Graph
from shoal.model.rank import ranks, upward_lengths
from shoal.model.resources import FRACTION, Resources
from shoal.model.task import Profile
from shoal.policy.order import ORDERS, TaskColumns
from shoal.policy.sizing.panel import SIZED, Amounts, Panel, Part
from shoal.policy.sizing.parts import new_part, open_resources
from shoal.sim.faults import CALM, FaultMix, swarm

ONE_IN_THROTTLED = 4
"""Seeds in which a throttle limits how many run together."""


class Scenario(msgspec.Struct):
    """Everything a simulated run depends on besides the code."""

    seed: int
    graph: Graph
    node: Resources
    durations: list[float]
    order: str = "fifo"
    faults: FaultMix = CALM
    bundled: bool = False
    """Tasks are calls: several short ones may be started together."""
    announces: bool = True
    """The driver promises ready tasks with the results, as the engine does; otherwise they come a little later."""
    input_bytes: list[int] = []
    patience: int = PASSED_OVER_LIMIT
    peaks: list[Amounts] = []
    """What each task uses of each of `SIZED`; nobody declared it, so it is learned. Empty: nothing is learned."""
    throttled: bool = False
    """How many tasks of a category run together changes as long as things go wrong."""

    def columns(self) -> TaskColumns:
        graph = self.graph
        lanes = array("i", graph.profile)  # its own: tasks that exceed their size change lanes
        return TaskColumns(lanes, ranks(graph), self.input_bytes, upward_lengths(graph, self.durations))

    def lanes(self) -> list[Lane]:
        return [
            Lane(
                profile.resources,
                profile.retries,
                self.bundled,
                adviser=self._adviser(profile),
                cap=profile.category if self.throttled else "",
            )
            for profile in self.graph.profiles
        ]

    def learned(self) -> list[tuple[str, ...]]:
        """For each profile the resources that it leaves open and that are learned."""
        if not self.peaks:
            return [()] * len(self.graph.profiles)
        return [tuple(open_resources(profile, self.node)) for profile in self.graph.profiles]

    def _adviser(self, profile: Profile) -> Panel | None:
        names = open_resources(profile, self.node) if self.peaks else []
        parts: dict[str, Part] = {name: new_part(name, self.node.get(name)) for name in names}
        return Panel(self.node, profile.resources.get("cores"), parts) if parts else None


def draw_scenario(seed: int) -> Scenario:
    """The scenario of a seed: small on purpose, so that thousands can be run."""
    random = Random(2 * seed)
    node = _draw_node(random)
    bundled = random.random() < 0.25
    draw_seconds = _draw_durations(random, bundled)
    graph = SHAPES[random.choice(list(SHAPES))](random, random.randint(5, 60), _draw_profiles(random, node, bundled))
    durations = [draw_seconds() for _ in range(len(graph))]
    work = sum(durations) / (node.get("cores") / FRACTION)
    node, peaks = _draw_peaks(Random(3 * seed), node, len(graph)) if not bundled else (node, [])
    order = random.choice(list(ORDERS))
    faults = swarm(random, work) if random.random() < 0.95 else CALM
    return Scenario(
        seed,
        graph,
        node,
        durations,
        order=order,
        faults=faults,
        bundled=bundled,
        announces=random.random() < 0.7,
        input_bytes=[random.randrange(1000) for _ in range(len(graph))],
        patience=random.choice((2, 5, PASSED_OVER_LIMIT)),
        peaks=peaks,
        throttled=seed % ONE_IN_THROTTLED == 2,
    )


def _draw_peaks(random: Random, node: Resources, tasks: int) -> tuple[Resources, list[Amounts]]:
    """Peaks of a heavy-tailed kind, some above what the node has; and the node, which may have a disk for them."""
    if random.random() < 0.5:
        return node, []
    if random.random() < 0.5:
        node = Resources.of({**dict(node.amounts), "disk": random.randint(1, 64) << 30})
    columns = []
    for name in SIZED:
        typical, whole = random.uniform(-5.0, -1.0), node.get(name)
        columns.append([int(whole * min(1.2, random.lognormvariate(typical, 1.0))) for _ in range(tasks)])
    return node, list(zip(*columns, strict=True))


def _draw_node(random: Random) -> Resources:
    amounts = {"cores": random.randint(1, 8) * FRACTION}
    if random.random() < 0.5:
        amounts["memory"] = random.randint(1, 64) << 30
    if random.random() < 0.3:
        amounts["gpus"] = random.randint(1, 2) * FRACTION
    if random.random() < 0.2:
        amounts["licence"] = FRACTION
    return Resources.of(amounts)


def _draw_durations(random: Random, bundled: bool) -> Callable[[], float]:
    """Whole seconds make many ends fall together; calls are so short that they are bundled."""
    if bundled:
        return lambda: random.uniform(0.00005, 0.002)
    if random.random() < 0.5:
        return lambda: float(random.randint(1, 4))
    return lambda: random.lognormvariate(0.0, 1.0)


def _draw_profiles(random: Random, node: Resources, bundled: bool) -> Profiles:
    timeout = random.choice((None, 0.05 if bundled else 10.0))
    retries = random.choice((0, 1, 3, 5))
    if random.random() < 0.6:
        return several_lanes(random, node, retries, timeout)
    return {category: Profile(category, retries=retries, timeout=timeout) for category in CATEGORIES}
