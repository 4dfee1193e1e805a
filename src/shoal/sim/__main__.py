"""`python -m shoal.sim [--cluster | --beginnings] --seed 8123 [--trace]`: reproduces the simulated run of a seed.

`--seeds 0..10000` simulates many seeds instead, and prints which faults occurred and which seeds failed a check.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable

from shoal.sim.cluster.fault_schedule import ClusterSeedFailedError, run_cluster_seed
from shoal.sim.cluster.result import ClusterTrace
from shoal.sim.cluster.run_starts import RunStartScenario, draw_beginning, run_beginning_seed
from shoal.sim.cluster.scenario import ClusterScenario, draw_cluster
from shoal.sim.run import SeedFailedError, SimulationTrace, run_seed
from shoal.sim.scenario import draw_scenario

MOST_SHOWN = 10
"""Number of failed seeds that are printed."""
PROGRESS_EVERY = 1000


def main() -> int:
    """Prints the scenario and the result; returns status 1 if a check failed."""
    parser = argparse.ArgumentParser(prog="python -m shoal.sim", description="Simulate seeded runs with faults.")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int)
    which.add_argument("--seeds", type=seed_range, metavar="FROM..TO", help="all seeds of this range, TO excluded")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--cluster", action="store_true", help="simulate a cluster of nodes instead of one node")
    kind.add_argument("--beginnings", action="store_true", help="simulate a cluster that loses its first messages")
    parser.add_argument("--trace", action="store_true", help="print every event with the commands that follow it")
    options = parser.parse_args()
    describe, play = _family(cluster=options.cluster, beginnings=options.beginnings)
    if options.seeds is not None:
        return simulate_many(options.seeds, play)
    print(describe(options.seed))
    try:
        trace = play(options.seed)
    except (SeedFailedError, ClusterSeedFailedError) as failure:
        if options.trace:
            show(failure.trace)
        print(failure, file=sys.stderr)
        return 1
    if options.trace:
        show(trace)
    used = f", utilisation {trace.utilisation:.0%}" if isinstance(trace, SimulationTrace) else f", faults {trace.seen}"
    print(f"{len(trace.entries)} events, makespan {trace.makespan:g} s{used}")
    print(f"ends {trace.ends}, digest {trace.digest()}")
    return 0


def seed_range(text: str) -> range:
    """Parses `0..10000`; raises argparse's error for anything else."""
    first, dots, last = text.partition("..")
    if not dots or not first.isdecimal() or not last.isdecimal() or int(first) >= int(last):
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of seeds, expected FROM..TO such as 0..10000")
    return range(int(first), int(last))


def _family(
    *, cluster: bool, beginnings: bool
) -> tuple[Callable[[int], str], Callable[[int], SimulationTrace | ClusterTrace]]:
    """The functions that describe and simulate a seed."""
    if cluster:
        return (lambda seed: described_cluster(draw_cluster(seed))), run_cluster_seed
    if beginnings:
        return (lambda seed: described_cluster(draw_beginning(seed))), run_beginning_seed
    return described, run_seed


def simulate_many(seeds: range, play: Callable[[int], SimulationTrace | ClusterTrace]) -> int:
    """Simulates all seeds; prints the first few failures."""
    events = 0
    ends: Counter[str] = Counter()
    met: Counter[str] = Counter()
    broken: list[str] = []
    for seed in seeds:
        try:
            trace = play(seed)
        except (SeedFailedError, ClusterSeedFailedError) as failure:
            broken.append(str(failure))
            continue
        events += len(trace.entries)
        ends.update(trace.ends)
        if isinstance(trace, ClusterTrace):
            met.update(trace.seen)
        if (seed + 1 - seeds.start) % PROGRESS_EVERY == 0:
            print(f"{seed + 1 - seeds.start} seeds simulated, {len(broken)} failed", flush=True)
    print(f"{len(seeds)} seeds, {events} events, {len(broken)} failed")
    print(f"tasks ended: {_listed(ends)}")
    if met:
        print(f"faults: {_listed(met)}")
    for problem in broken[:MOST_SHOWN]:
        print(problem, file=sys.stderr)
    return 1 if broken else 0


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


def described(seed: int) -> str:
    scenario = draw_scenario(seed)
    return f"seed {seed}: {len(scenario.graph)} tasks on {scenario.node}, order {scenario.order}\n{scenario.faults}"


def described_cluster(scenario: ClusterScenario) -> str:
    work, spec = scenario.work, scenario.spec
    found = (
        f"seed {scenario.seed}: {len(work)} tasks ({work.name}) on {spec.nodes} nodes with {spec.cores()} cores\n"
        f"{scenario.options}\n{scenario.faults}"
    )
    return f"{found}\n{scenario.beginning}" if isinstance(scenario, RunStartScenario) else found


def show(trace: SimulationTrace | ClusterTrace) -> None:
    for line in trace.lines():
        print(line.decode())


if __name__ == "__main__":
    sys.exit(main())
