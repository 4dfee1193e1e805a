"""Results as Markdown: one table per contest, then what the project promises beside what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from contest import Result

NOTHING = "-"
UNSTEADY = 1.15


@dataclass(frozen=True)
class Target:
    """One promise: a figure that has to be at least, or at most, so much."""

    text: str
    measured: float | None
    limit: float
    at_least: bool = True

    @property
    def met(self) -> bool | None:
        if self.measured is None:
            return None
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit


def find(results: Iterable[Result], name: str) -> Result | None:
    return next((result for result in results if result.name == name), None)


def rate_ratio(results: Sequence[Result], name: str, base: str) -> float | None:
    """How many times the base's rate a contestant reached, both at their best."""
    one, other = find(results, name), find(results, base)
    if one is None or other is None or one.rate is None or other.rate is None:
        return None
    return one.rate / other.rate


def processes_table(title: str, results: list[Result], base: str) -> str:
    rows = []
    for result in by_rate(results):
        if result.best is None:
            rows.append([result.name, *[NOTHING] * 6, result.error])
            continue
        rows.append(
            [
                result.name,
                f"{result.tasks:,}",
                f"{result.best:.2f}",
                f"{result.rate:,.0f}",
                show(rate_ratio(results, result.name, base)),
                f"{1000 * cpu_per_task(result):.2f}",
                show(cpu_ratio(results, result.name, base)),
                result.note,
            ]
        )
    heads = [
        "contestant",
        "tasks",
        "seconds",
        "tasks/s",
        "of the C loop",
        "CPU ms/task",
        "of the C loop, by CPU",
        "remark",
    ]
    return table(title, heads, rows, steadiness(results, base))


def cpu_per_task(result: Result) -> float:
    return min(result.cpu_seconds) / result.tasks


def cpu_ratio(results: Sequence[Result], name: str, base: str) -> float | None:
    """The share that processor time alone would give: what is left of a ratio when others use the machine, too."""
    one, other = find(results, name), find(results, base)
    if one is None or other is None or one.best is None or other.best is None:
        return None
    return cpu_per_task(other) / cpu_per_task(one)


def steadiness(results: Sequence[Result], base: str) -> str:
    """A line about how much the base itself varied from round to round."""
    result = find(results, base)
    if result is None or result.best is None or len(result.seconds) < 2:
        return ""
    spread = max(result.seconds) / min(result.seconds)
    warning = " The machine was busy: run it again." if spread > UNSTEADY else ""
    return f"Slowest round of the {base}: {spread:.2f} times its best.{warning}"


def calls_table(title: str, results: list[Result], base: str) -> str:
    base_trip = least_trip(results, base)
    rows = []
    for result in by_rate(results):
        trip = result.least("round_trip_ms")
        if result.best is None or trip is None:
            rows.append([result.name, *[NOTHING] * 5, result.error])
            continue
        rows.append(
            [
                result.name,
                f"{result.tasks:,}",
                f"{result.rate:,.0f}",
                show(rate_ratio(results, result.name, base)),
                f"{trip:.3f}",
                show(trip / base_trip if base_trip else None),
                result.note,
            ]
        )
    heads = ["pool", "calls", "calls/s", "times ProcessPool", "one call, ms", "of ProcessPool's", "remark"]
    return table(title, heads, rows, steadiness(results, base))


def least_trip(results: Sequence[Result], name: str) -> float | None:
    result = find(results, name)
    return result.least("round_trip_ms") if result else None


def graph_table(title: str, results: list[Result]) -> str:
    rows = []
    for result in results:
        peak = result.least("peak_mib")
        if result.best is None or peak is None:
            rows.append([result.name, *[NOTHING] * 8, result.error])
            continue
        laps = [show(result.least(lap)) for lap in ("built", "planned", "drained")]
        rows.append(
            [
                result.name,
                f"{result.tasks:,}",
                *laps,
                f"{result.best:.2f}",
                show(result.least("brokered")),
                f"{peak:,.0f}",
                f"{peak * 2**20 / result.tasks:,.0f}",
                result.note,
            ]
        )
    heads = ["graph", "tasks", "built, s", "planned, s", "drained, s", "together, s"]
    return table(title, [*heads, "through the broker, s", "peak MiB", "bytes/task", "remark"], rows)


def scaling_table(title: str, results: list[Result]) -> str:
    rows = []
    for name in dict.fromkeys(result.name for result in results):
        small, large = (result for result in results if result.name == name)
        if small.best is None or large.best is None:
            rows.append([name, *[NOTHING] * 3, small.error or large.error])
            continue
        costs = [1000 * result.best / result.tasks for result in (small, large) if result.best]
        rows.append([name, f"{costs[0]:.3f}", f"{costs[1]:.3f}", show(growth(results, name)), small.note])
    sizes = sorted({result.tasks for result in results})
    heads = ["contestant", *(f"ms/task at {size:,}" for size in sizes), "growth", "remark"]
    return table(title, heads, rows)


def growth(results: Sequence[Result], name: str) -> float | None:
    """Time per task of the larger run over that of the smaller."""
    pair = sorted((result for result in results if result.name == name), key=lambda result: result.tasks)
    if len(pair) != 2 or pair[0].rate is None or pair[1].rate is None:
        return None
    return pair[0].rate / pair[1].rate


def targets_table(targets: list[Target]) -> str:
    words = {True: "yes", False: "**no**", None: "not measured"}
    rows = []
    for target in targets:
        limit = f"{'≥' if target.at_least else '≤'} {target.limit:g}"
        rows.append([target.text, limit, show(target.measured), words[target.met]])
    return table("What is promised", ["promise", "limit", "measured", "kept"], rows)


def by_rate(results: list[Result]) -> list[Result]:
    return sorted(results, key=lambda result: -(result.rate or 0))


def show(number: float | None) -> str:
    """Two decimals where they matter, none where they do not."""
    if number is None:
        return NOTHING
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}" if number >= 10 else f"{number:.2f}"


def table(title: str, heads: list[str], rows: list[list[str]], remark: str = "") -> str:
    lines = [f"### {title}", "", "| " + " | ".join(heads) + " |"]
    lines.append("|" + "|".join("---" if head in (heads[0], heads[-1]) else "--:" for head in heads) + "|")
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([*lines, *(["", remark] if remark else [])]) + "\n"
