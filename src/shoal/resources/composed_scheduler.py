"""The scheduler from which all GSPC schedulers are composed: draws tasks, requests resources, submits tasks.

Every task is drawn from the flow, requests resources from a resource manager, is submitted with its grant, and its
result is injected and its resources released. Three policies vary: how many tasks are drawn ahead (`DrawPolicy`), what
is requested (`Asking`), and how often a task is tried (`Rescheduling`). The scheduler has no clock and does no I/O: the
driver that executes its commands answers every `SubmitTaskCommand` with one event.
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
    """Decides whether another task is drawn."""

    def wants(self, waiting: int, running: int, is_idle: Callable[[], bool]) -> bool:
        """`waiting` tasks have no resources yet; `is_idle` tells whether something is free that none of them can
        use."""


class OneAtATime(msgspec.Struct, frozen=True):
    """The base loop of GSPC, which blocks in `acquire`: the next task is drawn when this one has resources."""

    def wants(self, waiting: int, running: int, is_idle: Callable[[], bool]) -> bool:
        return waiting == 0


class LookAhead(msgspec.Struct, frozen=True):
    """Up to `ahead` tasks wait, up to `most` while something is idle, and any number while nothing runs at all.

    The last rule prevents a deadlock. With a fixed bound, waiting tasks of an unavailable class would hide a task
    behind them that could run.
    """

    ahead: int = AHEAD
    most: int = MOST_AHEAD

    def wants(self, waiting: int, running: int, is_idle: Callable[[], bool]) -> bool:
        return waiting < self.ahead or not running or (waiting < self.most and is_idle())


DRAWN_AT_ONCE = 256
"""Maximum number of tasks drawn per event; more are drawn with the next event."""
_MOST_ALTERNATIVES = 16
"""Maximum number of alternative machines listed for a task that has failed on another one."""


class Rescheduling(msgspec.Struct, frozen=True):
    """Limits on restarting a task: it may fail up to `attempts` times and, counted separately, lose its machine up to
    `losses` times."""

    attempts: int = 1
    losses: int = 0


class Stage(Enum):
    """State of a drawn task."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDING = "ending"
    """Cancelled, but its processes have not ended yet."""


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
        """Whether its result is not needed any more."""


class ComposedScheduler:
    """Assigns the tasks of one flow to the resources of one or several resource managers."""

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
        """`run` identifies this scheduler at resource managers that it shares with others."""
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
        """Number of drawn tasks without resources."""
        self._is_exhausted = False
        self._is_stopped = False

    # ---- state -----------------------------------------------------------------------------------------------------

    @property
    def is_hungry(self) -> bool:
        """Whether more tasks would be drawn at another event."""
        return not self._is_exhausted and self._wants_more()

    @property
    def is_idle(self) -> bool:
        """Whether no task is drawn, and none was available at the last attempt to draw."""
        return not self._drawn and (self._is_exhausted or self._is_stopped)

    def status(self) -> dict[int, str]:
        """State of every drawn task that is not over: waiting, running or ending."""
        return {number: drawn.stage.value for number, drawn in self._drawn.items()}

    def waiting_for(self) -> dict[str, int]:
        """Number of waiting tasks per request."""
        counts: dict[str, int] = {}
        for drawn in self._drawn.values():
            if drawn.stage is Stage.WAITING:
                what = ", ".join(map(str, drawn.wish.request))
                counts[what] = counts.get(what, 0) + 1
        return counts

    # ---- events ----------------------------------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Command]:
        """Processes one event and returns commands."""
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
                self._on_manager_events(event.location, event.happenings, commands)
            case StopEvent():
                self._stop(commands)
        self._draw(commands)
        return commands

    def _finished(self, event: FinishedEvent, commands: list[Command]) -> None:
        drawn = self._current(event.task, event.attempt)
        if drawn is None:
            return
        if drawn.stage is Stage.ENDING:  # it was cancelled; its outcome no longer matters
            self._ended(drawn, commands)
            return
        del self._drawn[event.task]
        self.asking.ended(drawn.task, drawn.way, event.seconds)
        followed = self.flow.inject(event.task, event.result, event.attempt)
        if followed.message:
            self.failures[event.task] = followed.message
        else:
            self.done += 1
        self._drop(followed.ignored, commands)  # before the freed resources are granted to one of those
        self._release(drawn, commands)

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
        self._release(drawn, commands)
        self.asking.lost(drawn.task, drawn.way)
        limit = self.rescheduling.attempts
        if limit > 1:
            limit = max(limit, 1 + drawn.task.transition.profile.retries)
        self._retry_or_fail(drawn, drawn.failed < limit, event.message, commands)

    def _stopped(self, event: StoppedEvent, commands: list[Command]) -> None:
        drawn = self._current(event.task, event.attempt)
        if drawn is not None:
            if drawn.stage is Stage.RUNNING:
                drawn.lost += 1
            self._ended(drawn, commands)

    def _ended(self, drawn: DrawnTask, commands: list[Command]) -> None:
        """The processes of a task have ended without a result."""
        self._release(drawn, commands)
        self.asking.lost(drawn.task, drawn.way)
        if drawn.unwanted or self._is_stopped:
            del self._drawn[drawn.task.id]
            return
        self._retry_or_fail(
            drawn, drawn.lost <= self.rescheduling.losses, "its resources were lost while it was running", commands
        )

    def _retry_or_fail(self, drawn: DrawnTask, again: bool, message: str, commands: list[Command]) -> None:
        if again and not self._is_stopped:
            drawn.task = self.flow.extract(drawn.task.id)
            self._ask(drawn, commands)
        else:
            self._give_up(drawn, message, commands)

    def _give_up(self, drawn: DrawnTask, message: str, commands: list[Command]) -> None:
        """Fails a task that holds no resources for good."""
        number = drawn.task.id
        del self._drawn[number]
        self.failures[number] = message
        if isinstance(self.flow, Failing):
            self._drop(self.flow.fail(number, message, drawn.task.attempt).ignored, commands)

    def _drop(self, ignored: Sequence[int], commands: list[Command]) -> None:
        """Ends tasks whose results are not needed any more."""
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
        """Cancels a waiting task at once, or requests the cancellation of a running one."""
        if drawn.stage is Stage.WAITING:
            del self._drawn[drawn.task.id]
            self._release(drawn, commands)
        elif drawn.stage is Stage.RUNNING:
            drawn.stage = Stage.ENDING
            commands.append(CancelAttemptCommand(drawn.task.id, drawn.task.attempt))

    # ---- resources -------------------------------------------------------------------------------------------------

    def _ask(self, drawn: DrawnTask, commands: list[Command]) -> None:
        """Requests resources for a task; the task fails if no manager can ever grant them."""
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
                ticket = steward.request(self.run, _on_other_machines(drawn.wish.request, drawn.avoid, steward))
            except InputError as error:
                problem = problem or error
                continue
            drawn.location, drawn.ticket = location, ticket.number
            self._by_ticket[location, ticket.number] = drawn.task.id
            self.waiting += 1
            if ticket.state is TicketState.GRANTED:
                self._granted(drawn, commands)
            return
        assert problem is not None, "no location was asked"
        self._give_up(drawn, self._refusal(drawn.task, problem), commands)

    def _refusal(self, task: Task, problem: InputError) -> str:
        """Why no manager can ever grant the request; an unknown class may be a misspelled option."""
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

    def _release(self, drawn: DrawnTask, commands: list[Command]) -> None:
        """Releases the resources of a task, or cancels its request."""
        steward = self.stewards[drawn.location]
        del self._by_ticket[drawn.location, drawn.ticket]
        if drawn.stage is Stage.WAITING:
            self.waiting -= 1
        drawn.grant = None
        self._on_manager_events(drawn.location, steward.cancel(drawn.ticket), commands)

    def _on_manager_events(self, location: str, happenings: Sequence[Happening], commands: list[Command]) -> None:
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
        """Resources of a running task were lost: the rest of the task must end first."""
        if drawn.stage is Stage.RUNNING:
            drawn.lost += 1
            self._end(drawn, commands)
        if not self.stewards[drawn.location].grant(drawn.ticket).places:
            self._ended(drawn, commands)

    def _current(self, number: int, attempt: int) -> DrawnTask | None:
        """The task, if the attempt is its current one and has started."""
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


def _on_other_machines(request: Request, avoid: Sequence[str], steward: ResourceManager) -> Request:
    """The same request on other machines, if there are any."""
    if not avoid:
        return request
    others = [root.name for root in steward.forest.roots() if root.name not in avoid][:_MOST_ALTERNATIVES]
    return tuple(
        msgspec.structs.replace(each, prefer=(*(name for name in each.prefer if name not in avoid), *others))
        for each in request
    )
