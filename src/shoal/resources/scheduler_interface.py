"""What schedulers and those who drive them say to each other: events in, commands out.

Every `SubmitTaskCommand` is answered by exactly one of `FinishedEvent`, `FailedEvent` and `StoppedEvent`, also after a
`CancelAttemptCommand`: what a task held is free only when its processes have ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec

from shoal.core.dependencies import DagFlow, FlowState
from shoal.core.graph import Graph
from shoal.core.resources import FRACTION, is_label
from shoal.core.task import Profile
from shoal.errors import InputError
from shoal.petri.records import Followed, Task
from shoal.petri.transition import Transition
from shoal.resources.machine import CORE, GPU, NODE, NUMA, SOCKET, THREAD
from shoal.resources.requests import Request, Requirement, require
from shoal.resources.tickets import Happening, ResourceGrant


class LookEvent(msgspec.Struct, frozen=True):
    """Something may have changed in the flow, or there is time to draw more."""


class FinishedEvent(msgspec.Struct, frozen=True):
    """An attempt gave a result."""

    task: int
    attempt: int
    result: Any = None
    seconds: float = 0.0


class FailedEvent(msgspec.Struct, frozen=True):
    """An attempt failed."""

    task: int
    attempt: int
    message: str


class StoppedEvent(msgspec.Struct, frozen=True):
    """An attempt that was cancelled has ended, or came to nothing because its worker is gone."""

    task: int
    attempt: int


class ManagerEvents(msgspec.Struct, frozen=True):
    """What a steward says of tickets. As an event: to this scheduler; as a command: to the others that share it."""

    location: str
    happenings: tuple[Happening, ...]


class StopEvent(msgspec.Struct, frozen=True):
    """Nothing more is to be begun, and what runs is to be cancelled; the flow can be gone on with."""


Event: TypeAlias = LookEvent | FinishedEvent | FailedEvent | StoppedEvent | ManagerEvents | StopEvent


class SubmitTaskCommand(msgspec.Struct, frozen=True):
    """Run this attempt on what was granted."""

    task: Task
    grant: ResourceGrant
    location: str
    way: str = ""
    """Which of several implementations."""


class CancelAttemptCommand(msgspec.Struct, frozen=True):
    """End this attempt."""

    task: int
    attempt: int


Command: TypeAlias = SubmitTaskCommand | CancelAttemptCommand | ManagerEvents


class Flow(Protocol):
    """One workflow under way."""

    def next(self) -> int | None:
        """The number of a task that can be run now; None: there is none at the moment."""

    def extract(self, task: int) -> Task:
        """What is to be run. A second call begins the next attempt; results of older ones no longer count."""

    def inject(self, task: int, result: object, attempt: int | None = None) -> Followed:
        """Take what a task gave; tells which other tasks are not wanted any more."""

    def state(self) -> object:
        """How the workflow stands, as plain data."""


@runtime_checkable
class Failing(Protocol):
    """A flow that can be told of failures. The document's cannot: there a task that failed is never injected."""

    def fail(self, task: int, message: str, attempt: int | None = None) -> Followed:
        """A task failed for good."""


@runtime_checkable
class Ignoring(Protocol):
    """A flow in which the search for a task may make others superfluous, as steps of a net do."""

    def take_ignored(self) -> tuple[int, ...]:
        """The tasks that are not wanted any more since the last question."""


@runtime_checkable
class EndingFlow(Protocol):
    """A flow that knows its own end; another one has ended when nothing is under way and `next` gives nothing."""

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to do and nothing can come from outside."""

    @property
    def is_busy(self) -> bool:
        """Whether `next` has something to look at."""


class DagWork:
    """A static graph as a flow; tasks have the numbers that they have in the graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._flow = DagFlow(graph)
        self._ready = deque(self._flow.ready())
        self._attempts: dict[int, int] = {}
        """Of the tasks that were handed out and are not over."""
        self.failures: dict[int, str] = {}

    @property
    def is_finished(self) -> bool:
        """Whether everything is done or can never be."""
        return not self._ready and not self._attempts

    @property
    def is_busy(self) -> bool:
        """Whether `next` would find something."""
        return bool(self._ready)

    def next(self) -> int | None:
        """The ready task that has waited longest."""
        if not self._ready:
            return None
        task = self._ready.popleft()
        self._attempts[task] = 0
        return task

    def extract(self, task: int) -> Task:
        """The task as a transition without ports, named as that of `net_of_graph` is."""
        self._attempts[task] += 1
        graph = self.graph
        transition = Transition(
            name=f"{task} {graph.names[task]}",
            net=graph.source,
            is_task=True,
            port_names=(),
            ports=(),
            visible=0,
            profile=graph.profile_of(task),
            action=graph.actions[task],
        )
        return Task(task, self._attempts[task], {}, transition, ())

    def inject(self, task: int, result: object, attempt: int | None = None) -> Followed:
        """The task is done. What it gave is not kept: tasks of a graph meet in files."""
        if self._is_current(task, attempt):
            del self._attempts[task]
            self._ready.extend(self._flow.complete([task]))
        return Followed(self.is_busy)

    def fail(self, task: int, message: str, attempt: int | None = None) -> Followed:
        """The task failed for good, and what needs it can never run."""
        if self._is_current(task, attempt):
            del self._attempts[task]
            self.failures[task] = message
            self._flow.fail([task])
        return Followed(self.is_busy)

    def state(self) -> FlowState:
        """How many tasks stand how."""
        return self._flow.state()

    def _is_current(self, task: int, attempt: int | None) -> bool:
        return task in self._attempts and attempt in (None, self._attempts[task])


_CLASSES = {"cores": CORE, "gpus": GPU}
_WITH_PROCESSORS = (NODE, SOCKET, NUMA, THREAD)
"""Who asks for these and says nothing of cores does not want one beside them."""
CORE_NAMES = ("", "cpu", "core", "cores")
GPU_NAMES = ("gpu", "gpus")


class PlacementRequest(msgspec.Struct, frozen=True):
    """What is asked for a task, and where."""

    request: Request
    ways: tuple[str, ...] = ("",)
    """The implementation that belongs to each choice of the first requirement."""
    locations: tuple[str, ...] = ()
    """Those whose stewards are asked, in this order; none: the first there is."""


class Asking(Protocol):
    """Says what tasks ask for, and is told what became of them."""

    def wish(self, task: Task) -> PlacementRequest:
        """What this task needs now; `InputError` if that cannot be said."""

    def ended(self, task: Task, way: str, seconds: float) -> None:
        """It ran so long, by this implementation."""

    def lost(self, task: Task, way: str) -> None:
        """It came to nothing."""


class ProfileRequirements(msgspec.Struct, frozen=True):
    """A profile in the steward's words."""

    classes: dict[str, int]
    memory: int
    nodes: int
    only: tuple[str, ...]

    @classmethod
    def of(cls, profile: Profile) -> ProfileRequirements:
        classes: dict[str, int] = {}
        memory, nodes = 0, 1
        for name, amount in profile.resources.amounts:
            count = -(-amount // FRACTION)
            if is_label(name) or name == "disk" or not amount:
                continue  # the forest knows no disks; agents count them
            if name == "memory":
                memory = amount
            elif name == "nodes":
                nodes = count
            else:
                classes[_CLASSES.get(name, name)] = count
        if not profile.cores_declared and any(name in classes for name in _WITH_PROCESSORS):
            classes.pop(CORE, None)
        only = tuple(name for name in profile.resources.names() if is_label(name))
        return cls(classes or {CORE: 1}, memory, nodes, only)

    def with_way(self, way: str) -> dict[str, int]:
        """What an implementation of this name needs: a GPU, or one of the class that it is called after."""
        if way in CORE_NAMES:
            return self.classes
        kind = GPU if way in GPU_NAMES else way
        return {kind: 1} | self.classes


class ByProfile:
    """One machine. Of several implementations the first whose class is free, in the order of their declaration."""

    def wish(self, task: Task) -> PlacementRequest:
        needs = ProfileRequirements.of(task.transition.profile)
        if needs.nodes != 1:
            raise InputError(
                f"{task.transition.name!r} asks for {needs.nodes} nodes at once, which this scheduler does not grant",
                remedy="use the co-allocation scheduler",
            )
        return self._on(task, needs)

    def _on(self, task: Task, needs: ProfileRequirements) -> PlacementRequest:
        ways = tuple(name for name, _ in task.transition.implementations) or ("",)
        wanted = require(
            *(needs.with_way(way) for way in ways),
            memory=needs.memory,
            nodes=needs.nodes,
            only=needs.only,
            prefer=task.transition.profile.prefers,
        )
        return PlacementRequest((wanted,), ways)

    def ended(self, task: Task, way: str, seconds: float) -> None:
        """Nothing is learned."""

    def lost(self, task: Task, way: str) -> None:
        """Nothing is learned."""


class CoAllocation(ByProfile):
    """Several machines, and several requirements in different classes: all of them or none."""

    def __init__(self, beside: Callable[[Task], Sequence[Requirement]] | None = None) -> None:
        """`beside` gives what a task needs beside what its profile says, such as an I/O server somewhere else."""
        self._beside = beside

    def wish(self, task: Task) -> PlacementRequest:
        wish = self._on(task, ProfileRequirements.of(task.transition.profile))
        if self._beside is None:
            return wish
        return msgspec.structs.replace(wish, request=(*wish.request, *self._beside(task)))
