"""`shoal simulate`: predicts a whole run in virtual time, on one node or on a cluster; runs and writes nothing."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from shoal.errors import InputError
from shoal.ui.cli.parser import CommandParser, add_workflow, whole_number
from shoal.ui.cli.predictions import (
    add_cluster,
    cluster_of,
    expectation,
    find_subject,
    given_for_clusters,
    is_workload,
    options_of,
    policies_of,
    refuse_larger_tasks,
)
from shoal.ui.cli.run import add_machine
from shoal.ui.cli.text import printable_lines

if TYPE_CHECKING:
    from shoal.core.resources import Resources
    from shoal.sim.expected_times import Expectation
    from shoal.sim.predictions import Forecast

SUMMARY = """Predicts how long a whole run would take on this machine, on one with other cores and memory, or on a
cluster, with the same scheduler in virtual time. Durations come from the trace or from earlier runs; for tasks never
run, from other tasks of their category, else from their time limit, else one second. Instead of a file it accepts a
synthetic workload, such as pipeline:tasks=20000: bag, fan-out, fan-in, pipeline, stacking, all-pairs, copyfile,
montage-pwrake, fmri, moldyn. Nothing is run or written."""
USAGE = "[FILE] [TARGET... NAME=VALUE...] | WORKLOAD [OPTION...]"
EXAMPLE = "shoal simulate trace.json --nodes 16 --cores 4 --policy flds,mlb"
MOST_CATEGORIES = 20


def add_arguments(parser: CommandParser) -> None:
    add_workflow(parser, "a workload; or the workflow file, targets and name=value parameters")
    add_machine(parser)
    parser.add_argument(
        "--nodes",
        metavar="N",
        type=whole_number(1, "--nodes"),
        help="number of nodes of a cluster; data transfers are simulated",
    )
    add_cluster(parser)
    parser.add_argument(
        "--throttle",
        metavar="HOW[,HOW...]",
        help="on one node with contention: adaptive, weasel, contract, slots=N; several to compare",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object, for programs")


def execute(arguments: argparse.Namespace) -> int:
    if arguments.nodes is not None or is_workload(arguments) or given_for_clusters(arguments):
        if arguments.throttle is not None:
            raise InputError(
                "--throttle is simulated for a workflow file on one node",
                remedy="leave out the options that describe a cluster",
            )
        return on_cluster(arguments)
    return on_this_node(arguments) if arguments.throttle is None else under_throttles(arguments)


def on_cluster(arguments: argparse.Namespace) -> int:
    """Simulates one run for each policy."""
    import json

    from shoal.sim.forecast import least_seconds, predict_all
    from shoal.ui.cli.predictions import run_as_data, run_as_text

    if arguments.jobs is not None:
        raise InputError("--jobs applies to one node", remedy="give the cores of each node with --cores")
    policies, options = policies_of(arguments.policy), options_of(arguments)
    cluster_of(arguments, arguments.nodes or 1, None)  # rejects invalid options before anything is loaded
    subject, node = find_subject(arguments)
    spec = cluster_of(arguments, arguments.nodes or 1, node)
    predictions = predict_all(subject, [spec], policies, options)
    bound = least_seconds(subject.work, spec)
    if arguments.json:
        print(json.dumps(run_as_data(subject, spec, options, predictions, bound)))
    else:
        print(printable_lines("\n".join(run_as_text(subject, spec, options, predictions, bound))))
    return 0


def on_this_node(arguments: argparse.Namespace) -> int:
    """Simulates a run on one node, where no data is moved."""
    import json

    from shoal.core.policies.order import DEFAULT_ORDER
    from shoal.sim.forecast import on_one_node

    expected, node = expectation(arguments)
    refuse_larger_tasks(expected, node, "--jobs N")
    order = arguments.order or DEFAULT_ORDER
    forecast = on_one_node(expected, node, order)
    if arguments.json:
        print(json.dumps(as_data(expected, forecast, node, order)))
    else:
        print(printable_lines("\n".join(as_text(expected, forecast, node, order))))
    return 0


def under_throttles(arguments: argparse.Namespace) -> int:
    """Simulates a run on one node for each throttle, where tasks slow each other down through shared resources."""
    import json

    from shoal.core.policies.order import DEFAULT_ORDER
    from shoal.core.policies.throttle.registry import regime
    from shoal.execution.process_limits import available_cores
    from shoal.sim import forecast as forecast_module
    from shoal.ui.cli.predictions import throttles_as_data, throttles_as_text

    regimes = [regime(name.strip()) for name in arguments.throttle.split(",")]
    expected, node = expectation(arguments)
    refuse_larger_tasks(expected, node, "--jobs N")
    demands = forecast_module.demands_of(expected, node, available_cores())
    found = forecast_module.under_throttles(expected, node, arguments.order or DEFAULT_ORDER, regimes, demands)
    if arguments.json:
        print(json.dumps(throttles_as_data(expected, node, demands, found)))
    else:
        print(printable_lines("\n".join(throttles_as_text(expected, node, demands, found))))
    return 0


def as_data(expected: Expectation, forecast: Forecast, node: Resources, order: str) -> dict[str, Any]:
    """The forecast as data; times are in seconds."""
    from shoal.core.resources import FRACTION

    return {
        "workflow": expected.workflow.path,
        "tasks": forecast.tasks,
        "cores": node.get("cores") / FRACTION,
        "memory": node.get("memory"),
        "order": order,
        "durations": expected.counts(),
        "overheads": {"per_task": expected.overheads.per_task, "at_ends": expected.overheads.at_ends},
        "makespan": forecast.makespan,
        "utilisation": forecast.utilisation,
        "work": forecast.work,
        "critical_path": forecast.critical_path,
        "area": forecast.area,
        "lower_bound": forecast.lower_bound,
        "categories": {name: {"tasks": row.tasks, "seconds": row.seconds} for name, row in forecast.categories.items()},
    }


def as_text(expected: Expectation, forecast: Forecast, node: Resources, order: str) -> list[str]:
    """The forecast as text."""
    from shoal.core.quantities import count, show_cores, show_seconds, show_share
    from shoal.core.resources import FRACTION
    from shoal.ui.cli.text import clip, table

    cores = node.get("cores") / FRACTION
    on = show_cores(cores)
    lines = [
        f"{expected.workflow.path}: {count(forecast.tasks, 'task')} on {on}, order {order}",
        f"durations: {expected.sentence()}",
        f"predicted makespan: {show_seconds(forecast.makespan)}, utilisation {show_share(forecast.utilisation)}",
        f"lower bounds: {show_seconds(forecast.area)} for the work on {on}, "
        f"{show_seconds(forecast.critical_path)} along the critical path",
    ]
    rows = sorted(forecast.categories.items(), key=lambda item: -item[1].seconds)
    cells = []
    for name, row in rows[:MOST_CATEGORIES]:
        mean = f"mean {show_seconds(row.seconds / row.tasks)}"
        cells.append((clip(name, 60), count(row.tasks, "task"), show_seconds(row.seconds), mean))
    left = len(rows) - MOST_CATEGORIES
    more = [f"  and {left} more categories (--json lists all)"] if left > 0 else []
    return lines + (table(cells) if cells else []) + more
