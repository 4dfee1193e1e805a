"""Fault injection for simulated clusters: random faults over time, and the simulation of a seed from start to end.

A run has two phases. Until `faults.until` faults occur. Then everything is repaired: nodes return, disks have space,
messages arrive, and all remaining tasks must finish.
"""

from __future__ import annotations

from heapq import heappop

import msgspec

from shoal.core.peer_messages import PolicyChanged, QueueNearlyEmpty
from shoal.core.policies.retry import AttemptOutcome
from shoal.core.policies.stealing import POLICIES
from shoal.core.resources import FRACTION, Resources, is_label
from shoal.core.scheduler_messages import CancelRequested, CapacityChanged, DrainEnded, DrainRequested
from shoal.sim.cluster.explain_oracle import ClusterExplainOracle
from shoal.sim.cluster.faulty_run import NOT_FOUND, FaultyRun
from shoal.sim.cluster.oracle import lower_bound
from shoal.sim.cluster.result import ClusterTrace
from shoal.sim.cluster.scenario import CALM, STRIKES, ClusterScenario, draw_cluster
from shoal.sim.node import Violation

BETWEEN_LOOKS = 0.5
LONGEST_RUN = 400.0
"""Maximum time without faults, in seconds, until all tasks have ended, including retry delays."""
AFTERWARDS = 1.0
"""Seconds for which a simulation continues after the last task, for messages in transit."""


class FaultInjectionRun(FaultyRun):
    """A cluster run with fault injection; `play` may be called once."""

    def play(self, explain_interval: float = 0.0) -> ClusterTrace:
        """`explain_interval`: interval, in seconds, of checks of `why` for all unfinished tasks; 0: no checks."""
        trace = self.trace
        self.at(BETWEEN_LOOKS, self._look, None, None)
        if explain_interval:
            self.explain_oracle = ClusterExplainOracle(self)
            self._ask_why(explain_interval, None)
        if self.mix is not CALM:
            for kind in STRIKES:
                self._plan(kind)
            self.at(self.mix.until, self._heal, None, None)
        self.execute()
        trace.makespan = self.tally.last_end
        trace.ends = self.oracle.finish()
        if self.scenario.faults is CALM:
            self._expect_calm()
        self._play_afterwards()
        trace.next_random = self.chance.random()
        return trace

    def _play_afterwards(self) -> None:
        """Checks that late messages have no effect."""
        before, end = bytes(self.store.standing), self.now + AFTERWARDS
        while self.heap and self.heap[0][0] < end:
            self.now, _, action, one, other = heappop(self.heap)
            action(one, other)
        if before != bytes(self.store.standing):
            raise Violation("a finished task has changed its state")

    def _expect_calm(self) -> None:
        ends = set(self.trace.ends)
        if "no room" in ends and ends <= {"done", "no room", "doomed"}:
            return  # these tasks and their dependents cannot run even without faults
        if ends != {"done"}:
            raise Violation(f"without faults tasks ended as {sorted(ends)}")
        least = lower_bound(self)
        if self.tally.last_end < least * (1 - 1e-9):
            raise Violation(f"done after {self.tally.last_end} seconds, less than the lower bound of {least}")

    def _look(self, one: None, other: None) -> None:
        self.oracle.check_over_time()
        if self.now - (self.oracle.healed_at or 0.0) > LONGEST_RUN and self.mix is CALM:
            raise Violation(f"the run makes no progress: {self.oracle.unfinished_tasks()}")
        if self.store.left:
            self.at(self.now + BETWEEN_LOOKS, self._look, None, None)

    def _ask_why(self, pause: float, _: None) -> None:
        self.explain_oracle.ask()
        if self.store.left:
            self.at(self.now + pause, self._ask_why, pause, None)

    # ---- faults --------------------------------------------------------------------------------------------------

    def _plan(self, kind: str) -> None:
        rate: float = getattr(self.mix, kind)
        if rate:
            when = self.now + self.chance.expovariate(rate)
            if when < self.mix.until:
                self.at(when, self._strike, kind, None)

    def _strike(self, kind: str, _: None) -> None:
        if self.mix is CALM:
            return
        self.trace.saw(kind)
        getattr(self, f"_strike_{kind}")()
        self._plan(kind)

    def _any_node(self) -> int | None:
        """A random node that is alive and known."""
        nodes = [node for node in self.known if node in self.members]
        return self.chance.choice(nodes) if nodes else None

    def _strike_deaths(self) -> None:
        node = self._any_node()
        if node is not None:
            self._die(node, None)
            self.at(self.now + self.mix.lease * self.chance.uniform(1.0, 1.5), self.declare_lost, node, None)

    def _strike_suspicions(self) -> None:
        node = self._any_node()
        if node is not None:
            self.declare_lost(node, None)
            self.at(self.now + self.chance.expovariate(1.0), self._die, node, None)

    def _die(self, node: int, _: None) -> None:
        """The node fails immediately; after a while its machine returns as a new node."""
        if node not in self.members:
            return
        del self.members[node]
        for activity in list(self.activities[node].values()):
            if not activity.over:
                self.stop(activity)
        self.oracle.gone(node)
        self.forget_requests(node)
        self._break_off_readers(node)
        self.at(self.now + self.mix.lease * self.chance.uniform(0.5, 4.0), self._come_back, node, None)

    def _break_off_readers(self, node: int) -> None:
        """Breaks off transfers of other nodes that read from the failed one."""
        for activity in [activity for running in self.activities.values() for activity in running.values()]:
            if not activity.over and any(leg.source == node for leg in activity.legs[max(0, activity.at - 1) :]):
                self.break_off(activity, AttemptOutcome.MISSING, NOT_FOUND)
        for activity in self.ahead:
            is_cut_off = activity.node == node or any(leg.source == node for leg in activity.legs)
            if is_cut_off and not activity.over:
                self.abandon(activity)
        self.ahead = [activity for activity in self.ahead if not activity.over]

    def _come_back(self, node: int, _: None) -> None:
        if node in self.known:  # the loss of the former node is not noticed yet
            self.at(self.now + 0.1, self._come_back, node, None)
            return
        fresh = node + self.spec.nodes
        self.join(fresh, self.spec.kind(fresh % self.spec.nodes))
        self.announce()
        self.deliver(fresh, QueueNearlyEmpty(self._little_left))
        self.trace.saw("came back")
        self.place_waiting()

    def _strike_slow_nodes(self) -> None:
        node = self._any_node()
        if node is not None:
            kind = self.spec.kind(node % self.spec.nodes)
            self.kinds[node] = msgspec.structs.replace(kind, speed=kind.speed * self.chance.choice((0.1, 0.5, 1.0)))

    def _strike_outages(self) -> None:
        self.store_up = max(self.store_up, self.now + self.chance.expovariate(2.0))

    def _strike_full_disks(self) -> None:
        node = self._any_node()
        if node is None or self.members[node].broker.draining:
            return
        self.deliver(node, DrainRequested())
        for activity in list(self.activities[node].values()):
            if not activity.over:
                self.break_off(activity, AttemptOutcome.LOST, self.chance.uniform(0.0, 0.1))
        stays = self.scenario.can_lose_a_node_for_good() and self.chance.random() < self.mix.stays_full
        if not stays or not self._others_have_room(node):
            self.at(self.now + self.chance.expovariate(1.0), self.deliver, node, DrainEnded())

    def _others_have_room(self, node: int) -> bool:
        return any(other != node and not member.broker.draining for other, member in self.members.items())

    def _strike_capacity_changes(self) -> None:
        node = self._any_node()
        if node is not None:
            whole = self.spec.kind(node % self.spec.nodes).resources()
            share = self.chance.choice((0.0, 0.5, 0.75, 1.0, 1.0, 1.5))
            self._resize(node, Resources.of({name: _part(name, amount, share) for name, amount in whole.amounts}))

    def _resize(self, node: int, capacity: Resources) -> None:
        self.capacity[node] = capacity
        self.deliver(node, CapacityChanged(capacity))
        if any(profile.prefers for profile in self.work.profiles):
            self.announce()  # otherwise others would repeatedly push tasks that do not fit any more
        self.place_waiting()

    def _strike_cancels(self) -> None:
        """The user cancels one task, some tasks, or a task with all its dependents."""
        tasks = self.chance.sample(range(len(self.work)), min(len(self.work), self.chance.randint(1, 3)))
        if self.chance.random() < 0.4:
            tasks = tasks[:1]
            for task in tasks:  # the list grows during the iteration
                tasks += [child for child in self.work.children_of(task) if child not in tasks]
        self._cancel(tasks, None)

    def _cancel(self, tasks: list[int], _: None) -> None:
        if self.now < self.store_up:
            self.at(self.store_up, self._cancel, tasks, None)
            return
        for task in tasks:
            self.oracle.histories[task].cancelled = True
        held = self.store.cancel(tasks)
        for node in self.known:
            self.notify(node, self.deliver, CancelRequested(held))

    def _strike_policy_changes(self) -> None:
        policy = self.chance.choice(list(POLICIES))
        for node in self.known:
            self.notify(node, self.deliver, PolicyChanged(policy))

    def _strike_stalls(self) -> None:
        node = self._any_node()
        if node is not None:
            self.stall(node, self.chance.expovariate(10.0))

    def _heal(self, one: None, other: None) -> None:
        self.mix = CALM
        self.oracle.healed_at = self.now
        self.store_up = min(self.store_up, self.now + 0.1)
        for node in [node for node in self.known if node in self.members]:
            kind = self.kinds[node] = self.spec.kind(node % self.spec.nodes)
            self._resize(node, kind.resources())


def _part(name: str, amount: int, share: float) -> int:
    if is_label(name):
        return amount
    return int(amount * share) // FRACTION * FRACTION if name == "cores" else int(amount * share)


def run_cluster(scenario: ClusterScenario, explain_interval: float = 0.0) -> ClusterTrace:
    """Simulates a scenario; raises `ClusterSeedFailedError` if a check fails."""
    return run_checked(FaultInjectionRun(scenario), explain_interval)


def run_checked(run: FaultInjectionRun, explain_interval: float = 0.0, flag: str = "--cluster") -> ClusterTrace:
    """Simulates a run; `flag` is the option of `shoal.sim` that reproduces it."""
    try:
        return run.play(explain_interval)
    except (AssertionError, LookupError) as problem:  # a missing transition or an empty queue is a bug, too
        raise ClusterSeedFailedError(run.trace, problem, flag) from problem


def run_cluster_seed(seed: int, explain_interval: float = 0.0) -> ClusterTrace:
    """Simulates the scenario of a seed."""
    return run_cluster(draw_cluster(seed), explain_interval)


class ClusterSeedFailedError(AssertionError):
    """A simulated run failed a check. The message has the command that reproduces it; `trace` has the events so far."""

    def __init__(self, trace: ClusterTrace, problem: Exception, flag: str = "--cluster") -> None:
        super().__init__(
            f"seed {trace.seed}: {type(problem).__name__}: {problem}\n"
            f"  reproduce with: python -m shoal.sim {flag} --seed {trace.seed} --trace"
        )
        self.trace = trace
