"""Tasks that ask for other cores than their category is declared with: sparse, since most runs have none of them.

What all the others hold follows from their category; `RunView.cores_of` puts both together. Who asks for single tasks
needs no numpy.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from shoal.ledger.records import NONE_ASKED, CoresAsked, numbers
from shoal.model.resources import FRACTION

if TYPE_CHECKING:
    from shoal.view.columns import Array, Floats, Ints


class Apart:
    """These tasks, and what each asks for. Of what is recorded twice of a task, the last counts."""

    def __init__(self) -> None:
        self._records: list[CoresAsked] = []
        self._asked: dict[int, int] | None = None
        self._sorted: tuple[Ints, Ints] | None = None

    def __bool__(self) -> bool:
        return bool(self._records)

    def __contains__(self, task: int) -> bool:
        return bool(self._records) and task in self._by_task()

    def add(self, record: CoresAsked) -> None:
        self._records.append(record)
        self._asked = self._sorted = None

    def of(self, task: int, otherwise: int) -> int:
        """What a task asks for, or what others of its category do."""
        return self._by_task().get(task, otherwise) if self._records else otherwise

    def _by_task(self) -> dict[int, int]:
        if self._asked is None:
            rows = (zip(numbers(each.tasks), numbers(each.cores), strict=True) for each in self._records)
            self._asked = dict(chain.from_iterable(rows))
        return self._asked

    def _columns(self) -> tuple[Ints, Ints]:
        """The numbers of the tasks in their order, and what each asks for."""
        if self._sorted is None:
            import numpy as np

            columns = [[np.frombuffer(c, "<i4") for c in (each.tasks, each.cores)] for each in self._records[::-1]]
            tasks, asked = (
                np.concatenate([np.zeros(0, np.int64), *(pair[at][::-1] for pair in columns)]).astype(np.int64)
                for at in (0, 1)
            )
            tasks, last = np.unique(tasks, return_index=True)
            self._sorted = tasks, asked[last]
        return self._sorted

    @property
    def tasks(self) -> Ints:
        return self._columns()[0]

    @property
    def asked(self) -> Ints:
        """In parts of 10,000; `NONE_ASKED` for those that ask for nothing."""
        return self._columns()[1]

    def among(self, tasks: Ints) -> tuple[Ints, Ints]:
        """Which of some tasks are such, as places among them, and what those ask for."""
        import numpy as np

        known, asked = self._columns()
        if not len(known):
            return np.zeros(0, np.int64), asked
        place = np.minimum(np.searchsorted(known, tasks), len(known) - 1)
        found = np.flatnonzero(known[place] == tasks)
        return found, asked[place[found]]


def as_cores(asked: Ints) -> Floats:
    """Who asks for nothing is given one."""
    import numpy as np

    found: Floats = np.where(asked == NONE_ASKED, 1.0, asked / FRACTION)
    return found


def are_declared(asked: Ints) -> Array:
    """Whether somebody asked."""
    found: Array = asked != NONE_ASKED
    return found
