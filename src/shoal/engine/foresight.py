"""What could have been predicted of a finished run, from nothing but what its ledger held before it began.

So predictions can be held against what happened. Loads the workflow as it is now; if that is no longer the one that was
run, nothing is said. Runs and writes nothing.
"""

from __future__ import annotations

import os
from contextlib import redirect_stdout
from io import StringIO

from shoal.engine.expect import Expectation, expectation_of, known_of
from shoal.engine.follow import RunState
from shoal.engine.forecast import on_one_node
from shoal.engine.measured import Measured, read_measured
from shoal.engine.session import load
from shoal.engine.workspace import Workspace
from shoal.errors import InputError
from shoal.ledger.records import RunStarted, printable
from shoal.model.graph import Graph
from shoal.model.resources import Resources
from shoal.policy.order import DEFAULT_ORDER

MOST_TASKS = 20_000
"""Of larger workflows nothing is said: whoever asks how a run stands does not want to wait."""
ENOUGH = 0.9
"""So much of the tasks must have been measured, or others of their category."""


def foreseen(workspace: Workspace, state: RunState) -> float | None:
    """Seconds that a run which made everything should have taken; None if too little was known before it."""
    start, end = state.start, state.end
    if start is None or end is None or end.outcome != "ok" or not 0 < start.to_run <= start.total <= MOST_TASKS:
        return None
    measured = read_measured(workspace, before=start.run)
    if not measured.last:
        return None
    there = os.getcwd()
    try:
        os.chdir(workspace.base)
        with redirect_stdout(StringIO()):  # a rules file may print, and that is not what was asked for
            return _predicted(workspace, state, start, measured)
    except (InputError, OSError):
        return None  # the workflow is no longer there, or is being changed
    finally:
        os.chdir(there)


def _predicted(workspace: Workspace, state: RunState, start: RunStarted, measured: Measured) -> float | None:
    workflow = load(workspace, start.targets)
    graph = workflow.graph
    if not _is_what_ran(graph, state):
        return None
    expected = expectation_of(workflow, *known_of(graph, measured), "ledger", measured)
    if not _knew_enough(expected, state):
        return None
    done = bytearray(b"\1") * len(graph)
    for task in state.names:
        done[task] = 0
    return on_one_node(expected, Resources(tuple(start.node)), DEFAULT_ORDER, done).makespan


def _is_what_ran(graph: Graph, state: RunState) -> bool:
    return all(task < len(graph) and printable(graph.names[task]) == name for task, name in state.names.items())


def _knew_enough(expected: Expectation, state: RunState) -> bool:
    graph = expected.workflow.graph
    known = sum(
        bool(expected.is_own[task]) or graph.profile_of(task).category in expected.samples for task in state.names
    )
    return known >= ENOUGH * len(state.names)
