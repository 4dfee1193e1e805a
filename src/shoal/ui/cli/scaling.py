"""`shoal plan --nodes`: predicts a whole run on several sizes of a cluster, as a table, a plot and a recommendation."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from math import ceil, floor, log10

from shoal.core.quantities import show_number, show_seconds
from shoal.core.svg import Axis, document, element, horizontals, line, polyline, round_number, text
from shoal.errors import InputError
from shoal.sim.forecast import Prediction
from shoal.ui.cli.parser import split_words
from shoal.ui.cli.predictions import MOST_NODES, cluster_of, find_subject, is_workload, options_of, policies_of

MOST_COUNTS = 200


_LONGEST = 1000


_RANGE = re.compile(r"([0-9]+)\.\.([0-9]+)(?::([0-9]+)(x?))?")


def show_scaling(arguments: argparse.Namespace) -> int:
    """Predicts a run for each number of nodes and each policy, and recommends one."""
    import json
    import os

    from shoal.execution.workflow_loader import find_workflow
    from shoal.ledger.workspace import Workspace
    from shoal.sim.forecast import advise, least_seconds, predict_all
    from shoal.ui.cli.predictions import plan_as_data, plan_as_text
    from shoal.ui.cli.text import printable_lines
    from shoal.ui.cli.workflow_places import check_destination

    refuse_what_only_a_plan_has(arguments)
    counts = node_counts(arguments.nodes)
    policies, options = policies_of(arguments.policy), options_of(arguments)
    cluster_of(arguments, counts[-1], None)  # rejects invalid options before anything is loaded
    plot = os.path.abspath(arguments.plot) if arguments.plot is not None else None
    if plot is not None and not is_workload(arguments):
        workflow = find_workflow(split_words(arguments.words, arguments.workflow)[0])
        check_destination(arguments.plot, "--plot", Workspace(workflow))
    if plot is not None and not os.access(os.path.dirname(plot), os.W_OK):
        raise InputError(
            f"cannot write the plot {arguments.plot!r}", remedy="name a file in a directory where you may write"
        )
    subject, node = find_subject(arguments)
    specs = [cluster_of(arguments, nodes, node) for nodes in counts]
    predictions = predict_all(subject, specs, policies, options)
    advice = advise(predictions)
    if plot is not None:
        bounds = [(spec.nodes, least_seconds(subject.work, spec)) for spec in specs]
        with open(plot, "w", encoding="utf-8") as file:
            file.write(draw(predictions, bounds, f"{subject.name}, nodes of {specs[0].node.cores} cores"))
    show = plan_as_data(subject, specs, options, predictions, advice) if arguments.json else None
    text = plan_as_text(subject, specs, options, predictions, advice)
    print(json.dumps(show) if show is not None else printable_lines("\n".join(text)))
    return 0


def refuse_what_only_a_plan_has(arguments: argparse.Namespace) -> None:
    """Rejects options that select tasks: they have no meaning for the forecast of a whole run."""
    if arguments.jobs is not None:
        raise InputError("--jobs applies to one node", remedy="give the cores of each node with --cores")
    for name, given in (("--verbose", arguments.verbose), ("--force", arguments.force)):
        if given:
            raise InputError(f"{name} cannot be combined with --nodes, which predicts a whole run")


def node_counts(text: str) -> list[int]:
    """Parses numbers of nodes: `8`, `1,2,4`, `1..64` (doubling), `1..64:4x` (a factor) or `10..50:10` (a step)."""
    if len(text) > _LONGEST:
        raise _no_range(text[:20] + "...")
    counts: set[int] = set()
    for part in text.split(","):
        counts.update(_counts_of(part.strip(), text))
        if len(counts) > MOST_COUNTS:
            raise InputError(f"--nodes {text!r} has more than {MOST_COUNTS} sizes", remedy="use larger steps")
    return sorted(counts)


def _counts_of(part: str, whole: str) -> list[int]:
    if part.isascii() and part.isdigit():
        return [_allowed(int(part))]
    found = _RANGE.fullmatch(part)
    if found is None:
        raise _no_range(whole)
    first, last = _allowed(int(found[1])), _allowed(int(found[2]))
    if first > last:
        raise InputError(f"--nodes {part!r} is a descending range", remedy=f"write {last}..{first}")
    step, is_factor = int(found[3] or 2), found[3] is None or bool(found[4])
    if step < 1 + is_factor:
        what = "factor must be at least 2" if is_factor else "step must be at least 1"
        raise InputError(f"--nodes {part!r} never ends", remedy=f"the {what}")
    if not is_factor:
        return list(range(first, min(last, first + step * MOST_COUNTS) + 1, step))
    counts = [first]
    while counts[-1] * step < last:
        counts.append(counts[-1] * step)
    return [*counts, last]


def _allowed(nodes: int) -> int:
    if nodes < 1:
        raise InputError(f"a cluster needs at least one node, not {nodes}", remedy="give --nodes 1 or more")
    if nodes > MOST_NODES:
        raise InputError(f"--nodes must be at most {MOST_NODES:,}, not {nodes:,}")
    return nodes


def _no_range(text: str) -> InputError:
    return InputError(
        f"--nodes {text!r} is not a list or range of node numbers",
        remedy="write 1..64, 1..64:4x, 10..50:10 or 1,2,4",
    )


_WIDTH, _PANEL = 760, 300


_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 24, 56, 46


_COLOURS = ("#0b62a4", "#c8500a", "#2e7d32", "#7b3fa0", "#9a7d0a", "#b0305c")


_BOUND = "#888"


_LEAST_APART = 34
"""Minimum distance in pixels between two labels of the node axis."""


def draw(predictions: Sequence[Prediction], bounds: Sequence[tuple[int, float]], title: str) -> str:
    """Returns the SVG file: a panel for the makespan with its lower bound, and one for the cost."""
    policies = list(dict.fromkeys(each.policy for each in predictions))
    parts = _legend(policies)
    counts = sorted({each.nodes for each in predictions})
    across = _spanning([float(each) for each in counts], _LEFT, _WIDTH - _RIGHT, whole=False)
    least = [(nodes, seconds) for nodes, seconds in bounds if seconds > 0]
    times = [seconds for _, seconds in least]
    for each in predictions:
        times += [each.makespan, each.shortest or each.makespan, each.longest or each.makespan]
    hours = [each.node_hours for each in predictions]
    time = _spanning(times, _TOP + _PANEL - _BOTTOM, _TOP + 14)
    cost = _spanning(hours, _TOP + 2 * _PANEL - _BOTTOM, _TOP + _PANEL + 14)
    parts += _frame("makespan", across, time, counts, show_seconds)
    parts += _frame("cost in node hours", across, cost, counts, show_number)
    parts.append(polyline([(across.at(nodes), time.at(seconds)) for nodes, seconds in least], _BOUND, is_dashed=True))
    for number, policy in enumerate(policies):
        colour = _COLOURS[number % len(_COLOURS)]
        mine = [each for each in predictions if each.policy == policy and each.makespan > 0]
        parts += _error_bars(mine, across, time, colour)
        for axis, points in (
            (time, [(each.nodes, each.makespan) for each in mine]),
            (cost, [(each.nodes, each.node_hours) for each in mine]),
        ):
            places = [(across.at(nodes), axis.at(value)) for nodes, value in points]
            parts.append(polyline(places, colour))
            parts += [element("circle", cx=x, cy=y, r=3, fill=colour) for x, y in places]
    return document(_WIDTH, _TOP + 2 * _PANEL, (_LEFT, 20), title, parts)


def _spanning(values: Sequence[float], begin: float, end: float, *, whole: bool = True) -> Axis:
    """Axis for all values; with `whole` it begins and ends at round numbers."""
    known = [value for value in values if value > 0] or [1.0]
    least, most = min(known), max(known)
    if whole:
        least, most = round_number(least, up=False), round_number(most)
    if least == most:
        least, most = least / 2, most * 2
    return Axis(least, most, begin, end, is_logarithmic=True)


def _ticks(axis: Axis) -> list[float]:
    """Round numbers on the axis: the more decades it spans, the fewer per decade."""
    powers = range(floor(log10(axis.least)), ceil(log10(axis.most)) + 1)
    decades = log10(axis.most / axis.least)
    factors = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0) if decades < 1 else (1.0, 2.0, 5.0) if decades < 4 else (1.0,)
    inside = [factor * 10.0**power for power in powers for factor in factors]
    return [value for value in inside if axis.least * 0.999 <= value <= axis.most * 1.001]


def _frame(label: str, across: Axis, up: Axis, counts: Sequence[int], show: Callable[[float], str]) -> list[str]:
    """Grid and axis labels of one panel."""
    parts = [text(_LEFT, up.end - 6, label), *horizontals(up, across, _ticks(up), show)]
    last = -1.0 * _LEAST_APART
    for each in counts:
        x = across.at(each)
        if x - last >= _LEAST_APART:
            last = x
            parts.append(line((x, up.begin), (x, up.end), "#eee"))
            parts.append(text(x, up.begin + 16, f"{each:,}", text_anchor="middle"))
    middle = (across.begin + across.end) / 2
    return [*parts, text(middle, up.begin + 32, "nodes", text_anchor="middle")]


def _error_bars(predictions: Sequence[Prediction], across: Axis, up: Axis, colour: str) -> list[str]:
    parts = []
    for each in predictions:
        if each.shortest and each.longest:
            x, low, high = across.at(each.nodes), up.at(each.shortest), up.at(each.longest)
            ends = [line((x - 4, y), (x + 4, y), colour) for y in (low, high)]
            parts += [line((x, low), (x, high), colour), *ends]
    return parts


def _legend(policies: Sequence[str]) -> list[str]:
    """Legend: the policies with their colours, and the lower bound, in one row."""
    parts = []
    x = _LEFT
    for number, name in enumerate([*policies, "lower bound"]):
        is_bound = number == len(policies)
        colour = _BOUND if is_bound else _COLOURS[number % len(_COLOURS)]
        parts.append(polyline([(x, 36), (x + 24, 36)], colour, is_dashed=is_bound))
        parts.append(text(x + 30, 40, name))
        x += 48 + 8 * len(name)
    return parts
