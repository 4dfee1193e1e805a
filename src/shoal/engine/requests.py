"""Requests to a running workflow from another terminal: a file in `.shoal/.../requests`, then SIGUSR1 to the run."""

from __future__ import annotations

import os
import signal
import socket

import msgspec

from shoal.engine.workspace import Workspace
from shoal.errors import InputError
from shoal.model.graph import Graph, lookup_tasks


def ask_to_cancel(workspace: Workspace, names: list[str]) -> int:
    """Asks the run of this workflow to cancel tasks, or to stop if none is named; returns its pid."""
    holder = workspace.holder()
    if holder is None or not holder.pid:
        raise InputError(
            f"{os.path.basename(workspace.workflow)} is not being run", remedy="see 'shoal status' for its last run"
        )
    if holder.host != socket.gethostname():
        raise InputError(
            f"{os.path.basename(workspace.workflow)} is being run on {holder.host}, not on this machine",
            remedy="cancel it there",
        )
    if not names:
        _signal(holder.pid, signal.SIGTERM)
        return holder.pid
    path = os.path.join(workspace.requests, f"{os.getpid()}")
    with open(path + ".part", "wb") as file:
        file.write(msgspec.json.encode(names))
    os.rename(path + ".part", path + ".cancel")
    _signal(holder.pid, signal.SIGUSR1)
    return holder.pid


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        raise InputError(f"process {pid} has just ended") from None
    except PermissionError:
        raise InputError(f"process {pid} belongs to somebody else") from None


def take_requests(workspace: Workspace, graph: Graph) -> list[int]:
    """Tasks that were asked to be cancelled since the last call; names that are no task are ignored."""
    found: list[int] = []
    find = lookup_tasks(graph)
    for name in sorted(os.listdir(workspace.requests)):
        if not name.endswith(".cancel"):
            continue
        path = os.path.join(workspace.requests, name)
        try:
            with open(path, "rb") as file:
                asked = msgspec.json.decode(file.read(), type=list[str])
        except (OSError, msgspec.MsgspecError):
            asked = []
        os.unlink(path)
        found += [task for task in map(find, asked) if task is not None]
    return found
