"""The heartbeat of a node: its status (queues, running tasks, transfers), clock offset, and idleness beside busy peers.

The status is computed once a second from values that exist anyway, so starting and ending tasks costs nothing extra.
Counters cover all runs of the node; a reader that wants those of one run subtracts the values from before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.cluster.agent.messages import ClusterNodeFacts
from shoal.core.quantities import show_seconds
from shoal.core.resources import FRACTION
from shoal.execution.processes.kernel_counters import parse_number
from shoal.execution.processes.process_table import read_small

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.cluster.agent.run_share import RunShare


MOST_NAMED = 4
"""Maximum number of categories of running tasks that are reported by name."""
MOST_LANES = 16
"""Maximum number of categories of queued tasks that are reported by number."""


class Heartbeats:
    """The counters of one node, over its lifetime."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._idle_since = clock()
        self._joined = clock()
        self._before = (0, 0, 0, 0, 0)
        """Tasks stolen and pushed, files fetched, cache hits and their bytes, in runs that have ended here."""

    def joined(self) -> None:
        """The node has joined the cluster."""
        self._joined = self._clock()

    def share_ends(self, share: RunShare) -> None:
        """Adds the counters of a share that ends."""
        self._before = self._grown(share)

    def note(
        self,
        share: RunShare | None,
        *,
        calls: int,
        draining: bool,
        ahead: float,
        fetched: int,
        memory: str,
        memory_plain: bool,
    ) -> ClusterNodeFacts:
        """Returns the node's status; `calls`: Python calls that run here, `fetched`: bytes of files that were
        fetched."""
        now = self._clock()
        held = calls + (len(share.scheduler.broker.state) if share is not None else 0)
        if held:
            self._idle_since = now
        stolen, pushed, files, hits, hit_bytes = self._grown(share)
        queues = _queues(share) if share is not None else {"running": calls, "held": calls}
        return ClusterNodeFacts(
            idle_seconds=None if held else now - self._idle_since,
            draining=draining or (share is not None and share.scheduler.broker.draining),
            ahead=ahead,
            fetched=fetched,
            memory=memory,
            memory_plain=memory_plain,
            stolen=stolen,
            pushed=pushed,
            up_seconds=now - self._joined,
            memory_used=memory_used(),
            fetched_files=files,
            hits=hits,
            hit_bytes=hit_bytes,
            **queues,
        )

    def _grown(self, share: RunShare | None) -> tuple[int, int, int, int, int]:
        if share is None:
            return self._before
        parcels, reads = share.scheduler.parcels, share.task_files.reads if share.task_files is not None else None
        stolen, pushed, files, hits, hit_bytes = self._before
        stolen, pushed = stolen + parcels.stolen, pushed + parcels.pushed
        if reads is None:
            return stolen, pushed, files, hits, hit_bytes
        return stolen, pushed, files + reads.fetched, hits + reads.hits, hit_bytes + reads.hit_bytes


def _queues(share: RunShare) -> dict[str, Any]:
    """Returns the numbers of tasks in a share by state, and the resources of the running ones."""
    broker, tiers = share.scheduler.broker, share.scheduler.tiers
    own, running = len(tiers.local), len(broker.running)
    fetching = share.task_files.coming() if share.task_files is not None else 0
    # Tasks of one bundle run one after another, in the same place.
    places = {bundle.place: task for task, bundle in broker.running.items()}
    elastic = sum(broker.lanes[broker.running[task].lane].elastic for task in places.values())
    names = Counter(share.work.profiles[share.work.category[task]].category for task in places.values())
    contract = broker.contract
    at = contract.names.index("cores") if "cores" in contract.names else None
    held = contract.total[at] - contract.free[at] if at is not None else 0
    return {
        "lasting": tuple(share.since.lasting({task: broker.attempt[task] for task in broker.running}, share.clock())),
        "running": running,
        "shared": len(tiers) - own,
        "local": own,
        "held": len(broker.state),
        "throttle": share.node_throttle.words(),
        "run": share.run,
        "places": len(places),
        "fetching": fetching,
        "resting": max(0, len(broker.state) - running - len(tiers)) + len(share.unplaceable),
        "cores_held": min(contract.total[at], held + elastic * FRACTION) if at is not None else 0,
        "doing": tuple(names.most_common(MOST_NAMED)),
        "lanes": tuple(sorted({broker.origin(lane) for lane in tiers.shared.lanes()})[:MOST_LANES]),
    }


def memory_used() -> float:
    """Returns the fraction of the machine's memory in use, by all processes; 0 where it is unknown."""
    text = read_small("/proc/meminfo")
    total, available = parse_number(text, b"MemTotal:"), parse_number(text, b"MemAvailable:")
    return round(1 - available / total, 4) if total and available is not None else 0.0


TOLERATED = 2.0
"""Seconds; smaller differences hardly show in a record."""


def ahead(before: float, after: float, theirs: float) -> float:
    """Returns the seconds by which the local clock is ahead of one that showed `theirs` between `before` and `after`; 0
    if negligible."""
    found = (before + after) / 2 - theirs
    return found if abs(found) > TOLERATED + (after - before) / 2 else 0.0


def skew_sentence(name: str, seconds: float) -> str:
    """Returns the message about a clock that is wrong."""
    where = "ahead of" if seconds > 0 else "behind"
    return (
        f"the clock of {name} is {show_seconds(round(abs(seconds)))} {where} the cluster's, "
        "and so are the times of its tasks; let it be set by NTP"
    )


FIRST_LOOK = 5.0
LONGEST_PAUSE = 60.0
"""Seconds after which an idle node reads the status of all nodes; doubled as long as there is nothing for it."""
SLACK = 3.0
"""Seconds by which a status may be old, and for which loops may be busy."""


class BusyPeer(msgspec.Struct, frozen=True):
    """A peer with tasks that this node could run."""

    peer: int
    shared: int
    seconds: float
    """For how long this node has been idle while the peer had tasks for it."""
    lasts: bool
    """Whether that exceeds the allowed time."""


class IdleWatch:
    """Detects that this node is idle while a peer queues tasks that it could run; one for each share of a run."""

    def __init__(self) -> None:
        self._next_look = inf
        self._pause = FIRST_LOOK
        self._beside: dict[int, float] = {}
        """By peer that had tasks for this node at every look: since when."""
        self.told = ""
        """The case to report, while it lasts."""

    def is_time(self, now: float, *, is_searching: bool) -> bool:
        """Whether to read the status of the peers; called with every heartbeat."""
        if not is_searching:
            self._next_look, self._pause = inf, FIRST_LOOK
            self._beside.clear()
            self.told = ""
        elif self._next_look == inf:
            self._next_look = now + self._pause
        return now >= self._next_look

    def look(
        self,
        now: float,
        run: str,
        allowed: float,
        unable: Sequence[int],
        notes: Mapping[int, ClusterNodeFacts],
        declined: Mapping[int, float],
    ) -> BusyPeer | None:
        """Returns the peer with tasks for this node, if any. `notes`: status of the peers; `unable`: lanes of which
        nothing could start here; `declined`: when peers have answered a steal request with nothing."""
        waits = {
            peer
            for peer, note in notes.items()
            if note.run == run
            and any(lane not in unable for lane in note.lanes)
            and now - declined.get(peer, -inf) > allowed + SLACK
        }
        self._beside = {peer: self._beside.get(peer, now) for peer in waits}
        if not waits:
            self.told = ""
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            self._next_look = now + self._pause
            return None
        self._pause = FIRST_LOOK
        self._next_look = now + self._pause
        peer, since = min(self._beside.items(), key=lambda each: each[1])
        return BusyPeer(peer, notes[peer].shared, now - since, now - since > allowed + SLACK)


def idle_sentence(name: str, other: str, beside: BusyPeer) -> str:
    """Returns the message about an idle node beside a busy peer."""
    return (
        f"{name} has been idle for {show_seconds(round(beside.seconds))} "
        f"beside {beside.shared} queued tasks of {other}, some of which it could run; it asks again"
    )
