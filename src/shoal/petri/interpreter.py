"""Execution of a net (`NetFlow`): fires steps, hands out tasks, takes results; can be stopped and resumed anywhere.

`next` fires steps until only tasks are left, then lets one task take its tokens and returns its number. `extract`
returns what must be run, `inject` and `fail` report the outcome. The driver decides where and when tasks run, writes
the records, keeps the checkpoints, and repeats a failed task before it calls `fail`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from shoal.errors import InputError
from shoal.petri import records as r
from shoal.petri.enabling import NOBODY, Dice, Firing, IndexedPlace, LivePlace, Serials, TransitionAgenda, prepare
from shoal.petri.language import NOTHING, Each, Eureka, Failure, Place, Result
from shoal.petri.net import Net, check_type
from shoal.petri.transition import Transition, shortened

Output = tuple[LivePlace, Sequence[object]]
Part = Result | Eureka
_SEEDS = 1 << 63


class Flight:
    """A task that has taken its tokens and is not over."""

    __slots__ = ("attempt", "firing", "id", "values")

    def __init__(self, id: int, firing: Firing, values: Sequence[Any], attempt: int = 0) -> None:
        self.id = id
        self.firing = firing
        self.values = values
        self.attempt = attempt


class NetInterpreter:
    """Places, transitions and running tasks of one run."""

    def __init__(self, net: Net, seed: int | None, state: r.NetState | None) -> None:
        if state is not None:
            check_state(net, state)
        begin = first_state(net, seed) if state is None else state
        self.net = net
        self.seed = begin.seed
        self._load(begin)

    def _load(self, state: r.NetState) -> None:
        """Restores the state of a run."""
        net = self.net
        self._serials = Serials()
        self._places, self._firings = prepare(net, self._serials)
        self._by_name = {firing.spec.name: firing for firing in self._firings}
        self._keys: dict[object, LivePlace] = {net.places[name].place: place for name, place in self._places.items()}
        self._keys.update(self._places)
        self._dice = Dice(state.dice)
        ranks = len({firing.rank for firing in self._firings})
        self._steps, self._tasks = (
            TransitionAgenda(ranks, None if self.seed is None else self._dice) for _ in range(2)
        )
        self._steps.looks, self._tasks.looks = state.steps, state.tasks
        self._fill(state)
        self._flights: dict[int, Flight] = {}
        for flight in state.flights:
            firing = self._by_name[flight.transition]
            self._flights[flight.task] = Flight(flight.task, firing, flight.values, flight.attempt)
            for _, place in firing.taken:
                place.flying += 1
        self._again: deque[int] = deque()
        self._ignored: list[int] = []
        self._set_aside = dict(state.set_aside)
        self._failures = list(state.failures)
        self._groups = dict.fromkeys(state.closed_groups)
        self._once = dict.fromkeys(state.fired_once)
        self._next_task = state.next_task
        self.closed = state.closed
        self._result = state.result
        for name in state.agenda:
            self._wake(self._by_name[name])
        for firing in self._firings:
            name = firing.spec.name
            if name in self._once or name in self._set_aside or firing.spec.group in self._groups:
                stop(firing)

    def _fill(self, state: r.NetState) -> None:
        """Puts the tokens of a state on the places; tokens with serial numbers in their order."""
        self._serials.last = state.serial
        numbered: list[tuple[int, IndexedPlace, object, int]] = []
        plain: list[tuple[LivePlace, object, int]] = []
        for name, tokens in state.marking.items():
            place = self._places[name]
            for serial, value, barred in tokens:
                bar = self._by_name[barred].number if barred else NOBODY
                if isinstance(place, IndexedPlace) and serial:
                    numbered.append((serial, place, value, bar))
                else:
                    plain.append((place, value, bar))
        for serial, indexed, value, bar in sorted(numbered, key=lambda item: item[0]):
            indexed.restore(serial, value, bar)
        for place, value, bar in plain:
            place.put_back(value, bar)

    def state(self) -> r.NetState:
        """Returns a checkpoint; O(tokens)."""
        names = [firing.spec.name for firing in self._firings]
        return r.NetState(
            net=self.net.name,
            marking={
                name: [(serial, value, "" if bar == NOBODY else names[bar]) for serial, value, bar in place.contents()]
                for name, place in self._places.items()
            },
            flights=[
                r.FlightState(flight.id, flight.firing.spec.name, flight.attempt, tuple(flight.values))
                for flight in self._flights.values()
            ],
            set_aside=dict(self._set_aside),
            failures=list(self._failures),
            fired_once=list(self._once),
            closed_groups=list(self._groups),
            closed=self.closed,
            result=self._result,
            agenda=[*self._steps.names(), *self._tasks.names()],
            steps=self._steps.looks,
            tasks=self._tasks.looks,
            next_task=self._next_task,
            serial=self._serials.last,
            seed=self.seed,
            dice=self._dice.state,
        )

    def _wake(self, firing: Firing) -> None:
        if not firing.queued and not firing.stopped:
            firing.queued = True
            (self._tasks if firing.spec.is_task else self._steps).append(firing)

    def _fire(self, agenda: TransitionAgenda, looks: int) -> int | None:
        """Examines up to `looks` transitions and fires those that can; returns the number of the first task fired."""
        pick, append = agenda.pick, agenda.append
        while looks > 0 and not self._result:
            firing = pick()
            if firing is None:
                break
            looks -= 1
            values = None
            try:
                values = firing.bind()
                if values is None:
                    firing.queued = False
                    continue
                spec = firing.spec
                if spec.is_task:
                    return self._launch(firing, values)
                outputs, parts = self._outputs(spec, firing.call(*values))
            except Exception as error:  # guards and steps are user code and may raise anything
                self._disable(firing, values, error)
                continue
            if spec.once:
                self._once[spec.name] = None
                stop(firing)
                firing.queued = False
            else:
                append(firing)
            if firing.wakes:
                self._wake_all(firing.wakes)
            self._deliver(outputs, parts)
        return None

    def _launch(self, firing: Firing, values: Sequence[Any]) -> int:
        """Registers a task that has taken its tokens."""
        self._next_task = task = self._next_task + 1
        self._flights[task] = Flight(task, firing, values)
        for _, place in firing.taken:
            place.flying += 1
        firing.queued = False
        if firing.spec.once:
            self._once[firing.spec.name] = None
            stop(firing)
        else:
            self._wake(firing)
        return task

    def _disable(self, firing: Firing, values: Sequence[Any] | None, error: Exception) -> None:
        """Disables a transition whose guard or function raised an exception; its tokens return."""
        what = "a guard or key" if values is None else "the function"
        self._set_aside[firing.spec.name] = firing.spec.complaint(what, error)
        stop(firing)
        if values is not None:
            for at, place in firing.taken:
                place.put_back(values[at], firing.number)
                self._wake_all(place.watchers)

    def _wake_all(self, numbers: Sequence[int]) -> None:
        firings = self._firings
        for number in numbers:
            firing = firings[number]
            if not firing.queued:
                self._wake(firing)

    def _place_of(self, spec: Transition, key: object) -> LivePlace:
        """The place that a transition returned as a key, even as an unpickled copy; raises InputError if there is
        none."""
        kind = "task" if spec.is_task else "step"
        what = f"net {self.net.name!r}: the result of the {kind} {spec.name!r}"
        return self._places[self.net.spec_of(key, what).place.name]

    def _outputs(self, spec: Transition, returned: object) -> tuple[list[Output], Sequence[Part]]:
        """Checks the whole return value of a transition before any token is put."""
        kind = type(returned)
        if kind is dict and spec.put is None:
            return self._checked(spec, returned), ()  # type: ignore[arg-type]  # mypy does not narrow by type()
        if isinstance(returned, (Result, Eureka)):
            self._check_groups(spec, returned)
            return [], (returned,)
        if spec.put is not None:
            if isinstance(returned, tuple) and any(isinstance(part, (Result, Eureka)) for part in returned):
                return self._several(spec, returned)
            return self._checked(spec, {spec.put: returned}), ()
        if returned is None or returned is NOTHING:
            return [], ()
        if isinstance(returned, tuple):
            return self._several(spec, returned)
        if isinstance(returned, Mapping):
            return self._checked(spec, returned), ()
        raise InputError(
            f"net {self.net.name!r}: {spec.name!r} returned {shortened(returned)}, which names no place",
            remedy="return a mapping from places to tokens, or use put=place",
        )

    def _check_groups(self, spec: Transition, part: Part) -> None:
        if isinstance(part, Eureka):
            known = dict.fromkeys(firing.spec.group for firing in self._firings if firing.spec.group)
            for group in part.groups:
                if group not in known:
                    raise InputError(
                        f"net {self.net.name!r}: {spec.name!r} cancels the group {group!r}, which no task is in",
                        remedy=f"the groups are {', '.join(known)}" if known else "give some tasks group=",
                    )

    def _several(self, spec: Transition, returned: tuple[object, ...]) -> tuple[list[Output], Sequence[Part]]:
        """A tuple of return values, such as tokens and an eureka."""
        outputs: list[Output] = []
        parts: list[Part] = []
        for item in returned:
            more, further = self._outputs(spec, item)
            outputs += more
            parts += further
        return outputs, parts

    def _checked(self, spec: Transition, returned: Mapping[object, object]) -> list[Output]:
        outputs: list[Output] = []
        keys = self._keys
        for key, value in returned.items():
            if value is NOTHING:
                continue
            place = keys.get(key)
            if place is None:
                place = self._place_of(spec, key)
            values = value.values if type(value) is Each else (value,)
            if place.spec.type is not None:
                for token in values:
                    check_type(self.net.name, place.spec, token)
            outputs.append((place, values))
        return outputs

    def _deliver(self, outputs: Sequence[Output], parts: Sequence[Part]) -> None:
        """Puts checked tokens on their places, then executes the other parts of the return value."""
        firings = self._firings
        for place, values in outputs:
            add = place.add
            for value in values:
                add(value)
            if values:
                for number in place.watchers:
                    if not firings[number].queued:
                        self._wake(firings[number])
        for part in parts:
            if isinstance(part, Eureka):
                self._cancel_groups(part)
            elif not self._result:
                self._result = (part.value,)
                for flight in list(self._flights.values()):
                    self._ignore(flight)

    def _cancel_groups(self, eureka: Eureka) -> None:
        for flight in list(self._flights.values()):
            if flight.firing.spec.group in eureka.groups:
                self._ignore(flight)
        if not eureka.again:
            for firing in self._firings:
                if firing.spec.group and firing.spec.group in eureka.groups:
                    self._groups[firing.spec.group] = None
                    stop(firing)

    def _land(self, flight: Flight) -> None:
        """Ends a task, whatever its outcome: its tokens no longer count, and its window token returns."""
        del self._flights[flight.id]
        firing = flight.firing
        for _, place in firing.taken:
            place.flying -= 1
        for at, place in firing.held:
            place.add(flight.values[at])
            self._wake_all(place.watchers)
        self._wake_all(firing.wakes)

    def _ignore(self, flight: Flight) -> None:
        self._land(flight)
        self._ignored.append(flight.id)

    def _given(self, flight: Flight, result: object) -> object:
        """What the result of a task puts on the places: usually the return value itself."""
        spec = flight.firing.spec
        if spec.gives is not None:
            return spec.rendered("gives", spec.gives, flight.values)
        return NOTHING if spec.command is not None and spec.put is None else result

    def _fail(self, flight: Flight, message: str) -> None:
        firing, spec = flight.firing, flight.firing.spec
        self._land(flight)
        if spec.on_error is not None:
            token = Failure(spec.name, message, spec.arguments(flight.values))
            self._deliver([(self._places[spec.on_error.name], (token,))], ())
            return
        self._failures.append(r.UnhandledFailure(flight.id, spec.name, message))
        for at, place in firing.taken:
            if (at, place) not in firing.held:
                place.put_back(flight.values[at], firing.number)
                self._wake_all(place.watchers)


def stop(firing: Firing) -> None:
    """Prevents all further firings of a transition."""
    firing.stopped = True
    firing.bind = _never


def _never() -> None:
    return None


def first_state(net: Net, seed: int | None) -> r.NetState:
    """The initial marking of a net; all transitions are queued for examination."""
    if seed is not None and (not isinstance(seed, int) or not -_SEEDS <= seed < _SEEDS):
        raise InputError(f"net {net.name!r}: a seed must be a 64-bit integer, not {shortened(seed)}")
    return r.NetState(
        net=net.name,
        marking={name: [(0, token, "") for token in spec.tokens] for name, spec in net.places.items()},
        flights=[],
        set_aside={},
        failures=[],
        fired_once=[],
        closed_groups=[],
        closed=not net.keep_open,
        result=(),
        agenda=list(net.transitions),
        steps=0,
        tasks=0,
        next_task=0,
        serial=0,
        seed=seed,
        dice=seed or 0,
    )


def lifted(state: r.NetState) -> r.NetState:
    """A copy of the state in which no token is barred from a transition."""
    names = dict.fromkeys([*state.agenda, *state.set_aside])
    barred = [bar for tokens in state.marking.values() for _, _, bar in tokens if bar]
    return msgspec.structs.replace(
        state,
        marking={name: [(serial, value, "") for serial, value, _ in tokens] for name, tokens in state.marking.items()},
        set_aside={},
        failures=[],
        agenda=list(names | dict.fromkeys(barred)),
    )


def check_state(net: Net, state: r.NetState) -> None:
    """Raises `InputError` if the state belongs to another net."""
    if state.net != net.name:
        raise InputError(f"the saved state belongs to net {state.net!r}, not to {net.name!r}")
    for name in state.marking:
        if name not in net.places:
            raise InputError(f"the saved state has place {name!r}, which is not in net {net.name!r}")
    flying = [flight.transition for flight in state.flights]
    barred = [bar for tokens in state.marking.values() for _, _, bar in tokens if bar]
    for name in (*flying, *state.agenda, *state.set_aside, *state.fired_once, *barred):
        if name not in net.transitions:
            raise InputError(f"the saved state has transition {name!r}, which is not in net {net.name!r}")


LOOKS_PER_CALL = 10_000
"""Maximum number of steps examined in one call of `next`, so that an endless loop of steps can be interrupted."""


class NetFlow(NetInterpreter):
    """One run of a net. Every change is made by a method of this class, and each writes at most one record.

    `resume` continues a run that was stopped.
    """

    def __init__(
        self,
        net: Net,
        seed: int | None = None,
        record: Callable[[r.Record], None] | None = None,
        *,
        state: r.NetState | None = None,
    ) -> None:
        super().__init__(net, seed, state)
        self._record = record

    @classmethod
    def resume(
        cls,
        net: Net,
        state: r.NetState | None = None,
        records: Iterable[r.Record] = (),
        *,
        seed: int | None = None,
        record: Callable[[r.Record], None] | None = None,
    ) -> NetFlow:
        """The flow after these records, which follow the state (or the initial state).

        The seed is that of the state, if there is one. Tasks that were running are handed out again, before all others
        and under their old numbers.
        """
        flow = cls(net, seed, state=state)
        for item in records:
            flow.apply(item)
        flow._again.extend(flow._flights)
        flow._record = record
        return flow

    @property
    def is_finished(self) -> bool:
        """Whether the result is known, or nothing can run and no token can come from outside."""
        return bool(self._result) or (self.closed and not self._flights and not self.is_busy)

    @property
    def is_busy(self) -> bool:
        """Whether `next` has something to examine; if it has just returned None, it had reached its limit."""
        return not self._result and bool(self._again or self._steps or self._tasks)

    @property
    def result(self) -> object:
        """The value that a transition returned with `net.result`, or None."""
        return self._result[0] if self._result else None

    @property
    def has_result(self) -> bool:
        """Whether a transition returned a result, which may be None."""
        return bool(self._result)

    def problems(self) -> list[str]:
        """One sentence for each disabled transition and each task that failed for good."""
        return [*self._set_aside.values(), *(trouble.message for trouble in self._failures)]

    def next(self, limit: int = LOOKS_PER_CALL) -> int | None:
        """The number of a task that has taken its tokens; None if there is none, or none was found within the limit.

        After `limit` examined steps a task gets its turn even if steps could continue.
        """
        while self._again:
            if (task := self._again.popleft()) in self._flights:
                return task
        before = self._steps.looks
        self._fire(self._steps, limit)
        exhausted = self._steps.looks - before >= limit and bool(self._steps)
        found = self._fire(self._tasks, len(self._firings) + 1)
        if self._record is not None:
            if found is not None:
                name = self._flights[found].firing.spec.name
                self._record(r.Fired(task=found, transition=name, **self._moment()))
            elif exhausted:
                self._record(r.Stepped(**self._moment()))
        return found

    def extract(self, task: int) -> r.Task:
        """What must be run. A second call returns the next attempt; the result of an older one no longer counts."""
        flight = self._flights[task]
        if self._record is not None:
            self._record(r.Extracted(task=task, attempt=flight.attempt + 1, **self._moment()))
        flight.attempt += 1
        spec = flight.firing.spec
        return r.Task(task, flight.attempt, spec.arguments(flight.values), spec, tuple(flight.values))

    def inject(self, task: int, result: object, attempt: int | None = None) -> r.Followed:
        """Records the result of a task: its input tokens are consumed, and all its output tokens appear at once."""
        flight = self._flights.get(task)
        if flight is None or (attempt is not None and attempt != flight.attempt):
            return self._follow()
        if self._record is not None:
            self._record(r.Injected(task=task, result=result, **self._moment()))
        try:
            outputs, parts = self._outputs(flight.firing.spec, self._given(flight, result))
        except Exception as error:  # a result is a user's object, whose methods may raise anything
            message = (
                flight.firing.spec.complaint("the result", error) if not isinstance(error, InputError) else str(error)
            )
            self._fail(flight, message)
            return self._follow(message)
        self._land(flight)
        self._deliver(outputs, parts)
        return self._follow()

    def fail(self, task: int, message: str, attempt: int | None = None) -> r.Followed:
        """Records that a task failed for good: its tokens return, or a `Failure` goes to its `on_error` place.

        Returned tokens are not offered to the same transition again, only to others, until `retry`.
        """
        flight = self._flights.get(task)
        if flight is None or (attempt is not None and attempt != flight.attempt):
            return self._follow()
        if self._record is not None:
            self._record(r.Failed(task=task, message=message, **self._moment()))
        self._fail(flight, message)
        return self._follow()

    def cancel(self, task: int) -> r.Followed:
        """Cancels a task; the tokens it took are lost."""
        flight = self._flights.get(task)
        if flight is not None:
            if self._record is not None:
                self._record(r.Cancelled(task=task, **self._moment()))
            self._ignore(flight)
        return self._follow()

    def put(self, place: Place | str, *tokens: object) -> None:
        """Puts tokens from outside on a place, all or none; raises `InputError` for a token of the wrong type."""
        spec = self.net.spec_of(place)
        for token in tokens:
            check_type(self.net.name, spec, token)
        if self.is_finished:
            raise InputError(
                f"net {self.net.name!r} is over and takes no more tokens", remedy="use keep_open=True for the net"
            )
        if self._record is not None:
            self._record(r.Put(place=spec.place.name, values=tokens, **self._moment()))
        self._deliver([(self._places[spec.place.name], tokens)], ())

    def close(self) -> None:
        """Declares that no more tokens will come from outside."""
        if not self.closed:
            if self._record is not None:
                self._record(r.Closed(**self._moment()))
            self.closed = True

    def retry(self) -> None:
        """Offers returned tokens again and enables disabled transitions."""
        if self._record is not None:
            self._record(r.Retried(**self._moment()))
        again, ignored = self._again, self._ignored
        self._load(lifted(self.state()))
        self._again, self._ignored = again, ignored

    def _moment(self) -> dict[str, int]:
        return {"steps": self._steps.looks, "tasks": self._tasks.looks}

    def _follow(self, message: str = "") -> r.Followed:
        return r.Followed(self.is_busy, self.take_ignored(), message)

    def tokens(self, place: Place | str) -> list[Any]:
        """The tokens on a place, oldest first."""
        return [value for _, value, _ in self._places[self.net.spec_of(place).place.name].contents()]

    def counts(self) -> dict[str, int]:
        """Number of tokens on each place; O(places)."""
        return {name: len(place) for name, place in self._places.items()}

    def marking(self) -> dict[str, int]:
        """Number of tokens on each place; O(places)."""
        return {name: len(place) for name, place in self._places.items()}

    def in_flight(self) -> list[int]:
        """Tasks that have taken tokens and are not over, in firing order."""
        return list(self._flights)

    def take_ignored(self) -> tuple[int, ...]:
        """Tasks cancelled by the net since the last call; steps may cancel tasks, too."""
        ignored, self._ignored = tuple(self._ignored), []
        return ignored

    def apply(self, record: r.Record) -> None:
        """Replays a record on a flow that has applied all earlier records."""
        self._fire(self._steps, record.steps - self._steps.looks)
        fired = None
        while self._tasks.looks < record.tasks and fired is None:
            before = self._tasks.looks
            fired = self._fire(self._tasks, record.tasks - before)
            if self._tasks.looks == before:
                break
        repeated = self._steps.looks == record.steps and self._tasks.looks == record.tasks
        if isinstance(record, r.Fired):
            repeated &= fired == record.task and self._flights[record.task].firing.spec.name == record.transition
        elif isinstance(record, (r.Extracted, r.Injected, r.Failed, r.Cancelled)):
            repeated &= fired is None and record.task in self._flights
        if not repeated:
            raise InputError(
                f"net {self.net.name!r} does not reproduce its records: {type(record).__name__} at look "
                f"{record.steps} of steps and {record.tasks} of tasks does not follow",
                remedy="run it with the net that wrote them; guards and steps must be pure functions",
            )
        match record:
            case r.Put():
                self.put(record.place, *record.values)
            case r.Extracted():
                self._flights[record.task].attempt = record.attempt
            case r.Injected():
                self.inject(record.task, record.result)
            case r.Failed():
                self.fail(record.task, record.message)
            case r.Cancelled():
                self.cancel(record.task)
            case r.Closed():
                self.close()
            case r.Retried():
                self.retry()
        self._ignored.clear()
