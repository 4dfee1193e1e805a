"""Hill climber: searches the number of concurrent tasks of one category with the best throughput, and holds it.

With n tasks together, the work of E undisturbed tasks gets done (`ThroughputModel`): E equals n up to the knee, and
stays or falls beyond it. The climber doubles n until a further task brings little, then holds n = E + room(E), slightly
beyond the knee. There n exceeds E, and this difference shows without any trial whether capacity grows (E rises to n) or
shrinks (E falls). It also makes two runs that share a server converge to equal shares: each keeps the same number of
tasks waiting at the server, which requires the same n. Delay-based congestion control (Vegas, FAST) works in this way.

In addition it tries, at growing intervals, what n alone does not show: fewer tasks, to measure the current speed of an
undisturbed task, and more tasks, if the bottleneck is the node's own resource or more was worse at an earlier time.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median

import msgspec

from shoal.core.policies.throttle.controller import ControllerState
from shoal.core.policies.throttle.readings import Endings

MANY = 8
"""Minimum number of endings for a comparison."""
USE_ERROR = 0.012
"""Minimum relative error of use and durations of one period."""
TIME_ERROR = 0.01
TAIL_ERROR = 0.2
"""Of recently started tasks the short ones end first: the more durations differ, the less a few endings say."""
OVERRULE = 0.1
"""Durations override use only if their relative error is below this."""
FAR = 1.15
"""Durations also override use if they indicate this many times as much, beyond both errors."""
KNOWN_SPREAD = 0.15
"""Assumed spread of durations if only their mean is known."""
REMEMBERED = 400
"""Maximum number of endings without contention that count; later ones replace earlier ones."""


class ThroughputModel(msgspec.Struct, frozen=True):
    """Throughput of n concurrent tasks."""

    level: int
    value: float
    """In units of undisturbed tasks: at most n, if the undisturbed duration is right."""
    error: float

    @property
    def share(self) -> float:
        """Fraction of full speed."""
        return self.value / self.level


def from_use(level: int, used: float, used_error: float, use: float, use_error: float) -> ThroughputModel | None:
    """Throughput from the use of the dominant resource; `used` is that of the category, `use` that of one task."""
    if use <= 0:
        return None
    value = used / use
    relative = math.hypot(use_error / use, USE_ERROR)
    return ThroughputModel(level, value, math.hypot(used_error / use, relative * value))


def from_times(level: int, endings: Endings, base: Endings) -> ThroughputModel | None:
    """Throughput from durations of tasks, compared with undisturbed ones."""
    if endings.count < MANY or base.count < MANY:
        return None
    value = level * math.exp(base.log_mean - endings.log_mean)
    common = TIME_ERROR + TAIL_ERROR * base.log_spread
    relative = math.sqrt(endings.log_error**2 + base.log_error**2 + common**2)
    return ThroughputModel(level, value, relative * value)


def together(use: ThroughputModel | None, times: ThroughputModel | None, vague: bool = False) -> ThroughputModel | None:
    """Combines both estimates; `vague`: the resource may look fully busy and still have capacity."""
    if use is None or times is None:
        return use if times is None else times
    sure = times.error < OVERRULE * times.value
    if vague and sure:
        return times
    doubt = 2 * math.hypot(use.error, times.error)
    if sure and not 0.97 * use.value - doubt <= times.value <= FAR * use.value + doubt:
        return times
    weights = [1 / max(1e-9, each.error) ** 2 for each in (use, times)]
    value = (weights[0] * use.value + weights[1] * times.value) / sum(weights)
    return ThroughputModel(use.level, value, 1 / math.sqrt(sum(weights)))


class ThroughputBase:
    """Durations of undisturbed tasks."""

    def __init__(self) -> None:
        self.endings = Endings()

    def learn(self, endings: Endings) -> None:
        if endings.count:
            keep = min(1.0, REMEMBERED / max(1, self.endings.count))
            self.endings.merge(endings, keep if self.endings.count > REMEMBERED else 1.0)

    def know(self, seconds: float) -> None:
        """Sets the undisturbed duration from an earlier run, with the weight of a few endings, so that new data
        dominates soon."""
        log = math.log(seconds)
        self.endings = Endings(2 * MANY, 2 * MANY * seconds, 2 * MANY * log, 2 * MANY * (log * log + KNOWN_SPREAD**2))

    def rescale(self, factor: float) -> None:
        """Corrects the base: undisturbed tasks are `factor` times as fast as assumed."""
        shift = -math.log(factor)
        known = self.endings
        known.squares += 2 * shift * known.logs + known.count * shift * shift
        known.logs += known.count * shift
        known.seconds /= factor


ENOUGH_GAIN = 0.6
"""Growth continues while each further task adds at least this fraction of a task."""
FULL_GAIN = 0.8
"""A level is free of contention if the added tasks brought at least this fraction, within the error."""
SHORT = 0.85
"""Tasks below this fraction of full speed suffer from contention."""
GROWS = 1.08
"""If the node's own resource is short, twice as many tasks are still better if throughput grows by this factor: one
task keeps a disk busy, but a disk serves many requests at once faster than one after another."""
AS_GOOD = 0.97
"""Levels with at least this fraction of the best throughput count as equal; the lowest of them is held."""
WORTH_GAIN = 0.2
"""A trial of more tasks is kept if each added task brought at least this fraction of a task."""
WORSE = 0.975
"""A higher level is given up if its throughput is below this fraction of a lower level's."""
SURE = 0.06
"""While growing, a level ends when its throughput has this relative error, or after the maximum number of periods."""
PATIENT = 4
WINDOW = 8
"""Number of periods of one level that are averaged while holding."""
JUMP = 0.1
FEWER = 3
"""A trial of fewer tasks uses 1/N of them."""
FIRST_MORE, SELDOMER, LAST_MORE = 5, 3, 40
"""Periods before more tasks are tried: initially, factor after each unsuccessful trial, maximum."""
FIRST_FEWER, NEXT_FEWER, LAST_FEWER = 15, 45, 90
"""Periods before fewer tasks are tried, which costs more: the first time, the second, and from then on."""


def room(effect: float) -> float:
    """Number of tasks held beyond the throughput: grows slowly, so that runs that share a server get equal shares."""
    return 0.5 + 0.5 * math.sqrt(max(0.0, effect))


class Climber:
    """The number of concurrent tasks of one category and the state of the search for it."""

    def __init__(self, start: int, known: bool = False) -> None:
        """`known`: the start is a stable level of an earlier run, and a base of undisturbed tasks exists."""
        self.level = max(1, start)
        self.state = ControllerState.HOLDING if known else ControllerState.PROFILING
        self.limit: int | None = None
        self.unchallenged = False
        """The bottleneck is the node's own: no other run suffers if it is fully used."""
        self.alone = True
        """No other category runs: no throughput is taken from others here."""
        self.agile = True
        """Its tasks are short enough for a short trial of fewer tasks."""
        self.by_times = False
        """Only durations indicate throughput: the bottleneck is outside the node and may be shared."""
        self.may_try = True
        """No other category is making a trial at the moment."""
        self.undisturbed = False
        """The last step found that the previous level was free of contention."""
        self.correction = 1.0
        """Correction of the undisturbed speed found by the last step: N times as fast as assumed."""
        self.tried: int | None = None
        """The last higher level that brought nothing."""
        self.ceiling: int | None = None
        """A level that was too high; only trials exceed it."""
        self._seen: deque[ThroughputModel] = deque(maxlen=WINDOW)
        self._levels: dict[int, tuple[float, int]] = {}
        """Throughput of earlier levels, and the step at which it was measured."""
        self._steps = 0
        self._before: ThroughputModel | None = None
        self._more, self._fewer = FIRST_MORE, FIRST_FEWER
        """Periods until the next trial of more, and of fewer."""
        self._held = 0
        """Periods since the level changed or a trial was made."""
        self._rises = 0
        """How many times in succession the level was raised while holding."""
        self._earned = 0
        """A level that a trial has shown to be useful: it is kept although it is beyond the knee."""
        self._bends = False
        """There is no clear knee: each further task brings less than the one before."""
        self.since = 0
        """Periods since the level changed."""

    def bound(self, limit: int | None) -> None:
        """Sets the number of tasks that the contract admits."""
        self.limit = limit
        if limit is not None and self.level > limit:
            self._go(max(1, limit))

    def widen(self, level: int) -> bool:
        """Raises the initial level while nothing is known; returns whether it was raised."""
        if self.state is not ControllerState.PROFILING or level <= self.level:
            return False
        self.level = level
        self.bound(self.limit)
        return True

    def step(self, effect: ThroughputModel) -> None:
        """Processes the throughput of a period in which the level was really running."""
        self.undisturbed, self.correction = False, 1.0
        if effect.level != self.level:
            return
        self._seen.append(effect)
        self._steps += 1
        if self.state is ControllerState.HOLDING:
            self._on_hold()
        elif self.state is ControllerState.PROBING:
            self._on_probe()
        else:
            self._on_growth()

    def mean(self) -> ThroughputModel:
        """Mean throughput of the current level since it was chosen."""
        weights = [1 / max(1e-6, each.error) ** 2 for each in self._seen]
        value = sum(weight * each.value for weight, each in zip(weights, self._seen, strict=True)) / sum(weights)
        # Errors of successive periods are partly correlated: they do not vanish with the number of periods.
        error = max(1 / math.sqrt(sum(weights)), 0.005 * self.level)
        return ThroughputModel(self.level, value, error)

    def _scatter(self, mean: float) -> float:
        """Standard error of the mean by chance alone: errors common to all periods do not change a level."""
        count = len(self._seen)
        spread = sum((each.value - mean) ** 2 for each in self._seen) / max(1, count - 1)
        return math.sqrt(spread / count) if count > 2 else self._seen[-1].error

    def _bounded(self, level: float) -> int:
        wanted = max(1, round(level))
        if self.ceiling is not None:
            wanted = min(wanted, max(1, self.ceiling - 1))
        return wanted if self.limit is None else min(wanted, max(1, self.limit))

    def _go(self, level: int) -> None:
        self.level = level
        self._seen.clear()
        self._held = self.since = 0

    def _on_growth(self) -> None:
        mean, before = self.mean(), self._before
        if mean.error > max(SURE * self.level, 0.3) and len(self._seen) < PATIENT:
            return
        self._levels[self.level] = (mean.value, self._steps)
        if before is None or before.level >= self.level:
            self.undisturbed = before is None
        else:
            added = self.level - before.level
            gain = (mean.value - before.value) / added
            error = math.hypot(mean.error, before.error) / added
            if gain < ENOUGH_GAIN and not self._still_grows(mean, before):
                self.tried = self.level
                self._stop_growing(mean, before)
                return
            latest = self._seen[-1]
            self.undisturbed = mean.value + 2 * latest.error >= self.level and gain + min(error, 0.15) >= FULL_GAIN
        # An undisturbed level defines the base: its throughput equals its level.
        self._before = ThroughputModel(self.level, self.level, mean.error) if self.undisturbed else mean
        higher = self._bounded(2 * self.level)
        if higher == self.level:
            self.state = ControllerState.HOLDING
            self._held, self._earned = 0, self.level if self._bends else 0
            return
        self.state = ControllerState.GROWING
        self._go(higher)

    def _still_grows(self, mean: ThroughputModel, before: ThroughputModel) -> bool:
        """Whether more tasks increase throughput although there is contention, and no other run suffers from it."""
        if not (self.unchallenged and self.alone) or mean.value < GROWS * before.value:
            return False
        self._bends = self._bends or before.share < SHORT
        return True

    def _stop_growing(self, mean: ThroughputModel, before: ThroughputModel) -> None:
        """Ends growth: holds the best level, or slightly beyond the knee if there is a clear one."""
        if not self._bends:
            self._measure_fewer(max(mean, before, key=lambda each: each.value))
            return
        top = max(value for value, _ in self._levels.values())
        level = min(level for level, (value, _) in self._levels.items() if value >= AS_GOOD * top)
        self.state, self._rises, self._earned = ControllerState.HOLDING, 0, level
        self._go(self._bounded(level))

    def _measure_fewer(self, best: ThroughputModel) -> None:
        """Measures fewer tasks once after the knee is passed, to see how fast an undisturbed task really is.

        Other runs may have been active while the level was growing, so that seemingly undisturbed tasks were not.
        """
        fewer = max(1, round(best.value / FEWER))
        if self.unchallenged or not self.agile or not self.may_try or fewer >= best.value:
            self._settle(best.value)
            return
        self._before = best
        self.state = ControllerState.PROBING
        self._go(fewer)

    def _settle(self, effect: float) -> None:
        self.state = ControllerState.HOLDING
        self._rises = self._earned = 0
        level = self._bounded(effect + room(effect))
        if level != self.level:
            self._go(level)

    def _grow(self) -> None:
        """Capacity has grown: results of earlier trials are discarded."""
        self.state, self.tried, self.ceiling, self._rises = ControllerState.GROWING, None, None, 0
        self._bends = False
        self._more, self._fewer = FIRST_MORE, FIRST_FEWER
        self._before = self.mean()
        self._levels = {self.level: (self._before.value, self._steps)}
        higher = self._bounded(2 * self.level)
        if higher == self.level:
            self.state = ControllerState.HOLDING
        else:
            self._go(higher)

    def _on_hold(self) -> None:
        self._held += 1
        if self._jumped():
            return
        if len(self._seen) < 2:
            return
        mean = self.mean()
        self._levels[self.level] = (mean.value, self._steps)
        if self._is_thrashing(mean):
            return
        wanted = mean.value + room(mean.value)
        if self.unchallenged or self._bends:
            wanted = max(wanted, min(self._earned, self.level))
        goal = self._bounded(wanted)
        slack = 0.5 + 0.01 * self.level + 1.5 * self._scatter(mean.value)
        if abs(wanted - self.level) > slack and goal != self.level:
            self._rises = self._rises + 1 if goal > self.level else 0
            if self._rises >= 2 and mean.share > 0.95 and self.ceiling is None:
                self._grow()
            else:
                self._go(goal)
        elif self.may_try:
            self._try(mean)

    def _jumped(self) -> bool:
        """Whether capacity changed suddenly: the last periods agree, and differ from those before.

        Three periods are needed for an increase: another run that shares a server may have paused for two.
        """
        latest: list[ThroughputModel] = []
        for count, sign in ((2, -1), (3, 1)):
            earlier, last = list(self._seen)[:-count], list(self._seen)[-count:]
            if len(earlier) < 2:
                continue
            usual = median(each.value for each in earlier)
            least = max(JUMP * usual, 2 * max(each.error for each in last))
            if all(sign * (each.value - usual) > least for each in last):
                latest = last
        if not latest:
            return False
        self._levels.clear()
        self._seen.clear()
        self._seen.extend(latest)
        self.ceiling = self.tried = None
        self._bends = False
        self._more, self._fewer = FIRST_MORE, FIRST_FEWER
        mean = self.mean()
        if mean.share > 0.93:
            self._grow()
        else:
            self._settle(mean.value)
        return True

    def _is_thrashing(self, mean: ThroughputModel) -> bool:
        """Goes back if fewer tasks had clearly more throughput (thrashing)."""
        for level, (value, step) in sorted(self._levels.items(), key=lambda pair: (-pair[1][0], pair[0])):
            fresh = step >= self._steps - WINDOW
            if fresh and level < self.level and mean.value + mean.error < WORSE * value:
                self.tried = self.level
                self.ceiling = level + 1
                self._go(level)
                return True
        return False

    def _try(self, mean: ThroughputModel) -> None:
        """Starts a trial of another level if one is due."""
        upwards = self.unchallenged or self.ceiling is not None
        if self._held < (self._more if upwards else self._fewer):
            return
        if upwards:
            ceiling, self.ceiling = self.ceiling, None
            other = self._bounded(self.level + max(1, self.level // 6))
            if other == self.level:
                self.ceiling = ceiling
        else:
            other = max(1, round(self.level / FEWER)) if self.agile and mean.share < 0.97 else self.level
        if other != self.level:
            self._before = mean
            self.state = ControllerState.PROBING
            self._go(other)
        else:
            self._held = 0

    def _on_probe(self) -> None:
        mean, before = self.mean(), self._before
        assert before is not None
        sure = max(0.03 * self.level, 0.12) if self.by_times else max(0.05 * self.level, 0.25)
        if mean.error > sure and len(self._seen) < PATIENT:
            return
        self.state = ControllerState.HOLDING
        if self.level > before.level:
            self._judge_more(mean, before)
        else:
            self._fewer = NEXT_FEWER if self._fewer < NEXT_FEWER else LAST_FEWER
            self._judge_fewer(mean, before)

    def _judge_more(self, mean: ThroughputModel, before: ThroughputModel) -> None:
        gain = (mean.value - before.value) / (self.level - before.level)
        if gain < WORTH_GAIN:
            self._more = min(LAST_MORE, SELDOMER * self._more)
            self.tried = self.ceiling = self.level
            self._go(self._bounded(before.level))
        elif gain >= ENOUGH_GAIN and mean.share > 0.95:
            self._grow()
        else:
            self._earned, self._held = self.level, 0

    def _judge_fewer(self, mean: ThroughputModel, before: ThroughputModel) -> None:
        self.undisturbed = mean.value + 2 * self._seen[-1].error >= self.level
        # As slow with fewer tasks: they do not disturb each other, so there is no reason to run fewer.
        slowed = before.share < 0.93 and 0 < mean.share < 1.07 * before.share
        # Others may have run when the base was measured. Bursty use varies by more than its error.
        if mean.value - (1.5 if self.by_times else 3.0) * mean.error > mean.level:
            self.correction = mean.share
        if slowed:
            self.correction = mean.share
            self._go(self._bounded(before.level))
        else:
            self._settle(before.value / self.correction)
