"""All placement policies on all workloads: makespan, utilisation, bytes moved. MATRIX compares three on all-pairs only.

`python experiments/matrix_policies.py [--quick] [--nodes 32]`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from statistics import geometric_mean, mean

import msgspec
from common import KODIAK_LINK, Bar, Report, cluster, gigabytes, main, percent, play, run_all, say
from plots import Line, Panel

from shoal.sim.cluster.run import SimulationOptions
from shoal.sim.workloads.registry import make_workload

POLICIES = {
    "mlb": SimulationOptions(policy="mlb"),
    "mdl": SimulationOptions(policy="mdl"),
    "rlds": SimulationOptions(policy="rlds"),
    "flds": SimulationOptions(policy="flds"),
    "auto": SimulationOptions(policy="auto"),
    "flds, t 0.5, tt 10 s": SimulationOptions(policy="flds", threshold=0.5, patience=10.0),
}
"""The last one has the paper's parameters; our defaults are 0.1 and 0.5 s."""
WORKLOADS: dict[str, Sequence[str]] = {
    "tiny": ("pipeline:tasks=1600", "fan-out:tasks=1600", "all-pairs:side=40"),
    "quick": (
        "bag:tasks=1600",
        "pipeline:tasks=1600",
        "fan-out:tasks=1600",
        "fan-in:tasks=1600",
        "stacking:locality=30,tasks=2000",
        "all-pairs:side=50",
        "fmri:volumes=40",
        "moldyn:molecules=10",
    ),
    "default": (
        "bag:tasks=12800",
        "pipeline:tasks=12800",
        "fan-out:tasks=12800",
        "fan-in:tasks=12800",
        "stacking:locality=30,tasks=8000",
        "stacking:locality=3,tasks=8000",
        "all-pairs:side=100",
        "montage-pwrake",
        "fmri:volumes=120",
        "moldyn:molecules=20",
    ),
}
NODES = {"tiny": 8, "quick": 8, "default": 32}
SEEDS = {"tiny": 1, "quick": 1, "default": 4}


class Found(msgspec.Struct):
    """Means over some seeds."""

    makespan: float
    utilisation: float
    moved: float


CELLS: dict[str, Callable[[Found], str]] = {
    "Makespan (s)": lambda found: f"{found.makespan:.2f}",
    "Utilisation": lambda found: percent(found.utilisation),
    "Moved (GB)": lambda found: gigabytes(round(found.moved)),
}


def run(workload: str, policy: str, nodes: int, seeds: int) -> Found:
    work, spec = make_workload(workload, 1), cluster(nodes, link=KODIAK_LINK)
    played = [play(work, spec, msgspec.structs.replace(POLICIES[policy], seed=seed)) for seed in range(seeds)]
    found = Found(
        mean(each.makespan for each in played),
        mean(each.utilisation for each in played),
        mean(each.moved for each in played),
    )
    say(f"{workload}, {policy}: {found.makespan:.2f} s")
    return found


def make(size: str, nodes: Sequence[int]) -> Report:
    size = "default" if size == "full" else size
    count, workloads = max(nodes) if nodes else NODES[size], WORKLOADS[size]
    asked = [(workload, policy, count, SEEDS[size]) for workload in workloads for policy in POLICIES]
    found = dict(zip([job[:2] for job in asked], run_all(run, asked), strict=True))
    report = Report("matrix_policies", f"Placement policies on {count} nodes of 2 cores with links of 1.92 Gb/s")
    report.say(
        f"""Makespan in seconds, then utilisation and gigabytes moved from node to node. The paper compares MLB, MDL
        and FLDS on all-pairs only (FLDS > MDL > MLB, see `matrix_all_pairs`), recommends FLDS for tasks with much
        data, MLB for small data, RLDS for mixed sizes, and changes nothing at run time; auto is FLDS with a threshold
        that follows the share of time that goes into moving. Means of {SEEDS[size]} seeds: a few per cent between two
        policies, and more on Montage with its few serial tasks, mean nothing."""
    )
    for title, cell in CELLS.items():
        report.blocks.append(f"## {title}")
        rows = [[workload, *(cell(found[workload, policy]) for policy in POLICIES)] for workload in workloads]
        report.table(["workload", *POLICIES], rows)
    _against_best(report, workloads, found)
    return report


def _against_best(report: Report, workloads: Sequence[str], found: dict[tuple[str, str], Found]) -> None:
    """How much longer each policy takes than the best one does."""
    best = {workload: min(found[workload, policy].makespan for policy in POLICIES) for workload in workloads}
    ratios = {
        policy: [found[workload, policy].makespan / best[workload] for workload in workloads] for policy in POLICIES
    }
    report.blocks.append("## Makespan over that of the best policy")
    rows = [[policy, f"{geometric_mean(ratio):.3f}", f"{max(ratio):.3f}"] for policy, ratio in ratios.items()]
    report.table(["policy", "mean", "worst"], rows)
    lines = [Line(policy, [(at + 1.0, one) for at, one in enumerate(ratio)]) for policy, ratio in ratios.items()]
    report.panels.append(Panel("makespan over the best policy's", "workload, in the order of the tables", lines))
    means = {policy: geometric_mean(ratio) for policy, ratio in ratios.items()}
    others = min(mean for policy, mean in means.items() if policy in ("mlb", "mdl", "rlds"))
    name = "FLDS: mean ratio over that of the best of MLB, MDL, RLDS"
    report.bars.append(Bar(name, means["flds"] / others, most=1.0, form="{:.3f}"))


if __name__ == "__main__":
    sys.exit(main(make, __doc__.split("\n")[0]))
