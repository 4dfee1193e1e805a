"""The ledger and the plan as a source of answers: why a task or a run is where it is, if the run cannot be asked.

That is so for a run that has ended, was killed, is on another machine or does not answer. The ledger has no queue, so
this source gives no estimates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.core.dependencies import TaskStatus
from shoal.core.explain.answer import (
    Answer,
    Cap,
    LastAttempt,
    PlanVerdict,
    RecordedTask,
    ResourceHolder,
    RunRecord,
    Shortage,
    WaitCause,
)
from shoal.core.explain.dependency_chain import FunctionSource
from shoal.core.graph import Graph, ancestors, topological_order
from shoal.core.resources import Resources, without_labels
from shoal.execution.session import SessionView, why_too_large
from shoal.ledger.history import History
from shoal.ledger.identity import place_of
from shoal.ledger.records import TaskStarted, decodable
from shoal.ledger.status import RunPhase, RunStatus
from shoal.ledger.up_to_date import Plan, Reason
from shoal.ui.cli.status_tables import where_it_runs

MOST_NAMED = 3
NO_QUEUE = "the ledger does not record the queue"


class RecordedRun:
    """The last run of a workflow, as its ledger has it, in the numbers of the workflow's graph."""

    def __init__(self, graph: Graph, state: RunStatus, now: float) -> None:
        self._graph, self._state, self._now = graph, state, now
        self._numbers = {text: number for number, text in state.names.items()}

    def number(self, task: int) -> int:
        """The number that a task of the graph has in the run; -1 if it is not part of it."""
        return self._numbers.get(decodable(self._graph.names[task]), -1)

    def explain(self, task: int) -> Answer:
        needed = ancestors(self._graph, [task])
        statuses: dict[int, TaskStatus] = {}
        for each in topological_order(self._graph):
            if needed[each]:
                statuses[each] = self._find_status(each, statuses)
        running = self._state.running.get(self.number(task))  # a cancelled task counts as failed while it still runs
        if running is not None:
            return running_answer(task, self._state, running)
        source = FunctionSource(self._now, self._graph.predecessors_of, statuses.__getitem__, self._held)
        answer = source.explain(task)
        complete(answer, self._state, self.number)
        return answer

    def _find_status(self, task: int, statuses: dict[int, TaskStatus]) -> TaskStatus:
        number, state = self.number(task), self._state
        if number in state.failed or number in state.unwanted:
            return TaskStatus.FAILED
        if number in state.done:
            return TaskStatus.DONE
        if number in state.running:
            return TaskStatus.READY
        if state.end is not None and number in state.tried and state.tried[number].outcome == "cancelled":
            return TaskStatus.FAILED  # the run was stopped, and nothing is tried again
        is_group = self._graph.actions[task] is None
        if number < 0 and not is_group:
            return TaskStatus.DONE  # up to date when the run began, or no target needs it
        needs = [statuses[other] for other in self._graph.predecessors_of(task)]
        if any(status in (TaskStatus.FAILED, TaskStatus.DOOMED) for status in needs):
            return TaskStatus.DOOMED
        if any(status <= TaskStatus.READY for status in needs):
            return TaskStatus.WAITING
        return TaskStatus.DONE if is_group else TaskStatus.READY

    def _held(self, task: int) -> Answer:
        number = self.number(task)
        if number in self._state.running:
            return running_answer(task, self._state, self._state.running[number])
        if number in self._state.tried:
            return Answer(task, WaitCause.RETRY, self._state.tried[number].attempt)
        return self._scarce(task)

    def _scarce(self, task: int) -> Answer:
        """Why a ready task is queued: the throttle, or the resource of which too little is free."""
        state, profile = self._state, self._graph.profile_of(task)
        held = state.held_back(profile.category)
        if held is not None:
            running = state.running_of(profile.category) if held.category else state.running_now()
            return Answer(task, WaitCause.THROTTLE, cap=Cap(held.category, held.cap, running, held.reason))
        node = Resources(tuple(state.start.node) if state.start is not None else ())
        holders = self._running_tasks()
        for name, asked in without_labels(profile.resources).amounts:
            if state.throttle and not profile.declares(name):
                continue  # cores that nobody declared are not counted under a throttle
            found = [
                ResourceHolder(other, amount, since)
                for other, since in holders
                if (amount := self._graph.profile_of(other).resources.get(name))
            ]
            free, total = node.get(name) - sum(each.amount for each in found), node.get(name)
            if asked > free:
                shortage = Shortage(name, asked, max(0, free), total, found[:MOST_NAMED], len(found))
                return Answer(task, WaitCause.RESOURCES, shortage=shortage)
        return Answer(task, WaitCause.TURN, detail=NO_QUEUE)

    def _running_tasks(self) -> list[tuple[int, float]]:
        """The running tasks that the graph has, with the time of their start."""
        since = {self._state.names.get(number): started.time for number, started in self._state.running.items()}
        names = enumerate(map(decodable, self._graph.names))
        return [(task, since[name]) for task, name in names if name in since]


def running_answer(task: int, state: RunStatus, started: TaskStarted) -> Answer:
    where = where_it_runs(state, started)
    detail = where if started.node else f"as {where}"
    return Answer(task, WaitCause.RUNNING, started.attempt, started.time, detail=detail)


def complete(answer: Answer, state: RunStatus, number_of: Callable[[int], int], *, is_behind: bool = False) -> None:
    """Adds what only the ledger has: the process of a running task, and how attempts ended.

    `is_behind`: the ledger may not have heard of all failures yet, as on a cluster.
    """
    number = number_of(answer.task)
    ended = state.failed.get(number) or state.tried.get(number)
    if answer.cause is WaitCause.RUNNING and number in state.running and not is_behind:
        found = running_answer(answer.task, state, state.running[number])
        answer.detail, answer.since = found.detail, answer.since or found.since
    elif answer.cause is WaitCause.FAILED:
        if ended is not None:
            answer.attempt, answer.detail = ended.attempt, ended.message
            answer.cancelled = ended.outcome == "cancelled"
        if number not in state.failed and not is_behind:
            answer.cancelled = True  # a failure would be on record
    elif answer.cause is WaitCause.RETRY and ended is not None:
        answer.detail = ended.message
    if answer.root is not None:
        complete(answer.root, state, number_of, is_behind=is_behind)


def explain_during(
    view: SessionView, task: int, state: RunStatus, now: float, live: Answer | None, *, is_asked_for: bool
) -> Answer:
    """Where a task stands while its workflow runs. `live`: what the run itself says, if it answers."""
    graph = view.workflow.graph
    source = RecordedRun(graph, state, now)
    if source.number(task) >= 0 or graph.actions[task] is None:
        answer = source.explain(task)
        if answer.cause in (WaitCause.DONE, WaitCause.FAILED):
            answer.tried = last_attempt(view.history, graph, task)
        return answer
    would = live.cause if live is not None else next_cause(view.plan, task)
    if not is_asked_for or would is WaitCause.EXCLUDED:
        return Answer(task, WaitCause.EXCLUDED)
    tried = last_attempt(view.history, graph, task)
    return Answer(
        task, WaitCause.DONE, earlier=True, tried=tried if tried is not None and tried.outcome == "ok" else None
    )


def explain_between(view: SessionView, task: int, state: RunStatus, now: float, node: Resources | None) -> Answer:
    """While no run is under way: what became of a task in the last one, and what the next one would do with it.

    `node` is what this machine has; None if the next run need not be here.
    """
    graph, plan = view.workflow.graph, view.plan
    source = RecordedRun(graph, state, now)
    past = source.explain(task)
    answer = Answer(task, next_cause(plan, task), verdict=verdict_of(plan, task))
    answer.tried = last_attempt(view.history, graph, task)
    if past.cause is WaitCause.FAILED or (past.cause is WaitCause.DONE and source.number(task) >= 0):
        answer.last = past.cause
        answer.attempt, answer.detail, answer.cancelled = past.attempt, past.detail, past.cancelled
    elif past.cause is WaitCause.DOOMED and source.number(task) >= 0:
        answer.chain, answer.links, answer.root = past.chain, past.links, past.root
    refused = refusal(plan, task, node)
    if refused is not None:
        answer.cause, answer.detail = WaitCause.TOO_LARGE, refused
    return answer


def last_attempt(history: History, graph: Graph, task: int) -> LastAttempt | None:
    record = history.result(place_of(graph, task))
    if record is None:
        return None
    times = record.started, record.ended
    return LastAttempt(record.attempt, record.outcome, *times, record.message, wrote=bool(record.output_size))


def next_cause(plan: Plan, task: int) -> WaitCause:
    """What the next run would do with a task."""
    known = {Reason.UP_TO_DATE: WaitCause.UP_TO_DATE, Reason.NOT_NEEDED: WaitCause.EXCLUDED}
    return known.get(Reason(plan.reasons[task]), WaitCause.WOULD_RUN)


def verdict_of(plan: Plan, task: int) -> PlanVerdict:
    graph = plan.graph
    if graph.actions[task] is None:
        needs = list(dict.fromkeys(graph.predecessors_of(task)))
        return PlanVerdict(dependencies=len(needs), unmet=[other for other in needs if plan.runs(other)])
    if plan.reasons[task] == Reason.UP_TO_DATE:
        inputs = sum(file not in plan.absent for file in graph.inputs_of(task))
        absent = [graph.file_names[file] for file in graph.outputs_of(task) if file in plan.absent]
        outputs = sum(file not in plan.absent for file in graph.outputs_of(task))
        return PlanVerdict(inputs=inputs, outputs=outputs, absent=absent)
    if not plan.runs(task):
        return PlanVerdict()
    origin, steps = task, 0
    while plan.reasons[origin] == Reason.NEEDS_ANOTHER and plan.detail[origin] >= 0:
        origin = plan.detail[origin]
        steps += 1
    if not steps:
        return PlanVerdict(plan.why(task))
    return PlanVerdict(plan.why(task), origin, steps, plan.why(origin))


def refusal(plan: Plan, task: int, node: Resources | None) -> str | None:
    """Why `shoal run` would not begin with the task, if it asks for more than there is, or needs one that does."""
    found = why_too_large(plan, task, node) if node is not None else None
    if found is None:
        return None
    which, error = found
    names = plan.graph.names
    needs = "" if which == task else f"{names[task]!r} cannot run: it depends on {names[which]!r}. "
    return f"{needs}{error.message}, so 'shoal run' refuses it: {error.remedy}"


def run_record(state: RunStatus, phase: RunPhase) -> RunRecord:
    """How the last run stands or stood."""
    is_running = phase is RunPhase.RUNNING
    record = RunRecord(
        phase.value,
        running=len(state.running) if is_running else 0,
        waiting=state.waiting() + (0 if is_running else len(state.running)),
        done=len(state.done),
        failed=len(state.failed),
        cancelled=state.cancelled(),
        doomed=state.cannot_run(),
        outcome=state.end.outcome if state.end is not None else "",
    )

    def task_record(task: int, **known: Any) -> RecordedTask:
        return RecordedTask(state.names.get(task, str(task)), **known)

    for failure in list(state.failed.values())[:MOST_NAMED]:
        how = {"attempt": failure.attempt, "detail": failure.message, "cancelled": failure.outcome == "cancelled"}
        record.failures.append(task_record(failure.task, **how))
    if is_running:
        for started in sorted(state.running.values(), key=lambda each: each.time)[:MOST_NAMED]:
            record.longest.append(task_record(started.task, attempt=started.attempt, since=started.time))
    if phase is RunPhase.ENDED:
        record.not_run = state.not_run()
    return record
