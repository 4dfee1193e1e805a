"""The interface of run stores and the guarantees of each operation.

A run store holds the shared state of one run: dependencies, finished tasks, the owner of each task, the locations of
files, and which nodes are alive. Every operation is atomic.

*Idempotent.* A result counts once per task: a second report, or a report of an attempt that is no longer current, has
no effect. A store that is reached over a network executes an operation once and returns the same reply, even if it is
sent again because a reply was lost.

*Fenced.* When a task must be placed again it begins a new *generation*, whose attempt numbers are above all earlier
ones (`STRIDE`); reports about earlier generations have no effect. A node that was declared lost may therefore continue
for as long as it likes: its reports are ignored, and it gets no more tasks.

*No orphans.* Tasks returned by an operation are owned by the taker as part of the same atomic step, so that they are
found if the taker dies immediately afterwards (`lose`). Only tasks taken by `NOBODY` must be given an owner (`owned`)
before they are sent to a scheduler; `unowned` finds tasks for which this did not happen.

*Leases.* A node is alive while its lease lasts. A store on a server measures leases with its own clock, so the clocks
of the nodes need not agree; the store in memory has no clock and is given the time.

*A log.* An operation can append an entry of opaque bytes, atomically, once, and only if the operation has an effect.
The submitter of the run reads the entries by number, in order and each once, to write its ledger. An empty entry is not
logged.

Requirements on drivers: the operations of one node are executed in the order in which its scheduler caused them, and a
transfer is sent only after `moved` has recorded it and not rejected it.
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
"""Location of a file that does not exist (any more)."""
LEASE = 10.0
"""Seconds after its last message for which a node is considered alive."""

UNEVEN = "there must be an entry for each result"


class GoneError(RunError):
    """The store no longer has a run: it was restarted without its data, or the run was removed."""


class UnknownRunError(InputError):
    """The store has no run of this name."""


class TaskStanding(IntEnum):
    """State of a task."""

    WAITING = 0
    READY = 1
    DONE = 2
    FAILED = 3
    DOOMED = 4
    """A task that it depends on failed or was cancelled."""


Made: TypeAlias = tuple[int, int, bytes]
"""An output file: its number, its size, and opaque information about it."""


class ReadyBatch(msgspec.Struct):
    """Ready tasks with the locations of their inputs."""

    tickets: list[ReadyTask]
    holdings: list[tuple[tuple[int, int], ...]]
    """Per task: pairs of node and bytes; empty if no task reads anything."""


class Store(Protocol):
    """The shared state of one run, as used by the drivers of schedulers."""

    def close(self) -> None:
        """Releases the connection; no operation may follow."""

    @property
    def size(self) -> int:
        """Number of tasks in the run."""

    @property
    def left(self) -> int:
        """Number of tasks that are neither done nor given up."""

    @property
    def ready_count(self) -> int:
        """Number of tasks that are ready or running."""

    @property
    def seen_left(self) -> int:
        """`left` as of the last reply that could change it, such as those to `complete` and `give_up`.

        Does not contact the store.
        """

    @property
    def seen_ready(self) -> int:
        """`ready_count` as of the same reply."""

    # ---- tasks ---------------------------------------------------------------------------------------------------

    def begin(self) -> ReadyBatch:
        """Returns the tasks that are ready at the start, still without an owner; called once, by the submitter."""

    def complete(
        self,
        node: int,
        ended: Sequence[tuple[int, int]],
        entries: Sequence[bytes] = (),
        made: Sequence[Sequence[Made]] = (),
    ) -> tuple[list[int], ReadyBatch]:
        """Records results (task, attempt) of a node. Returns the accepted tasks and the newly ready ones, owned by the
        node.

        `entries`, if given, has one entry per result; entries of accepted results are logged. `made` has the output
        files of each result: their sizes and opaque information about them (`about_of`).
        """

    def give_up(self, task: int, attempt: int | None = None, entry: bytes = b"") -> list[int]:
        """Records that a task failed for good or is cancelled. Returns the tasks that can therefore never run.

        The entry is logged if the operation has an effect.
        """

    def cancel(self, tasks: Iterable[int]) -> list[int]:
        """Cancels tasks and everything that depends on them; returns those owned by schedulers, which must be
        notified."""

    def standing_of(self, task: int) -> TaskStanding:
        """State of a task."""

    def standings(self) -> bytes:
        """States of all tasks, one byte each."""

    # ---- information about the run -------------------------------------------------------------------------------

    def note(self, entry: bytes) -> None:
        """Appends an entry to the log."""

    def log(self, start: int, most: int = 1000) -> list[bytes]:
        """Up to `most` log entries from number `start` on, counted from 0."""

    def put_piece(self, name: str, data: bytes) -> None:
        """Stores named data of the run for all participants; below 8 MiB."""

    def get_piece(self, name: str) -> bytes | None:
        """Data stored under a name; None if there is none."""

    def forget(self) -> None:
        """Removes the run with its log and data; no operation on it may follow."""

    def whereabouts(self, task: int) -> tuple[TaskStanding, int, int]:
        """State of a task, number of its unfinished dependencies, and the node that owns it (`NOBODY`: none)."""

    # ---- owners of tasks -----------------------------------------------------------------------------------------

    def owned(self, tasks: Iterable[int], node: int) -> None:
        """Assigns tasks from the store to a scheduler; has no effect if the node is lost."""

    def unowned(self, taker: int = NOBODY) -> ReadyBatch:
        """Ready tasks without an owner: the node that should have placed them is lost. They become the taker's."""

    def moved(self, tickets: Iterable[ReadyTask], giver: int, node: int, number: int = 0) -> ReadyBatch:
        """Records that one scheduler gives tasks to another. If the receiver is lost the giver gets them back, as a new
        generation.

        `number` is the sequence number of the transfer: recording it a second time has no effect.
        """

    def recorded(self, giver: int) -> int:
        """Sequence number of the last transfer recorded for a node."""

    def claim(self, node: int, tickets: Iterable[ReadyTask]) -> ReadyBatch:
        """Reports that promised tasks (`lose`) have not arrived; the node places those again that no other node can
        have."""

    def hand_back(self, ticket: ReadyTask, taker: int = NOBODY) -> ReadyTask | None:
        """Takes a task back from a scheduler that cannot run it; returns it for another one, or None if it is
        outdated."""

    def missing(self, ticket: ReadyTask, taker: int = NOBODY) -> ReadyBatch:
        """Reports that an input was missing at the start of a task: the task waits for it, or is placed again if it
        exists."""

    # ---- leases of nodes -----------------------------------------------------------------------------------------

    def renew(self, node: int, now: float = 0.0) -> bool:
        """Renews the lease of a node; False: it was declared lost and must terminate."""

    def expired(self, now: float = 0.0) -> list[int]:
        """Nodes with an expired lease that were not declared lost yet, in order."""

    def lose(self, node: int, taker: int = NOBODY) -> tuple[ReadyBatch, dict[int, list[ReadyTask]]]:
        """Declares a node lost. Returns its tasks for placement, and by owner the tasks that were in transit from the
        node.

        The latter may have arrived or not: the owner claims those that it does not have. A lost taker has no effect; a
        second call returns nothing.
        """

    # ---- files ---------------------------------------------------------------------------------------------------

    def holdings(self, task: int) -> tuple[tuple[int, int], ...]:
        """Locations of a task's inputs, as pairs of node and bytes."""

    def copies(self, file: int) -> list[int]:
        """Nodes that have a copy of a file."""

    def copied(self, file: int, node: int) -> None:
        """Records that a node has a copy of a file."""

    def about_of(self, file: int) -> bytes | None:
        """Opaque information about a file from the task that made it last."""

    def dropped(self, file: int, node: int) -> None:
        """Records that a node has removed its copy; the last copy is never removed deliberately."""
