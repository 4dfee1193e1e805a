"""Which source answers `shoal why`: the run itself, the cluster it is on, or the ledger.

The run knows best, because its scheduler decides. It is asked if it is on this machine and belongs to this user. A run
that does not answer, or is elsewhere, is explained from its ledger.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.core.explain.answer import Answer, RunAnswer, WaitCause
from shoal.core.explain.sentences import SentenceWriter, paragraph, record_lines, run_lines
from shoal.core.quantities import show_seconds
from shoal.core.resources import Resources
from shoal.errors import InputError
from shoal.execution.requests import ExplainQuestion, ExplainReply, SilentRunError, ask_why
from shoal.execution.run_options import this_node
from shoal.ledger.identity import place_of
from shoal.ledger.status import Follower, RunPhase, RunStatus
from shoal.ledger.workspace import Workspace
from shoal.ui.cli.status_tables import damage_line, headline, show_moment
from shoal.ui.cli.why_text import RecordedRun, complete, explain_between, explain_during, run_record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shoal.core.graph import Graph


class Explained(msgspec.Struct, frozen=True):
    """An answer for people, and the same for programs."""

    text: str
    data: dict[str, Any]


def speech_of(name: Callable[[int], str], now: float) -> SentenceWriter:
    return SentenceWriter(name, lambda moment: show_moment(moment, now), show_seconds, now)


def explain_task(wanted: str, path: str, words: list[str], *, by_content: bool) -> Explained:
    """Why one task is where it is."""
    if any("=" not in word for word in words):
        check_words(path, words)
    follower = Follower(Workspace(path))
    phase = follower.refresh()
    return with_damage(_explain_task(wanted, path, words, follower, phase, by_content=by_content), follower)


def check_words(path: str, words: list[str]) -> None:
    """Refuses targets that the workflow does not have, and a directory that no task makes."""
    from shoal.core.graph import lookup_tasks
    from shoal.execution.files.files import relative_here
    from shoal.execution.session import enter, load

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
    """The answer, with a line about damage of the ledger, if there is any."""
    lines = damage_line(follower)
    if not lines:
        return explained
    text = "\n".join([explained.text, *lines])
    return Explained(text, {**explained.data, "text": text, "damaged_bytes": follower.damaged_bytes()})


def _explain_task(
    wanted: str, path: str, words: list[str], follower: Follower, phase: RunPhase, *, by_content: bool
) -> Explained:
    workspace = follower.workspace
    told, silence = ExplainReply(), ""
    if phase is RunPhase.RUNNING and not on_cluster(workspace):
        told, silence = _ask(workspace, wanted, follower.state)
        follower.refresh()  # the ledger has by now what the run has just answered
    now = time.time()  # a run that does not answer was waited for
    state, answer = follower.state, told.answer
    if answer is not None:
        complete(answer, state, lambda task: task)
        if not _needs_ledger(answer, state):
            return explained_task(answer, told.names, now)
    if not words and state.start is not None:
        words = state.start.targets

    from shoal.ui.cli.why import seek_task

    view, task, is_asked_for = seek_task(wanted, path, words, by_content=by_content)
    graph = view.workflow.graph
    if on_cluster(workspace):
        explained = explain_on_cluster(workspace, graph, task, state, now)
        if explained is not None:
            return explained
    if phase is RunPhase.RUNNING and state.start is not None:
        found = explain_during(view, task, state, now, answer, is_asked_for=is_asked_for)
    else:
        found = explain_between(view, task, state, now, _next_node(workspace, state))
    names = {each: graph.names[each] for each in found.mentions()}
    return explained_task(found, names, now, silence)


def _next_node(workspace: Workspace, state: RunStatus) -> Resources | None:
    """What this machine has, with what was declared for the last run; None if that run was on a cluster."""
    if state.is_cluster() or on_cluster(workspace):
        return None
    found = dict(this_node(workspace.base).amounts)
    for name, amount in state.start.node if state.start is not None else ():
        found[name] = max(amount, found.get(name, 0))
    return Resources.of(found)


def explain_whole(path: str, words: list[str]) -> Explained:
    """Why the run is where it is."""
    follower = Follower(Workspace(path))
    phase = follower.refresh()
    return with_damage(_explain_whole(path, words, follower, phase), follower)


def _explain_whole(path: str, words: list[str], follower: Follower, phase: RunPhase) -> Explained:
    workspace, state = follower.workspace, follower.state
    now = time.time()
    if on_cluster(workspace):
        from shoal.execution.session import look

        graph = look(path, words or (state.start.targets if state.start else []), None).workflow.graph
        explained = explain_run_on_cluster(workspace, graph, state, now)
        if explained is not None:
            return explained
    silence = ""
    if phase is RunPhase.RUNNING:
        told, silence = _ask(workspace, None, state)
        now = time.time()  # a run that does not answer was waited for
        if told.whole is not None:
            follower.refresh()
            told.whole.cancelled = max(0, told.whole.failed - len(follower.state.failed))
            return _explained_run(told.whole, told.names, now)
    if phase is RunPhase.NEVER:
        from shoal.execution.run_selection import refuse_unreadable  # numpy takes a while to load

        refuse_unreadable(path, workspace.ledger)
        raise InputError(f"{os.path.basename(path)} has not been run yet", remedy="'shoal plan' says what would run")
    record = run_record(follower.state, phase)
    first = headline(os.path.basename(path), follower, phase, now)
    return _explained(
        "run", [first, *record_lines(record, speech_of(str, now))], now, msgspec.to_builtins(record), silence
    )


def on_cluster(workspace: Workspace) -> bool:
    """Whether a cluster has the run, and its results have not been fetched yet."""
    return os.path.exists(workspace.brought)


def _ask(workspace: Workspace, wanted: str | None, state: RunStatus) -> tuple[ExplainReply, str]:
    """The answer of the run itself, and a sentence if its process does not answer; neither if it cannot be asked."""
    since = {task: record.time for task, record in state.running.items()}
    try:
        return ask_why(workspace, ExplainQuestion(wanted, since)), ""
    except SilentRunError as error:
        return ExplainReply(), error.message
    except InputError:
        return ExplainReply(), ""


def _needs_ledger(answer: Answer, state: RunStatus) -> bool:
    """Whether the ledger has more to say: how and when a task ended is not kept by the run itself."""
    return answer.cause in (WaitCause.DONE, WaitCause.EXCLUDED) or (
        answer.cause is WaitCause.FAILED and answer.task in state.failed
    )


# ---- runs on a cluster -----------------------------------------------------------------------------------------------


def explain_on_cluster(workspace: Workspace, graph: Graph, task: int, state: RunStatus, now: float) -> Explained | None:
    """Why one task is where it is; None if it is not on the cluster."""
    from shoal.ui.cli.parser import need_cluster_libraries

    need_cluster_libraries()
    from shoal.cluster.explain_client import explain_brought
    from shoal.ledger.cluster_notes import read_note

    note = read_note(workspace)
    if note is None:
        return None

    def seconds(each: int) -> float | None:
        if graph.actions[each] is None:
            return 0.0
        category = state.categories.get(graph.profile_of(each).category)
        ended = category.done + category.failed if category is not None else 0
        return category.seconds / ended if category is not None and ended else None

    answer = explain_brought(note, graph, task, now, seconds)
    if answer is None:
        return None
    complete(answer, state, RecordedRun(graph, state, now).number, is_behind=True)
    names = {each: graph.names[each] if each >= 0 else f"task {-1 - each}" for each in answer.mentions()}
    return explained_task(answer, names, now)


def explain_run_on_cluster(workspace: Workspace, graph: Graph, state: RunStatus, now: float) -> Explained | None:
    """Why the run is where it is; None if no cluster has it."""
    from shoal.ui.cli.parser import need_cluster_libraries

    need_cluster_libraries()
    from shoal.cluster.explain_client import explain_brought_run
    from shoal.ledger.cluster_notes import read_note

    note = read_note(workspace)
    if note is None:
        return None
    groups = {place_of(graph, task) for task in range(len(graph)) if graph.actions[task] is None}
    found = explain_brought_run(note, groups)
    if found is None:
        return None
    whole, places = found
    if len(state.failed) + len(state.unwanted) >= whole.failed:  # else some failures are not in the ledger yet
        whole.cancelled = max(0, whole.failed - len(state.failed))
    wanted = {place: number for number, place in places.items()}
    names = {
        wanted[place]: graph.names[task] for task in range(len(graph)) if (place := place_of(graph, task)) in wanted
    }
    return _explained_run(whole, names, now)


# ---- answers as text and as data -------------------------------------------------------------------------------------


def explained_task(answer: Answer, names: Mapping[int, str], now: float, silence: str = "") -> Explained:
    text = paragraph(answer, speech_of(names.__getitem__, now))
    data = {"name": names[answer.task], "names": _named(names), **msgspec.to_builtins(answer)}
    return _explained("task", [text], now, data, silence)


def _explained_run(whole: RunAnswer, names: Mapping[int, str], now: float) -> Explained:
    lines = run_lines(whole, speech_of(lambda task: names.get(task, f"task {task}"), now))
    return _explained("run", lines, now, {"names": _named(names), **msgspec.to_builtins(whole)})


def _explained(about: str, lines: list[str], now: float, facts: dict[str, Any], silence: str = "") -> Explained:
    """`silence`: that the run does not answer, so that these are facts of its ledger."""
    text = "\n".join(lines)
    if silence:
        text, facts = f"{silence}; its ledger says: {text}", {**facts, "silent": silence}
    return Explained(text, {"about": about, "time": now, "text": text, **facts})


def _named(names: Mapping[int, str]) -> dict[str, str]:
    return {str(task): name for task, name in names.items()}
