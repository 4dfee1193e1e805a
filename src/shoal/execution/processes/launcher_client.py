"""The run's side of the launcher: starts it, sends commands, receives results, replaces it if it is killed."""

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
from shoal.execution.process_limits import given_limit
from shoal.execution.processes.launcher_messages import BOOT, KILL, START, MessageLink, Order
from shoal.execution.processes.process_table import MARK_NAME, kill_process, marked_processes

if TYPE_CHECKING:
    from shoal.execution.processes.orders import SeatedOrders


RECORD = "cgroup"
_NAME = "shoal-"
_REMOVAL_SECONDS = 5.0


def clear_groups(running: str) -> None:
    """Kills all processes in the control groups named by the file in this directory, and removes the groups."""
    record = os.path.join(running, RECORD)
    try:
        with open(record) as file:
            base = file.read()
    except OSError:
        return
    # Accepts only a group of Shoal, whatever the file contains.
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
    """Removes a group once its last process is gone, which takes a moment for processes with much memory."""
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
    """Returns the pids in a group, without this process."""
    try:
        with open(os.path.join(group, "cgroup.procs")) as file:
            return [pid for pid in map(int, file.read().split()) if pid != os.getpid()]
    except OSError:
        return []


_PATIENCE = 15.0
_PAUSE = 0.01
NATIVE = os.path.join(os.path.dirname(__file__), "native", "launcher")
"""The compiled launcher; exists if the package was built with a compiler."""


def search_path() -> str:
    """Returns PATH with the directory of this program's own command appended, so that tasks can call it by name."""
    path = os.environ.get("PATH", os.defpath)
    own = os.path.dirname(sys.executable)
    if own not in path.split(os.pathsep) and os.path.exists(os.path.join(own, "shoal")):
        return f"{path}{os.pathsep}{own}"
    return path


def program_of_launcher(descriptor: int) -> list[str]:
    """Returns the command of the compiled launcher if it exists and `SHOAL_LAUNCHER` is not `python`, else of the
    Python one."""
    if os.environ.get("SHOAL_LAUNCHER") != "python" and os.access(NATIVE, os.X_OK):
        return [NATIVE, str(descriptor)]
    return [sys.executable, "-S", "-E", "-c", BOOT, str(descriptor), *map(os.path.abspath, sys.path)]


class LauncherClient:
    """One launcher process, started early so that it is ready when the workflow has been read."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.in_flight: dict[int, int] = {}
        """Attempt numbers by task, of attempts that were sent and have not been returned."""
        self.seating: SeatedOrders | None = None
        """Pins tasks to processors, if any task needs that."""
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

    def configure(
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
        """Sends the settings; the launcher starts nothing before. Removes control groups that an earlier launcher left.

        Time series go into the directory `series`, unless it is empty.
        """
        clear_groups(running)
        self._running = running
        places = (os.fsencode(running), os.fsencode(output), os.fsencode(table))
        self._settings = (self.run, *places, offset, pass_streams, os.fsencode(series), series_header.encode())
        self.link.send(self._settings)

    def start(self, place: int, orders: Sequence[Order]) -> None:
        """Sends commands to run one after another in one place, behind those that are there already."""
        if self.seating is not None:
            orders = self.seating.seated(orders)
        for order in orders:
            self.in_flight[order[0]] = order[1]
        self.link.send((START, place, list(orders)))

    def kill(self, task: int, outcome: AttemptOutcome, why: str, *, at_once: bool = False) -> None:
        if task in self.in_flight:
            self.link.send((KILL, task, outcome.value, why, at_once))

    def collect(self) -> list[tuple[Any, ...]] | None:
        """Returns the messages of the launcher; None if it has died: then its attempts are lost and `replace` starts a
        new one."""
        messages = self.link.receive()
        if messages is None:
            return None
        rows = [row for message in messages for row in message]
        for row in rows:
            if row[0] == "ended":
                self.in_flight.pop(row[1], None)
                if self.seating is not None:
                    self.seating.give(row[1])
        return rows

    def replace(self) -> list[tuple[int, int]]:
        """Kills what the dead launcher left behind and starts another; returns the lost attempts."""
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
        """Closes the connection: the launcher kills what still runs, then exits."""
        if self.link.descriptor >= 0:
            os.close(self.link.descriptor)
            self.link.descriptor = -1
            self._wait_for_end()
            if self.seating is not None:
                self.seating.close()

    def _wait_for_end(self) -> None:
        """Waits for the end of the launcher; one that waits for an unkillable process is left to the system."""
        try:
            death = os.pidfd_open(self.pid)
        except (AttributeError, OSError):  # not supported on this system, or no descriptor is left
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
        """Kills the launcher at once, for runs that do not start."""
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.close()
