"""What sensing a node costs: processor time per sample, as a share of one core at a sample every half second.

    python bench/sensing.py [--samples 400]

Samples are taken one after another, which is kinder to caches than half a second between them; so the second figure
comes from samples that are really taken at that pace for a few seconds. Exit status 1 if either is above a hundredth.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from shoal.core.policies.throttle.readings import SAMPLE_SECONDS
from shoal.execution.processes.node_sensors import NodeSensor

BAR = 0.01


def cost(samples: int, pause: float) -> float:
    """Processor seconds of this process per sample, the loop around it included."""
    sensor = NodeSensor(time.monotonic(), own=[os.getpid(), os.getppid()])
    begun = time.process_time()
    for _ in range(samples):
        if pause:
            time.sleep(pause)
        sensor.sense(time.monotonic()).sample({})
    spent = time.process_time() - begun
    sensor.close()
    return spent / samples


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--samples", type=int, default=400)
    parser.add_argument("--paced", type=int, default=16, help="samples at the real pace")
    options = parser.parse_args()
    worst = 0.0
    for name, samples, pause in (
        ("one after another", options.samples, 0.0),
        ("every half second", options.paced, SAMPLE_SECONDS),
    ):
        seconds = cost(samples, pause)
        part = seconds / SAMPLE_SECONDS
        worst = max(worst, part)
        print(f"{name}: {seconds * 1e3:.3f} ms per sample, {part:.3%} of one core (bar: {BAR:.0%})")
    return 0 if worst <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
