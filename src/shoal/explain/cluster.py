"""A run on several nodes as a source of answers: what the store says of a task, and what the node says that has it.

The caller says how a node is asked; it may not answer. What only a batch system knows is put in by whoever asks it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from shoal.broker.member import Member
from shoal.explain.answer import Answer, Cause, Group, Kind, RunAnswer, Shortage
from shoal.explain.chain import MOST_ANCESTORS, explain
from shoal.explain.held import among_others, explain_held, groups_of
from shoal.explain.outlook import bundles
from shoal.flow.dag import Status
from shoal.model.labels import required_labels, unmet
from shoal.model.resources import Resources
from shoal.store.base import NOBODY

MOST_ASKED = 64
"""Nodes that are asked what waits there; they are alike in a larger cluster."""
ON_THEIR_WAY = "or its result is being recorded"


class SilentError(Exception):
    """A node does not answer."""


class StoreAwayError(Exception):
    """The cluster answers, but cannot look into its books; says why."""


# ---- what one node says ----------------------------------------------------------------------------------------------


def explain_in_member(
    member: Member,
    task: int,
    now: float,
    *,
    since: Mapping[int, float],
    reasons: Mapping[str, str] | None = None,
    is_coming: Callable[[int], bool] = lambda task: False,
    foresees: bool = True,
) -> Answer:
    """Of a task that a node has; `is_coming`: whether what it reads is being fetched."""
    broker = member.broker
    if is_coming(task):
        return Answer(task, Cause.FETCHING, broker.attempt.get(task, 0))
    if task not in broker.state:
        return Answer(task, Cause.RECORDING)
    return among_others(member, explain_held(broker, task, now, since=since, reasons=reasons or {}, foresees=foresees))


def explain_stranded(task: int, request: Resources, nodes: Iterable[Resources]) -> Answer:
    """Of a task that waits for a node that can run it: what none of these has."""
    everyone = list(nodes)
    reason = unmet(request, everyone)
    if reason is None:
        return Answer(task, Cause.ARRIVING, detail="a node that can run it has just joined")
    reason += "; it waits for one"
    for label in required_labels(request):
        if not any(node.get(label) for node in everyone):
            return Answer(task, Cause.LABEL, shortage=Shortage(label, 1, 0, 0), detail=reason)
    return Answer(task, Cause.TOO_LARGE, detail=reason)


def whole_member(
    member: Member, explain_one: Callable[[int], Answer], is_coming: Callable[[int], bool] = lambda task: False
) -> RunAnswer:
    """What runs and waits on a node, and for what."""
    broker = member.broker
    under_way = bundles(broker)
    fetching = [task for task in under_way if is_coming(task)]
    groups = groups_of(broker, explain_one, lambda task: (task in member.tiers.local, is_coming(task)))
    if fetching:
        groups.append(Group(Cause.FETCHING, len(fetching), explain_one(fetching[0])))
    return RunAnswer(running=len(under_way) - len(fetching), groups=groups)


# ---- who has a task --------------------------------------------------------------------------------------------------


def explain_placed(task: int, owner: int, nodes: Mapping[int, str], ask: Callable[[int, int], Answer | None]) -> Answer:
    """Why a ready task is where it is, which the books say is with `owner`; `ask(node, task)` is None if it is not."""
    if not nodes:
        return Answer(task, Cause.NO_NODE)
    if owner == NOBODY:
        return Answer(task, Cause.ARRIVING)
    if owner not in nodes:
        return Answer(task, Cause.NODE_LOST)
    try:
        answer = ask(owner, task)
    except SilentError:
        return Answer(task, Cause.NODE_SILENT, node=nodes[owner])
    if answer is None:
        return Answer(task, Cause.ARRIVING, node=nodes[owner])
    answer.node = nodes[owner]
    return answer


class OnCluster:
    """What is known of a run at one moment; statuses may be fetched one after another, or not at all."""

    def __init__(
        self,
        now: float,
        needs: Callable[[int], Iterable[int]],
        status: Callable[[int], Status],
        held: Callable[[int], Answer],
        seconds: Callable[[int], float | None] = lambda task: None,
        share: Callable[[int], float | None] = lambda task: 1.0,
        horizon: int = MOST_ANCESTORS,
    ) -> None:
        """`share`: which part of all nodes a task takes; a number of its own for each, since they ask for different
        things."""
        self.now, self.horizon = now, horizon
        self.needs, self.status, self.held, self.seconds, self.share = needs, status, held, seconds, share
        self.stopping: str | None = None  # a node may start nothing more, and others do

    def running_since(self, task: int) -> float | None:
        """Only the node that has it knows; of the one at the end of the chain it is asked."""
        return None

    def may_start(self, task: int) -> float | None:
        """The same: as far as is known here it may start now."""
        return self.now

    def explain(self, task: int) -> Answer:
        try:
            return explain(self, task)
        except StoreAwayError as error:
            return Answer(task, Cause.STORE, detail=str(error))


# ---- a whole run -----------------------------------------------------------------------------------------------------


def whole_cluster(
    books: RunAnswer, nodes: Mapping[int, str], ask: Callable[[int], RunAnswer | None], first: str = ""
) -> RunAnswer:
    """Why a run is where it is. `books` counts what is ready or runs as ready; `ask(node)` is None if it has nothing.

    `first`: the name of another run that is served before this one. Numbers of causes are added up, and one node's task
    stands for them.
    """
    whole = RunAnswer(
        ready=books.ready, waiting=books.waiting, done=books.done, failed=books.failed, doomed=books.doomed
    )
    groups: dict[Kind, Group] = {}
    silent: list[str] = []
    for node in list(nodes)[:MOST_ASKED]:
        try:
            said = ask(node) or RunAnswer()
        except SilentError:
            silent.append(nodes[node])
            whole.notes.append(f"node {nodes[node]} does not answer: its running tasks are not known")
            continue
        whole.running += said.running
        whole.notes += said.notes
        for group in said.groups:
            group.example.node = nodes[node]
            found = groups.setdefault(group.example.kind(), Group(group.cause, 0, group.example))
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


def _unexplained(count: int, nodes: Mapping[int, str], silent: list[str], first: str) -> Group:
    """Tasks that are ready and that no node has spoken of; none of them has a name here."""
    if not nodes:
        example = Answer(-1, Cause.NO_NODE)
    elif silent:
        node = silent[0] if len(silent) == 1 else ""
        example = Answer(-1, Cause.NODE_SILENT, node=node)
    elif first:
        example = Answer(-1, Cause.ANOTHER_RUN, detail=first)
    else:
        example = Answer(-1, Cause.ARRIVING, detail=ON_THEIR_WAY)
    return Group(example.cause, count, example)
