"""The summary at the end of a run: what was made, what it cost, what failed, and how to go on."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from shoal.core.quantities import count, show_bytes, show_cores, show_seconds, show_share
from shoal.ledger.statistics import CategoryTotals, Statistics
from shoal.ui.cli.text import last_words, printable, table

MOST_CATEGORIES = 8
MOST_SLOW = 4
MOST_FAILURES = 5
_WORTH_A_TABLE = 4


def summarise(
    totals: Statistics,
    names: Sequence[str],
    stopped: str,
    workflow: Sequence[str],
    words: Sequence[str],
    shown: int = 0,
) -> str:
    """The whole text. `names` are those of the tasks by number; `workflow` and `words` are what the user typed,
    options that matter included. The first `shown` failures were shown with their output while the run went on."""
    if not totals.to_run():
        return nothing_to_do(totals.up_to_date)
    lines = [headline(totals, stopped), _cost(totals)]
    if totals.done >= _WORTH_A_TABLE:
        lines += category_table(totals.categories)
        slowest = sorted(totals.slowest, reverse=True)[:MOST_SLOW]
        lines.append("slowest: " + ", ".join(f"{names[task]} {show_seconds(seconds)}" for seconds, task in slowest))
    if totals.failed:
        lines += _failures(totals, shown)
    if totals.done < totals.to_run():
        lines += _how_to_go_on(totals, workflow, words)
    return "\n".join(map(printable, lines))


def nothing_to_do(up_to_date: int) -> str:
    if not up_to_date:
        return "nothing to do: there is no task that runs anything"
    return f"nothing to do: {count(up_to_date, 'task')} {'is' if up_to_date == 1 else 'are'} up to date"


def headline(totals: Statistics, stopped: str) -> str:
    """How it ended, with the counts."""
    counts = [f"{count(totals.done, 'task')} done"]
    if totals.up_to_date:
        counts.append(f"{totals.up_to_date:,} up to date")
    if totals.failed:
        counts.append(f"{totals.failed:,} failed")
    left = totals.to_run() - totals.done - totals.failed
    if totals.cancelled and not stopped:
        counts.append(f"{totals.cancelled:,} cancelled")
        left -= totals.cancelled
    if left:
        counts.append(f"{left:,} not run")
    if totals.retried:
        counts.append(f"{totals.retried:,} tried again")
    if totals.done == totals.to_run():
        how = "all done"
    else:
        how = f"stopped ({stopped})" if stopped else "not everything could be made"
    return f"{how}: {', '.join(counts)}"


def _cost(totals: Statistics) -> str:
    wall = totals.ended - totals.started
    return (
        f"{show_seconds(wall)} wall time, {show_seconds(totals.seconds)} of task time "
        f"({show_seconds(totals.cpu)} cpu), {show_share(totals.utilisation())} of {show_cores(totals.cores)} used"
    )


def category_table(categories: dict[str, CategoryTotals]) -> list[str]:
    """The categories that took most time, each with count, mean of the attempts that succeeded, longest of
    all and peak memory."""
    used = [(name, totals) for name, totals in categories.items() if totals.done or totals.failed]
    ranked = sorted(used, key=lambda item: -item[1].seconds)
    rows = [("category", "tasks", "failed", "mean", "longest", "most memory")]
    for name, totals in ranked[:MOST_CATEGORIES]:
        rows.append(
            (
                name,
                f"{totals.done:,}",
                f"{totals.failed:,}",
                show_seconds(totals.good / totals.done) if totals.done else "-",
                show_seconds(totals.longest),
                show_bytes(totals.most_memory) if totals.most_memory else "-",
            )
        )
    if not any(totals.failed for totals in categories.values()):
        rows = [(name, done, *rest) for name, done, _, *rest in rows]  # type: ignore[misc]  # a column less
    lines = table(rows)
    if len(ranked) > MOST_CATEGORIES:
        lines.append(f"  and {len(ranked) - MOST_CATEGORIES} more categories")
    return lines


def _failures(totals: Statistics, shown: int) -> list[str]:
    lines = [f"failed ({totals.failed:,}):"]
    for number, failure in enumerate(totals.failures[:MOST_FAILURES]):
        attempts = f" (attempt {failure.attempt})" if failure.attempt > 1 else ""
        lines.append(f"  {failure.name}{attempts}: {failure.message}")
        if number >= shown:
            lines += [f"    | {line}" for line in last_words(failure.tail, failure.message)]
    more = totals.failed - min(len(totals.failures), MOST_FAILURES)
    if more:
        lines.append(f"  and {more:,} more, which 'shoal status' lists")
    return lines


def _how_to_go_on(totals: Statistics, workflow: Sequence[str], words: Sequence[str]) -> list[str]:
    lines = [f"to go on with what is left: {shlex.join(['shoal', 'run', *workflow, *words])}"]
    if totals.failures:
        name = totals.failures[0].name
        dashes = ["--"] if name.startswith("-") else []
        lines.append(f"what {name} wrote: {shlex.join(['shoal', 'output', *dashes, name, *workflow])}")
    return lines
