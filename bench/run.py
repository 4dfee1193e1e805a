"""One command for all benchmarks: `python bench/run.py [--quick] [--only GROUP] [--repeat N] [--json OUT]`.

Installs the peers it can get, holds the contests, prints Markdown tables with ratios and writes them beside a JSON
file with every round. Read `README.md` next to this file for what is measured and how to read it.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import calls
import graphs
import machine
import processes
import tables
from contest import Contestant, Result, adopt_orphans, end_leftovers, hold, say
from install import Workshop
from tables import Target, find, rate_ratio
from workloads import Shape, chains, fan, independent

BENCH = Path(__file__).resolve().parent
GROUPS = ("processes", "calls", "graph", "scaling")


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much of everything; peers that are slow get the smaller number."""

    independent: tuple[int, int]
    chains: tuple[tuple[int, int], tuple[int, int]]
    fan: tuple[int, int]
    calls: tuple[int, int]
    singles: int
    graph: tuple[int, int]
    scaling: tuple[int, int]
    rounds: int


FULL = Sizes(
    independent=(10_000, 2_000),
    chains=((100, 100), (20, 100)),
    fan=(5_000, 2_000),
    calls=(100_000, 5_000),
    singles=500,
    graph=(1_000_000, 50_000),
    scaling=(10_000, 100_000),
    rounds=3,
)
QUICK = Sizes(
    independent=(2_000, 400),
    chains=((20, 100), (4, 100)),
    fan=(1_000, 400),
    calls=(20_000, 1_000),
    singles=100,
    graph=(100_000, 10_000),
    scaling=(1_000, 10_000),
    rounds=1,
)


@dataclasses.dataclass
class Report:
    """What has been measured so far."""

    sections: list[str] = dataclasses.field(default_factory=list)
    targets: list[Target] = dataclasses.field(default_factory=list)
    contests: dict[str, list[Result]] = dataclasses.field(default_factory=dict)


class Bench:
    """The groups, each a method that holds its contests and adds to the report."""

    def __init__(self, shop: Workshop, sizes: Sizes, rounds: int) -> None:
        self.shop = shop
        self.sizes = sizes
        self.rounds = rounds
        self.report = Report()

    def run(self, groups: list[str]) -> None:
        methods: dict[str, Callable[[], None]] = {
            "processes": self.processes,
            "calls": self.calls,
            "graph": self.graph,
            "scaling": self.scaling,
        }
        for group in groups:
            methods[group]()

    def contest(self, title: str, contestants: list[Contestant]) -> list[Result]:
        say(f"{title}:")
        results = hold(contestants, self.rounds, self.shop.root / "work")
        self.report.contests[title] = results
        return results

    def processes(self) -> None:
        sizes = self.sizes
        (width, length), (few_width, few_length) = sizes.chains
        self.shape(independent(sizes.independent[0]), independent(sizes.independent[1]), 0.75)
        self.shape(chains(width, length), chains(few_width, few_length), 0.70)
        self.shape(fan(sizes.fan[0]), fan(sizes.fan[1]), 0.70)

    def shape(self, shape: Shape, small: Shape, limit: float) -> None:
        title = f"Processes: {shape.name}, 2 at a time"
        results = self.contest(title, processes.all_peers(self.shop, shape, small))
        self.report.sections.append(tables.processes_table(title, results, processes.FLOOR))
        share = rate_ratio(results, processes.SHOAL, processes.FLOOR)
        self.report.targets.append(Target(f"{shape.name}: share of the C loop", share, limit))
        if shape.flat:
            for result in results:
                if result.name not in processes.NOT_PROMISED and not result.error:
                    ratio = rate_ratio(results, processes.SHOAL, result.name)
                    self.report.targets.append(Target(f"{shape.name}: ahead of {result.name}", ratio, 1.0))

    def calls(self) -> None:
        sizes = self.sizes
        title = f"Python calls: {sizes.calls[0]:,} no-ops through map, 2 workers"
        results = self.contest(title, calls.all_pools(self.shop, *sizes.calls, sizes.singles))
        self.report.sections.append(tables.calls_table(title, results, calls.POOL))
        for peer, limit in ((calls.POOL, 4.0), (calls.RAY, 20.0), (calls.DASK, 20.0), (calls.DASK_SATURATED, 20.0)):
            ratio = rate_ratio(results, calls.SHOAL, peer)
            self.report.targets.append(Target(f"calls per second, times {peer}", ratio, limit))
        own, pool = tables.least_trip(results, calls.SHOAL), tables.least_trip(results, calls.POOL)
        trips = own / pool if own and pool else None
        self.report.targets.append(Target("one call's round trip, times ProcessPoolExecutor", trips, 1.5, False))

    def graph(self) -> None:
        sizes = self.sizes
        title = f"Graph: {sizes.graph[0]:,} tasks, nothing executed"
        results = self.contest(title, graphs.all_graphs(self.shop, *sizes.graph))
        self.report.sections.append(tables.graph_table(title, results))
        for shape in graphs.SHAPES:
            result = find(results, f"shoal, {shape}")
            what = f"{sizes.graph[0]:,} tasks, {shape}"
            self.report.targets += [
                Target(f"{what}: seconds", result.best if result else None, 20.0, False),
                Target(f"{what}: peak MiB", result.least("peak_mib") if result else None, 1024.0, False),
            ]

    def scaling(self) -> None:
        small, large = self.sizes.scaling
        title = f"Scaling: {small:,} and {large:,} processes"
        contestants = []
        for tasks in (small, large):
            limit = max(120.0, tasks / 200)
            contestants += [
                processes.floor(self.shop, tasks, limit),
                processes.shoal(independent(tasks), limit),
            ]
        results = self.contest(title, contestants)
        self.report.sections.append(tables.scaling_table(title, results))
        grown = tables.growth(results, processes.SHOAL)
        self.report.targets.append(Target(f"time per task at {large:,} over that at {small:,}", grown, 1.3, False))


def main() -> int:
    options = parse()
    sizes = QUICK if options.quick else FULL
    rounds = options.repeat or sizes.rounds
    shop = Workshop(root=BENCH.parent / ".bench")
    bench = Bench(shop, sizes, rounds)
    described = machine.describe(shop.root)
    adopt_orphans()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        bench.run(options.only or list(GROUPS))
    except KeyboardInterrupt:
        say("\nstopped; nothing was written")
        return 130
    finally:
        end_leftovers()
    described["peers"] = machine.versions(shop.root)
    text = markdown(bench.report, described, rounds, options.quick)
    print(text)
    write(bench.report, described, rounds, options, text)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Benchmarks against the floor and the peers; ratios in one run.")
    parser.add_argument("--quick", action="store_true", help="a fifth of the work and one round: does it run at all?")
    parser.add_argument("--only", action="append", choices=GROUPS, help="one group; may be given several times")
    parser.add_argument("--repeat", type=int, metavar="N", help="rounds, of which the best counts")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the JSON here, too")
    return parser.parse_args()


def markdown(report: Report, described: dict[str, object], rounds: int, quick: bool) -> str:
    peers = described["peers"]
    assert isinstance(peers, dict)
    lines = [
        "# Benchmarks" + (" (quick: read nothing into these)" if quick else ""),
        "",
        f"{described['processor']}, {described['cores']} cores, {described['memory_gib']} GiB, {described['kernel']}, "
        f"{described['system']}, {described['python']}; load {described['load_at_start']} at the start.",
        f"Interleaved rounds: {rounds}, the best of each contestant counts.",
        "Versions: " + "; ".join(f"{name}: {version}" for name, version in peers.items()) + ".",
        "",
    ]
    return "\n".join(lines) + "\n" + "\n".join([*report.sections, tables.targets_table(report.targets)])


def write(report: Report, described: dict[str, object], rounds: int, options: argparse.Namespace, text: str) -> None:
    """Leaves the last full picture in `results/`; a part of the groups or a quick run does not replace it."""
    answer = {
        "date": datetime.date.today().isoformat(),
        "quick": options.quick,
        "rounds": rounds,
        "machine": described,
        "contests": {title: [dataclasses.asdict(one) for one in results] for title, results in report.contests.items()},
        "targets": [{**dataclasses.asdict(target), "met": target.met} for target in report.targets],
    }
    encoded = json.dumps(answer, indent=1, ensure_ascii=False) + "\n"
    full = not options.quick and not options.only
    stem = BENCH / "results" / "latest" if full else BENCH.parent / ".bench" / "partial"
    stem.parent.mkdir(exist_ok=True)
    stem.with_suffix(".md").write_text(text)
    stem.with_suffix(".json").write_text(encoded)
    if options.json:
        options.json.write_text(encoded)
    say(f"written: {stem.relative_to(BENCH.parent)}.md and .json")


if __name__ == "__main__":
    sys.exit(main())
