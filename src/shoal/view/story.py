"""A run in sentences: what it was, and what to change next time, with the numbers that say so."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from shoal.model.resources import show_bytes
from shoal.view.critical import CriticalPath
from shoal.view.figures import Figures
from shoal.view.progress import Progress
from shoal.view.run import RunView
from shoal.view.schedule import Replayed
from shoal.view.tables import CategoryRow, Cause
from shoal.view.words import count, percent, seconds

_MUCH = 0.15
_SOME = 0.05
_FEW = 8
_ENOUGH_TASKS = 5
"""Of fewer tasks nothing is concluded."""
_SHORT = 0.02
_ROOM = 1.2
"""Above the largest that was seen."""
_LITTLE_MEMORY = 64 << 20
"""Nobody need ask for less."""


class Known(msgspec.Struct, frozen=True):
    """Everything the sentences are made of."""

    view: RunView
    progress: Progress
    figures: Figures
    categories: list[CategoryRow]
    causes: list[Cause]
    path: CriticalPath | None
    replayed: Replayed | None
    foreseen: float | None = None
    """Seconds that were predicted from earlier runs, if any."""


def summary(known: Known) -> list[str]:
    """What happened."""
    told, figures = known.progress, known.figures
    found = [_headline(known)]
    if figures.capacity:
        verb = "kept" if figures.crowded else "held"
        busy = " busy" if figures.crowded else ""
        sentence = (
            f"Tasks {verb} {percent(figures.utilisation)} of {_cores(figures.cores)}{busy} over that time and used "
            f"{seconds(figures.cpu)} of processor time."
        )
        if figures.memory_most:
            sentence += f" At most {show_bytes(figures.memory_most)} of memory were in use at once"
            sentence += f", of {show_bytes(figures.memory_there)}." if figures.memory_there else "."
        found.append(sentence)
    if known.categories:
        first = known.categories[0]
        share = percent(first.core_seconds, sum(row.core_seconds for row in known.categories))
        many = f"There are {count(len(known.categories), 'category')}. " if len(known.categories) > 1 else ""
        found.append(
            f"{many}Most of the work was in {first.name}: {count(first.done, 'task')} of "
            f"{seconds(first.mean)} on average, {share} of the core time."
        )
    if known.path is not None and known.path.length > 1:
        path = known.path
        most, _, spent = path.by_category[0]
        found.append(
            f"The chain that ended last has {count(path.length, 'task')}. They ran for {seconds(path.ran)} and waited "
            f"{seconds(path.waited)} in between; {percent(spent, path.ran)} of that running was in {most}."
        )
    if told.left and told.least is not None and told.most is not None:
        found.append(f"It will be over in about {seconds(told.left)} ({seconds(told.least)} to {seconds(told.most)}).")
    if known.causes:
        bad = sum(cause.attempts for cause in known.causes)
        main = max(known.causes, key=lambda cause: cause.attempts)
        found.append(f"{count(bad, 'attempt')} did not succeed, {_most_of(main.attempts, bad)}: {main.text}.")
    return found


def _most_of(part: int, all_of_them: int) -> str:
    if part == all_of_them:
        return "for this reason"
    return f"{part:,} of them for this reason"


def _cores(cores: float) -> str:
    return f"{cores:g} core{'s' * (cores != 1)}"


def _headline(known: Known) -> str:
    view, told = known.view, known.progress
    where = f"on {count(len(view.nodes), 'node')}" if view.is_cluster() else "on one machine"
    parts = [f"{count(told.done, 'task')} done"]
    if told.up_to_date:
        parts.append(f"{told.up_to_date:,} were up to date")
    if told.failed:
        parts.append(f"{told.failed:,} failed")
    left = told.waiting + told.running
    if left and view.end is not None:
        parts.append(f"{left:,} not run")
    elif left:
        parts.append(f"{told.running:,} running and {told.waiting:,} waiting")
    return f"{', '.join(parts)} {where} in {seconds(told.elapsed)}."


def advice(known: Known) -> list[str]:
    """What to change next time, the largest gains first; a sentence of comfort if there is nothing."""
    found: list[tuple[float, str]] = []
    if known.figures.capacity:
        found += _idleness(known)
        found += _losses(known)
        found += _requests(known)
    found += _supposing(known)
    if known.progress.failed and known.causes:
        found.append(
            (
                float("inf"),
                f"{count(known.progress.failed, 'task')} failed. Mend the cause ({known.causes[0].text}) and run it "
                "again: only what is left will run.",
            )
        )
    found.sort(key=lambda pair: -pair[0])
    if not found:
        return ["Nothing stands out: cores were in use, nothing was lost, and requests are near to what was used."]
    return [sentence for _, sentence in found[:_FEW]]


def _idleness(known: Known) -> list[tuple[float, str]]:
    figures, found = known.figures, []
    if figures.idle_nothing_ready is not None and figures.idle_nothing_ready > _MUCH * figures.capacity:
        main = f", mostly of {known.path.by_category[0][0]}" if known.path is not None else ""
        found.append(
            (
                figures.idle_nothing_ready / figures.cores,
                f"For {percent(figures.idle_nothing_ready, figures.capacity)} of the core time no task was ready. More "
                f"cores would not help; shorter chains{main}, or less waiting for one task before many, would.",
            )
        )
    if figures.idle_although_ready is not None and figures.idle_although_ready > _MUCH * figures.capacity:
        found.append((figures.idle_although_ready / figures.cores, _why_idle(known)))
    if figures.tail > _MUCH * figures.makespan and figures.makespan > 1.0:
        found.append(
            (
                figures.tail / 2,
                f"In the last {seconds(figures.tail)} ({percent(figures.tail, figures.makespan)} of the run) less than "
                "half of the cores were held. Start what takes longest first: '--order critical'.",
            )
        )
    return found


def _why_idle(known: Known) -> str:
    figures = known.figures
    share = percent(figures.idle_although_ready or 0.0, figures.capacity)
    short = [row for row in known.categories if row.done > 100 and row.median < _SHORT]
    if short:
        return (
            f"For {share} of the core time cores were idle although tasks were ready: tasks of {short[0].name} take "
            f"{seconds(short[0].median)}, and starting one takes as long. Let each do more, or call a Python function."
        )
    if known.view.throttle:
        return (
            f"For {share} of the core time cores were idle although tasks were ready: a throttle said how many run "
            f"together, at most {figures.most_running:.0f}. The next run begins with what it has learned."
        )
    hungry = [row for row in known.categories if row.memory_declared and (row.memory_waste or 0.0) > 0.5]
    if hungry:
        return (
            f"For {share} of the core time cores were idle although tasks were ready. Memory may have been the reason: "
            f"{hungry[0].name} left {percent(hungry[0].memory_waste or 0.0)} of its memory unused."
        )
    return (
        f"For {share} of the core time cores were idle although tasks were ready: something else than cores held them "
        "back, such as memory, a throttle or the time between two tasks."
    )


def _losses(known: Known) -> list[tuple[float, str]]:
    figures = known.figures
    if figures.lost <= 0.02 * (figures.busy + figures.lost) or not known.causes:
        return []
    worst = max(known.causes, key=lambda cause: cause.seconds)
    sentence = (
        f"Attempts that did not succeed took {percent(figures.lost, figures.busy + figures.lost)} of the work. "
        f"{count(worst.attempts, 'attempt')} of {', '.join(worst.categories)} lost {seconds(worst.seconds)}: "
        f"{worst.text}."
    )
    return [(figures.lost / figures.cores, sentence)]


def _requests(known: Known) -> list[tuple[float, str]]:
    """What tasks ask for beyond what they use; of each kind the category with which most would be gained."""
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
                f"Tasks of {row.name} declare {show_bytes(row.memory_declared)} of memory and used "
                f"{show_bytes(row.most_memory)} at most{_likewise(row, wasteful)}: declare {enough}, or nothing, and "
                "let it be learned.",
            )
        )
    idling = [
        row
        for row in rows
        if row.mean > _SHORT
        and row.cores_used < 0.5 * row.cores
        and (row.cores_declared or not known.view.throttle)  # a throttle sees to the others already
    ]
    if idling:
        row = max(idling, key=lambda each: (1 - each.cores_used / each.cores) * each.core_seconds)
        found.append(
            (
                (1 - row.cores_used / row.cores) * row.core_seconds / known.figures.cores / 2,
                f"Tasks of {row.name} hold {_cores(row.cores)} and keep {percent(row.cores_used, row.cores)} of that "
                f"busy{_likewise(row, idling)}: {_fewer_cores(row)}.",
            )
        )
    return found


def _likewise(row: CategoryRow, rows: Sequence[CategoryRow]) -> str:
    others = [each.name for each in rows if each is not row]
    return f" (likewise {', '.join(others[:2])}{' and others' * (len(others) > 2)})" if others else ""


def _fewer_cores(row: CategoryRow) -> str:
    if row.cores > 1:
        return f"declare {max(1, round(row.cores_used + 0.3))}"
    if row.cores_declared:
        return "declare no cores, so that a throttle may run more of them together"
    return "with '--throttle adaptive' more of them run together"


def _supposing(known: Known) -> Sequence[tuple[float, str]]:
    replayed = known.replayed
    if replayed is None or replayed.actual <= 0:
        return []
    found = []
    faster = [row for row in replayed.supposed if row.category]
    best = min(faster, key=lambda row: row.seconds, default=None)
    if best is not None and best.seconds < (1 - _SOME) * replayed.actual:
        found.append(
            (
                (replayed.actual - best.seconds) / 4,
                f"Had every task of {best.category} been twice as fast, the run would have taken about "
                f"{seconds(best.seconds)} instead of {seconds(replayed.actual)} (by {replayed.method}): no other "
                "category is as worth the work.",
            )
        )
    for row in replayed.supposed:
        if known.figures.crowded:
            break  # it was not cores that limited
        if row.cores > 1 and row.seconds < 0.75 * replayed.actual:
            gain = f"With {row.what} it would have taken about {seconds(row.seconds)}: it still scales."
            found.append(((replayed.actual - row.seconds) / 8, gain))
        if row.cores < 1 and row.seconds < 1.1 * replayed.actual:
            found.append(
                (
                    replayed.actual / 16,
                    f"With {row.what} it would have taken about {seconds(row.seconds)}: fewer would do.",
                )
            )
    return found
