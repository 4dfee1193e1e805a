"""How numbers and times are written in sentences about a run."""

from __future__ import annotations


def count(number: int, noun: str) -> str:
    """`1 task`, `12,345 tasks`, `2 categories`."""
    if number == 1:
        return f"1 {noun}"
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {plural}"


def seconds(amount: float) -> str:
    """`0.4 ms`, `15 ms`, `2.4 s`, `3 min 05 s`, `2 h 10 min`, `3 d 4 h`."""
    if amount < 0.00995:
        return f"{max(0.0, amount) * 1000:.1f} ms"
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
    """`0.4 %`, `12 %`; nothing of nothing is nothing."""
    share = 100 * part / whole if whole else 0.0
    return f"{share:.0f} %" if share >= 9.95 or share == 0 else f"{share:.1f} %"
