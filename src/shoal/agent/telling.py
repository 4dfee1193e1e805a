"""What a node tells of itself with every beat: its queues, what it runs, and what it has got from others.

Nothing here is asked while tasks start and end: once a second the figures are taken from where they are kept anyway.
Those that only grow are counted over all runs of the node; whoever wants those of one run takes off what was before.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from shoal.agent.messages import NodeNote
from shoal.model.resources import FRACTION
from shoal.runner.counters import parse_number
from shoal.runner.proc import read_small

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.agent.share import Share

MOST_NAMED = 4
"""Categories of running tasks that are told by name."""
MOST_LANES = 16
"""Categories of queued tasks that are told by number."""


class Telling:
    """One node, for as long as it lives."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._idle_since = clock()
        self._joined = clock()
        self._before = (0, 0, 0, 0, 0)
        """Tasks stolen and pushed, files fetched, hits and their bytes, in runs that are over here."""

    def joined(self) -> None:
        """The node has become one of the cluster."""
        self._joined = self._clock()

    def share_ends(self, share: Share) -> None:
        """What was done for a run is kept; the share goes."""
        self._before = self._grown(share)

    def note(
        self,
        share: Share | None,
        *,
        calls: int,
        draining: bool,
        ahead: float,
        fetched: int,
        memory: str,
        memory_plain: bool,
    ) -> NodeNote:
        """How the node is doing; `calls` are Python calls that it runs, `fetched` bytes of files that came to it."""
        now = self._clock()
        held = calls + (len(share.member.broker.state) if share is not None else 0)
        if held:
            self._idle_since = now
        stolen, pushed, files, hits, hit_bytes = self._grown(share)
        queues = _queues(share) if share is not None else {"running": calls, "held": calls}
        return NodeNote(
            idle_seconds=None if held else now - self._idle_since,
            draining=draining or (share is not None and share.member.broker.draining),
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

    def _grown(self, share: Share | None) -> tuple[int, int, int, int, int]:
        if share is None:
            return self._before
        parcels, reads = share.member.parcels, share.goods.reads if share.goods is not None else None
        stolen, pushed, files, hits, hit_bytes = self._before
        stolen, pushed = stolen + parcels.stolen, pushed + parcels.pushed
        if reads is None:
            return stolen, pushed, files, hits, hit_bytes
        return stolen, pushed, files + reads.fetched, hits + reads.hits, hit_bytes + reads.hit_bytes


def _queues(share: Share) -> dict[str, Any]:
    """Tasks of a share by where they are, and what those that run hold."""
    broker, tiers = share.member.broker, share.member.tiers
    own, running = len(tiers.local), len(broker.running)
    fetching = share.goods.coming() if share.goods is not None else 0
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
        "throttle": share.limiting.words(),
        "run": share.run,
        "places": len(places),
        "fetching": fetching,
        "resting": max(0, len(broker.state) - running - len(tiers)) + len(share.stranded),
        "cores_held": min(contract.total[at], held + elastic * FRACTION) if at is not None else 0,
        "doing": tuple(names.most_common(MOST_NAMED)),
        "lanes": tuple(sorted({broker.origin(lane) for lane in tiers.shared.lanes()})[:MOST_LANES]),
    }


def memory_used() -> float:
    """The share of the machine's memory that is in use, by whomever; 0 where that is not known."""
    text = read_small("/proc/meminfo")
    total, available = parse_number(text, b"MemTotal:"), parse_number(text, b"MemAvailable:")
    return round(1 - available / total, 4) if total and available is not None else 0.0
