"""Feeds measurements of this machine to the throttle controller and turns its decisions into ledger records.

CPU time of foreign processes is separated from that of tasks: it counts as stolen, like that of another virtual
machine. Disk and network usage is only known for the whole machine.

`shoal.core.throttle_controller` and `shoal.core.policies.throttle` decide; the caller passes the caps to the scheduler.
A throttle that does not learn measures nothing.
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
from shoal.execution.process_limits import available_cores
from shoal.execution.processes.node_sensors import NodeSensor, task_seconds
from shoal.ledger.records import ThrottleDecided

WALK_SHARE = 0.004
"""Fraction of a core that may be spent on scanning the processes of tasks. With many processes the scans are less
frequent."""

MOST_TAKEN = 0.75
"""Upper limit of the CPU fraction that counts as stolen. Foreign processes yield some CPU to tasks; and with a tiny
rest, the smallest task would seem to use a lot."""


class MachineThrottle:
    """Feeds machine measurements to the throttle controller."""

    def __init__(
        self,
        regime: Regime,
        scheduler: Scheduler,
        node: Resources,
        known: Mapping[str, UsageProfile],
        needs: Mapping[str, int] | None = None,
    ) -> None:
        self.controller = ThrottleController(regime, scheduler, whole_cores(node), known, needs)
        self.learns = regime.learns
        self._sensor: NodeSensor | None = None
        self._own: list[int] = [os.getpid()]
        self._processors = available_cores()
        self._used: tuple[float, float | None] = (0.0, None)
        """When the CPU time of tasks was last measured, and its value."""
        self._part: float | None = None
        """The fraction of the used CPU time that tasks used, at the last measurement."""
        self._busy: list[float] = []
        """CPU usage of the samples since then."""
        self._next_walk = 0.0

    def exclude(self, pid: int) -> None:
        """Declares that a process belongs to Shoal and is not a task."""
        self._own.append(pid)
        if self._sensor is not None:
            self._sensor.exclude(pid)

    def begin(self, ready: Iterable[int]) -> CapsChanged:
        return self.controller.begin(ready)

    def ended(self, now: float, results: Iterable[TaskResult]) -> None:
        """Must be called before the scheduler gets the results, because the scheduler forgets ended tasks."""
        if self.learns:
            self.controller.ended(now, results)

    def weigh(self, task: int, memory: int) -> None:
        """Reports the memory of an attempt whose memory size is not learned."""
        if self.learns and memory:
            self.controller.weigh(task, memory)

    def tick(self, now: float) -> CapsChanged | None:
        """Samples the node if it is time; returns new caps for the scheduler, if any."""
        if not self.learns:
            return None
        if self.controller.wants_sample(now):
            if self._sensor is None:
                self._sensor = NodeSensor(now, self._own)
            sample = self._sensor.sense(now).sample(self.controller.running())
            self.controller.sample(now, self._without_others(now, sample))
        return self.controller.look(now)

    def _without_others(self, now: float, sample: NodeSample) -> NodeSample:
        """Returns the sample with the CPU time of tasks only."""
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
        """Returns the fraction of the busy CPU time that tasks used since the last measurement; None if unknown."""
        begun = time.thread_time()
        (before, earlier), seconds = self._used, task_seconds(self._own)
        self._next_walk = now + (time.thread_time() - begun) / WALK_SHARE
        self._used = (now, seconds)
        if earlier is None or seconds is None or now <= before or busy <= 0:
            return self._part if seconds is not None else None
        return min(1.0, max(0.0, seconds - earlier) / ((now - before) * self._processors * busy))

    def records(self, now: float, node: str = "") -> list[ThrottleDecided]:
        """Returns the new decisions as ledger records."""
        found = []
        for report in self.controller.news():
            verdict = report.verdict
            cap = -1 if verdict.cap is None else verdict.cap
            figures = (verdict.dominant or "", verdict.use, verdict.rate, verdict.reason)
            state = verdict.state.value
            found.append(
                ThrottleDecided(now, node, report.category, cap, report.running, report.waiting, state, *figures)
            )
        return found

    def close(self) -> None:
        if self._sensor is not None:
            self._sensor.close()
            self._sensor = None


def cores_needed(sizes: LearnedSizes) -> dict[str, int]:
    """Returns the whole number of cores that one task of each category was measured to use."""
    return {
        category: max(1, round(part.ask() / FRACTION))
        for (category, _), part in sizes.parts.items()
        if isinstance(part, CoreNeed)
    }
