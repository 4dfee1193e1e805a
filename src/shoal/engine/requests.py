"""Requests to a running workflow from another terminal: a file in `.shoal/.../requests`, then SIGUSR1 to the run.

Tokens for a net are answered in the same way: the run puts a file beside the request that says what became of it.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from shoal.engine.workspace import Workspace
from shoal.errors import InputError
from shoal.model.graph import Graph, lookup_tasks

ANSWER_SECONDS = 30.0
_PAUSE = 0.01


class TokensPut(msgspec.Struct, frozen=True):
    """Tokens for a place of a net, and whether they are the last ones; without a place there are none."""

    place: str | None
    values: list[Any]
    close: bool = False


class Answer(msgspec.Struct, frozen=True):
    """What became of a request; the message and remedy of an error, or nothing."""

    message: str = ""
    remedy: str | None = None


def ask_to_cancel(workspace: Workspace, names: list[str]) -> int:
    """Asks the run of this workflow to cancel tasks, or to stop if none is named; returns its pid."""
    pid = _pid_of_run(workspace, "cancel it there")
    if not names:
        _signal(pid, signal.SIGTERM)
        return pid
    _ask(workspace, ".cancel", msgspec.json.encode(names), pid)
    return pid


def ask_to_put(workspace: Workspace, tokens: TokensPut) -> None:
    """Puts tokens into the net that is being run here, and returns when they are in its ledger."""
    pid = _pid_of_run(workspace, "put them there")
    _remove(os.path.join(workspace.requests, f"{os.getpid()}.answer"))  # of a process that was called so before us
    path = _ask(workspace, ".put", msgspec.json.encode(tokens), pid)
    answered = path + ".answer"
    deadline = time.monotonic() + ANSWER_SECONDS
    while not os.path.exists(answered):
        if workspace.holder() is None and not os.path.exists(answered):
            _remove(path + ".put")
            raise InputError(f"the run of {os.path.basename(workspace.workflow)} has ended meanwhile")
        if time.monotonic() > deadline:
            _remove(path + ".put")
            raise InputError(f"process {pid} does not answer", remedy="see 'shoal status' for how its run stands")
        time.sleep(_PAUSE)
    with open(answered, "rb") as file:
        answer = msgspec.json.decode(file.read(), type=Answer)
    _remove(answered)
    if answer.message:
        raise InputError(answer.message, remedy=answer.remedy)


def ask_to_close(workspace: Workspace) -> None:
    """Tells the net that is being run here that no more tokens will come."""
    ask_to_put(workspace, TokensPut(None, [], close=True))


def _pid_of_run(workspace: Workspace, elsewhere: str) -> int:
    holder = workspace.holder()
    if holder is None or not holder.pid:
        raise InputError(
            f"{os.path.basename(workspace.workflow)} is not being run", remedy="see 'shoal status' for its last run"
        )
    if holder.host != socket.gethostname():
        raise InputError(
            f"{os.path.basename(workspace.workflow)} is being run on {holder.host}, not on this machine",
            remedy=elsewhere,
        )
    return holder.pid


def _ask(workspace: Workspace, kind: str, request: bytes, pid: int) -> str:
    """Leaves the request and knocks; returns its path without the ending."""
    path = os.path.join(workspace.requests, f"{os.getpid()}")
    with open(path + ".part", "wb") as file:
        file.write(request)
    os.rename(path + ".part", path + kind)
    _signal(pid, signal.SIGUSR1)
    return path


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        raise InputError(f"process {pid} has just ended") from None
    except PermissionError:
        raise InputError(f"process {pid} belongs to somebody else") from None


def take_requests(workspace: Workspace, graph: Graph) -> list[int]:
    """Tasks that were asked to be cancelled since the last call; names that are no task are ignored."""
    find = lookup_tasks(graph)
    return [task for task in map(find, names_to_cancel(workspace)) if task is not None]


def names_to_cancel(workspace: Workspace) -> list[str]:
    """The names of tasks that were asked to be cancelled since the last call."""
    found: list[str] = []
    for path in _requests(workspace, ".cancel"):
        try:
            with open(path, "rb") as file:
                found += msgspec.json.decode(file.read(), type=list[str])
        except (OSError, msgspec.MsgspecError):
            pass
        _remove(path)
    return found


def take_puts(workspace: Workspace) -> Iterator[tuple[str, TokensPut]]:
    """Tokens that were put since the last call, each with where its answer is to be left."""
    for path in _requests(workspace, ".put"):
        try:
            with open(path, "rb") as file:
                asked = msgspec.json.decode(file.read(), type=TokensPut)
        except (OSError, msgspec.MsgspecError):
            asked = None
        _remove(path)
        if asked is not None:
            yield path.removesuffix(".put"), asked


def answer(path: str, error: InputError | None) -> None:
    """Leaves word of what became of a request."""
    told = Answer(error.message, error.remedy) if error is not None else Answer()
    with open(path + ".part", "wb") as file:
        file.write(msgspec.json.encode(told))
    os.rename(path + ".part", path + ".answer")


def _requests(workspace: Workspace, kind: str) -> list[str]:
    names = sorted(os.listdir(workspace.requests))
    return [os.path.join(workspace.requests, name) for name in names if name.endswith(kind)]
