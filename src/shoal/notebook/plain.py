"""A card as text, for consoles and for front ends that show no HTML."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.model.quantities import count, show_seconds
from shoal.notebook.card import Area, Card, Row

BAR, SPARKS = 30, 40
_BLOCKS = "▁▂▃▄▅▆▇█"
_LONGEST_NAME = 32
_CONTROL = dict.fromkeys((*range(32), *range(127, 160)), "\ufffd")
"""Names are shown, never obeyed: a terminal would take some of these as orders."""


def text_of(card: Card) -> str:
    """Several lines, the last without an end."""
    head = " · ".join([card.title, card.state, *card.facts])
    lines = [head]
    if card.states:
        lines.append(f"[{_bar(card)}] {states_line(card)}" if card.total else states_line(card))
    if card.time:
        lines.append(card.time)
    if card.area is not None:
        lines.append(f"{_sparks(card.area)} {card.area.used}")
    if card.rows:
        lines += _table(card)
    for failure in card.failures:
        some = f" ({', '.join(failure.examples)})" if failure.examples else ""
        lines.append(f"{failure.attempts:,} x {failure.text}{some}")
    if card.more_failures:
        lines.append(f"and {count(card.more_failures, 'other cause')} of failure")
    if card.note:
        lines.append(card.note)
    return "\n".join(line.translate(_CONTROL) for line in lines)


def states_line(card: Card) -> str:
    """`7 of 9 tasks done, 1 failed, 1 running`."""
    others = [f"{state.count:,} {state.word}" for state in card.states if state.count and state.word != "done"]
    return ", ".join([done_text(card), *others])


def done_text(card: Card) -> str:
    """`7 of 9 tasks done`, or `7 tasks done` where nobody knows how many there will be."""
    if not card.total:
        return f"{count(card.count('done'), card.noun)} done"
    return f"{card.count('done'):,} of {count(card.total, card.noun)} done"


def _bar(card: Card) -> str:
    marks = {"good": "#", "bad": "x", "live": ">"}
    found = ""
    for state in card.states:
        if state.tone in marks:
            found += marks[state.tone] * round(BAR * state.count / card.total)
    return found[:BAR].ljust(BAR, ".")


def _sparks(area: Area) -> str:
    """The sum of the series against what was there, in as many characters as fit."""
    totals = [sum(row[at] for row in (*area.series, area.lost)) for at in range(len(area.limit))]
    top = max(*totals, *area.limit, 1e-9)
    size = min(SPARKS, len(totals))
    found = ""
    for place in range(size):
        some = totals[place * len(totals) // size : (place + 1) * len(totals) // size]
        found += _BLOCKS[min(7, int(8 * sum(some) / len(some) / top))]
    return found


def more_rows(card: Card) -> str:
    """`3 more categories`."""
    number, _, noun = count(card.more_rows, card.group).partition(" ")
    return f"{number} more {noun}"


def _table(card: Card) -> list[str]:
    head = [card.group, "done", "failed", "running", "mean", "longest"]
    size = len(head) if card.timed else len(head) - 2
    lines = _aligned([cells[:size] for cells in (head, *map(_cells, card.rows))])
    if card.more_rows:
        lines.append(f"and {more_rows(card)}")
    return lines


def _cells(row: Row) -> list[str]:
    name = row.name if len(row.name) <= _LONGEST_NAME else f"{row.name[: _LONGEST_NAME - 1]}…"
    times = ["-" if value is None else show_seconds(value) for value in (row.mean, row.longest)]
    return [name, f"{row.done:,} of {row.total:,}", f"{row.failed:,}", f"{row.running:,}", *times]


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """The first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = []
    for first, *others in table:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]))
    return lines
