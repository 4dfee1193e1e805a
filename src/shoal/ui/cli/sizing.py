"""`shoal sizing`: replays a trace of task peaks and times with every sizing policy, to compare them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from shoal.errors import InputError
from shoal.ui.cli.parser import CommandParser, whole_number

if TYPE_CHECKING:
    from shoal.sim.sizing_replay import ReplayOutcome, SizingTrace

SUMMARY = """Replays a trace of tasks, with their peak use and times, under each sizing policy, and shows throughput,
waste and retries next to the best choice in hindsight. The trace is a CSV file whose first line names its columns: peak
and time, optionally category and resource. Modes that begin with wq- are Work Queue's. Nothing is run."""
USAGE = "[TRACE.csv] [OPTION...]"
EXAMPLE = "shoal sizing trace.csv --node 65536 --workers 20"
NODE_PEAKS = 4
"""Default size of a node, as a multiple of the largest peak."""
HINDSIGHT = "best-single"


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("trace", nargs="?", metavar="TRACE.csv", help="the trace to replay; - for standard input")
    parser.add_argument("--mode", metavar="MODE", default="all", help="one mode, several separated by commas, or all")
    parser.add_argument(
        "--node",
        metavar="[RESOURCE=]SIZE",
        action="append",
        default=[],
        help=f"the size of a node, in the unit of the peaks (default: {NODE_PEAKS} times the largest)",
    )
    parser.add_argument("--workers", metavar="N", type=whole_number(1, "--workers"), default=10, help="nodes (10)")
    parser.add_argument(
        "--bucket", metavar="WIDTH", type=float, default=250.0, help="width of Work Queue's buckets (250)"
    )
    parser.add_argument("--generate", metavar="FAMILY", help="write a trace of a synthetic family instead")
    parser.add_argument(
        "--tasks", metavar="N", type=whole_number(1, "--tasks"), default=2000, help="number of tasks to generate (2000)"
    )
    parser.add_argument("--seed", metavar="S", type=whole_number(0, "--seed"), default=1, help="random seed (1)")
    parser.add_argument("--json", action="store_true", help="one JSON object, for programs")


def execute(arguments: argparse.Namespace) -> int:
    import json

    if arguments.generate is not None:
        return write_family(arguments)
    modes = chosen_modes(arguments.mode)
    if arguments.trace is None:
        raise InputError("the trace is missing", remedy="name a CSV file, or make one with --generate FAMILY")
    if not arguments.bucket > 0:
        raise InputError(f"--bucket must be a positive number, not {arguments.bucket:g}")
    traces = read(arguments.trace)
    nodes = node_sizes(arguments.node, traces)
    results = []
    for resource, trace in traces.items():
        results.append(replay_all(resource, trace, nodes[resource], modes, arguments))
    if arguments.json:
        print(json.dumps({"trace": arguments.trace, "workers": arguments.workers, "resources": results}))
    else:
        print("\n".join(line for result in results for line in as_text(result, arguments)))
    return 0


def write_family(arguments: argparse.Namespace) -> int:
    from shoal.sim.sizing_replay import FAMILIES, as_csv, generate
    from shoal.ui.cli.parser import close_match

    if arguments.generate not in FAMILIES:
        hint = close_match(arguments.generate, FAMILIES)
        known = f"use one of {', '.join(FAMILIES)}"
        raise InputError(f"there is no family {arguments.generate!r}", remedy=hint or known)
    print("\n".join(as_csv(generate(arguments.generate, arguments.tasks, arguments.seed))))
    return 0


def chosen_modes(text: str) -> list[str]:
    from shoal.sim.sizing_replay import ALL_MODES
    from shoal.ui.cli.parser import close_match

    if text == "all":
        return list(ALL_MODES)
    modes = [mode.strip() for mode in text.split(",")]
    for mode in modes:
        if mode not in ALL_MODES:
            hint = close_match(mode, ALL_MODES)
            raise InputError(f"there is no mode {mode!r}", remedy=hint or f"use one of {', '.join(ALL_MODES)}")
    return modes


def read(path: str) -> dict[str, SizingTrace]:
    import csv
    import sys

    from shoal.sim.sizing_replay import read_trace

    try:
        if path == "-":
            return read_trace(sys.stdin, "standard input")
        with open(path, encoding="utf-8-sig", newline="") as file:
            return read_trace(file, path)
    except OSError as error:
        raise InputError(f"the trace cannot be read: {error.strerror}", file=path) from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"the trace is not a CSV file: {error}", file=path) from None


def node_sizes(given: list[str], traces: dict[str, SizingTrace]) -> dict[str, float]:
    """Size of a node for each resource of the trace."""
    from shoal.sim.sizing_replay import check

    sizes = {resource: NODE_PEAKS * max(*trace.peaks, 1e-3) for resource, trace in traces.items()}
    for text in given:
        name, equals, number = text.rpartition("=")
        if equals and name not in sizes:
            raise InputError(f"the trace has no resource {name!r}", remedy=f"it has {', '.join(sizes) or 'only one'}")
        try:
            size = float(number)
        except ValueError:
            raise InputError(f"--node must be a number, not {number!r}") from None
        if not 0 < size < 1e18:
            raise InputError(f"--node must be a positive number, not {number!r}")
        for resource in [name] if equals else list(sizes):
            sizes[resource] = size
    for resource, trace in traces.items():
        check(trace, sizes[resource])
    return sizes


def replay_all(
    resource: str, trace: SizingTrace, node: float, modes: list[str], arguments: argparse.Namespace
) -> dict[str, Any]:
    """All modes for one resource; throughput is also given relative to the best choices in hindsight."""
    from shoal.sim.sizing_replay import ReplaySetting

    setting = ReplaySetting(trace, node, arguments.workers, arguments.bucket)
    outcomes: dict[str, ReplayOutcome] = {mode: setting.run(mode) for mode in modes}
    perfect = outcomes["perfect"] if "perfect" in outcomes else setting.run("perfect")
    best = outcomes[HINDSIGHT] if HINDSIGHT in outcomes else setting.run(HINDSIGHT)
    rows = {}
    for mode, outcome in outcomes.items():
        rows[mode] = {
            "throughput": outcome.throughput,
            "makespan": outcome.makespan,
            "retries": outcome.retries,
            "waste": outcome.waste,
            "of_best_single": outcome.throughput / best.throughput if best.throughput else 1.0,
            "of_perfect": outcome.throughput / perfect.throughput if perfect.throughput else 1.0,
        }
    return {"resource": resource, "tasks": len(trace.peaks), "node": node, "modes": rows}


def as_text(result: dict[str, Any], arguments: argparse.Namespace) -> list[str]:
    from shoal.core.quantities import count, show_share
    from shoal.ui.cli.text import table

    where = f"{count(arguments.workers, 'node')} of {result['node']:g}"
    what = f"{result['resource']}: " if result["resource"] else ""
    cells = [("mode", "tasks/s", "of best single", "of perfect", "retries", "waste")]
    for mode, row in result["modes"].items():
        share, perfect = f"{row['of_best_single']:.2f}", f"{row['of_perfect']:.2f}"
        cells.append(
            (mode, f"{row['throughput']:.4g}", share, perfect, f"{row['retries']:,}", show_share(row["waste"]))
        )
    return [f"{what}{count(result['tasks'], 'task')} on {where}", *table(cells)]
