"""Orders for the launcher: a task's command with what its profile and the broker say of it."""

from __future__ import annotations

import os
from collections.abc import Iterator

from shoal.model.graph import Graph
from shoal.model.task import Call, Profile
from shoal.plan.decide import Plan
from shoal.policy.sizing.panel import SIZED, Amounts
from shoal.runner.link import NO_LIMIT, Order
from shoal.runner.shell import NO_BASH, lacks_bash, program, words_of_shell

LIMITS_OF_FUNCTIONS = "of functions is reserved on this machine and not held: a function that takes more is not ended"
_MEMORY = SIZED.index("memory")


class Orders:
    """Makes the orders of one run; what is the same for all tasks of a profile is made once."""

    def __init__(self, graph: Graph, *, enforced: bool) -> None:
        """If nothing is `enforced`, what a task declares is no limit."""
        self._graph = graph
        self._circumstances = [circumstances_of(profile) for profile in graph.profiles]
        self._shell = [shell_of(profile) for profile in graph.profiles]
        self._memory = [profile.resources.get("memory") if enforced else 0 for profile in graph.profiles]
        self._disk = [profile.resources.get("disk") if enforced else 0 for profile in graph.profiles]

    def make(self, task: int, attempt: int, command: str, sizes: Amounts) -> Order:
        """The order; what the task declared is a limit, what was learned only says from where on we want to know."""
        profile = self._graph.profile[task]
        memory = self._memory[profile] or -sizes[_MEMORY]
        disk = self._disk[profile]
        plain = (task, attempt, os.fsencode(command), *self._circumstances[profile], memory, self._shell[profile])
        return (*plain, disk, self._paths(task)) if disk else plain

    def _paths(self, task: int) -> bytes:
        names = self._graph.file_names
        return b"".join(os.fsencode(names[file]) + b"\0" for file in self._graph.outputs_of(task))


def circumstances_of(profile: Profile) -> tuple[float, bytes, bytes]:
    """Time limit, variables and directory of an order."""
    variables = "".join(f"{name}={value}\0" for name, value in profile.environment)
    limit = NO_LIMIT if profile.timeout is None else profile.timeout
    return limit, os.fsencode(variables), os.fsencode(profile.directory or "")


def notes_on(plan: Plan, *, enforced: bool) -> Iterator[str]:
    """What is not as the tasks that are to run would have it on this machine, each in a sentence."""
    graph = plan.graph
    profiles, actions = graph.profiles, graph.actions
    for kind in ("memory", "disk"):
        sized = [enforced and profile.resources.get(kind) > 0 for profile in profiles]
        if any(sized) and any(sized[graph.profile[task]] and type(actions[task]) is Call for task in plan.to_run()):
            yield f"{kind}= {LIMITS_OF_FUNCTIONS}"
    if program("bash") is None:
        for task in plan.to_run():
            action = actions[task]
            if isinstance(action, str) and lacks_bash(profiles[graph.profile[task]].shell, action):
                yield NO_BASH
                return


def shell_of(profile: Profile) -> bytes:
    """The words of the shell for an order. Which one there is, is a matter of the machine that runs the task."""
    words = words_of_shell(profile.shell)
    return b"".join(os.fsencode(word) + b"\0" for word in words)
