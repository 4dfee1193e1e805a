"""`shoal bound`: computes lower bounds on the makespan of a workflow or a synthetic workload; runs nothing."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from shoal.errors import InputError
from shoal.ui.cli.parser import CommandParser, add_workflow, close_match, looks_like_workflow, split_words, whole_number

if TYPE_CHECKING:
    from shoal.core.work import Work
    from shoal.sim.expected_times import Expectation
    from shoal.sim.lower_bound import LowerBound
    from shoal.sim.matrix_bound import Network, PaperBound

SUMMARY = """Computes how long a workflow takes at least on a number of cores, with any schedule, and what determines
that: the work, the critical path, or the work below some depth. For comparison it shows the result of the MATRIX
paper's dynamic programme, under one reading of its queue wait. Instead of a file it accepts a synthetic workload of any
size: bag, pipeline, fan-out or fan-in. Durations are estimated as in 'shoal simulate'. Nothing is run or written."""
USAGE = "[FILE] [TARGET... NAME=VALUE...] | WORKLOAD [OPTION...]"
EXAMPLE = "shoal bound pipeline --tasks 131072000 --cores 131072"
WORKLOADS = ("bag", "pipeline", "fan-out", "fan-in")
READINGS = ("position", "per-level", "literal", "no-wait")
WORKLOAD_CORES = 2
"""Cores per node in the paper."""
TASKS_PER_CORE = 1000
DEGREE = 10
MOST_DEGREE = 1000


def add_arguments(parser: CommandParser) -> None:
    add_workflow(parser, "a workload; or the workflow file, targets and name=value parameters")
    where = parser.add_argument_group("where it would run")
    where.add_argument("--nodes", metavar="N", type=whole_number(1, "--nodes"), default=1, help="nodes (1)")
    where.add_argument(
        "--cores",
        metavar="N",
        type=whole_number(1, "--cores"),
        help=f"cores of each node (default: those of this machine; of a workload's node {WORKLOAD_CORES})",
    )
    where.add_argument(
        "--bandwidth",
        metavar="SIZE",
        help="for the paper's programme: bytes per second between two nodes, such as 125M (default: 10 Gb/s)",
    )
    parser.add_argument(
        "--reading",
        metavar="READING",
        choices=(*READINGS, "all"),
        default=READINGS[0],
        help=f"how long a task waits in the paper's programme: {', '.join(READINGS)}, or all ({READINGS[0]})",
    )
    work = parser.add_argument_group("options of a synthetic workload")
    tasks = f"number of tasks ({TASKS_PER_CORE} per core)"
    work.add_argument("--tasks", metavar="N", type=whole_number(1, "--tasks"), help=tasks)
    degree = f"tasks of a pipe, or branches of a fan ({DEGREE})"
    work.add_argument("--degree", metavar="N", type=whole_number(2, "--degree"), help=degree)
    work.add_argument("--seed", metavar="S", type=whole_number(0, "--seed"), help="random seed (1)")
    parser.add_argument("--json", action="store_true", help="one JSON object, for programs")


def execute(arguments: argparse.Namespace) -> int:
    import json

    from shoal.ui.cli.text import printable_lines

    network = network_of(arguments.bandwidth)
    readings = READINGS if arguments.reading == "all" else (arguments.reading,)
    if arguments.words and arguments.words[0] in WORKLOADS and arguments.workflow is None:
        found = of_workload(arguments, readings, network)
    else:
        found = of_workflow(arguments, readings, network)
    print(json.dumps(found) if arguments.json else printable_lines("\n".join(as_text(found))))
    return 0


def network_of(bandwidth: str | None) -> Network:
    from shoal.core.resources import parse_size
    from shoal.sim.matrix_bound import Network

    if bandwidth is None:
        return Network()
    size = parse_size(bandwidth, "--bandwidth")
    if not size:
        raise InputError("--bandwidth must be greater than 0", remedy="write bytes per second, such as 125M")
    return Network(float(size))


def of_workload(arguments: argparse.Namespace, readings: tuple[str, ...], network: Network) -> dict[str, Any]:
    """Both bounds for a regular graph, which is never in memory as a whole."""
    from shoal.sim.lower_bound import Capacity
    from shoal.sim.matrix_bound import DrawnColumns, streamed_paper_bound, streamed_tally

    shape, *more = arguments.words
    if more:
        raise InputError(f"{shape!r} is a workload and has no target {more[0]!r}")
    cores = arguments.nodes * (arguments.cores or WORKLOAD_CORES)
    tasks = arguments.tasks or TASKS_PER_CORE * cores
    degree = arguments.degree or DEGREE
    if degree > MOST_DEGREE:
        raise InputError(f"--degree must be at most {MOST_DEGREE}, not {degree}")
    seed = 1 if arguments.seed is None else arguments.seed
    source = DrawnColumns(seed)
    known = streamed_tally(shape, tasks, degree, source)
    papers = [streamed_paper_bound(shape, degree, source, known, cores, reading, network) for reading in readings]
    used = f"lengths up to 100 ms, outputs up to 10 MB, seed {seed}" + (f", degree {degree}" * (shape != "bag"))
    return as_data(shape, used, arguments, cores, known.bound(Capacity(cores)), papers, network)


def of_workflow(arguments: argparse.Namespace, readings: tuple[str, ...], network: Network) -> dict[str, Any]:
    """Both bounds for a workflow file: its targets and their dependencies."""
    import os

    from shoal.execution.process_limits import available_cores
    from shoal.execution.workflow_loader import find_workflow
    from shoal.sim.expected_times import expect
    from shoal.sim.forecast import subject_of
    from shoal.sim.lower_bound import Capacity, lower_bound
    from shoal.sim.matrix_bound import paper_bound

    for option in ("tasks", "degree", "seed"):
        if getattr(arguments, option) is not None:
            raise InputError(
                f"--{option} applies to synthetic workloads only", remedy=f"workloads are {', '.join(WORKLOADS)}"
            )
    named, words = split_words(arguments.words, arguments.workflow)
    refuse_unknown_workload(arguments)
    path = os.path.abspath(find_workflow(named))
    per_node = arguments.cores or available_cores()
    expected = expect(path, words)
    work = subject_of(expected).work
    refuse_larger_tasks(work, expected, per_node)
    cores = arguments.nodes * per_node
    papers = [paper_bound(work, cores, reading, network) for reading in readings]
    used = f"durations: {expected.sentence()}"
    name = expected.workflow.path
    return as_data(name, used, arguments, cores, lower_bound(work, Capacity(cores)), papers, network)


def refuse_unknown_workload(arguments: argparse.Namespace) -> None:
    """Rejects a first word that is not a file although a file is needed, or that is a misspelt workload."""
    import os

    if arguments.workflow is not None or not arguments.words:
        return
    word = arguments.words[0]
    hint = close_match(word, WORKLOADS)
    if "=" not in word and not os.path.exists(word) and (hint or looks_like_workflow(word)):
        raise InputError(
            f"there is neither a workload nor a workflow file {word!r}",
            remedy=hint or f"workloads are {', '.join(WORKLOADS)}",
        )


def refuse_larger_tasks(work: Work, expected: Expectation, cores: int) -> None:
    """Rejects tasks that fit on no node: they never end, so there is no bound."""
    from shoal.core.resources import FRACTION

    graph = expected.workflow.graph
    for task, number in enumerate(work.category):
        asked = work.profiles[number].resources.get("cores") / FRACTION
        if asked > cores:
            raise InputError(
                f"{graph.names[task]!r} asks for {asked:g} cores, but a node has {cores}",
                file=graph.source,
                line=graph.lines[task] or None,
                remedy="give nodes more with --cores N",
            )


def as_data(
    name: str,
    used: str,
    arguments: argparse.Namespace,
    cores: int,
    lower: LowerBound,
    papers: list[PaperBound],
    network: Network,
) -> dict[str, Any]:
    """All results as data; times are in seconds."""
    return {
        "of": name,
        "tasks": lower.tasks,
        "nodes": arguments.nodes,
        "cores": cores,
        "used": used,
        "lower_bound": {
            "seconds": lower.seconds,
            "throughput": lower.throughput,
            "decides": lower.decides,
            "work": lower.work,
            "over_cores": lower.over_cores,
            "path": lower.path,
            "below": lower.below,
            "depth": lower.depth,
        },
        "paper": {paper.reading: {"seconds": paper.seconds, "throughput": paper.throughput} for paper in papers},
        "bandwidth": network.bandwidth,
    }


def as_text(found: dict[str, Any]) -> list[str]:
    """The results as text."""
    from shoal.core.quantities import count
    from shoal.ui.cli.text import table

    lower = found["lower_bound"]
    terms = [
        ("  work over cores", "work", lower["over_cores"]),
        ("  critical path", "path", lower["path"]),
        (f"  work from depth {lower['depth']} on", "depth", lower["below"]),
    ]
    rows = [("", "seconds", "tasks/s"), ("lower bound", *_numbers(lower))]
    for name, term, seconds in terms:
        if term != "depth" or lower["depth"]:
            rows.append((name, f"{seconds:,.3f}", "decides" if term == lower["decides"] else ""))
    rows += [(f"paper, {reading}", *_numbers(row)) for reading, row in found["paper"].items()]
    nodes = f" of {count(found['nodes'], 'node')}" if found["nodes"] > 1 else ""
    return [
        f"{found['of']}: {count(found['tasks'], 'task')} on {count(found['cores'], 'core')}{nodes}",
        f"{found['used']}; in the paper's programme {found['bandwidth'] * 8 / 1e9:.3g} Gb/s between nodes",
        *table(rows),
    ]


def _numbers(row: dict[str, Any]) -> tuple[str, str]:
    return f"{row['seconds']:,.3f}", f"{row['throughput']:,.1f}"
