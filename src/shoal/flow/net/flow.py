"""A net under way: it fires steps itself, hands out tasks, takes results, and can be stopped and resumed anywhere.

`next` fires steps until only tasks are left, then lets one task take its tokens and returns its number. `extract` gives
what is to be run, `inject` and `fail` say what became of it. Who drives the flow decides where and when tasks run; it
also writes the records, keeps the checkpoints and tries a failed task again before it says `fail`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from shoal.errors import InputError
from shoal.flow.net import records as r
from shoal.flow.net.build import Net, check_type
from shoal.flow.net.engine import Engine, lifted
from shoal.flow.net.words import Place

LOOKS_PER_CALL = 10_000
"""Looks at steps that one call of `next` takes at most, so that an endless loop of steps can be interrupted."""


class NetFlow(Engine):
    """One run of a net. Every change goes through a method here, and each leaves at most one record.

    A run that was stopped is gone on with by `resume`.
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
        """The flow after these records, which follow the state, or the beginning if there is none.

        The seed is that of the state, if there is one. Tasks that were under way are handed out again, first of all and
        under their old numbers.
        """
        flow = cls(net, seed, state=state)
        for item in records:
            flow.apply(item)
        flow._again.extend(flow._flights)
        flow._record = record
        return flow

    @property
    def is_finished(self) -> bool:
        """Whether the answer is known, or nothing is left to do and nothing can come from outside."""
        return bool(self._result) or (self.closed and not self._flights and not self.is_busy)

    @property
    def is_busy(self) -> bool:
        """Whether `next` has something to look at; if it returned None before, it had reached its bound."""
        return not self._result and bool(self._again or self._steps or self._tasks)

    @property
    def result(self) -> object:
        """The value that some transition gave with `net.result`, or None."""
        return self._result[0] if self._result else None

    @property
    def has_result(self) -> bool:
        """Whether some transition gave a result, which may be None."""
        return bool(self._result)

    def problems(self) -> list[str]:
        """One sentence for each transition set aside and each task that failed for good."""
        return [*self._set_aside.values(), *(trouble.message for trouble in self._failures)]

    def next(self, limit: int = LOOKS_PER_CALL) -> int | None:
        """The number of a task that has its tokens now; None if there is none, or none was found within the bound.

        After `limit` looks at steps a task gets its turn even if steps could go on.
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
        """What is to be run. A second call hands out the next attempt; the result of an older one no longer counts."""
        flight = self._flights[task]
        if self._record is not None:
            self._record(r.Extracted(task=task, attempt=flight.attempt + 1, **self._moment()))
        flight.attempt += 1
        spec = flight.firing.spec
        return r.Task(task, flight.attempt, spec.arguments(flight.values), spec, tuple(flight.values))

    def inject(self, task: int, result: object, attempt: int | None = None) -> r.Followed:
        """Take what a task returned: its tokens are gone, and all that it made appears at once."""
        flight = self._flights.get(task)
        if flight is None or (attempt is not None and attempt != flight.attempt):
            return self._follow()
        if self._record is not None:
            self._record(r.Injected(task=task, result=result, **self._moment()))
        try:
            outputs, parts = self._outputs(flight.firing.spec, self._given(flight, result))
        except Exception as error:  # what a task returned is a user's object, whose own methods may raise anything
            message = (
                flight.firing.spec.complaint("the result", error) if not isinstance(error, InputError) else str(error)
            )
            self._fail(flight, message)
            return self._follow(message)
        self._land(flight)
        self._deliver(outputs, parts)
        return self._follow()

    def fail(self, task: int, message: str, attempt: int | None = None) -> r.Followed:
        """A task failed for good: its tokens go back, or a `Failure` goes to its `on_error`.

        Tokens that went back are not offered to the same transition again, only to others, until `retry`.
        """
        flight = self._flights.get(task)
        if flight is None or (attempt is not None and attempt != flight.attempt):
            return self._follow()
        if self._record is not None:
            self._record(r.Failed(task=task, message=message, **self._moment()))
        self._fail(flight, message)
        return self._follow()

    def cancel(self, task: int) -> r.Followed:
        """Drop a task and the tokens it took."""
        flight = self._flights.get(task)
        if flight is not None:
            if self._record is not None:
                self._record(r.Cancelled(task=task, **self._moment()))
            self._ignore(flight)
        return self._follow()

    def put(self, place: Place | str, *tokens: object) -> None:
        """Put tokens from outside on a place, all or none; raises `InputError` for one of the wrong type."""
        spec = self.net.spec_of(place)
        for token in tokens:
            check_type(self.net.name, spec, token)
        if self.is_finished:
            raise InputError(
                f"net {self.net.name!r} is over and takes no more tokens", remedy="say keep_open=True for the net"
            )
        if self._record is not None:
            self._record(r.Put(place=spec.place.name, values=tokens, **self._moment()))
        self._deliver([(self._places[spec.place.name], tokens)], ())

    def close(self) -> None:
        """Say that no more tokens will come from outside."""
        if not self.closed:
            if self._record is not None:
                self._record(r.Closed(**self._moment()))
            self.closed = True

    def retry(self) -> None:
        """Offer returned tokens again and put transitions that were set aside back to work."""
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
        """The tokens that lie on a place, oldest first."""
        return [value for _, value, _ in self._places[self.net.spec_of(place).place.name].contents()]

    def counts(self) -> dict[str, int]:
        """How many tokens lie on each place; O(places)."""
        return {name: len(place) for name, place in self._places.items()}

    def marking(self) -> dict[str, int]:
        """How many tokens lie on each place; O(places)."""
        return {name: len(place) for name, place in self._places.items()}

    def in_flight(self) -> list[int]:
        """The tasks that have tokens and are not over, in the order in which they fired."""
        return list(self._flights)

    def take_ignored(self) -> tuple[int, ...]:
        """The tasks that are not wanted any more since the last question; steps may say so too."""
        ignored, self._ignored = tuple(self._ignored), []
        return ignored

    def apply(self, record: r.Record) -> None:
        """Repeat what a record tells, on a flow that has had all records before it."""
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
                f"net {self.net.name!r} does not repeat what its records tell: {type(record).__name__} at look "
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
