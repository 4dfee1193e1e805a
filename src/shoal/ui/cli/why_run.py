"""Explanations for `shoal why`, from one of three sources: the running process, its cluster, or the ledger.

The running process knows best, because its scheduler decides. It can be asked if it is on this machine and belongs to
this user. Otherwise, or if it does not reply, the explanation comes from the ledger.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.core.dependencies import TaskStatus
from shoal.core.explain.answer import (
    Answer,
    Cap,
    LastAttempt,
    PlanVerdict,
    RecordedTask,
    ResourceHolder,
    RunAnswer,
    RunRecord,
    Shortage,
    WaitCause,
)
from shoal.core.explain.dependency_chain import FunctionSource
from shoal.core.explain.sentences import SentenceWriter, paragraph, record_lines, run_lines
from shoal.core.graph import Graph, ancestors, topological_order
from shoal.core.quantities import show_seconds
from shoal.core.resources import Resources, without_labels
from shoal.errors import InputError
from shoal.execution.requests import ExplainQuestion, ExplainReply, SilentRunError, ask_why
from shoal.execution.run_options import this_node
from shoal.execution.session import SessionView, why_too_large
from shoal.ledger.history import History
from shoal.ledger.identity import place_of
from shoal.ledger.records import TaskStarted, decodable
from shoal.ledger.status import Follower, RunPhase, RunStatus
from shoal.ledger.up_to_date import Plan, Reason
from shoal.ledger.workspace import Workspace
from shoal.ui.cli.status_tables import damage_line, headline, show_moment, where_it_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shoal.core.graph import Graph


MOST_NAMED = 3
NO_QUEUE = "the ledger does not record the queue"


class RecordedRun:
    """The latest run of a workflow from its ledger, with tasks numbered as in the workflow's graph."""

    def __init__(self, graph: Graph, state: RunStatus, now: float) -> None:
        self._graph, self._state, self._now = graph, state, now
        self._numbers = {text: number for number, text in state.names.items()}

    def number(self, task: int) -> int:
        """The number in the run of a task of the graph; -1 if the task is not part of the run."""
        return self._numbers.get(decodable(self._graph.names[task]), -1)

    def explain(self, task: int) -> Answer:
        needed = ancestors(self._graph, [task])
        statuses: dict[int, TaskStatus] = {}
        for each in topological_order(self._graph):
            if needed[each]:
                statuses[each] = self._find_status(each, statuses)
        running = self._state.running.get(
            self.number(task)
        )  # checked first: a cancelled task counts as failed while it still runs
        if running is not None:
            return running_answer(task, self._state, running)
        source = FunctionSource(self._now, self._graph.predecessors_of, statuses.__getitem__, self._explain_queued)
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
            return TaskStatus.FAILED  # the run was stopped, so nothing is retried
        is_group = self._graph.actions[task] is None
        if number < 0 and not is_group:
            return TaskStatus.DONE  # up to date when the run began, or no target needs it
        needs = [statuses[other] for other in self._graph.predecessors_of(task)]
        if any(status in (TaskStatus.FAILED, TaskStatus.DOOMED) for status in needs):
            return TaskStatus.DOOMED
        if any(status <= TaskStatus.READY for status in needs):
            return TaskStatus.WAITING
        return TaskStatus.DONE if is_group else TaskStatus.READY

    def _explain_queued(self, task: int) -> Answer:
        number = self.number(task)
        if number in self._state.running:
            return running_answer(task, self._state, self._state.running[number])
        if number in self._state.tried:
            return Answer(task, WaitCause.RETRY, self._state.tried[number].attempt)
        return self._explain_wait(task)

    def _explain_wait(self, task: int) -> Answer:
        """Why a ready task is queued: the throttle, or a resource of which too little is free."""
        state, profile = self._state, self._graph.profile_of(task)
        held = state.limiting_decision(profile.category)
        if held is not None:
            running = state.running_of(profile.category) if held.category else state.running_now()
            return Answer(task, WaitCause.THROTTLE, cap=Cap(held.category, held.cap, running, held.reason))
        node = Resources(tuple(state.start.node) if state.start is not None else ())
        holders = self._running_tasks()
        for name, asked in without_labels(profile.resources).amounts:
            if state.throttle and not profile.declares(name):
                continue  # under a throttle, default cores are not counted
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
        """Running tasks that the graph contains, with their start times."""
        since = {self._state.names.get(number): started.time for number, started in self._state.running.items()}
        names = enumerate(map(decodable, self._graph.names))
        return [(task, since[name]) for task, name in names if name in since]


def running_answer(task: int, state: RunStatus, started: TaskStarted) -> Answer:
    where = where_it_runs(state, started)
    detail = where if started.node else f"as {where}"
    return Answer(task, WaitCause.RUNNING, started.attempt, started.time, detail=detail)


def complete(answer: Answer, state: RunStatus, number_of: Callable[[int], int], *, is_behind: bool = False) -> None:
    """Adds what only the ledger knows: the process of a running task, and how attempts ended.

    `is_behind`: the ledger may not contain all failures yet, as for a run on a cluster.
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
            answer.cancelled = True  # the ledger would contain a failure
    elif answer.cause is WaitCause.RETRY and ended is not None:
        answer.detail = ended.message
    if answer.root is not None:
        complete(answer.root, state, number_of, is_behind=is_behind)


def explain_during(
    view: SessionView, task: int, state: RunStatus, now: float, live: Answer | None, *, is_asked_for: bool
) -> Answer:
    """Explains a task while its workflow runs. `live` is the reply of the running process, if there is one."""
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
    """Explains a task while no run is active: its outcome in the latest run, and what the next run would do.

    `node`: resources of this machine; None if the next run may be elsewhere.
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
    """Why `shoal run` would refuse to start: the task, or one it depends on, requests more than this machine has."""
    found = why_too_large(plan, task, node) if node is not None else None
    if found is None:
        return None
    which, error = found
    names = plan.graph.names
    needs = "" if which == task else f"{names[task]!r} cannot run: it depends on {names[which]!r}. "
    return f"{needs}{error.message}, so 'shoal run' refuses it: {error.remedy}"


def run_record(state: RunStatus, phase: RunPhase) -> RunRecord:
    """Counts and selected tasks of the latest run."""
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


class Explained(msgspec.Struct, frozen=True):
    """An explanation as text and as data."""

    text: str
    data: dict[str, Any]


def sentence_writer(name: Callable[[int], str], now: float) -> SentenceWriter:
    return SentenceWriter(name, lambda moment: show_moment(moment, now), show_seconds, now)


def explain_task(wanted: str, path: str, words: list[str], *, by_content: bool) -> Explained:
    """Explains one task."""
    if any("=" not in word for word in words):
        check_words(path, words)
    follower = Follower(Workspace(path))
    phase = follower.refresh()
    return with_damage(_explain_task(wanted, path, words, follower, phase, by_content=by_content), follower)


def check_words(path: str, words: list[str]) -> None:
    """Rejects targets that the workflow does not have, and directories that no task makes."""
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
    """Adds a line about damaged ledger records to the explanation, if there are any."""
    lines = damage_line(follower)
    if not lines:
        return explained
    text = "\n".join([explained.text, *lines])
    return Explained(text, {**explained.data, "text": text, "damaged_bytes": follower.damaged_bytes()})


def _explain_task(
    wanted: str, path: str, words: list[str], follower: Follower, phase: RunPhase, *, by_content: bool
) -> Explained:
    workspace = follower.workspace
    reply, silence = ExplainReply(), ""
    if phase is RunPhase.RUNNING and not on_cluster(workspace):
        reply, silence = _ask(workspace, wanted, follower.state)
        follower.refresh()  # the ledger now contains what the run has just reported
    now = time.time()  # read again: the request may have waited for its timeout
    state, answer = follower.state, reply.answer
    if answer is not None:
        complete(answer, state, lambda task: task)
        if not _needs_ledger(answer, state):
            return explained_task(answer, reply.names, now)
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
    """Resources of this machine with the amounts declared for the latest run; None if that run was on a cluster."""
    if state.is_cluster() or on_cluster(workspace):
        return None
    found = dict(this_node(workspace.base).amounts)
    for name, amount in state.start.node if state.start is not None else ():
        found[name] = max(amount, found.get(name, 0))
    return Resources.of(found)


def explain_whole(path: str, words: list[str]) -> Explained:
    """Explains the state of the whole run."""
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
        reply, silence = _ask(workspace, None, state)
        now = time.time()  # read again: the request may have waited for its timeout
        if reply.whole is not None:
            follower.refresh()
            reply.whole.cancelled = max(0, reply.whole.failed - len(follower.state.failed))
            return _explained_run(reply.whole, reply.names, now)
    if phase is RunPhase.NEVER:
        from shoal.execution.run_selection import refuse_unreadable  # numpy takes a while to load

        refuse_unreadable(path, workspace.ledger)
        raise InputError(f"{os.path.basename(path)} has not been run yet", remedy="'shoal plan' shows what would run")
    record = run_record(follower.state, phase)
    first = headline(os.path.basename(path), follower, phase, now)
    return _explained(
        "run", [first, *record_lines(record, sentence_writer(str, now))], now, msgspec.to_builtins(record), silence
    )


def on_cluster(workspace: Workspace) -> bool:
    """Whether the run is on a cluster and its results have not been fetched yet."""
    return os.path.exists(workspace.submission_note)


def _ask(workspace: Workspace, wanted: str | None, state: RunStatus) -> tuple[ExplainReply, str]:
    """Returns the reply of the running process, and a sentence if it does not reply; neither if it cannot be asked."""
    since = {task: record.time for task, record in state.running.items()}
    try:
        return ask_why(workspace, ExplainQuestion(wanted, since)), ""
    except SilentRunError as error:
        return ExplainReply(), error.message
    except InputError:
        return ExplainReply(), ""


def _needs_ledger(answer: Answer, state: RunStatus) -> bool:
    """Whether the ledger adds details: the process does not keep how and when a task ended."""
    return answer.cause in (WaitCause.DONE, WaitCause.EXCLUDED) or (
        answer.cause is WaitCause.FAILED and answer.task in state.failed
    )


# ---- runs on a cluster -----------------------------------------------------------------------------------------------


def explain_on_cluster(workspace: Workspace, graph: Graph, task: int, state: RunStatus, now: float) -> Explained | None:
    """Explains one task of a run on a cluster; None if the cluster does not have it."""
    from shoal.ui.cli.parser import need_cluster_libraries

    need_cluster_libraries()
    from shoal.cluster.explain_client import explain_submitted
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

    answer = explain_submitted(note, graph, task, now, seconds)
    if answer is None:
        return None
    complete(answer, state, RecordedRun(graph, state, now).number, is_behind=True)
    names = {each: graph.names[each] if each >= 0 else f"task {-1 - each}" for each in answer.mentions()}
    return explained_task(answer, names, now)


def explain_run_on_cluster(workspace: Workspace, graph: Graph, state: RunStatus, now: float) -> Explained | None:
    """Explains the state of a run on a cluster; None if no cluster has it."""
    from shoal.ui.cli.parser import need_cluster_libraries

    need_cluster_libraries()
    from shoal.cluster.explain_client import explain_submitted_run
    from shoal.ledger.cluster_notes import read_note

    note = read_note(workspace)
    if note is None:
        return None
    groups = {place_of(graph, task) for task in range(len(graph)) if graph.actions[task] is None}
    found = explain_submitted_run(note, groups)
    if found is None:
        return None
    whole, places = found
    if (
        len(state.failed) + len(state.unwanted) >= whole.failed
    ):  # otherwise the ledger does not contain all failures yet
        whole.cancelled = max(0, whole.failed - len(state.failed))
    wanted = {place: number for number, place in places.items()}
    names = {
        wanted[place]: graph.names[task] for task in range(len(graph)) if (place := place_of(graph, task)) in wanted
    }
    return _explained_run(whole, names, now)


# ---- answers as text and as data -------------------------------------------------------------------------------------


def explained_task(answer: Answer, names: Mapping[int, str], now: float, silence: str = "") -> Explained:
    text = paragraph(answer, sentence_writer(names.__getitem__, now))
    data = {"name": names[answer.task], "names": _named(names), **msgspec.to_builtins(answer)}
    return _explained("task", [text], now, data, silence)


def _explained_run(whole: RunAnswer, names: Mapping[int, str], now: float) -> Explained:
    lines = run_lines(whole, sentence_writer(lambda task: names.get(task, f"task {task}"), now))
    return _explained("run", lines, now, {"names": _named(names), **msgspec.to_builtins(whole)})


def _explained(about: str, lines: list[str], now: float, facts: dict[str, Any], silence: str = "") -> Explained:
    """`silence`: the sentence that the run does not reply, so that the facts come from the ledger."""
    text = "\n".join(lines)
    if silence:
        text, facts = f"{silence}; its ledger says: {text}", {**facts, "silent": silence}
    return Explained(text, {"about": about, "time": now, "text": text, **facts})


def _named(names: Mapping[int, str]) -> dict[str, str]:
    return {str(task): name for task, name in names.items()}
