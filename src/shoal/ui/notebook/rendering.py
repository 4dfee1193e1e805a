"""Renders cards as self-contained HTML (no script, no external address) and as plain text.

Every string of a run passes through `escape`. The information is in text and tables; bars and drawings only repeat it.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from shoal.core.quantities import count, show_progress, show_seconds, show_share
from shoal.core.svg import element
from shoal.ui.notebook.card import MOST_COLOURS, Area, Card, CardFailure, CardRow, CardState, Tone

_LIGHT = """--sh-ground:var(--jp-layout-color0,#fff);--sh-ink:var(--jp-content-font-color0,#1d2733);
--sh-soft:#5b6876;--sh-line:#dfe4ea;--sh-wash:#f4f6f8;--sh-idle:#e3e8ed;
--sh-good:#2f8f4e;--sh-bad:#c8372d;--sh-live:#1f5f99;--sh-on:#fff;color-scheme:light"""
_DARK = """--sh-ground:var(--jp-layout-color0,#12171d);--sh-ink:var(--jp-content-font-color0,#e4e9ee);
--sh-soft:#9aa7b4;--sh-line:#36414d;--sh-wash:#222b34;--sh-idle:#333e49;
--sh-good:#58bb78;--sh-bad:#f0705f;--sh-live:#6fb1ea;--sh-on:#12171d;color-scheme:dark"""
_LIGHT_PLACES = ('[data-jp-theme-light="true"] .shoal', ".vscode-light .shoal", '[data-theme="light"] .shoal')
_DARK_PLACES = (
    *('[data-jp-theme-light="false"] .shoal', ".vscode-dark .shoal", '[data-theme="dark"] .shoal'),
    '[theme="dark"] .shoal',
)
_RULES = """
.shoal{container-type:inline-size;box-sizing:border-box;max-width:880px;margin:2px 0;padding:14px 18px 12px;
background:var(--sh-ground);color:var(--sh-ink);border:1px solid var(--sh-line);border-radius:10px;
font:13px/1.45 var(--jp-ui-font-family,system-ui,-apple-system,"Segoe UI","Noto Sans","Liberation Sans",sans-serif)}
.shoal.shoal-one{padding:5px 12px;width:fit-content;max-width:100%;container-type:normal;overflow-wrap:anywhere}
.shoal *{box-sizing:border-box}
.shoal .shoal-sep{display:none}
.shoal .shoal-head{display:flex;flex-wrap:wrap;align-items:baseline;gap:2px 10px;margin:0 0 10px}
.shoal .shoal-title{font-size:17px;font-weight:650;overflow-wrap:anywhere}
.shoal .shoal-chip{font-size:12px;font-weight:650;padding:1px 9px;border-radius:10px;color:var(--sh-on);
background:var(--sh-soft)}
.shoal .shoal-chip.good{background:var(--sh-good)}
.shoal .shoal-chip.bad{background:var(--sh-bad)}
.shoal .shoal-chip.live{background:var(--sh-live)}
.shoal .shoal-facts{margin-left:auto;color:var(--sh-soft);overflow-wrap:anywhere}
.shoal .shoal-bar{display:flex;height:12px;border-radius:6px;overflow:hidden;background:var(--sh-idle);
margin:0 0 7px}
.shoal .shoal-bar i{display:block;height:100%}
.shoal .shoal-bar .good{background:var(--sh-good)}
.shoal .shoal-bar .bad{background:var(--sh-bad)}
.shoal .shoal-bar .live{background:repeating-linear-gradient(135deg,var(--sh-live) 0 6px,color-mix(in srgb,
var(--sh-live) 62%,var(--sh-ground)) 6px 12px)}
.shoal .shoal-line{display:flex;flex-wrap:wrap;gap:1px 14px;font-variant-numeric:tabular-nums}
.shoal .shoal-line b{font-weight:650}
.shoal .shoal-line .push{margin-left:auto;color:var(--sh-soft)}
.shoal .shoal-dot{display:inline-block;width:9px;height:9px;border-radius:50%;margin-right:5px;
background:var(--sh-idle)}
.shoal .shoal-dot.good{background:var(--sh-good)}
.shoal .shoal-dot.bad{background:var(--sh-bad)}
.shoal .shoal-dot.live{background:var(--sh-live)}
.shoal .shoal-dot.idle{box-shadow:inset 0 0 0 1px var(--sh-soft)}
.shoal .shoal-part{margin:14px 0 0}
.shoal .shoal-part>.shoal-line{margin-bottom:4px}
.shoal .shoal-name{font-weight:650}
.shoal svg.shoal-area{display:block;width:100%;height:84px;max-width:none;background:var(--sh-wash);
border-bottom:1px solid var(--sh-soft)}
.shoal .shoal-limit{stroke:var(--sh-ink);opacity:.65}
.shoal .shoal-lost{fill:var(--sh-bad)}
.shoal .shoal-axis{display:flex;justify-content:space-between;font-size:12px;color:var(--sh-soft);margin:1px 0 2px}
.shoal .shoal-soft{color:var(--sh-soft)}
.shoal .shoal-key{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:6px}
.shoal .shoal-key.lost{background:var(--sh-bad)}
.shoal .shoal-scroll{overflow-x:auto}
.shoal table.shoal-table.shoal-table{width:100%;margin:0;border-collapse:collapse;border:0;font-size:13px;
table-layout:auto;font-variant-numeric:tabular-nums;color:inherit;background:none}
.shoal .shoal-table.shoal-table tr:nth-child(n){background:none}
.shoal .shoal-table.shoal-table tr th,.shoal .shoal-table.shoal-table tr td{padding:4px 0 4px 14px;border:0;
border-bottom:1px solid var(--sh-line);text-align:right;white-space:nowrap;font-weight:400;color:inherit;
background:none;vertical-align:middle;max-width:none}
.shoal .shoal-table.shoal-table thead th{color:var(--sh-soft)}
.shoal .shoal-table.shoal-table tbody tr:last-child th,.shoal .shoal-table.shoal-table tbody tr:last-child td{
border-bottom:0}
.shoal .shoal-table.shoal-table tr th:first-child{text-align:left;padding-left:0;white-space:normal;
overflow-wrap:anywhere;min-width:90px}
.shoal .shoal-table.shoal-table .bad{color:var(--sh-bad);font-weight:650}
.shoal .shoal-table.shoal-table td.shoal-text{text-align:left;padding-left:0;width:100%;white-space:normal;
overflow-wrap:anywhere}
.shoal .shoal-table.shoal-table td.shoal-meter{width:18%;min-width:60px}
.shoal .shoal-meter span{display:flex;height:8px;border-radius:4px;overflow:hidden;background:var(--sh-idle)}
.shoal .shoal-meter i{display:block;height:100%}
.shoal .shoal-meter .good{background:var(--sh-good)}
.shoal .shoal-meter .bad{background:var(--sh-bad)}
.shoal .shoal-meter .live{background:var(--sh-live)}
@container (max-width:560px){
.shoal .shoal-facts,.shoal .shoal-line .push{margin-left:0;width:100%}
.shoal .shoal-table.shoal-table tr .shoal-wide{display:none}
.shoal .shoal-table.shoal-table tr th,.shoal .shoal-table.shoal-table tr td{padding-left:10px}
.shoal .shoal-table.shoal-table tr th:first-child,.shoal .shoal-table.shoal-table td.shoal-text{padding-left:0}}
"""
SHEET = (
    f".shoal{{{_LIGHT}}}@media (prefers-color-scheme:dark){{.shoal{{{_DARK}}}}}"
    f"{','.join(_LIGHT_PLACES)}{{{_LIGHT}}}{','.join(_DARK_PLACES)}{{{_DARK}}}{_RULES}"
).replace("\n", "")


WIDTH, HEIGHT = 480, 80
HEADROOM = 4
"""Space above the highest point, so that a line there is fully visible."""
COLOURS = (
    *("#3b76af", "#ef8536", "#519e3e", "#8d69b8", "#45a5a8", "#d6b019"),
    *("#c5689b", "#8f6353", "#6d8fd1", "#9aab3c", "#b3867a", "#8a929c"),
)
"""The colours of the live page and of reports."""
BAD, LIMIT = "#c8372d", "#5b6876"


def colour_of(place: int) -> str:
    """The colour of a category; those beyond the last colour share it."""
    return COLOURS[min(place, MOST_COLOURS - 1)]


def area_svg(area: Area, label: str) -> str:
    """A stacked step area with a dashed line for the available cores; screen readers read `label` instead of the
    drawing."""
    size = len(area.limit)
    if not size:
        return ""
    layers = [("shoal-lost", BAD, area.lost)]
    for place, row in reversed(list(zip(area.colours, area.series, strict=True))):
        layers.append((f"shoal-c{place}", colour_of(place), row))
    heights = [sum(layer[2][at] for layer in layers) for at in range(size)]
    top = max(*heights, *area.limit, 1e-9)
    shapes = []
    # From the highest to the lowest: each is drawn from the base line, and the next one covers its lower part.
    for name, colour, row in layers:
        if any(row):
            shapes.append(element("path", class_=name, fill=colour, d=_filled(heights, top)))
        heights = [height - value for height, value in zip(heights, row, strict=True)]
    limit = _line(area.limit, top)
    dashes = {"stroke_dasharray": "5 4", "vector_effect": "non-scaling-stroke"}
    shapes.append(element("path", class_="shoal-limit", fill="none", stroke=LIMIT, d=limit, **dashes))
    shown = {"viewBox": f"0 0 {WIDTH} {HEIGHT}", "width": "100%", "preserveAspectRatio": "none"}
    return element("svg", "".join(shapes), class_="shoal-area", role="img", aria_label=label, height=HEIGHT, **shown)


def _filled(values: Sequence[float], top: float) -> str:
    """A closed path from the base line along the values and back."""
    return f"M0 {HEIGHT}{_steps(HEIGHT, _heights(values, top))}V{HEIGHT}z"


def _line(values: Sequence[float], top: float) -> str:
    heights = _heights(values, top)
    return f"M0 {heights[0]}{_steps(heights[0], heights)}"


def _heights(values: Sequence[float], top: float) -> list[int]:
    """Heights in whole pixels from the top, which is precise enough."""
    return [HEIGHT - round(max(0.0, value) / top * (HEIGHT - HEADROOM)) for value in values]


def _steps(at: int, heights: Sequence[int]) -> str:
    found, done, size = [], 0, len(heights)
    for number, height in enumerate(heights):
        if height != at:
            found.append(f"V{height}")
        last = number + 1 == size or heights[number + 1] != height
        if last:  # merges steps of equal height
            edge = round((number + 1) / size * WIDTH)
            found.append(f"h{edge - done}")
            done = edge
        at = height
    return "".join(found)


BAR, SPARKS = 30, 40
_BLOCKS = "▁▂▃▄▅▆▇█"
_LONGEST_NAME = 32
_CONTROL = dict.fromkeys((*range(32), *range(127, 160)), "\ufffd")
"""Control characters in names are replaced, because a terminal would interpret some of them."""


def text_of(card: Card) -> str:
    """Several lines, without a line break at the end."""
    head = " · ".join([card.title, card.state, *card.facts])
    lines = [head]
    if card.states:
        lines.append(f"[{_plain_bar(card)}] {states_line(card)}" if card.total else states_line(card))
    if card.time:
        lines.append(card.time)
    if card.area is not None:
        lines.append(f"{_sparks(card.area)} {card.area.used}")
    if card.rows:
        lines += _plain_table(card)
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
    """`7 of 9 tasks done`, or `7 tasks done` if the total is unknown."""
    if not card.total:
        return f"{count(card.count('done'), card.noun)} done"
    return f"{card.count('done'):,} of {count(card.total, card.noun)} done"


def _plain_bar(card: Card) -> str:
    marks = {"good": "#", "bad": "x", "live": ">"}
    found = ""
    for state in card.states:
        if state.tone in marks:
            found += marks[state.tone] * round(BAR * state.count / card.total)
    return found[:BAR].ljust(BAR, ".")


def _sparks(area: Area) -> str:
    """The sum of the series relative to the available cores, in a limited number of characters."""
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


def _plain_table(card: Card) -> list[str]:
    head = [card.group, "done", "failed", "running", "mean", "longest"]
    size = len(head) if card.timed else len(head) - 2
    lines = _aligned([cells[:size] for cells in (head, *map(_cells, card.rows))])
    if card.more_rows:
        lines.append(f"and {more_rows(card)}")
    return lines


def _cells(row: CardRow) -> list[str]:
    name = row.name if len(row.name) <= _LONGEST_NAME else f"{row.name[: _LONGEST_NAME - 1]}…"
    times = ["-" if value is None else show_seconds(value) for value in (row.mean, row.longest)]
    return [name, f"{row.done:,} of {row.total:,}", f"{row.failed:,}", f"{row.running:,}", *times]


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """Aligns the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = []
    for first, *others in table:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]))
    return lines


_LONGEST_TEXT = 300
_COMMA = '<span class="shoal-sep">, </span>'
"""A separator that is visible only without the style sheet."""


def html_of(card: Card) -> str:
    """One element with the whole card."""
    parts = [_head(card)]
    if card.states:
        parts.append((_bar(card) if card.total else "") + _states(card))
    if card.area is not None:
        parts.append(_area(card.area))
    if card.rows:
        parts.append(_table(card))
    if card.failures:
        parts.append(_failures(card))
    if card.note:
        parts.append(f'<div class="shoal-part shoal-soft">{_text(card.note)}</div>')
    return f'<div class="shoal"><style>{SHEET}</style>{"".join(parts)}</div>'


_TONES: dict[str, Tone] = {"done": "good", "failed": "bad", "not run": "bad", "running": "live"}


def line_of(name: str, state: str, message: str) -> str:
    """One future: its function, its state and its error message."""
    tone = _TONES.get(state, "soft")
    return (
        f'<div class="shoal shoal-one"><style>{SHEET}</style><strong>{_text(name)}</strong> '
        f'<span class="shoal-chip {tone}">{escape(state)}</span> <span class="shoal-soft">{_text(message)}</span></div>'
    )


def _text(text: str) -> str:
    """Truncates and escapes a text, and removes control characters."""
    cut = text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 1]}…"
    return escape("".join(character if character.isprintable() else " " for character in cut))


def _head(card: Card) -> str:
    facts = f'<span class="shoal-facts">{_text(" · ".join(card.facts))}</span>' if card.facts else ""
    return (
        f'<div class="shoal-head"><strong class="shoal-title">{_text(card.title)}</strong> '
        f'<span class="shoal-chip {card.tone}">{_text(card.state)}</span> {facts}</div>'
    )


def _bar(card: Card) -> str:
    pieces = "".join(_piece(state, card.total) for state in card.states if state.count and state.tone != "idle")
    return (
        f'<div class="shoal-bar" role="progressbar" aria-valuemin="0" aria-valuemax="{card.total}"'
        f' aria-valuenow="{card.part()}" aria-label="{escape(states_line(card))}">{pieces}</div>'
    )


def _states(card: Card) -> str:
    share = f"<b>{escape(show_progress(card.part(), card.total))}</b> · " if card.total else ""
    others = "".join(_counted(state) for state in card.states if state.count and state.word != "done")
    return (
        f'<div class="shoal-line"><span>{share}{done_text(card)}</span>{others}{_COMMA}'
        f'<span class="push">{escape(card.time)}</span></div>'
    )


def _piece(state: CardState, total: int) -> str:
    return f'<i class="{state.tone}" style="width:{100 * state.count / total:.2f}%"></i>'


def _counted(state: CardState) -> str:
    return f'{_COMMA}<span><i class="shoal-dot {state.tone}"></i>{state.count:,} {escape(state.word)}</span>'


def _area(area: Area) -> str:
    keys = [
        f"<span>{_key(place)}{_text(name)}</span>"
        for name, row, place in zip(area.names, area.series, area.colours, strict=True)
        if any(row)
    ]
    if any(area.lost):
        keys.append('<span><i class="shoal-key lost"></i>attempts that failed</span>')
    return (
        '<div class="shoal-part"><div class="shoal-line"><span class="shoal-name">Cores over time</span>'
        f'{_COMMA}<span class="push">{escape(area.used)}</span></div>{area_svg(area, f"Cores over time: {area.used}")}'
        f'<div class="shoal-axis"><span>0</span> <span>{escape(show_seconds(area.end))}</span></div>'
        f'<div class="shoal-line shoal-soft">{_COMMA.join(keys)}</div></div>'
    )


def _key(place: int) -> str:
    return f'<i class="shoal-key" style="background:{colour_of(place)}"></i>'


def _table(card: Card) -> str:
    heads = [(card.group, ""), ("", "shoal-wide"), ("done", ""), ("failed", ""), ("running", "shoal-wide")]
    if card.timed:
        heads += [("mean", ""), ("longest", "shoal-wide"), ("core time", "shoal-wide")]
    columns = "".join(f'<th scope="col" class="{kind}">{escape(word)}</th>' for word, kind in heads)
    whole = sum(row.seconds or 0.0 for row in card.rows)
    rows = "".join(f"<tr>{_row(row)}{_times(row, whole) if card.timed else ''}</tr>" for row in card.rows)
    more = f'<div class="shoal-soft">and {more_rows(card)}</div>' if card.more_rows else ""
    return (
        f'<div class="shoal-part shoal-scroll"><table class="shoal-table"><thead><tr>{columns}</tr></thead>'
        f"<tbody>{rows}</tbody></table>{more}</div>"
    )


def _row(row: CardRow) -> str:
    states: tuple[CardState, ...] = (
        CardState("done", row.done, "good"),
        CardState("failed", row.failed, "bad"),
        CardState("running", row.running, "live"),
    )
    meter = "".join(_piece(state, max(1, row.total)) for state in states if state.count)
    failed = f'<td class="bad">{row.failed:,}</td>' if row.failed else "<td>0</td>"
    return (
        f'<th scope="row">{_key(row.colour)}{_text(row.name)}</th>'
        f'<td class="shoal-meter shoal-wide"><span>{meter}</span></td><td>{row.done:,} of {row.total:,}</td>{failed}'
        f'<td class="shoal-wide">{row.running:,}</td>'
    )


def _times(row: CardRow, whole: float) -> str:
    mean, longest = ("-" if value is None else escape(show_seconds(value)) for value in (row.mean, row.longest))
    share = f'<span class="shoal-soft">{escape(show_share(row.seconds or 0.0, whole))}</span>'
    took = f"{escape(show_seconds(row.seconds))} {share}" if row.seconds else "-"
    return f'<td>{mean}</td><td class="shoal-wide">{longest}</td><td class="shoal-wide">{took}</td>'


def _failures(card: Card) -> str:
    rows = "".join(map(_failure, card.failures))
    more = ""
    if card.more_failures:
        more = f'<div class="shoal-soft">and {count(card.more_failures, "other cause")}</div>'
    return (
        '<div class="shoal-part shoal-scroll"><div class="shoal-name">Failures by cause</div>'
        f'<table class="shoal-table"><tbody>{rows}</tbody></table>{more}</div>'
    )


def _failure(failure: CardFailure) -> str:
    some = f'<br><span class="shoal-soft">{_text(", ".join(failure.examples))}</span>' if failure.examples else ""
    kept = f"{failure.given_up:,} for good" if failure.given_up else "tried again"
    return (
        f'<tr><td class="shoal-text">{_text(failure.text)}{some}</td>'
        f'<td><span class="bad">{count(failure.attempts, "attempt")}</span>, {kept}</td></tr>'
    )
