"""Orders for the launcher: a task's command with what its profile and the broker say of it."""

from __future__ import annotations

import os

from shoal.model.graph import Graph
from shoal.model.task import Profile
from shoal.policy.sizing.panel import SIZED, Amounts
from shoal.runner.link import NO_LIMIT, Order

_MEMORY = SIZED.index("memory")


class Orders:
    """Makes the orders of one run; what is the same for all tasks of a profile is made once."""

    def __init__(self, graph: Graph, *, enforced: bool) -> None:
        """If nothing is `enforced`, what a task declares is no limit."""
        self._graph = graph
        self._circumstances = [circumstances_of(profile) for profile in graph.profiles]
        self._memory = [profile.resources.get("memory") if enforced else 0 for profile in graph.profiles]
        self._disk = [profile.resources.get("disk") if enforced else 0 for profile in graph.profiles]

    def make(self, task: int, attempt: int, command: str, sizes: Amounts) -> Order:
        """The order; what the task declared is a limit, what was learned only says from where on we want to know."""
        profile = self._graph.profile[task]
        memory = self._memory[profile] or -sizes[_MEMORY]
        disk = self._disk[profile]
        plain = (task, attempt, os.fsencode(command), *self._circumstances[profile], memory)
        return (*plain, disk, self._paths(task)) if disk else plain

    def _paths(self, task: int) -> bytes:
        names = self._graph.file_names
        return b"".join(os.fsencode(names[file]) + b"\0" for file in self._graph.outputs_of(task))


def circumstances_of(profile: Profile) -> tuple[float, bytes, bytes]:
    """Time limit, variables and directory of an order."""
    variables = "".join(f"{name}={value}\0" for name, value in profile.environment)
    limit = NO_LIMIT if profile.timeout is None else profile.timeout
    return limit, os.fsencode(variables), os.fsencode(profile.directory or "")
