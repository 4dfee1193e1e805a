"""What may come, from what was seen: sizes, the weight of tasks that need just that, and their durations.

Beyond the largest peak stands one task not yet seen, so that few samples make wide margins and many make narrow ones.
Tasks that exhausted a size and are under way again count among those above it, in proportion to what is known there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from shoal.policy.sizing.sketch import Sketch

BEYOND = ((1.0, 0.5), (2.0, 0.25), (4.0, 0.125))
"""Where the task not yet seen may lie: steps above the largest peak, and the chance of that. The rest is at the top."""
_AT_TOP = 1.0 - sum(chance for _, chance in BEYOND)
_LEAST_STEP = 0.3
"""Of one sample; the spread of several says more."""


class Row(NamedTuple):
    """Tasks that need just this size."""

    size: float
    weight: float
    seconds: float


def outlook(known: Sketch, top: float, start: float) -> list[Row]:
    """Rows by ascending size, the last one `top` or above; leaves their ranks in the sketch.

    `start` is the size held likely as long as nothing is known.
    """
    rows = with_pending(_seen_and_unseen(known, top) if known.order else _unknown(known, top, start), known)
    if known.order:
        total = sum(row.weight for row in rows)
        known.marks = [row.size for row in rows]
        known.ranks = list(accumulate(row.weight / total for row in rows))
    return rows


def _unknown(known: Sketch, top: float, start: float) -> list[Row]:
    count = sum(pending.count for pending in known.pending.values())
    mean = sum(pending.seconds for pending in known.pending.values()) / count if count else 1.0
    return [Row(start, 1.0, mean), Row(top, 0.2, 0.2 * mean)]


def _seen_and_unseen(known: Sketch, top: float) -> list[Row]:
    cells = [known.cells[number] for number in known.order]
    rows = [Row(cell.top, cell.weight, cell.seconds) for cell in cells]
    weight = sum(row.weight for row in rows)
    mean = sum(row.weight * row.size for row in rows) / weight
    samples = weight / known.gain
    largest = rows[-1].size
    # The next record of an exponential tail lies one scale above the last; (largest - mean) / ln(n) estimates it.
    step = max((largest - mean) / max(1.0, math.log(samples + 1)), _LEAST_STEP * largest / samples)
    seconds = sum(row.seconds for row in rows) / samples
    rows += [Row(largest + steps * step, chance * known.gain, chance * seconds) for steps, chance in BEYOND]
    rows.append(Row(max(top, rows[-1].size), _AT_TOP * known.gain, _AT_TOP * seconds))
    return rows


def with_pending(rows: Sequence[Row], known: Sketch) -> list[Row]:
    """Spreads each pending task over the rows above what it exhausted, in proportion to their weights."""
    waiting = sorted(known.pending.items(), reverse=True)
    if not waiting:
        return list(rows)
    left_weight = sum(row.weight for row in rows)
    left_seconds = sum(row.seconds for row in rows)
    by_weight = by_seconds = 1.0
    spread: list[Row] = []
    for size, weight, seconds in rows:
        while waiting and waiting[-1][0] < size:
            _, pending = waiting.pop()
            by_weight += pending.count * known.gain / left_weight
            by_seconds += pending.seconds * known.gain / left_seconds
        spread.append(Row(size, weight * by_weight, seconds * by_seconds))
        # The last row must keep something: what is left of a difference of sums may be nothing.
        left_weight = max(left_weight - weight, 1e-9 * left_weight)
        left_seconds = max(left_seconds - seconds, 1e-9 * left_seconds)
    return spread
