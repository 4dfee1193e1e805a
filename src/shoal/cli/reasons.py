"""The paragraphs of `shoal why`, from the graph, the plan and what the ledger says. Pure: time is an argument."""

from __future__ import annotations

from collections.abc import Iterable

from shoal.cli.standing import show_moment
from shoal.cli.text import count, show_seconds, some
from shoal.engine.follow import RunState
from shoal.engine.history import History
from shoal.ledger.records import TaskEnded
from shoal.model.graph import Graph
from shoal.model.labels import without_labels
from shoal.model.resources import Resources, show_amount
from shoal.plan.decide import Plan, Reason
from shoal.plan.identity import place_of


def after_the_run(plan: Plan, task: int, history: History, now: float) -> str:
    """When nothing runs: whether the next run would do the task, and what is known of it."""
    graph = plan.graph
    reason = Reason(plan.reasons[task])
    name = repr(graph.names[task])
    if graph.actions[task] is None:
        return _group(plan, task)
    last = history.result(place_of(graph, task))
    if reason is Reason.UP_TO_DATE and last is not None:
        inputs, outputs = len(graph.inputs_of(task)), len(graph.outputs_of(task))
        return (
            f"{name} is up to date: {_was_done(last, now)}, and since then its command, "
            f"{count(inputs, 'input file')} and {count(outputs, 'output file')} have not changed."
        )
    known = f" {_last_time(last, now)}" if last is not None else ""
    if reason is Reason.NOT_NEEDED:
        return f"{name} would not run: no target that was asked for needs it.{known}"
    return f"{name} would run because {plan.why(task)}.{_root_cause(plan, task)}{known}"


def _group(plan: Plan, task: int) -> str:
    graph = plan.graph
    needs = _distinct(graph.predecessors_of(task))
    unmet = [graph.names[other] for other in needs if plan.runs(other)]
    name = repr(graph.names[task])
    if unmet:
        return f"{name} runs nothing itself; it needs {count(len(unmet), 'task')} that would run: {some(unmet)}."
    return f"{name} runs nothing itself, and the {count(len(needs), 'task')} it needs are up to date."


def _root_cause(plan: Plan, task: int) -> str:
    """Follows `needs another that runs` back to the task that started it."""
    steps = 0
    while plan.reasons[task] == Reason.NEEDS_ANOTHER and plan.detail[task] >= 0:
        task = plan.detail[task]
        steps += 1
    if steps < 2:
        return f" That one runs because {plan.why(task)}." if steps else ""
    return f" It all starts with {plan.graph.names[task]!r}, which runs because {plan.why(task)}."


def _was_done(record: TaskEnded, now: float) -> str:
    return f"done at {show_moment(record.ended, now)} in {show_seconds(record.ended - record.started)}"


def _last_time(record: TaskEnded, now: float) -> str:
    if record.outcome == "ok":
        return f"It was {_was_done(record, now)}."
    return f"At {show_moment(record.ended, now)} it failed: {record.message}; 'shoal output' prints what it wrote."


def during_the_run(graph: Graph, task: int, state: RunState, history: History, now: float) -> str:
    """While the workflow is being run: where the task stands in it."""
    name = repr(graph.names[task])
    numbers = {text: number for number, text in state.names.items()}
    number = numbers.get(graph.names[task], -1)
    if number in state.running:
        started = state.running[number]
        process = f"as process {started.pid}" if started.pid else "as a Python call"
        return (
            f"{name} is running since {show_moment(started.time, now)} ({show_seconds(now - started.time)}), "
            f"{process}, attempt {started.attempt}."
        )
    last = history.result(place_of(graph, task))
    if number in state.failed:
        record = state.failed[number]
        again = f" after {record.attempt} attempts" if record.attempt > 1 else ""
        return f"{name} failed at {show_moment(record.ended, now)}{again}: {record.message}; see 'shoal output'."
    if number in state.done:
        return f"{name} was {_was_done(last, now)}." if last is not None else f"{name} is done."
    if number < 0 and graph.actions[task] is not None:
        done = f": {_was_done(last, now)}" if last is not None and last.outcome == "ok" else ""
        return f"{name} is not part of this run: it was up to date when the run began, or no target needs it{done}."
    return _waiting(graph, task, state, numbers)


def _waiting(graph: Graph, task: int, state: RunState, numbers: dict[str, int]) -> str:
    name = repr(graph.names[task])
    lost = _lost_ancestor(graph, task, state, numbers)
    if lost is not None:
        return f"{name} cannot run any more: it needs {lost!r}, which failed."
    waits_for = []
    for other in _distinct(graph.predecessors_of(task)):
        number = numbers.get(graph.names[other], -1)
        unfinished = number >= 0 and number not in state.done
        if unfinished or (graph.actions[other] is None and _unfinished_below(graph, other, state, numbers)):
            waits_for.append(graph.names[other])
    if waits_for:
        running = sum(numbers.get(other, -1) in state.running for other in waits_for)
        return (
            f"{name} waits for {count(len(waits_for), 'unfinished task')} that it needs: {some(waits_for)} "
            f"({running:,} of them running)."
        )
    number = numbers.get(graph.names[task], -1)
    if number in state.tried:
        record = state.tried[number]
        return f"{name} waits for its next attempt: attempt {record.attempt} ended with: {record.message}."
    if graph.actions[task] is None:
        return f"{name} runs nothing itself, and all it needs is done."
    return f"{name} is ready and waits for {_scarce(graph, task, state)}."


def _unfinished_below(graph: Graph, task: int, state: RunState, numbers: dict[str, int]) -> bool:
    """Whether anything that a group needs is planned and not done."""
    return any(
        numbers.get(graph.names[other], -1) >= 0 and numbers[graph.names[other]] not in state.done
        for other in _ancestors(graph, task)
    )


def _lost_ancestor(graph: Graph, task: int, state: RunState, numbers: dict[str, int]) -> str | None:
    if not state.failed:
        return None
    for other in _ancestors(graph, task):
        if numbers.get(graph.names[other], -1) in state.failed:
            return graph.names[other]
    return None


def _ancestors(graph: Graph, task: int) -> list[int]:
    """Everything the task needs, nearest first."""
    found: dict[int, None] = {task: None}
    queue = [task]
    for current in queue:  # grows while we walk it
        for other in graph.predecessors_of(current):
            if other not in found:
                found[other] = None
                queue.append(other)
    return queue[1:]


def _scarce(graph: Graph, task: int, state: RunState) -> str:
    """What holds a ready task back: the throttle, or the resource of which too little is free, with who has it."""
    assert state.start is not None
    held = state.held_back(graph.profile_of(task).category)
    if held is not None:
        return f"the throttle: {held.reason}"
    node = Resources(tuple(state.start.node))
    asked = graph.profile_of(task).resources
    by_name = {name: number for number, name in enumerate(graph.names)}
    holders = [by_name[state.names[number]] for number in state.running if state.names.get(number) in by_name]
    for name, amount in without_labels(asked).amounts:
        if state.throttle and not graph.profile_of(task).declares(name):
            continue  # cores that nobody declared are not counted under a throttle
        used = sum(graph.profile_of(other).resources.get(name) for other in holders)
        if used + amount > node.get(name):
            return (
                f"{name}: it asks for {show_amount(name, amount)}, and of {show_amount(name, node.get(name))} "
                f"{show_amount(name, used)} are in use by {count(len(holders), 'running task')}"
            )
    return "its turn: other tasks are ready, too"


def _distinct(tasks: Iterable[int]) -> list[int]:
    return list(dict.fromkeys(tasks))
