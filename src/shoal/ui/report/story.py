"""Summary and recommendations of a report, as sentences with the numbers that support them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from shoal.core.quantities import count, show_bytes, show_cores, show_seconds, show_share, span
from shoal.core.resources import show_amount
from shoal.ledger.records import ThrottleDecided
from shoal.ledger.views.progress import Progress
from shoal.ledger.views.run import RunView
from shoal.ledger.views.tables import CategoryRow, FailureCause, Holding, TimeFigures, holdings
from shoal.ledger.views.throttle import listed
from shoal.ledger.views.waits import CriticalPath
from shoal.sim.what_if import Replayed

_MUCH = 0.15
_SOME = 0.05
_FEW = 8
_ENOUGH_TASKS = 5
"""Minimum number of tasks for a recommendation."""
_SHORT = 0.02
_OUTSTANDING = 0.25
"""Share of the work from which a category is mentioned."""
_EXPLAINED = 0.75
_FEWEST_CORES = 0.01
_MEMORY = "memory"
_ROOM = 1.2
"""Recommended request, relative to the largest measured use."""
_LITTLE_MEMORY = 64 << 20
"""Requests below this size are not worth a recommendation."""


class StoryFacts(msgspec.Struct, frozen=True):
    """The facts from which the sentences are made."""

    view: RunView
    progress: Progress
    figures: TimeFigures
    categories: list[CategoryRow]
    causes: list[FailureCause]
    path: CriticalPath | None
    replayed: Replayed | None
    predicted: float | None = None
    """Duration predicted from earlier runs, if any."""
    goes_on: bool = False

    @property
    def utilisation(self) -> float:
        """Share of the cores that was allocated, as all other outputs report it. Sums over time are less complete for
        nodes that have just joined."""
        reported = self.progress.utilisation
        return reported if reported is not None else self.figures.utilisation


def summary(known: StoryFacts) -> list[str]:
    """Sentences about what happened."""
    progress, figures = known.progress, known.figures
    found = [_headline(known)]
    if figures.capacity:
        sentence = (
            f"{show_share(known.utilisation)} of {show_cores(figures.cores)} {'were' if figures.cores != 1 else 'was'} "
            f"{'busy' if figures.crowded else 'allocated'} on average; tasks used {show_seconds(figures.cpu)} "
            f"of CPU time."
        )
        if figures.memory_most:
            sentence += f" Peak memory use was {show_bytes(figures.memory_most)}"
            sentence += f" of {show_bytes(figures.memory_there)}." if figures.memory_there else "."
        found.append(sentence)
    if known.categories and known.categories[0].core_seconds > 0:
        found.append(_work(known.categories))
    if known.path is not None and known.path.length > 1:
        path = known.path
        most, _, spent = path.by_category[0]
        found.append(
            f"The critical path has {count(path.length, 'task')}: they ran for {show_seconds(path.ran)} and waited "
            f"{show_seconds(path.waited)} in total. {show_share(spent, path.ran)} of the run time was spent in {most}."
        )
    if known.goes_on and progress.left and progress.least is not None and progress.most is not None:
        found.append(f"Estimated time remaining: {span(progress.left, progress.least, progress.most)}.")
    if known.causes:
        bad = sum(cause.attempts for cause in known.causes)
        main = max(known.causes, key=lambda cause: cause.attempts)
        most = "" if main.attempts == bad else f", {main.attempts:,} of them for this reason"
        found.append(f"{count(bad, 'attempt')} failed{most}: {main.sentence()}.")
    return found


def _work(rows: Sequence[CategoryRow]) -> str:
    """The category with most of the work, if one stands out; the rows are in that order."""
    first, whole = rows[0], sum(row.core_seconds for row in rows)
    share = show_share(first.core_seconds, whole)
    many = f"There are {count(len(rows), 'category')}" if len(rows) > 1 else ""
    if first.core_seconds < _OUTSTANDING * whole:
        return f"{many}, none with more than {share} of the core time."
    part = "Most" if first.core_seconds > 0.5 * whole else "The largest share"
    tasks = f"{count(first.done, 'task')} of {show_seconds(first.mean)} on average"
    if not first.done:
        tasks = f"{count(first.failed + first.retries, 'failed attempt')}"
    before = f"{many}. " if many else ""
    return f"{before}{part} of the work was in {first.name}: {tasks}, {share} of the core time."


def _headline(known: StoryFacts) -> str:
    view, progress = known.view, known.progress
    where = f"on {count(len(view.nodes), 'node')}" if view.is_cluster() else "on one machine"
    parts = [f"{count(progress.done, 'task')} done"]
    if progress.up_to_date:
        parts.append(f"{progress.up_to_date:,} already up to date")
    if progress.failed:
        parts.append(f"{progress.failed:,} failed")
    if progress.cancelled:
        parts.append(f"{progress.cancelled:,} cancelled")
    left = progress.not_run
    if left and not known.goes_on:
        parts.append(f"{left:,} not run")
    elif left:
        parts.append(f"{progress.running:,} running and {progress.waiting:,} not started")
        if progress.cannot_run:
            parts.append(f"{progress.cannot_run:,} cannot run")
    return f"{', '.join(parts)} {where} in {show_seconds(progress.elapsed)}."


def advice(known: StoryFacts) -> list[str]:
    """Recommendations, the largest gains first; one positive sentence if there are none."""
    found: list[tuple[float, str]] = []
    if known.figures.capacity:
        found += _idleness(known)
        found += _losses(known)
        found += _requests(known)
    found += _supposing(known)
    if known.progress.failed and known.causes:
        found.append((float("inf"), _failing(known)))
    found.sort(key=lambda pair: -pair[0])
    if not found:
        return ["No recommendations: cores were well used, no work was lost, and requests match actual usage."]
    return [sentence for _, sentence in found[:_FEW]]


def _failing(known: StoryFacts) -> str:
    """The cause of failure to fix first, and the number of others."""
    ending = sorted((cause for cause in known.causes if cause.given_up), key=lambda cause: -cause.given_up)
    ending = ending or known.causes[:1]
    main, others = ending[0], len(ending) - 1
    failed = f"{count(known.progress.failed, 'task')} failed"
    if not others:
        return (
            f"{failed}. Fix the cause ({main.sentence()}) and run the workflow again: only unfinished tasks will run."
        )
    also = "is 1 other cause" if others == 1 else f"are {others:,} other causes"
    return (
        f"{failed}, {main.given_up:,} of them for this reason: {main.sentence()}. There {also}. Fix them and "
        "run the workflow again: only unfinished tasks will run."
    )


def _idleness(known: StoryFacts) -> list[tuple[float, str]]:
    figures, found = known.figures, []
    if figures.idle_nothing_ready is not None and figures.idle_nothing_ready > _MUCH * figures.capacity:
        main = f", mostly of {known.path.by_category[0][0]}" if known.path is not None else ""
        found.append(
            (
                figures.idle_nothing_ready / figures.cores,
                f"For {show_share(figures.idle_nothing_ready, figures.capacity)} of the core time no task was "
                f"ready, so "
                f"more cores would not help. Shorten dependency chains{main}, or avoid tasks that many others need.",
            )
        )
    if figures.idle_although_ready is not None and figures.idle_although_ready > _MUCH * figures.capacity:
        found.append((figures.idle_although_ready / figures.cores, _why_idle(known)))
    if figures.idle_within_tasks > _MUCH * figures.capacity:
        found.append(
            (
                figures.idle_within_tasks / figures.cores / 4,
                f"For {show_share(figures.idle_within_tasks, figures.capacity)} of the core time tasks did not "
                f"use their "
                "allocated cores: other programs used the machine, or tasks waited for files or the network.",
            )
        )
    gain = min(figures.tail, _by_order(known))
    if figures.tail > _MUCH * figures.makespan and gain > _SOME * figures.makespan and figures.makespan > 1.0:
        found.append(
            (
                gain / 2,
                f"In the last {show_seconds(figures.tail)} ({show_share(figures.tail, figures.makespan)} of the "
                f"run) less than "
                "half of the cores were in use. Start the longest tasks first with '--order critical'.",
            )
        )
    return found


def _by_order(known: StoryFacts) -> float:
    """Upper limit of the seconds that another order could have saved: the tasks that ended last would not have waited
    for cores, and no order is faster than the lower bound."""
    rows = known.view.attempts
    if known.path is not None:
        waited = known.path.waited
    else:  # tasks without dependencies: each waits from the start
        waited = float(known.view.after(rows.started[np.argmax(rows.ended)])) if len(rows) else 0.0
    replayed = known.replayed
    return waited if replayed is None else min(waited, replayed.actual - replayed.bound)


def _why_idle(known: StoryFacts) -> str:
    figures = known.figures
    share = show_share(figures.idle_although_ready or 0.0, figures.capacity)
    short = [row for row in known.categories if row.done > 100 and row.median < _SHORT]
    if short:
        return (
            f"For {share} of the core time cores were idle while tasks were ready: tasks of {short[0].name} take "
            f"{show_seconds(short[0].median)}, about as long as starting one. Use fewer, longer tasks, or "
            f"Python functions."
        )
    limit = _throttled(known)
    if limit is not None:
        what = f"{limit.category} " if limit.category else "tasks "
        why = f" ({limit.reason})" if limit.reason else ""
        return (
            f"For {share} of the core time cores were idle while tasks were ready: the throttle limited {what}to "
            f"{limit.cap:,} at a time{why}. The next run starts with this limit."
        )
    idle = f"For {share} of the core time cores were idle while tasks were ready"
    wide = [row for row in known.categories if row.cores_most > 1 and row.done + row.failed]
    if wide and _is_explained(known.replayed):
        row = max(wide, key=lambda each: each.cores_most)
        return (
            f"{idle}: each task of {row.name} needs {show_cores(row.cores_most)} and waits until they are free "
            f"at the same "
            "time. With fewer cores per task they would start earlier."
        )
    scarce = _scarce(known, figures.cores)
    if scarce:
        row, name = scarce
        unused = (
            f", and {show_share(row.memory_waste)} of it was not used" if name == _MEMORY and row.memory_waste else ""
        )
        return f"{idle}. The limit may have been {name}: {_asks(known, row, name)}{unused}."
    return (
        f"{idle}: the limit was something other than cores, such as memory, a throttle or the overhead between tasks."
    )


def _throttled(known: StoryFacts) -> ThrottleDecided | None:
    """The throttle decision that held back most tasks while fewer ran than there are cores. None if no decision did: a
    throttle that always allowed more tasks than ran is not the reason."""
    found = [curve.strictest for curve in known.view.throttle.curves() if curve.strictest is not None]
    limiting = [record for record in found if record.cap < known.figures.cores]
    return max(limiting, key=lambda record: record.waiting, default=None)


def _is_explained(replayed: Replayed | None) -> bool:
    """Whether cores alone, the only resource of the list schedule, explain the duration of the run."""
    return replayed is not None and replayed.computed >= _EXPLAINED * replayed.actual


def _scarce(known: StoryFacts, cores: float) -> tuple[CategoryRow, str] | None:
    """A category of which fewer tasks fit than there are cores because another resource is scarce, and that
    resource."""
    nodes = known.view.nodes.values()
    for row in known.categories:
        together = min(row.planned, cores / max(row.cores_least, _FEWEST_CORES))
        for name, amount in _requested(known, row).items():
            there = sum(node.resources.get(name, 0) for node in nodes)
            if there and amount * together > there:
                return row, name
    return None


def _requested(known: StoryFacts, row: CategoryRow) -> dict[str, int]:
    """Resources that a task of the category declares beside cores, or its default share of them."""
    return {name: amount for name, amount in known.view.declared.get(row.name, {}).items() if name != "cores"}


def _asks(known: StoryFacts, row: CategoryRow, name: str) -> str:
    """`a task of align requests up to 15 GiB of 24 GiB`."""
    there = sum(node.resources.get(name, 0) for node in known.view.nodes.values())
    asked = show_amount(name, _requested(known, row)[name])
    return f"a task of {row.name} requests up to {asked} of {show_amount(name, there)}"


def _losses(known: StoryFacts) -> list[tuple[float, str]]:
    figures = known.figures
    if figures.lost <= 0.02 * (figures.busy + figures.lost) or not known.causes:
        return []
    worst = max(known.causes, key=lambda cause: cause.seconds)
    sentence = (
        f"Failed attempts took {show_share(figures.lost, figures.busy + figures.lost)} of the core time used. "
        f"{count(worst.attempts, 'attempt')} of {listed(worst.categories, worst.other_categories)} lost "
        f"{show_seconds(worst.seconds)}: {worst.sentence()}."
    )
    return [(figures.lost / figures.cores, sentence)]


def _requests(known: StoryFacts) -> list[tuple[float, str]]:
    """Requests that exceed the use; for each kind the category with the largest gain."""
    all_work = sum(row.core_seconds for row in known.categories)
    rows = [row for row in known.categories if row.done >= _ENOUGH_TASKS and row.core_seconds >= _SOME * all_work]
    wasteful = [
        row
        for row in rows
        if row.memory_waste is not None
        and row.memory_waste > 0.5
        and row.memory_declared > _LITTLE_MEMORY
        and row.most_memory * _ROOM < row.memory_declared
    ]
    found = []
    if wasteful:
        row = max(wasteful, key=lambda each: (each.memory_waste or 0.0) * each.core_seconds)
        enough = show_bytes(max(_LITTLE_MEMORY, row.most_memory * _ROOM))
        found.append(
            (
                (row.memory_waste or 0.0) * row.core_seconds / known.figures.cores / 4,
                f"Tasks of {row.name} request {show_bytes(row.memory_declared)} of memory and used at most "
                f"{show_bytes(row.most_memory)}{_likewise(row, wasteful)}: request {enough}, or none, so that "
                "Shoal learns the size.",
            )
        )
    return found + _idle_requests(known, rows)


def _idle_requests(known: StoryFacts, rows: Sequence[CategoryRow]) -> list[tuple[float, str]]:
    """The same for cores. Tasks of one category with different core counts are judged separately."""
    idling = [
        (row, held)
        for row in rows
        for held in holdings(known.view, row)
        if held.done >= _ENOUGH_TASKS
        and held.mean > _SHORT
        and held.used < 0.5 * held.cores
        and (held.declared or not known.view.throttle)  # a throttle already handles undeclared cores
    ]
    if not idling:
        return []
    row, held = max(idling, key=lambda pair: _unused(pair[1]))
    sentence = (
        f"Tasks of {row.name} with {show_cores(held.cores)} use {show_share(held.used, held.cores)} of "
        f"{'it' if held.cores == 1 else 'them'}{_likewise(row, [each for each, _ in idling])}: {_fewer_cores(held)}."
    )
    return [(_unused(held) / known.figures.cores / 2, sentence)]


def _unused(held: Holding) -> float:
    """Allocated but unused core seconds."""
    return (1 - held.used / held.cores) * held.core_seconds


def _likewise(row: CategoryRow, rows: Sequence[CategoryRow]) -> str:
    others = list(dict.fromkeys(each.name for each in rows if each is not row))
    return f" (likewise {', '.join(others[:2])}{' and others' * (len(others) > 2)})" if others else ""


def _fewer_cores(held: Holding) -> str:
    if held.cores > 1:
        return f"request {max(1, round(held.used + 0.3))}"
    if held.declared:
        return "request no cores, so that a throttle can run more of them concurrently"
    return "'--throttle adaptive' can run more of them concurrently"


def _supposing(known: StoryFacts) -> Sequence[tuple[float, str]]:
    replayed = known.replayed
    if replayed is None or replayed.actual <= 0:
        return []
    found = _faster(known, replayed)
    if known.figures.crowded or not _is_explained(replayed):
        return found  # cores were not the limit
    for row in replayed.supposed:
        if row.cores != 1 and _scarce(known, max(1.0, row.cores) * replayed.cores):
            continue  # the replay considers cores only
        if row.cores > 1 and row.seconds < 0.75 * replayed.actual:
            gain = f"With {row.what} the run would have taken about {show_seconds(row.seconds)}: it still scales."
            found.append(((replayed.actual - row.seconds) / 8, gain))
        if row.cores < 1 and row.seconds < 1.1 * replayed.actual:
            found.append(
                (
                    replayed.actual / 16,
                    f"With {row.what} the run would have taken about {show_seconds(row.seconds)}: fewer cores "
                    f"are enough.",
                )
            )
    return found


def _faster(known: StoryFacts, replayed: Replayed) -> list[tuple[float, str]]:
    """The category in which shorter tasks would gain most, unless several gain as much."""
    faster = sorted((row for row in replayed.supposed if row.category), key=lambda row: row.seconds)
    if not faster or faster[0].seconds >= (1 - _SOME) * replayed.actual:
        return []
    best, gain = faster[0], replayed.actual - faster[0].seconds
    equal = [row.category for row in faster[1:] if replayed.actual - row.seconds > (1 - _SOME) * gain]
    sentence = (
        f"Had every task of {best.category} been twice as fast, the run would have taken about "
        f"{show_seconds(best.seconds)} instead of {show_seconds(replayed.actual)} (by {replayed.method})"
    )
    if equal:
        sentence += f"; the same holds for {listed(equal[:2], max(0, len(equal) - 2))}."
    elif len(faster) > 1 and len(faster) >= len(known.categories):
        sentence += ": no other category would gain as much."
    elif len(faster) > 1:
        sentence += f": the most of the {len(faster)} largest categories."
    else:
        sentence += "."
    return [(gain / 4, sentence)]
