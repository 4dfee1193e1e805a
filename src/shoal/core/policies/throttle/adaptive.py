"""The default throttle: finds for each category the concurrency beyond which throughput no longer grows.

Each category has a `CategoryTrack` with a hill climber. In each control period the controller computes the throughput
of each category, passes it to the climbers, and learns the use and duration of undisturbed tasks in periods without
contention. `Turns` decides which categories run together: those that need the same bottleneck take turns. The contract
is an upper bound for everything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from shoal.core.policies.throttle.controller import ControllerState, ThrottleVerdict, rate_of
from shoal.core.policies.throttle.hill_climber import (
    MANY,
    Climber,
    ThroughputBase,
    ThroughputModel,
    from_times,
    from_use,
    together,
)
from shoal.core.policies.throttle.readings import COMPRESSIBLE, CPU, DISK, Endings, Period, Turnout
from shoal.core.policies.throttle.usage_model import FLOOR, KNOWN, UsageModel, UsageProfile

BLOCKED = 2
BELIEVED = 30
"""After this many periods with too few running tasks the contract is assumed to admit no more, for as many periods."""
WELL_KNOWN = 0.15
"""Maximum relative error of an estimated use that is used as a measure."""


class CategoryTrack:
    """State of one category: climber, base of undisturbed tasks, and limit by the contract."""

    def __init__(self, climber: Climber) -> None:
        self.climber = climber
        self.base = ThroughputBase()
        self.pending = Endings()
        """Endings at the current level, too few so far for an estimate."""
        self.latest = Endings()
        """Endings behind the last throughput estimate."""
        self.effect: ThroughputModel | None = None
        self._blocked = 0
        """Periods in which fewer tasks ran than allowed although others waited."""
        self._admitted: int | None = None
        """Number of tasks that the contract was observed to admit."""
        self._believed = 0
        """Number of periods for which that observation remains valid."""

    def amount(self, turnout: Turnout) -> float:
        """Throughput of the category in this period in units of undisturbed tasks, as far as known."""
        if self.effect is None or self.effect.level != turnout.target:
            return turnout.running
        return min(turnout.running, self.effect.value)

    def collect(self, turnout: Turnout) -> None:
        self.pending.merge(turnout.endings)

    def limit(self, told: int | None) -> int | None:
        """How many tasks the contract admits: as reported by the driver, or as observed."""
        if self._admitted is None or told is None:
            return told if self._admitted is None else self._admitted
        return min(told, self._admitted)

    def check_contract(self, turnout: Turnout) -> None:
        """Detects that fewer tasks run than allowed although others wait; tests it again after some time."""
        self._believed -= 1
        if self._believed <= 0:
            self._admitted = None
        short = turnout.waiting > 0 and turnout.running < turnout.target and not turnout.held
        self._blocked = self._blocked + 1 if short and turnout.target == self.climber.level else 0
        if self._blocked >= BLOCKED and turnout.running >= 1:
            self._admitted, self._believed, self._blocked = round(turnout.running), BELIEVED, 0
            self.climber.bound(self.limit(turnout.limit))

    def moved(self) -> None:
        """Resets the statistics of the level after a change."""
        self.pending = Endings()

    def measure(self, turnout: Turnout, use: ThroughputModel | None, vague: bool = False) -> ThroughputModel | None:
        """Combines the estimates from use and from durations; durations are collected until there are enough."""
        times = from_times(turnout.target, self.pending, self.base.endings)
        if times is not None:
            self.latest, self.pending = self.pending, Endings()
        return together(use, times, vague)

    def has_base(self) -> bool:
        return self.base.endings.count >= MANY


def own_use(
    model: UsageModel, tracks: Mapping[str, CategoryTrack], period: Period, category: str
) -> ThroughputModel | None:
    """Throughput estimated from the category's use of its dominant resource, if the use of one task is well known."""
    profile = model.profile(category)
    name = profile.dominant
    if name is None or profile.error[name] > WELL_KNOWN * profile.use[name]:
        return None
    figure = period.use[name]
    used, variance = figure.mean, figure.error**2
    for other, turnout in period.turnout.items():
        if other != category and turnout.running:
            amount = tracks[other].amount(turnout)
            used -= amount * model.use(name, other)
            variance += (amount * model.error(name, other)) ** 2
    turnout = period.turnout[category]
    # A few more or fewer tasks than the target may have run while it was being reached.
    scale = turnout.target / turnout.running if turnout.running else 1.0
    error = scale * math.sqrt(variance)
    return from_use(turnout.target, scale * max(0.0, used), error, profile.use[name], profile.error[name])


PATIENCE = 15
"""Control periods that a category waits for its turn."""
WHOLE = 0.95
"""Usable share of a resource unless measurements show that it is less."""


class TurnClaim(msgspec.Struct, frozen=True):
    """The resources that a category would use."""

    category: str
    level: int
    dominant: str | None
    """Dominant resource; None if there is none or it is unknown: such a category conflicts with no other."""
    use: Mapping[str, float]
    """Use of one task by resource."""
    full: bool
    """Its tasks already slow each other down: nothing is left of its dominant resource."""
    waiting: bool
    """It has ready tasks."""


class Turns:
    """Turns of categories that need the same resource, with waiting times."""

    def __init__(self, patience: int = PATIENCE) -> None:
        self.patience = patience
        self._order: list[str] = []
        """All categories ever seen: one that returns gets its old position."""
        self._waited: dict[str, tuple[int, str]] = {}
        """Number of periods each has waited, and for which category."""
        self._turn: dict[str, int] = {}
        """Number of periods each has been running."""

    def grant(self, claims: Sequence[TurnClaim]) -> dict[str, tuple[int, str | None]]:
        """For each category how many tasks may run, and if none may, the category ahead of it."""
        known = {claim.category: claim for claim in claims}
        self._order += [category for category in known if category not in self._order]
        overdue = [category for category in self._order if self._is_overdue(category)]
        if overdue:
            self._order = overdue + [category for category in self._order if category not in overdue]
        granted: dict[str, tuple[int, str | None]] = {}
        running: list[TurnClaim] = []
        for category in [category for category in self._order if category in known]:
            claim = known[category]
            ahead = self._in_the_way(claim, running)
            granted[category] = (claim.level if ahead is None else 0, ahead)
            if claim.waiting:
                self._note(category, ahead)
                if ahead is None:
                    running.append(claim)
        return granted

    def _note(self, category: str, ahead: str | None) -> None:
        if ahead is None:
            self._turn[category] = self._turn.get(category, 0) + 1
            self._waited.pop(category, None)
        else:
            self._turn.pop(category, None)
            self._waited[category] = (self._waited.get(category, (0, ""))[0] + 1, ahead)

    def _is_overdue(self, category: str) -> bool:
        """Whether it has waited too long, and the category ahead of it has had a turn of the same length."""
        periods, ahead = self._waited.get(category, (0, ""))
        return periods >= self.patience and self._turn.get(ahead, self.patience) >= self.patience

    def _in_the_way(self, claim: TurnClaim, running: Sequence[TurnClaim]) -> str | None:
        """The first admitted category that leaves no resources for a single task of the claim."""
        name = claim.dominant
        if name is None:
            return None
        taken = claim.use.get(name, 0.0)
        for other in running:
            taken += other.level * other.use.get(name, 0.0)
            if other.dominant == name and (other.full or taken > WHOLE):
                return other.category
        return None


BUSY = {"cpu": "the processors are busy", "disk": "the disk is busy", "network": "the network is busy"}
ORDINALS = (
    "no",
    "first",
    "second",
    "third",
    "fourth",
    "fifth",
    "sixth",
    "seventh",
    "eighth",
    "ninth",
    "tenth",
    "eleventh",
    "twelfth",
)


def explain(category: str, cap: int, climber: Climber, dominant: str | None, ahead: str | None) -> str:
    """The reason of a cap in one sentence without a full stop."""
    if ahead is not None:
        what = f" ({BUSY[dominant]})" if dominant is not None else ""
        return f"category '{category}' waits for its turn after '{ahead}'{what}"
    run = f"{cap} of category '{category}' run{'s' if cap == 1 else ''} together" if cap != 1 else _alone(category)
    if climber.state is ControllerState.PROFILING:
        return f"{run} until it is known what one of them uses"
    if climber.state is ControllerState.GROWING:
        return f"{run}, to see whether that is faster"
    if climber.state is ControllerState.PROBING:
        return f"{run} for a moment, to see whether another number is better"
    if climber.limit is not None and cap >= climber.limit:
        return f"{run}; the contract admits no more"
    why = BUSY[dominant] if dominant is not None else "something outside the node is busy"
    if climber.tried is None:
        return f"{run}; more would slow each other down ({why})"
    if climber.tried == cap + 1:
        return f"{run}; a {_ordinal(climber.tried)} was tried and brought nothing ({why})"
    return f"{run}; {climber.tried} were tried and brought nothing ({why})"


def _alone(category: str) -> str:
    return f"1 of category '{category}' runs at a time"


def _ordinal(number: int) -> str:
    if number < len(ORDINALS):
        return ORDINALS[number]
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


START_SHARE = 4
"""A new category starts on 1/N of the processors, beside the running ones."""
OWN = 0.85
"""A resource with more use than this is the bottleneck of the node itself, rather than a server behind it."""
BUSY_DISK = 0.5
"""The same for a disk that is the resource most used by the tasks. A disk is seldom busy all the time, since tasks
start and end, and its busy time says little about its remaining capacity."""
CLEAR = 0.95
"""A category at this fraction of full speed runs without contention."""
CALM = 0.6
"""While no resource is used more than this, categories whose use cannot be separated yet may grow to separate them."""
PRESSED = 0.1
"""Nothing grows while tasks wait for memory during this fraction of the time."""
UNSETTLED = 2
"""Number of periods after a change of another category in which observations of a category are not its own effect."""
AGILE = 2.0
"""Categories whose tasks take longer than this many periods are not reduced for a trial: it would last too long."""


class AdaptiveController:
    """Finds the concurrency of each category automatically."""

    def __init__(self, cores: int, known: Mapping[str, UsageProfile] | None = None) -> None:
        self.cores = max(1, cores)
        self.known = dict(known or {})
        self.model = UsageModel()
        self.turns = Turns()
        self.tracks: dict[str, CategoryTrack] = {}
        self._starts: dict[str, int] = {}
        self._mover = ""
        """The category that grew last in order to separate its use from that of others."""

    def decide(self, now: float, period: Period) -> dict[str, ThrottleVerdict]:
        for category, turnout in period.turnout.items():
            if category not in self.tracks:
                self.tracks[category] = self._begin(category)
            track = self.tracks[category]
            track.climber.bound(track.limit(turnout.limit))
        if period.samples:
            self._learn(period)
        return self._verdicts(period)

    def know(self, category: str, profile: UsageProfile, start: int) -> None:
        self.known[category] = profile
        self._starts[category] = start

    def widen(self, category: str, level: int) -> bool:
        track = self.tracks.get(category)
        if track is None or not track.climber.widen(level):
            return False
        track.moved()
        return True

    def profiles(self) -> dict[str, UsageProfile]:
        found = {}
        for category, track in self.tracks.items():
            profile, base = self.model.profile(category), track.base.endings
            held = track.climber.level if track.climber.state is ControllerState.HOLDING else 0
            seconds = math.exp(base.log_mean) if base.count else 0.0
            found[category] = UsageProfile(profile.use, profile.error, seconds, base.log_error, held)
        return found

    def _begin(self, category: str) -> CategoryTrack:
        known = self.known.get(category)
        start = self._starts.get(category) or max(1, self.cores // START_SHARE)
        if known is None:
            return CategoryTrack(Climber(start))
        self.model.know(category, known)
        measured = known.dominant is not None or known.seconds > 0
        track = CategoryTrack(Climber(known.level or start, known=measured and known.level > 0))
        if known.seconds > 0:
            track.base.know(known.seconds)
        return track

    def _learn(self, period: Period) -> None:
        unknown = self._unknown(period)
        mover = self._next_mover(unknown)
        clear = False
        for category, turnout in period.turnout.items():
            track = self.tracks[category]
            track.check_contract(turnout)
            track.climber.since += 1
            if not turnout.held or turnout.target != track.climber.level:
                continue
            track.collect(turnout)
            clear |= track.climber.state is ControllerState.PROFILING
            effect = self._effect(category, track, period, category == mover)
            if (
                effect is not None
                and (category == mover or category not in unknown)
                and not self._has_memory_pressure(period)
            ):
                clear |= self._advance(category, track, effect, period)
        if clear:
            self._add_row(period)

    def _add_row(self, period: Period) -> None:
        running = {category: turnout.running for category, turnout in period.turnout.items()}
        self.model.add(running, period.use, self._contended(period))

    def _effect(self, category: str, track: CategoryTrack, period: Period, may_move: bool) -> ThroughputModel | None:
        """Throughput of the category, or None if unknown; while it is profiled, it defines the unit itself."""
        turnout, level = period.turnout[category], period.turnout[category].target
        if track.climber.state is ControllerState.PROFILING:
            track.base.learn(track.pending)
            track.moved()
            if self._known_with(category, period) or track.has_base():
                return ThroughputModel(level, level, 0.02 * level)
        vague = self.model.profile(category).dominant == DISK
        found = track.measure(turnout, own_use(self.model, self.tracks, period, category), vague)
        if found is None and may_move and all(period.use[name].mean < CALM for name in COMPRESSIBLE):
            return ThroughputModel(level, level, 0.05 * level)
        if found is None and not track.has_base():
            # No measure exists yet: the running tasks become the base.
            track.base.learn(track.pending)
            track.moved()
        return found

    def _known_with(self, category: str, period: Period) -> bool:
        """Whether this period alone determines the use of a task: true if no other category runs."""
        alone = all(not turnout.running for other, turnout in period.turnout.items() if other != category)
        running = period.turnout[category].running
        uses = [period.use[name] for name in COMPRESSIBLE]
        return alone and any(use.mean > FLOOR * running and use.error < WELL_KNOWN * use.mean for use in uses)

    def _unknown(self, period: Period) -> list[str]:
        """Categories that run beside others and whose use cannot be separated yet."""
        running = [category for category, turnout in period.turnout.items() if turnout.running]
        if len(running) < 2:
            return []
        return [
            category
            for category in running
            if self.tracks[category].climber.state in (ControllerState.PROFILING, ControllerState.GROWING)
            and self.tracks[category].climber.level <= self.cores
            and own_use(self.model, self.tracks, period, category) is None
        ]

    def _next_mover(self, unknown: Sequence[str]) -> str:
        """Of several categories whose use is not separated, the one that may change this time."""
        if unknown:
            at = unknown.index(self._mover) + 1 if self._mover in unknown else 0
            self._mover = unknown[at % len(unknown)]
            return self._mover
        return ""

    def _advance(self, category: str, track: CategoryTrack, effect: ThroughputModel, period: Period) -> bool:
        """Passes the throughput to the climber; returns whether the category ran without contention."""
        climber = track.climber
        others = [each.climber for name, each in self.tracks.items() if name != category and name in period.turnout]
        trying = [other for other in others if other.state in (ControllerState.GROWING, ControllerState.PROBING)]
        if climber.state is ControllerState.HOLDING and any(other.since <= UNSETTLED for other in trying):
            return False
        climber.may_try = not trying
        climber.unchallenged = self._is_own(category, period)
        climber.alone = not any(turnout.running for name, turnout in period.turnout.items() if name != category)
        climber.by_times = self.model.profile(category).dominant is None
        climber.agile = 0 < track.base.endings.mean <= AGILE * period.seconds
        track.effect, level = effect, climber.level
        climber.step(effect)
        if climber.correction != 1.0:
            self.model.rescale(category, climber.correction)
            track.base.rescale(climber.correction)
        elif climber.undisturbed:
            track.base.learn(track.latest if track.latest.count else track.pending)
        track.latest = Endings()
        if climber.level != level:
            track.moved()
        return climber.undisturbed

    def _is_own(self, category: str, period: Period) -> bool:
        """Whether the category's bottleneck is a resource of the node itself; all of its tasks compute."""
        profile = self.model.profile(category)
        if profile.dominant == DISK and period.use[DISK].mean > BUSY_DISK:
            return True
        known = [name for name, use in profile.use.items() if use > max(FLOOR, KNOWN * profile.error[name])]
        return any(period.use[name].mode > OWN for name in (CPU, *known))

    def _has_memory_pressure(self, period: Period) -> bool:
        return period.memory_pressure > PRESSED

    def _contended(self, period: Period) -> list[str]:
        """Resources for which tasks of some category may be waiting."""
        found = []
        for category, turnout in period.turnout.items():
            effect, name = self.tracks[category].effect, self.model.profile(category).dominant
            clear = effect is not None and effect.level == turnout.target and effect.share >= CLEAR
            if turnout.running and name is not None and not clear:
                found.append(name)
        return found

    def _verdicts(self, period: Period) -> dict[str, ThrottleVerdict]:
        claims = [self._claim(category, turnout, period) for category, turnout in period.turnout.items()]
        granted = self.turns.grant(claims)
        verdicts = {}
        for claim in claims:
            category = claim.category
            climber, profile = self.tracks[category].climber, self.model.profile(category)
            cap, ahead = granted[category]
            state = climber.state if cap else ControllerState.WAITING
            reason = explain(category, cap, climber, claim.dominant, ahead)
            use = period.use[claim.dominant].mean if claim.dominant and period.samples else 0.0
            verdicts[category] = ThrottleVerdict(cap, state, reason, profile.dominant, use, rate_of(period, category))
        return verdicts

    def _claim(self, category: str, turnout: Turnout, period: Period) -> TurnClaim:
        climber, profile = self.tracks[category].climber, self.model.profile(category)
        effect = self.tracks[category].effect
        full = (effect is not None and effect.share < CLEAR) or climber.tried is not None
        profiled = climber.state is not ControllerState.PROFILING
        return TurnClaim(
            category, climber.level, profile.dominant if profiled else None, profile.use, full, turnout.waiting > 0
        )
