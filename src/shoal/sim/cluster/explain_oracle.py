"""The oracle for answers of `why` on a simulated cluster with faults; for one node see `shoal.sim.oracle`.

Answers use what a client can find out: from the store, if it replies, and from the node that has the task, if it is
alive. The oracle compares them with the global state of the simulation: all nodes and all messages in transit at the
same time.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

from shoal.core.dependencies import TaskStatus
from shoal.core.explain.answer import Answer, RunAnswer, WaitCause, WaitingGroup
from shoal.core.explain.store_source import (
    ClusterSource,
    SilentError,
    StoreAwayError,
    explain_in_member,
    explain_placed,
    explain_stranded,
    whole_cluster,
    whole_member,
)
from shoal.core.resources import Resources
from shoal.core.scheduler import Scheduler
from shoal.sim.cluster.faulty_run import FaultyRun
from shoal.sim.oracle import check_answer, check_held, expect, expect_counts, expect_words, popped, under_way


class ClusterExplainOracle:
    """Queries and checks the answers during one run."""

    def __init__(self, run: FaultyRun) -> None:
        self.run = run
        self.answers: Counter[WaitCause] = Counter()
        """Number of answers by cause."""
        self._orders: dict[int, list[int]] = {}
        """By node, the order in which tasks would leave its queue now."""
        self._needs: list[list[int]] = [[] for _ in range(len(run.work))]
        for task in range(len(run.work)):
            for child in run.work.children_of(task):
                self._needs[child].append(task)

    def ask(self) -> None:
        """Checks the answers for every task and for the whole run."""
        run = self.run
        self._orders.clear()
        seconds = run.work.seconds.__getitem__
        source = ClusterSource(run.now, self._needs.__getitem__, self._status, self._held, seconds)
        for task in range(len(run.work)):
            answer = source.explain(task)
            self.answers[answer.cause] += 1
            if run.now < run.store_up:
                expect(answer.cause is WaitCause.STORE, answer, "the store does not answer")
            else:
                check_answer(answer, run.store.standing, self._needs.__getitem__, self._check_ready)
            expect_words(answer, run.now)
        if run.now >= run.store_up:
            self._ask_whole()

    def _status(self, task: int) -> TaskStatus:
        if self.run.now < self.run.store_up:
            raise StoreAwayError("the store does not reply")
        return TaskStatus(self.run.store.standing[task])

    def _held(self, task: int) -> Answer:
        run = self.run
        if any(ticket.task == task for ticket in run.unplaceable):
            return explain_stranded(task, self._request(task), [run.capacity[node] for node in run.known])
        return explain_placed(task, run.store.owner[task], dict.fromkeys(run.known, "a node"), self._ask_node)

    def _ask_node(self, node: int, task: int) -> Answer | None:
        member = self.run.members.get(node)
        if member is None:
            raise SilentError
        if task not in member.broker.state and not self.run.is_being_recorded(node, task):
            return None  # as an agent replies for a task that it does not have
        return self._of_node(node, task)

    def _of_node(self, node: int, task: int) -> Answer:
        since = {task: activity.started for task, activity in self.run.activities[node].items()}
        return explain_in_member(self.run.members[node], task, self.run.now, since=since)

    def _request(self, task: int) -> Resources:
        return self.run.work.profiles[self.run.work.category[task]].resources

    # ---- a whole run -------------------------------------------------------------------------------------------------

    def _ask_whole(self) -> None:
        """Checks that the sums reported by the nodes match the answers for each of their tasks."""
        run = self.run
        here = [node for node in run.known if node in run.members]
        unplaceable = [ticket.task for ticket in run.unplaceable if here]

        def ask(node: int) -> RunAnswer:
            if node not in run.members:
                raise SilentError
            report = whole_member(run.members[node], partial(self._of_node, node))
            for task in unplaceable if node == here[0] else ():  # one node has the unplaceable tasks
                answer = self._held(task)
                report.groups.append(WaitingGroup(answer.cause, 1, answer))
            return report

        standings = run.store.standings()
        found = Counter(TaskStatus(standing) for standing in standings)
        totals = RunAnswer(
            ready=found[TaskStatus.READY], waiting=found[TaskStatus.WAITING], done=found[TaskStatus.DONE]
        )
        totals.failed, totals.doomed = found[TaskStatus.FAILED], found[TaskStatus.DOOMED]
        whole = whole_cluster(totals, {node: f"node {node}" for node in run.known}, ask)
        answers = [self._of_node(node, task) for node in here for task in self._scheduler(node).state]
        answers += [self._held(task) for task in unplaceable]
        running = [task for node in here for task in under_way(self._scheduler(node))]
        waiting = [answer for answer in answers if answer.task not in running or answer.cause not in _UNDER_WAY]
        others = max(0, max(0, totals.ready - len(running)) - len(waiting))
        expect_counts(whole, standings, waiting, running, others)
        for group in whole.groups:
            if group.example.task < 0:
                self._check_unreported(group.example)

    def _check_unreported(self, answer: Answer) -> None:
        """Checks the cause given for tasks that no node has reported."""
        run = self.run
        silent = any(node not in run.members for node in run.known)
        causes = {
            WaitCause.NO_NODE: not run.known,
            WaitCause.NODE_SILENT: silent,
            WaitCause.ARRIVING: bool(run.known) and not silent,
        }
        expect(causes.get(answer.cause, False), answer, "why no node has reported them")

    # ---- one task ----------------------------------------------------------------------------------------------------

    def _check_ready(self, answer: Answer) -> None:
        run, task = self.run, answer.task
        owner = run.store.owner[task]
        held_by = [node for node in run.known if node in run.members and task in self._scheduler(node).state]
        match answer.cause:
            case WaitCause.TOO_LARGE:
                lacks = [self._request(task).lacking_in(run.capacity[node]) for node in run.known]
                expect(all(lacks), answer, "a node can run it")
            case WaitCause.LABEL if task not in self._states_of(owner):
                assert answer.shortage is not None
                label = answer.shortage.resource
                expect(label in self._request(task).names(), answer, "it does not ask for the label")
                expect(not any(run.capacity[node].get(label) for node in run.known), answer, "a node has the label")
            case WaitCause.NO_NODE:
                expect(not run.known, answer, "there are nodes")
            case WaitCause.NODE_LOST:
                expect(owner not in run.known, answer, "its node is known")
            case WaitCause.NODE_SILENT:
                expect(owner in run.known and owner not in run.members, answer, "its node is there")
            case WaitCause.RECORDING:
                expect(run.is_being_recorded(owner, task), answer, "nothing is to be recorded")
            case WaitCause.ARRIVING:
                recorded = partial(run.is_being_recorded, task=task)
                expect(not held_by and not recorded(owner), answer, f"it is with {held_by}")
            case _:
                expect(held_by == [owner], answer, f"it is with {held_by}, not with {owner}")
                check_held(answer, self._scheduler(owner), run.now, self._order(owner))
                is_local = task in run.members[owner].tiers.local
                expect(answer.cause is not WaitCause.LOCALITY or is_local, answer, "it is not kept beside its data")

    def _scheduler(self, node: int) -> Scheduler:
        return self.run.members[node].broker

    def _states_of(self, node: int) -> dict[int, object]:
        return dict(self._scheduler(node).state) if node in self.run.members else {}

    def _order(self, node: int) -> list[int]:
        if node not in self._orders:
            self._orders[node] = popped(self._scheduler(node))
        return self._orders[node]


_UNDER_WAY = (WaitCause.RUNNING, WaitCause.ENDING)
