"""`python -m shoal.sim --seed 8123 [--trace]`: one simulated run, to see a seed of the tests again."""

from __future__ import annotations

import argparse
import sys

from shoal.sim.run import SeedFailedError, run_seed
from shoal.sim.scenario import draw_scenario
from shoal.sim.trace import Trace


def main() -> int:
    """Prints what was simulated and what came of it; status 1 if a rule was broken."""
    parser = argparse.ArgumentParser(prog="python -m shoal.sim", description="Simulate one seeded run with faults.")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--trace", action="store_true", help="print every event with the commands that answered it")
    options = parser.parse_args()
    scenario = draw_scenario(options.seed)
    print(f"seed {options.seed}: {len(scenario.graph)} tasks on {scenario.node}, order {scenario.order}")
    print(f"{scenario.faults}")
    try:
        trace = run_seed(options.seed)
    except SeedFailedError as failure:
        if options.trace:
            show(failure.trace)
        print(failure, file=sys.stderr)
        return 1
    if options.trace:
        show(trace)
    print(f"{len(trace.entries)} events, makespan {trace.makespan:g} s, utilisation {trace.utilisation:.0%}")
    print(f"ends {trace.ends}, digest {trace.digest()}")
    return 0


def show(trace: Trace) -> None:
    for line in trace.lines():
        print(line.decode())


if __name__ == "__main__":
    sys.exit(main())
