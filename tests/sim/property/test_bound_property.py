"""Bounds over random graphs: no schedule beats the lower bound, and the vectorised programme is the one written down.

The schedules are made by a small list scheduler of the test's own: nodes with cores and speeds, tasks that ask for
several cores or a part of one, any order of the ready tasks.
"""

from __future__ import annotations

import heapq
from array import array
from itertools import permutations
from random import Random
from unittest.mock import patch

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.resources import FRACTION, Resources
from shoal.core.task import Profile
from shoal.core.work import Work, assemble
from shoal.sim import lower_bound as lower_bound_module
from shoal.sim.lower_bound import Capacity, lower_bound
from shoal.sim.matrix_bound import READINGS, Network, paper_bound

SLACK = 1 + 1e-9
ASKS = (1.0, 0.25, 2.0, 3.0)
WIDTHS = st.sampled_from([0, 3, 32])
"""From which width on a graph is walked level by level: always, for some, for none of these."""


def random_work(rng: Random, most: int, asks: tuple[float, ...] = (1.0,)) -> Work:
    """Up to so many tasks with any edges between them; numbers say nothing of the order, and files may be shared."""
    tasks = rng.randint(1, most)
    order = list(range(tasks))
    rng.shuffle(order)
    makes = [[2 * task, 2 * task + 1][: rng.randint(0, 2)] for task in range(tasks)]
    reads: list[list[int]] = [[] for _ in range(tasks)]
    density = rng.choice([0.05, 0.2, 0.5])
    for place, task in enumerate(order):
        for before in order[:place]:
            if rng.random() < density:
                reads[task] += makes[before]
    seconds = [rng.choice([0.0, 1.0, rng.random(), 10 * rng.random()]) for _ in range(tasks)]
    work = assemble("random", seconds, reads, makes, [rng.randint(0, 1000) for _ in range(2 * tasks)])
    profiles = [Profile(f"cores {cores}", Resources.parse({"cores": cores})) for cores in asks]
    return msgspec.structs.replace(
        work, category=array("i", [rng.randrange(len(asks)) for _ in range(tasks)]), profiles=profiles
    )


def makespan(work: Work, nodes: list[tuple[float, float]], priority: list[int]) -> float:
    """Greedy: whenever something is ready and fits on a node, it starts, in the order of priority."""
    free = [cores for cores, _ in nodes]
    left = list(work.waits_for)
    asked = [work.profiles[number].resources.get("cores") / FRACTION for number in work.category]
    ready = sorted((task for task in range(len(work)) if not left[task]), key=priority.__getitem__)
    running: list[tuple[float, int, int]] = []
    now = 0.0
    while ready or running:
        waiting = []
        for task in ready:
            node = next((at for at, cores in enumerate(free) if cores >= asked[task]), None)
            if node is None:
                waiting.append(task)
            else:
                free[node] -= asked[task]
                heapq.heappush(running, (now + work.seconds[task] / nodes[node][1], task, node))
        now, task, node = heapq.heappop(running)
        free[node] += asked[task]
        for child in work.children_of(task):
            left[child] -= 1
            if not left[child]:
                waiting.append(child)
        ready = sorted(waiting, key=priority.__getitem__)
    return now


def parents_of(work: Work) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(len(work))]
    for task in range(len(work)):
        for child in work.children_of(task):
            if task not in found[child]:
                found[child].append(task)
    return found


def written_down(work: Work, cores: int, reading: str, network: Network) -> float:
    """The paper's programme as its formulas stand, parent by parent, with the one repair."""
    parents = parents_of(work)
    output = [sum(work.file_bytes[file] for file in work.outputs_of(task)) for task in range(len(work))]
    depth: dict[int, int] = {}
    while len(depth) < len(work):
        for task in range(len(work)):
            if task not in depth and all(parent in depth for parent in parents[task]):
                depth[task] = 1 + max((depth[parent] for parent in parents[task]), default=-1)
    ends: dict[int, float] = {}
    for task in sorted(depth, key=lambda task: (depth[task], task)):
        level = [other for other in range(len(work)) if depth[other] == depth[task]]
        among = list(range(len(work))) if reading == "literal" else level
        mean = sum(work.seconds[other] for other in among) / len(among)
        wait = max(0.0, len(among) / cores - 1) * mean / 2
        if reading == "position":
            wait = level.index(task) // cores * mean
        arrival = {u: ends[u] + output[u] / network.bandwidth for u in parents[task]}
        start = 0.0
        if arrival:
            move = network.task_bytes / network.bandwidth
            joined = [max([ends[w], *(arrival[u] for u in arrival if u != w)]) + move for w in arrival]
            start = min(max(arrival.values()), *joined)
        ends[task] = start + (0.0 if reading == "no-wait" else wait) + work.seconds[task]
    return max(ends.values())


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 9), st.sampled_from(list(READINGS)), WIDTHS)
def test_the_vectorised_programme_is_the_one_written_down(seed: int, cores: int, reading: str, narrow: int) -> None:
    rng = Random(seed)
    work = random_work(rng, 40)
    network = Network(rng.choice([100.0, 1e4, 1e9]), rng.choice([0.0, 10.0, 1000.0]))
    expected = written_down(work, cores, reading, network)
    with patch.object(lower_bound_module, "NARROW", narrow):
        found = paper_bound(work, cores, reading, network)
    assert abs(found.seconds - expected) <= 1e-9 * max(1.0, expected)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), WIDTHS)
def test_no_list_schedule_beats_the_lower_bound_whatever_tasks_ask_for_and_nodes_have(seed: int, narrow: int) -> None:
    rng = Random(seed)
    work = random_work(rng, 60, ASKS[: rng.randint(1, len(ASKS))])
    nodes = [(float(rng.randint(3, 8)), rng.choice([0.5, 1.0, 1.0, 3.0])) for _ in range(rng.randint(1, 4))]
    with patch.object(lower_bound_module, "NARROW", narrow):
        bound = lower_bound(work, Capacity.of(nodes))
    for _ in range(5):
        priority = list(range(len(work)))
        rng.shuffle(priority)
        assert bound.seconds <= makespan(work, nodes, priority) * SLACK


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 3))
def test_no_order_at_all_beats_the_lower_bound_of_a_small_graph(seed: int, cores: int) -> None:
    work = random_work(Random(seed), 5)
    best = min(makespan(work, [(cores, 1.0)], list(order)) for order in permutations(range(len(work))))
    assert lower_bound(work, Capacity(cores)).seconds <= best * SLACK


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 9), WIDTHS)
def test_every_greedy_schedule_keeps_grahams_bound(seed: int, cores: int, narrow: int) -> None:
    """With one core per task and one speed; so the terms of the lower bound are not too small either."""
    rng = Random(seed)
    work = random_work(rng, 60)
    with patch.object(lower_bound_module, "NARROW", narrow):
        bound = lower_bound(work, Capacity(cores))
    priority = list(range(len(work)))
    rng.shuffle(priority)
    assert makespan(work, [(cores, 1.0)], priority) <= (bound.over_cores + (1 - 1 / cores) * bound.path) * SLACK
