"""Why a task waits that needs others: the chain from it to the ancestor that holds all up, and when it could start.

Where durations are known the chain is the one that is expected to take longest; otherwise the one that is furthest from
running. What is known of tasks comes from a `Source`: a run on one machine, a store with nodes, or a simulator.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from shoal.explain.answer import Answer, Cause
from shoal.explain.foresight import Foreseen, Step, played
from shoal.explain.outlook import is_overdue
from shoal.flow.dag import Status

MOST_ANCESTORS = 20_000
"""Of what is known at once; beyond that the first chain that is found is taken."""
MOST_TOLD = 50
"""Tasks at each end of a chain."""
NEVER = float("inf")
_PLAIN = {Status.DONE: Cause.DONE, Status.FAILED: Cause.FAILED, Status.EXCLUDED: Cause.EXCLUDED}


class Source(Protocol):
    """What is known of a run at one moment."""

    @property
    def now(self) -> float: ...

    def status(self, task: int) -> Status:
        """Where a task stands; `READY` for all that some broker has or is about to get."""

    def needs(self, task: int) -> Iterable[int]:
        """The tasks that it waits for, done or not."""

    def held(self, task: int) -> Answer:
        """Why a ready task is where it is."""

    def seconds(self, task: int) -> float | None:
        """How long it is expected to take; None if nothing of its kind has ended yet."""

    def running_since(self, task: int) -> float | None:
        """When it was started, if it runs."""

    def may_start(self, task: int) -> float | None:
        """When a ready task that does not run is expected to start, as far as is known; None if it cannot, or if that
        cannot be said."""

    def share(self, task: int) -> float | None:
        """Which part of all there is a task takes while it runs; None if none like it may start as things are."""

    @property
    def stopping(self) -> str | None:
        """Why nothing more is started in the whole run, empty if nobody has said it; None if that is not so."""

    @property
    def horizon(self) -> int:
        """How many unfinished ancestors are looked at, at most, to say when a task might start."""


def explain(source: Source, task: int) -> Answer:
    """Why a task is where it is."""
    status = source.status(task)
    if status in _PLAIN:
        return Answer(task, _PLAIN[status])
    if status is Status.READY:
        return source.held(task)
    if status is Status.DOOMED:
        return _doomed(source, task)
    return _waiting(source, task)


def _doomed(source: Source, task: int) -> Answer:
    """The chain to what failed."""
    chain: list[int] = []
    current = task
    while source.status(current) is Status.DOOMED:
        lost = [other for other in source.needs(current) if source.status(other) in (Status.FAILED, Status.DOOMED)]
        if not lost:
            break  # what failed has been taken back since
        current = next((other for other in lost if source.status(other) is Status.FAILED), lost[0])
        chain.append(current)
    root = Answer(chain[-1], Cause.FAILED) if chain and source.status(chain[-1]) is Status.FAILED else None
    return _shortened(Answer(task, Cause.DOOMED, chain=chain, links=len(chain), root=root))


def _unfinished(source: Source, task: int) -> list[int]:
    return [other for other in dict.fromkeys(source.needs(task)) if source.status(other) <= Status.READY]


def _waiting(source: Source, task: int) -> Answer:
    unfinished = _unfinished(source, task)
    stopping = source.stopping
    answer = Answer(task, Cause.NEEDS, unfinished=len(unfinished))
    if stopping is not None:
        answer.cause, answer.detail = Cause.STOPPING, stopping
    elif not unfinished:
        answer.cause = Cause.ARRIVING
    if not unfinished:
        return answer
    foreseen = _foreseen(source, task)
    finish = foreseen.finish if foreseen is not None else None
    current, needed = task, unfinished
    while needed:
        current = max(needed, key=lambda other: _lateness(source, other, finish)) if len(needed) > 1 else needed[0]
        answer.chain.append(current)
        needed = _unfinished(source, current) if source.status(current) is Status.WAITING else []
    answer.links = len(answer.chain)
    answer.root = explain(source, current)
    if foreseen is not None and stopping is None:
        answer.starts = _expected(source, answer.root, foreseen)
    return _shortened(answer)


def _shortened(answer: Answer) -> Answer:
    """Of a very long chain the middle is left out."""
    if answer.links > 2 * MOST_TOLD:
        answer.chain = answer.chain[:MOST_TOLD] + answer.chain[-MOST_TOLD:]
    return answer


def _lateness(source: Source, task: int, finish: dict[int, float] | None) -> tuple[float, bool, int]:
    """The larger, the longer it is thought to be until a task is done; of equals the first one counts."""
    moment = finish.get(task, 0.0) if finish is not None else 0.0
    return moment, source.status(task) is Status.WAITING, -task


def _foreseen(source: Source, task: int) -> Foreseen | None:
    """When each unfinished ancestor would be done if only its own needs, and its place in a queue, held it up; None if
    that is not known."""
    foreseen = Foreseen({}, {})
    finish = foreseen.finish
    stack = _unfinished(source, task)
    while stack:
        current = stack[-1]
        if current in finish:
            stack.pop()
            continue
        seconds = source.seconds(current)
        if seconds is None or len(finish) + len(stack) > source.horizon:
            return None
        needed = _unfinished(source, current) if source.status(current) is Status.WAITING else []
        missing = [other for other in needed if other not in finish]
        if missing:
            stack += missing
            continue
        start = source.running_since(current)
        is_placed = start is not None
        if needed:
            start = max(finish[other] for other in needed)
        elif start is None:
            start = source.may_start(current) if source.status(current) is Status.READY else source.now
            is_placed = start is not None and start > source.now
        foreseen.is_unknown |= start is None or is_overdue(start + seconds, source.now)
        finish[current] = max(source.now, start + seconds) if start is not None else NEVER
        foreseen.steps[current] = Step(seconds, needed, is_placed)
        stack.pop()
    return foreseen


def _expected(source: Source, root: Answer, foreseen: Foreseen) -> float | None:
    """When all its ancestors should be done; None if one of them cannot start, or runs for longer than it should."""
    if foreseen.is_unknown or root.overdue:
        return None
    seconds, now = foreseen.steps[root.task].seconds, source.now
    if root.cause is not Cause.RUNNING:
        if root.starts is None:
            return None
        end = root.starts + seconds
    else:
        begun = root.since if root.since is not None else now
        end = root.until if root.until is not None else begun + seconds
        if is_overdue(end, now):
            return None
    return played(foreseen, source.share, {root.task: max(end, now)}, now)
