"""`shoal status --throttle --plot`: how many tasks of each category might run over time, their use and their rate.

One panel for each category (and node). Each of the three curves has its own scale, which the legend tells: what counts
is how they move together. What is in the ledger is drawn; what follows from it is left to the reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from shoal.cli.text import clip, show_seconds
from shoal.ledger.records import ThrottleDecided

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
    height = _HEAD + max(1, len(panels)) * HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_LEFT}" y="24" font-size="15">{escape(title)}</text>',
    ]
    if not panels:
        parts.append(f'<text x="{_LEFT}" y="{_HEAD + 20}">no throttle has decided anything</text>')
    begin = min((record.time for record in records), default=0.0)
    end = max((record.time for record in records), default=1.0)
    for number, ((node, category), rows) in enumerate(panels.items()):
        name = " on ".join(part for part in (category or "all categories", node) if part)
        parts += _panel(name, rows, begin, max(end, begin + 1.0), _HEAD + number * HEIGHT)
    return "\n".join([*parts, "</svg>\n"])


def _panel(name: str, rows: Sequence[ThrottleDecided], begin: float, end: float, top: int) -> list[str]:
    width, height = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
    base = top + _TOP + height
    most = max(1, *(row.cap for row in rows), *(row.running for row in rows))
    fastest = max(row.rate for row in rows)
    dominant = next((row.dominant for row in reversed(rows) if row.dominant), "")
    curves = [
        (_CAP, f"may run, up to {most:,}", [max(0, row.cap) / most for row in rows]),
        (_RATE, f"tasks per second, up to {fastest:.3g}", [row.rate / max(fastest, 1e-9) for row in rows]),
    ]
    if dominant:
        curves.append((_USE, f"use of {dominant}, up to 100 %", [min(1.0, row.use) for row in rows]))
    parts = [
        f'<text x="{_LEFT}" y="{top + 16}" font-size="13">{escape(clip(name, 60))}</text>',
        f'<rect x="{_LEFT}" y="{top + _TOP}" width="{width}" height="{height}" fill="none" stroke="#ddd"/>',
        f'<text x="{_LEFT}" y="{base + 18}">0 s</text>',
        f'<text x="{_LEFT + width}" y="{base + 18}" text-anchor="end">{show_seconds(end - begin)}</text>',
    ]
    for at, (colour, label, values) in enumerate(curves):
        x = _LEFT + 230 * at
        parts.append(f'<rect x="{x}" y="{top + 23}" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 17}" y="{top + 33}">{escape(label)}</text>')
        points = []
        for number, (row, value) in enumerate(zip(rows, values, strict=True)):
            here = _LEFT + width * (row.time - begin) / (end - begin)
            after = rows[number + 1].time if number + 1 < len(rows) else end
            there = _LEFT + width * (after - begin) / (end - begin)
            points.append(f"{here:.1f},{base - height * value:.1f} {there:.1f},{base - height * value:.1f}")
        parts.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
    return parts
