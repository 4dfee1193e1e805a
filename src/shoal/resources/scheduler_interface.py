"""Interface of GSPC schedulers: events, commands, flows of tasks (nets or static graphs), and requests per task.

Every `SubmitTaskCommand` is answered by exactly one of `FinishedEvent`, `FailedEvent` and `StoppedEvent`, also after a
`CancelAttemptCommand`: the resources of a task are free only when its processes have ended.
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
    """The flow may have changed, or there is time to draw more tasks."""


class FinishedEvent(msgspec.Struct, frozen=True):
    """An attempt returned a result."""

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
    """A cancelled attempt has ended, or an attempt has no result because its worker was lost."""

    task: int
    attempt: int


class ManagerEvents(msgspec.Struct, frozen=True):
    """Events of a resource manager about tickets. As a command: to be forwarded to the other schedulers that share
    it."""

    location: str
    happenings: tuple[Happening, ...]


class StopEvent(msgspec.Struct, frozen=True):
    """Start nothing more and cancel running tasks; the flow can be resumed."""


Event: TypeAlias = LookEvent | FinishedEvent | FailedEvent | StoppedEvent | ManagerEvents | StopEvent


class SubmitTaskCommand(msgspec.Struct, frozen=True):
    """Run this attempt on the granted resources."""

    task: Task
    grant: ResourceGrant
    location: str
    way: str = ""
    """Name of the selected implementation, if there are several."""


class CancelAttemptCommand(msgspec.Struct, frozen=True):
    """Cancel this attempt."""

    task: int
    attempt: int


Command: TypeAlias = SubmitTaskCommand | CancelAttemptCommand | ManagerEvents


class Flow(Protocol):
    """A running workflow."""

    def next(self) -> int | None:
        """The number of a task that can run now; None if there is none at the moment."""

    def extract(self, task: int) -> Task:
        """The task to run. A second call starts the next attempt; results of older ones no longer count."""

    def inject(self, task: int, result: object, attempt: int | None = None) -> Followed:
        """Records the result of a task; returns which other tasks are cancelled by it."""

    def state(self) -> object:
        """State of the workflow as plain data."""


@runtime_checkable
class Failing(Protocol):
    """A flow that handles failures. In a GSPC flow a failed task is simply never injected."""

    def fail(self, task: int, message: str, attempt: int | None = None) -> Followed:
        """Records that a task failed for good."""


@runtime_checkable
class Ignoring(Protocol):
    """A flow in which the search for a task may cancel others, as steps of a net do."""

    def take_ignored(self) -> tuple[int, ...]:
        """Tasks that were cancelled since the last call."""


@runtime_checkable
class EndingFlow(Protocol):
    """A flow that knows its own end; any other flow ends when no task is running and `next` returns None."""

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to do and nothing can come from outside."""

    @property
    def is_busy(self) -> bool:
        """Whether `next` has something to examine."""


class DagWork:
    """A static graph as a flow; task numbers are those of the graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._flow = DagFlow(graph)
        self._ready = deque(self._flow.ready())
        self._attempts: dict[int, int] = {}
        """Attempt numbers of the running tasks."""
        self.failures: dict[int, str] = {}

    @property
    def is_finished(self) -> bool:
        """Whether every task is done or can never run."""
        return not self._ready and not self._attempts

    @property
    def is_busy(self) -> bool:
        """Whether `next` would return a task."""
        return bool(self._ready)

    def next(self) -> int | None:
        """The ready task that has waited longest."""
        if not self._ready:
            return None
        task = self._ready.popleft()
        self._attempts[task] = 0
        return task

    def extract(self, task: int) -> Task:
        """The task as a transition without ports, named as in `net_of_graph`."""
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
        """Records that the task is done. Its result is ignored: tasks of a graph communicate through files."""
        if self._is_current(task, attempt):
            del self._attempts[task]
            self._ready.extend(self._flow.complete([task]))
        return Followed(self.is_busy)

    def fail(self, task: int, message: str, attempt: int | None = None) -> Followed:
        """Records that the task failed for good; tasks that depend on it can never run."""
        if self._is_current(task, attempt):
            del self._attempts[task]
            self.failures[task] = message
            self._flow.fail([task])
        return Followed(self.is_busy)

    def state(self) -> FlowState:
        """Number of tasks by status."""
        return self._flow.state()

    def _is_current(self, task: int, attempt: int | None) -> bool:
        return task in self._attempts and attempt in (None, self._attempts[task])


_CLASSES = {"cores": CORE, "gpus": GPU}
_WITH_PROCESSORS = (NODE, SOCKET, NUMA, THREAD)
"""Classes that include cores: a task that requests one of them without declaring cores needs no additional core."""
CORE_NAMES = ("", "cpu", "core", "cores")
GPU_NAMES = ("gpu", "gpus")


class PlacementRequest(msgspec.Struct, frozen=True):
    """The resources requested for a task, and where."""

    request: Request
    ways: tuple[str, ...] = ("",)
    """The implementation that belongs to each choice of the first requirement."""
    locations: tuple[str, ...] = ()
    """Locations whose resource managers are tried, in this order; empty: the first one."""


class Asking(Protocol):
    """Translates tasks into resource requests, and learns from their outcomes."""

    def wish(self, task: Task) -> PlacementRequest:
        """What this task needs now; `InputError` if that cannot be determined."""

    def ended(self, task: Task, way: str, seconds: float) -> None:
        """Records the duration of a task with this implementation."""

    def lost(self, task: Task, way: str) -> None:
        """Records an attempt without a result."""


class ProfileRequirements(msgspec.Struct, frozen=True):
    """The resources of a profile in terms of the resource manager."""

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
                continue  # the tree has no disks; agents count them
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
        """Needs of an implementation with this name: a GPU, or a unit of the class with this name."""
        if way in CORE_NAMES:
            return self.classes
        kind = GPU if way in GPU_NAMES else way
        return {kind: 1} | self.classes


class ByProfile:
    """Requests one machine. Of several implementations the first whose class is free, in order of declaration."""

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
        """No effect."""

    def lost(self, task: Task, way: str) -> None:
        """No effect."""


class CoAllocation(ByProfile):
    """Requests several machines and several requirements in different classes: all or nothing."""

    def __init__(self, beside: Callable[[Task], Sequence[Requirement]] | None = None) -> None:
        """`beside` returns additional requirements of a task, such as an I/O server on another machine."""
        self._beside = beside

    def wish(self, task: Task) -> PlacementRequest:
        wish = self._on(task, ProfileRequirements.of(task.transition.profile))
        if self._beside is None:
            return wish
        return msgspec.structs.replace(wish, request=(*wish.request, *self._beside(task)))
