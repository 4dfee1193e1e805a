"""How numbers and times are written in sentences about a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shoal.ledger.records import ThrottleDecided

TO = "\N{EN DASH}"


def count(number: int, noun: str) -> str:
    """`1 task`, `12,345 tasks`, `2 categories`."""
    if number == 1:
        return f"1 {noun}"
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {plural}"


def listed(names: Sequence[str], others: int = 0) -> str:
    """`a`, `a and b`, `a, b and 2 more`."""
    parts = [*names, f"{others:,} more"] if others else list(names)
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))


def seconds(amount: float) -> str:
    """`0.4 ms`, `15 ms`, `2.4 s`, `3 min 05 s`, `2 h 10 min`, `3 d 4 h`."""
    if amount <= 0:
        return "0 s"
    if amount < 0.00995:
        return f"{amount * 1000:.1f} ms"
    if amount < 0.9995:
        return f"{amount * 1000:.0f} ms"
    if amount < 59.95:
        return f"{amount:.1f} s"
    whole = round(amount)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def percent(part: float, whole: float = 1.0) -> str:
    """`0.4 %`, `12 %`; nothing of nothing is nothing, and 100 is all of it."""
    share = 100 * part / whole if whole else 0.0
    if 99 < share < 100:
        return "99 %"
    return f"{share:.0f} %" if share >= 9.95 or share == 0 else f"{share:.1f} %"


def share_of(part: float, whole: float) -> str:
    """A share of tasks, which is 100 only when all of them are there: cut off, not rounded."""
    share = 100 * part / whole if whole else 100.0
    return f"{int(share)} %" if share < 100 else "100 %"


def time_left(left: float, least: float | None = None, most: float | None = None) -> str:
    """`12 min (10-15) left`, with a longer dash; nobody can say it to a fraction of a second."""
    if max(left, most or 0.0) < 2:
        return "nearly done"
    return f"{span(left, least, most)} left"


def span(likely: float, least: float | None, most: float | None) -> str:
    """A time with its error band: `12 min (10-15)`, with a longer dash."""
    text = _roughly(likely)
    if least is None or most is None:
        return text
    low, high = _roughly(least), _roughly(most)
    if low == high:
        return text
    unit = text.rpartition(" ")[2]
    if low.endswith(f" {unit}") and high.endswith(f" {unit}"):
        low, high = low.partition(" ")[0], high.partition(" ")[0]
    return f"{text} ({low}{TO}{high})"


def _roughly(amount: float) -> str:
    """One number and one unit, with about two digits."""
    for unit, size, most in (("s", 1, 90), ("min", 60, 90), ("h", 3600, 48)):
        if amount < most * size:
            digits = 1 if unit == "h" and amount < 9.95 * size else 0
            return f"{max(0.0, amount) / size:.{digits}f} {unit}"
    return f"{amount / 86400:,.1f} d"


def throttle_note(told: Iterable[ThrottleDecided]) -> str:
    """What the throttle says of what it holds back most: `align: limit 6 (growing), disk 92 %`."""
    holding = [record for record in told if record.cap >= 0]
    if not holding:
        return ""
    # Those with most tasks waiting matter; the name decides among equals, so that the line does not jump.
    record = min(holding, key=lambda each: (-each.waiting, each.category, each.node))
    where = " on ".join(part for part in (record.category or "all", record.node) if part)
    use = f", {record.dominant} {percent(record.use)}" if record.dominant else ""
    return f"{where}: limit {record.cap:,} ({record.state}){use}"
