"""`shoal status --categories --plot`: memory that attempts were given beside what they used, category by category.

Attempts stand in the order in which they ended. What was given is a light area, what was used a dark one before it, so
what is seen of the light one is waste; red are attempts that were ended because they used too much of it. Reading the
ledger and drawing are here; how the table beside it comes about is left to `tables`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shoal.cli.text import clip
from shoal.engine.costs import exceeded_memory
from shoal.engine.workspace import Workspace
from shoal.ledger.file import LedgerReader
from shoal.ledger.records import RunStarted, TaskEnded, TasksPlanned, decode
from shoal.model.quantities import count, show_bytes, show_share
from shoal.model.svg import Axis, document, horizontals, key, rectangle, text

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
    parts = []
    labels = {_USED: "used", _GIVEN: "given, not used", _OVER: "ended over its size", _NONE: "used, no size given"}
    for at, (colour, label) in enumerate(labels.items()):
        parts += key(_LEFT + 160 * at, 38, colour, label)
    for number, (category, rows) in enumerate(attempts.items()):
        parts += _panel(category, rows, _HEAD + number * HEIGHT)
    if not attempts:
        parts.append(text(_LEFT, _HEAD + 20, "no attempt has ended"))
    return document(WIDTH, _HEAD + max(1, len(attempts)) * HEIGHT, (_LEFT, 24), title, parts)


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
    last = f"{count(len(rows), 'attempt')}, in the order of their ends"
    return [*parts, text(across.end, base + 20, last, text_anchor="end")]


def _bar(x: float, width: float, base: float, height: float, colour: str) -> str:
    # A little wider than its share, or the paper shines through between two of them.
    return rectangle(x, base - height, width + 0.2, height, colour)


def _caption(category: str, rows: Sequence[Attempt]) -> str:
    given = sum(row.given * row.seconds for row in rows)
    used = sum(min(row.used, row.given) * row.seconds for row in rows if not row.exhausted)
    retries = sum(row.exhausted for row in rows)
    waste = f", {show_share(given - used, given)} of what they were given was of no use" if given else ""
    return f"{clip(category, 40)}: {count(len(rows), 'attempt')}, {retries:,} ended over their size{waste}"


def _round_above(value: float) -> float:
    """The next size that reads well: a power of two, or one and a half of one."""
    size = 1.0
    while size < value:
        size = size * 1.5 if size * 1.5 >= value else size * 2
    return size
