"""The engine's end of the launcher: starts it, gives it commands, hears of their ends, survives its death."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shoal.core.policies.retry import AttemptOutcome
from shoal.errors import RunError
from shoal.execution.descriptors import given_limit
from shoal.execution.processes.launcher_messages import BOOT, KILL, START, MessageLink, Order
from shoal.execution.processes.process_table import MARK_NAME, kill_process, marked_processes

if TYPE_CHECKING:
    from shoal.execution.processes.orders import SeatedOrders


RECORD = "cgroup"
_NAME = "shoal-"
_REMOVAL_SECONDS = 5.0


def clear_groups(running: str) -> None:
    """Ends what is in the groups that the file in this directory names, and removes them."""
    record = os.path.join(running, RECORD)
    try:
        with open(record) as file:
            base = file.read()
    except OSError:
        return
    # Only ever a group of ours, whatever the file says.
    if os.path.basename(base).startswith(_NAME) and os.path.exists(os.path.join(base, "cgroup.procs")):
        deadline = time.monotonic() + _REMOVAL_SECONDS
        for group in (*_groups_below(base), base):
            _end(group, deadline)
    if not os.path.exists(base):
        os.unlink(record)


def _groups_below(base: str) -> list[str]:
    try:
        return [entry.path for entry in os.scandir(base) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _end(group: str, deadline: float) -> None:
    """A group can be removed once its last process is gone, which takes those a moment that had much memory."""
    while time.monotonic() < deadline:
        for pid in members(group):
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        try:
            os.rmdir(group)
            return
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.002)


def members(group: str) -> list[int]:
    """Pids in a group, without our own."""
    try:
        with open(os.path.join(group, "cgroup.procs")) as file:
            return [pid for pid in map(int, file.read().split()) if pid != os.getpid()]
    except OSError:
        return []


_PATIENCE = 15.0
_PAUSE = 0.01
NATIVE = os.path.join(os.path.dirname(__file__), "native", "launcher")
"""The compiled launcher; it is there where the package was built with a compiler."""


def search_path() -> str:
    """PATH with the directory of this program's own command behind it, so that a task can call it by name."""
    path = os.environ.get("PATH", os.defpath)
    own = os.path.dirname(sys.executable)
    if own not in path.split(os.pathsep) and os.path.exists(os.path.join(own, "shoal")):
        return f"{path}{os.pathsep}{own}"
    return path


def program_of_launcher(descriptor: int) -> list[str]:
    """The compiled launcher if there is one and `SHOAL_LAUNCHER=python` does not ask for the other."""
    if os.environ.get("SHOAL_LAUNCHER") != "python" and os.access(NATIVE, os.X_OK):
        return [NATIVE, str(descriptor)]
    return [sys.executable, "-S", "-E", "-c", BOOT, str(descriptor), *map(os.path.abspath, sys.path)]


class LauncherClient:
    """One launcher process, begun early so that it is ready when the workflow has been read."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.in_flight: dict[int, int] = {}
        """Attempts by task that were given to it and have not come back."""
        self.seating: SeatedOrders | None = None
        """Who gets which processors, if tasks are held to some."""
        self._begin()

    def _begin(self) -> None:
        ours, theirs = socket.socketpair()
        environment = {**os.environ, MARK_NAME.decode(): self.run, "PATH": search_path()}
        os.set_inheritable(theirs.fileno(), True)
        words = program_of_launcher(theirs.fileno())
        try:
            with given_limit():
                self.pid = os.posix_spawn(words[0], words, environment, setpgroup=0)
        except OSError as error:
            raise RunError(f"cannot start the launcher process: {error.strerror}") from None
        finally:
            theirs.close()
        self.link = MessageLink(ours.detach())

    @property
    def descriptor(self) -> int:
        return self.link.descriptor

    def settle_in(
        self,
        running: str,
        output: str,
        table: str,
        offset: float,
        *,
        pass_streams: bool = False,
        series: str = "",
        series_header: str = "",
    ) -> None:
        """Tells it where to work; it starts nothing before. What an earlier one left there of its groups is removed.

        Time series of what is looked at go into the directory `series`, unless that is empty.
        """
        clear_groups(running)
        self._running = running
        places = (os.fsencode(running), os.fsencode(output), os.fsencode(table))
        self._settings = (self.run, *places, offset, pass_streams, os.fsencode(series), series_header.encode())
        self.link.send(self._settings)

    def start(self, place: int, orders: Sequence[Order]) -> None:
        """Commands to run one after another in one place, behind what is there already."""
        if self.seating is not None:
            orders = self.seating.seated(orders)
        for order in orders:
            self.in_flight[order[0]] = order[1]
        self.link.send((START, place, list(orders)))

    def kill(self, task: int, outcome: AttemptOutcome, why: str, *, at_once: bool = False) -> None:
        if task in self.in_flight:
            self.link.send((KILL, task, outcome.value, why, at_once))

    def collect(self) -> list[tuple[Any, ...]] | None:
        """What it has to tell; None if it died: then what was in flight is lost and `replace` gives a new one."""
        messages = self.link.receive()
        if messages is None:
            return None
        told = [row for message in messages for row in message]
        for row in told:
            if row[0] == "ended":
                self.in_flight.pop(row[1], None)
                if self.seating is not None:
                    self.seating.give(row[1])
        return told

    def replace(self) -> list[tuple[int, int]]:
        """Ends what the dead launcher left behind and starts another; returns the attempts that were lost."""
        self.close()
        for pid in marked_processes(f"{self.run}:".encode()):
            kill_process(pid)
        clear_groups(self._running)
        lost = list(self.in_flight.items())
        self.in_flight.clear()
        if self.seating is not None:
            for task, _ in lost:
                self.seating.give(task)
        self._begin()
        self.link.send(self._settings)
        return lost

    def close(self) -> None:
        """Hangs up: the launcher ends what still runs, then itself."""
        if self.link.descriptor >= 0:
            os.close(self.link.descriptor)
            self.link.descriptor = -1
            self._bury()
            if self.seating is not None:
                self.seating.close()

    def _bury(self) -> None:
        """Waits for its end; one that cannot end because a process will not die is left to the system."""
        try:
            death = os.pidfd_open(self.pid)
        except (AttributeError, OSError):  # not on this system; or no descriptor is left
            deadline = time.monotonic() + _PATIENCE
            while not os.waitpid(self.pid, os.WNOHANG)[0] and time.monotonic() < deadline:
                time.sleep(_PAUSE)
            return
        poll = select.poll()
        poll.register(death, select.POLLIN)
        if poll.poll(_PATIENCE * 1000):
            os.waitpid(self.pid, 0)
        os.close(death)

    def abandon(self) -> None:
        """Ends it at once; for runs that come to nothing."""
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.close()
