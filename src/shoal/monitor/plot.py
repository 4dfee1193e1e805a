"""A drawing of the time series as SVG: memory and cores over time, with the limits. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from shoal.monitor.fields import number
from shoal.monitor.series import Point, Row

_WIDTH, _HEIGHT = 720, 200
"""Of one panel."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 30, 35
_LINES = 4


def draw(rows: Sequence[Row | Point], title: str, limits: dict[str, float]) -> str:
    """The whole file: a panel for memory and one for cores."""
    begun = rows[0].wall_clock if rows else 0.0
    panels: list[tuple[str, str, Callable[[Row | Point], float]]] = [
        ("memory", "memory (MB)", lambda row: row.memory),
        ("cores", "cores", lambda row: row.cores),
    ]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{len(panels) * _HEIGHT + _TOP}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_LEFT}" y="18" font-size="14">{_escaped(title)}</text>',
    ]
    for index, (name, label, value) in enumerate(panels):
        points = [(row.wall_clock - begun, value(row)) for row in rows]
        parts += _panel(points, label, limits.get(name), _TOP + index * _HEIGHT)
    return "\n".join([*parts, "</svg>\n"])


def _panel(points: list[tuple[float, float]], label: str, limit: float | None, top: int) -> list[str]:
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _BOTTOM - 15
    longest = max((at for at, _ in points), default=0.0) or 1.0
    highest = _round_above(max([value for _, value in points] + ([limit] if limit is not None else []), default=0.0))
    base = top + 15 + height

    def place(at: float, value: float) -> tuple[float, float]:
        return _LEFT + at / longest * width, base - value / highest * height

    parts = [f'<text x="{_LEFT}" y="{top + 10}">{label}</text>']
    for step in range(_LINES + 1):
        value = highest * step / _LINES
        y = place(0, value)[1]
        parts.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_LEFT + width}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{number(value, 2)}</text>')
        at = longest * step / _LINES
        x = place(at, 0)[0]
        parts.append(f'<text x="{x:.1f}" y="{base + 16}" text-anchor="middle">{number(at, 2)} s</text>')
    if limit is not None:
        y = place(0, limit)[1]
        parts.append(
            f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_LEFT + width}" y2="{y:.1f}" stroke="#c00" stroke-dasharray="6 4"/>'
        )
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
    parts.append(f'<polyline points="{line}" fill="none" stroke="#06c" stroke-width="1.5"/>')
    return parts


def _round_above(value: float) -> float:
    """The next number that reads well: 1, 2, 4, 5 or 8 times a power of ten, or 1 for nothing."""
    if value <= 0:
        return 1.0
    power = 1.0
    while power > value:
        power /= 10
    while power * 10 <= value:
        power *= 10
    return next((factor * power for factor in (1, 2, 4, 5, 8) if factor * power >= value), 10 * power)


def _escaped(text: str) -> str:
    return escape("".join(letter if letter.isprintable() else " " for letter in text), quote=False)
