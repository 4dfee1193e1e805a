"""Connects a throttle to a scheduler: collects its input, and turns its verdicts into caps.

The driver passes in node samples and task results, and calls `look` ten times per second; the result goes to the
scheduler like any other event. If the categories with the current turn have nothing left to start, the next category
gets its turn early, so that no core idles until the end of a control period. Sensors, clocks and stored profiles are
the driver's part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from shoal.core.policies.retry import AttemptOutcome
from shoal.core.policies.throttle.controller import ControllerState, ThrottleVerdict
from shoal.core.policies.throttle.readings import SAMPLE_SECONDS, NodeSample
from shoal.core.policies.throttle.registry import SLOTS, Regime, Throttle, controller
from shoal.core.policies.throttle.usage_model import NOTHING_KNOWN, UsageProfile
from shoal.core.scheduler import Scheduler
from shoal.core.scheduler_messages import CapsChanged, TaskResult

REPORT_SECONDS = 10.0
"""Interval after which a category is reported again although nothing changed, so that its use and rate can be
plotted."""


TINY_SECONDS = 0.005
"""Tasks shorter than this are not throttled: starting them costs about as much as running them."""


class CategoryThrottleState(msgspec.Struct, frozen=True):
    """State of one category under the throttle, for status displays."""

    category: str
    verdict: ThrottleVerdict
    running: int
    waiting: int


class ThrottleController:
    """The throttle of one scheduler."""

    def __init__(
        self,
        regime: Regime,
        scheduler: Scheduler,
        cores: int,
        known: Mapping[str, UsageProfile] | None = None,
        needs: Mapping[str, int] | None = None,
    ) -> None:
        """`known`: profiles by category from earlier runs. `needs`: whole cores that one task is expected to use.

        Categories that appear together start with as many tasks as the cores can hold.
        """
        self.regime = regime
        self.scheduler = scheduler
        self.cores = max(1, cores)
        self._known = dict(known or {})
        self._needs = dict(needs or {})
        self.throttle = Throttle(controller(regime.name, self.cores, self._known))
        self._caps: dict[str, int | None] = {}
        """Caps last sent to the scheduler."""
        self._met: dict[str, int] = {}
        """All categories seen so far, with the number of tasks with which each started."""
        self._here: dict[str, int] = {}
        """Current categories, with their number of waiting tasks."""
        self._order: dict[str, None] = {}
        """Categories in order of appearance."""
        self._weights: dict[str, int] = {}
        """By category: peak memory of one task, where memory is not sized."""
        self._elastic: dict[str, bool] = {}
        """By cap: whether one of its lanes leaves cores undeclared; computed on first use."""
        self._seen_lanes = 0
        self._last_sample = float("-inf")
        self._news: list[CategoryThrottleState] = []
        self._newest: dict[str, tuple[float, int | None, str]] = {}
        """By category: when it was last reported, with its cap and state."""

    def begin(self, ready: Iterable[int] = ()) -> CapsChanged:
        """The caps before anything has run; `ready` are the tasks that are ready at the start."""
        if self.regime.slots:
            self._caps = {SLOTS: self.regime.slots}
            verdict = ThrottleVerdict(self.regime.slots, ControllerState.FIXED, self.reasons()[SLOTS])
            self._news.append(CategoryThrottleState("", verdict, 0, 0))
        elif self.regime.learns:
            lanes, lane_of = self.scheduler.lanes, self.scheduler.columns.lane
            together = {lanes[number].cap for number in {lane_of[task] for task in ready}}
            self._caps = {name: self._start(name, len(together)) for name in self.scheduler.contract.caps}
        return CapsChanged(dict(self._caps))

    def _start(self, name: str, together: int) -> int:
        """Initial number of tasks of a category: the level found earlier, or its share of the cores."""
        known = self._known.get(name)
        if known is not None and known.level:
            return known.level
        if self._declares_cores(name):
            together = 1  # declared cores are divided by the contract
        return max(1, -(-self.cores // (max(1, together) * self._needs.get(name, 1))))

    def _declares_cores(self, name: str) -> bool:
        """Whether all tasks of a category declare their cores."""
        lanes = self.scheduler.lanes
        for lane in lanes[self._seen_lanes :]:
            self._elastic[lane.cap] = lane.elastic or self._elastic.get(lane.cap, False)
        self._seen_lanes = len(lanes)
        return not self._elastic.get(name, True)

    def _register(self, names: Iterable[str]) -> dict[str, int | None]:
        """Registers categories that appear for the first time, and returns their initial levels. Later categories start
        with the share for one more category."""
        for name in names:
            if name not in self._met:
                self._met[name] = cap = self._caps.get(name) or self._start(name, 1)
                self.throttle.controller.know(name, self._known.get(name, NOTHING_KNOWN), cap)
        return {name: self._start(name, len(self._here) + 1) for name in self._caps if name not in self._met}

    def _raise_initial_levels(self) -> None:
        """Raises categories that are still at their initial level to the larger share left by categories that have
        ended."""
        for name in self._here:
            verdict = self.throttle.verdicts.get(name)
            if verdict is None or verdict.state is not ControllerState.PROFILING:
                continue
            start = self._start(name, len(self._here))
            if start > self._met[name]:
                self._met[name] = start
                if self.throttle.controller.widen(name, start):
                    del self.throttle.verdicts[name]  # forces an immediate new decision

    # ---- what happens --------------------------------------------------------------------------------------------

    def ended(self, now: float, results: Iterable[TaskResult]) -> None:
        """Processes results of attempts; their tasks must still be known to the scheduler."""
        ended, lanes, lane_of = self.throttle.ended, self.scheduler.lanes, self.scheduler.columns.lane
        for result in results:
            if result.outcome is AttemptOutcome.OK:
                lane = lanes[lane_of[result.task]]
                if lane.mean_duration is None or lane.mean_duration >= TINY_SECONDS:
                    ended(now, lane.cap, result.duration)

    def weigh(self, task: int, memory: int) -> None:
        """Records the memory used by a task; called only where memory is not sized."""
        name = self.scheduler.lanes[self.scheduler.columns.lane[task]].cap
        if memory > self._weights.get(name, 0):
            self._weights[name] = memory

    def wants_sample(self, now: float) -> bool:
        """Whether a sample of the node is due: every half second while tasks run."""
        return self.regime.learns and now - self._last_sample >= SAMPLE_SECONDS and bool(self.scheduler.running)

    def sample(self, now: float, sample: NodeSample) -> None:
        """Processes a sample of the node; the first one after a pause only marks the beginning of an interval."""
        paused = now - self._last_sample > 4 * SAMPLE_SECONDS
        self._last_sample = now
        if not paused:
            self.throttle.sample(now, sample)

    # ---- what follows --------------------------------------------------------------------------------------------

    def look(self, now: float) -> CapsChanged | None:
        """Makes a new decision if it is due; returns the changed caps for the scheduler, if any."""
        if not self.regime.learns:
            return None
        running, waiting = self.running(), self._waiting()
        self._here = {name: waiting.get(name, 0) for name in self._in_order(running, waiting)}
        caps = self._register(self._here)
        self._raise_initial_levels()
        tiny = self._short_categories()
        present = {name: count for name, count in self._here.items() if name not in tiny}
        new = any(name not in self.throttle.verdicts for name in present)
        if new or self.throttle.due(now):
            verdicts = self.throttle.decide(now, present, self._limits(present, running))
            caps |= {name: verdicts[name].cap for name in present}
            self._note(now, present, running)
        caps.update(self._grant_early_turns({**self._caps, **caps}, waiting))
        changed = {name: cap for name, cap in caps.items() if name not in self._caps or self._caps[name] != cap}
        if not changed:
            return None
        self._caps.update(changed)
        return CapsChanged(changed)

    def running(self) -> dict[str, int]:
        """Number of places in use under each cap."""
        lanes = self.scheduler.lanes
        found: dict[str, int] = {}
        for bundle in {id(bundle): bundle for bundle in self.scheduler.running.values()}.values():
            name = lanes[bundle.lane].cap
            found[name] = found.get(name, 0) + 1
        return found

    def reasons(self) -> dict[str, str]:
        """A sentence for each cap."""
        if self.regime.slots:
            count = self.regime.slots
            return {SLOTS: f"there are {count} slots" if count > 1 else "there is one slot"}
        return {name: verdict.reason for name, verdict in self.throttle.verdicts.items()}

    def news(self) -> list[CategoryThrottleState]:
        """Category states that changed since the last call."""
        news, self._news = self._news, []
        return news

    def standing(self) -> list[CategoryThrottleState]:
        """Current state of each category."""
        running, waiting = self.running(), self._waiting()
        return [
            CategoryThrottleState(name, self.throttle.verdicts[name], running.get(name, 0), waiting.get(name, 0))
            for name in self._in_order(running, waiting)
            if name in self.throttle.verdicts
        ]

    def profiles(self) -> dict[str, UsageProfile]:
        """Learned profiles to store. A level found in an earlier run is kept if this run was too short to find one."""
        found = {}
        for name, profile in self.throttle.profiles().items():
            level = profile.level or self._known.get(name, profile).level
            found[name] = msgspec.structs.replace(profile, level=level)
        return found

    def _waiting(self) -> dict[str, int]:
        lanes, queue = self.scheduler.lanes, self.scheduler.queue
        found: dict[str, int] = {}
        for lane in queue.lanes():
            name = lanes[lane].cap
            found[name] = found.get(name, 0) + queue.queued_in(lane)
        return found

    def _in_order(self, running: Mapping[str, int], waiting: Mapping[str, int]) -> list[str]:
        for name in (*running, *waiting):
            self._order.setdefault(name)
        return [name for name in self._order if name in running or name in waiting]

    def _short_categories(self) -> set[str]:
        """Categories whose tasks are too short to be throttled."""
        means = [(lane.cap, lane.mean_duration) for lane in self.scheduler.lanes if lane.mean_duration is not None]
        short = {name for name, mean in means if mean < TINY_SECONDS}
        return short - {name for name, mean in means if mean >= TINY_SECONDS} if short else short

    def _limits(self, present: Iterable[str], running: Mapping[str, int]) -> dict[str, int | None]:
        """How many tasks of each category the contract admits. Sizes not yet learned are large and must not lower the
        start."""
        limits: dict[str, int | None] = dict.fromkeys(present, 0)
        for number, lane in enumerate(self.scheduler.lanes):
            most = limits.get(lane.cap)
            if most is not None:
                admitted = self.scheduler.contract.admits(number)
                limits[lane.cap] = None if admitted is None else max(most, admitted, self._met[lane.cap])
        for name in limits if self._weights else ():
            fitting = self._fitting(name, running)
            limits[name] = min((bound for bound in (limits[name], fitting) if bound is not None), default=None)
        return limits

    def _fitting(self, name: str, running: Mapping[str, int]) -> int | None:
        """How many tasks of a category fit into memory beside the others, if all are as large as the largest."""
        contract, weight = self.scheduler.contract, self._weights.get(name)
        if not weight or "memory" not in contract.names:
            return None
        others = sum(count * self._weights.get(other, 0) for other, count in running.items() if other != name)
        return max(1, (contract.capacity("memory") - others) // weight)

    def _grant_early_turns(self, caps: Mapping[str, int | None], waiting: Mapping[str, int]) -> dict[str, int | None]:
        """Gives waiting categories their turn if no other category has a task to start."""
        held = [name for name in self._order if waiting.get(name) and caps.get(name) == 0]
        if not held or any(count and caps.get(name) != 0 for name, count in waiting.items()):
            return {}
        return {held[0]: self._start(held[0], 1)}

    def _note(self, now: float, present: Mapping[str, int], running: Mapping[str, int]) -> None:
        for name, waiting in present.items():
            verdict = self.throttle.verdicts[name]
            since, cap, state = self._newest.get(name, (float("-inf"), None, ""))
            if (cap, state) != (verdict.cap, verdict.state.value) or now - since >= REPORT_SECONDS:
                self._newest[name] = (now, verdict.cap, verdict.state.value)
                self._news.append(CategoryThrottleState(name, verdict, running.get(name, 0), waiting))
