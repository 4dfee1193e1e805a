"""What a run still has to do, by category, read from the books of the cluster: gently, and never a reason to stop.

The cluster's own answer says how many tasks are ready, not which. So whoever keeps the factories looks into the books
as agents do: once at the work, now and then at the standing of all tasks, and at the last few results, which tell how
long tasks of a category take. What follows from it is for `shoal.cluster.nodes.demand` and
`shoal.cluster.nodes.factory` to say.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from shoal.cluster.agent.messages import ClusterReply, ClusterRunFacts
from shoal.cluster.agent.run_description import decode_entry
from shoal.cluster.nodes.demand import CategoryDemand
from shoal.cluster.stores.redis import RedisStore
from shoal.cluster.stores.remote import RemoteStore
from shoal.core.resources import Resources
from shoal.core.store.interface import TaskStanding
from shoal.core.task import Profile
from shoal.errors import ShoalError

if TYPE_CHECKING:
    from shoal.cluster.agent.run_store import ClusterStores

ROUND_SECONDS = 2.0
TASKS_PER_SECOND = 50_000
"""Of a large run the standings are asked for less often."""
RESULTS_AT_ONCE = 32
"""Results looked at each time; each may carry what its task wrote."""
REMEMBERED = 50
"""Durations of a category that its mean is made of."""
SILENCE_SECONDS = 30.0
"""When nothing of a category has ended for so long, and for so many means, what is left of it takes longer."""
SILENT_MEANS = 4


class Backlog:
    """The tasks of the run that is served, as far as it is worth knowing; keeps nothing that would be missed."""

    def __init__(self, open_books: Callable[[], ClusterStores], now: Callable[[], float]) -> None:
        self._open_books, self._now = open_books, now
        self._books: ClusterStores | None = None
        self._run = ""
        self._store: RedisStore | RemoteStore | None = None
        self._category: Sequence[int] = ()
        self._profiles: list[Profile] = []
        self._next = 0.0
        self._ready: list[int] = []
        self._seconds: list[deque[float]] = []
        self._heard: list[float] = []
        """By category, when a result was last seen."""
        self._next_result = 0

    def demands(self, found: ClusterReply) -> list[CategoryDemand]:
        """By category what is ready now. Where the books do not tell, all tasks are of one kind that fits anywhere."""
        run = served(found)
        if run is None or not run.ready:
            if run is None:
                self._leave()
            return []
        try:
            self._read(run)
        except (ShoalError, msgspec.MsgspecError, LookupError):  # the run was forgotten, or the store does not answer
            self._leave()
            return [CategoryDemand(Resources(), run.ready)]
        return self._counted(run.ready)

    def _read(self, run: ClusterRunFacts) -> None:
        now = self._now()
        if run.run != self._run:
            self._leave()
            self._attach(run.run)
        elif now < self._next:
            return
        assert self._store is not None
        self._next = now + max(ROUND_SECONDS, self._store.size / TASKS_PER_SECOND)
        self._ready = ready_by_category(self._store.standings(), self._category, len(self._profiles))
        # The log is at least as long as what is done; of a long one only the end is looked at.
        first = max(self._next_result, run.tasks - run.left - RESULTS_AT_ONCE)
        results = self._store.log(first, RESULTS_AT_ONCE)
        self._next_result = first + len(results)
        self._note_durations(results)

    def _attach(self, run: str) -> None:
        self._books = self._books or self._open_books()
        store, work = self._books.attach(run)
        assert isinstance(store, (RedisStore, RemoteStore))
        self._store, self._category, self._profiles = store, array("i", work.category), work.profiles
        self._seconds = [deque(maxlen=REMEMBERED) for _ in work.profiles]
        self._heard = [0.0] * len(work.profiles)
        self._run = run

    def _leave(self) -> None:
        store, self._store, self._run, self._next_result = self._store, None, "", 0
        if store is not None:
            try:
                store.close()
            except ShoalError:
                pass  # it does not answer: then there is nothing to tell it either

    def _note_durations(self, entries: Sequence[bytes]) -> None:
        for data in entries:
            entry = decode_entry(data)
            if entry.verdict == "done" and 0 <= entry.task < len(self._category):
                category = self._category[entry.task]
                self._seconds[category].append(max(0.0, entry.ended - entry.started))
                self._heard[category] = self._now()

    def _counted(self, ready: int) -> list[CategoryDemand]:
        """The counts of the last look, brought to what is ready by now."""
        seen = sum(self._ready)
        if not seen:
            return [CategoryDemand(Resources(), ready)]
        return [
            CategoryDemand(self._profiles[category].resources, round(count * ready / seen), self._mean(category))
            for category, count in enumerate(self._ready)
            if count
        ]

    def _mean(self, category: int) -> float | None:
        """How long a task of a category takes, unless the last results are too old to say so of those that are left."""
        seconds = self._seconds[category]
        if not seconds:
            return None
        mean = sum(seconds) / len(seconds)
        return mean if self._now() - self._heard[category] <= SILENCE_SECONDS + SILENT_MEANS * mean else None


def served(found: ClusterReply) -> ClusterRunFacts | None:
    """Runs are served one after another: it is the first one that has not ended."""
    return next((run for run in found.runs if run.state != "ended"), None)


def ready_by_category(standings: bytes, category: Sequence[int], categories: int) -> list[int]:
    """How many tasks of each category are ready."""
    import numpy as np

    is_ready = np.frombuffer(standings, dtype="u1") == int(TaskStanding.READY)
    return [int(count) for count in np.bincount(np.asarray(category, dtype="i4")[is_ready], minlength=categories)]
