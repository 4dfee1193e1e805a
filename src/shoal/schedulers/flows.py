"""What a scheduler asks of a workflow: four methods, which a net and a static graph both have.

`Flow` is the workflow engine of the GSPC19 document and nothing more. A net under way (`shoal.flow.net.NetFlow`)
satisfies it as it is, `DagWork` makes the same of a graph, so that schedulers and drivers need not know which of the
two they have. Firing, matching and counting are left to those engines.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol, runtime_checkable

from shoal.flow.dag import DagFlow, FlowState
from shoal.flow.net.records import Followed, Task
from shoal.flow.net.transition import Transition
from shoal.model.graph import Graph


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
class Ending(Protocol):
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
