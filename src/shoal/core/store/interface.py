"""What a store keeps for the brokers of a run, and what each operation promises; the stores themselves are elsewhere.

A store holds the books of one run: who waits for whom, what is done, which broker has which task, where each file is,
and which nodes are alive. Every operation is one step: it happens wholly or not at all, and nobody sees half of it.

*Idempotent.* A result counts once per task: a second report of it, or one of an attempt that does not count any more,
changes nothing. A store that is reached through a network makes sure that an operation which is sent again, because its
answer got lost, is carried out once and gets the same answer.

*Fenced.* When a task must be placed anew it begins a new *generation*, whose attempt numbers are above all earlier ones
(`STRIDE`); what is heard of an earlier one changes nothing. A node that was declared lost can therefore go on as long
as it likes: nothing that it says counts, and it is given nothing.

*Never adrift.* Tasks that an operation hands out belong to whoever takes them from that very step on, so that they are
found if the taker dies before it could do anything (`lose`). Only tasks taken by `NOBODY` must be given an owner
(`owned`) afterwards, before any broker is told of them; those for which that did not happen are found by `unowned`.

*Leases.* A node is alive while its lease lasts. A store that others reach measures that by its own clock, so the nodes'
clocks need not agree; the store in memory has no clock, and is told the time.

*A log.* An operation can leave an entry: opaque bytes, added in the same step, once, and only if it changes something.
Whoever submitted the run reads them by their numbers, in order and each once, to write its ledger. An empty entry is
none.

What a store asks of a driver: the operations of one node are carried out in the order in which its broker caused them,
and a parcel is sent only after `moved` has recorded it and not refused it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Protocol, TypeAlias

import msgspec

from shoal.core.peer_messages import ReadyTask
from shoal.errors import InputError, RunError

STRIDE = 1 << 16
NOBODY = -1
GONE = -2
"""Location of a file that does not exist, or not any more."""
LEASE = 10.0
"""Seconds that a node is taken for alive after it was last heard of."""

UNEVEN = "there must be an entry for each result"


class GoneError(RunError):
    """The store has lost a run that it had: it was started anew without its data, or somebody has removed the run."""


class UnknownRunError(InputError):
    """The store has no run of that name."""


class TaskStanding(IntEnum):
    """Where a task stands."""

    WAITING = 0
    READY = 1
    DONE = 2
    FAILED = 3
    DOOMED = 4
    """Something it needs failed or was cancelled."""


Made: TypeAlias = tuple[int, int, bytes]
"""A file that was made: its number, its size, and what is to be known of it."""


class ReadyBatch(msgspec.Struct):
    """Tasks that are ready, and where their inputs are."""

    tickets: list[ReadyTask]
    holdings: list[tuple[tuple[int, int], ...]]
    """Per ticket; empty if no task reads anything."""


class Store(Protocol):
    """The books of one run, as the drivers of brokers use them."""

    def close(self) -> None:
        """Whoever has opened these books asks for nothing any more."""

    @property
    def size(self) -> int:
        """Tasks of the run."""

    @property
    def left(self) -> int:
        """Tasks that are neither done nor given up."""

    @property
    def ready_count(self) -> int:
        """Tasks that could run or do."""

    @property
    def seen_left(self) -> int:
        """What the store said of `left` in its last answer that could change it, such as to `complete` and `give_up`.

        To ask for it costs no way to the store.
        """

    @property
    def seen_ready(self) -> int:
        """What it said then of `ready_count`."""

    # ---- tasks ---------------------------------------------------------------------------------------------------

    def begin(self) -> ReadyBatch:
        """What is ready at the start, for nobody yet; called once, by whoever brought the work."""

    def complete(
        self,
        node: int,
        ended: Sequence[tuple[int, int]],
        entries: Sequence[bytes] = (),
        made: Sequence[Sequence[Made]] = (),
    ) -> tuple[list[int], ReadyBatch]:
        """Results (task, attempt) of a node: the tasks for which they count, and what became ready, which it takes.

        Entries, if there are any, are one for each result; those of results that count are logged. Likewise the files
        that were made: their sizes, and what is to be known of them (`about_of`).
        """

    def give_up(self, task: int, attempt: int | None = None, entry: bytes = b"") -> list[int]:
        """The task has failed for good or is not wanted; what can never run because of that.

        The entry is logged if that changes anything.
        """

    def cancel(self, tasks: Iterable[int]) -> list[int]:
        """Removes tasks and all that needs them; returns those that some broker has and must be told of."""

    def standing_of(self, task: int) -> TaskStanding:
        """Where a task stands."""

    def standings(self) -> bytes:
        """Where all tasks stand, a byte each."""

    # ---- what is told of the run ---------------------------------------------------------------------------------

    def note(self, entry: bytes) -> None:
        """Logs an entry."""

    def log(self, start: int, most: int = 1000) -> list[bytes]:
        """The entries from number `start` on, counted from 0, as far as there are any; `most` at a time."""

    def put_piece(self, name: str, data: bytes) -> None:
        """Something more that belongs to the run, for all who join it; below 8 MiB."""

    def get_piece(self, name: str) -> bytes | None:
        """What was put under a name; None: nothing."""

    def forget(self) -> None:
        """Removes the run with its log and pieces; nobody is to ask for anything of it afterwards."""

    def whereabouts(self, task: int) -> tuple[TaskStanding, int, int]:
        """Where a task stands, for how many others it waits, and the node that has it (`NOBODY`: none)."""

    # ---- who has what --------------------------------------------------------------------------------------------

    def owned(self, tasks: Iterable[int], node: int) -> None:
        """A broker has these tasks now, from the store itself; nothing happens if the node is lost."""

    def unowned(self, taker: int = NOBODY) -> ReadyBatch:
        """Tasks that are ready and that nobody has: whoever should have placed them is gone."""

    def moved(self, tickets: Iterable[ReadyTask], giver: int, node: int, number: int = 0) -> ReadyBatch:
        """One broker gives tasks to another; if that one is lost the giver takes them back, as a new generation.

        `number` counts the giver's parcels: to record one a second time changes nothing.
        """

    def recorded(self, giver: int) -> int:
        """The number of the last parcel that was recorded for a node."""

    def claim(self, node: int, tickets: Iterable[ReadyTask]) -> ReadyBatch:
        """A node has not got these promised tasks (`lose`); those that nobody else can have are placed anew by it."""

    def hand_back(self, ticket: ReadyTask, taker: int = NOBODY) -> ReadyTask | None:
        """A broker cannot run a task and has let go of it: the ticket for another one, None if it does not count."""

    def missing(self, ticket: ReadyTask, taker: int = NOBODY) -> ReadyBatch:
        """A task found an input missing when it started: it waits for it, or is placed anew if it is there now."""

    # ---- who is there --------------------------------------------------------------------------------------------

    def renew(self, node: int, now: float = 0.0) -> bool:
        """A node is alive, from now on for the length of a lease; False: it was declared lost and must end."""

    def expired(self, now: float = 0.0) -> list[int]:
        """Nodes whose lease is over and that nobody has declared lost yet, in order."""

    def lose(self, node: int, taker: int = NOBODY) -> tuple[ReadyBatch, dict[int, list[ReadyTask]]]:
        """A node is gone with all it had: what is to be placed anew, and by owner what it should have got from there.

        The latter may or may not have arrived: the owner claims those that it has not got. A taker that is lost itself
        changes nothing; a second call finds nothing more.
        """

    # ---- files ---------------------------------------------------------------------------------------------------

    def holdings(self, task: int) -> tuple[tuple[int, int], ...]:
        """Where a task's inputs are, as pairs of node and bytes."""

    def copies(self, file: int) -> list[int]:
        """The nodes that have a file."""

    def copied(self, file: int, node: int) -> None:
        """A node has got a copy."""

    def about_of(self, file: int) -> bytes | None:
        """What whoever made a file last wanted to be known of it."""

    def dropped(self, file: int, node: int) -> None:
        """A node has let go of its copy; the last one is never let go of by choice."""
