"""Tasks that no current node of the cluster can run: the node that should place them keeps them until one joins.

The store records this node as their owner, so they are recovered if it is lost. A node can run a task if it has the
resources and labels; what happens then is decided by the share.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shoal.core.peer_messages import ReadyTask
from shoal.core.resources import Resources, unmet
from shoal.core.task import Profile
from shoal.core.work import Work


class UnplaceableTasks:
    """The unplaceable tasks that one node keeps."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._tickets: dict[int, ReadyTask] = {}
        self._told: set[int] = set()
        """Categories that were already reported."""

    def __contains__(self, task: int) -> bool:
        return task in self._tickets

    def __len__(self) -> int:
        return len(self._tickets)

    def keep(self, ticket: ReadyTask, nodes: Iterable[Resources]) -> str | None:
        """Keeps a task that none of these nodes can run; returns a message if it is the first of its category."""
        self._tickets[ticket.task] = ticket
        category = self._work.category[ticket.task]
        if category in self._told:
            return None
        self._told.add(category)
        return waiting_sentence(self._work.profiles[category], nodes)

    def take(self, nodes: Sequence[Resources]) -> list[ReadyTask]:
        """Removes and returns the tasks that one of these nodes can run."""
        categories = {self._work.category[task] for task in self._tickets}
        able = {at for at in categories if unmet(self._work.profiles[at].resources, nodes) is None}
        self._told -= able
        found = [ticket for task, ticket in self._tickets.items() if self._work.category[task] in able]
        for ticket in found:
            del self._tickets[ticket.task]
        return found

    def drop(self, tasks: Iterable[int]) -> None:
        """Drops cancelled tasks."""
        for task in tasks:
            self._tickets.pop(task, None)


def waiting_sentence(profile: Profile, nodes: Iterable[Resources]) -> str | None:
    """Returns the message about tasks that none of these nodes can run; the client shows the same before submission."""
    reason = unmet(profile.resources, nodes)
    return f"{reason}: tasks of the category {profile.category!r} wait for one" if reason else None
