"""Tables of a run: its categories, and its failures grouped by cause; those of its nodes are in `nodes`."""

from __future__ import annotations

import msgspec
import numpy as np

from shoal.view.causes import cause_of, common_text
from shoal.view.columns import Floats, Ints
from shoal.view.cores import as_cores
from shoal.view.run import RunView

CANCELLED = "cancelled"
"""The outcome of an attempt that was ended with its task: it is not made again."""
MOST_CAUSES = 40
EXAMPLES = 3
_UNDECLARED = -1.0


class CategoryRow(msgspec.Struct, frozen=True):
    """The tasks of one category."""

    name: str
    planned: int
    done: int
    failed: int
    retries: int
    seconds: float
    """Of all attempts together."""
    lost: float
    """Of those that did not succeed."""
    mean: float
    median: float
    p95: float
    """These three of attempts that succeeded: one that broke off says little about how long a task takes."""
    longest: float
    """Of all attempts."""
    cpu: float
    cores: float
    """Cores held by one task, on average."""
    cores_least: float
    cores_most: float
    """If tasks of the category ask for different amounts these differ."""
    cores_declared: bool
    cores_used: float
    """Processor time over time, of all attempts."""
    most_memory: float
    memory_p95: float
    memory_limit: float
    """The largest that an attempt was given; 0 if none had a limit."""
    memory_declared: int
    memory_waste: float | None
    """The share of what was allocated, over time, that no attempt used; None if nothing was allocated or measured."""
    made: float
    core_seconds: float
    core_seconds_lost: float
    """Of those that did not succeed."""


class Holding(msgspec.Struct, frozen=True):
    """Tasks of one category that hold the same cores."""

    cores: float
    declared: bool
    done: int
    mean: float
    """Seconds."""
    used: float
    """Cores kept busy by one of them."""
    core_seconds: float


class Cause(msgspec.Struct, frozen=True):
    """Attempts that did not succeed, for like reasons."""

    outcome: str
    text: str
    attempts: int
    tasks: int
    given_up: int
    """Tasks that failed for good."""
    seconds: float
    examples: list[tuple[str, str]]
    """Names of tasks, and what was said of them."""
    categories: list[str]
    """Those with most of these attempts."""
    other_categories: int = 0
    """How many more there are."""
    such_as: str = ""
    """A name in which their messages differ, as one of them has it; empty if they differ in none."""

    def sentence(self) -> str:
        """What went wrong, for the middle of a sentence."""
        return f"{self.text} (such as {self.such_as})" if self.such_as else self.text


def category_rows(view: RunView) -> list[CategoryRow]:
    """Those that took most time first."""
    view.settle()
    order = np.argsort(view.attempts.category, kind="stable")
    bounds = np.searchsorted(view.attempts.category[order], np.arange(len(view.categories) + 1))
    asked = _asked(view)
    found = [
        _category(view, code, asked[code], order[bounds[code] : bounds[code + 1]])
        for code in range(len(view.categories))
        if view.planned[code] or bounds[code] != bounds[code + 1]
    ]
    return sorted(found, key=lambda row: (-row.core_seconds, row.name))


def _asked(view: RunView) -> list[tuple[float, float, float]]:
    """Cores of a task of each category: on average, the least and the most."""
    usual = view.cores_of_categories()
    codes, cores = view.category_of(view.apart.tasks), as_cores(view.apart.asked)
    codes, cores = codes[codes >= 0], cores[codes >= 0]
    planned, size = np.maximum(1, view.planned), len(usual)
    others = np.maximum(0, planned - np.bincount(codes, minlength=size))
    total = np.bincount(codes, cores, size) + others * usual
    least, most = np.where(others, usual, np.inf), np.where(others, usual, 0.0)
    np.minimum.at(least, codes, cores)
    np.maximum.at(most, codes, cores)
    return list(zip((total / planned).tolist(), least.tolist(), most.tolist(), strict=True))


def holdings(view: RunView, row: CategoryRow) -> list[Holding]:
    """The tasks of a category by the cores that they hold; mostly that is the same for all of them."""
    rows = view.attempts
    mine = np.flatnonzero(rows.category == view.categories.index(row.name))
    codes, tasks, ok = rows.category[mine], rows.task[mine], rows.outcome[mine] == 0
    seconds = np.maximum(0.0, rows.ended[mine] - rows.started[mine])
    cores = np.where(view.declare_cores(tasks, codes), view.cores_of(tasks, codes), _UNDECLARED)
    kinds, which = np.unique(cores, return_inverse=True)
    size, good = len(kinds), which[ok]
    done, took = np.bincount(good, minlength=size), np.bincount(good, seconds[ok], size)
    used, held = np.bincount(good, rows.cpu[mine][ok], size), np.bincount(which, seconds * view.held()[mine], size)
    return [
        Holding(
            1.0 if kind == _UNDECLARED else float(kind),
            bool(kind != _UNDECLARED),
            int(done[at]),
            float(took[at] / done[at]),
            float(used[at] / took[at]) if took[at] > 0 else 0.0,
            float(held[at]),
        )
        for at, kind in enumerate(kinds)
        if done[at]
    ]


def _category(view: RunView, code: int, asked: tuple[float, float, float], mine: Ints) -> CategoryRow:
    rows, name = view.attempts, view.categories[code]
    final = rows.final[mine]
    ok = (rows.outcome[mine] == 0) & final
    bad = ~ok & (rows.outcome[mine] != 0)
    cancelled = rows.outcome[mine] == (rows.outcomes.index(CANCELLED) if CANCELLED in rows.outcomes else -1)
    seconds = np.maximum(0.0, rows.ended[mine] - rows.started[mine])
    good, memory, limit = seconds[ok], rows.memory[mine], rows.limit[mine].astype(np.float64)
    declared = view.declared.get(name, {})
    given = limit if limit.any() else np.full(len(mine), float(declared.get("memory", 0)))
    # Of what is over in no time nobody knows what it used. What a failed attempt used is lost, but was in use.
    allocated = float((given * seconds)[memory > 0].sum())
    used = float((np.minimum(memory, given) * seconds).sum())
    held = seconds * view.held()[mine]
    median, p95 = _percentiles(good)
    return CategoryRow(
        name,
        view.planned[code],
        int(ok.sum()),
        int((bad & final).sum()),
        int((bad & ~final & ~cancelled).sum()),
        float(seconds.sum()),
        float(seconds[~ok].sum()),
        float(good.mean()) if len(good) else 0.0,
        median,
        p95,
        float(seconds.max(initial=0.0)),
        float(rows.cpu[mine].sum()),
        *asked,
        "cores" in declared,
        float(rows.cpu[mine].sum() / seconds.sum()) if seconds.sum() > 0 else 0.0,
        float(memory.max()) if len(mine) else 0.0,
        _percentiles(memory[ok])[1],
        float(limit.max()) if len(mine) else 0.0,
        declared.get("memory", 0),
        1 - used / allocated if allocated > 0 else None,
        float(rows.made[mine][ok].sum(dtype=np.float64)),
        float(held.sum()),
        float(held[~ok].sum()),
    )


def _percentiles(values: Floats) -> tuple[float, float]:
    if not len(values):
        return 0.0, 0.0
    middle, high = np.percentile(values, (50, 95))
    return float(middle), float(high)


def failure_causes(view: RunView) -> list[Cause]:
    """The most frequent first."""
    view.settle()
    rows = view.attempts
    bad = np.flatnonzero(rows.outcome != 0)
    if not len(bad):
        return []
    texts = [cause_of(message) for message in rows.messages]
    number_of: dict[tuple[int, str], int] = {}
    keys = rows.outcome[bad].astype(np.int64) * len(texts) + rows.message[bad]
    distinct, which = np.unique(keys, return_inverse=True)
    groups = [
        number_of.setdefault((int(key) // len(texts), texts[int(key) % len(texts)]), len(number_of)) for key in distinct
    ]
    group_of = np.array(groups)[which]
    attempts = np.bincount(group_of, minlength=len(number_of)).tolist()
    given_up = np.bincount(group_of, rows.final[bad], len(number_of)).tolist()
    kinds = [(rows.outcomes[outcome], text) for outcome, text in number_of]
    ranks = [(-given_up[at], -attempts[at], text or outcome, at) for at, (outcome, text) in enumerate(kinds)]
    frequent = [at for *_, at in sorted(ranks)[:MOST_CAUSES]]
    ordered = bad[np.argsort(group_of, kind="stable")]
    ends = np.cumsum(attempts).tolist()
    return [_cause(view, kinds[at][0], ordered[ends[at] - attempts[at] : ends[at]]) for at in frequent]


def _cause(view: RunView, outcome: str, mine: Ints) -> Cause:
    rows = view.attempts
    seconds = float((rows.ended[mine] - rows.started[mine]).sum())
    told = dict.fromkeys(rows.messages[code] for code in np.unique(rows.message[mine]).tolist())
    text, such_as = common_text(told)
    examples = [
        (view.names.of(int(rows.task[at])), rows.messages[int(rows.message[at])] or outcome) for at in mine[:EXAMPLES]
    ]
    codes = np.bincount(rows.category[mine], minlength=1)
    names = [view.categories[int(code)] for code in np.argsort(-codes, kind="stable")[:EXAMPLES] if codes[code]]
    others = int((codes > 0).sum()) - len(names)
    tasks, given_up = len(np.unique(rows.task[mine])), int(rows.final[mine].sum())
    return Cause(outcome, text or outcome, len(mine), tasks, given_up, seconds, examples, names, others, such_as)
