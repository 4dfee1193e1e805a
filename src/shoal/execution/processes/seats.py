"""Seats: which processors and GPUs of this machine each task gets, and the environment variables that say so."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence

from shoal.errors import InputError
from shoal.execution.processes.pinning import CPUS, number_text
from shoal.resources.machine import CORE, GPU, THREAD, MachinePart
from shoal.resources.manager import ResourceManager
from shoal.resources.requests import Requirement, require
from shoal.resources.tickets import GrantedPart, TicketState

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
