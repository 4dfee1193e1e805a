"""What the ledger has on why a task or a run is where it is, as facts for programs; sentences are in `cli.reasons`.

Of a run that has ended, was killed, is on another machine or does not answer nobody else can be asked.
"""

from __future__ import annotations

from typing import Any

from shoal.cli.reasons import waiting_facts
from shoal.cli.standing import show_moment
from shoal.engine.follow import Phase, RunState
from shoal.engine.history import History
from shoal.explain.answer import Cause
from shoal.ledger.records import TaskEnded, printable
from shoal.model.graph import Graph
from shoal.model.quantities import show_seconds
from shoal.plan.identity import place_of


def number_of(graph: Graph, task: int, state: RunState) -> int:
    """The number that a task of the graph has in the run; -1 if it is not part of it."""
    name = printable(graph.names[task])
    return next((number for number, each in state.names.items() if each == name), -1)


def task_facts(graph: Graph, task: int, state: RunState, phase: Phase) -> dict[str, Any]:
    """What became of a task in the last run, or where it stands, as far as the ledger has it."""
    number = number_of(graph, task, state)
    ended = state.failed.get(number) or state.tried.get(number)
    if number in state.running and phase is Phase.RUNNING:
        started = state.running[number]
        return {"cause": Cause.RUNNING.value, "attempt": started.attempt, "since": started.time}
    if number in state.done:
        return {"cause": Cause.DONE.value}
    if ended is not None and (number in state.failed or ended.outcome == "cancelled"):
        return {"cause": Cause.FAILED.value, **how_it_failed(ended)}
    if number in state.unwanted:
        return {"cause": Cause.FAILED.value, "cancelled": True}
    if ended is not None and phase is Phase.RUNNING:
        return {"cause": Cause.RETRY.value, **how_it_failed(ended)}
    return waiting_facts(graph, task, state) if phase is Phase.RUNNING else {}


def how_it_failed(record: TaskEnded) -> dict[str, Any]:
    cancelled = {"cancelled": True} if record.outcome == "cancelled" else {}
    return {"attempt": record.attempt, "detail": record.message, **cancelled}


def whole_facts(state: RunState, phase: Phase) -> dict[str, Any]:
    """How the last run stands or stood."""
    cancelled, doomed = state.cancelled(), state.cannot_run()
    facts: dict[str, Any] = {
        "state": phase.value,
        "running": len(state.running) if phase is Phase.RUNNING else 0,
        "waiting": state.waiting() + (0 if phase is Phase.RUNNING or state.end is not None else len(state.running)),
        "done": len(state.done),
        "failed": len(state.failed),
    }
    if cancelled:
        facts["cancelled"] = cancelled
    if doomed:
        facts["doomed"] = doomed
    if state.end is not None:
        facts["outcome"] = state.end.outcome
    failures = list(state.failed.values())[:3]
    if failures:
        names = [state.names.get(each.task, str(each.task)) for each in failures]
        facts["failures"] = [{"name": name, **how_it_failed(each)} for name, each in zip(names, failures, strict=True)]
    return facts


def not_in_the_run(graph: Graph, task: int, history: History, *, excluded: bool, now: float) -> str:
    """Of a task that is not part of the run that goes on: why that is so."""
    name = repr(graph.names[task])
    if excluded:
        return f"{name} is not part of this run: no target needs it."
    last = history.result(place_of(graph, task))
    done = ""
    if last is not None and last.outcome == "ok":
        done = f": done at {show_moment(last.ended, now)} in {show_seconds(last.ended - last.started)}"
    return f"{name} is not part of this run: it was up to date when the run began{done}."
