"""The throttle of this machine at work: senses the node, and tells the governor what happens.

Processor time that others use is told apart from that of tasks: it counts as taken away, like that of another virtual
machine. Of disk and network only the whole is known.

What follows from it is decided in `shoal.core.throttle_controller` and `shoal.policy.throttle`; whoever drives the
broker gives it the caps. A throttle that does not learn senses nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping

import msgspec

from shoal.core.policies.sizing.undeclared import CoreNeed
from shoal.core.policies.throttle.readings import NodeSample
from shoal.core.policies.throttle.registry import Regime
from shoal.core.policies.throttle.usage_model import UsageProfile
from shoal.core.resources import FRACTION, Resources
from shoal.core.scheduler import Scheduler, whole_cores
from shoal.core.scheduler_messages import CapsChanged, TaskResult
from shoal.core.throttle_controller import ThrottleController
from shoal.execution.learned_sizes import LearnedSizes
from shoal.execution.processes.node_sensors import NodeSensor, task_seconds
from shoal.execution.run_options import available_cores
from shoal.ledger.records import ThrottleDecided

WALK_SHARE = 0.004
"""Of a core that may be spent on looking at the processes of tasks; with many of them it is done less often."""

MOST_TAKEN = 0.75
"""Of the processors that count as taken by others. They would give way to tasks, so some part is always to be had; and
of a very small rest the least task would seem to use much."""


class MachineThrottle:
    """A governor with eyes."""

    def __init__(
        self,
        regime: Regime,
        broker: Scheduler,
        node: Resources,
        known: Mapping[str, UsageProfile],
        needs: Mapping[str, int] | None = None,
    ) -> None:
        self.governor = ThrottleController(regime, broker, whole_cores(node), known, needs)
        self.learns = regime.learns
        self._sensor: NodeSensor | None = None
        self._own: list[int] = [os.getpid()]
        self._processors = available_cores()
        self._used: tuple[float, float | None] = (0.0, None)
        """When the time of tasks was looked at last, and what it was."""
        self._part: float | None = None
        """Of what was used of the processors, the part that tasks used, when that was looked at last."""
        self._busy: list[float] = []
        """What was used of the processors in the samples since then."""
        self._next_walk = 0.0

    def exclude(self, pid: int) -> None:
        """This process is our own, and no task."""
        self._own.append(pid)
        if self._sensor is not None:
            self._sensor.exclude(pid)

    def begin(self, ready: Iterable[int]) -> CapsChanged:
        return self.governor.begin(ready)

    def ended(self, now: float, results: Iterable[TaskResult]) -> None:
        """Must be told before the broker is: it forgets tasks that are over."""
        if self.learns:
            self.governor.ended(now, results)

    def weigh(self, task: int, memory: int) -> None:
        """An attempt at a task whose memory nobody sizes has used so many bytes."""
        if self.learns and memory:
            self.governor.weigh(task, memory)

    def tick(self, now: float) -> CapsChanged | None:
        """Looks at the node if it is time for that; what the broker is to be told, if anything."""
        if not self.learns:
            return None
        if self.governor.wants_sample(now):
            if self._sensor is None:
                self._sensor = NodeSensor(now, self._own)
            sample = self._sensor.sense(now).sample(self.governor.running())
            self.governor.sample(now, self._without_others(now, sample))
        return self.governor.look(now)

    def _without_others(self, now: float, sample: NodeSample) -> NodeSample:
        """The sample with the processor time of tasks only."""
        busy = sample.user + sample.system
        self._busy.append(busy)
        if now >= self._next_walk:
            self._part = self._look_at_tasks(now, sum(self._busy) / len(self._busy))
            self._busy.clear()
        if self._part is None:
            return sample
        tasks = busy * self._part
        others = min(max(0.0, MOST_TAKEN - sample.steal), busy - tasks)
        return msgspec.structs.replace(sample, user=tasks, system=0.0, steal=sample.steal + others)

    def _look_at_tasks(self, now: float, busy: float) -> float | None:
        """The part of the busy processors that is due to tasks since the last time; None if that is not known."""
        begun = time.thread_time()
        (before, earlier), seconds = self._used, task_seconds(self._own)
        self._next_walk = now + (time.thread_time() - begun) / WALK_SHARE
        self._used = (now, seconds)
        if earlier is None or seconds is None or now <= before or busy <= 0:
            return self._part if seconds is not None else None
        return min(1.0, max(0.0, seconds - earlier) / ((now - before) * self._processors * busy))

    def records(self, now: float, node: str = "") -> list[ThrottleDecided]:
        """What is new for the ledger."""
        found = []
        for told in self.governor.news():
            verdict = told.verdict
            cap = -1 if verdict.cap is None else verdict.cap
            figures = (verdict.dominant or "", verdict.use, verdict.rate, verdict.reason)
            state = verdict.state.value
            found.append(ThrottleDecided(now, node, told.category, cap, told.running, told.waiting, state, *figures))
        return found

    def close(self) -> None:
        if self._sensor is not None:
            self._sensor.close()
            self._sensor = None


def cores_needed(sizes: LearnedSizes) -> dict[str, int]:
    """The whole cores that one task of each category was seen to use, by category."""
    return {
        category: max(1, round(part.ask() / FRACTION))
        for (category, _), part in sizes.parts.items()
        if isinstance(part, CoreNeed)
    }
