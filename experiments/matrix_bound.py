"""MATRIX's theoretical figure (its Figure 12): its dynamic programme and a valid lower bound up to 131,072 cores.

`python experiments/matrix_bound.py [--quick]`; `--size full` computes all readings at the largest scale as well.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from common import Bar, Report, main, percent, run_all, say
from plots import Line, Panel

from shoal.sim.lower_bound import Capacity
from shoal.sim.matrix_bound import DEFAULT_READING, READINGS, DrawnColumns, streamed_paper_bound, streamed_tally
from shoal.sim.workloads.matrix import DEGREE

SHAPES = ("bag", "pipeline", "fan-out", "fan-in")
PER_CORE = 1000
LARGEST = 131_072
PAPER = {"bag": 2.33e6, "pipeline": 1.85e6, "fan-out": 1.16e6, "fan-in": 852_150.0}
"""Tasks per second at 128K cores."""
SIZES: dict[str, tuple[Sequence[int], int]] = {
    "tiny": ((2, 200), 200),
    "quick": ((2, 200, 2_048), 2_048),
    "default": ((2, 200, 2_048, 16_384, LARGEST), 2_048),
    "full": ((2, 200, 2_048, 16_384, 65_536, LARGEST), LARGEST),
}
"""Core counts, and the one at which all readings of the programme are compared."""


def compute(shape: str, cores: int, readings: Sequence[str]) -> dict[str, float]:
    """Seconds: of the lower bound, and of the paper's programme under some readings."""
    source = DrawnColumns(1)
    known = streamed_tally(shape, PER_CORE * cores, DEGREE, source)
    found = {"bound": known.bound(Capacity(cores)).seconds}
    for reading in readings:
        found[reading] = streamed_paper_bound(shape, DEGREE, source, known, cores, reading).seconds
    say(f"{shape}, {cores:,} cores: lower bound {found['bound']:.2f} s")
    return found


def make(size: str, nodes: Sequence[int]) -> Report:
    counts, compared = SIZES[size]
    counts = [2 * count for count in nodes] or counts
    largest = max(counts)
    jobs = [(shape, cores, (DEFAULT_READING,)) for cores in counts for shape in SHAPES]
    found = dict(zip([job[:2] for job in jobs], run_all(compute, jobs), strict=True))
    wide = run_all(compute, [(shape, compared, tuple(READINGS)) for shape in SHAPES])
    report = Report("matrix_bound", f"What could be reached, up to {largest:,} cores")
    report.say(
        f"""{PER_CORE:,} tasks per core, {PER_CORE * largest:,} in all at the largest scale. Tasks per second. The
        lower bound on the makespan holds for every schedule, so its throughput is a ceiling. The paper calls its
        programme a sub-optimal solution; what it reports for it at 128K cores stands beside ours."""
    )
    head = [
        "",
        "ceiling from the lower bound",
        f"programme ({DEFAULT_READING})",
        "paper, 128K cores",
        "paper over ceiling",
    ]
    report.table(head, [_row(shape, found[shape, largest], largest) for shape in SHAPES])
    _readings(report, dict(zip(SHAPES, wide, strict=True)), compared)
    lines = [
        Line(f"{shape}: ceiling", [(float(cores), PER_CORE * cores / found[shape, cores]["bound"]) for cores in counts])
        for shape in SHAPES
    ]
    lines += [Line(f"{shape}: paper", [(float(LARGEST), PAPER[shape])], dashed=True) for shape in SHAPES]
    report.panels.append(Panel("tasks per second", "cores", lines, log_across=True, log_up=True))
    tightest = max(PAPER[shape] / LARGEST * found[shape, largest]["bound"] / PER_CORE for shape in SHAPES)
    report.bars.append(Bar("the paper's numbers over the ceiling, at most", tightest, most=1.0))
    return report


def _row(shape: str, found: dict[str, float], cores: int) -> list[str]:
    tasks = PER_CORE * cores
    ceiling = tasks / found["bound"]
    paper = PAPER[shape] * cores / LARGEST
    return [
        shape,
        f"{ceiling:,.0f}",
        f"{tasks / found[DEFAULT_READING]:,.0f}",
        f"{PAPER[shape]:,.0f}",
        percent(paper / ceiling),
    ]


def _readings(report: Report, found: dict[str, dict[str, float]], cores: int) -> None:
    report.blocks.append(f"## Readings of the programme at {cores:,} cores, makespan in seconds")
    report.say(
        """The printed wait can be read in several ways, and none of them gives the paper's four numbers, nor their
        order; some are below the work per core (50 s), which no schedule can be. The paper's waits may have been
        measured in its own runs. Fans depend on the scale here, because a larger one has more levels."""
    )
    rows = [
        [f"{reading}: {meaning}", *(f"{found[shape][reading]:.1f}" for shape in SHAPES)]
        for reading, meaning in READINGS.items()
    ]
    rows.append(["paper, 128K cores", *(f"{PER_CORE * LARGEST / PAPER[shape]:.1f}" for shape in SHAPES)])
    rows.append(["lower bound", *(f"{found[shape]['bound']:.1f}" for shape in SHAPES)])
    report.table(["reading", *SHAPES], rows)


if __name__ == "__main__":
    sys.exit(main(make, __doc__.split("\n")[0]))
