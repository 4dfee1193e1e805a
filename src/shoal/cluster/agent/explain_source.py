"""Explains why tasks of a run do not run, from the agent's own share of the run and from the store.

`shoal.core.explain` finds the reasons; this module supplies the facts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from shoal.cluster.agent.messages import RunExplainReply, TaskReply, TaskStatesReply
from shoal.cluster.agent.run_description import decode_about
from shoal.core.dependencies import TaskStatus
from shoal.core.explain.answer import Answer, RunAnswer, WaitCause, WaitingGroup
from shoal.core.explain.store_source import explain_in_member, explain_placed, explain_stranded, whole_member

if TYPE_CHECKING:
    from shoal.cluster.agent.run_share import RunShare
    from shoal.core.store.directory import NodeInfo, RunInfo
    from shoal.core.store.interface import Store

MOST_STANDINGS = 5_000
"""Maximum number of tasks in one request for states."""
LASTING_SECONDS = 1.0
MOST_LASTING = 256
"""Maximum number of attempts that a node lists as running for at least `LASTING_SECONDS`."""
TOO_LATE = "this node is released before the task could end"


class ExplainCache:
    """Start times of the share's tasks, as reported by the launcher; short tasks end before the report."""

    def __init__(self) -> None:
        self._moments: dict[int, float] = {}
        self._attempts: dict[int, int] = {}

    def hear(self, rows: Iterable[tuple[Any, ...]], running: Mapping[int, Any]) -> None:
        """Takes reports of the launcher; drops tasks that no longer run now and then."""
        for row in rows:
            if row[0] == "running":
                task, attempt, moment = row[1:4]
                self._moments[task], self._attempts[task] = moment, attempt
        if len(self._moments) > 2 * len(running) + 64:
            self._moments = self.of(running)
            self._attempts = {task: self._attempts[task] for task in self._moments}

    def of(self, running: Mapping[int, Any]) -> dict[int, float]:
        return {task: moment for task, moment in self._moments.items() if task in running}

    def lasting(self, attempts: Mapping[int, int], now: float) -> list[tuple[int, int, float]]:
        """Returns task, attempt and age of long attempts, the oldest first; `attempts` are the running ones. A task
        that has come back may be queued while the launcher has reported only its earlier attempt."""
        known = ((moment, task) for task, moment in self.of(attempts).items() if attempts[task] == self._attempts[task])
        oldest = sorted((moment, task) for moment, task in known if now - moment >= LASTING_SECONDS)
        return [(task, attempts[task], round(now - moment, 3)) for moment, task in oldest[:MOST_LASTING]]


def why_in_share(share: RunShare, task: int, *, foresees: bool = True) -> Answer:
    """Explains a task of this node."""
    if task in share.unplaceable:
        return _why_unplaceable(share, task)
    answer = explain_in_member(
        share.scheduler,
        task,
        share.clock(),
        since=share.since.of(share.scheduler.broker.running),
        reasons=share.node_throttle.throttling.controller.reasons(),
        is_coming=_coming(share),
        foresees=foresees,
    )
    if answer.cause is WaitCause.STOPPING and not share.ending.leaving:
        answer.detail = TOO_LATE
    return answer


def _coming(share: RunShare) -> Callable[[int], bool]:
    return share.task_files.is_coming if share.task_files is not None else lambda task: False


def _why_unplaceable(share: RunShare, task: int) -> Answer:
    request = share.work.profiles[share.work.category[task]].resources
    return explain_stranded(task, request, [node.capacity() for node in share.nodes.values()])


def whole_share(share: RunShare, name: str) -> RunAnswer:
    """Explains the tasks that run and wait here, and those that no node can run and this one keeps."""
    whole = whole_member(share.scheduler, lambda task: why_in_share(share, task, foresees=False), _coming(share))
    whole.groups += _unplaceable_groups(share)
    if share.idle.told:
        whole.notes.append(share.idle.told)
    for group in whole.groups:
        group.example.node = name
    return whole


def _unplaceable_groups(share: RunShare) -> list[WaitingGroup]:
    """Groups the tasks that no node can run by category: those of one category lack the same resources."""
    unplaceable, work = share.unplaceable, share.work
    found: dict[int, WaitingGroup] = {}
    for task in islice((task for task in range(len(work)) if task in unplaceable), len(unplaceable)):
        group = found.get(work.category[task])
        if group is None:
            example = _why_unplaceable(share, task)
            group = found[work.category[task]] = WaitingGroup(example.cause, 0, example)
        group.count += 1
    return list(found.values())


def explain_from_store(
    store: Store, info: RunInfo, nodes: Mapping[int, NodeInfo], task: int, here: Answer | None, first: str
) -> TaskReply:
    """Explains any task of a run; `here` is the explanation of this agent's share, if it has the task.

    `first`: the name of another run that is served before this one, if there is one.
    """
    if not 0 <= task < decode_about(info.about).tasks:
        return TaskReply(problem="the run has no such task")
    standing, _, owner = store.whereabouts(task)
    status = int(standing)
    if status != TaskStatus.READY:
        return TaskReply(status)
    if here is not None:
        return TaskReply(status, here)
    if first and nodes:
        return TaskReply(status, Answer(task, WaitCause.ANOTHER_RUN, detail=first))
    elsewhere: list[str] = []

    def ask(node: int, _: int) -> Answer | None:
        elsewhere.append(nodes[node].address)
        return None

    answer = explain_placed(task, owner, {number: node.name for number, node in nodes.items()}, ask)
    return TaskReply(status, answer, elsewhere[0] if elsewhere else "")


def standings(store: Store, tasks: list[int]) -> TaskStatesReply:
    """Returns the states of tasks, one byte each."""
    return TaskStatesReply(bytes(int(store.whereabouts(task)[0]) for task in tasks[:MOST_STANDINGS]))


def served_first(runs: Iterable[RunInfo], run: str) -> str:
    """Returns the name of the run that is served before this one; empty if this run is served or has ended."""
    going = [each for each in runs if each.state != "ended"]
    if not going or going[0].run == run or all(each.run != run for each in going):
        return ""
    return decode_about(going[0].about).name


def whole_run(store: Store, here: Callable[[], RunAnswer | None], gone: list[int], first: str) -> RunExplainReply:
    """Explains a whole run, from the store and from this agent's share."""
    standings = store.standings()
    said = here() or RunAnswer()
    said.ready = max(0, standings.count(TaskStatus.READY) - said.running)
    said.waiting = standings.count(TaskStatus.WAITING)
    said.done = standings.count(TaskStatus.DONE)
    said.failed = standings.count(TaskStatus.FAILED)
    said.doomed = standings.count(TaskStatus.DOOMED)
    return RunExplainReply(said, gone, first)
