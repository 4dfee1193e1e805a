"""A drawing of predictions over numbers of nodes, as SVG: makespan and node hours, on logarithmic axes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, floor, log10

from shoal.engine.forecast import Prediction
from shoal.model.quantities import show_number, show_seconds
from shoal.model.svg import Axis, document, element, horizontals, line, polyline, round_number, text

_WIDTH, _PANEL = 760, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 24, 56, 46
_COLOURS = ("#0b62a4", "#c8500a", "#2e7d32", "#7b3fa0", "#9a7d0a", "#b0305c")
_BOUND = "#888"
_LEAST_APART = 34
"""Pixels between two labels of the axis of nodes."""


def draw(predictions: Sequence[Prediction], bounds: Sequence[tuple[int, float]], title: str) -> str:
    """The whole file: a panel for the makespan with the lower bound below it, and one for the cost."""
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
    """An axis for all values; with `whole` from a round number to a round number."""
    known = [value for value in values if value > 0] or [1.0]
    least, most = min(known), max(known)
    if whole:
        least, most = round_number(least, up=False), round_number(most)
    if least == most:
        least, most = least / 2, most * 2
    return Axis(least, most, begin, end, is_logarithmic=True)


def _ticks(axis: Axis) -> list[float]:
    """Round numbers on the axis, the fewer of each power of ten the more of these there are."""
    powers = range(floor(log10(axis.least)), ceil(log10(axis.most)) + 1)
    decades = log10(axis.most / axis.least)
    factors = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0) if decades < 1 else (1.0, 2.0, 5.0) if decades < 4 else (1.0,)
    inside = [factor * 10.0**power for power in powers for factor in factors]
    return [value for value in inside if axis.least * 0.999 <= value <= axis.most * 1.001]


def _frame(label: str, across: Axis, up: Axis, counts: Sequence[int], show: Callable[[float], str]) -> list[str]:
    """Grid and labels of one panel."""
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
    """The policies with their colours, and the lower bound, in one row."""
    parts = []
    x = _LEFT
    for number, name in enumerate([*policies, "lower bound"]):
        is_bound = number == len(policies)
        colour = _BOUND if is_bound else _COLOURS[number % len(_COLOURS)]
        parts.append(polyline([(x, 36), (x + 24, 36)], colour, is_dashed=is_bound))
        parts.append(text(x + 30, 40, name))
        x += 48 + 8 * len(name)
    return parts
