"""Who is asked why a task or a run is where it is: the run itself, the cluster it is on, or what the ledger has kept.

The run knows best, since its broker decides. It is asked if it goes on on this machine and belongs to us; a run that
does not answer, or is elsewhere, is explained from its ledger.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.cli.reasons import after_the_run, during_the_run, next_run, whole_from_ledger, would_be_refused
from shoal.cli.standing import damage_line, headline, show_moment, where_it_runs
from shoal.cli.whyledger import not_in_the_run, number_of, task_facts, whole_facts
from shoal.engine.asked import Question, Told, ask_why
from shoal.engine.follow import Follower, Phase, RunState
from shoal.engine.node import this_node
from shoal.engine.requests import SilentRunError
from shoal.engine.workspace import Workspace
from shoal.errors import InputError
from shoal.explain.answer import Answer, Cause
from shoal.explain.summary import run_lines
from shoal.explain.words import Speech, paragraph
from shoal.model.quantities import show_seconds
from shoal.model.resources import Resources

if TYPE_CHECKING:
    from collections.abc import Callable


class Explained(msgspec.Struct, frozen=True):
    """An answer for people, and the same for programs."""

    text: str
    data: dict[str, Any]


def speech_of(name: Callable[[int], str], now: float) -> Speech:
    """How people are told of tasks and times here."""
    return Speech(name, lambda moment: show_moment(moment, now), show_seconds, now)


def explain_task(wanted: str, path: str, words: list[str], *, by_content: bool) -> Explained:
    """Why one task is where it is."""
    if any("=" not in word for word in words):
        check_words(path, words)
    follower = Follower(Workspace(path))
    phase = follower.refresh()
    return with_damage(_explain_task(wanted, path, words, follower, phase, by_content=by_content), follower)


def check_words(path: str, words: list[str]) -> None:
    """Targets that somebody named have to be there; a directory that no task makes was meant as something else."""
    from shoal.engine.filenames import relative_here
    from shoal.engine.session import enter, load
    from shoal.model.graph import lookup_tasks

    here = os.getcwd()
    try:
        find = lookup_tasks(load(enter(path), words).graph, relative_here())
        for word in words:
            if "=" not in word and find(word) is None and os.path.isdir(word):
                raise InputError(
                    f"{word!r} is a directory, neither a workflow nor a task", remedy="name the workflow's file"
                )
    finally:
        os.chdir(here)


def with_damage(explained: Explained, follower: Follower) -> Explained:
    """The answer, and what is to be said of a ledger that is not whole."""
    lines = damage_line(follower)
    if not lines:
        return explained
    text = "\n".join([explained.text, *lines])
    return Explained(text, {**explained.data, "text": text, "damaged_bytes": follower.damaged_bytes()})


def _explain_task(
    wanted: str, path: str, words: list[str], follower: Follower, phase: Phase, *, by_content: bool
) -> Explained:
    workspace = follower.workspace
    told, silence = Told(), ""
    if phase is Phase.RUNNING and not on_cluster(workspace):
        told, silence = _ask(workspace, wanted, follower.state)
        follower.refresh()  # what the run has just said is in its ledger by now
    now = time.time()  # one that does not answer was waited for
    answer = told.answer
    if answer is not None:
        _complete(answer, follower.state)
        if not _is_told_by_ledger(answer, follower.state):
            return explained_task(paragraph(answer, speech_of(told.names.__getitem__, now)), answer, told.names, now)
    if not words and follower.state.start is not None:
        words = follower.state.start.targets
    found = _from_ledger(wanted, path, words, follower, phase, answer, now, by_content=by_content)
    if silence:
        return _unanswered(found, silence)
    return explained_task(found.text, answer, told.names, now) if answer is not None else found


def _from_ledger(
    wanted: str,
    path: str,
    words: list[str],
    follower: Follower,
    phase: Phase,
    answer: Answer | None,
    now: float,
    *,
    by_content: bool,
) -> Explained:
    """What cluster, ledger and plan say of one task. `answer` is what the run itself says."""
    from shoal.cli.why import seek_task

    view, task, is_asked_for = seek_task(wanted, path, words, by_content=by_content)
    graph, state = view.workflow.graph, follower.state
    if on_cluster(follower.workspace):
        from shoal.cli.whycluster import explain_on_cluster

        explained = explain_on_cluster(follower.workspace, graph, task, state, now)
        if explained is not None:
            return explained
    facts = task_facts(graph, task, state, phase)
    if phase is Phase.RUNNING and state.start is not None:
        text = during_the_run(graph, task, state, view.history, now)
        if graph.actions[task] is not None and number_of(graph, task, state) < 0:
            next_time = answer.cause.value if answer is not None else next_run(view.plan, task)
            excluded = not is_asked_for or next_time == Cause.EXCLUDED.value
            text = not_in_the_run(graph, task, view.history, excluded=excluded, now=now)
            facts = {"cause": Cause.EXCLUDED.value if excluded else Cause.DONE.value}
    else:
        node = _next_node(follower.workspace, state)
        text = after_the_run(view.plan, task, view.history, state, now, node)
        if facts:
            facts["last"] = facts.pop("cause")
        refused = would_be_refused(view.plan, task, node)
        facts["cause"] = next_run(view.plan, task) if refused is None else Cause.TOO_LARGE.value
        if refused is not None:
            facts["detail"] = refused
    return Explained(text, {"about": "task", "time": now, "name": graph.names[task], "text": text, **facts})


def _next_node(workspace: Workspace, state: RunState) -> Resources | None:
    """What this machine has, with what the last run was told that it has; None if that one was on a cluster."""
    if state.is_cluster() or on_cluster(workspace):
        return None
    found = dict(this_node(workspace.base).amounts)
    for name, amount in state.start.node if state.start is not None else ():
        found[name] = max(amount, found.get(name, 0))
    return Resources.of(found)


def _unanswered(explained: Explained, silence: str) -> Explained:
    """What the ledger says of a run that does not answer itself."""
    text = f"{silence}; its ledger says: {explained.text}"
    return Explained(text, {**explained.data, "text": text, "silent": silence})


def explain_whole(path: str, words: list[str]) -> Explained:
    """Why the run is where it is."""
    follower = Follower(Workspace(path))
    phase = follower.refresh()
    return with_damage(_explain_whole(path, words, follower, phase), follower)


def _explain_whole(path: str, words: list[str], follower: Follower, phase: Phase) -> Explained:
    workspace = follower.workspace
    now = time.time()
    if on_cluster(workspace):
        from shoal.cli.whycluster import explain_run_on_cluster
        from shoal.engine.session import look

        graph = look(path, words or (follower.state.start.targets if follower.state.start else []), None).workflow.graph
        explained = explain_run_on_cluster(workspace, graph, follower.state, now)
        if explained is not None:
            return explained
    silence = ""
    if phase is Phase.RUNNING:
        told, silence = _ask(workspace, None, follower.state)
        now = time.time()  # one that does not answer was waited for
        if told.whole is not None:
            follower.refresh()
            told.whole.cancelled = max(0, told.whole.failed - len(follower.state.failed))
            text = "\n".join(run_lines(told.whole, speech_of(told.names.__getitem__, now)))
            data = msgspec.to_builtins(told.whole)
            return Explained(text, {"about": "run", "time": now, "text": text, "names": _named(told.names), **data})
    if phase is Phase.NEVER:
        from shoal.report.choose import refuse_unreadable  # numpy takes a while to load

        refuse_unreadable(path, workspace.ledger)
        raise InputError(f"{os.path.basename(path)} has not been run yet", remedy="'shoal plan' says what would run")
    first = headline(os.path.basename(path), follower, phase, now)
    text = "\n".join([first, *whole_from_ledger(follower.state, phase, now)])
    found = Explained(text, {"about": "run", "time": now, "text": text, **whole_facts(follower.state, phase)})
    return _unanswered(found, silence) if silence else found


def on_cluster(workspace: Workspace) -> bool:
    """Whether what was brought to a cluster has not been brought back yet."""
    return os.path.exists(workspace.brought)


def _ask(workspace: Workspace, wanted: str | None, state: RunState) -> tuple[Told, str]:
    """What the run itself says, and a sentence if it is there and says nothing; neither if it cannot be asked."""
    since = {task: record.time for task, record in state.running.items()}
    try:
        return ask_why(workspace, Question(wanted, since)), ""
    except SilentRunError as error:
        return Told(), error.message
    except InputError:
        return Told(), ""


def _is_told_by_ledger(answer: Answer, state: RunState) -> bool:
    """What is over is told with when and how, which the run itself does not keep."""
    return answer.cause in (Cause.DONE, Cause.EXCLUDED) or (
        answer.cause is Cause.FAILED and answer.task in state.failed
    )


def _complete(answer: Answer, state: RunState) -> None:
    """Adds what only the ledger has: the process of a running task, and how attempts ended."""
    task = answer.task
    ended = state.failed.get(task) or state.tried.get(task)
    if answer.cause is Cause.RUNNING and task in state.running:
        where = where_it_runs(state, state.running[task])
        answer.detail = where if state.running[task].node else f"as {where}"
        answer.since = answer.since or state.running[task].time
    elif answer.cause is Cause.FAILED:  # failures are in the ledger, and what was cancelled may not be
        answer.cancelled = task not in state.failed
        answer.detail = ended.message if ended is not None else ""
    elif answer.cause is Cause.RETRY and ended is not None:
        answer.detail = ended.message
    if answer.root is not None:
        _complete(answer.root, state)


def explained_task(text: str, answer: Answer, names: dict[int, str], now: float) -> Explained:
    """An answer about a task, said and as data."""
    data = {"about": "task", "time": now, "name": names[answer.task], "text": text, "names": _named(names)}
    return Explained(text, {**data, **msgspec.to_builtins(answer)})


def _named(names: dict[int, str]) -> dict[str, str]:
    return {str(task): name for task, name in names.items()}
