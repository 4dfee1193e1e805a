"""`shoal status --throttle --plot`: how many tasks of each category might run over time, their use and their rate.

One panel for each category (and node). Each of the three curves has its own scale, which the legend tells: what counts
is how they move together. What is in the ledger is drawn; what follows from it is left to the reader.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.cli.text import clip
from shoal.ledger.records import ThrottleDecided
from shoal.model.quantities import show_number, show_seconds
from shoal.model.svg import Axis, document, key, polyline, rectangle, text

WIDTH, HEIGHT = 760, 210
"""Of one panel, the title included."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 24, 24, 40, 34
_HEAD = 40
_CAP, _USE, _RATE = "#1f5f99", "#d43f3a", "#3a9d4b"


def draw_throttle(records: Sequence[ThrottleDecided], title: str) -> str:
    """The whole file."""
    panels: dict[tuple[str, str], list[ThrottleDecided]] = {}
    for record in records:
        panels.setdefault((record.node, record.category), []).append(record)
    parts = [] if panels else [text(_LEFT, _HEAD + 20, "no throttle has decided anything")]
    begin = min((record.time for record in records), default=0.0)
    end = max((record.time for record in records), default=1.0)
    for number, ((node, category), rows) in enumerate(panels.items()):
        name = " on ".join(part for part in (category or "all categories", node) if part)
        parts += _panel(name, rows, begin, max(end, begin + 1.0), _HEAD + number * HEIGHT)
    return document(WIDTH, _HEAD + max(1, len(panels)) * HEIGHT, (_LEFT, 24), title, parts)


def _panel(name: str, rows: Sequence[ThrottleDecided], begin: float, end: float, top: int) -> list[str]:
    base = top + HEIGHT - _BOTTOM
    across, up = Axis(begin, end, _LEFT, WIDTH - _RIGHT), Axis(0.0, 1.0, base, top + _TOP)
    most = max(1, *(row.cap for row in rows), *(row.running for row in rows))
    fastest = max(row.rate for row in rows)
    dominant = next((row.dominant for row in reversed(rows) if row.dominant), "")
    curves = [
        (_CAP, f"may run, up to {most:,}", [max(0, row.cap) / most for row in rows]),
        (_RATE, f"tasks per second, up to {show_number(fastest)}", [row.rate / max(fastest, 1e-9) for row in rows]),
    ]
    if dominant:
        curves.append((_USE, f"use of {dominant}, up to 100 %", [min(1.0, row.use) for row in rows]))
    parts = [
        text(_LEFT, top + 16, clip(name, 60), font_size=13),
        rectangle(_LEFT, up.end, across.end - _LEFT, base - up.end, "none", "#ddd"),
        text(_LEFT, base + 18, "0 s"),
        text(across.end, base + 18, show_seconds(end - begin), text_anchor="end"),
    ]
    times = [across.at(row.time) for row in rows] + [across.end]
    for at, (colour, label, values) in enumerate(curves):
        parts += key(_LEFT + 230 * at, top + 23, colour, label)
        steps = [(x, up.at(value)) for number, value in enumerate(values) for x in times[number : number + 2]]
        parts.append(polyline(steps, colour))
    return parts
