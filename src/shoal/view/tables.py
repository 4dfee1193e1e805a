"""Tables of a run: its categories, its nodes, and its failures grouped by cause."""

from __future__ import annotations

import re

import msgspec
import numpy as np

from shoal.view.columns import Floats, Ints
from shoal.view.gantt import node_name
from shoal.view.run import RunView

MOST_CAUSES = 40
EXAMPLES = 3
_NUMBER = re.compile(r"(?<!status )(?<!signal )\b\d+(?:\.\d+)?")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")


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
    longest: float
    cpu: float
    cores: float
    """Cores held by one task."""
    cores_declared: bool
    cores_used: float
    """Processor time over time, of those that succeeded."""
    most_memory: float
    memory_p95: float
    memory_limit: float
    """The largest that an attempt was given; 0 if none had a limit."""
    memory_declared: int
    memory_waste: float | None
    """The share of what was allocated, over time, that was not used; None if nothing was allocated."""
    made: float
    core_seconds: float


class NodeRow(msgspec.Struct, frozen=True):
    """One machine."""

    name: str
    cores: float
    memory: int
    tasks: int
    failed: int
    busy: float
    """Core seconds of its attempts."""
    share: float
    """Of its cores, while it was there."""
    made: float
    fetched: int
    stolen: int
    pushed: int
    present: float
    left: bool


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


def category_rows(view: RunView) -> list[CategoryRow]:
    """Those that took most time first."""
    view.settle()
    order = np.argsort(view.attempts.category, kind="stable")
    bounds = np.searchsorted(view.attempts.category[order], np.arange(len(view.categories) + 1))
    found = [
        _category(view, code, order[bounds[code] : bounds[code + 1]])
        for code in range(len(view.categories))
        if view.planned[code] or bounds[code] != bounds[code + 1]
    ]
    return sorted(found, key=lambda row: (-row.core_seconds, row.name))


def _category(view: RunView, code: int, mine: Ints) -> CategoryRow:
    rows, name = view.attempts, view.categories[code]
    ok, final = rows.outcome[mine] == 0, rows.final[mine]
    seconds = np.maximum(0.0, rows.ended[mine] - rows.started[mine])
    good, memory, limit = seconds[ok], rows.memory[mine], rows.limit[mine].astype(np.float64)
    declared = view.declared.get(name, {})
    given = limit if limit.any() else np.full(len(mine), float(declared.get("memory", 0)))
    allocated = float((given * seconds).sum())
    used = float((np.minimum(memory[ok], given[ok]) * good).sum())
    cores = float(view.cores_of_categories()[code])
    median, p95 = _percentiles(good)
    return CategoryRow(
        name,
        view.planned[code],
        int(ok.sum()),
        int((~ok & final).sum()),
        int((~final).sum()),
        float(seconds.sum()),
        float(seconds[~ok].sum()),
        float(good.mean()) if len(good) else 0.0,
        median,
        p95,
        float(good.max()) if len(good) else 0.0,
        float(rows.cpu[mine].sum()),
        cores,
        "cores" in declared,
        float(rows.cpu[mine][ok].sum() / good.sum()) if good.sum() > 0 else 0.0,
        float(memory.max()) if len(mine) else 0.0,
        _percentiles(memory[ok])[1],
        float(limit.max()) if len(mine) else 0.0,
        declared.get("memory", 0),
        1 - used / allocated if allocated > 0 and memory.any() else None,
        float(rows.made[mine][ok].sum(dtype=np.float64)),
        float((seconds * view.held()[mine]).sum()),
    )


def _percentiles(values: Floats) -> tuple[float, float]:
    if not len(values):
        return 0.0, 0.0
    middle, high = np.percentile(values, (50, 95))
    return float(middle), float(high)


def node_rows(view: RunView, until: float | None = None) -> list[NodeRow]:
    """Every machine that took part."""
    view.settle()
    rows, last = view.attempts, view.until(until)
    work = view.held() * (rows.ended - rows.started)
    found = []
    for number in sorted({*view.nodes, *np.unique(rows.node).tolist()}):
        mine = rows.node == number
        node = view.nodes.get(number)
        ok = mine & (rows.outcome == 0)
        spans = node.present if node is not None else []
        present = sum((last if end is None else end) - begin for begin, end in spans)
        cores = node.cores if node is not None else 0.0
        busy = float(work[mine].sum())
        found.append(
            NodeRow(
                node_name(view, number),
                cores,
                node.resources.get("memory", 0) if node is not None else 0,
                int(ok.sum()),
                int((mine & (rows.outcome != 0)).sum()),
                busy,
                busy / (cores * present) if cores and present > 0 else 0.0,
                float(rows.made[ok].sum(dtype=np.float64)),
                node.fetched if node is not None else 0,
                node.stolen if node is not None else 0,
                node.pushed if node is not None else 0,
                present,
                bool(spans) and spans[-1][1] is not None,
            )
        )
    return found


def cause_of(message: str) -> str:
    """What messages about different tasks have in common: without numbers (other than exit status and signal) and names
    in quotes."""
    return _NUMBER.sub("N", _QUOTED.sub("'…'", message)).strip()[:300]


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
    found = []
    for (outcome, text), number in number_of.items():
        found.append(_cause(view, rows.outcomes[outcome], text, bad[group_of == number]))
    found.sort(key=lambda cause: (-cause.given_up, -cause.attempts, cause.text))
    return found[:MOST_CAUSES]


def _cause(view: RunView, outcome: str, text: str, mine: Ints) -> Cause:
    rows = view.attempts
    seconds = float((rows.ended[mine] - rows.started[mine]).sum())
    examples = [
        (view.names.of(int(rows.task[at])), rows.messages[int(rows.message[at])] or outcome) for at in mine[:EXAMPLES]
    ]
    codes = np.bincount(rows.category[mine], minlength=1)
    names = [view.categories[int(code)] for code in np.argsort(-codes, kind="stable")[:EXAMPLES] if codes[code]]
    tasks = len(np.unique(rows.task[mine]))
    return Cause(outcome, text or outcome, len(mine), tasks, int(rows.final[mine].sum()), seconds, examples, names)
