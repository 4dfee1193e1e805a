"""The GSPC schedulers by name, each composed from the same parts.

A program with other needs composes a `ComposedScheduler` itself. All of these repeat a lost task except `base`, and all
except `base` and `rescheduling` look ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from shoal.core.policies.implementations import Performance
from shoal.errors import InputError
from shoal.petri.records import Task
from shoal.resources.composed_scheduler import ComposedScheduler, LookAhead, Rescheduling
from shoal.resources.manager import ResourceManager
from shoal.resources.memory_layout import AllocationRecord, Range, bytes_held, ranked
from shoal.resources.requests import Choice, Requirement
from shoal.resources.scheduler_interface import Asking, ByProfile, CoAllocation, Flow, PlacementRequest

Stewards = Mapping[str, ResourceManager]
"""Resource managers by location."""
Partition = Mapping[str, Sequence[Range]]
"""By host, the ranges of an allocation that it holds."""
LOCATION = "location="
FEW = 16


class Around:
    """Base of policies that wrap another one; forwards everything."""

    def __init__(self, inner: Asking) -> None:
        self.inner = inner

    def wish(self, task: Task) -> PlacementRequest:
        return self.inner.wish(task)

    def ended(self, task: Task, way: str, seconds: float) -> None:
        self.inner.ended(task, way, seconds)

    def lost(self, task: Task, way: str) -> None:
        self.inner.lost(task, way)


class SeveralLocations(Around):
    """A task with the label `location=NAME` goes to that location; others go where the fewest tasks wait."""

    def __init__(self, inner: Asking, stewards: Stewards) -> None:
        super().__init__(inner)
        self._stewards = stewards

    def wish(self, task: Task) -> PlacementRequest:
        wish = self.inner.wish(task)
        named = [label for each in wish.request for label in each.only if label.startswith(LOCATION)]
        if not named:
            by_load = sorted(self._stewards, key=lambda name: len(self._stewards[name].waiting))
            return replace(wish, locations=tuple(by_load))
        place = named[0].removeprefix(LOCATION)
        if place not in self._stewards or named.count(named[0]) < len(named):
            known = ", ".join(self._stewards)
            raise InputError(f"{task.transition.name!r} cannot run at {', '.join(named)}: there are {known}")
        request = tuple(
            replace(each, only=tuple(label for label in each.only if not label.startswith(LOCATION)))
            for each in wish.request
        )
        return replace(wish, request=request, locations=(place,))


class PerformanceModel(Around):
    """Selects the implementation expected to finish first, from durations measured during the run."""

    def __init__(self, inner: Asking, stewards: Stewards, performance: Performance | None = None) -> None:
        super().__init__(inner)
        self._stewards = stewards
        self.performance = performance or Performance()
        self._untimed: dict[tuple[str, str], None] = {}

    @property
    def is_learning(self) -> bool:
        """Whether an implementation without a known duration is being tried."""
        return bool(self._untimed)

    def wish(self, task: Task) -> PlacementRequest:
        wish = self.inner.wish(task)
        if len(wish.ways) == 1:
            return wish
        first, *others = wish.request
        slots = {way: self._slots(choice) for way, choice in zip(wish.ways, first.choices, strict=True)}
        usable = {way: count for way, count in slots.items() if count}
        if not usable:
            return wish  # the resource manager reports the reason
        way = self.performance.choose(task.transition.name, usable)
        if self.performance.of(task.transition.name, way).seconds is None:
            self._untimed[task.transition.name, way] = None
        choice = first.choices[wish.ways.index(way)]
        return replace(wish, request=(replace(first, choices=(choice,)), *others), ways=(way,))

    def _slots(self, choice: Choice) -> int:
        """How many tasks can run by this choice at once."""
        totals = [steward.forest.top.total for steward in self._stewards.values()]
        return sum(min(total.get(kind, 0) // count for kind, count in choice.needs) for total in totals)

    def ended(self, task: Task, way: str, seconds: float) -> None:
        self.performance.ended(task.transition.name, way, seconds)
        self._untimed.pop((task.transition.name, way), None)
        super().ended(task, way, seconds)

    def lost(self, task: Task, way: str) -> None:
        self.performance.lost(task.transition.name, way)
        self._untimed.pop((task.transition.name, way), None)
        super().lost(task, way)


class WhileLearning:
    """Draws for a model: a waiting task has already chosen, so only one waits until something is known, and few
    later."""

    def __init__(self, model: PerformanceModel, ahead: int = FEW) -> None:
        self._model, self._ahead = model, ahead

    def wants(self, waiting: int, running: int, is_idle: Callable[[], bool]) -> bool:
        return not running or waiting < (1 if self._model.is_learning else self._ahead)


def ranges_of_arguments(task: Task) -> dict[str, list[Range]]:
    """The full range of every allocation whose handle is an argument of the task."""
    return {value.id: [(0, value.size)] for value in task.values if isinstance(value, AllocationRecord)}


class TransferCosts(Around):
    """Prefers the machines that hold the most bytes a task needs."""

    def __init__(
        self,
        inner: Asking,
        partition: Callable[[str], Partition],
        needs: Callable[[Task], Mapping[str, Sequence[Range]]] = ranges_of_arguments,
        resources: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """`partition` maps an allocation's id to its ranges by host, `resources` maps hosts to machines
        (`host_to_resource`).

        Without `resources` hosts and machines have the same names.
        """
        super().__init__(inner)
        self._partition, self._needs, self._resources = partition, needs, resources

    def wish(self, task: Task) -> PlacementRequest:
        wish = self.inner.wish(task)
        held: dict[str, int] = {}
        for allocation, ranges in self._needs(task).items():
            for host, amount in bytes_held(self._partition(allocation), ranges).items():
                held[host] = held.get(host, 0) + amount
        liked = tuple(dict.fromkeys(name for host in ranked(held) for name in self._machines_of(host)))
        if not liked:
            return wish
        return replace(wish, request=tuple(replace(each, prefer=(*liked, *each.prefer)) for each in wish.request))

    def _machines_of(self, host: str) -> list[str]:
        if self._resources is None:
            return [host]
        return [unit.partition("/")[0] for unit in self._resources.get(host, ())]


AGAIN = Rescheduling(attempts=3, losses=10)


def base(flow: Flow, steward: ResourceManager, run: str = "run") -> ComposedScheduler:
    """Next, acquire, extract, submit, inject: one task after the other waits for resources."""
    return ComposedScheduler(flow, steward, run)


def rescheduling(
    flow: Flow, steward: ResourceManager, run: str = "run", again: Rescheduling = AGAIN
) -> ComposedScheduler:
    """As `base`; a failed or lost task is repeated on another machine, a limited number of times."""
    return ComposedScheduler(flow, steward, run, rescheduling=again)


def look_ahead(
    flow: Flow, steward: ResourceManager, run: str = "run", drawing: LookAhead | None = None
) -> ComposedScheduler:
    """Many tasks wait at once, with one queue per request."""
    return ComposedScheduler(flow, steward, run, drawing=drawing or LookAhead(), rescheduling=AGAIN)


def co_allocation(
    flow: Flow,
    steward: ResourceManager,
    run: str = "run",
    beside: Callable[[Task], Sequence[Requirement]] | None = None,
) -> ComposedScheduler:
    """Tasks that need several machines, or resources in different places, get all of them or nothing."""
    return ComposedScheduler(flow, steward, run, drawing=LookAhead(), asking=CoAllocation(beside), rescheduling=AGAIN)


def several_locations(flow: Flow, stewards: Mapping[str, ResourceManager], run: str = "run") -> ComposedScheduler:
    """One resource manager per location; tasks choose theirs by the label `location=NAME`."""
    asking = SeveralLocations(CoAllocation(), stewards)
    return ComposedScheduler(flow, stewards, run, drawing=LookAhead(), asking=asking, rescheduling=AGAIN)


def performance_model(
    flow: Flow, steward: ResourceManager, run: str = "run", performance: Performance | None = None
) -> ComposedScheduler:
    """Selects among several implementations the one that finishes first, by durations measured during the run."""
    asking = PerformanceModel(ByProfile(), {"": steward}, performance)
    return ComposedScheduler(flow, steward, run, drawing=WhileLearning(asking), asking=asking, rescheduling=AGAIN)


def transfer_costs(
    flow: Flow,
    steward: ResourceManager,
    partition: Callable[[str], Partition],
    run: str = "run",
    *,
    needs: Callable[[Task], Mapping[str, Sequence[Range]]] = ranges_of_arguments,
    resources: Mapping[str, Sequence[str]] | None = None,
) -> ComposedScheduler:
    """Tasks go to the machines that hold the memory they need, as long as these have free resources."""
    asking = TransferCosts(CoAllocation(), partition, needs, resources)
    return ComposedScheduler(flow, steward, run, drawing=LookAhead(), asking=asking, rescheduling=AGAIN)
