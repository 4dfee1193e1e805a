"""`shoal simulate`: predicts a whole run on one node, in virtual time; runs and writes nothing."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from shoal.cli.parser import CommandParser, add_workflow, split_words
from shoal.cli.run import ORDERS, add_machine, node_for
from shoal.errors import InputError

if TYPE_CHECKING:
    from shoal.engine.expect import Expectation
    from shoal.model.resources import Resources
    from shoal.sim.predict import Forecast

SUMMARY = """Predicts how long a whole run would take on this machine, or on one with other cores and memory: the same
scheduler, in virtual time. How long tasks take is known from the trace, or from earlier runs; tasks never run are
taken to be like others of their category, else to take one second. Nothing is run, and nothing is written."""
USAGE = "[FILE] [TARGET... NAME=VALUE...] [OPTION...]"
EXAMPLE = "shoal simulate trace.json --jobs 64"
MOST_CATEGORIES = 20


def add_arguments(parser: CommandParser) -> None:
    add_workflow(parser)
    add_machine(parser)
    parser.add_argument("--order", choices=ORDERS, metavar="ORDER", help=f"one of {', '.join(ORDERS)}")
    parser.add_argument("--json", action="store_true", help="one JSON object, for programs")


def execute(arguments: argparse.Namespace) -> int:
    import json

    from shoal.engine.expect import expect
    from shoal.engine.load import find_workflow
    from shoal.model.graph import ancestors
    from shoal.policy.order import DEFAULT_ORDER
    from shoal.sim.predict import predict

    named, words = split_words(arguments.words, arguments.workflow)
    path = find_workflow(named)
    node = node_for(arguments, path)
    expected = expect(path, words)
    graph = expected.workflow.graph
    wanted = ancestors(graph, expected.workflow.targets)
    refuse_larger_tasks(expected, wanted, node)
    order = arguments.order or DEFAULT_ORDER
    forecast = predict(graph, expected.durations, node, order, wanted=wanted, input_bytes=expected.input_bytes)
    if arguments.json:
        print(json.dumps(as_data(expected, forecast, node, order)))
    else:
        print("\n".join(as_text(expected, forecast, node, order)))
    return 0


def refuse_larger_tasks(expected: Expectation, wanted: bytearray, node: Resources) -> None:
    """A task that is larger than the node would wait there for ever."""
    from shoal.model.resources import show_amount

    graph = expected.workflow.graph
    lacking = [profile.resources.lacking_in(node) for profile in graph.profiles]
    for task, number in enumerate(graph.profile):
        if lacking[number] and wanted[task] and graph.actions[task] is not None:
            name = lacking[number][0]
            asked = show_amount(name, graph.profiles[number].resources.get(name))
            option = {"cores": "--jobs N", "memory": "--memory SIZE"}.get(name, f"--resource {name}=N")
            raise InputError(
                f"{graph.names[task]!r} asks for {name} {asked}, but the node has {show_amount(name, node.get(name))}",
                file=graph.source,
                line=graph.lines[task] or None,
                remedy=f"simulate a larger one with {option}",
            )


def as_data(expected: Expectation, forecast: Forecast, node: Resources, order: str) -> dict[str, Any]:
    """The forecast for programs; times are in seconds."""
    from shoal.model.resources import FRACTION

    return {
        "workflow": expected.workflow.path,
        "tasks": forecast.tasks,
        "cores": node.get("cores") / FRACTION,
        "memory": node.get("memory"),
        "order": order,
        "durations": {
            "from": expected.origin,
            "known": expected.known,
            "like_category": expected.like_category,
            "guessed": expected.guessed,
        },
        "makespan": forecast.makespan,
        "utilisation": forecast.utilisation,
        "work": forecast.work,
        "critical_path": forecast.critical_path,
        "area": forecast.area,
        "lower_bound": forecast.lower_bound,
        "categories": {name: {"tasks": row.tasks, "seconds": row.seconds} for name, row in forecast.categories.items()},
    }


def as_text(expected: Expectation, forecast: Forecast, node: Resources, order: str) -> list[str]:
    """The forecast for people."""
    from shoal.cli.text import clip, count, show_percent, show_seconds, table
    from shoal.model.resources import FRACTION

    cores = node.get("cores") / FRACTION
    on = f"{cores:g} core{'s' * (cores != 1)}"
    lines = [
        f"{expected.workflow.path}: {count(forecast.tasks, 'task')} on {on}, order {order}",
        f"durations: {expected.sentence()}",
        f"predicted makespan: {show_seconds(forecast.makespan)}, utilisation {show_percent(forecast.utilisation, 1.0)}",
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
