"""Work stealing: how soon all cores are busy if one broker gets everything, and what the parameters of stealing matter.

MATRIX gives one set of parameters and no figure for them: this is our own sweep. `python
experiments/matrix_stealing.py [--quick] [--nodes 1024]`; `--nodes` is for the worst-case submission.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from common import Bar, Report, cluster, main, percent, play, run_all, say
from plots import Line, Panel

from shoal.core.policies.stealing import MOST_NEIGHBOURS, Stealing
from shoal.sim.cluster.result import SimulationResult
from shoal.sim.cluster.run import SimulationOptions
from shoal.sim.workloads.registry import make_workload

LATENCY = 0.0002
MILLISECONDS = f"{LATENCY * 1e3:g}"


@dataclass(frozen=True)
class Scale:
    """Nodes and tasks per core of the worst-case submission and of the sweep."""

    nodes: Sequence[int]
    per_core: int
    sweep_nodes: int
    sweep_per_core: int


SIZES = {
    "tiny": Scale((64,), 40, 8, 20),
    "quick": Scale((64, 256), 50, 32, 30),
    "default": Scale((64, 256, 1024), 100, 128, 30),
    "full": Scale((64, 256, 1024), 1000, 1024, 100),
}
SWEPT: dict[str, list[tuple[str, dict[str, float]]]] = {
    "neighbours": [("sqrt" if many < 0 else f"{many:g}", {"neighbours": many}) for many in (1.0, 2.0, 4.0, 8.0, -1.0)],
    "share": [(f"{share:g}", {"share": share}) for share in (0.25, 0.5, 0.75)],
    "first interval": [(f"{first * 1e3:g} ms", {"first_interval": first}) for first in (0.0001, 0.001, 0.01, 0.1)],
    "longest interval": [(f"{last:g} s", {"longest_interval": last}) for last in (0.01, 0.05, 0.25, 1.0, 50.0)],
    "latency": [(f"{late * 1e3:g} ms", {"latency": late}) for late in (0.0001, 0.0002, 0.001, 0.003, 0.01)],
}
"""One at a time; everything else is as it is by default."""
SUBJECTS = (("bag", "one"), ("fan-out", "all"))


def run(shape: str, submission: str, nodes: int, per_core: int, changed: dict[str, float]) -> SimulationResult:
    """One run with some parameters of stealing, or the latency, changed; -1 neighbours are the square root of all."""
    parameters = dict(changed)
    latency = parameters.pop("latency", LATENCY)
    if parameters.get("neighbours", 0) < 0:
        parameters["neighbours"] = max(1, round(nodes**0.5))
    if "neighbours" in parameters:
        parameters["neighbours"] = int(parameters["neighbours"])
    work = make_workload(f"{shape}:tasks={2 * nodes * per_core}", 1)
    stealing = Stealing(**parameters)  # type: ignore[arg-type]
    played = play(work, cluster(nodes, latency=latency), SimulationOptions(submission=submission, stealing=stealing))
    say(f"{shape}, {nodes} nodes, {changed or 'defaults'}: {played.makespan:.3f} s")
    return played


def make(size: str, nodes: Sequence[int]) -> Report:
    scale = SIZES[size]
    report = Report("matrix_stealing", "Work stealing: worst-case submission, and the parameters one at a time")
    _worst_case(report, nodes or scale.nodes, scale.per_core)
    _sweep(report, scale)
    return report


def _worst_case(report: Report, counts: Sequence[int], per_core: int) -> None:
    unchanged: dict[str, float] = {}
    asked = [("bag", submission, count, per_core, unchanged) for count in counts for submission in ("all", "one")]
    found = run_all(run, asked)
    report.blocks.append("## All tasks to one broker")
    report.say(
        f"""Bag of tasks, {per_core:,} tasks per core of 50 ms on average, nodes of 2 cores, messages of {MILLISECONDS}
        ms. Best case: dealt out to all brokers. Worst case: one broker gets all. Messages take time on their way;
        answering them takes none in this model, so a real broker with 1,024 thieves at its door is slower. The paper
        describes both submissions and prints no number for the worst."""
    )
    rows = []
    for best, worst in zip(found[::2], found[1::2], strict=True):
        up = worst.ramp if worst.ramp is not None else worst.makespan
        rows.append(
            [
                f"{best.nodes:,}",
                f"{best.makespan:.3f}",
                f"{worst.makespan:.3f}",
                percent(worst.utilisation),
                f"{up * 1e3:.1f}",
                percent(up / best.makespan, 2),
                f"{worst.steals:,}",
                f"{worst.stolen / worst.tasks:.2f}",
            ]
        )
        name = f"{best.nodes:,} nodes, worst case: until 90 % of cores are busy, of the best case's makespan"
        report.bars.append(Bar(name, up / best.makespan, most=0.01, form="{:.2%}"))
    head = ["nodes", "best case (s)", "worst case (s)", "utilisation", "90 % busy after (ms)", "of the best case"]
    report.table([*head, "steals", "moves per task"], rows)


def _sweep(report: Report, scale: Scale) -> None:
    nodes, per_core = scale.sweep_nodes, scale.sweep_per_core
    settings = [(name, label, changed) for name, choices in SWEPT.items() for label, changed in choices]
    asked = [(shape, how, nodes, per_core, changed) for shape, how in SUBJECTS for _, _, changed in settings]
    found = run_all(run, asked)
    bags, fans = found[: len(settings)], found[len(settings) :]
    report.blocks.append("## Parameters, one at a time")
    report.say(
        f"""{nodes} nodes of 2 cores, {per_core} tasks per core. The bag is submitted to one broker, the fan-out has
        one task at first. Defaults: the square root of all brokers but at most {MOST_NEIGHBOURS} neighbours, share
        0.5, intervals from 1 ms to 0.25 s, latency {LATENCY * 1e3:g} ms. MATRIX: the square root, 0.5, 1 ms to 50 s."""
    )
    rows = []
    for (name, label, _), bag, fan in zip(settings, bags, fans, strict=True):
        up = f"{bag.ramp * 1e3:.1f}" if bag.ramp is not None else "never"
        row = [f"{name} {label}", f"{bag.makespan:.3f}", up, f"{bag.messages / bag.tasks:.2f}"]
        rows.append([*row, f"{fan.makespan:.3f}", f"{fan.messages / fan.tasks:.2f}", f"{fan.moved / 1e9:.1f}"])
    head = [
        "",
        "bag (s)",
        "90 % busy after (ms)",
        "messages per task",
        "fan-out (s)",
        "messages per task",
        "moved (GB)",
    ]
    report.table(head, rows)
    lines: dict[str, tuple[list[tuple[float, float]], list[tuple[float, float]]]] = {}
    for at, (name, _, _) in enumerate(settings):
        points = lines.setdefault(name, ([], []))
        number = len(points[0]) + 1.0
        points[0].append((number, bags[at].makespan))
        points[1].append((number, fans[at].makespan))
    for which, subject in enumerate(("bag, submitted to one broker", "fan-out")):
        drawn = [Line(name, points[which]) for name, points in lines.items()]
        title = f"{subject}: makespan (s)"
        report.panels.append(Panel(title, "setting, in the order of the table", drawn))


if __name__ == "__main__":
    sys.exit(main(make, __doc__.split("\n")[0]))
