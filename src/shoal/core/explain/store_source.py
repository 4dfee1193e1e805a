"""Explanations for a run on several nodes: the store knows the status of a task, its node knows the reason.

The caller provides the function that asks a node, and a node may not answer. The caller adds what only a batch system
knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from shoal.core.explain.answer import Answer, Kind, RunAnswer, Shortage, WaitCause, WaitingGroup
from shoal.core.explain.dependency_chain import FunctionSource, bundles
from shoal.core.explain.scheduler_source import among_others, explain_held, groups_of
from shoal.core.peer_scheduler import PeerScheduler
from shoal.core.resources import Resources, required_labels, unmet
from shoal.core.store.interface import NOBODY

MOST_ASKED = 64
"""Maximum number of nodes asked about their tasks; in a larger cluster the others are similar."""
ON_THEIR_WAY = "or its result is being recorded"


class SilentError(Exception):
    """A node does not answer."""


class StoreAwayError(Exception):
    """The cluster answers, but its store does not; the message contains the reason."""


# ---- answers of one node -------------------------------------------------------------------------------------------


def explain_in_member(
    member: PeerScheduler,
    task: int,
    now: float,
    *,
    since: Mapping[int, float],
    reasons: Mapping[str, str] | None = None,
    is_coming: Callable[[int], bool] = lambda task: False,
    foresees: bool = True,
) -> Answer:
    """Explains a task that a node has; `is_coming`: whether its input files are being fetched."""
    scheduler = member.broker
    if is_coming(task):
        return Answer(task, WaitCause.FETCHING, scheduler.attempt.get(task, 0))
    if task not in scheduler.state:
        return Answer(task, WaitCause.RECORDING)
    return among_others(
        member, explain_held(scheduler, task, now, since=since, reasons=reasons or {}, foresees=foresees)
    )


def explain_stranded(task: int, request: Resources, nodes: Iterable[Resources]) -> Answer:
    """Explains a task that no node can run: which resources or labels all nodes lack."""
    everyone = list(nodes)
    reason = unmet(request, everyone)
    if reason is None:
        return Answer(task, WaitCause.ARRIVING, detail="a node that can run it has just joined")
    reason += "; it waits for one"
    for label in required_labels(request):
        if not any(node.get(label) for node in everyone):
            return Answer(task, WaitCause.LABEL, shortage=Shortage(label, 1, 0, 0), detail=reason)
    return Answer(task, WaitCause.TOO_LARGE, detail=reason)


def whole_member(
    member: PeerScheduler, explain_one: Callable[[int], Answer], is_coming: Callable[[int], bool] = lambda task: False
) -> RunAnswer:
    """Explains the tasks that run and wait on a node."""
    scheduler = member.broker
    under_way = bundles(scheduler)
    fetching = [task for task in under_way if is_coming(task)]
    groups = groups_of(scheduler, explain_one, lambda task: (task in member.tiers.local, is_coming(task)))
    if fetching:
        groups.append(WaitingGroup(WaitCause.FETCHING, len(fetching), explain_one(fetching[0])))
    return RunAnswer(running=len(under_way) - len(fetching), groups=groups)


# ---- which node has a task -----------------------------------------------------------------------------------------


def explain_placed(task: int, owner: int, nodes: Mapping[int, str], ask: Callable[[int, int], Answer | None]) -> Answer:
    """Explains a ready task that the store assigns to node `owner`; `ask(node, task)` is None if the node does not have
    it."""
    if not nodes:
        return Answer(task, WaitCause.NO_NODE)
    if owner == NOBODY:
        return Answer(task, WaitCause.ARRIVING)
    if owner not in nodes:
        return Answer(task, WaitCause.NODE_LOST)
    try:
        answer = ask(owner, task)
    except SilentError:
        return Answer(task, WaitCause.NODE_SILENT, node=nodes[owner])
    if answer is None:
        return Answer(task, WaitCause.ARRIVING, node=nodes[owner])
    answer.node = nodes[owner]
    return answer


class ClusterSource(FunctionSource):
    """Facts about a run on several nodes; statuses may be fetched one by one, or be missing."""

    def explain(self, task: int) -> Answer:
        try:
            return super().explain(task)
        except StoreAwayError as error:
            return Answer(task, WaitCause.STORE, detail=str(error))


# ---- a whole run -----------------------------------------------------------------------------------------------------


def whole_cluster(
    recorded: RunAnswer, nodes: Mapping[int, str], ask: Callable[[int], RunAnswer | None], first: str = ""
) -> RunAnswer:
    """Why a run is in its state. `recorded` counts running tasks as ready; `ask(node)` is None if the node has no task.

    `first`: name of another run that is served before this one. Groups of the same kind are added up, and a task of one
    node represents them.
    """
    whole = RunAnswer(
        ready=recorded.ready,
        waiting=recorded.waiting,
        done=recorded.done,
        failed=recorded.failed,
        doomed=recorded.doomed,
    )
    groups: dict[Kind, WaitingGroup] = {}
    silent: list[str] = []
    for node in list(nodes)[:MOST_ASKED]:
        try:
            report = ask(node) or RunAnswer()
        except SilentError:
            silent.append(nodes[node])
            whole.notes.append(f"node {nodes[node]} does not answer: its running tasks are not known")
            continue
        whole.running += report.running
        whole.notes += report.notes
        for group in report.groups:
            group.example.node = nodes[node]
            found = groups.setdefault(group.example.kind(), WaitingGroup(group.cause, 0, group.example))
            found.count += group.count
            found.nodes += 1
    whole.groups = sorted(groups.values(), key=lambda group: -group.count)
    whole.ready = max(0, whole.ready - whole.running)
    unexplained = whole.ready - sum(group.count for group in whole.groups)
    if len(nodes) > MOST_ASKED:
        rest = "tasks on the others are not counted"
        whole.notes.append(f"{MOST_ASKED} of {len(nodes)} nodes were asked; {rest}")
    elif unexplained > 0:
        whole.groups.append(_unexplained(unexplained, nodes, silent, first))
    return whole


def _unexplained(count: int, nodes: Mapping[int, str], silent: list[str], first: str) -> WaitingGroup:
    """Ready tasks that no node has reported; their numbers are unknown."""
    if not nodes:
        example = Answer(-1, WaitCause.NO_NODE)
    elif silent:
        node = silent[0] if len(silent) == 1 else ""
        example = Answer(-1, WaitCause.NODE_SILENT, node=node)
    elif first:
        example = Answer(-1, WaitCause.ANOTHER_RUN, detail=first)
    else:
        example = Answer(-1, WaitCause.ARRIVING, detail=ON_THEIR_WAY)
    return WaitingGroup(example.cause, count, example)
