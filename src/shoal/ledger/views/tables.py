"""Tables of a run: a row for each category, each cause of failures and each node, and the totals of core time."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from shoal.core.resources import FRACTION
from shoal.ledger.records import NodeTold
from shoal.ledger.run_fold import LOCAL, RunNode
from shoal.ledger.views.attempts import Floats, Ints
from shoal.ledger.views.core_use import as_cores
from shoal.ledger.views.failures import cause_of, common_text
from shoal.ledger.views.run import RunView
from shoal.ledger.views.timeline import Timeline, node_name
from shoal.ledger.views.waits import TaskWaits

CANCELLED = "cancelled"
"""Outcome of an attempt that was killed because its task was cancelled; no further attempt follows."""
MOST_CAUSES = 40
EXAMPLES = 3
_UNDECLARED = -1.0


class CategoryRow(msgspec.Struct, frozen=True):
    """Totals and statistics of the tasks of one category."""

    name: str
    planned: int
    done: int
    failed: int
    retries: int
    seconds: float
    """Sum over all attempts."""
    lost: float
    """Sum over attempts that did not succeed."""
    mean: float
    median: float
    p95: float
    """Mean, median and 95th percentile are those of successful attempts: a failed one does not tell how long a task
    takes."""
    longest: float
    """Of all attempts."""
    cpu: float
    cores: float
    """Mean number of cores allocated to a task."""
    cores_least: float
    cores_most: float
    """Minimum and maximum; they differ if tasks of the category request different numbers."""
    cores_declared: bool
    cores_used: float
    """CPU time divided by duration, over all attempts."""
    most_memory: float
    memory_p95: float
    memory_limit: float
    """The largest memory limit of an attempt; 0 if none had a limit."""
    memory_declared: int
    memory_waste: float | None
    """Fraction of the allocated memory, over time, that no attempt used; None if nothing was allocated or measured."""
    made: float
    core_seconds: float
    core_seconds_lost: float
    """Of attempts that did not succeed."""


class Holding(msgspec.Struct, frozen=True):
    """Tasks of one category with the same number of cores."""

    cores: float
    declared: bool
    done: int
    mean: float
    """Mean duration in seconds."""
    used: float
    """Mean number of cores that one of them uses."""
    core_seconds: float


class FailureCause(msgspec.Struct, frozen=True):
    """Attempts that did not succeed, with the same cause."""

    outcome: str
    text: str
    attempts: int
    tasks: int
    given_up: int
    """Tasks that failed finally."""
    seconds: float
    examples: list[tuple[str, str]]
    """Names of tasks, and their messages."""
    categories: list[str]
    """The categories with most of these attempts."""
    other_categories: int = 0
    """Number of further categories."""
    such_as: str = ""
    """An example of a name that differs between the messages; empty if none does."""

    def sentence(self) -> str:
        """The cause as part of a sentence."""
        return f"{self.text} (such as {self.such_as})" if self.such_as else self.text


def category_rows(view: RunView) -> list[CategoryRow]:
    """All categories, in descending order of core seconds."""
    view.settle()
    order = np.argsort(view.attempts.category, kind="stable")
    bounds = np.searchsorted(view.attempts.category[order], np.arange(len(view.categories) + 1))
    requested = _requested(view)
    found = [
        _category(view, code, requested[code], order[bounds[code] : bounds[code + 1]])
        for code in range(len(view.categories))
        if view.planned[code] or bounds[code] != bounds[code + 1]
    ]
    return sorted(found, key=lambda row: (-row.core_seconds, row.name))


def _requested(view: RunView) -> list[tuple[float, float, float]]:
    """Cores of a task of each category: mean, minimum and maximum."""
    usual = view.cores_of_categories()
    codes, cores = view.category_of(view.special_cores.tasks), as_cores(view.special_cores.requested)
    codes, cores = codes[codes >= 0], cores[codes >= 0]
    planned, size = np.maximum(1, view.planned), len(usual)
    others = np.maximum(0, planned - np.bincount(codes, minlength=size))
    total = np.bincount(codes, cores, size) + others * usual
    least, most = np.where(others, usual, np.inf), np.where(others, usual, 0.0)
    np.minimum.at(least, codes, cores)
    np.maximum.at(most, codes, cores)
    return list(zip((total / planned).tolist(), least.tolist(), most.tolist(), strict=True))


def holdings(view: RunView, row: CategoryRow) -> list[Holding]:
    """The tasks of a category by number of cores; in most categories that is the same for all tasks."""
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


def _category(view: RunView, code: int, requested: tuple[float, float, float], mine: Ints) -> CategoryRow:
    rows, name = view.attempts, view.categories[code]
    final = rows.final[mine]
    ok = (rows.outcome[mine] == 0) & final
    bad = ~ok & (rows.outcome[mine] != 0)
    cancelled = rows.outcome[mine] == (rows.outcomes.index(CANCELLED) if CANCELLED in rows.outcomes else -1)
    seconds = np.maximum(0.0, rows.ended[mine] - rows.started[mine])
    good, memory, limit = seconds[ok], rows.memory[mine], rows.limit[mine].astype(np.float64)
    declared = view.declared.get(name, {})
    given = limit if limit.any() else np.full(len(mine), float(declared.get("memory", 0)))
    # Very short attempts have no memory measurement and are left out. Memory of failed attempts counts as used: it was
    # wasted, but in use.
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
        *requested,
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


def failure_causes(view: RunView) -> list[FailureCause]:
    """Causes of failures, the most frequent first."""
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


def _cause(view: RunView, outcome: str, mine: Ints) -> FailureCause:
    rows = view.attempts
    seconds = float((rows.ended[mine] - rows.started[mine]).sum())
    messages = dict.fromkeys(rows.messages[code] for code in np.unique(rows.message[mine]).tolist())
    text, such_as = common_text(messages)
    examples = [
        (view.names.of(int(rows.task[at])), rows.messages[int(rows.message[at])] or outcome) for at in mine[:EXAMPLES]
    ]
    codes = np.bincount(rows.category[mine], minlength=1)
    names = [view.categories[int(code)] for code in np.argsort(-codes, kind="stable")[:EXAMPLES] if codes[code]]
    others = int((codes > 0).sum()) - len(names)
    tasks, given_up = len(np.unique(rows.task[mine])), int(rows.final[mine].sum())
    return FailureCause(outcome, text or outcome, len(mine), tasks, given_up, seconds, examples, names, others, such_as)


class TimeFigures(msgspec.Struct, frozen=True):
    """Totals of core time in a run, in core seconds unless stated otherwise."""

    makespan: float
    """Seconds from the start of the run to its end."""
    cores: float
    capacity: float
    busy: float
    """Allocated to attempts that succeeded."""
    lost: float
    """Allocated to attempts that did not succeed."""
    idle: float
    idle_nothing_ready: float | None
    """Part of `idle`: no task was ready. None if the dependencies are unknown."""
    idle_although_ready: float | None
    """Part of `idle`: a task was ready."""
    idle_within_tasks: float
    """Part of `idle`: a task was allocated the core and did not use it. Known only where CPU time counts."""
    cpu: float
    """CPU seconds of attempts."""
    tail: float
    """Seconds at the end in which less than half of the cores were allocated."""
    most_running: float
    memory_most: float
    """Peak memory of concurrent attempts in bytes."""
    memory_there: int
    crowded: bool
    """More attempts ran together than there are cores, so core seconds are CPU time and not durations."""

    @property
    def utilisation(self) -> float:
        return min(1.0, (self.busy + self.lost) / self.capacity) if self.capacity else 0.0


def figures(view: RunView, over_time: Timeline) -> TimeFigures:
    """Computes the totals from the timeline of the whole run."""
    width = float(over_time.edges[1] - over_time.edges[0])
    held, there = over_time.held(), over_time.capacity
    gap = np.maximum(0.0, there - held)
    within = np.minimum(gap, np.maximum(0.0, over_time.running - held)) if over_time.crowded else np.zeros(len(gap))
    nothing_ready = although = None
    if len(over_time.ready):
        with_ready = np.minimum(gap - within, over_time.ready)
        although = float(with_ready.sum()) * width
        nothing_ready = float((gap - within - with_ready).sum()) * width
    rows = view.attempts
    held_all, lost = float(held.sum()) * width, float(over_time.lost.sum()) * width
    return TimeFigures(
        float(over_time.edges[-1] - over_time.edges[0]),
        float(there.max(initial=0.0)),
        float(there.sum()) * width,
        held_all - lost,
        lost,
        float(gap.sum()) * width,
        nothing_ready,
        although,
        float(within.sum()) * width,
        float(rows.cpu.sum(dtype=np.float64)),
        _tail(over_time, width),
        float(over_time.running.max(initial=0.0)),
        float(over_time.memory.sum(axis=0).max(initial=0.0)),
        view.total_memory(),
        over_time.crowded,
    )


def _tail(over_time: Timeline, width: float) -> float:
    """Length of the tail. It begins after the cores were last in use: a run that never used them has no tail."""
    busy = np.flatnonzero(over_time.held() >= 0.5 * np.maximum(over_time.capacity, 1e-9))
    if not len(busy):
        return 0.0
    return float(len(over_time.capacity) - 1 - busy[-1]) * width


class NodeRow(msgspec.Struct, frozen=True):
    """Totals and present state of one node."""

    name: str
    cores: float
    memory: int
    tasks: int
    failed: int
    busy: float
    """Core seconds of its attempts."""
    share: float | None
    """Utilisation of its cores while it was present; None if it left before its number of cores was known."""
    made: float
    fetched: int
    stolen: int
    pushed: int
    present: float
    left: bool
    fetched_files: int = 0
    hits: int = 0
    """Number of file reads of tasks for which no transfer was needed."""
    hit_bytes: int = 0
    running: int | None = None
    """Running tasks now. None, with the following fields: unknown, or the run has ended."""
    wait: int | None = None
    """Tasks that cannot start yet."""
    local: int | None = None
    """Ready tasks that stay on this node."""
    shared: int | None = None
    """Ready tasks that any node may take."""
    cores_held: float | None = None
    memory_used: float | None = None
    """Fraction of the machine's memory in use, by all processes."""


class TransferTotals(msgspec.Struct, frozen=True):
    """Totals of transfers between all nodes: bytes, files, hits and tasks."""

    fetched: int
    fetched_files: int
    hits: int
    hit_bytes: int
    stolen: int
    pushed: int


def transfer_totals(view: RunView) -> TransferTotals:
    """Totals over all nodes that took part."""
    transfers = [_moved(node.last_report) for node in view.nodes.values()]
    return TransferTotals(*(sum(each[name] for each in transfers) for name in TransferTotals.__struct_fields__))


def node_rows(view: RunView, until: float | None = None, needs: TaskWaits | None = None) -> list[NodeRow]:
    """All nodes that took part. `until` is given for a run in progress; with `needs` the ready tasks are known."""
    view.settle()
    rows, last = view.attempts, view.until(until)
    there, is_live = view.presence(last), view.is_in_progress(until)
    size = 1 + max((*view.nodes, int(rows.node.max(initial=0))), default=0)
    ok = (rows.outcome == 0) & rows.final
    work = np.bincount(rows.node, view.held() * view.within(), size)
    done, failed = np.bincount(rows.node[ok], minlength=size), np.bincount(rows.node[~ok], minlength=size)
    made = np.bincount(rows.node[ok], rows.made[ok], size)
    found = []
    for number in range(size):
        node = view.nodes.get(number)
        if node is None and not done[number] + failed[number]:
            continue
        spans = node.present if node is not None else []
        present = sum(end - begin for at, _, begin, end in there if at == number)
        cores, busy = node.cores if node is not None else 0.0, float(work[number])
        found.append(
            NodeRow(
                node_name(view, number),
                cores,
                node.resources.get("memory", 0) if node is not None else 0,
                int(done[number]),
                int(failed[number]),
                busy,
                min(1.0, busy / (cores * present)) if cores and present > 0 else None,
                float(made[number]),
                present=present,
                left=bool(spans) and spans[-1][1] is not None,
                **_moved(node.last_report if node is not None else None),
                **(_standing(view, number, node, needs) if is_live and node is not None else {}),
            )
        )
    return found


def standing_rows(view: RunView) -> list[dict[str, Any]]:
    """The last report of every present node of a cluster. Does not read attempts, so it is fast."""
    return [
        {"name": node.name, **_moved(node.last_report), **_standing(view, number, node, None)}
        for number, node in sorted(view.nodes.items())
        if number != LOCAL and node.is_present
    ]


def _moved(report: NodeTold | None) -> dict[str, int]:
    return {name: getattr(report, name) if report is not None else 0 for name in TransferTotals.__struct_fields__}


def _standing(view: RunView, number: int, node: RunNode, needs: TaskWaits | None) -> dict[str, Any]:
    """The present state of a node."""
    if number == LOCAL:
        return _alone(view, needs)
    report = node.current_report
    if report is None or report.running is None:
        return {}
    return {
        "running": report.running,
        "wait": report.wait,
        "local": report.local,
        "shared": report.shared,
        "cores_held": report.cores / FRACTION,
        "memory_used": report.memory_used,
    }


def _alone(view: RunView, needs: TaskWaits | None) -> dict[str, Any]:
    """The state of a local run: waiting tasks are in no queue of a node, and ready tasks stay here."""
    open_ones = view.waiting()
    ready = min(open_ones, int(needs.ready(view).sum())) if needs is not None else None
    return {
        "running": view.running_now(),
        "wait": open_ones - ready if ready is not None else open_ones,
        "local": ready,
        "cores_held": cores_held(view),
    }


def cores_held(view: RunView) -> float:
    """Cores allocated to running tasks at present; for nodes of a cluster as last reported."""
    if view.is_cluster():
        return (
            sum(node.current_report.cores for node in view.nodes.values() if node.current_report is not None) / FRACTION
        )
    going = np.array(list(view.running), np.int64)
    unseen = view.running_now() - len(going)  # short tasks without a start record; most tasks have one core
    return min(view.total_cores(), float(view.cores_of(going, view.category_of(going)).sum()) + unseen)
