"""The group `graph`: how long a large graph takes and how much memory a queued task costs, nothing executed.

Our own graph is built, planned and drained in one process. GNU make and ninja read their file and print what they
would run; their memory per task is the peak of that.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from contest import Contestant
from install import Workshop
from workloads import Shape, independent, write_makefile, write_ninja

SHAPES = ("independent", "chain", "layers")
TIME_LIMIT = 300.0


def all_graphs(shop: Workshop, tasks: int, few: int) -> list[Contestant]:
    own = [graph(shop, shape, tasks) for shape in SHAPES]
    return [
        *own,
        dry_run(shop, few, "GNU make -n", "make", write_makefile, "Makefile"),
        dry_run(shop, few, "ninja -n", "ninja", write_ninja, "build.ninja"),
    ]


def graph(shop: Workshop, shape: str, tasks: int) -> Contestant:
    command = [shop.python, str(shop.bench / "peers" / "shoal_graph.py"), shape, str(tasks)]
    return Contestant(
        f"shoal, {shape}",
        tasks,
        lambda directory: command,
        own_clock=True,
        starts_processes=False,
        time_limit=TIME_LIMIT,
    )


def dry_run(
    shop: Workshop, tasks: int, name: str, program: str, write: Callable[[Shape, Path], None], file: str
) -> Contestant:
    peak, reason = shop.compiled("peers/peak.c")

    def prepare(directory: Path) -> list[str]:
        write(independent(tasks), directory / file)
        return [str(peak), shop.program(program), "-n", "all"]

    return Contestant(
        name,
        tasks,
        prepare,
        own_clock=True,
        starts_processes=False,
        note="reads its file and prints the commands",
        missing=reason or shop.missing(program),
        time_limit=TIME_LIMIT,
    )
