"""Weasel's throttle for comparison: its Algorithms 1 to 3, corrected where the printed text cannot work.

Unchanged: the mode of the samples, its mean over the last readings at the same number, profiling with one task on an
otherwise empty node, the dominant resource as the largest use, steps of one that grow while the direction lasts, good
and bad numbers. Corrected: the direction compares with the previous number; the step is never below 1; a change of use
is divided by the change of the number; contention beyond the best number is searched at larger numbers, not smaller;
the descent ends at 1; the search among good numbers ends. After profiling it continues from one task. The published
code starts with as many tasks as processors, and stays there even if they are too many.
"""

from __future__ import annotations

import math
from collections import deque

from shoal.core.policies.throttle.controller import ControllerState, ThrottleVerdict, most_used, rate_of
from shoal.core.policies.throttle.readings import COMPRESSIBLE, CPU, Period
from shoal.core.policies.throttle.usage_model import UsageProfile

READINGS = 11
"""Number of readings of one level that are averaged."""
START_AFTER = 2
"""Number of steps in one direction before they grow."""
THRESHOLD = {CPU: 0.005}
"""Minimum change of use per task without contention; 0.01 for other resources."""
FASTER = 2.0
LONGEST_JUMP = 4.0


class Adaptation:
    """The number of tasks of one category."""

    def __init__(self, start: int, one: float, threshold: float) -> None:
        self.level = start
        self.one = max(one, 1e-6)
        self.threshold = min(threshold, 0.9 * self.one)
        self._readings: dict[int, deque[float]] = {}
        self._before: tuple[int, float] | None = None
        self._best = (0, 0.0)
        self._good: dict[int, None] = {}
        self._bad: dict[int, None] = {}
        self._same = 0
        self._increase = 1

    def step(self, use: float, limit: int | None) -> None:
        """Algorithm 1: processes the use of a period in which the level was really running."""
        level = self.level
        readings = self._readings.setdefault(level, deque(maxlen=READINGS))
        readings.append(use)
        use = sum(readings) / len(readings)
        before, self._before = self._before, (level, use)
        if before is None or before[0] == level:
            self._remember(level, use)
            wanted = level + 1
        else:
            slope = (use - before[1]) / (level - before[0])
            contended = self._is_contended(level, use, slope)
            self._remember(level, use)
            wanted = self._next(level, before[0], slope, contended)
        self.level = max(1, wanted if limit is None else min(wanted, limit))

    def _is_contended(self, level: int, use: float, slope: float) -> bool:
        number, most = self._best
        return abs(slope) < self.threshold or (level > number and (use - most) / (level - number) < self.threshold)

    def _remember(self, level: int, use: float) -> None:
        number, most = self._best
        if use > most or level == number or (level < number and use > 0.95 * most):
            self._best = (level, use)

    def _next(self, level: int, before: int, slope: float, contended: bool) -> int:
        direction = 1 if level > before else -1
        chosen = -1 if contended else 1
        (self._good if contended else self._bad).pop(level, None)
        (self._bad if contended else self._good)[level] = None
        if chosen != direction:
            self._same, self._increase = 0, 1
        else:
            self._same += 1
        if self._same > START_AFTER:
            factor = min(LONGEST_JUMP, FASTER * abs(slope) / self.one)
            self._increase = max(1, math.ceil(self._increase * factor))
        return self._up(level) if chosen > 0 else self._down(level, before)

    def _up(self, level: int) -> int:
        """Algorithm 2: does not jump to a number that was bad."""
        wanted, halved = level + self._increase, 1
        while wanted > level + 1 and wanted in self._bad:
            wanted = level + max(1, self._increase >> halved)
            halved += 1
        return wanted

    def _down(self, level: int, before: int) -> int:
        """Algorithm 3: half of the last jump at first, then towards the largest good number below."""
        if self._same == 0:
            return level - max(1, abs(level - before) // 2)
        good = max((number for number in self._good if number < level), default=1)
        if self._same > START_AFTER:
            return level - max(1, (level - good) // 2)
        return max(good, level - self._increase)


class Weasel:
    """All categories of a node: profiled one at a time, then adapted concurrently if their resources differ."""

    def __init__(self, cores: int) -> None:
        self.cores = max(1, cores)
        self.uses: dict[str, dict[str, float]] = {}
        self.adaptations: dict[str, Adaptation] = {}
        self._profiling: str | None = None

    def decide(self, now: float, period: Period) -> dict[str, ThrottleVerdict]:
        if period.samples:
            self._learn(period)
        new = [category for category in period.turnout if category not in self.adaptations]
        self._profiling = new[0] if new else None
        verdicts = {}
        taken: dict[str, str] = {}
        for category, turnout in period.turnout.items():
            rate = rate_of(period, category)
            if self._profiling is not None:
                cap = 1 if category == self._profiling else 0
                state = ControllerState.PROFILING if cap else ControllerState.WAITING
                verdicts[category] = ThrottleVerdict(cap, state, f"'{self._profiling}' is profiled alone", rate=rate)
                continue
            dominant = most_used(self.uses[category])
            assert dominant is not None
            if dominant in taken:
                reason = f"category '{category}' waits until '{taken[dominant]}' has nothing left to start"
                verdicts[category] = ThrottleVerdict(0, ControllerState.WAITING, reason, dominant, 0.0, rate)
                continue
            if turnout.waiting:
                taken[dominant] = category
            level = self.adaptations[category].level
            use = period.use[dominant].mode if period.samples else 0.0
            reason = f"{level} of category '{category}' may run, by the change of use with their number"
            verdicts[category] = ThrottleVerdict(level, ControllerState.GROWING, reason, dominant, use, rate)
        return verdicts

    def know(self, category: str, profile: UsageProfile, start: int) -> None:
        """No effect: the published algorithms profile every category again."""

    def widen(self, category: str, level: int) -> bool:
        """No effect: a category is profiled with one task first, whatever else runs."""
        return False

    def profiles(self) -> dict[str, UsageProfile]:
        return {category: UsageProfile(use, dict.fromkeys(use, 0.0)) for category, use in self.uses.items()}

    def _learn(self, period: Period) -> None:
        for category, turnout in period.turnout.items():
            if category == self._profiling:
                others = any(other.running for name, other in period.turnout.items() if name != category)
                if turnout.held and not others:
                    self._begin(category, period)
            elif category in self.adaptations and turnout.held and turnout.target == self.adaptations[category].level:
                dominant = most_used(self.uses[category])
                assert dominant is not None
                self.adaptations[category].step(period.use[dominant].mode, turnout.limit)

    def _begin(self, category: str, period: Period) -> None:
        use = self.uses[category] = {name: period.use[name].mode for name in COMPRESSIBLE}
        dominant = most_used(use)
        assert dominant is not None
        self.adaptations[category] = Adaptation(1, use[dominant], THRESHOLD.get(dominant, 0.01))
