"""The throttle of one node's share in a run: at work like that of a single machine, with what it says in the run's log.

What nodes of the same size have learned lies in the run's books, so that one that comes later begins with it. Memory
is not sized on a cluster: so many tasks of a category run that the largest seen would fit as often.
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
"""So often what was learned is put into the books."""
SAID = "throttle"
"""The verdict of an entry of the log that carries what the throttle said."""

_profiles = msgspec.msgpack.Decoder(dict[str, UsageProfile])
_record = msgspec.msgpack.Decoder(ThrottleDecided)


class NodeThrottle:
    """A throttle that speaks through the books of a run."""

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
        """An attempt at a task has used so many bytes of memory."""
        self.throttling.weigh(task, memory)

    def due(self) -> float | None:
        """When it looks again; None if it never does."""
        return self._next_look if self.learns else None

    def look(self, now: float) -> CapsChanged | None:
        """What the broker is to be told, if anything."""
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
        """How each category stands here, for those who look at the cluster."""
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
    """What the throttle of a node said, from the log."""
    return _record.decode(entry.output)
