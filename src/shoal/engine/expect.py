"""How long the tasks of a workflow are expected to take: as the trace says, or as earlier runs did, or a guess.

For a trace the tasks are those recorded, not those of a replay. Reads the ledger; runs and writes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from shoal.engine.history import read_history
from shoal.engine.load import Workflow, unknown_target
from shoal.engine.replay import Scales, scales_and_targets
from shoal.engine.session import enter, load
from shoal.frontend.wfformat import Trace, is_wfformat, read_wfformat, trace_graph
from shoal.frontend.wfformat.graph import requested
from shoal.model.graph import Graph, lookup_tasks
from shoal.model.resources import FRACTION
from shoal.plan.identity import place_of

GUESS_SECONDS = 1.0


class Expectation(msgspec.Struct):
    """A workflow and the expected duration of each of its tasks, with where that knowledge comes from."""

    workflow: Workflow
    durations: list[float]
    input_bytes: list[int]
    origin: str
    """`trace`, `ledger` or `guess`."""
    known: int = 0
    like_category: int = 0
    guessed: int = 0

    def sentence(self) -> str:
        """Where the durations come from, for people."""
        source = {"trace": "recorded in the trace", "ledger": "measured in earlier runs"}
        parts = []
        if self.known:
            parts.append(f"{self.known:,} {source[self.origin]}")
        if self.like_category:
            parts.append(f"{self.like_category:,} like others of the category")
        if self.guessed:
            parts.append(f"{self.guessed:,} guessed ({GUESS_SECONDS:g} s)")
        return ", ".join(parts) or "nothing runs"


def expect(path: str, words: Sequence[str]) -> Expectation:
    """Loads the workflow, whose directory becomes the current one, and looks up what is known of its tasks."""
    workspace = enter(path)
    name = os.path.basename(workspace.workflow)
    with open(workspace.workflow, "rb") as file:
        text = file.read()
    if is_wfformat(text):
        return _of_trace(read_wfformat(text, name), name, words)
    workflow = load(workspace, words)
    history = read_history(workspace)
    graph = workflow.graph
    seconds: list[float | None] = []
    for task in range(len(graph)):
        result = history.result(place_of(graph, task)) if graph.actions[task] is not None else None
        known = result is not None and result.outcome == "ok"
        seconds.append(max(0.0, result.ended - result.started) if result is not None and known else None)
    sizes = [os.path.getsize(file) if os.path.isfile(file) else 0 for file in graph.file_names]
    return _expectation(workflow, seconds, sizes, "ledger")


def _of_trace(trace: Trace, name: str, words: Sequence[str]) -> Expectation:
    scales, names = scales_and_targets(words, name)
    graph = trace_graph(_scaled(trace, scales), name)
    find = lookup_tasks(graph)
    targets = list(range(len(graph)))
    if names:
        targets = []
        for word in names:
            task = find(word)
            if task is None:
                raise unknown_target(word, graph)
            targets.append(task)
    seconds = [task.execution.seconds * scales.time if task.execution else None for task in trace.tasks]
    size_of = {file.id: round(file.size * scales.data) for file in trace.files}
    sizes = [size_of[file] for file in graph.file_names]
    return _expectation(Workflow(name, graph, targets, list(words)), seconds, sizes, "trace")


def _scaled(trace: Trace, scales: Scales) -> Trace:
    """The trace with what its tasks ask for as in a replay of that scale."""
    if scales.memory_scale == 1.0 and scales.cores is None:
        return trace
    tasks = []
    for task in trace.tasks:
        if task.execution is not None:
            asked = requested(task, scales.memory_scale, scales.cores)
            cores, memory = asked.get("cores") / FRACTION, asked.get("memory") or None
            task = msgspec.structs.replace(
                task, execution=msgspec.structs.replace(task.execution, cores=cores, memory=memory)
            )
        tasks.append(task)
    return msgspec.structs.replace(trace, tasks=tuple(tasks))


def _expectation(workflow: Workflow, seconds: list[float | None], sizes: list[int], origin: str) -> Expectation:
    """Fills the gaps: the mean of the category where there is one, else the guess."""
    graph = workflow.graph
    means = _category_means(graph, seconds)
    input_bytes = [sum(sizes[file] for file in graph.inputs_of(task)) for task in range(len(graph))]
    expectation = Expectation(workflow, [], input_bytes, origin)
    for task, known in enumerate(seconds):
        length = known
        if graph.actions[task] is None:
            length = 0.0
        elif known is not None:
            expectation.known += 1
        elif (mean := means.get(graph.profile_of(task).category)) is not None:
            length = mean
            expectation.like_category += 1
        else:
            length = GUESS_SECONDS
            expectation.guessed += 1
        expectation.durations.append(length or 0.0)
    if not expectation.known:
        expectation.origin = "guess"
    return expectation


def _category_means(graph: Graph, seconds: list[float | None]) -> dict[str, float]:
    totals: dict[str, tuple[int, float]] = {}
    for task, known in enumerate(seconds):
        if known is not None:
            category = graph.profile_of(task).category
            count, total = totals.get(category, (0, 0.0))
            totals[category] = (count + 1, total + known)
    return {category: total / count for category, (count, total) in totals.items()}
