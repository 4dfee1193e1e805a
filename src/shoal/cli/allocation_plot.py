"""`shoal status --categories --plot`: memory that attempts were given beside what they used, category by category.

Attempts stand in the order in which they ended. What was given is a light area, what was used a dark one before it, so
what is seen of the light one is waste; red are attempts that were ended because they used too much of it. Reading the
ledger and drawing are here; how the table beside it comes about is left to `tables`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from shoal.cli.text import clip, count
from shoal.engine.costs import exceeded_memory
from shoal.engine.workspace import Workspace
from shoal.ledger.file import LedgerReader
from shoal.ledger.records import RunStarted, TaskEnded, TasksPlanned, decode
from shoal.model.resources import show_bytes

WIDTH, HEIGHT = 760, 210
"""Of one panel, the title included."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 24, 40, 34
_HEAD = 64
_LINES = 4
MOST_COLUMNS = 400
"""More attempts than that share columns."""
_GIVEN, _USED, _OVER, _NONE = "#a9cdee", "#1f5f99", "#d43f3a", "#8a8a8a"


class Attempt(NamedTuple):
    """One attempt: bytes of memory that it was given (0: as much as it liked) and used, for how long, and its end."""

    given: int
    used: int
    seconds: float
    exhausted: bool = False


def read_attempts(workspace: Workspace) -> dict[str, list[Attempt]]:
    """The attempts of the last run in the ledger, by category, in the order in which they ended."""
    names: dict[int, str] = {}
    found: dict[str, list[Attempt]] = {}
    for payload in LedgerReader(workspace.ledger).payloads():
        record = decode(payload)
        if isinstance(record, RunStarted):
            names, found = {}, {}
        elif isinstance(record, TasksPlanned):
            names.update(zip(record.first, record.categories, strict=True))
        elif isinstance(record, TaskEnded) and record.ended > record.started:
            used = max(record.max_rss, record.usage.tree_memory)
            attempt = Attempt(record.memory_limit, used, record.ended - record.started, exceeded_memory(record))
            found.setdefault(names.get(record.task, "unknown"), []).append(attempt)
    return dict(sorted(found.items()))


def draw(attempts: Mapping[str, Sequence[Attempt]], title: str) -> str:
    """The whole file."""
    height = _HEAD + max(1, len(attempts)) * HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_LEFT}" y="24" font-size="15">{_escaped(title)}</text>',
        *_legend(),
    ]
    for number, (category, rows) in enumerate(attempts.items()):
        parts += _panel(category, rows, _HEAD + number * HEIGHT)
    if not attempts:
        parts.append(f'<text x="{_LEFT}" y="{_HEAD + 20}">no attempt has ended</text>')
    return "\n".join([*parts, "</svg>\n"])


def _legend() -> list[str]:
    parts = []
    for at, (colour, label) in enumerate(
        ((_USED, "used"), (_GIVEN, "given, not used"), (_OVER, "ended over its size"), (_NONE, "used, no size given"))
    ):
        x = _LEFT + 160 * at
        parts.append(f'<rect x="{x}" y="38" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 17}" y="48">{label}</text>')
    return parts


class _Column(NamedTuple):
    """Attempts that ended one after the other: the means of what they were given and used."""

    given: float
    used: float
    exhausted: bool


def _columns(rows: Sequence[Attempt]) -> list[_Column]:
    per_column = -(-len(rows) // MOST_COLUMNS)
    columns = []
    for begin in range(0, len(rows), per_column):
        part = rows[begin : begin + per_column]
        given, used = (sum(values) / len(part) for values in zip(*((row.given, row.used) for row in part), strict=True))
        columns.append(_Column(given, used, any(row.exhausted for row in part)))
    return columns


def _panel(category: str, rows: Sequence[Attempt], top: int) -> list[str]:
    columns = _columns(rows)
    highest = _round_above(max(max(column.given, column.used) for column in columns))
    width, height = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
    base, each = top + _TOP + height, width / len(columns)
    parts = [f'<text x="{_LEFT}" y="{top + 24}" font-size="13">{_escaped(_caption(category, rows))}</text>']
    for step in range(_LINES + 1):
        value = highest * step / _LINES
        y = base - height * step / _LINES
        parts.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_LEFT + width}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{show_bytes(value)}</text>')
    for at, column in enumerate(columns):
        x = _LEFT + at * each
        if column.given:
            colour = _OVER if column.exhausted else _GIVEN
            parts.append(_bar(x, each, base, height * column.given / highest, colour))
        used = column.used if not column.given else min(column.used, column.given)
        parts.append(_bar(x, each, base, height * used / highest, _USED if column.given else _NONE))
        if column.exhausted:
            parts.append(_bar(x, max(each, 2.0), base + 5, 4, _OVER))
    parts.append(f'<text x="{_LEFT}" y="{base + 20}">first</text>')
    last = f"{count(len(rows), 'attempt')}, in the order of their ends"
    parts.append(f'<text x="{_LEFT + width}" y="{base + 20}" text-anchor="end">{last}</text>')
    return parts


def _bar(x: float, width: float, base: float, height: float, colour: str) -> str:
    # A little wider than its share, or the paper shines through between two of them.
    return (
        f'<rect x="{x:.2f}" y="{base - height:.2f}" width="{width + 0.2:.2f}" height="{height:.2f}" fill="{colour}"/>'
    )


def _caption(category: str, rows: Sequence[Attempt]) -> str:
    given = sum(row.given * row.seconds for row in rows)
    used = sum(min(row.used, row.given) * row.seconds for row in rows if not row.exhausted)
    retries = sum(row.exhausted for row in rows)
    waste = f", {1 - used / given:.0%} of what they were given was of no use" if given else ""
    return f"{clip(category, 40)}: {count(len(rows), 'attempt')}, {retries:,} ended over their size{waste}"


def _round_above(value: float) -> float:
    """The next size that reads well: a power of two, or one and a half of one."""
    size = 1.0
    while size < value:
        size = size * 1.5 if size * 1.5 >= value else size * 2
    return size


def _escaped(text: str) -> str:
    return escape("".join(letter if letter.isprintable() else " " for letter in text), quote=False)
