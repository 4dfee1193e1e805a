"""What is simulated: a graph, a node, an order, durations and a mix of faults, all drawn from one seed."""

from __future__ import annotations

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
from shoal.sim.faults import CALM, FaultMix, swarm


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

    def columns(self) -> TaskColumns:
        graph = self.graph
        return TaskColumns(graph.profile, ranks(graph), self.input_bytes, upward_lengths(graph, self.durations))

    def lanes(self) -> list[Lane]:
        return [Lane(profile.resources, profile.retries, self.bundled) for profile in self.graph.profiles]


def draw_scenario(seed: int) -> Scenario:
    """The scenario of a seed: small on purpose, so that thousands can be run."""
    random = Random(2 * seed)
    node = _draw_node(random)
    bundled = random.random() < 0.25
    draw_seconds = _draw_durations(random, bundled)
    graph = SHAPES[random.choice(list(SHAPES))](random, random.randint(5, 60), _draw_profiles(random, node, bundled))
    durations = [draw_seconds() for _ in range(len(graph))]
    work = sum(durations) / (node.get("cores") / FRACTION)
    return Scenario(
        seed,
        graph,
        node,
        durations,
        order=random.choice(list(ORDERS)),
        faults=swarm(random, work) if random.random() < 0.95 else CALM,
        bundled=bundled,
        announces=random.random() < 0.7,
        input_bytes=[random.randrange(1000) for _ in range(len(graph))],
        patience=random.choice((2, 5, PASSED_OVER_LIMIT)),
    )


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
