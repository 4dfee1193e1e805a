"""What a simulated run took, and where its time went."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from shoal.broker.peers import Parcel
from shoal.model.work import Work
from shoal.sim.cluster.files import Activity
from shoal.sim.cluster.spec import ClusterSpec

if TYPE_CHECKING:
    from shoal.sim.cluster.run import ClusterRun

BUSY = 0.9
"""A cluster is up when this part of its cores is busy."""


class Played(msgspec.Struct, frozen=True):
    """The result of one simulated run."""

    tasks: int
    nodes: int
    cores: int
    makespan: float
    computing: float
    """Seconds that tasks computed, over all cores."""
    occupied: float
    """Seconds that tasks held a core: fetching, computing and writing."""
    moved: int
    """Bytes from node to node."""
    from_shared: int
    """Bytes from the shared file system or from where the sources are."""
    reads: int
    hits: int
    """Inputs read, and those that were on the node already."""
    steals: int
    stolen: int
    pushed: int
    messages: int
    ramp: float | None
    """When nine tenths of the cores were busy for the first time."""
    failed: int

    @property
    def utilisation(self) -> float:
        """Share of the cores' time that went into computing."""
        return self.computing / (self.cores * self.makespan) if self.makespan else 1.0

    @property
    def throughput(self) -> float:
        return self.tasks / self.makespan if self.makespan else 0.0

    @property
    def hit_rate(self) -> float:
        return self.hits / self.reads if self.reads else 1.0

    @property
    def node_hours(self) -> float:
        return self.nodes * self.makespan / 3600


class Tally:
    """Counts while a run goes on."""

    def __init__(self, work: Work, spec: ClusterSpec) -> None:
        self.cores = spec.cores()
        self.tasks = sum(1 for category in work.category if work.profiles[category].resources.amounts)
        self.done = 0
        self.computing = self.occupied = 0.0
        self.steals = self.stolen = self.pushed = self.messages = 0
        self.busy = 0
        self.ramp: float | None = None
        self.last_end = 0.0
        self._up = self.cores * BUSY

    def began(self, now: float) -> None:
        """One more core is busy; asked only until most of them have been."""
        if self.busy >= self._up:
            self.ramp = now

    def ended(self, now: float, activity: Activity) -> None:
        self.computing += activity.computing
        self.last_end = now
        self.busy -= 1
        self.occupied += now - activity.started

    def stopped(self, now: float, activity: Activity) -> None:
        self.busy -= 1
        self.occupied += now - activity.started

    def parcel(self, parcel: Parcel) -> None:
        if parcel.round:
            self.steals += 1
            self.stolen += len(parcel.tickets)
        else:
            self.pushed += len(parcel.tickets)

    def played(self, run: ClusterRun) -> Played:
        files = run.files
        return Played(
            tasks=self.tasks,
            nodes=run.spec.nodes,
            cores=self.cores,
            makespan=self.last_end,
            computing=self.computing,
            occupied=self.occupied,
            moved=files.moved,
            from_shared=files.from_common,
            reads=files.reads,
            hits=files.hits,
            steals=self.steals,
            stolen=self.stolen,
            pushed=self.pushed,
            messages=self.messages,
            ramp=self.ramp,
            failed=self.tasks - self.done,
        )
