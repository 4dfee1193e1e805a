"""Phrases of sentences about a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shoal.ledger.records import ThrottleDecided
from shoal.model.quantities import show_share


def listed(names: Sequence[str], others: int = 0) -> str:
    """`a`, `a and b`, `a, b and 2 more`."""
    parts = [*names, f"{others:,} more"] if others else list(names)
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))


def throttle_note(told: Iterable[ThrottleDecided]) -> str:
    """What the throttle says of what it holds back most: `align: limit 6 (growing), disk 92 %`."""
    holding = [record for record in told if record.cap >= 0]
    if not holding:
        return ""
    # Those with most tasks waiting matter; the name decides among equals, so that the line does not jump.
    record = min(holding, key=lambda each: (-each.waiting, each.category, each.node))
    where = " on ".join(part for part in (record.category or "all", record.node) if part)
    use = f", {record.dominant} {show_share(record.use)}" if record.dominant else ""
    return f"{where}: limit {record.cap:,} ({record.state}){use}"
