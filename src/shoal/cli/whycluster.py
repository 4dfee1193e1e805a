"""`shoal why` of a run that is on a cluster: what the cluster says, with the names of the workflow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from shoal.cli.extras import need_cluster_libraries
from shoal.cli.whyledger import number_of
from shoal.cli.whyrun import Explained, explained_task, speech_of
from shoal.explain.answer import Answer, Cause
from shoal.explain.summary import run_lines
from shoal.explain.words import paragraph
from shoal.plan.identity import place_of

if TYPE_CHECKING:
    from shoal.engine.follow import RunState
    from shoal.engine.workspace import Workspace
    from shoal.model.graph import Graph


def explain_on_cluster(workspace: Workspace, graph: Graph, task: int, state: RunState, now: float) -> Explained | None:
    """Why one task is where it is; None if it is not on the cluster."""
    need_cluster_libraries()
    from shoal.cluster.why import explain_brought
    from shoal.engine.brought import read_note

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
    _complete(answer, graph, state)
    names = {each: graph.names[each] if each >= 0 else f"task {-1 - each}" for each in answer.mentions()}
    return explained_task(paragraph(answer, speech_of(names.__getitem__, now)), answer, names, now)


def _complete(answer: Answer, graph: Graph, state: RunState) -> None:
    """Adds how attempts ended, as far as the ledger has heard of it; what was cancelled may not be in there."""
    if answer.cause is Cause.FAILED:
        number = number_of(graph, answer.task, state)
        ended = state.failed.get(number) or state.tried.get(number)
        if ended is not None:
            answer.detail, answer.cancelled = ended.message, ended.outcome == "cancelled"
    if answer.root is not None:
        _complete(answer.root, graph, state)


def explain_run_on_cluster(workspace: Workspace, graph: Graph, state: RunState, now: float) -> Explained | None:
    """Why the run is where it is; None if none is on a cluster."""
    need_cluster_libraries()
    from shoal.cluster.why import explain_brought_run
    from shoal.engine.brought import read_note

    note = read_note(workspace)
    if note is None:
        return None
    groups = {place_of(graph, task) for task in range(len(graph)) if graph.actions[task] is None}
    found = explain_brought_run(note, groups)
    if found is None:
        return None
    whole, places = found
    if len(state.failed) + len(state.unwanted) >= whole.failed:  # else the ledger has not heard of all of them
        whole.cancelled = max(0, whole.failed - len(state.failed))
    wanted = {place: number for number, place in places.items()}
    names = {
        wanted[place]: graph.names[task] for task in range(len(graph)) if (place := place_of(graph, task)) in wanted
    }
    text = "\n".join(run_lines(whole, speech_of(lambda task: names.get(task, f"task {task}"), now)))
    named = {str(task): name for task, name in names.items()}
    return Explained(text, {"about": "run", "time": now, "text": text, "names": named, **msgspec.to_builtins(whole)})
