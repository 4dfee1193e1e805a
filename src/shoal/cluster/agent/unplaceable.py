"""Tasks that no node of the cluster can run as it is now: whoever was to place them keeps them until one has come.

In the books they are this node's, so they are found again if it is lost. Whether a node can run a task is asked of its
resources and labels; what is done with a task when it can be run is left to the share.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shoal.core.peer_messages import ReadyTask
from shoal.core.resources import Resources, unmet
from shoal.core.task import Profile
from shoal.core.work import Work


class UnplaceableTasks:
    """What one node keeps for others that are not there yet."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._tickets: dict[int, ReadyTask] = {}
        self._told: set[int] = set()
        """Categories of which it has been said that they wait."""

    def __contains__(self, task: int) -> bool:
        return task in self._tickets

    def __len__(self) -> int:
        return len(self._tickets)

    def keep(self, ticket: ReadyTask, nodes: Iterable[Resources]) -> str | None:
        """Keeps a task that none of these nodes can run; a sentence about that if it is the first of its category."""
        self._tickets[ticket.task] = ticket
        category = self._work.category[ticket.task]
        if category in self._told:
            return None
        self._told.add(category)
        return waiting_sentence(self._work.profiles[category], nodes)

    def take(self, nodes: Sequence[Resources]) -> list[ReadyTask]:
        """Those that one of these nodes can run; they are not kept any more."""
        categories = {self._work.category[task] for task in self._tickets}
        able = {at for at in categories if unmet(self._work.profiles[at].resources, nodes) is None}
        self._told -= able
        found = [ticket for task, ticket in self._tickets.items() if self._work.category[task] in able]
        for ticket in found:
            del self._tickets[ticket.task]
        return found

    def drop(self, tasks: Iterable[int]) -> None:
        """These are not wanted any more."""
        for task in tasks:
            self._tickets.pop(task, None)


def waiting_sentence(profile: Profile, nodes: Iterable[Resources]) -> str | None:
    """What is said of a kind of task that none of these nodes can run; the client says the same beforehand."""
    reason = unmet(profile.resources, nodes)
    return f"{reason}: tasks of the category {profile.category!r} wait for one" if reason else None
