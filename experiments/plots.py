"""Lines over numbers as SVG, without any library: panels below each other, each with axes, a legend and its lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

_WIDTH, _PANEL = 760, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 170, 34, 48
_COLOURS = ("#0b62a4", "#c8500a", "#2e7d32", "#7b3fa0", "#9a7d0a", "#b0305c", "#3c8d93", "#555555")
_STEPS = 4
_TICK_APART = 44
"""Pixels between two labels of the horizontal axis."""


@dataclass(frozen=True)
class Line:
    """Points that belong together; a dashed line is somebody else's number."""

    label: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False


@dataclass(frozen=True)
class Panel:
    """One drawing. Logarithmic axes need numbers above zero; other vertical axes begin at zero."""

    title: str
    across: str
    lines: Sequence[Line]
    log_across: bool = False
    log_up: bool = False
    top: float | None = None
    """Where the vertical axis ends; None: above the highest point."""


@dataclass(frozen=True)
class _Axis:
    least: float
    most: float
    begin: float
    end: float
    is_log: bool

    def at(self, value: float) -> float:
        least, most = self.least, self.most
        if self.is_log:
            value, least, most = log10(value), log10(least), log10(most)
        return self.begin + (value - least) / (most - least) * (self.end - self.begin)


def drawn(title: str, panels: Sequence[Panel]) -> str:
    """The whole file."""
    height = _TOP + len(panels) * _PANEL
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" font-family="sans-serif" '
        'font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="12" y="20" font-size="14">{escape(title)}</text>',
    ]
    for number, panel in enumerate(panels):
        parts += _panel(panel, _TOP + number * _PANEL)
    return "\n".join([*parts, "</svg>\n"])


def _panel(panel: Panel, top: int) -> list[str]:
    values = [point for line in panel.lines for point in line.points]
    base = top + _PANEL - _BOTTOM
    if not values:
        return []
    across = _axis([x for x, _ in values], _LEFT, _WIDTH - _RIGHT, panel.log_across, from_zero=False)
    up = _axis([y for _, y in values], base, top + 24, panel.log_up, from_zero=True, most=panel.top)
    parts = [f'<text x="{_LEFT}" y="{top + 12}">{escape(panel.title)}</text>']
    for value in _ticks(up):
        y = up.at(value)
        parts.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>')
    last = -_TICK_APART * 1.0
    for value in sorted({x for x, _ in values}) if panel.log_across else _ticks(across):
        x = across.at(value)
        if x - last >= _TICK_APART:
            parts.append(f'<text x="{x:.1f}" y="{base + 16}" text-anchor="middle">{value:.4g}</text>')
            last = x
    parts.append(f'<text x="{_LEFT}" y="{base + 34}">{escape(panel.across)}</text>')
    for number, line in enumerate(panel.lines):
        parts += _line(line, number, across, up, top)
    return parts


def _line(line: Line, number: int, across: _Axis, up: _Axis, top: int) -> list[str]:
    colour = _COLOURS[number % len(_COLOURS)]
    dash = ' stroke-dasharray="6 4"' if line.dashed else ""
    places = [(across.at(x), up.at(y)) for x, y in line.points]
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts = [f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="1.5"{dash}/>']
    if len(places) <= 40:
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in places]
    x, y = _WIDTH - _RIGHT + 10, top + 30 + 17 * number
    parts.append(f'<line x1="{x}" y1="{y}" x2="{x + 18}" y2="{y}" stroke="{colour}" stroke-width="2"{dash}/>')
    parts.append(f'<text x="{x + 24}" y="{y + 4}" font-size="11">{escape(line.label)}</text>')
    return parts


def _axis(
    values: Sequence[float], begin: float, end: float, is_log: bool, *, from_zero: bool, most: float | None = None
) -> _Axis:
    low, high = min(values), most if most is not None else max(values)
    if is_log:
        if from_zero:  # the vertical one: whole powers of ten
            low, high = 10.0 ** floor(log10(low)), 10.0 ** ceil(log10(high))
        return _Axis(low, high if high > low else 10 * low, begin, end, True)
    if from_zero:
        low = 0.0
        high = high if most is not None else _round_above(high)
    return _Axis(low, high if high > low else low + 1, begin, end, False)


def _ticks(axis: _Axis) -> list[float]:
    if axis.is_log:
        powers = range(round(log10(axis.least)), round(log10(axis.most)) + 1)
        return [10.0**power for power in powers]
    return [axis.least + (axis.most - axis.least) * step / _STEPS for step in range(_STEPS + 1)]


def _round_above(value: float) -> float:
    """The next number that reads well."""
    if value <= 0:
        return 1.0
    power = 10.0 ** floor(log10(value))
    return next((factor * power for factor in (1, 2, 4, 5, 8) if factor * power >= value), 10 * power)
