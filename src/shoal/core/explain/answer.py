"""Answers to "why is this task not running?" as data; `shoal.core.explain.sentences` turns them into sentences.

Scheduler, store, simulator and ledger give the same kind of answer. Tasks are numbers here, because a node of a cluster
does not know their names.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

import msgspec


class WaitCause(StrEnum):
    """What a task waits for, or how it ended."""

    DONE = "done"
    FAILED = "failed"
    DOOMED = "doomed"
    """A task that it depends on has failed or was cancelled."""
    EXCLUDED = "excluded"
    """No target of the run needs it."""
    RUNNING = "running"
    ENDING = "ending"
    """It was cancelled and still runs."""
    BUNDLED = "bundled"
    """It is in a bundle of short tasks, and runs after the others of the bundle."""
    NEEDS = "needs"
    """Its dependencies are not done."""
    RETRY = "retry"
    """An attempt failed, and the next one is due later."""
    RESOURCES = "resources"
    LABEL = "label"
    TOO_LARGE = "too large"
    """No current node has enough of a resource for it."""
    THROTTLE = "throttle"
    LARGER_FIRST = "larger first"
    """Free resources are reserved for larger tasks that were passed over too often."""
    TURN = "turn"
    """It will be considered in the scheduler's next decision."""
    STOPPING = "stopping"
    """Nothing is started any more."""
    LOCALITY = "locality"
    """It waits on a busy node because its input files are there."""
    FETCHING = "fetching"
    """Its input files are being fetched."""
    RECORDING = "recording"
    """It has run, and its result is being recorded in the store."""
    ARRIVING = "arriving"
    """It has just become ready, or moves from one node to another."""
    NODE_LOST = "node lost"
    """Its node is lost, and the task is being placed on another one."""
    NODE_SILENT = "node silent"
    """Its node does not answer."""
    NO_NODE = "no node"
    ANOTHER_RUN = "another run"
    """The cluster serves runs one after another, and an earlier run goes first."""
    STORE = "store"
    """The store does not answer, so nothing can be decided."""
    UP_TO_DATE = "up to date"
    """The next run does not run it again. This cause and the next one are given while no run is under way."""
    WOULD_RUN = "would run"

    @property
    def is_over(self) -> bool:
        """Whether the task is over in the current run."""
        over = WaitCause.DONE, WaitCause.FAILED, WaitCause.DOOMED, WaitCause.EXCLUDED
        return self in (*over, WaitCause.UP_TO_DATE, WaitCause.WOULD_RUN)


class ResourceHolder(msgspec.Struct, omit_defaults=True):
    """A running task that holds some of a resource for which another task waits."""

    task: int
    amount: int
    since: float | None = None
    until: float | None = None
    """When it is expected to end."""
    overdue: bool = False
    """It was expected to end before now: its end is unknown."""


class Shortage(msgspec.Struct, omit_defaults=True):
    """A resource of which too little is free."""

    resource: str
    asked: int
    free: int
    total: int
    holders: list[ResourceHolder] = []
    """Some of the tasks that hold it, those expected to end first at the beginning."""
    held_by: int = 0
    """Number of tasks that hold it."""
    reckoned: bool = False
    """The amount is not declared, but learned or assumed."""


class Cap(msgspec.Struct, omit_defaults=True):
    """A limit of the throttle that is reached."""

    category: str
    most: int
    running: int
    reason: str = ""


class LastAttempt(msgspec.Struct, omit_defaults=True):
    """The last attempt of a task that is over, from the ledger."""

    number: int
    outcome: str
    began: float
    ended: float
    message: str = ""
    """Why it did not succeed."""
    wrote: bool = False
    """It wrote to its standard output or error."""


class PlanVerdict(msgspec.Struct, omit_defaults=True):
    """What the next run would do with a task, according to the plan."""

    reason: str = ""
    """Why the task would run."""
    origin: int | None = None
    """If it would run because another task does: the first task of that chain."""
    steps: int = 0
    """Number of tasks in the chain, without this one."""
    origin_reason: str = ""
    inputs: int = 0
    """Number of input files of an up-to-date task that were compared."""
    outputs: int = 0
    absent: list[str] = []
    """Outputs that count as present although they are not here: no task needed them."""
    dependencies: int | None = None
    """For a task without a command, which only groups others: number of its dependencies."""
    unmet: list[int] = []
    """Dependencies that would run."""


class Answer(msgspec.Struct, omit_defaults=True):
    """Why a task is in its state."""

    task: int
    cause: WaitCause
    attempt: int = 0
    since: float | None = None
    """When it started."""
    until: float | None = None
    """When a running task is expected to end, or when a failed one is retried."""
    overdue: bool = False
    """A running task was expected to end before now: its end is unknown."""
    starts: float | None = None
    """When it is expected to start; None if unknown, or if it cannot start in the current situation."""
    unfinished: int = 0
    """Number of its dependencies that are not done."""
    chain: list[int] = []
    """From a dependency to the ancestor that delays the task; each depends on the next. Of a chain of more than 100
    tasks the middle is left out."""
    links: int = 0
    """Length of the whole chain."""
    root: Answer | None = None
    """Why that ancestor is in its state."""
    shortage: Shortage | None = None
    cap: Cap | None = None
    larger: str = ""
    """Request of the larger tasks that start first."""
    first: int | None = None
    """One of these tasks."""
    queued: int = 0
    """Number of tasks queued on its node."""
    ahead: int | None = None
    """Number of queued tasks before it."""
    order: str = ""
    node: str = ""
    detail: str = ""
    """Additional text from another part: a batch system, a store, the error of an attempt."""
    cancelled: bool = False
    """It did not fail but was cancelled by a user."""
    tried: LastAttempt | None = None
    earlier: bool = False
    """An earlier run has done it, and it was up to date when this run began."""
    last: WaitCause | None = None
    """While no run is under way: how it ended in the last run."""
    verdict: PlanVerdict | None = None
    """Set while no run is under way."""

    def mentions(self) -> list[int]:
        """The tasks that the answer names."""
        found = [self.task, *self.chain]
        if self.first is not None:
            found.append(self.first)
        if self.shortage is not None:
            found += [holder.task for holder in self.shortage.holders]
        if self.root is not None:
            found += self.root.mentions()
        if self.verdict is not None:
            found += self.verdict.unmet
            found += [self.verdict.origin] if self.verdict.origin is not None else []
        return list(dict.fromkeys(found))

    def kind(self) -> Kind:
        """Grouping key: tasks with the same kind wait for the same thing and request the same amount of it."""
        if self.shortage is not None:
            return self.cause, self.shortage.resource, self.shortage.asked
        if self.cause is WaitCause.TOO_LARGE:
            return self.cause, self.detail, 0
        return self.cause, self.cap.category if self.cap is not None else self.larger, 0


Kind: TypeAlias = tuple[WaitCause, str, int]
"""Cause, resource or category, and requested amount."""


class WaitingGroup(msgspec.Struct, omit_defaults=True):
    """Tasks that wait for the same thing."""

    cause: WaitCause
    count: int
    example: Answer
    nodes: int = 0
    """Number of cluster nodes with such tasks. Free amounts and holders are those of the example's node."""


class RunAnswer(msgspec.Struct, omit_defaults=True):
    """Why a run is in its state."""

    running: int = 0
    ready: int = 0
    """Tasks whose dependencies are done and that are not running."""
    waiting: int = 0
    """Tasks with unfinished dependencies."""
    done: int = 0
    failed: int = 0
    """Including cancelled ones."""
    cancelled: int | None = None
    """Number of cancelled tasks; None if unknown."""
    doomed: int = 0
    groups: list[WaitingGroup] = []
    """What the ready tasks wait for, the largest group first."""
    notes: list[str] = []
    """Further facts: missing nodes, a store that does not answer."""


class RecordedTask(msgspec.Struct, omit_defaults=True):
    """A task of a run that is known only from its ledger, by name."""

    name: str
    attempt: int
    detail: str = ""
    cancelled: bool = False
    since: float | None = None


class RunRecord(msgspec.Struct, omit_defaults=True):
    """State of a run according to its ledger, where no running process can be asked."""

    state: str
    running: int
    waiting: int
    """Not started, and still able to run."""
    done: int
    failed: int
    cancelled: int = 0
    doomed: int = 0
    not_run: int = 0
    """For a run that has ended: tasks neither done nor failed nor cancelled."""
    outcome: str = ""
    failures: list[RecordedTask] = []
    """Some of the failed tasks."""
    longest: list[RecordedTask] = []
    """Some of the running tasks, those started first."""
