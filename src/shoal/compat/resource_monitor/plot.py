"""Plots a time series of the monitor as SVG: memory and cores over time, with the limits. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shoal.compat.resource_monitor import series
from shoal.core.quantities import show_number, show_seconds
from shoal.core.svg import Axis, Point, document, horizontals, line, polyline, round_number, text

_WIDTH, _HEIGHT = 720, 200
"""Size of one panel in pixels."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 30, 35
_LINES = 4


def draw(rows: Sequence[series.SeriesRow | series.PlotPoint], title: str, limits: dict[str, float]) -> str:
    """Returns the SVG file with one panel for memory and one for cores."""
    begun = rows[0].wall_clock if rows else 0.0
    panels: list[tuple[str, str, Callable[[series.SeriesRow | series.PlotPoint], float]]] = [
        ("memory", "memory (MB)", lambda row: row.memory),
        ("cores", "cores", lambda row: row.cores),
    ]
    parts = []
    for index, (name, label, value) in enumerate(panels):
        points = [(row.wall_clock - begun, value(row)) for row in rows]
        parts += _panel(points, label, limits.get(name), _TOP + index * _HEIGHT)
    return document(_WIDTH, len(panels) * _HEIGHT + _TOP, (_LEFT, 18), title, parts)


def _panel(points: list[Point], label: str, limit: float | None, top: int) -> list[str]:
    longest = max((at for at, _ in points), default=0.0) or 1.0
    highest = round_number(max([value for _, value in points] + ([limit] if limit is not None else []), default=0.0))
    base = top + _HEIGHT - _BOTTOM
    across, up = Axis(0.0, longest, _LEFT, _WIDTH - _RIGHT), Axis(0.0, highest, base, top + 15)
    parts = [text(_LEFT, top + 10, label), *horizontals(up, across, up.steps(_LINES), show_number)]
    parts += [text(across.at(at), base + 16, show_seconds(at), text_anchor="middle") for at in across.steps(_LINES)]
    if limit is not None:
        parts.append(line((across.begin, up.at(limit)), (across.end, up.at(limit)), "#c00", is_dashed=True))
    return [*parts, polyline([(across.at(at), up.at(value)) for at, value in points], "#06c")]
