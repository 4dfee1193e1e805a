"""What the throttle says of a run: in a few words, as a table over time, and as data."""

from __future__ import annotations

from typing import Any

from shoal.cli.tables import laid_out
from shoal.engine.follow import RunState
from shoal.ledger.records import ThrottleDecided
from shoal.model.quantities import show_rate, show_seconds, show_share

HEADS = ("TIME", "CATEGORY", "CAP", "RUNNING", "READY", "STATE", "RESOURCE", "USE", "RATE", "WHY")
ALL = "(all)"


def throttle_lines(state: RunState) -> list[str]:
    """How many of each category may run at this moment."""
    rows = [_line(state, record) for record in state.throttle]
    return ["throttle:", *rows] if rows else []


def _line(state: RunState, record: ThrottleDecided) -> str:
    if not record.category:
        return f"  {state.running_now():,} run, {_cap(record)} may ({record.state})"
    where = f" on {record.node}" if record.node else ""
    running = record.running if record.node else state.running_of(record.category)
    words = [f"  {record.category}{where}: {running:,} run, {_cap(record)} may ({record.state})"]
    if record.dominant:
        words.append(f"{record.dominant} {show_share(record.use)} in use")
    if record.rate:
        words.append(show_rate(record.rate))
    return ", ".join(words)


def _cap(record: ThrottleDecided) -> str:
    return "any number" if record.cap < 0 else f"{record.cap:,}"


def throttle_as_data(state: RunState) -> list[dict[str, Any]]:
    """What was said last of each category."""
    return [_as_data(record) for record in state.throttle]


def throttle_history(state: RunState) -> list[dict[str, Any]]:
    """All that was said, in the order of time."""
    return [_as_data(record) for record in state.throttle.decisions]


def _as_data(record: ThrottleDecided) -> dict[str, Any]:
    return {
        "time": record.time,
        "node": record.node or None,
        "category": record.category or None,
        "cap": None if record.cap < 0 else record.cap,
        "running": record.running,
        "waiting": record.waiting,
        "state": record.state,
        "dominant": record.dominant or None,
        "use": round(record.use, 4),
        "rate": round(record.rate, 4),
        "reason": record.reason,
    }


def throttle_table(state: RunState) -> list[str]:
    """One line for each time that something was decided or told; times since the run began."""
    if not state.throttle:
        return ["no throttle has decided anything in the last run"]
    began = state.start.time if state.start else state.throttle.decisions[0].time
    rows = []
    for record in state.throttle.decisions:
        rows.append(
            (
                show_seconds(max(0.0, record.time - began)),
                " on ".join(part for part in (record.category or ALL, record.node) if part),
                "-" if record.cap < 0 else str(record.cap),
                str(record.running),
                str(record.waiting),
                record.state,
                record.dominant or "-",
                show_share(record.use) if record.dominant else "-",
                show_rate(record.rate),
                record.reason,
            )
        )
    return laid_out(HEADS, rows)
