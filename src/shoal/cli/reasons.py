"""The paragraphs of `shoal why`, from the graph, the plan and what the ledger says. Pure: time is an argument."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from shoal.cli.standing import show_moment, where_it_runs
from shoal.cli.text import some
from shoal.engine.follow import Phase, RunState
from shoal.engine.history import History
from shoal.engine.session import why_too_large
from shoal.explain.answer import Cause
from shoal.ledger.records import TaskEnded, printable
from shoal.model.graph import Graph
from shoal.model.labels import without_labels
from shoal.model.quantities import count, show_seconds
from shoal.model.resources import Resources, show_amount
from shoal.plan.decide import Plan, Reason
from shoal.plan.identity import place_of


def after_the_run(plan: Plan, task: int, history: History, state: RunState, now: float, node: Resources | None) -> str:
    """When nothing runs: why the last run did not do the task, whether the next one would, and what is known of it.

    `node` is what this machine has; None if the next run need not be here.
    """
    refused = would_be_refused(plan, task, node)
    if refused is not None:
        last = history.result(place_of(plan.graph, task))
        return f"{refused}.{f' {_last_time(last, now)}' if last is not None else ''}"
    return _did_not_run(plan.graph, task, state) + _next_time(plan, task, history, now)


def would_be_refused(plan: Plan, task: int, node: Resources | None) -> str | None:
    """Why `shoal run` would not begin with the task, if it asks for more than there is, or needs one that does."""
    found = why_too_large(plan, task, node) if node is not None else None
    if found is None:
        return None
    which, error = found
    names = plan.graph.names
    needs = "" if which == task else f"{names[task]!r} cannot run: it needs {names[which]!r}. "
    return f"{needs}{error.message}, so 'shoal run' refuses it: {error.remedy}"


def _did_not_run(graph: Graph, task: int, state: RunState) -> str:
    """A sentence if the last run could not come to the task because of something that it needs."""
    numbers = {text: number for number, text in state.names.items()}
    number = numbers.get(printable(graph.names[task]), -1)
    if number < 0 or number in state.done or number in state.failed:
        return ""
    if number in state.unwanted:
        return f"{graph.names[task]!r} was cancelled in the last run. "
    lost = _lost_ancestor(graph, task, state, numbers)
    if lost is None:
        return ""
    record = state.failed.get(numbers[printable(lost[0])])
    why = f" ({record.message})" if record is not None else ""
    return f"{graph.names[task]!r} did not run in the last run: it needs {lost[0]!r}, which {lost[1]}{why}. "


def _next_time(plan: Plan, task: int, history: History, now: float) -> str:
    graph = plan.graph
    reason = Reason(plan.reasons[task])
    name = repr(graph.names[task])
    if graph.actions[task] is None:
        return _group(plan, task)
    last = history.result(place_of(graph, task))
    if reason is Reason.UP_TO_DATE and last is not None:
        unchanged = f"since then {_unchanged(plan, task)} not changed.{_away(plan, task)}"
        return f"{name} is up to date: {_was_done(last, now)}, and {unchanged}"
    known = f" {_last_time(last, now)}" if last is not None else ""
    if reason is Reason.NOT_NEEDED:
        return f"{name} would not run: no target that was asked for needs it.{known}"
    return f"{name} would run because {plan.why(task)}.{_root_cause(plan, task)}{known}"


def _unchanged(plan: Plan, task: int) -> str:
    """`its command, 2 input files and 1 output file have`; what it has none of is left out, as is what is not here."""
    graph, absent = plan.graph, plan.absent
    numbers = (
        (sum(file not in absent for file in graph.inputs_of(task)), "input file"),
        (sum(file not in absent for file in graph.outputs_of(task)), "output file"),
    )
    what = ["its command", *(count(number, noun) for number, noun in numbers if number)]
    return f"{', '.join(what[:-1])} and {what[-1]} have" if len(what) > 1 else f"{what[0]} has"


def _away(plan: Plan, task: int) -> str:
    """Says which of its outputs count as being there although they are not."""
    names = [plan.graph.file_names[file] for file in plan.graph.outputs_of(task) if file in plan.absent]
    if not names:
        return ""
    if len(names) == 1:
        return f" Its output {names[0]!r} is not here: nothing needed it, so it stayed on a node or was removed."
    return f" Its outputs {some(names)} are not here: nothing needed them, so they stayed on nodes or were removed."


def next_run(plan: Plan, task: int) -> str:
    """What the next run would do with a task, in a word for programs."""
    words = {Reason.UP_TO_DATE: "up to date", Reason.NOT_NEEDED: "excluded"}
    return words.get(Reason(plan.reasons[task]), "would run")


def _group(plan: Plan, task: int) -> str:
    graph = plan.graph
    needs = _distinct(graph.predecessors_of(task))
    unmet = [graph.names[other] for other in needs if plan.runs(other)]
    name = repr(graph.names[task])
    if unmet:
        return f"{name} runs nothing itself; it needs {count(len(unmet), 'task')} that would run: {some(unmet)}."
    if not needs:
        return f"{name} runs nothing itself, and needs nothing."
    are = "is" if len(needs) == 1 else "are"
    return f"{name} runs nothing itself, and the {count(len(needs), 'task')} it needs {are} up to date."


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
    wrote = "; 'shoal output' prints what it wrote" if record.output_size else ""
    how = "was cancelled" if record.outcome == "cancelled" else f"failed: {record.message}"
    return f"At {show_moment(record.ended, now)} it {how}{wrote}."


def during_the_run(graph: Graph, task: int, state: RunState, history: History, now: float) -> str:
    """While the workflow is being run: where the task stands in it."""
    name = repr(graph.names[task])
    numbers = {text: number for number, text in state.names.items()}
    number = numbers.get(printable(graph.names[task]), -1)
    if number in state.running:
        started = state.running[number]
        process = where_it_runs(state, started) if started.node else f"as {where_it_runs(state, started)}"
        age = show_seconds(max(0.0, now - started.time))
        return (
            f"{name} has been running since {show_moment(started.time, now)} ({age}), "
            f"{process}, attempt {started.attempt}."
        )
    last = history.result(place_of(graph, task))
    if number in state.failed:
        record = state.failed[number]
        again = f" after {record.attempt} attempts" if record.attempt > 1 else ""
        wrote = "; see 'shoal output'" if record.output_size else ""
        return f"{name} failed at {show_moment(record.ended, now)}{again}: {record.message}{wrote}."
    if number in state.unwanted:
        return f"{name} was cancelled."
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
        return f"{name} cannot run any more: it needs {lost[0]!r}, which {lost[1]}."
    waits_for = _unfinished(graph, task, state, numbers)
    if waits_for:
        running = sum(numbers.get(printable(other), -1) in state.running for other in waits_for)
        return (
            f"{name} waits for {count(len(waits_for), 'unfinished task')} that it needs: {some(waits_for)} "
            f"({running:,} of them running)."
        )
    number = numbers.get(printable(graph.names[task]), -1)
    if number in state.tried:
        record = state.tried[number]
        return f"{name} waits for its next attempt: attempt {record.attempt} ended with: {record.message}."
    if graph.actions[task] is None:
        return f"{name} runs nothing itself, and all it needs is done."
    return f"{name} is ready and waits for {_scarce(graph, task, state)[1]}."


def waiting_facts(graph: Graph, task: int, state: RunState) -> dict[str, Any]:
    """The same for programs, of a task that neither runs nor is over nor rests."""
    numbers = {text: number for number, text in state.names.items()}
    if _lost_ancestor(graph, task, state, numbers) is not None:
        return {"cause": Cause.DOOMED.value}
    if unfinished := _unfinished(graph, task, state, numbers):
        return {"cause": Cause.NEEDS.value, "unfinished": len(unfinished)}
    if printable(graph.names[task]) not in numbers:
        return {}
    return {"cause": _scarce(graph, task, state)[0].value}


def _unfinished(graph: Graph, task: int, state: RunState, numbers: dict[str, int]) -> list[str]:
    """The tasks that it needs and that are not done."""
    found = []
    for other in _distinct(graph.predecessors_of(task)):
        number = numbers.get(printable(graph.names[other]), -1)
        unfinished = number >= 0 and number not in state.done
        if unfinished or (graph.actions[other] is None and _unfinished_below(graph, other, state, numbers)):
            found.append(graph.names[other])
    return found


def _unfinished_below(graph: Graph, task: int, state: RunState, numbers: dict[str, int]) -> bool:
    """Whether anything that a group needs is planned and not done."""
    return any(
        numbers.get(printable(graph.names[other]), -1) >= 0 and numbers[printable(graph.names[other])] not in state.done
        for other in _ancestors(graph, task)
    )


def _lost_ancestor(graph: Graph, task: int, state: RunState, numbers: dict[str, int]) -> tuple[str, str] | None:
    """What it needs and will not get in this run, and what became of that."""
    if not state.failed and not state.unwanted:
        return None
    for other in _ancestors(graph, task):
        number = numbers.get(printable(graph.names[other]), -1)
        if number in state.failed or number in state.unwanted:
            return graph.names[other], "failed" if number in state.failed else "was cancelled"
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


def _scarce(graph: Graph, task: int, state: RunState) -> tuple[Cause, str]:
    """What holds a ready task back: the throttle, or the resource of which too little is free, with who has it."""
    assert state.start is not None
    held = state.held_back(graph.profile_of(task).category)
    if held is not None:
        return Cause.THROTTLE, f"the throttle: {held.reason}"
    node = Resources(tuple(state.start.node))
    asked = graph.profile_of(task).resources
    by_name = {printable(name): number for number, name in enumerate(graph.names)}
    holders = [by_name[state.names[number]] for number in state.running if state.names.get(number) in by_name]
    for name, amount in without_labels(asked).amounts:
        if state.throttle and not graph.profile_of(task).declares(name):
            continue  # cores that nobody declared are not counted under a throttle
        used = sum(graph.profile_of(other).resources.get(name) for other in holders)
        if used + amount > node.get(name):
            taken, total = show_amount(name, used), show_amount(name, node.get(name))
            are = "is" if taken == "1" else "are"
            return (
                Cause.RESOURCES,
                f"{name}: it asks for {show_amount(name, amount)}, and {taken} of {total} {are} in use "
                f"by {count(len(holders), 'running task')}",
            )
    return Cause.TURN, "its turn: other tasks are ready, too"


def _distinct(tasks: Iterable[int]) -> list[int]:
    return list(dict.fromkeys(tasks))


def whole_from_ledger(state: RunState, phase: Phase, now: float) -> list[str]:
    """What a ledger has on why a run is where it is: of one that goes on elsewhere, has ended, or was killed."""
    lines = []
    if phase is Phase.RUNNING:
        running = list(state.running.values())
        lines.append(f"  {len(running):,} run, {state.waiting():,} are not started")
        for record in sorted(running, key=lambda each: each.time)[:3]:
            name = state.names.get(record.task, str(record.task))
            lines.append(f"  {name!r} has been running since {show_moment(record.time, now)}")
    elif phase is Phase.KILLED:
        lines.append("  nothing runs: the process of the run is gone; 'shoal run' goes on from there")
    elif phase is Phase.ENDED and state.not_run() and state.end is not None:
        doomed = state.cannot_run()
        because = f" ({doomed:,} because of what failed or was cancelled)" if doomed else ""
        lines.append(f"  {count(state.not_run(), 'task')} did not run{because}; the run ended: {state.end.outcome}")
    for failure in list(state.failed.values())[:3]:
        lines.append(f"  {state.names.get(failure.task, str(failure.task))!r} failed: {failure.message}")
    if len(state.failed) > 3:
        lines.append(f"  and {len(state.failed) - 3:,} more failed")
    return lines
