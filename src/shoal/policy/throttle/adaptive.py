"""The default controller: as many tasks of each category as get more done, and no more than others bear.

For each category it has a track (`track`). Each period it works out how much gets done, tells the climbers, learns
what an undisturbed task is like where nothing was short, and lets `turns` say which categories run together. The
contract bounds everything. Who starts tasks is left to others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from shoal.policy.throttle.climb import Climber
from shoal.policy.throttle.controller import State, Verdict, rate_of
from shoal.policy.throttle.effect import Effect
from shoal.policy.throttle.profile import FLOOR, KNOWN, Profile, UseModel
from shoal.policy.throttle.readings import COMPRESSIBLE, CPU, DISK, Endings, Period, Turnout
from shoal.policy.throttle.reasons import explain
from shoal.policy.throttle.track import WELL_KNOWN, Track, own_use
from shoal.policy.throttle.turns import Claim, Turns

START_SHARE = 4
"""A new category begins on this part of the processors, beside whatever runs."""
OWN = 0.85
"""A resource that is used beyond this share is the node's own bottleneck and not a server's behind it."""
BUSY_DISK = 0.5
"""The same for a disk of which the tasks use more than of anything else: it is seldom busy all the time, since tasks
start and end, and how busy it looks says little of what it could still do."""
CLEAR = 0.95
"""A category that goes at this part of full speed is free of contention."""
CALM = 0.6
"""While no resource is used beyond this share, categories not yet known apart may grow a little to tell them apart."""
PRESSED = 0.1
"""Nothing grows while tasks wait for memory for this part of the time."""
UNSETTLED = 2
"""So long after another category has changed, what a category that holds still sees is not its own doing."""
AGILE = 2.0
"""Tasks that take longer than so many periods are not held back for a trial: it would last too long."""


class Adaptive:
    """The controller that finds the number by itself."""

    def __init__(self, cores: int, known: Mapping[str, Profile] | None = None) -> None:
        self.cores = max(1, cores)
        self.known = dict(known or {})
        self.model = UseModel()
        self.turns = Turns()
        self.tracks: dict[str, Track] = {}
        self._starts: dict[str, int] = {}
        self._mover = ""
        """The category that grew last to be told apart from others."""

    def decide(self, now: float, period: Period) -> dict[str, Verdict]:
        for category, turnout in period.turnout.items():
            if category not in self.tracks:
                self.tracks[category] = self._begin(category)
            track = self.tracks[category]
            track.climber.bound(track.limit(turnout.limit))
        if period.samples:
            self._learn(period)
        return self._verdicts(period)

    def know(self, category: str, profile: Profile, start: int) -> None:
        self.known[category] = profile
        self._starts[category] = start

    def widen(self, category: str, level: int) -> bool:
        track = self.tracks.get(category)
        if track is None or not track.climber.widen(level):
            return False
        track.moved()
        return True

    def profiles(self) -> dict[str, Profile]:
        found = {}
        for category, track in self.tracks.items():
            profile, base = self.model.profile(category), track.base.endings
            held = track.climber.level if track.climber.state is State.HOLDING else 0
            seconds = math.exp(base.log_mean) if base.count else 0.0
            found[category] = Profile(profile.use, profile.error, seconds, base.log_error, held)
        return found

    def _begin(self, category: str) -> Track:
        known = self.known.get(category)
        start = self._starts.get(category) or max(1, self.cores // START_SHARE)
        if known is None:
            return Track(Climber(start))
        self.model.know(category, known)
        measured = known.dominant is not None or known.seconds > 0
        track = Track(Climber(known.level or start, known=measured and known.level > 0))
        if known.seconds > 0:
            track.base.know(known.seconds)
        return track

    def _learn(self, period: Period) -> None:
        unknown = self._unknown(period)
        mover = self._next_mover(unknown)
        clear = False
        for category, turnout in period.turnout.items():
            track = self.tracks[category]
            track.mind_the_contract(turnout)
            track.climber.since += 1
            if not turnout.held or turnout.target != track.climber.level:
                continue
            track.collect(turnout)
            clear |= track.climber.state is State.PROFILING
            effect = self._effect(category, track, period, category == mover)
            if effect is not None and (category == mover or category not in unknown) and not self._is_pressed(period):
                clear |= self._advance(category, track, effect, period)
        if clear:
            self._add_row(period)

    def _add_row(self, period: Period) -> None:
        running = {category: turnout.running for category, turnout in period.turnout.items()}
        self.model.add(running, period.use, self._contended(period))

    def _effect(self, category: str, track: Track, period: Period, may_move: bool) -> Effect | None:
        """What the category got done, or that it is not known yet; while it is profiled, it is its own measure."""
        turnout, level = period.turnout[category], period.turnout[category].target
        if track.climber.state is State.PROFILING:
            track.base.learn(track.pending)
            track.moved()
            if self._known_with(category, period) or track.has_base():
                return Effect(level, level, 0.02 * level)
        vague = self.model.profile(category).dominant == DISK
        found = track.measure(turnout, own_use(self.model, self.tracks, period, category), vague)
        if found is None and may_move and all(period.use[name].mean < CALM for name in COMPRESSIBLE):
            return Effect(level, level, 0.05 * level)
        if found is None and not track.has_base():
            # There is no measure at all: what runs now becomes one.
            track.base.learn(track.pending)
            track.moved()
        return found

    def _known_with(self, category: str, period: Period) -> bool:
        """Whether this period alone tells what a task uses: it does where no other category runs."""
        alone = all(not turnout.running for other, turnout in period.turnout.items() if other != category)
        running = period.turnout[category].running
        uses = [period.use[name] for name in COMPRESSIBLE]
        return alone and any(use.mean > FLOOR * running and use.error < WELL_KNOWN * use.mean for use in uses)

    def _unknown(self, period: Period) -> list[str]:
        """Categories that run beside others and cannot be told apart from them yet."""
        running = [category for category, turnout in period.turnout.items() if turnout.running]
        if len(running) < 2:
            return []
        return [
            category
            for category in running
            if self.tracks[category].climber.state in (State.PROFILING, State.GROWING)
            and self.tracks[category].climber.level <= self.cores
            and own_use(self.model, self.tracks, period, category) is None
        ]

    def _next_mover(self, unknown: Sequence[str]) -> str:
        """Of several categories that are not known apart, the one that may change this time."""
        if unknown:
            at = unknown.index(self._mover) + 1 if self._mover in unknown else 0
            self._mover = unknown[at % len(unknown)]
            return self._mover
        return ""

    def _advance(self, category: str, track: Track, effect: Effect, period: Period) -> bool:
        """Tells the climber, and says whether the period was free of contention for the category."""
        climber = track.climber
        others = [each.climber for name, each in self.tracks.items() if name != category and name in period.turnout]
        trying = [other for other in others if other.state in (State.GROWING, State.PROBING)]
        if climber.state is State.HOLDING and any(other.since <= UNSETTLED for other in trying):
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
        """Whether something that its tasks use is short on the node itself; all of them compute."""
        profile = self.model.profile(category)
        if profile.dominant == DISK and period.use[DISK].mean > BUSY_DISK:
            return True
        known = [name for name, use in profile.use.items() if use > max(FLOOR, KNOWN * profile.error[name])]
        return any(period.use[name].mode > OWN for name in (CPU, *known))

    def _is_pressed(self, period: Period) -> bool:
        return period.memory_pressure > PRESSED

    def _contended(self, period: Period) -> list[str]:
        """Resources for which the tasks of some category may be waiting."""
        found = []
        for category, turnout in period.turnout.items():
            effect, name = self.tracks[category].effect, self.model.profile(category).dominant
            clear = effect is not None and effect.level == turnout.target and effect.share >= CLEAR
            if turnout.running and name is not None and not clear:
                found.append(name)
        return found

    def _verdicts(self, period: Period) -> dict[str, Verdict]:
        claims = [self._claim(category, turnout, period) for category, turnout in period.turnout.items()]
        granted = self.turns.grant(claims)
        verdicts = {}
        for claim in claims:
            category = claim.category
            climber, profile = self.tracks[category].climber, self.model.profile(category)
            cap, ahead = granted[category]
            state = climber.state if cap else State.WAITING
            reason = explain(category, cap, climber, claim.dominant, ahead)
            use = period.use[claim.dominant].mean if claim.dominant and period.samples else 0.0
            verdicts[category] = Verdict(cap, state, reason, profile.dominant, use, rate_of(period, category))
        return verdicts

    def _claim(self, category: str, turnout: Turnout, period: Period) -> Claim:
        climber, profile = self.tracks[category].climber, self.model.profile(category)
        effect = self.tracks[category].effect
        full = (effect is not None and effect.share < CLEAR) or climber.tried is not None
        profiled = climber.state is not State.PROFILING
        return Claim(
            category, climber.level, profile.dominant if profiled else None, profile.use, full, turnout.waiting > 0
        )
