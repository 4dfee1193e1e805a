"""Requests to a running workflow from another terminal: a file in `.shoal/.../requests`, then SIGUSR1 to the run.

Tokens for a net and questions are answered in the same way: the run puts a file beside the request.
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
    """Tokens for a place of a net, and whether they are the last ones; without a place there are none."""

    place: str | None
    values: list[Any]
    close: bool = False


class RequestResult(msgspec.Struct, frozen=True):
    """What became of a request; the message and remedy of an error, or nothing."""

    message: str = ""
    remedy: str | None = None


class SilentRunError(InputError):
    """The run is there, and does not answer."""


def ask_to_cancel(workspace: Workspace, names: list[str]) -> int:
    """Asks the run of this workflow to cancel tasks, or to stop if none is named; returns its pid."""
    pid = _pid_of_run(workspace, "cancel it there")
    if not names:
        _ask(workspace, ".stop", b"", pid, signal.SIGTERM)
        return pid
    _ask(workspace, ".cancel", msgspec.json.encode(names), pid)
    return pid


def ask_to_put(workspace: Workspace, tokens: TokensPut) -> None:
    """Puts tokens into the net that is being run here, and returns when they are in its ledger."""
    told = ask_and_wait(workspace, ".put", msgspec.json.encode(tokens), ANSWER_SECONDS, "put them there")
    answer = msgspec.json.decode(told, type=RequestResult)
    if answer.message:
        raise InputError(answer.message, remedy=answer.remedy)


def ask_and_wait(
    workspace: Workspace, kind: str, request: bytes, patience: float, elsewhere: str = "ask there"
) -> bytes:
    """Leaves a request with the run of this workflow, and returns its answer; a `SilentRunError` without one."""
    pid = _pid_of_run(workspace, elsewhere)
    _remove(os.path.join(workspace.requests, f"{os.getpid()}.answer"))  # of a process that was called so before us
    path = _ask(workspace, kind, request, pid)
    answered = path + ".answer"
    deadline = time.monotonic() + patience
    while not os.path.exists(answered):
        if workspace.holder() is None and not os.path.exists(answered):
            _remove(path + kind)
            raise InputError(f"the run of {os.path.basename(workspace.workflow)} has ended meanwhile")
        if time.monotonic() > deadline:
            _remove(path + kind)
            raise SilentRunError(f"process {pid} does not answer", remedy="see 'shoal status' for how its run stands")
        time.sleep(_PAUSE)
    with open(answered, "rb") as file:
        told = file.read()
    _remove(answered)
    return told


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


def _ask(workspace: Workspace, kind: str, request: bytes, pid: int, knock: int = signal.SIGUSR1) -> str:
    """Leaves the request and knocks; returns its path without the ending."""
    path = os.path.join(workspace.requests, f"{os.getpid()}")
    try:
        with open(path + ".part", "wb") as file:
            file.write(request)
        os.rename(path + ".part", path + kind)
    except OSError as error:
        raise InputError(f"cannot write in {workspace.requests!r}: {error.strerror}") from None
    try:
        _signal(pid, knock)
    except InputError:
        _remove(path + kind)
        raise
    return path


def _at_once(path: str, flags: int) -> int:
    """Opens what is there and waits for nobody, should it be a pipe."""
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
        raise InputError(f"process {pid} belongs to somebody else") from None


def take_requests(workspace: Workspace, graph: Graph) -> list[int]:
    """Tasks that were asked to be cancelled since the last call; names that are no task are ignored."""
    find = lookup_tasks(graph, relative_here())
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


def why_stopped(workspace: Workspace, number: int) -> str:
    """What a signal that stops a run is told as: `shoal cancel` leaves word that it was sent by it."""
    asked = _requests(workspace, ".stop") if number == signal.SIGTERM else []
    for path in asked:
        _remove(path)
    return "it was cancelled" if asked else f"received {signal.Signals(number).name}"


def told_cancelled(graph: Graph, tasks: Sequence[int]) -> str:
    """`cancelled: a, b, c and 12 more`."""
    more = f" and {len(tasks) - MOST_NAMED:,} more" if len(tasks) > MOST_NAMED else ""
    return f"cancelled: {', '.join(graph.names[task] for task in tasks[:MOST_NAMED])}{more}"


def take_puts(workspace: Workspace) -> Iterator[tuple[str, TokensPut]]:
    """Tokens that were put since the last call, each with where its answer is to be left."""
    for path, request in _taken(workspace, ".put"):
        try:
            yield path, msgspec.json.decode(request, type=TokensPut)
        except msgspec.MsgspecError:
            pass


def take_questions(workspace: Workspace) -> Iterator[tuple[str, bytes]]:
    """Questions since the last call, each with where its answer is to be left."""
    return _taken(workspace, ".why")


def _taken(workspace: Workspace, kind: str) -> Iterator[tuple[str, bytes]]:
    """Requests of a kind, which are then gone."""
    for path in _requests(workspace, kind):
        try:
            with open(path, "rb", opener=_at_once) as file:
                request = file.read()
        except OSError:
            continue
        _remove(path)
        yield path.removesuffix(kind), request


def answer(path: str, error: InputError | None) -> None:
    """Leaves word of what became of a request."""
    told = RequestResult(error.message, error.remedy) if error is not None else RequestResult()
    write_answer(path, msgspec.json.encode(told))


def write_answer(path: str, told: bytes) -> None:
    """Leaves an answer where it is waited for; a full disk leaves none."""
    try:
        with open(path + ".part", "wb") as file:
            file.write(told)
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
"""What a malformed question, or a defect of the answering, may raise."""


class ExplainQuestion(msgspec.Struct, frozen=True):
    """About one task, by name, file or number; about the whole run without it."""

    task: str | None
    since: dict[int, float] = {}
    """When the running tasks were started, as far as the ledger has recorded it."""


class ExplainReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer of the run, with the names of the tasks in it."""

    answer: Answer | None = None
    whole: RunAnswer | None = None
    names: dict[int, str] = {}
    """Neither of the first two: the run has no such task."""


def ask_why(workspace: Workspace, question: ExplainQuestion) -> ExplainReply:
    """Asks the run of this workflow on this machine. Raises `InputError` if it cannot be asked, `SilentRunError` if it
    does not answer."""
    if question.task is not None:
        question = msgspec.structs.replace(question, task=decodable(question.task))
    told = ask_and_wait(workspace, ".why", msgspec.json.encode(question), EXPLAIN_SECONDS)
    return msgspec.json.decode(told, type=ExplainReply)


def answer_questions(
    workspace: Workspace,
    graph: Graph,
    statuses: Sequence[int],
    broker: Scheduler,
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
            since = {task: moment for task, moment in question.since.items() if task in broker.running}
            known = (graph, statuses, broker, now, unbegun)
            source = SingleNodeSource(*known, driver=DriverFacts(since, reasons, order, stopping))
            told = msgspec.json.encode(_told(source, graph, question.task))
        except _NO_ANSWER:
            told = msgspec.json.encode(ExplainReply())  # a question must not harm the run
        write_answer(path, told)


def _told(source: SingleNodeSource, graph: Graph, wanted: str | None) -> ExplainReply:
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
    if task is None and REPLACED in wanted:  # a name that is not UTF-8 is asked for as it is shown
        return next((number for number, name in enumerate(graph.names) if decodable(name) == wanted), None)
    return task
