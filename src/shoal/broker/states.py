"""The life of a task in a broker, as a table.

A task is with a broker from the moment it is ready until it is over; before, it waits in the flow. Everything that
moves a task from one state to another is a row here; a missing row is a defect and changes nothing.
"""

from __future__ import annotations

from enum import IntEnum


class State(IntEnum):
    """Where a task stands in its broker."""

    ABSENT = 0
    """Not here: not yet ready, or over."""
    QUEUED = 1
    RUNNING = 2
    RESTING = 3
    """Waits for its next attempt."""
    ENDING = 4
    """Running, but no longer wanted."""


class Move(IntEnum):
    """What happens to a task."""

    ARRIVE = 0
    START = 1
    SUCCEED = 2
    FAIL = 3
    """The task is over without a result: its last attempt failed, or the node has become too small for it."""
    REST = 4
    """The attempt failed and another one follows later."""
    REQUEUE = 5
    """The attempt failed and another one may follow at once."""
    WAKE = 6
    CANCEL = 7
    LEAVE = 8
    """Another broker has it from now on."""


TRANSITIONS: dict[tuple[int, int], State] = {
    (State.ABSENT, Move.ARRIVE): State.QUEUED,
    (State.QUEUED, Move.START): State.RUNNING,
    (State.QUEUED, Move.CANCEL): State.ABSENT,
    (State.QUEUED, Move.FAIL): State.ABSENT,
    (State.QUEUED, Move.LEAVE): State.ABSENT,
    (State.RUNNING, Move.SUCCEED): State.ABSENT,
    (State.RUNNING, Move.FAIL): State.ABSENT,
    (State.RUNNING, Move.REST): State.RESTING,
    (State.RUNNING, Move.REQUEUE): State.QUEUED,
    (State.RUNNING, Move.CANCEL): State.ENDING,
    (State.RESTING, Move.WAKE): State.QUEUED,
    (State.RESTING, Move.CANCEL): State.ABSENT,
    (State.RESTING, Move.FAIL): State.ABSENT,
    (State.RESTING, Move.LEAVE): State.ABSENT,
    (State.ENDING, Move.SUCCEED): State.ABSENT,
    (State.ENDING, Move.FAIL): State.ABSENT,
}


def moved_by(move: Move) -> dict[State, State]:
    """One column of the table, for what happens to every task."""
    return {State(before): after for (before, other), after in TRANSITIONS.items() if other == move}
