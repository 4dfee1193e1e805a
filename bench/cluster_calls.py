"""No-op Python calls across two agents of one core each, beside Ray and Dask distributed, turn by turn in one run.

    python bench/cluster_calls.py [--calls 20000] [--few 20000] [--singles 300] [--rounds 3]

Ray gets two CPUs, Dask two worker processes of one thread; all of them are warm before the clock starts, and all
results are checked. Ours appears twice: through `map`, which has no future per call, and as futures from `submit`, as
Ray and Dask have them. The agents talk over loopback with CURVE, as between machines; Ray and Dask without encryption.
With `--few` Ray and Dask get fewer calls, to save time: rates are compared. Prints rates, the median round trip of
single calls, and ratios of the best rounds. Exit status 1 if a promise is not kept: 5 times Ray, 20 times Dask, a round
trip below 5 ms. Nothing is written to results.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import calls
from contest import Contestant, Result, adopt_orphans, hold
from install import Workshop

BENCH = Path(__file__).parent
OURS_MAP, OURS_SUBMIT = "shoal, two agents, map", "shoal, two agents, submit"
PROMISES = {calls.RAY: 5.0, calls.DASK: 20.0}
ROUND_TRIP_MS = 5.0
NAME = "bench"
LIMIT_SECONDS = 600.0


def serve(kind: str) -> None:
    """Inside a round: starts a cluster, measures, ends it. The figures come as a line of JSON, as from all pools."""
    from measure import measure, noop  # type: ignore[import-not-found]  # of `peers`, found by PYTHONPATH

    import shoal

    command = [sys.executable, "-m", "shoal", "cluster"]
    os.environ["SHOAL_HOME"] = str(Path.cwd() / "home")
    start = [*command, "start", NAME, "--local", "2", "--agent=--cores=1"]
    subprocess.run(start, check=True, stdout=subprocess.DEVNULL)
    try:
        with shoal.Executor(cluster=NAME) as pool:

            def submit_all(numbers: range) -> list[int]:
                return [future.result() for future in [pool.submit(noop, number) for number in numbers]]

            run_all = submit_all if kind == OURS_SUBMIT else lambda numbers: list(pool.map(noop, numbers))
            measure(run_all, lambda number: pool.submit(noop, number).result())
    finally:
        subprocess.run([*command, "stop", NAME], check=True, stdout=subprocess.DEVNULL)


def ours(kind: str, count: int, singles: int) -> Contestant:
    command = [sys.executable, str(Path(__file__)), str(count), str(singles), kind]
    path = os.pathsep.join([str(BENCH / "peers"), str(BENCH)])
    return Contestant(
        kind,
        count,
        lambda directory: command,
        own_clock=True,
        starts_processes=False,
        environment={"PYTHONPATH": path},
    )


def table(results: list[Result]) -> bool:
    """Prints what was found; whether every promise that could be looked at is kept."""
    print("| | calls/s | round trip, median ms | map is so many times as fast | submit |")
    print("|---|---|---|---|---|")
    rates = {result.name: result.rate for result in results}
    kept = True
    for result in results:
        if result.error or result.rate is None:
            print(f"| {result.name} | {result.error} | | | |")
            kept = kept and not result.name.startswith("shoal")
            continue
        trip = result.least("round_trip_ms") or 0.0
        ratios = [(rates[own] or 0.0) / result.rate for own in (OURS_MAP, OURS_SUBMIT)]
        shown = " | ".join(f"{ratio:.1f}" for ratio in ratios)
        print(f"| {result.name} | {result.rate:,.0f} | {trip:.2f} | {shown} |")
        kept = kept and min(ratios) >= PROMISES.get(result.name, 0.0)
        kept = kept and (trip < ROUND_TRIP_MS or not result.name.startswith("shoal"))
    return kept


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--few", type=int, help="how many calls Ray and Dask get (default: as many)")
    parser.add_argument("--singles", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    shop = Workshop(root=BENCH.parent / ".bench")
    few, singles = options.few or options.calls, options.singles
    dask = ("dask", "distributed")
    contestants = [
        ours(OURS_MAP, options.calls, singles),
        calls.peer(shop, calls.RAY, ("ray",), "ray_calls.py", few, singles),
        ours(OURS_SUBMIT, options.calls, singles),
        calls.peer(shop, calls.DASK, dask, "dask_calls.py", few, singles),
        calls.peer(shop, calls.DASK_SATURATED, dask, "dask_calls.py", few, singles, "inf"),
    ]
    contestants = [replace(contestant, time_limit=LIMIT_SECONDS) for contestant in contestants]
    adopt_orphans()
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as directory:
        results = hold(contestants, options.rounds, Path(directory))
    load = os.getloadavg()[0]
    print(
        f"\n{options.calls:,} calls, {few:,} for Ray and Dask; the best of {options.rounds} rounds; load {load:.1f}\n"
    )
    return 0 if table(results) else 1


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[3] in (OURS_MAP, OURS_SUBMIT):
        serve(sys.argv[3])
    else:
        sys.exit(main())
