"""The group `calls`: no-op Python calls on two workers, many at once and one at a time, in every pool we know.

All pools are warm before the clock starts. Each runs in its own environment through a small program in `peers/`.
"""

from __future__ import annotations

import os
from pathlib import Path

from contest import Contestant
from install import Workshop

POOL = "ProcessPoolExecutor"
SHOAL = "shoal.Executor"
RAY = "Ray"
DASK = "Dask"
DASK_SATURATED = "Dask, saturated"
EXECUTORLIB = "executorlib"
LISTEN_EVERYWHERE = (RAY, EXECUTORLIB)


def all_pools(shop: Workshop, calls: int, few: int, singles: int) -> list[Contestant]:
    """Our own pool and the standard library's run all calls, the others as few as they need for a rate."""
    own = Path(shop.python)
    return [
        pool(shop, POOL, own, "pool_calls.py", calls, singles, note="chunksize 1"),
        pool(shop, SHOAL, own, "shoal_calls.py", calls, singles),
        peer(shop, DASK, ("dask", "distributed"), "dask_calls.py", few, singles),
        peer(shop, DASK_SATURATED, ("dask", "distributed"), "dask_calls.py", few, singles, "inf"),
        peer(shop, RAY, ("ray",), "ray_calls.py", few, singles),
        peer(shop, "Parsl HTEX", ("parsl",), "parsl_calls.py", few, singles),
        peer(shop, EXECUTORLIB, ("executorlib",), "executorlib_calls.py", few, singles),
    ]


def peer(
    shop: Workshop, name: str, packages: tuple[str, ...], script: str, calls: int, singles: int, *more: str
) -> Contestant:
    python, reason = shop.environment(*packages)
    note = f"worker-saturation {more[0]}" if more else ""
    return pool(shop, name, python, script, calls, singles, *more, note=note, missing=reason)


def pool(
    shop: Workshop,
    name: str,
    python: Path,
    script: str,
    calls: int,
    singles: int,
    *more: str,
    note: str = "",
    missing: str = "",
) -> Contestant:
    peers = shop.bench / "peers"
    command = [str(python), str(peers / script), str(calls), str(singles), *more]
    if name in LISTEN_EVERYWHERE:
        command = shop.isolated(command)
    # Workers have to find the module of the no-op, and Parsl its own scripts.
    environment = {"PYTHONPATH": str(peers), "PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    return Contestant(
        name,
        calls,
        lambda directory: command,
        own_clock=True,
        starts_processes=False,
        environment=environment,
        note=note,
        missing=missing,
    )
