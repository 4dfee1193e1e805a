"""The drawings of `shoal status --plot`: memory allocated and used by attempts, and throttle decisions over time.

Memory: attempts are in the order in which they ended. The light area is the allocated memory and the dark area in front
of it the used memory, so the visible light area is waste; attempts killed for exceeding their allocation are red. The
tables of `shoal status` are in `status_tables`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shoal.core.quantities import count, show_bytes, show_number, show_seconds, show_share
from shoal.core.svg import Axis, document, horizontals, key, polyline, rectangle, text
from shoal.ledger.file import LedgerReader
from shoal.ledger.records import RunStarted, TaskEnded, TasksPlanned, ThrottleDecided, decode
from shoal.ledger.status import exceeded_memory
from shoal.ledger.workspace import Workspace
from shoal.ui.cli.text import clip

WIDTH, HEIGHT = 760, 210
"""Size of one panel including the title."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 24, 40, 34
_HEAD = 64
_LINES = 4
MOST_COLUMNS = 400
"""Maximum number of columns; with more attempts, several share a column."""
_GIVEN, _USED, _OVER, _NONE = "#a9cdee", "#1f5f99", "#d43f3a", "#8a8a8a"


class PlottedAttempt(NamedTuple):
    """One attempt: bytes of memory allocated (0: no limit) and used, duration, and whether it exceeded its memory."""

    given: int
    used: int
    seconds: float
    exhausted: bool = False


def read_attempts(workspace: Workspace) -> dict[str, list[PlottedAttempt]]:
    """Attempts of the latest run in the ledger, by category, in the order in which they ended."""
    names: dict[int, str] = {}
    found: dict[str, list[PlottedAttempt]] = {}
    for payload in LedgerReader(workspace.ledger).payloads():
        record = decode(payload)
        if isinstance(record, RunStarted):
            names, found = {}, {}
        elif isinstance(record, TasksPlanned):
            names.update(zip(record.first, record.categories, strict=True))
        elif isinstance(record, TaskEnded) and record.ended > record.started:
            used = max(record.max_rss, record.usage.tree_memory)
            attempt = PlottedAttempt(record.memory_limit, used, record.ended - record.started, exceeded_memory(record))
            found.setdefault(names.get(record.task, "unknown"), []).append(attempt)
    return dict(sorted(found.items()))


def draw(attempts: Mapping[str, Sequence[PlottedAttempt]], title: str) -> str:
    """Returns the SVG file with one panel per category."""
    parts = []
    labels = {_USED: "used", _GIVEN: "allocated, not used", _OVER: "killed over its limit", _NONE: "used, no limit"}
    for at, (colour, label) in enumerate(labels.items()):
        parts += key(_LEFT + 160 * at, 38, colour, label)
    for number, (category, rows) in enumerate(attempts.items()):
        parts += _panel(category, rows, _HEAD + number * HEIGHT)
    if not attempts:
        parts.append(text(_LEFT, _HEAD + 20, "no attempt has ended"))
    return document(WIDTH, _HEAD + max(1, len(attempts)) * HEIGHT, (_LEFT, 24), title, parts)


class _Column(NamedTuple):
    """Consecutive attempts: the means of their allocated and used memory."""

    given: float
    used: float
    exhausted: bool


def _columns(rows: Sequence[PlottedAttempt]) -> list[_Column]:
    per_column = -(-len(rows) // MOST_COLUMNS)
    columns = []
    for begin in range(0, len(rows), per_column):
        part = rows[begin : begin + per_column]
        given, used = (sum(values) / len(part) for values in zip(*((row.given, row.used) for row in part), strict=True))
        columns.append(_Column(given, used, any(row.exhausted for row in part)))
    return columns


def _panel(category: str, rows: Sequence[PlottedAttempt], top: int) -> list[str]:
    columns = _columns(rows)
    highest = _round_above(max(max(column.given, column.used) for column in columns))
    base = top + HEIGHT - _BOTTOM
    across, up = Axis(0.0, len(columns), _LEFT, WIDTH - _RIGHT), Axis(0.0, highest, base, top + _TOP)
    height, each = base - up.end, across.at(1) - across.begin
    parts = [text(_LEFT, top + 24, _caption(category, rows), font_size=13)]
    parts += horizontals(up, across, up.steps(_LINES), show_bytes)
    for at, column in enumerate(columns):
        x = _LEFT + at * each
        if column.given:
            colour = _OVER if column.exhausted else _GIVEN
            parts.append(_bar(x, each, base, height * column.given / highest, colour))
        used = column.used if not column.given else min(column.used, column.given)
        parts.append(_bar(x, each, base, height * used / highest, _USED if column.given else _NONE))
        if column.exhausted:
            parts.append(_bar(x, max(each, 2.0), base + 5, 4, _OVER))
    parts.append(text(_LEFT, base + 20, "first"))
    last = f"{count(len(rows), 'attempt')}, in order of completion"
    return [*parts, text(across.end, base + 20, last, text_anchor="end")]


def _bar(x: float, width: float, base: float, height: float, colour: str) -> str:
    # Slightly wider than its column, to leave no gap between neighbours.
    return rectangle(x, base - height, width + 0.2, height, colour)


def _caption(category: str, rows: Sequence[PlottedAttempt]) -> str:
    given = sum(row.given * row.seconds for row in rows)
    used = sum(min(row.used, row.given) * row.seconds for row in rows if not row.exhausted)
    retries = sum(row.exhausted for row in rows)
    waste = f", {show_share(given - used, given)} of the allocation was wasted" if given else ""
    return f"{clip(category, 40)}: {count(len(rows), 'attempt')}, {retries:,} killed over their limit{waste}"


def _round_above(value: float) -> float:
    """The next round size: a power of two, or 1.5 times one."""
    size = 1.0
    while size < value:
        size = size * 1.5 if size * 1.5 >= value else size * 2
    return size


THROTTLE_WIDTH, THROTTLE_HEIGHT = 760, 210
"""Size of one panel including the title."""
_THROTTLE_LEFT, _THROTTLE_RIGHT, _THROTTLE_TOP, _THROTTLE_BOTTOM = 24, 24, 40, 34
_THROTTLE_HEAD = 40
_CAP, _USE, _RATE = "#1f5f99", "#d43f3a", "#3a9d4b"


def draw_throttle(records: Sequence[ThrottleDecided], title: str) -> str:
    """Returns the SVG file with one panel per category and node."""
    panels: dict[tuple[str, str], list[ThrottleDecided]] = {}
    for record in records:
        panels.setdefault((record.node, record.category), []).append(record)
    parts = [] if panels else [text(_THROTTLE_LEFT, _THROTTLE_HEAD + 20, "there are no throttle decisions")]
    begin = min((record.time for record in records), default=0.0)
    end = max((record.time for record in records), default=1.0)
    for number, ((node, category), rows) in enumerate(panels.items()):
        name = " on ".join(part for part in (category or "all categories", node) if part)
        parts += _throttle_panel(name, rows, begin, max(end, begin + 1.0), _THROTTLE_HEAD + number * THROTTLE_HEIGHT)
    return document(
        THROTTLE_WIDTH, _THROTTLE_HEAD + max(1, len(panels)) * THROTTLE_HEIGHT, (_THROTTLE_LEFT, 24), title, parts
    )


def _throttle_panel(name: str, rows: Sequence[ThrottleDecided], begin: float, end: float, top: int) -> list[str]:
    base = top + THROTTLE_HEIGHT - _THROTTLE_BOTTOM
    across, up = (
        Axis(begin, end, _THROTTLE_LEFT, THROTTLE_WIDTH - _THROTTLE_RIGHT),
        Axis(0.0, 1.0, base, top + _THROTTLE_TOP),
    )
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
        text(_THROTTLE_LEFT, top + 16, clip(name, 60), font_size=13),
        rectangle(_THROTTLE_LEFT, up.end, across.end - _THROTTLE_LEFT, base - up.end, "none", "#ddd"),
        text(_THROTTLE_LEFT, base + 18, "0 s"),
        text(across.end, base + 18, show_seconds(end - begin), text_anchor="end"),
    ]
    times = [across.at(row.time) for row in rows] + [across.end]
    for at, (colour, label, values) in enumerate(curves):
        parts += key(_THROTTLE_LEFT + 230 * at, top + 23, colour, label)
        steps = [(x, up.at(value)) for number, value in enumerate(values) for x in times[number : number + 2]]
        parts.append(polyline(steps, colour))
    return parts
