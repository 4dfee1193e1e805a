"""Questions of `shoal why` to a running workflow on the same machine.

Only the process that runs it knows the decisions of its scheduler. The question comes as a request (`engine.requests`)
together with the start times of running tasks from the ledger, so that the run need not keep them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from shoal.broker.broker import Broker
from shoal.engine.filenames import relative_here
from shoal.engine.requests import ask_and_wait, take_questions, write_answer
from shoal.engine.workspace import Workspace
from shoal.explain.answer import Answer, RunAnswer
from shoal.explain.onenode import OneNode
from shoal.ledger.records import printable
from shoal.model.graph import Graph, find_task

ANSWER_SECONDS = 5.0
REPLACED = "\ufffd"
_NO_ANSWER = (ValueError, LookupError, TypeError, AssertionError, ArithmeticError, RecursionError)
"""What a malformed question, or a defect of the answering, may raise."""


class Question(msgspec.Struct, frozen=True):
    """About one task, by name, file or number; about the whole run without it."""

    task: str | None
    since: dict[int, float] = {}
    """When the running tasks were started, as far as the ledger has recorded it."""


class Told(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer of the run, with the names of the tasks in it."""

    answer: Answer | None = None
    whole: RunAnswer | None = None
    names: dict[int, str] = {}
    """Neither of the first two: the run has no such task."""


def ask_why(workspace: Workspace, question: Question) -> Told:
    """Asks the run of this workflow on this machine. Raises `InputError` if it cannot be asked, `SilentRunError` if it
    does not answer."""
    if question.task is not None:
        question = msgspec.structs.replace(question, task=printable(question.task))
    told = ask_and_wait(workspace, ".why", msgspec.json.encode(question), ANSWER_SECONDS)
    return msgspec.json.decode(told, type=Told)


def answer_questions(
    workspace: Workspace,
    graph: Graph,
    statuses: Sequence[int],
    broker: Broker,
    now: float,
    unbegun: Mapping[int, int],
    *,
    reasons: Mapping[str, str],
    order: str,
    stopping: str,
) -> None:
    """Answers the questions that came since the last call. `unbegun` is as in `OneNode`."""
    for path, request in take_questions(workspace):
        try:
            question = msgspec.json.decode(request, type=Question)
            since = {task: moment for task, moment in question.since.items() if task in broker.running}
            known = (graph, statuses, broker, now, unbegun)
            source = OneNode(*known, since=since, reasons=reasons, order=order, stopping=stopping)
            told = msgspec.json.encode(_told(source, graph, question.task))
        except _NO_ANSWER:
            told = msgspec.json.encode(Told())  # a question must not harm the run
        write_answer(path, told)


def _told(source: OneNode, graph: Graph, wanted: str | None) -> Told:
    if wanted is None:
        whole = source.whole()
        mentioned = [task for group in whole.groups for task in group.example.mentions()]
        return Told(whole=whole, names=_names(graph, mentioned))
    task = _found(graph, wanted)
    if task is None:
        return Told()
    answer = source.explain(task)
    return Told(answer, names=_names(graph, answer.mentions()))


def _names(graph: Graph, tasks: list[int]) -> dict[int, str]:
    return {task: printable(graph.names[task]) for task in tasks}


def _found(graph: Graph, wanted: str) -> int | None:
    task = find_task(graph, wanted, relative_here())
    if task is None and REPLACED in wanted:  # a name that is not UTF-8 is asked for as it is shown
        return next((number for number, name in enumerate(graph.names) if printable(name) == wanted), None)
    return task
