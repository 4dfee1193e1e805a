"""The groups that start processes: `processes` (three shapes, all peers) and `scaling` (ten times the tasks).

Build tools are timed from the start of the command to its end, reading their file included, as a user waits for them.
Work Queue and HyperQueue are timed from submission to the last result with their server and worker already up.
"""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

from contest import Contestant
from install import TASKVINE_MISSING, Workshop
from workloads import (
    PROGRAM,
    Shape,
    write_makefile,
    write_makeflow,
    write_needs,
    write_ninja,
    write_numbers,
    write_rules,
)

SLOTS = "2"
FLOOR = "C posix_spawn loop"
SHOAL = "shoal run"
MAKE = "GNU make -j2"
NOT_PROMISED = (FLOOR, SHOAL, MAKE)
# Debian's makeflow is linked with MPI and otherwise wants a daemon of a package that it does not depend on.
MAKEFLOW_ENVIRONMENT = {"OMPI_MCA_ess_singleton_isolated": "1"}
WARM_NOTE = "server and worker already up"


def all_peers(shop: Workshop, shape: Shape, small: Shape) -> list[Contestant]:
    """Everyone who can run this shape; slow ones get the smaller version of it."""
    fewer = f"{small.name}; " if len(small) != len(shape) else ""
    peers = [
        floor(shop, len(shape)),
        shoal(shape),
        make(shop, shape),
        ninja(shop, shape),
        *([xargs(shop, shape), parallel(shop, small, fewer)] if shape.flat else []),
        hyperqueue(shop, small, fewer),
        makeflow(shop, small, fewer),
    ]
    if shape.flat:
        nothing = Contestant("TaskVine", len(small), lambda directory: [], missing=TASKVINE_MISSING)
        peers += [work_queue(shop, small, fewer), nothing]
    return peers


def floor(shop: Workshop, tasks: int, time_limit: float = 120.0) -> Contestant:
    program, reason = shop.compiled("floor.c")
    command = [str(program), str(tasks), SLOTS, PROGRAM]
    return Contestant(FLOOR, tasks, lambda directory: command, missing=reason, time_limit=time_limit)


def shoal(shape: Shape, time_limit: float = 120.0) -> Contestant:
    program = Path(sys.executable).parent / "shoal"

    def prepare(directory: Path) -> list[str]:
        write_rules(shape, directory / "flow.py")
        return [str(program), "run", "flow.py", "all", "--jobs", SLOTS, "--quiet"]

    return Contestant(
        SHOAL,
        len(shape),
        prepare,
        note="ledger on, resumable",
        missing="" if program.exists() else "the command is not installed in this environment",
        time_limit=time_limit,
    )


def make(shop: Workshop, shape: Shape) -> Contestant:
    def prepare(directory: Path) -> list[str]:
        write_makefile(shape, directory / "Makefile")
        return [shop.program("make"), "-r", "-s", "-j", SLOTS, "all"]

    return Contestant(MAKE, len(shape), prepare, missing=shop.missing("make"))


def ninja(shop: Workshop, shape: Shape) -> Contestant:
    def prepare(directory: Path) -> list[str]:
        write_ninja(shape, directory / "build.ninja")
        return [shop.program("ninja"), "-j", SLOTS, "all"]

    return Contestant("ninja -j2", len(shape), prepare, note="always through a shell", missing=shop.missing("ninja"))


def xargs(shop: Workshop, shape: Shape) -> Contestant:
    def prepare(directory: Path) -> list[str]:
        write_numbers(shape, directory / "numbers")
        return [shop.program("xargs"), "-a", "numbers", "-n", "1", "-P", SLOTS, PROGRAM]

    return Contestant("xargs -P2", len(shape), prepare, note="no graph, no log", missing=shop.missing("xargs"))


def parallel(shop: Workshop, shape: Shape, fewer: str) -> Contestant:
    def prepare(directory: Path) -> list[str]:
        write_numbers(shape, directory / "numbers")
        return [shop.program("parallel"), "-a", "numbers", "-j", SLOTS, PROGRAM]

    note = f"{fewer}no graph, no log"
    return Contestant("GNU parallel -j2", len(shape), prepare, note=note, missing=shop.missing("parallel"))


def makeflow(shop: Workshop, shape: Shape, fewer: str) -> Contestant:
    def prepare(directory: Path) -> list[str]:
        write_makeflow(shape, directory / "Makeflow")
        return [shop.program("makeflow"), "-T", "local", "-j", SLOTS, "Makeflow"]

    return Contestant(
        "makeflow -j 2 (Debian)",
        len(shape),
        prepare,
        environment=MAKEFLOW_ENVIRONMENT,
        note=fewer.removesuffix("; ") if shape.flat else f"{fewer}each task makes a file",
        missing=shop.missing("makeflow"),
    )


def work_queue(shop: Workshop, shape: Shape, fewer: str) -> Contestant:
    program, reason = shop.work_queue_manager()

    def prepare(directory: Path) -> list[str]:
        (directory / "password").write_text(secrets.token_hex(16))
        return shop.isolated([str(program), str(len(shape)), SLOTS, PROGRAM, "password"])

    return Contestant(
        "Work Queue (Debian)",
        len(shape),
        prepare,
        own_clock=True,
        environment=MAKEFLOW_ENVIRONMENT,
        note=f"{fewer}{WARM_NOTE}",
        missing=reason,
    )


def hyperqueue(shop: Workshop, shape: Shape, fewer: str) -> Contestant:
    python, reason = shop.environment("hyperqueue")

    def prepare(directory: Path) -> list[str]:
        write_needs(shape, directory / "needs")
        return shop.isolated([str(python), str(shop.bench / "peers" / "hq_run.py"), "needs"])

    return Contestant(
        "HyperQueue (PyPI)",
        len(shape),
        prepare,
        own_clock=True,
        note=f"{fewer}{WARM_NOTE}, in one process",
        missing=reason,
    )
