"""The answer to "why is this task not running?", as data: what machines read, and what sentences are made from.

Tasks are numbers here, because a node of a cluster knows no names; `shoal.explain.words` puts them in.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

import msgspec


class Cause(StrEnum):
    """What a task waits for, or what has become of it."""

    DONE = "done"
    FAILED = "failed"
    DOOMED = "doomed"
    """Something that it needs has failed or was cancelled."""
    EXCLUDED = "excluded"
    """No target of the run needs it."""
    RUNNING = "running"
    ENDING = "ending"
    """It runs, but is not wanted any more."""
    BUNDLED = "bundled"
    """It was handed over together with other short ones, and is run after them."""
    NEEDS = "needs"
    """Tasks that it needs are not done."""
    RETRY = "retry"
    """An attempt failed, and the next one is due later."""
    RESOURCES = "resources"
    LABEL = "label"
    TOO_LARGE = "too large"
    """No node that is there could ever run it."""
    THROTTLE = "throttle"
    LARGER_FIRST = "larger first"
    """Room is kept for larger tasks that were passed over too often."""
    TURN = "turn"
    """It is being looked at this very moment."""
    STOPPING = "stopping"
    """Nothing is started any more."""
    LOCALITY = "locality"
    """It waits beside its data, on a node that is busy."""
    FETCHING = "fetching"
    """What it reads is on its way."""
    RECORDING = "recording"
    """It has run, and how it ended is on its way into the books."""
    ARRIVING = "arriving"
    """It has just become ready, or is on its way from one node to another."""
    NODE_LOST = "node lost"
    """The node that had it is gone, and it is placed anew."""
    NODE_SILENT = "node silent"
    """The node that has it does not answer."""
    NO_NODE = "no node"
    ANOTHER_RUN = "another run"
    """The cluster serves runs one after another, and one that was brought earlier is served."""
    STORE = "store"
    """The store does not answer, so nothing can be decided."""

    @property
    def is_over(self) -> bool:
        return self in (Cause.DONE, Cause.FAILED, Cause.DOOMED, Cause.EXCLUDED)


class Holder(msgspec.Struct, omit_defaults=True):
    """A running task that holds some of what another one waits for."""

    task: int
    amount: int
    since: float | None = None
    until: float | None = None
    """When it is expected to end."""
    overdue: bool = False
    """It should have ended then, and has not: nobody knows when it will."""


class Shortage(msgspec.Struct, omit_defaults=True):
    """A resource of which too little is free."""

    resource: str
    asked: int
    free: int
    total: int
    holders: list[Holder] = []
    """The largest of them, those that are expected to end first before others."""
    held_by: int = 0
    """How many there are."""
    reckoned: bool = False
    """Nobody has declared what is asked for: it is what is reckoned with, learned or assumed."""


class Cap(msgspec.Struct, omit_defaults=True):
    """A throttle's limit that is reached."""

    category: str
    most: int
    running: int
    reason: str = ""


class Answer(msgspec.Struct, omit_defaults=True):
    """Why a task is where it is."""

    task: int
    cause: Cause
    attempt: int = 0
    since: float | None = None
    """When it began to run."""
    until: float | None = None
    """When a running task is expected to end, or when a resting one is tried again."""
    overdue: bool = False
    """A running task should have ended then, and has not: nobody knows when it will."""
    starts: float | None = None
    """When it is expected to start; nothing if that cannot be said, or if it cannot start as things are."""
    unfinished: int = 0
    """How many of the tasks that it needs are not done."""
    chain: list[int] = []
    """From a task that it needs to the ancestor that holds everything up; each needs the next. Of more than a hundred
    the middle is left out."""
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
    """What somebody else has to say of it: a batch system, a store, the error of an attempt."""
    cancelled: bool = False
    """It did not fail: somebody has cancelled it."""

    def mentions(self) -> list[int]:
        """The tasks that it speaks of."""
        found = [self.task, *self.chain]
        if self.first is not None:
            found.append(self.first)
        if self.shortage is not None:
            found += [holder.task for holder in self.shortage.holders]
        if self.root is not None:
            found += self.root.mentions()
        return list(dict.fromkeys(found))

    def kind(self) -> Kind:
        """Tasks with the same one wait for the same, and ask for as much of it."""
        if self.shortage is not None:
            return self.cause, self.shortage.resource, self.shortage.asked
        if self.cause is Cause.TOO_LARGE:
            return self.cause, self.detail, 0
        return self.cause, self.cap.category if self.cap is not None else self.larger, 0


Kind: TypeAlias = tuple[Cause, str, int]
"""A cause, the resource or category that it is about, and the amount that is asked for."""


class Group(msgspec.Struct, omit_defaults=True):
    """Tasks that wait for the same."""

    cause: Cause
    count: int
    example: Answer
    nodes: int = 0
    """On how many nodes of a cluster they are; what is free, and who holds the rest, is told of the example's."""


class RunAnswer(msgspec.Struct, omit_defaults=True):
    """Why a run is where it is."""

    running: int = 0
    ready: int = 0
    """Could run, but do not."""
    waiting: int = 0
    """Need others that are not done."""
    done: int = 0
    failed: int = 0
    """Those that were cancelled among them."""
    cancelled: int | None = None
    """How many these are; None if that is not known."""
    doomed: int = 0
    groups: list[Group] = []
    """What the ready ones wait for, the largest first."""
    notes: list[str] = []
    """What else is known: nodes that are missing, a store that does not answer."""
