"""How many tasks' worth of work gets done with n tasks together: n as long as none slows another down.

Two witnesses. What the tasks use of their dominant resource, divided by the use of one undisturbed task, is exact after
seconds, but a resource may be busy with thrashing. How long tasks take, compared with an undisturbed one, cannot lie,
but needs many endings, the more the more their times differ. Each is weighted by its error. Where they disagree, the
times are right: they say less when a resource is busy with thrashing, and far more when what was seen of it was the use
of other programs.
"""

from __future__ import annotations

import math

import msgspec

from shoal.policy.throttle.readings import Endings

MANY = 8
"""Fewer endings than this are not compared."""
USE_ERROR = 0.012
"""Uses and times of a period are never better known than this, relative to their size."""
TIME_ERROR = 0.01
TAIL_ERROR = 0.2
"""Of tasks that began lately the short ones end first: the more times differ, the less a few endings say."""
OVERRULE = 0.1
"""Times overrule use only if they are known with this relative error."""
FAR = 1.15
"""Times that say so many times as much as use, and more than the doubt of both, overrule it, too."""
KNOWN_SPREAD = 0.15
"""How much times are thought to differ if only their mean is known."""
REMEMBERED = 400
"""Endings without contention that count: later ones replace earlier ones."""


class Effect(msgspec.Struct, frozen=True):
    """What n tasks together come to."""

    level: int
    value: float
    """In undisturbed tasks: at most n, if the undisturbed time is right."""
    error: float

    @property
    def share(self) -> float:
        """Of full speed."""
        return self.value / self.level


def from_use(level: int, used: float, used_error: float, use: float, use_error: float) -> Effect | None:
    """What the use of the dominant resource says; `used` is that of the category, `use` that of one task."""
    if use <= 0:
        return None
    value = used / use
    relative = math.hypot(use_error / use, USE_ERROR)
    return Effect(level, value, math.hypot(used_error / use, relative * value))


def from_times(level: int, endings: Endings, base: Endings) -> Effect | None:
    """What the times of tasks say, compared with those of undisturbed ones."""
    if endings.count < MANY or base.count < MANY:
        return None
    value = level * math.exp(base.log_mean - endings.log_mean)
    common = TIME_ERROR + TAIL_ERROR * base.log_spread
    relative = math.sqrt(endings.log_error**2 + base.log_error**2 + common**2)
    return Effect(level, value, relative * value)


def together(use: Effect | None, times: Effect | None, vague: bool = False) -> Effect | None:
    """Both witnesses in one; `vague`: the resource may be busy all the time and yet serve more."""
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
    return Effect(use.level, value, 1 / math.sqrt(sum(weights)))


class Base:
    """The times of undisturbed tasks."""

    def __init__(self) -> None:
        self.endings = Endings()

    def learn(self, endings: Endings) -> None:
        if endings.count:
            keep = min(1.0, REMEMBERED / max(1, self.endings.count))
            self.endings.merge(endings, keep if self.endings.count > REMEMBERED else 1.0)

    def know(self, seconds: float) -> None:
        """Undisturbed tasks took so long in an earlier run; a few endings' worth, so that it is soon outweighed."""
        log = math.log(seconds)
        self.endings = Endings(2 * MANY, 2 * MANY * seconds, 2 * MANY * log, 2 * MANY * (log * log + KNOWN_SPREAD**2))

    def rescale(self, factor: float) -> None:
        """Undisturbed tasks turn out to be so many times as fast as was thought."""
        shift = -math.log(factor)
        known = self.endings
        known.squares += 2 * shift * known.logs + known.count * shift * shift
        known.logs += known.count * shift
        known.seconds /= factor
