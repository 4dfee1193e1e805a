"""One scheduler, of which all the document's schedulers are made: draws tasks, asks for resources, hands tasks over.

What it does with a task is always the same: draw it, ask a steward, submit it with what was granted, inject what it
gave, release. Three things are exchanged: how many are drawn ahead (`drawing`), what is asked for (`asking` and
`choosing`) and how often a task is tried (`Rescheduling`). It knows no time and does no I/O: who carries out its
commands answers every `SubmitTaskCommand` with one event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Protocol

import msgspec

from shoal.core.resources import is_label
from shoal.errors import InputError
from shoal.petri.records import Task
from shoal.petri.transition import meant
from shoal.resources.manager import ResourceManager
from shoal.resources.requests import Request
from shoal.resources.scheduler_interface import (
    Asking,
    ByProfile,
    CancelAttemptCommand,
    Command,
    Event,
    FailedEvent,
    Failing,
    FinishedEvent,
    Flow,
    Ignoring,
    LookEvent,
    ManagerEvents,
    PlacementRequest,
    StopEvent,
    StoppedEvent,
    SubmitTaskCommand,
)
from shoal.resources.tickets import Happening, ResourceGrant, TicketGranted, TicketLost, TicketRefused, TicketState

AHEAD = 64
MOST_AHEAD = 10_000


class DrawPolicy(Protocol):
    """Whether one more task is to be drawn."""

    def wants(self, waiting: int, running: int, is_idle: Callable[[], bool]) -> bool:
        """`waiting` have no resources yet; `is_idle` tells whether something is free that none of them can use."""


class OneAtATime(msgspec.Struct, frozen=True):
    """The document's base loop, which blocks in `acquire`: the next task is looked at when this one has resources."""

    def wants(self, waiting: int, running: int, is_idle: Callable[[], bool]) -> bool:
        return waiting == 0


class LookAhead(msgspec.Struct, frozen=True):
    """Up to `ahead` tasks wait, up to `most` while something is idle, and any number while nothing runs at all.

    The last rule is why this cannot hang. With a fixed bound, so many tasks of a class of which there is nothing would
    hide a task behind them that could run.
    """

    ahead: int = AHEAD
    most: int = MOST_AHEAD

    def wants(self, waiting: int, running: int, is_idle: Callable[[], bool]) -> bool:
        return waiting < self.ahead or not running or (waiting < self.most and is_idle())


DRAWN_AT_ONCE = 256
"""Tasks that one event leads to at most; more are drawn with the next one."""
_OTHERS = 16
"""Machines that are named as better ones for a task that has failed on another."""


class Rescheduling(msgspec.Struct, frozen=True):
    """How often a task is begun: `attempts` that may fail, and so many `losses` of its machines beside."""

    attempts: int = 1
    losses: int = 0


class Stage(Enum):
    """How far a task is that was drawn."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDING = "ending"
    """It was cancelled, and has not ended yet."""


class DrawnTask:
    """A task that was drawn and is not over."""

    __slots__ = ("avoid", "failed", "grant", "location", "lost", "stage", "task", "ticket", "unwanted", "way", "wish")

    def __init__(self, task: Task) -> None:
        self.task = task
        self.stage = Stage.WAITING
        self.wish = PlacementRequest(())
        self.location = ""
        self.ticket = 0
        self.grant: ResourceGrant | None = None
        self.way = ""
        self.failed = self.lost = 0
        self.avoid: list[str] = []
        """Machines on which it has failed."""
        self.unwanted = False
        """Whether it is of no use any more when it has ended."""


class ComposedScheduler:
    """Brings the tasks of one flow to the resources of one or several stewards."""

    def __init__(
        self,
        flow: Flow,
        stewards: ResourceManager | Mapping[str, ResourceManager],
        run: str = "run",
        *,
        drawing: DrawPolicy | None = None,
        asking: Asking | None = None,
        rescheduling: Rescheduling | None = None,
    ) -> None:
        """`run` names this scheduler at stewards that it shares with others."""
        self.flow = flow
        self.stewards = {"": stewards} if isinstance(stewards, ResourceManager) else dict(stewards)
        self.run = run
        self.drawing = drawing or OneAtATime()
        self.asking = asking or ByProfile()
        self.rescheduling = rescheduling or Rescheduling()
        self.failures: dict[int, str] = {}
        """Tasks that failed for good, with a sentence for each."""
        self.done = 0
        self._ignoring = flow if isinstance(flow, Ignoring) else None
        self._drawn: dict[int, DrawnTask] = {}
        self._by_ticket: dict[tuple[str, int], int] = {}
        self.waiting = 0
        """Tasks that were drawn and have no resources yet."""
        self._is_exhausted = False
        self._is_stopped = False

    # ---- what can be asked -----------------------------------------------------------------------------------------

    @property
    def is_hungry(self) -> bool:
        """Whether more would be drawn if there were another event."""
        return not self._is_exhausted and self._wants_more()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is drawn, and nothing could be at the last look."""
        return not self._drawn and (self._is_exhausted or self._is_stopped)

    def status(self) -> dict[int, str]:
        """Every task that was drawn and is not over: waiting, running or ending."""
        return {number: drawn.stage.value for number, drawn in self._drawn.items()}

    def waiting_for(self) -> dict[str, int]:
        """How many tasks wait for the same; one line of the steward each."""
        counts: dict[str, int] = {}
        for drawn in self._drawn.values():
            if drawn.stage is Stage.WAITING:
                what = ", ".join(map(str, drawn.wish.request))
                counts[what] = counts.get(what, 0) + 1
        return counts

    # ---- events ----------------------------------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Command]:
        """What follows from an event."""
        commands: list[Command] = []
        match event:
            case LookEvent():
                pass
            case FinishedEvent():
                self._finished(event, commands)
            case FailedEvent():
                self._failed(event, commands)
            case StoppedEvent():
                self._stopped(event, commands)
            case ManagerEvents():
                self._told(event.location, event.happenings, commands)
            case StopEvent():
                self._stop(commands)
        self._draw(commands)
        return commands

    def _finished(self, event: FinishedEvent, commands: list[Command]) -> None:
        drawn = self._current(event.task, event.attempt)
        if drawn is None:
            return
        if drawn.stage is Stage.ENDING:  # its end was being waited for, whatever it is
            self._ended(drawn, commands)
            return
        del self._drawn[event.task]
        self.asking.ended(drawn.task, drawn.way, event.seconds)
        followed = self.flow.inject(event.task, event.result, event.attempt)
        if followed.message:
            self.failures[event.task] = followed.message
        else:
            self.done += 1
        self._drop(followed.ignored, commands)  # before its resources go to one of those
        self._let_go(drawn, commands)

    def _failed(self, event: FailedEvent, commands: list[Command]) -> None:
        drawn = self._current(event.task, event.attempt)
        if drawn is None:
            return
        if drawn.stage is Stage.ENDING:
            self._ended(drawn, commands)
            return
        assert drawn.grant is not None
        drawn.failed += 1
        drawn.avoid += [node for node in drawn.grant.nodes() if node not in drawn.avoid]
        self._let_go(drawn, commands)
        self.asking.lost(drawn.task, drawn.way)
        limit = self.rescheduling.attempts
        if limit > 1:
            limit = max(limit, 1 + drawn.task.transition.profile.retries)
        self._again_or_never(drawn, drawn.failed < limit, event.message, commands)

    def _stopped(self, event: StoppedEvent, commands: list[Command]) -> None:
        drawn = self._current(event.task, event.attempt)
        if drawn is not None:
            if drawn.stage is Stage.RUNNING:
                drawn.lost += 1
            self._ended(drawn, commands)

    def _ended(self, drawn: DrawnTask, commands: list[Command]) -> None:
        """The processes of a task are gone, and it has come to nothing."""
        self._let_go(drawn, commands)
        self.asking.lost(drawn.task, drawn.way)
        if drawn.unwanted or self._is_stopped:
            del self._drawn[drawn.task.id]
            return
        self._again_or_never(
            drawn, drawn.lost <= self.rescheduling.losses, "what it ran on was lost while it ran", commands
        )

    def _again_or_never(self, drawn: DrawnTask, again: bool, message: str, commands: list[Command]) -> None:
        if again and not self._is_stopped:
            drawn.task = self.flow.extract(drawn.task.id)
            self._ask(drawn, commands)
        else:
            self._give_up(drawn, message, commands)

    def _give_up(self, drawn: DrawnTask, message: str, commands: list[Command]) -> None:
        """A task that holds nothing fails for good."""
        number = drawn.task.id
        del self._drawn[number]
        self.failures[number] = message
        if isinstance(self.flow, Failing):
            self._drop(self.flow.fail(number, message, drawn.task.attempt).ignored, commands)

    def _drop(self, ignored: Sequence[int], commands: list[Command]) -> None:
        """These tasks are not wanted any more."""
        for number in ignored:
            drawn = self._drawn.get(number)
            if drawn is not None:
                drawn.unwanted = True
                self._end(drawn, commands)

    def _stop(self, commands: list[Command]) -> None:
        self._is_stopped = True
        for drawn in list(self._drawn.values()):
            self._end(drawn, commands)

    def _end(self, drawn: DrawnTask, commands: list[Command]) -> None:
        """Takes a task out of its line, or has it cancelled."""
        if drawn.stage is Stage.WAITING:
            del self._drawn[drawn.task.id]
            self._let_go(drawn, commands)
        elif drawn.stage is Stage.RUNNING:
            drawn.stage = Stage.ENDING
            commands.append(CancelAttemptCommand(drawn.task.id, drawn.task.attempt))

    # ---- resources -------------------------------------------------------------------------------------------------

    def _ask(self, drawn: DrawnTask, commands: list[Command]) -> None:
        """A ticket for a task; it fails if nobody can ever grant that."""
        drawn.stage = Stage.WAITING
        problem: InputError | None = None
        try:
            drawn.wish = self.asking.wish(drawn.task)
        except InputError as error:
            self._give_up(drawn, str(error), commands)
            return
        for location in drawn.wish.locations or tuple(self.stewards)[:1]:
            steward = self.stewards[location]
            try:
                ticket = steward.request(self.run, _elsewhere(drawn.wish.request, drawn.avoid, steward))
            except InputError as error:
                problem = problem or error
                continue
            drawn.location, drawn.ticket = location, ticket.number
            self._by_ticket[location, ticket.number] = drawn.task.id
            self.waiting += 1
            if ticket.state is TicketState.GRANTED:
                self._granted(drawn, commands)
            return
        assert problem is not None, "at least one location was asked"
        self._give_up(drawn, self._refusal(drawn.task, problem), commands)

    def _refusal(self, task: Task, problem: InputError) -> str:
        """Why nobody can ever grant that; a class that nobody has is perhaps an option written wrong."""
        names = [name for name in task.transition.profile.resources.names() if not is_label(name)]
        has = [steward.forest.top.total for steward in self.stewards.values()]
        unknown = meant(name for name in names if not any(total.get(name) for total in has))
        return str(InputError(problem.message, remedy=unknown or problem.remedy))

    def _granted(self, drawn: DrawnTask, commands: list[Command]) -> None:
        drawn.grant = self.stewards[drawn.location].grant(drawn.ticket)
        drawn.stage = Stage.RUNNING
        self.waiting -= 1
        choice = next((place.choice for place in drawn.grant.places if place.requirement == 0), 0)
        drawn.way = drawn.wish.ways[choice]
        commands.append(SubmitTaskCommand(drawn.task, drawn.grant, drawn.location, drawn.way))

    def _let_go(self, drawn: DrawnTask, commands: list[Command]) -> None:
        """Gives back what a task holds, or its place in a line."""
        steward = self.stewards[drawn.location]
        del self._by_ticket[drawn.location, drawn.ticket]
        if drawn.stage is Stage.WAITING:
            self.waiting -= 1
        drawn.grant = None
        self._told(drawn.location, steward.cancel(drawn.ticket), commands)

    def _told(self, location: str, happenings: Sequence[Happening], commands: list[Command]) -> None:
        for happening in happenings:
            if happening.run != self.run:
                commands.append(ManagerEvents(location, (happening,)))
                continue
            number = self._by_ticket.get((location, happening.ticket))
            drawn = self._drawn.get(number) if number is not None else None
            if drawn is None:
                continue
            match happening:
                case TicketGranted():
                    self._granted(drawn, commands)
                case TicketRefused():
                    del self._by_ticket[location, happening.ticket]
                    self.waiting -= 1
                    self._give_up(drawn, happening.why, commands)
                case TicketLost():
                    self._lost(drawn, commands)

    def _lost(self, drawn: DrawnTask, commands: list[Command]) -> None:
        """What a task runs on is gone, or a part of it: then the rest of it has to end first."""
        if drawn.stage is Stage.RUNNING:
            drawn.lost += 1
            self._end(drawn, commands)
        if not self.stewards[drawn.location].grant(drawn.ticket).places:
            self._ended(drawn, commands)

    def _current(self, number: int, attempt: int) -> DrawnTask | None:
        """The task, if this is about its present attempt and that has begun."""
        drawn = self._drawn.get(number)
        if drawn is None or drawn.task.attempt != attempt or drawn.stage is Stage.WAITING:
            return None
        return drawn

    # ---- drawing ---------------------------------------------------------------------------------------------------

    def _draw(self, commands: list[Command]) -> None:
        self._is_exhausted = False
        for _ in range(DRAWN_AT_ONCE):
            if not self._wants_more():
                return
            number = self.flow.next()
            if self._ignoring is not None:
                self._drop(self._ignoring.take_ignored(), commands)
            if number is None:
                self._is_exhausted = True
                return
            drawn = self._drawn[number] = DrawnTask(self.flow.extract(number))
            self._ask(drawn, commands)

    def _wants_more(self) -> bool:
        if self._is_stopped:
            return False
        return self.drawing.wants(self.waiting, len(self._drawn) - self.waiting, self._has_idle)

    def _has_idle(self) -> bool:
        return any(count for steward in self.stewards.values() for count in steward.forest.top.free.values())


def _elsewhere(request: Request, avoid: Sequence[str], steward: ResourceManager) -> Request:
    """The same on other machines, if there are others."""
    if not avoid:
        return request
    others = [root.name for root in steward.forest.roots() if root.name not in avoid][:_OTHERS]
    return tuple(
        msgspec.structs.replace(each, prefer=(*(name for name in each.prefer if name not in avoid), *others))
        for each in request
    )
