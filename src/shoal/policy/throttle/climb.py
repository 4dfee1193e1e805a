"""Looks for the number of tasks of one category to hold, and holds it.

With n tasks together, E tasks' worth of work gets done (`effect`): E is n up to the knee, and stays or falls beyond it.
The climber doubles n until a further task brings little, then holds n = E + room(E), a little beyond the knee. There n
exceeds E, and that difference shows without any trial whether capacity grows (E rises to n) or shrinks (E falls). It is
also what makes two runs that share a server end at equal shares: each keeps as many tasks waiting there as the other,
which is only so if both have the same n. This is how delay-based congestion control does it (Vegas, FAST).

Beyond that it tries, ever more seldom, what n alone does not show: fewer tasks, to see how fast an undisturbed one is
now, and more tasks, where the node's own resource is the bottleneck or more was bad at one time.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median

from shoal.policy.throttle.controller import State
from shoal.policy.throttle.effect import Effect

ENOUGH_GAIN = 0.6
"""Growing goes on while each further task brings this part of a task."""
FULL_GAIN = 0.8
"""A level is free of contention if the tasks it added brought at least this, within the error."""
SHORT = 0.85
"""Tasks that go at less than this part of full speed lack something."""
GROWS = 1.08
"""Where the node's own resource is short, twice as many tasks are still better if they get so many times as much done:
a disk is busy with one task already, and yet serves many at once faster than one after another."""
AS_GOOD = 0.97
"""Of levels that bring about the same, this part of the best at least, the lowest is held."""
WORTH_GAIN = 0.2
"""A trial of more tasks is kept if each brought this part of a task."""
WORSE = 0.975
"""A higher level is one too many if less than this part of what a lower one brought gets done."""
SURE = 0.06
"""While growing, a level is left when its effect is known with this relative error, or after so many periods."""
PATIENT = 4
WINDOW = 8
"""Periods of one level that are averaged while holding."""
JUMP = 0.1
FEWER = 3
"""A trial of fewer tasks has this part of them."""
FIRST_MORE, SELDOMER, LAST_MORE = 5, 3, 40
"""Periods until more tasks are tried; each trial that brings nothing makes it so many times as long."""
FIRST_FEWER, NEXT_FEWER, LAST_FEWER = 15, 45, 90
"""Periods until fewer are tried, which costs more: the first time, the next, and from then on."""


def room(effect: float) -> float:
    """How many more tasks run than get done: grows slowly, so that those who share something get equal shares."""
    return 0.5 + 0.5 * math.sqrt(max(0.0, effect))


class Climber:
    """The number of tasks of one category, and what is going on with it."""

    def __init__(self, start: int, known: bool = False) -> None:
        """`known`: the start is a level that held still in an earlier run, and there is a measure for it."""
        self.level = max(1, start)
        self.state = State.HOLDING if known else State.PROFILING
        self.limit: int | None = None
        self.unchallenged = False
        """The bottleneck is the node's own: nobody else suffers if it is used to the full."""
        self.alone = True
        """No other category runs: what is gained is taken from nobody here."""
        self.agile = True
        """Its tasks are short enough for a trial of fewer to be over soon."""
        self.by_times = False
        """Only the times of tasks say how much gets done: what is short is outside, and may be shared."""
        self.may_try = True
        """No other category is trying something at the moment."""
        self.undisturbed = False
        """The last step found that the level before it was free of contention."""
        self.correction = 1.0
        """How many times as fast as was thought an undisturbed task is, by what the last step found."""
        self.tried: int | None = None
        """The last higher level that brought nothing."""
        self.ceiling: int | None = None
        """A level that was too high; nothing but a trial goes there."""
        self._seen: deque[Effect] = deque(maxlen=WINDOW)
        self._levels: dict[int, tuple[float, int]] = {}
        """What levels brought, and at which step that was."""
        self._steps = 0
        self._before: Effect | None = None
        self._more, self._fewer = FIRST_MORE, FIRST_FEWER
        """Periods until the next trial of more, and of fewer."""
        self._held = 0
        """Periods for which the level has been held since it changed or something was tried."""
        self._rises = 0
        """How often in succession the level was raised while holding."""
        self._earned = 0
        """A level that a trial has shown to be worth its tasks: it is not given up for being beyond the knee."""
        self._bends = False
        """There is no knee: ever more tasks bring ever less more."""
        self.since = 0
        """Periods since the level changed."""

    def bound(self, limit: int | None) -> None:
        """The contract admits so many."""
        self.limit = limit
        if limit is not None and self.level > limit:
            self._go(max(1, limit))

    def widen(self, level: int) -> bool:
        """While nothing is known it may as well begin with more; whether it does."""
        if self.state is not State.PROFILING or level <= self.level:
            return False
        self.level = level
        self.bound(self.limit)
        return True

    def step(self, effect: Effect) -> None:
        """Takes the effect of a period in which the level really ran."""
        self.undisturbed, self.correction = False, 1.0
        if effect.level != self.level:
            return
        self._seen.append(effect)
        self._steps += 1
        if self.state is State.HOLDING:
            self._on_hold()
        elif self.state is State.PROBING:
            self._on_probe()
        else:
            self._on_growth()

    def mean(self) -> Effect:
        """All that was seen of the current level since it was chosen."""
        weights = [1 / max(1e-6, each.error) ** 2 for each in self._seen]
        value = sum(weight * each.value for weight, each in zip(weights, self._seen, strict=True)) / sum(weights)
        # Errors of a period's figures are partly the same in the next: they do not vanish with the number.
        error = max(1 / math.sqrt(sum(weights)), 0.005 * self.level)
        return Effect(self.level, value, error)

    def _scatter(self, mean: float) -> float:
        """How far the mean may be off by chance alone: errors that all periods have in common do not move a level."""
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
                self._come_to_rest(mean, before)
                return
            latest = self._seen[-1]
            self.undisturbed = mean.value + 2 * latest.error >= self.level and gain + min(error, 0.15) >= FULL_GAIN
        # What is undisturbed becomes the measure: its effect is its level.
        self._before = Effect(self.level, self.level, mean.error) if self.undisturbed else mean
        higher = self._bounded(2 * self.level)
        if higher == self.level:
            self.state = State.HOLDING
            self._held, self._earned = 0, self.level if self._bends else 0
            return
        self.state = State.GROWING
        self._go(higher)

    def _still_grows(self, mean: Effect, before: Effect) -> bool:
        """Whether more tasks get more done although there is too little for them, and nobody else suffers from it."""
        if not (self.unchallenged and self.alone) or mean.value < GROWS * before.value:
            return False
        self._bends = self._bends or before.share < SHORT
        return True

    def _come_to_rest(self, mean: Effect, before: Effect) -> None:
        """More tasks do not get more done: holds what does, or a little beyond the knee if there is a clear one."""
        if not self._bends:
            self._look_back(max(mean, before, key=lambda each: each.value))
            return
        top = max(value for value, _ in self._levels.values())
        level = min(level for level, (value, _) in self._levels.items() if value >= AS_GOOD * top)
        self.state, self._rises, self._earned = State.HOLDING, 0, level
        self._go(self._bounded(level))

    def _look_back(self, best: Effect) -> None:
        """The knee is passed: before the level is settled, fewer show how fast an undisturbed task really is.

        While the number was growing others may have been there already, and what looked undisturbed was not.
        """
        fewer = max(1, round(best.value / FEWER))
        if self.unchallenged or not self.agile or not self.may_try or fewer >= best.value:
            self._settle(best.value)
            return
        self._before = best
        self.state = State.PROBING
        self._go(fewer)

    def _settle(self, effect: float) -> None:
        self.state = State.HOLDING
        self._rises = self._earned = 0
        level = self._bounded(effect + room(effect))
        if level != self.level:
            self._go(level)

    def _grow(self) -> None:
        """There is room again: what was tried before counts no more."""
        self.state, self.tried, self.ceiling, self._rises = State.GROWING, None, None, 0
        self._bends = False
        self._more, self._fewer = FIRST_MORE, FIRST_FEWER
        self._before = self.mean()
        self._levels = {self.level: (self._before.value, self._steps)}
        higher = self._bounded(2 * self.level)
        if higher == self.level:
            self.state = State.HOLDING
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
        if self._fell_behind(mean):
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
        """Whether capacity changed at once: the last periods agree, and differ from those before.

        Three are needed to believe that there is more: another run that shares a server may have paused for two.
        """
        latest: list[Effect] = []
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

    def _fell_behind(self, mean: Effect) -> bool:
        """Goes back if fewer did clearly more: thrashing."""
        for level, (value, step) in sorted(self._levels.items(), key=lambda pair: (-pair[1][0], pair[0])):
            fresh = step >= self._steps - WINDOW
            if fresh and level < self.level and mean.value + mean.error < WORSE * value:
                self.tried = self.level
                self.ceiling = level + 1
                self._go(level)
                return True
        return False

    def _try(self, mean: Effect) -> None:
        """Tries another level if it is time for that."""
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
            self.state = State.PROBING
            self._go(other)
        else:
            self._held = 0

    def _on_probe(self) -> None:
        mean, before = self.mean(), self._before
        assert before is not None
        sure = max(0.03 * self.level, 0.12) if self.by_times else max(0.05 * self.level, 0.25)
        if mean.error > sure and len(self._seen) < PATIENT:
            return
        self.state = State.HOLDING
        if self.level > before.level:
            self._judge_more(mean, before)
        else:
            self._fewer = NEXT_FEWER if self._fewer < NEXT_FEWER else LAST_FEWER
            self._judge_fewer(mean, before)

    def _judge_more(self, mean: Effect, before: Effect) -> None:
        gain = (mean.value - before.value) / (self.level - before.level)
        if gain < WORTH_GAIN:
            self._more = min(LAST_MORE, SELDOMER * self._more)
            self.tried = self.ceiling = self.level
            self._go(self._bounded(before.level))
        elif gain >= ENOUGH_GAIN and mean.share > 0.95:
            self._grow()
        else:
            self._earned, self._held = self.level, 0

    def _judge_fewer(self, mean: Effect, before: Effect) -> None:
        self.undisturbed = mean.value + 2 * self._seen[-1].error >= self.level
        # As slow with fewer tasks: that is not their own doing, and no reason to hold any of them back.
        slowed = before.share < 0.93 and 0 < mean.share < 1.07 * before.share
        # Others may have been there when the base was measured. Uses of bursts differ by more than their error says.
        if mean.value - (1.5 if self.by_times else 3.0) * mean.error > mean.level:
            self.correction = mean.share
        if slowed:
            self.correction = mean.share
            self._go(self._bounded(before.level))
        else:
            self._settle(before.value / self.correction)
