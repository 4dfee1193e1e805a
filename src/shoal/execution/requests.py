"""Requests to a running workflow from another terminal: cancel tasks, put tokens into a net, explain waiting tasks.

A request is a file in `.shoal/.../requests`, followed by SIGUSR1 to the run. For tokens and explanations, the run
writes its reply into a file beside the request.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from shoal.core.explain.answer import Answer, RunAnswer
from shoal.core.explain.scheduler_source import DriverFacts, SingleNodeSource
from shoal.core.graph import Graph, find_task, lookup_tasks
from shoal.core.scheduler import Scheduler
from shoal.errors import InputError
from shoal.execution.files.files import relative_here
from shoal.ledger.records import decodable
from shoal.ledger.workspace import Workspace

ANSWER_SECONDS = 30.0
MOST_NAMED = 10
_PAUSE = 0.01


class TokensPut(msgspec.Struct, frozen=True):
    """Tokens for a place of a net, and whether they are the last ones. Without a place, it carries no tokens."""

    place: str | None
    values: list[Any]
    close: bool = False


class RequestResult(msgspec.Struct, frozen=True):
    """The outcome of a request: message and remedy of an error, or nothing."""

    message: str = ""
    remedy: str | None = None


class SilentRunError(InputError):
    """The run exists but does not reply."""


def ask_to_cancel(workspace: Workspace, names: list[str]) -> int:
    """Asks the run of this workflow to cancel tasks, or to stop if none is named; returns its pid."""
    pid = _pid_of_run(workspace, "cancel it there")
    if not names:
        _ask(workspace, ".stop", b"", pid, signal.SIGTERM)
        return pid
    _ask(workspace, ".cancel", msgspec.json.encode(names), pid)
    return pid


def ask_to_put(workspace: Workspace, tokens: TokensPut) -> None:
    """Puts tokens into the net that runs here; returns when they are in its ledger."""
    reply = ask_and_wait(workspace, ".put", msgspec.json.encode(tokens), ANSWER_SECONDS, "put them there")
    answer = msgspec.json.decode(reply, type=RequestResult)
    if answer.message:
        raise InputError(answer.message, remedy=answer.remedy)


def ask_and_wait(
    workspace: Workspace, kind: str, request: bytes, patience: float, elsewhere: str = "ask there"
) -> bytes:
    """Leaves a request for the run of this workflow and returns its reply; raises `SilentRunError` without one."""
    pid = _pid_of_run(workspace, elsewhere)
    _remove(os.path.join(workspace.requests, f"{os.getpid()}.answer"))  # left by an earlier process with the same pid
    path = _ask(workspace, kind, request, pid)
    answered = path + ".answer"
    deadline = time.monotonic() + patience
    while not os.path.exists(answered):
        if workspace.holder() is None and not os.path.exists(answered):
            _remove(path + kind)
            raise InputError(f"the run of {os.path.basename(workspace.workflow)} has ended in the meantime")
        if time.monotonic() > deadline:
            _remove(path + kind)
            raise SilentRunError(f"process {pid} does not answer", remedy="see 'shoal status' for the state of its run")
        time.sleep(_PAUSE)
    with open(answered, "rb") as file:
        reply = file.read()
    _remove(answered)
    return reply


def ask_to_close(workspace: Workspace) -> None:
    """Tells the net that runs here that no more tokens will come."""
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


def _ask(workspace: Workspace, kind: str, request: bytes, pid: int, signal_number: int = signal.SIGUSR1) -> str:
    """Writes the request and signals the run; returns the path without its extension."""
    path = os.path.join(workspace.requests, f"{os.getpid()}")
    try:
        with open(path + ".part", "wb") as file:
            file.write(request)
        os.rename(path + ".part", path + kind)
    except OSError as error:
        raise InputError(f"cannot write to {workspace.requests!r}: {error.strerror}") from None
    try:
        _signal(pid, signal_number)
    except InputError:
        _remove(path + kind)
        raise
    return path


def _at_once(path: str, flags: int) -> int:
    """Opens a file without blocking, in case it is a pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


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
        raise InputError(f"process {pid} belongs to another user") from None


def take_requests(workspace: Workspace, graph: Graph) -> list[int]:
    """Returns the tasks whose cancellation was requested since the last call; ignores unknown names."""
    find = lookup_tasks(graph, relative_here())
    return [task for task in map(find, names_to_cancel(workspace)) if task is not None]


def names_to_cancel(workspace: Workspace) -> list[str]:
    """Returns the names of tasks whose cancellation was requested since the last call."""
    found: list[str] = []
    for path in _requests(workspace, ".cancel"):
        try:
            with open(path, "rb") as file:
                found += msgspec.json.decode(file.read(), type=list[str])
        except (OSError, msgspec.MsgspecError):
            pass
        _remove(path)
    return found


def why_stopped(workspace: Workspace, number: int) -> str:
    """Returns the reason to show for a signal that stops a run: `shoal cancel` leaves a file to show that it sent the
    signal."""
    requests = _requests(workspace, ".stop") if number == signal.SIGTERM else []
    for path in requests:
        _remove(path)
    return "it was cancelled" if requests else f"received {signal.Signals(number).name}"


def cancelled_summary(graph: Graph, tasks: Sequence[int]) -> str:
    """`cancelled: a, b, c and 12 more`."""
    more = f" and {len(tasks) - MOST_NAMED:,} more" if len(tasks) > MOST_NAMED else ""
    return f"cancelled: {', '.join(graph.names[task] for task in tasks[:MOST_NAMED])}{more}"


def take_puts(workspace: Workspace) -> Iterator[tuple[str, TokensPut]]:
    """Yields tokens that were put since the last call, each with the path for the reply."""
    for path, request in _taken(workspace, ".put"):
        try:
            yield path, msgspec.json.decode(request, type=TokensPut)
        except msgspec.MsgspecError:
            pass


def take_questions(workspace: Workspace) -> Iterator[tuple[str, bytes]]:
    """Yields questions since the last call, each with the path for the reply."""
    return _taken(workspace, ".why")


def _taken(workspace: Workspace, kind: str) -> Iterator[tuple[str, bytes]]:
    """Yields requests of one kind and removes them."""
    for path in _requests(workspace, kind):
        try:
            with open(path, "rb", opener=_at_once) as file:
                request = file.read()
        except OSError:
            continue
        _remove(path)
        yield path.removesuffix(kind), request


def answer(path: str, error: InputError | None) -> None:
    """Writes the outcome of a request."""
    reply = RequestResult(error.message, error.remedy) if error is not None else RequestResult()
    write_answer(path, msgspec.json.encode(reply))


def write_answer(path: str, reply: bytes) -> None:
    """Writes a reply to the path where the other process waits for it; on a full disk there is none."""
    try:
        with open(path + ".part", "wb") as file:
            file.write(reply)
        os.rename(path + ".part", path + ".answer")
    except OSError:
        _remove(path + ".part")


def _requests(workspace: Workspace, kind: str) -> list[str]:
    try:
        names = sorted(os.listdir(workspace.requests))
    except FileNotFoundError:
        return []
    return [os.path.join(workspace.requests, name) for name in names if name.endswith(kind)]


EXPLAIN_SECONDS = 5.0
REPLACED = "\ufffd"
_NO_ANSWER = (ValueError, LookupError, TypeError, AssertionError, ArithmeticError, RecursionError)
"""Exceptions that a malformed question, or a bug in answering it, may raise."""


class ExplainQuestion(msgspec.Struct, frozen=True):
    """A question about one task, by name, file or number, or without a name about the whole run."""

    task: str | None
    since: dict[int, float] = {}
    """When the running tasks were started, as far as the ledger has recorded it."""


class ExplainReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """The reply of the run, with the names of the tasks in it."""

    answer: Answer | None = None
    whole: RunAnswer | None = None
    names: dict[int, str] = {}
    """If the first two are empty, the run has no such task."""


def ask_why(workspace: Workspace, question: ExplainQuestion) -> ExplainReply:
    """Asks the run of this workflow on this machine. Raises `InputError` if it cannot be asked, `SilentRunError` if it
    does not reply."""
    if question.task is not None:
        question = msgspec.structs.replace(question, task=decodable(question.task))
    reply = ask_and_wait(workspace, ".why", msgspec.json.encode(question), EXPLAIN_SECONDS)
    return msgspec.json.decode(reply, type=ExplainReply)


def answer_questions(
    workspace: Workspace,
    graph: Graph,
    statuses: Sequence[int],
    scheduler: Scheduler,
    now: float,
    unbegun: Mapping[int, int],
    *,
    reasons: Mapping[str, str],
    order: str,
    stopping: str,
) -> None:
    """Answers the questions that came since the last call. `unbegun` is as in `SingleNodeSource`."""
    for path, request in take_questions(workspace):
        try:
            question = msgspec.json.decode(request, type=ExplainQuestion)
            since = {task: moment for task, moment in question.since.items() if task in scheduler.running}
            known = (graph, statuses, scheduler, now, unbegun)
            source = SingleNodeSource(*known, driver=DriverFacts(since, reasons, order, stopping))
            reply = msgspec.json.encode(_reply_to(source, graph, question.task))
        except _NO_ANSWER:
            reply = msgspec.json.encode(ExplainReply())  # a question must not harm the run
        write_answer(path, reply)


def _reply_to(source: SingleNodeSource, graph: Graph, wanted: str | None) -> ExplainReply:
    if wanted is None:
        whole = source.whole()
        mentioned = [task for group in whole.groups for task in group.example.mentions()]
        return ExplainReply(whole=whole, names=_names(graph, mentioned))
    task = _found(graph, wanted)
    if task is None:
        return ExplainReply()
    answer = source.explain(task)
    return ExplainReply(answer, names=_names(graph, answer.mentions()))


def _names(graph: Graph, tasks: list[int]) -> dict[int, str]:
    return {task: decodable(graph.names[task]) for task in tasks}


def _found(graph: Graph, wanted: str) -> int | None:
    task = find_task(graph, wanted, relative_here())
    if task is None and REPLACED in wanted:  # a name that is not UTF-8 is requested in its displayed form
        return next((number for number, name in enumerate(graph.names) if decodable(name) == wanted), None)
    return task
