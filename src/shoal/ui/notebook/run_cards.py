"""Cards of workflow runs, from the same model as the live page and the report (`shoal.ledger.views`)."""

from __future__ import annotations

import numpy as np

from shoal.core.quantities import count, show_bytes, show_cores, show_seconds, show_share, time_left
from shoal.ledger.views.attempts import Floats
from shoal.ledger.views.progress import Progress, progress
from shoal.ledger.views.run import RunView
from shoal.ledger.views.tables import FailureCause, category_rows, failure_causes, figures
from shoal.ledger.views.timeline import ShownCategories, shown_categories, spread, timeline
from shoal.ui.notebook.card import (
    MOST_CAUSES,
    MOST_COLOURS,
    MOST_ROWS,
    Area,
    Card,
    CardFailure,
    CardRow,
    CardState,
    Tone,
)

BUCKETS = 96
_TONES: dict[str, Tone] = {"running": "live", "starting": "live", "ok": "good", "never run": "idle", "reading": "idle"}
UNDERWAY = "under way"


def empty_card(title: str, state: str, note: str) -> Card:
    """The card of a workflow without a run to show."""
    return Card(title, state, _TONES.get(state, "bad"), [], "task", "category", note=note)


def run_card(view: RunView, title: str, outcome: str, now: float | None) -> Card:
    """The card at the time `now` for an active run; `now` is None for a finished one."""
    view.settle()
    totals = progress(view, now)
    shown = shown_categories(view)
    rows = _rows(view, shown, now)
    causes = failure_causes(view)
    return Card(
        title,
        outcome,
        _TONES.get(outcome, "bad"),
        _facts(view, totals),
        "task",
        "category",
        totals.to_run,
        _states(totals, going=now is not None),
        _time(totals, outcome),
        _area(view, shown, now),
        rows[:MOST_ROWS],
        max(0, len(rows) - MOST_ROWS),
        [_failure(cause) for cause in causes[:MOST_CAUSES]],
        max(0, len(causes) - MOST_CAUSES),
    )


def _facts(view: RunView, totals: Progress) -> list[str]:
    if view.is_cluster():
        where = count(len(view.nodes), "node")
    else:
        where = f"on {view.start.host}" if view.start is not None else ""
    cores, memory = view.total_cores(), view.total_memory()
    amounts = [show_cores(cores)] + ([show_bytes(memory)] if memory else [])
    rate = [f"{count(round(totals.rate), 'task')} a second"] if totals.rate >= 1 else []
    before = [f"{totals.up_to_date:,} up to date before"] if totals.up_to_date > 0 else []
    return [*amounts, *([where] if where else []), *rate, *before]


def _states(totals: Progress, *, going: bool) -> list[CardState]:
    """Tasks by state. In a finished run, tasks that are not done will not run."""
    running = [CardState("running", totals.running, "live")] if going else []
    cannot = [CardState("cannot run", totals.cannot_run, "idle")] if going and totals.cannot_run else []
    cancelled = [CardState("cancelled", totals.cancelled, "soft")] if totals.cancelled else []
    rest = totals.waiting if going else totals.not_run
    return [
        CardState("done", totals.done, "good"),
        CardState("failed", totals.failed, "bad"),
        *running,
        *cancelled,
        CardState("not started" if going else "not run", rest, "idle"),
        *cannot,
    ]


def _time(totals: Progress, outcome: str) -> str:
    if outcome != "running":
        return f"took {show_seconds(totals.elapsed)}"
    if totals.left is None:
        return f"{show_seconds(totals.elapsed)} so far"
    return time_left(totals.left, totals.least, totals.most)


def _area(view: RunView, shown: ShownCategories, now: float | None) -> Area | None:
    end = max(view.until(now) - view.origin, 1e-3)
    if not len(view.attempts) and not view.running_now():
        return None
    over_time = timeline(view, shown, None, until=now, window=(0.0, end), buckets=BUCKETS)
    totals = figures(view, over_time)
    series = np.maximum(0.0, over_time.cores - _lost(view, shown, over_time.edges))
    held = "used" if over_time.crowded else "in use"
    names, rows, colours = list(shown.names), [row.tolist() for row in series], list(range(len(shown.names)))
    if over_time.untold.any():  # cluster nodes report the tasks of these cores only when they have ended
        names, rows, colours = [*names, UNDERWAY], [*rows, over_time.untold.tolist()], [*colours, MOST_COLOURS - 1]
    return Area(
        end,
        names,
        rows,
        colours,
        over_time.capacity.tolist(),
        over_time.lost.tolist(),
        f"{show_share(totals.utilisation)} of {show_cores(totals.cores)} {held}",
    )


def _lost(view: RunView, shown: ShownCategories, edges: Floats) -> Floats:
    """Cores allocated to failed attempts, by shown category."""
    rows = view.attempts
    bad = np.flatnonzero(rows.outcome != 0)
    begins, ends = view.after(rows.started[bad]), view.after(rows.ended[bad])
    return spread(begins, ends, view.held()[bad], shown.place[rows.category[bad]], len(shown.names), edges)


def _rows(view: RunView, shown: ShownCategories, now: float | None) -> list[CardRow]:
    place = {name: int(shown.place[code]) for code, name in enumerate(view.categories)}
    codes = view.category_of(np.array(list(view.running) if view.is_in_progress(now) else [], np.int64))
    running = np.bincount(codes[codes >= 0], minlength=len(view.categories))
    of = {name: int(running[code]) for code, name in enumerate(view.categories)}
    return [
        CardRow(
            row.name,
            place[row.name],
            row.planned,
            row.done,
            row.failed,
            of[row.name],
            row.mean if row.done else None,
            row.longest if row.done else None,
            row.core_seconds,
        )
        for row in category_rows(view)
    ]


def _failure(cause: FailureCause) -> CardFailure:
    return CardFailure(
        cause.text, cause.attempts, cause.given_up, list(dict.fromkeys(name for name, _ in cause.examples))
    )
