"""Tasks that ask for other cores than their category is declared with: sparse, since most runs have none of them.

What all the others hold follows from their category; `RunView.cores_of` puts both together.
"""

from __future__ import annotations

import numpy as np

from shoal.ledger.records import NONE_ASKED, CoresAsked
from shoal.model.resources import FRACTION
from shoal.view.columns import Array, Floats, Ints


class Apart:
    """The numbers of these tasks in their order, and what each asks for."""

    def __init__(self) -> None:
        self.tasks: Ints = np.zeros(0, np.int64)
        self.asked: Ints = np.zeros(0, np.int64)
        """In parts of 10,000; `NONE_ASKED` for those that ask for nothing."""

    def __bool__(self) -> bool:
        return len(self.tasks) > 0

    def add(self, record: CoresAsked) -> None:
        """What is said last of a task counts."""
        tasks, asked = (np.frombuffer(column, "<i4").astype(np.int64) for column in (record.tasks, record.cores))
        tasks, asked = np.concatenate((tasks[::-1], self.tasks)), np.concatenate((asked[::-1], self.asked))
        self.tasks, first = np.unique(tasks, return_index=True)
        self.asked = asked[first]

    def among(self, tasks: Ints) -> tuple[Ints, Ints]:
        """Which of some tasks are such, as places among them, and what those ask for."""
        if not self:
            return np.zeros(0, np.int64), self.asked
        place = np.minimum(np.searchsorted(self.tasks, tasks), len(self.tasks) - 1)
        found = np.flatnonzero(self.tasks[place] == tasks)
        return found, self.asked[place[found]]


def as_cores(asked: Ints) -> Floats:
    """Who asks for nothing is given one."""
    found: Floats = np.where(asked == NONE_ASKED, 1.0, asked / FRACTION)
    return found


def are_declared(asked: Ints) -> Array:
    """Whether somebody asked."""
    found: Array = asked != NONE_ASKED
    return found
