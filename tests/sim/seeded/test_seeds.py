"""Seeded runs of the real dependency tracker and scheduler on a virtual node: safety under faults, then an end for
every task.

A failing seed prints the command that reproduces it. A seed that found a defect once stays in `FOUND`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from random import Random

import pytest

from shoal.core.graph import Graph, GraphBuilder, upward_lengths
from shoal.core.policies.order import ORDERS
from shoal.core.policies.retry import AttemptOutcome
from shoal.core.resources import FRACTION, Resources
from shoal.core.scheduler_messages import (
    CapacityChanged,
    DrainRequested,
    GiveUp,
    Kill,
    Retry,
    Start,
    TaskGrew,
    TasksEnded,
)
from shoal.sim.node import Violation
from shoal.sim.run import SeedFailedError, SimulatedRun, SimulationTrace, run_seed, simulate
from shoal.sim.scenario import SimulationScenario
from shoal.sim.synthetic_graphs import SHAPES
from support.graphs import graph_of

SEEDS = 1_500
"""`python -m shoal.sim --seeds 0..5000` runs more of them."""
CHUNK = 250
FOUND = [
    4,  # a task that rested while the node shrank below its request woke up and was queued for ever
    54,  # the same for a task whose attempt failed at once after the node had shrunk
]


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_seed_breaks_a_rule(first: int) -> None:
    for seed in range(first, first + CHUNK):
        run_seed(seed)


@pytest.mark.parametrize("seed", FOUND)
def test_seeds_that_found_a_defect_are_still_sound(seed: int) -> None:
    run_seed(seed)


def test_the_seeds_meet_every_kind_of_fault_and_end() -> None:
    """A simulator that stopped making trouble would pass every other test here."""
    ends: set[str] = set()
    seen: set[str] = set()
    for seed in range(300):
        trace = run_seed(seed)
        ends |= trace.ends.keys()
        seen |= {kind for entry in trace.entries for kind in kinds_in(entry[1], entry[2])}
    assert ends == {
        "accepted", "failed", "crashed", "timeout", "lost", "cancelled", "doomed", "queued", "exhausted",
    } - rare(ends)  # fmt: skip
    assert seen >= {
        "bundle",
        "kill",
        "rest",
        "drain",
        "shrink",
        "duplicate",
        "LOST",
        "UNBEGUN",
        "CRASHED",
        "TIMEOUT",
        "EXHAUSTED",
        "too large",
    }


def rare(ends: set[str]) -> set[str]:
    """A task gives up for losses only after eleven of them, which not every few hundred seeds show."""
    return {"lost"} - ends


def kinds_in(event: object, commands: object) -> set[str]:
    kinds: set[str] = set()
    assert isinstance(commands, list)
    for command in commands:
        match command:
            case Start(tasks) if len(tasks) > 1:
                kinds.add("bundle")
            case Kill():
                kinds.add("kill")
            case Retry(delay=delay) if delay > 0:
                kinds.add("rest")
            case GiveUp(attempt=0, outcome=AttemptOutcome.FAILED):
                kinds.add("too large")
    match event:
        case DrainRequested():
            kinds.add("drain")
        case CapacityChanged():
            kinds.add("shrink")
        case TasksEnded(results):
            kinds |= {result.outcome.name for result in results}
            if len({(result.task, result.attempt) for result in results}) < len(results):
                kinds.add("duplicate")
    return kinds


@pytest.mark.parametrize("seed", [3, 17, 256, 4999])
def test_the_same_seed_gives_the_same_trace(seed: int) -> None:
    one, other = run_seed(seed), run_seed(seed)
    assert one.digest() == other.digest()
    assert one.entries == other.entries
    assert one.next_random == other.next_random


def test_the_seeds_meet_tasks_that_outgrow_memory_and_disk_on_nodes_that_change() -> None:
    seen: set[str] = set()
    for seed in range(300):
        cause: dict[int, str] = {}
        changes = False
        for _, event, commands in run_seed(seed).entries:
            changes = changes or isinstance(event, CapacityChanged)
            for command in commands:
                match command:
                    case Kill(task, outcome=AttemptOutcome.EXHAUSTED):
                        assert isinstance(event, TaskGrew)
                        cause[task] = event.resource
                    case Retry(task, outcome=AttemptOutcome.EXHAUSTED) | GiveUp(task, outcome=AttemptOutcome.EXHAUSTED):
                        seen.add(f"{type(command).__name__} {cause[task]}{' changing' * changes}")
                    case Start(sizes=(cores, _, _)) if cores > FRACTION:
                        seen.add("wide")
    kinds = {f"{verdict} {name}" for verdict in ("Retry", "GiveUp") for name in ("memory", "disk")}
    assert seen >= kinds | {"Retry memory changing", "Retry disk changing", "wide"}


def test_another_seed_gives_another_trace() -> None:
    assert len({run_seed(seed).digest() for seed in range(20)}) == 20


DIGESTS = "from shoal.sim.run import run_seed\nfor seed in range(7000, 7060): print(run_seed(seed).digest())"


def test_the_same_seeds_give_the_same_traces_in_processes_that_hash_differently() -> None:
    printed = []
    for hash_seed in ("0", "1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", DIGESTS]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
        printed.append(done.stdout.split())
    assert len(printed[0]) == 60
    assert printed[0] == printed[1] == printed[2]


def test_one_command_shows_a_seed_again() -> None:
    command = [sys.executable, "-m", "shoal.sim", "--seed", "7001", "--trace"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    trace = run_seed(7001)
    lines = done.stdout.splitlines()
    assert trace.digest() in lines[-1]
    assert [line for line in lines if line.startswith("[")] == [line.decode() for line in trace.lines()]


def calm(graph: Graph, cores: int, order: str, durations: list[float], **settings: object) -> SimulationScenario:
    node = Resources.of({"cores": cores * FRACTION})
    return SimulationScenario(1, graph, node, durations, order=order, **settings)  # type: ignore[arg-type]  # fields by name


@pytest.mark.parametrize("order", sorted(ORDERS))
@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_without_faults_the_makespan_keeps_grahams_bound(order: str, shape: str) -> None:
    """One-core tasks on m cores: max(critical path, work / m) <= makespan <= work / m + (1 - 1 / m) critical path."""
    for seed in range(8):
        random = Random(seed)
        graph = SHAPES[shape](random, random.randint(5, 60), None)
        durations = [random.uniform(0.1, 5.0) if action else 0.0 for action in graph.actions]
        cores = random.randint(1, 6)
        critical, work = max(upward_lengths(graph, durations)), sum(durations)
        input_bytes = [random.randrange(100) for _ in range(len(graph))]
        trace = simulate(calm(graph, cores, order, durations, input_bytes=input_bytes))
        assert max(critical, work / cores) - 1e-6 <= trace.makespan
        assert trace.makespan <= work / cores + (1 - 1 / cores) * critical + 1e-6
        assert trace.utilisation == pytest.approx(work / (cores * trace.makespan))
        assert set(trace.ends) == {"accepted"}


def pairs_of_chains(chains: int) -> Graph:
    """A_i -> B_i, all A written first."""
    builder = GraphBuilder()
    for number in range(chains):
        builder.task(f"A{number}", "a", outputs=[f"a{number}"])
    for number in range(chains):
        builder.task(f"B{number}", "b", inputs=[f"a{number}"], outputs=[f"b{number}"])
    return builder.build()


def starts_between(graph: Graph, trace: SimulationTrace, core_share: int) -> list[float]:
    """For each chain: how many tasks one core starts between A_i and B_i."""
    started = [
        task for _, _, commands in trace.entries for one in commands if isinstance(one, Start) for task in one.tasks
    ]
    place = {graph.names[task]: at for at, task in enumerate(started)}
    chains = len(graph) // 2
    return [(place[f"B{number}"] - place[f"A{number}"] - 1) / core_share for number in range(chains)]


def test_fifo_separates_a_task_from_its_consumer_and_lifo_does_not() -> None:
    """Pwrake's example, n chains on 2 cores: FIFO puts about n / 2 tasks of a core between A_i and B_i, LIFO none."""
    chains = 40
    graph = pairs_of_chains(chains)
    durations = [1.0 + 0.001 * (task % chains) for task in range(2 * chains)]
    between = {
        order: starts_between(graph, simulate(calm(graph, 2, order, durations)), 2)
        for order in ("fifo", "lifo", "lifo+hrf")
    }
    assert sum(between["fifo"]) / chains == pytest.approx(chains / 2, rel=0.1)
    assert max(between["lifo"]) < 1
    # The last chains differ: fewer than N_c tasks of the highest rank are left, and these go first.
    assert max(between["lifo+hrf"][:-8]) < 1


def test_a_run_that_breaks_a_rule_names_its_seed_and_keeps_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks are worth something only if they can fail: a node that counts double what is taken must be caught."""
    original = SimulatedRun._perform

    def start_twice(self: SimulatedRun, commands: list[object]) -> None:
        original(self, [command for command in commands for _ in range(2 if isinstance(command, Start) else 1)])  # type: ignore[misc]

    monkeypatch.setattr(SimulatedRun, "_perform", start_twice)
    with pytest.raises(SeedFailedError, match=r"seed 5: .*\n.*--seed 5 --trace") as failure:
        run_seed(5)
    assert failure.value.trace.entries
    assert isinstance(failure.value.__cause__, Violation)


def test_the_oracle_looks_through_a_group_between_tasks() -> None:
    graph = graph_of("a:\n(g): a\nb: g\n(all): b")
    trace = simulate(calm(graph, 1, "fifo", [2.0, 0.0, 3.0, 0.0]))
    assert trace.makespan == 5.0
    assert trace.ends == {"accepted": 2}
