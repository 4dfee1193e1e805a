"""Choices that are made before a steward is asked: which implementation, which location, which machines first.

Each of these stands around another `Asking` and changes what that one wishes, so they can be put together at will.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from shoal.errors import InputError
from shoal.flow.net.records import Task
from shoal.memory.layout import Range, Record, bytes_held, ranked
from shoal.policy.performance import Performance
from shoal.schedulers.asking import Asking, Wish
from shoal.steward.asking import Choice
from shoal.steward.steward import Steward

Stewards = Mapping[str, Steward]
"""By location."""
Partition = Mapping[str, Sequence[Range]]
"""By host, the ranges of an allocation that it holds."""
LOCATION = "location="
FEW = 16


class Around:
    """An asking that changes nothing of another one."""

    def __init__(self, inner: Asking) -> None:
        self.inner = inner

    def wish(self, task: Task) -> Wish:
        return self.inner.wish(task)

    def ended(self, task: Task, way: str, seconds: float) -> None:
        self.inner.ended(task, way, seconds)

    def lost(self, task: Task, way: str) -> None:
        self.inner.lost(task, way)


class SeveralLocations(Around):
    """A task with the label `location=NAME` is for the steward of that name; others go where fewest wait."""

    def __init__(self, inner: Asking, stewards: Stewards) -> None:
        super().__init__(inner)
        self._stewards = stewards

    def wish(self, task: Task) -> Wish:
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
    """Of several implementations the one whose result is there first, as far as was learned while the run goes on."""

    def __init__(self, inner: Asking, stewards: Stewards, performance: Performance | None = None) -> None:
        super().__init__(inner)
        self._stewards = stewards
        self.performance = performance or Performance()
        self._untimed: dict[tuple[str, str], None] = {}

    @property
    def is_learning(self) -> bool:
        """Whether an implementation is being tried of which no time is known."""
        return bool(self._untimed)

    def wish(self, task: Task) -> Wish:
        wish = self.inner.wish(task)
        if len(wish.ways) == 1:
            return wish
        first, *others = wish.request
        slots = {way: self._slots(choice) for way, choice in zip(wish.ways, first.choices, strict=True)}
        usable = {way: count for way, count in slots.items() if count}
        if not usable:
            return wish  # the steward says why
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
    """Draws for a model: whoever waits has chosen, so only one waits until something is known, and few later on."""

    def __init__(self, model: PerformanceModel, ahead: int = FEW) -> None:
        self._model, self._ahead = model, ahead

    def wants(self, waiting: int, running: int, is_idle: Callable[[], bool]) -> bool:
        return not running or waiting < (1 if self._model.is_learning else self._ahead)


def ranges_of_arguments(task: Task) -> dict[str, list[Range]]:
    """The whole of every allocation whose handle is an argument of the task."""
    return {value.id: [(0, value.size)] for value in task.values if isinstance(value, Record)}


class TransferCosts(Around):
    """Machines that hold most of the bytes a task needs are preferred, in the order of how much they hold."""

    def __init__(
        self,
        inner: Asking,
        partition: Callable[[str], Partition],
        needs: Callable[[Task], Mapping[str, Sequence[Range]]] = ranges_of_arguments,
        resources: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """`partition` is that of an allocation by its id, `resources` what `host_to_resource` told of each host.

        Without `resources` hosts and machines have the same names.
        """
        super().__init__(inner)
        self._partition, self._needs, self._resources = partition, needs, resources

    def wish(self, task: Task) -> Wish:
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
