"""A card as HTML that needs nothing else: no script, no address, nothing that a name in it could become.

Every word of a run passes through `escape`. What matters is said in text and tables; bars and drawings repeat it.
"""

from __future__ import annotations

from html import escape

from shoal.model.quantities import count, show_progress, show_seconds, show_share
from shoal.notebook.card import Area, Card, Failure, Row, State, Tone
from shoal.notebook.plain import done_text, more_rows, states_line
from shoal.notebook.style import SHEET
from shoal.notebook.svg import area_svg, colour_of

_LONGEST_TEXT = 300
_COMMA = '<span class="shoal-sep">, </span>'
"""Seen where there is no style sheet that would set things apart."""


def html_of(card: Card) -> str:
    """One element with everything in it."""
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


def line_of(name: str, state: str, said: str) -> str:
    """One future: its function, its state and what it failed with."""
    tone = _TONES.get(state, "soft")
    return (
        f'<div class="shoal shoal-one"><style>{SHEET}</style><strong>{_text(name)}</strong> '
        f'<span class="shoal-chip {tone}">{escape(state)}</span> <span class="shoal-soft">{_text(said)}</span></div>'
    )


def _text(text: str) -> str:
    """Cut to what can be read, and harmless; what a drawing of text would obey is left out."""
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


def _piece(state: State, total: int) -> str:
    return f'<i class="{state.tone}" style="width:{100 * state.count / total:.2f}%"></i>'


def _counted(state: State) -> str:
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


def _row(row: Row) -> str:
    states: tuple[State, ...] = (
        State("done", row.done, "good"),
        State("failed", row.failed, "bad"),
        State("running", row.running, "live"),
    )
    meter = "".join(_piece(state, max(1, row.total)) for state in states if state.count)
    failed = f'<td class="bad">{row.failed:,}</td>' if row.failed else "<td>0</td>"
    return (
        f'<th scope="row">{_key(row.colour)}{_text(row.name)}</th>'
        f'<td class="shoal-meter shoal-wide"><span>{meter}</span></td><td>{row.done:,} of {row.total:,}</td>{failed}'
        f'<td class="shoal-wide">{row.running:,}</td>'
    )


def _times(row: Row, whole: float) -> str:
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


def _failure(failure: Failure) -> str:
    some = f'<br><span class="shoal-soft">{_text(", ".join(failure.examples))}</span>' if failure.examples else ""
    kept = f"{failure.given_up:,} for good" if failure.given_up else "tried again"
    return (
        f'<tr><td class="shoal-text">{_text(failure.text)}{some}</td>'
        f'<td><span class="bad">{count(failure.attempts, "attempt")}</span>, {kept}</td></tr>'
    )
