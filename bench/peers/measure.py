"""What every program of the `calls` group shares: the no-op, the two measurements and the line of JSON.

Runs inside each peer's own environment, so it uses nothing but the standard library. The pool is warm before the
clock starts: start-up is not measured here.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable

WARM_UP = 200
SINGLES = 500


def noop(x: int) -> int:
    """The call that every pool runs; it gives its argument back so that results can be checked."""
    return x


def counts() -> tuple[int, int]:
    """How many calls to run through `map` and how many one at a time, from the command line."""
    return int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else SINGLES


def measure(run_all: Callable[[range], Iterable[int]], run_one: Callable[[int], int]) -> None:
    """Times many calls together and single ones after each other; prints both as one line of JSON."""
    calls, singles = counts()
    check(run_all(range(WARM_UP)), WARM_UP)
    started = time.perf_counter()
    check(run_all(range(calls)), calls)
    seconds = time.perf_counter() - started
    trips = []
    for number in range(singles):
        started = time.perf_counter()
        answer = run_one(number)
        trips.append(time.perf_counter() - started)
        if answer != number:
            raise SystemExit(f"call {number} answered {answer}")
    print(json.dumps({"seconds": seconds, "round_trip_ms": 1000 * statistics.median(trips)}), flush=True)


def check(results: Iterable[int], calls: int) -> None:
    """Takes every result; a wrong or missing one spoils the sum."""
    total = sum(results)
    if total != calls * (calls - 1) // 2:
        raise SystemExit(f"{calls} calls gave a wrong sum of results: {total}")
