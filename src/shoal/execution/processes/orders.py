"""Orders for the launcher (command, limits, environment), and the assignment of processors and GPUs to tasks."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import cast

from shoal.core.graph import Graph
from shoal.core.policies.sizing.adviser import SIZED, Amounts
from shoal.core.resources import FRACTION
from shoal.core.task import Call, Profile
from shoal.errors import InputError
from shoal.execution.processes.launcher_messages import NO_LIMIT, Order
from shoal.execution.processes.pinning import CPUS, number_text
from shoal.execution.processes.shell import NO_BASH, lacks_bash, program, words_of_shell
from shoal.ledger.up_to_date import Plan
from shoal.resources.machine import CORE, GPU, THREAD, MachinePart
from shoal.resources.manager import ResourceManager
from shoal.resources.requests import Requirement, require
from shoal.resources.tickets import GrantedPart, TicketState

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


SHARED = "/dev/shm"
THREADS = "OMP_NUM_THREADS"


def environment_of(places: Sequence[GrantedPart], *, threads: bool = True, gpus: bool = True) -> list[tuple[str, str]]:
    """Returns the environment variables of a task with these processors and devices, all on one machine.

    With `threads`, the common numerical libraries are configured to start as many threads as there are processors. On
    machines with `gpus`, all others are hidden from the task.
    """
    cpus = sorted({cpu for place in places for cpu in place.cpus})
    devices = [device for place in places for device in place.devices]
    variables = [("SHOAL_CORES", str(len(cpus)))] if cpus else []
    if cpus:
        variables.append((CPUS, number_text(cpus)))
        if threads:
            variables.append((THREADS, str(len(cpus))))
    # An empty list hides all devices from a task without GPUs.
    if gpus:
        variables.append(("CUDA_VISIBLE_DEVICES", ",".join(devices)))
    memory = sum(place.memory for place in places)
    if memory:
        variables.append(("SHOAL_MEMORY_BYTES", str(memory)))
    return variables


def first_threads(part: MachinePart, above: str = "") -> Iterator[str]:
    """Yields the first thread of each core, by its path."""
    path = f"{above}/{part.name}" if above else part.name
    if part.kind == CORE:
        yield from (f"{path}/{inside.name}" for inside in part.parts[:1])
        return
    for inside in part.parts:
        yield from first_threads(inside, path)


class Claims:
    """Processors and devices that other runs on this machine have assigned: one locked file for each.

    A lock is released when its process ends. Runs of other users are not visible.
    """

    def __init__(self, folder: str) -> None:
        self._stem = os.path.join(folder, f"shoal-seat-{os.getuid()}-")
        self._files: dict[str, int] = {}

    def take(self, names: Sequence[str]) -> bool:
        """Locks all of them, or none."""
        for at, name in enumerate(names):
            if not self._lock(name):
                self.give(names[:at])
                return False
        return True

    def give(self, names: Sequence[str]) -> None:
        for name in names:
            if name in self._files:  # otherwise it was closed, which unlocks it
                fcntl.flock(self._files[name], fcntl.LOCK_UN)

    def close(self) -> None:
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def _lock(self, name: str) -> bool:
        try:
            file = self._files.get(name)
            if file is None:
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                file = self._files[name] = os.open(self._stem + name, flags, 0o600)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True


class Seats:
    """Assigns the processors and GPUs of one machine to tasks.

    The scheduler has already decided that a task runs; if no free seat is left for it, it runs unpinned.
    """

    def __init__(self, machine: MachinePart, folder: str = SHARED) -> None:
        """`folder`: where the runs on this machine see what others have taken."""
        self._steward = ResourceManager([machine])
        self._idle_first = tuple(first_threads(machine))
        self._has_gpus = any(part.kind == GPU for part in machine.parts)
        self._claims = Claims(folder)
        self._held: dict[int, tuple[int, list[str]]] = {}
        self._wanted: dict[tuple[int, int], Requirement] = {}

    def take(self, task: int, cores: int, gpus: int = 0) -> bytes:
        """Returns the variables of a task's order, each followed by a zero byte; empty if it is not pinned.

        One requested core is one CPU as the system counts them, which is a hardware thread.
        """
        taken_by_others: list[int] = []
        variables = b""
        while (ticket := self._ticket(cores, gpus)) is not None:
            places = self._steward.grant(ticket).places
            names = names_of(places)
            if self._claims.take(names):
                self._held[task] = ticket, names
                variables = self._variables(places)
                break
            taken_by_others.append(ticket)
        for ticket in taken_by_others:
            self._steward.release(ticket)
        return variables

    def give(self, task: int) -> None:
        """Releases the seat of a task; does nothing if it had none."""
        held = self._held.pop(task, None)
        if held is not None:
            ticket, names = held
            self._steward.release(ticket)
            self._claims.give(names)

    def close(self) -> None:
        self._claims.close()

    def _ticket(self, cores: int, gpus: int) -> int | None:
        wanted = self._wanted.get((cores, gpus))
        if wanted is None:
            needs = {THREAD: cores, GPU: gpus}
            # Two tasks on the two threads of one core are slower than on two cores, so whole cores come first.
            prefer = self._idle_first if cores == 1 and not gpus else ()
            wanted = require({kind: count for kind, count in needs.items() if count}, prefer=prefer)
            self._wanted[cores, gpus] = wanted
        try:
            ticket = self._steward.request("", wanted)
        except InputError:
            return None
        if ticket.state is not TicketState.GRANTED:
            self._steward.cancel(ticket.number)
            return None
        return ticket.number

    def _variables(self, places: Sequence[GrantedPart]) -> bytes:
        variables = environment_of(places, gpus=self._has_gpus)
        # A number of threads that the user has set is kept.
        chosen = [(name, value) for name, value in variables if name != THREADS or THREADS not in os.environ]
        return b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in chosen)


def names_of(places: Sequence[GrantedPart]) -> list[str]:
    """Returns the names to lock against other runs, always in the same order."""
    cpus = sorted({cpu for place in places for cpu in place.cpus})
    devices = sorted({device for place in places for device in place.devices})
    return [*(f"cpu{cpu}" for cpu in cpus), *(f"gpu{device}" for device in devices)]


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
