"""The throttle of one node's share in a run: limits concurrent tasks as on a single machine, and writes to the run's
log.

Usage profiles measured by nodes of the same size are kept in the run's store, so that a node that joins later starts
with them. Memory is not sized on a cluster: a category gets so many concurrent tasks that all would fit with the
largest memory seen.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from shoal.cluster.agent.run_description import LogEntry, RunDescription, encode
from shoal.core.policies.throttle.registry import regime
from shoal.core.policies.throttle.usage_model import UsageProfile, merged
from shoal.core.quantities import show_share
from shoal.core.resources import FRACTION, Resources
from shoal.core.scheduler import Scheduler
from shoal.core.scheduler_messages import CapsChanged, TaskResult
from shoal.core.store.interface import Store
from shoal.execution.throttle import MachineThrottle
from shoal.ledger.records import ThrottleDecided

LOOK_SECONDS = 0.1
SHARE_SECONDS = 20.0
"""Seconds between two writes of the profiles to the store."""
SAID = "throttle"
"""The verdict of a log entry that carries a throttle decision."""

_profiles = msgspec.msgpack.Decoder(dict[str, UsageProfile])
_record = msgspec.msgpack.Decoder(ThrottleDecided)


class NodeThrottle:
    """The throttle of one node, with profiles and decisions in the store of the run."""

    def __init__(
        self, about: RunDescription, broker: Scheduler, node: Resources, store: Store, name: str, now: float
    ) -> None:
        self._store, self._name = store, name
        self._piece = f"throttle:{node.get('cores') // FRACTION}"
        chosen = regime(about.throttle)
        self.throttling = MachineThrottle(chosen, broker, node, self._known() if chosen.learns else {})
        self.learns = chosen.learns
        self._broker = broker
        self._next_look, self._next_share = now, now + SHARE_SECONDS

    def _known(self) -> dict[str, UsageProfile]:
        found = self._store.get_piece(self._piece)
        return _profiles.decode(found) if found else {}

    def begin(self, ready: Iterable[int]) -> CapsChanged:
        return self.throttling.begin(ready)

    def ended(self, now: float, results: list[TaskResult]) -> None:
        self.throttling.ended(now, results)

    def weigh(self, task: int, memory: int) -> None:
        """Takes the memory in bytes that an attempt at a task has used."""
        self.throttling.weigh(task, memory)

    def due(self) -> float | None:
        """When `look` is due; None if never."""
        return self._next_look if self.learns else None

    def look(self, now: float) -> CapsChanged | None:
        """Returns new caps for the scheduler, if they have changed."""
        if not self.learns or now < self._next_look:
            return None
        self._next_look = now + LOOK_SECONDS
        caps = self.throttling.tick(now)
        for record in self.throttling.records(now, self._name):
            self._store.note(encode(LogEntry(-1, 0, SAID, "", self._name, output=encode(record))))
        if now >= self._next_share:
            self._next_share = now + SHARE_SECONDS
            self._share_profiles()
        return caps

    def _share_profiles(self) -> None:
        """Whoever writes at the same time may win: it is only a beginning for others."""
        known, mine = self._known(), self.throttling.controller.profiles()
        for category, profile in mine.items():
            known[category] = merged(known[category], profile) if category in known else profile
        self._store.put_piece(self._piece, encode(known))

    def words(self) -> tuple[str, ...]:
        """Describes the state of each category, for viewers of the cluster."""
        found = []
        for told in self.throttling.controller.standing():
            verdict = told.verdict
            may = "any number" if verdict.cap is None else str(verdict.cap)
            use = f", {verdict.dominant} {show_share(verdict.use)} in use" if verdict.dominant else ""
            found.append(f"{told.category}: {told.running} run, {may} may ({verdict.state.value}){use}")
        return tuple(found)

    def close(self) -> None:
        self.throttling.close()


def record_of(entry: LogEntry) -> ThrottleDecided:
    """Decodes a throttle decision from a log entry."""
    return _record.decode(entry.output)
