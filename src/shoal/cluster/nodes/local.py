"""Nodes as local processes, each the leader of a session of its own, so that they outlive the command that starts them.

A process is signalled only if pid, start time and boot id match its handle, or if its environment contains the node's
name. An agent ends its own children; `stop` also ends what an agent that was killed has left behind.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterable, Mapping, Sequence

from shoal.cluster.nodes.starters import NODE_NAME, Handle, LocalHandle, NodePhase, NodeStatus, StartResult, new_names
from shoal.execution.processes.process_table import (
    all_pids,
    boot_identity,
    kill_process,
    read_small,
    signal_group,
    start_ticks,
)

GRACE = 15.0
"""Seconds between the request to end and SIGKILL."""
_TAIL = 4096


class LocalStarter:
    """Starts a command on this machine; log files go to `logs`."""

    def __init__(self, command: Sequence[str], logs: str, environment: Mapping[str, str] | None = None) -> None:
        self.command = list(command)
        self.logs = logs
        self.environment = dict(environment or {})
        self._statuses: dict[str, int] = {}
        """By name, exit statuses of reaped children: only their parent can read them, and only once."""

    def start(self, count: int, beside: Iterable[Handle] = ()) -> StartResult:
        handles = []
        try:
            os.makedirs(self.logs, exist_ok=True)
            for name in new_names(count):
                handles.append(self._start_one(name))
        except OSError as error:
            problem = f"a node cannot be started here: {error.strerror}: {error.filename or self.command[0]}"
            return StartResult(tuple(handles), (problem,))
        return StartResult(tuple(handles))

    def _start_one(self, name: str) -> LocalHandle:
        log = os.path.join(self.logs, f"{name}.log")
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            pid = os.posix_spawnp(
                self.command[0],
                self.command,
                os.environ | self.environment | {NODE_NAME: name},
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, descriptor, 1),
                    (os.POSIX_SPAWN_DUP2, descriptor, 2),
                ],
                setsid=True,
                # A shell starts background commands with SIGINT ignored, which children would inherit.
                setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE],
            )
        finally:
            os.close(descriptor)
        # The child is not reaped yet, so the pid belongs to it even if it has ended.
        return LocalHandle(name, pid, start_ticks(pid) or 0, boot_identity(), log)

    def poll(self, handles: Iterable[Handle]) -> dict[Handle, NodeStatus]:
        boot = boot_identity()
        return {handle: self._standing(handle, boot) for handle in handles if isinstance(handle, LocalHandle)}

    def _standing(self, handle: LocalHandle, boot: str) -> NodeStatus:
        if handle.boot != boot:
            return NodeStatus(NodePhase.ENDED, "this machine was rebooted")
        if is_alive(handle):
            return NodeStatus(NodePhase.RUNNING)
        self._reap(handle)
        return NodeStatus(NodePhase.ENDED, describe_end(self._statuses.get(handle.name), handle.log))

    def _reap(self, handle: LocalHandle) -> None:
        if handle.name in self._statuses or start_ticks(handle.pid) != handle.ticks:
            return
        try:
            pid, status = os.waitpid(handle.pid, os.WNOHANG)
        except ChildProcessError:
            return
        if pid:
            self._statuses[handle.name] = os.waitstatus_to_exitcode(status)

    def stop(self, handles: Iterable[Handle], grace: float = GRACE) -> None:
        """Asks process groups to end, waits for their leaders, then kills what is left of them."""
        boot = boot_identity()
        ours = [handle for handle in handles if isinstance(handle, LocalHandle) and handle.boot == boot]
        waiting: dict[int, LocalHandle] = {}
        try:
            for handle in ours:
                descriptor = _open_if_alive(handle)
                if descriptor is not None:
                    waiting[descriptor] = handle
                    signal_group(handle.pid, signal.SIGTERM)
            for handle in _outlasting(waiting, grace):
                signal_group(handle.pid, signal.SIGKILL)
            list(_outlasting(waiting, GRACE))
        finally:
            for descriptor in waiting:
                os.close(descriptor)
        end_marked({handle.name for handle in ours})
        for handle in ours:
            self._reap(handle)


def is_alive(handle: LocalHandle) -> bool:
    """Whether the handle's process is still running. Another process that has reused its pid does not count."""
    fields = read_small(f"/proc/{handle.pid}/stat").rpartition(b")")[2].split()
    return len(fields) > 19 and int(fields[19]) == handle.ticks and fields[0] not in (b"Z", b"X")


def _open_if_alive(handle: LocalHandle) -> int | None:
    """Returns a descriptor that becomes readable when the process ends. While it is open, the pid cannot refer to
    another process."""
    try:
        descriptor = os.pidfd_open(handle.pid)
    except OSError:
        return None
    if is_alive(handle):
        return descriptor
    os.close(descriptor)
    return None


def _outlasting(processes: Mapping[int, LocalHandle], seconds: float) -> list[LocalHandle]:
    """Returns the processes that still run after `seconds`; returns early when all have ended."""
    poller = select.poll()
    left = dict(processes)
    for descriptor in left:
        poller.register(descriptor, select.POLLIN)
    deadline = time.monotonic() + seconds
    while left and (remaining := deadline - time.monotonic()) > 0:
        for descriptor, _ in poller.poll(remaining * 1000):
            poller.unregister(descriptor)
            del left[descriptor]
    return list(left.values())


def end_marked(names: set[str]) -> None:
    """Kills every process whose environment contains one of these node names."""
    if not names:
        return
    wanted = {f"{NODE_NAME}={name}".encode() for name in names}
    for pid in all_pids():
        if pid != os.getpid() and not wanted.isdisjoint(read_small(f"/proc/{pid}/environ").split(b"\0")):
            kill_process(pid)


def describe_end(status: int | None, log: str) -> str:
    """Returns why a node has ended: its exit status, if known, and the last line of its log."""
    words = "ended"
    if status is not None:
        words = f"ended by signal {-status}" if status < 0 else f"ended with status {status}"
    said = last_line(log)
    return f"{words}: {said}" if said and status != 0 else words


def last_line(log: str) -> str:
    """Returns the last non-empty line of a log; empty if there is none."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")
