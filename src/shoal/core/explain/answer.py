"""The answer to "why is this task not running?", as data: programs read it, and `shoal.core.explain.sentences` makes
sentences.

Scheduler, store, simulator and ledger give the same kind of answer. Tasks are numbers here, because a node of a cluster
does not know their names.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

import msgspec


class WaitCause(StrEnum):
    """What a task waits for, or what has become of it."""

    DONE = "done"
    FAILED = "failed"
    DOOMED = "doomed"
    """Something that it needs has failed or was cancelled."""
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
    """Free room is reserved for larger tasks that were passed over too often."""
    TURN = "turn"
    """The scheduler is about to decide on it."""
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
        """Whether no run under way has to deal with the task any more."""
        over = WaitCause.DONE, WaitCause.FAILED, WaitCause.DOOMED, WaitCause.EXCLUDED
        return self in (*over, WaitCause.UP_TO_DATE, WaitCause.WOULD_RUN)


class ResourceHolder(msgspec.Struct, omit_defaults=True):
    """A running task that holds some of what another one waits for."""

    task: int
    amount: int
    since: float | None = None
    until: float | None = None
    """When it is expected to end."""
    overdue: bool = False
    """It should have ended by then, and has not: its end is unknown."""


class Shortage(msgspec.Struct, omit_defaults=True):
    """A resource of which too little is free."""

    resource: str
    asked: int
    free: int
    total: int
    holders: list[ResourceHolder] = []
    """Some of them, those that are expected to end first before others."""
    held_by: int = 0
    """How many there are."""
    reckoned: bool = False
    """The amount is not declared, but learned or assumed."""


class Cap(msgspec.Struct, omit_defaults=True):
    """A throttle's limit that is reached."""

    category: str
    most: int
    running: int
    reason: str = ""


class LastAttempt(msgspec.Struct, omit_defaults=True):
    """The last attempt at a task that is over, as the ledger has it."""

    number: int
    outcome: str
    began: float
    ended: float
    message: str = ""
    """Why it did not succeed."""
    wrote: bool = False
    """It wrote to its standard output or error."""


class PlanVerdict(msgspec.Struct, omit_defaults=True):
    """What the next run would do with a task, by the plan."""

    reason: str = ""
    """Why the task would run."""
    origin: int | None = None
    """If it would run because another one does: the first task of that chain."""
    steps: int = 0
    """How many tasks the chain has, this one not counted."""
    origin_reason: str = ""
    inputs: int = 0
    """How many input files of an up-to-date task were compared; its outputs likewise."""
    outputs: int = 0
    absent: list[str] = []
    """Outputs that count as present although they are not here: no task needed them."""
    dependencies: int | None = None
    """Of a task without a command, which only groups others: how many it depends on."""
    unmet: list[int] = []
    """Those of them that would run."""


class Answer(msgspec.Struct, omit_defaults=True):
    """Why a task is where it is."""

    task: int
    cause: WaitCause
    attempt: int = 0
    since: float | None = None
    """When it began to run."""
    until: float | None = None
    """When a running task is expected to end, or when a failed one is retried."""
    overdue: bool = False
    """A running task should have ended by then, and has not: its end is unknown."""
    starts: float | None = None
    """When it is expected to start; None if that is unknown, or if it cannot start as things are."""
    unfinished: int = 0
    """How many of its dependencies are not done."""
    chain: list[int] = []
    """From a dependency to the ancestor that holds the task up; each depends on the next. Of a chain of more than 100
    tasks the middle is left out."""
    links: int = 0
    """How many there are."""
    root: Answer | None = None
    """Why that ancestor is where it is."""
    shortage: Shortage | None = None
    cap: Cap | None = None
    larger: str = ""
    """What the larger tasks ask for that go first."""
    first: int | None = None
    """One of them."""
    queued: int = 0
    """Tasks that are queued on its node."""
    ahead: int | None = None
    """How many of them are before it."""
    order: str = ""
    node: str = ""
    detail: str = ""
    """What another part says of it: a batch system, a store, the error of an attempt."""
    cancelled: bool = False
    """It did not fail: somebody has cancelled it."""
    tried: LastAttempt | None = None
    earlier: bool = False
    """An earlier run has done it, and it was up to date when this one began."""
    last: WaitCause | None = None
    """While no run is under way: what became of it in the last one."""
    verdict: PlanVerdict | None = None
    """Given while no run is under way."""

    def mentions(self) -> list[int]:
        """The tasks that it names."""
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
        """Tasks with the same one wait for the same, and ask for as much of it."""
        if self.shortage is not None:
            return self.cause, self.shortage.resource, self.shortage.asked
        if self.cause is WaitCause.TOO_LARGE:
            return self.cause, self.detail, 0
        return self.cause, self.cap.category if self.cap is not None else self.larger, 0


Kind: TypeAlias = tuple[WaitCause, str, int]
"""A cause, the resource or category that it is about, and the amount that is asked for."""


class WaitingGroup(msgspec.Struct, omit_defaults=True):
    """Tasks that wait for the same."""

    cause: WaitCause
    count: int
    example: Answer
    nodes: int = 0
    """On how many nodes of a cluster they are. Free amounts and holders are those of the example's node."""


class RunAnswer(msgspec.Struct, omit_defaults=True):
    """Why a run is where it is."""

    running: int = 0
    ready: int = 0
    """Their dependencies are done, and they do not run yet."""
    waiting: int = 0
    """Have unfinished dependencies."""
    done: int = 0
    failed: int = 0
    """Including cancelled ones."""
    cancelled: int | None = None
    """How many these are; None if that is not known."""
    doomed: int = 0
    groups: list[WaitingGroup] = []
    """What the ready ones wait for, the largest first."""
    notes: list[str] = []
    """What else is known: nodes that are missing, a store that does not answer."""


class RecordedTask(msgspec.Struct, omit_defaults=True):
    """A task of a run of which only the ledger is known, by its name."""

    name: str
    attempt: int
    detail: str = ""
    cancelled: bool = False
    since: float | None = None


class RunRecord(msgspec.Struct, omit_defaults=True):
    """How a run stands by its ledger, where nothing else can be asked."""

    state: str
    running: int
    waiting: int
    """Not started, and able to run."""
    done: int
    failed: int
    cancelled: int = 0
    doomed: int = 0
    not_run: int = 0
    """Of a run that has ended: neither done nor failed nor cancelled."""
    outcome: str = ""
    failures: list[RecordedTask] = []
    """Some of them."""
    longest: list[RecordedTask] = []
    """Some of the running tasks, those that were started first."""
