"""Client side of `shoal why` on a cluster: asks the store, the node and the batch system why tasks do not run.

Any agent reads the state of a task from the store. The node that holds a ready task knows why it does not run. Which
requested nodes are missing is known only on the machine where the cluster was started.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache

from shoal.cluster.agent.messages import (
    NO_RUN,
    ClusterReply,
    RefusedReply,
    RunExplainReply,
    RunExplainRequest,
    TaskReply,
    TaskRequest,
    TaskStatesReply,
    TaskStatesRequest,
    WireMessage,
    make_codec,
)
from shoal.cluster.home import ClusterHome
from shoal.cluster.lifecycle import absent, factory_state
from shoal.cluster.messaging.access import Access, access_path, read
from shoal.cluster.messaging.caller import Caller
from shoal.cluster.nodes.groups import read_cluster
from shoal.cluster.stores.redis import RedisLink, key_of
from shoal.core.dependencies import TaskStatus
from shoal.core.explain.answer import Answer, RunAnswer, WaitCause
from shoal.core.explain.store_source import ClusterSource, SilentError, StoreAwayError, whole_cluster
from shoal.core.graph import Graph
from shoal.core.resources import Resources
from shoal.errors import InputError, ShoalError
from shoal.ledger.cluster_notes import SubmissionNote
from shoal.ledger.identity import place_of

AGENT_PATIENCE = 10.0
"""Seconds to wait for a reply of any agent; one that handles the files of a large task replies late."""
NODE_PATIENCE = 3.0
"""Seconds to wait for a reply of one particular node."""
_AT_ONCE = 500
HORIZON = 2_000
"""Maximum number of unfinished ancestors that are read to estimate when a task starts."""


class ForgottenError(Exception):
    """The cluster no longer has the run: only the ledger knows it."""


_AWAY = ("the store has not replied", "no Redis server replies", "the Redis server")
"""Prefixes of error messages about a store that does not reply."""


class ClusterExplainClient:
    """Requests about one run."""

    def __init__(self, note: SubmissionNote, caller: Caller[WireMessage], access: Access) -> None:
        self._note, self._caller, self._access = note, caller, access

    def ask(self, question: WireMessage) -> WireMessage:
        try:
            answer = self._caller.ask(question, AGENT_PATIENCE)
        except InputError:
            self._look_for_store()
            raise
        if isinstance(answer, RefusedReply):
            if answer.why == NO_RUN:
                raise ForgottenError
            if answer.why.startswith(_AWAY):
                raise StoreAwayError(answer.why)
            raise InputError(f"the cluster refuses: {answer.why}")
        return answer

    def _look_for_store(self) -> None:
        """An agent that does not reply may itself wait for the store: tries the store if the access file names it."""
        if self._access.store is None:
            return
        try:
            RedisLink(self._access.store.split(","), key_of(self._access.name, "why"), patience=NODE_PATIENCE).close()
        except InputError as error:
            raise StoreAwayError(error.message) from None

    def statuses(self, tasks: list[int]) -> dict[int, TaskStatus]:
        """Returns the states of tasks."""
        found: dict[int, TaskStatus] = {}
        for at in range(0, len(tasks), _AT_ONCE):
            some = tasks[at : at + _AT_ONCE]
            answer = self.ask(TaskStatesRequest(self._note.run, some))
            assert isinstance(answer, TaskStatesReply)
            found.update(zip(some, map(TaskStatus, answer.statuses), strict=True))
        return found

    def held(self, task: int) -> Answer:
        """Returns why a ready task does not run."""
        question = TaskRequest(self._note.run, task)
        answer = self.ask(question)
        assert isinstance(answer, TaskReply)
        if answer.problem:
            raise InputError(answer.problem)
        if answer.address:
            known = answer.answer
            try:
                answer = self.ask_node(answer.address, question)
            except InputError as error:
                node = known.node if known is not None else ""
                return Answer(task, WaitCause.NODE_SILENT, node=node, detail=error.message)
            if not isinstance(answer, TaskReply) or answer.answer is None:
                return known or Answer(task, WaitCause.ARRIVING)
        return answer.answer or Answer(task, WaitCause.ARRIVING)

    def whole(self) -> tuple[RunExplainReply, ClusterReply]:
        """Returns what the store and one agent know of the run, and the current nodes without lost ones."""
        said = self.ask(RunExplainRequest(self._note.run))
        assert isinstance(said, RunExplainReply)
        found = read_cluster(self._caller)
        for number in said.gone:
            found.nodes.pop(number, None)
        return said, found

    def capacities(self) -> list[Resources]:
        """Returns the resources of each current node."""
        return [node.capacity() for node in self.whole()[1].nodes.values()]

    def ask_node(self, address: str, question: WireMessage) -> WireMessage:
        """Sends a request to one particular node."""
        with Caller(self._access.at([address]), make_codec(), patience=NODE_PATIENCE) as caller:
            return caller.ask(question, NODE_PATIENCE)


def explain_submitted(
    note: SubmissionNote, graph: Graph, task: int, now: float, seconds: Callable[[int], float | None]
) -> Answer | None:
    """Explains a task of the graph, in the graph's numbers; None if the cluster does not have it.

    `seconds`: the expected duration of a task.
    """
    place_at = {place: at for at, place in enumerate(note.places)}
    numbers = [place_at.get(place_of(graph, each), -1) for each in range(len(graph))]
    if numbers[task] < 0:
        return None
    access = read(access_path(note.cluster))
    with Caller(access, make_codec()) as caller:
        questions = ClusterExplainClient(note, caller, access)
        known: dict[int, TaskStatus] = {}

        def status(each: int) -> TaskStatus:
            return statuses_of([each])[each]

        def statuses_of(tasks: Iterable[int]) -> Mapping[int, TaskStatus]:
            unknown = {numbers[each]: each for each in tasks if each not in known}
            told = questions.statuses([number for number in unknown if number >= 0])
            known.update((unknown[number], found) for number, found in told.items())
            if -1 in unknown:
                known[unknown[-1]] = TaskStatus.DONE  # it was up to date before the run began
            return known

        def needs(each: int) -> list[int]:
            found = [other for other in dict.fromkeys(graph.predecessors_of(each)) if numbers[other] >= 0]
            statuses_of(found)
            return found

        def held(each: int) -> Answer:
            answer = _renumbered(questions.held(numbers[each]), numbers)
            if answer.cause in (WaitCause.NO_NODE, WaitCause.TOO_LARGE, WaitCause.LABEL):
                answer.detail = "; ".join(
                    filter(None, [answer.detail, *missing_nodes(note.cluster, questions.whole()[1])])
                )
            return answer

        try:
            share = share_of(graph, questions.capacities)
            return ClusterSource(now, needs, status, held, seconds, share, HORIZON).explain(task)
        except ForgottenError:
            return None


def share_of(graph: Graph, ask: Callable[[], list[Resources]]) -> Callable[[int], float | None]:
    """Returns the fraction of all resources that a task takes; None if no node can run it. `ask`: the resources of each
    node."""
    nodes = cache(ask)

    @cache
    def share_of_profile(profile: int) -> float | None:
        asked = graph.profiles[profile].resources.amounts
        if not asked:
            return 0.0
        places = sum(min(node.get(name) // amount for name, amount in asked) for node in nodes())
        return 1 / places if places else None

    return lambda task: share_of_profile(graph.profile[task])


def _renumbered(answer: Answer, numbers: list[int]) -> Answer:
    """Translates an answer from the numbers of the run to those of the graph."""
    mentioned = set(answer.mentions())
    back = {number: task for task, number in enumerate(numbers) if number in mentioned}
    answer.task = back[answer.task]
    if answer.first is not None:
        answer.first = back.get(answer.first)
    if answer.shortage is not None:
        for holder in answer.shortage.holders:  # a task that the workflow no longer has gets a number below 0
            holder.task = back.get(holder.task, -1 - holder.task)
    return answer


def explain_submitted_run(
    note: SubmissionNote, groups: Collection[bytes] = ()
) -> tuple[RunAnswer, dict[int, bytes]] | None:
    """Explains a whole run; also returns the keys of the tasks in the answer, by their numbers in the run.

    Returns None if the cluster no longer has the run. `groups`: keys of tasks without a command, which only the store
    counts.
    """
    access = read(access_path(note.cluster))
    with Caller(access, make_codec()) as caller:
        questions = ClusterExplainClient(note, caller, access)
        try:
            said, found = questions.whole()
            standings = questions.statuses([number for number, place in enumerate(note.places) if place in groups])
        except StoreAwayError as error:
            return RunAnswer(notes=[f"the cluster's store does not reply: {error}"]), {}
        except ForgottenError:
            return None
        books = said.whole
        books.ready += books.running
        for status in standings.values():
            books.waiting -= status is TaskStatus.WAITING
            books.done -= status is TaskStatus.DONE
            books.doomed -= status is TaskStatus.DOOMED
        names = {number: node.name for number, node in found.nodes.items()}

        def ask(number: int) -> RunAnswer | None:
            try:
                answer = questions.ask_node(found.nodes[number].address, RunExplainRequest(note.run))
            except InputError:
                raise SilentError from None
            return answer.whole if isinstance(answer, RunExplainReply) else None

        whole = whole_cluster(books, names, ask, said.first)
        whole.notes += missing_nodes(note.cluster, found)
    mentioned = {task for group in whole.groups for task in group.example.mentions()}
    return whole, {task: note.places[task] for task in sorted(mentioned) if 0 <= task < len(note.places)}


def missing_nodes(cluster: str, found: ClusterReply) -> list[str]:
    """Returns sentences about requested nodes that are missing, with their state in the batch system."""
    if access_path(cluster) == cluster:
        return []  # another user has started the cluster
    home = ClusterHome(cluster)
    try:
        started = home.read_started()
        missing = absent(home, started, found)
    except ShoalError as error:
        return [f"the started nodes are not known: {error}"]
    lines = []
    for group in started.groups:
        reasons: dict[str, int] = {}
        for _, standing in missing[group.name]:
            what = standing.phase.value
            if standing.reason and standing.reason != what:
                what += f": {standing.reason}"
            reasons[what] = reasons.get(what, 0) + 1
        for what, count in reasons.items():
            nodes = "1 requested node" if count == 1 else f"{count} requested nodes"
            lines.append(f"{nodes} of group {group.name!r}: {what}")
        factory = factory_state(home, started, group)
        if factory:
            lines.append(factory)
    return lines
