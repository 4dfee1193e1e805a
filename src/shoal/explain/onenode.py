"""A run with one scheduler as a source of answers: live in the engine, and in the simulator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from shoal.broker.broker import Broker
from shoal.broker.states import State
from shoal.explain.answer import Answer, Cause, Group, RunAnswer
from shoal.explain.chain import MOST_ANCESTORS, explain
from shoal.explain.held import explain_held, groups_of
from shoal.explain.outlook import bundles, expected_starts, queued_in_order
from shoal.flow.dag import Status
from shoal.model.graph import Graph
from shoal.policy.contract import UNLIMITED


class OneNode:
    """The state of graph and scheduler at one moment."""

    horizon = MOST_ANCESTORS

    def __init__(
        self,
        graph: Graph,
        statuses: Sequence[int],
        broker: Broker,
        now: float,
        unbegun: Mapping[int, int] | None = None,
        *,
        since: Mapping[int, float] | None = None,
        reasons: Mapping[str, str] | None = None,
        order: str = "",
        stopping: str = "",
    ) -> None:
        """`unbegun`: how many numbered attempts of a task were handed back before they began; `since`: when running
        tasks were started; `reasons`: a sentence for each cap; `stopping`: why nothing more is started, if so."""
        self.now = now
        self._graph, self._statuses, self._broker = graph, statuses, broker
        self._unbegun, self._since, self._reasons = unbegun or {}, since or {}, reasons or {}
        self._order, self._stopping = order, stopping
        self._turns: dict[int, float] | None = None

    def status(self, task: int) -> Status:
        return Status(self._statuses[task])

    def needs(self, task: int) -> Iterable[int]:
        return self._graph.predecessors_of(task)

    def held(self, task: int, *, foresees: bool = True) -> Answer:
        answer = explain_held(self._broker, task, self.now, since=self._since, reasons=self._reasons, foresees=foresees)
        answer.attempt -= self._unbegun.get(task, 0)
        answer.order = self._order if answer.cause is Cause.RESOURCES else ""
        if answer.cause is Cause.STOPPING:
            answer.detail = self._stopping
        return answer

    def seconds(self, task: int) -> float | None:
        if self._graph.actions[task] is None:
            return 0.0
        return self._broker.lanes[self._broker.columns.lane[task]].mean_duration

    def running_since(self, task: int) -> float | None:
        return self._since.get(task, self.now) if task in self._broker.running else None

    def may_start(self, task: int) -> float | None:
        """By its place in the queue; the whole queue is examined once."""
        if self._broker.state.get(task) not in (State.QUEUED, State.RESTING):
            return self.now
        if self._turns is None:
            self._turns = self._all_turns()
        return self._turns.get(task)

    def _all_turns(self) -> dict[int, float]:
        broker, now = self._broker, self.now
        order = queued_in_order(broker)
        if order is None:  # too many to simulate: an estimate that is too early is better than none
            found = dict.fromkeys(broker.queue.waiting(), now)
        else:
            found = expected_starts(broker, order, now, self._since)
        for when, task in broker.resting:
            if broker.state.get(task) is State.RESTING:
                found[task] = max(now, min(when, found.get(task, when)))
        return found

    def share(self, task: int) -> float | None:
        """By how many such tasks the node can hold, however few run at the moment."""
        if self._graph.actions[task] is None:
            return 0.0
        contract, lane = self._broker.contract, self._broker.columns.lane[task]
        places = contract.places(lane)
        if places >= UNLIMITED:  # a throttle has not measured yet how many
            places = contract.whole_cores()
        if places < 1:
            return 1.0 if task in self._broker.running else None
        return 1 / places

    @property
    def stopping(self) -> str | None:
        return self._stopping if self._broker.draining else None

    def whole(self) -> RunAnswer:
        """Why the run is where it is."""
        broker, counts = self._broker, [0] * len(Status)
        for status, action in zip(self._statuses, self._graph.actions, strict=True):
            if action is not None:
                counts[status] += 1
        running = len(bundles(broker))  # of a bundle one task runs
        answer = RunAnswer(
            running=running,
            ready=counts[Status.READY] - running,
            waiting=counts[Status.WAITING],
            done=counts[Status.DONE],
            failed=counts[Status.FAILED],
            doomed=counts[Status.DOOMED],
            groups=groups_of(broker, lambda task: self.held(task, foresees=False)),
        )
        arriving = answer.ready - sum(group.count for group in answer.groups)
        if arriving > 0:
            answer.groups.append(self._arriving(arriving))
        return answer

    def _arriving(self, count: int) -> Group:
        """Ready tasks that the scheduler has not received yet."""
        held = self._broker.state
        for task, status in enumerate(self._statuses):
            if status == Status.READY and task not in held:
                return Group(Cause.ARRIVING, count, Answer(task, Cause.ARRIVING))
        raise AssertionError("a ready task is missing")

    def explain(self, task: int) -> Answer:
        return explain(self, task)
