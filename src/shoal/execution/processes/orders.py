"""Orders for the launcher (command, limits, environment), and the assignment of processors and GPUs to tasks."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, cast

from shoal.core.graph import Graph
from shoal.core.policies.sizing.adviser import SIZED, Amounts
from shoal.core.resources import FRACTION
from shoal.core.task import Call, Profile
from shoal.execution.processes.launcher_messages import NO_LIMIT, Order
from shoal.execution.processes.shell import NO_BASH, lacks_bash, program, words_of_shell
from shoal.ledger.up_to_date import Plan

if TYPE_CHECKING:
    from shoal.execution.processes.seats import Seats

LIMITS_OF_FUNCTIONS = "of functions is reserved but not enforced on this machine: functions above it are not killed"
_MEMORY = SIZED.index("memory")


class Orders:
    """Makes the orders of one run; computes what all tasks of a profile share only once."""

    def __init__(self, graph: Graph, *, enforced: bool) -> None:
        """Unless `enforced`, declared resources are not limits."""
        self._graph = graph
        self._settings = [settings_of(profile) for profile in graph.profiles]
        self._shell = [shell_of(profile) for profile in graph.profiles]
        self._memory = [profile.resources.get("memory") if enforced else 0 for profile in graph.profiles]
        self._disk = [profile.resources.get("disk") if enforced else 0 for profile in graph.profiles]

    def make(self, task: int, attempt: int, command: str, sizes: Amounts) -> Order:
        """Returns the order of an attempt. Declared memory is a limit; learned memory is a threshold that is only
        reported."""
        profile = self._graph.profile[task]
        memory = self._memory[profile] or -sizes[_MEMORY]
        disk = self._disk[profile]
        plain = (task, attempt, os.fsencode(command), *self._settings[profile], memory, self._shell[profile])
        return (*plain, disk, self._paths(task)) if disk else plain

    def _paths(self, task: int) -> bytes:
        names = self._graph.file_names
        return b"".join(os.fsencode(names[file]) + b"\0" for file in self._graph.outputs_of(task))


def settings_of(profile: Profile) -> tuple[float, bytes, bytes]:
    """Returns time limit, variables and directory of an order."""
    variables = "".join(f"{name}={value}\0" for name, value in profile.environment)
    limit = NO_LIMIT if profile.timeout is None else profile.timeout
    return limit, os.fsencode(variables), os.fsencode(profile.directory or "")


def notes_on(plan: Plan, *, enforced: bool) -> Iterator[str]:
    """Yields a warning for each request of the plan's tasks that this machine cannot meet."""
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
    """Returns the words of the shell for an order; the machine that runs the task decides which shells exist."""
    words = words_of_shell(profile.shell)
    return b"".join(os.fsencode(word) + b"\0" for word in words)


class SeatedOrders:
    """Seats for the orders of one run: tasks that request whole cores or GPUs are pinned."""

    def __init__(self, seats: Seats, needs: Sequence[tuple[int, int]], kind_of: Callable[[int], int]) -> None:
        """`needs` are cores and GPUs by kind of task; 0 and 0 for those that are not pinned."""
        self._seats = seats
        self._needs = needs
        self._kind_of = kind_of

    def seated(self, orders: Sequence[Order]) -> Sequence[Order]:
        """Adds the variables of seats to the orders. Tasks so short that they are bundled are not pinned."""
        if len(orders) != 1:
            return orders
        (order,) = orders
        cores, gpus = self._needs[self._kind_of(order[0])]
        if not cores and not gpus:
            return orders
        added = self._seats.take(order[0], cores, gpus)
        variables = without(added, order[4]) + order[4]
        seated = (*order[:4], variables, *order[5:])
        return [cast(Order, seated)]

    def give(self, task: int) -> None:
        self._seats.give(task)

    def close(self) -> None:
        self._seats.close()


def without(added: bytes, own: bytes) -> bytes:
    """Returns the variables of a seat except those that the user has set for the task."""
    if not own:
        return added
    names = {entry.partition(b"=")[0] for entry in own.split(b"\0")}
    kept = [entry for entry in added.split(b"\0") if entry and entry.partition(b"=")[0] not in names]
    return b"".join(entry + b"\0" for entry in kept)


def seating_for(profiles: Sequence[Profile], kind_of: Callable[[int], int]) -> SeatedOrders | None:
    """Returns the seating of a run on this machine; None if no task declares whole cores or GPUs."""
    needs = [needs_of(profile) for profile in profiles]
    if not any(cores or gpus for cores, gpus in needs) or not hasattr(os, "sched_setaffinity"):
        return None
    # imported only when needed: most tasks are not pinned
    from shoal.execution.processes.seats import SHARED, Seats
    from shoal.execution.processes.topology import this_machine

    folder = SHARED if os.path.isdir(SHARED) else tempfile.gettempdir()
    return SeatedOrders(Seats(this_machine(), folder), needs, kind_of)


def needs_of(profile: Profile) -> tuple[int, int]:
    """Returns the whole cores and GPUs that a task declares. Fractional ones are shared, so they are not pinned."""
    found = []
    for name in ("cores", "gpus"):
        amount = profile.resources.get(name) if profile.declares(name) else 0
        found.append(amount // FRACTION if amount % FRACTION == 0 else 0)
    return found[0], found[1]
