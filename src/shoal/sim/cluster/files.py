"""Files on a simulated cluster: bandwidth of disks and links, caches of nodes, and copies that nodes keep."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from heapq import heappop, heappush
from math import inf
from typing import Generic, TypeVar

import msgspec

from shoal.core.store.memory import MemoryStore
from shoal.core.work import EVERYWHERE, Work
from shoal.sim.cluster.specification import ClusterSpec, NodeSpec

Item = TypeVar("Item")


class Pipe(Generic[Item]):
    """A disk or link that its concurrent flows share equally, with the item that each flow is for."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.version = 0
        """Changes whenever the next end changes."""
        self._flows: list[tuple[float, int, Item]] = []
        self._given = 0.0
        """Bytes that a flow would have transferred if it had been there from the beginning."""
        self._since = 0.0
        self._serial = 0

    def __len__(self) -> int:
        return len(self._flows)

    def _advance(self, now: float) -> None:
        if self._flows:
            self._given += (now - self._since) * self.rate / len(self._flows)
        self._since = now

    def add(self, now: float, amount: float, item: Item) -> None:
        self._advance(now)
        self._serial += 1
        heappush(self._flows, (self._given + amount, self._serial, item))
        self.version += 1

    def next_end(self) -> float:
        """When the first of the flows will end, if no others are added."""
        if not self._flows:
            return inf
        return self._since + max(0.0, self._flows[0][0] - self._given) * len(self._flows) / self.rate

    def take(self, now: float) -> Item:
        """Removes the flow that has ended, and returns its item."""
        self._advance(now)
        through, _, item = heappop(self._flows)
        self._given = max(self._given, through)
        if not self._flows:
            self._given = 0.0  # reset, to avoid rounding errors
        self.version += 1
        return item

    def drop(self, now: float, items: set[int]) -> None:
        """Removes the flows of the items with these ids."""
        self._advance(now)
        self._flows = sorted(flow for flow in self._flows if id(flow[2]) not in items)
        self.version += 1


class Leg(msgspec.Struct):
    """Bytes that go through one pipe."""

    pipe: Pipe[Activity]
    amount: float
    source: int = EVERYWHERE
    """The node that they come from, if it is another one."""


class Activity(msgspec.Struct):
    """One attempt of a task on a node: it fetches, computes and writes, in this order."""

    node: int
    task: int
    attempt: int
    started: float
    legs: list[Leg] = []
    at: int = 0
    computed: bool = False
    computing: float = 0.0
    """Seconds of computation."""
    over: bool = False
    """It has ended or was abandoned; further events for it are ignored."""
    fetched: list[int] = []
    """Files of which it creates a copy on this node."""
    ahead: bool = False
    """A prefetch for a task that has not been started yet."""
    expects: int = 0
    """Number of its files that another task of the node is fetching."""
    reading: bool = False
    """Its input is being transferred."""


NOBODY = Activity(-1, -1, 0, 0.0, [], over=True)
"""Stands for the background writes of a disk."""
WRITTEN_AT_ONCE = 2**26
"""Bytes: larger files are written in pieces of this size, so that the page cache needs room for one piece only."""


class ModelledDisk(Pipe[Activity]):
    """A disk behind a page cache: written data waits in memory, and one background flow writes it to the disk.

    A task continues as soon as its data is in memory. If more than `limit` bytes wait, it blocks until there is room,
    as Linux blocks writers at `vm.dirty_ratio`. Readers share the disk with the background flow.
    """

    def __init__(self, rate: float, limit: float) -> None:
        super().__init__(rate)
        self.limit = limit
        self._writers: deque[tuple[float, Activity]] = deque()
        """Writers that wait for room."""
        self._unwritten: deque[float] = deque()
        """Pieces in memory; the first one is being written."""
        self._dirty = 0.0

    def add(self, now: float, amount: float, item: Activity) -> None:
        if item.computed:
            self._writers.append((amount, item))
            self._admit(now)
        else:
            super().add(now, amount, item)

    def _admit(self, now: float) -> None:
        while self._writers and (not self._unwritten or self._dirty + self._writers[0][0] <= self.limit):
            amount, item = self._writers.popleft()
            super().add(now, 0.0, item)
            self._unwritten.append(amount)
            self._dirty += amount
            if len(self._unwritten) == 1:
                super().add(now, amount, NOBODY)

    def take(self, now: float) -> Activity:
        item = super().take(now)
        if item is NOBODY:
            self._dirty -= self._unwritten.popleft()
            if self._unwritten:
                super().add(now, self._unwritten[0], NOBODY)
            self._admit(now)
        return item

    def drop(self, now: float, items: set[int]) -> None:
        super().drop(now, items)
        self._writers = deque(each for each in self._writers if id(each[1]) not in items)


class FileCache:
    """An LRU cache of files with a limit in bytes."""

    def __init__(self, room: float) -> None:
        self.room = room
        self.files: dict[int, int] = {}
        self._used = 0

    def touch(self, file: int) -> bool:
        """Returns whether the file is in the cache; marks it as most recently used."""
        size = self.files.pop(file, None)
        if size is None:
            return False
        self.files[file] = size
        return True

    def put(self, file: int, size: int, pinned: frozenset[int] = frozenset()) -> list[int]:
        """Adds a file; returns those that were evicted."""
        if not self.touch(file):
            self.files[file] = size
            self._used += size
        gone: list[int] = []
        if self._used > self.room:
            for other in list(self.files):
                if self._used <= self.room:
                    break
                if other != file and other not in pinned:
                    self._used -= self.files.pop(other)
                    gone.append(other)
        return gone

    def remove(self, file: int) -> None:
        self._used -= self.files.pop(file, 0)


class NodeFiles:
    """Cached files of one node, and its pipes."""

    def __init__(self, kind: NodeSpec) -> None:
        self.link: Pipe[Activity] = Pipe(kind.link)
        self.disk: Pipe[Activity] | None = None
        if kind.disk_rate < inf:
            self.disk = ModelledDisk(kind.disk_rate, kind.dirty) if kind.dirty else Pipe(kind.disk_rate)
        self.in_memory = FileCache(kind.page_cache or inf)
        self.copies = FileCache(kind.cache or inf)
        self.keeps = kind.cache >= 0
        self.spool = kind.spool
        self.arriving: dict[int, list[Activity]] = {}
        """Files being transferred to this node, and the tasks that wait for them in addition to the one that
        fetches."""
        self.written = 0
        """Bytes that tasks have written here."""


class ModelledFiles:
    """All files of one simulated run."""

    def __init__(self, work: Work, spec: ClusterSpec, store: MemoryStore) -> None:
        self.work, self.spec, self.store = work, spec, store
        self.any = bool(work.input_start) or bool(work.output_start)
        self.is_distributed = bool(work.input_start) and not spec.shared_files
        """Whether files are on nodes' disks."""
        self.nodes: dict[int, NodeFiles] = {}
        self.common: Pipe[Activity] | None = Pipe(spec.shared_rate) if spec.shared_rate < inf else None
        self.moved = 0
        """Bytes transferred between nodes."""
        self.from_common = 0
        self.from_memory = 0
        self.from_disk = 0
        self.reads = self.hits = 0
        """Number of inputs read, and of those that needed neither another node nor the shared file system."""

    def join(self, node: int, kind: NodeSpec) -> None:
        self.nodes[node] = NodeFiles(kind)

    def fetch(self, activity: Activity) -> bool:
        """Determines the transfers for a task on its node; False if an input does not exist."""
        node, work = activity.node, self.work
        here = self.nodes[node]
        legs = activity.legs
        for file in work.inputs_of(activity.task):
            if activity.ahead:
                if self._is_due(here, node, file):
                    self.hits -= 1  # the later read will count as a hit, although the file was transferred
                    self._read_remote(here, file, work.file_bytes[file], legs)
                    self._expect(activity, here, file)
                continue
            size = work.file_bytes[file]
            self.reads += 1
            if self.spec.shared_files:
                self._read_common(here, file, size, legs)
                continue
            location = self.store.location[file]
            if self._is_here(node, file):
                self.hits += 1
                here.copies.touch(file)
                self._read(here, file, size, legs)
            elif file in here.arriving:
                self.hits += 1
                activity.expects += 1
                here.arriving[file].append(activity)
            elif location == EVERYWHERE:
                self._read_common(here, file, size, legs)
                self._expect(activity, here, file)
            elif location < 0:
                for other in activity.fetched:
                    here.arriving.pop(other, None)
                return False
            else:
                self._read_remote(here, file, size, legs)
                self._expect(activity, here, file)
        return True

    def room(self, node: int, task: int, running: Iterable[int]) -> tuple[int, int, int]:
        """Three sizes in bytes: the inputs of the task, the maximum room that its node has for them when the task runs
        alone, and the room while the tasks in `running` run. Files whose only copy is on the node are never removed."""
        work, store = self.work, self.store
        spool = self.nodes[node].spool
        if not spool or self.spec.shared_files:
            return 0, 0, 0
        own = set(work.inputs_of(task))
        need = sum(work.file_bytes[file] for file in own)
        absent = sum(work.file_bytes[file] for file in own if not self._is_here(node, file))
        if not absent:
            return need, need, need
        only_here = {file for file, location in enumerate(store.location) if location == node}
        most = spool - sum(work.file_bytes[file] for file in only_here - own)
        read = {file for other in running if other != task for file in work.inputs_of(other)}
        return need, most, most - sum(work.file_bytes[file] for file in read - only_here - own)

    def _is_here(self, node: int, file: int) -> bool:
        return self.store.location[file] == node or node in self.store.replicas.get(file, ())

    def _is_due(self, here: NodeFiles, node: int, file: int) -> bool:
        """Whether it is on other nodes only, and not being transferred yet."""
        return (
            here.keeps
            and self.store.location[file] >= 0
            and file not in here.arriving
            and (node not in self.store.copies(file))
        )

    def _expect(self, activity: Activity, here: NodeFiles, file: int) -> None:
        activity.fetched.append(file)
        if here.keeps:
            here.arriving[file] = []

    def arrived(self, activity: Activity) -> list[Activity]:
        """Completes the transfers of an activity; returns the activities that waited for them."""
        here = self.nodes[activity.node]
        others = []
        for file in activity.fetched:
            for other in here.arriving.pop(file, ()):
                other.expects -= 1
                others.append(other)
        if activity.fetched:
            self.keep(activity)
        return others

    def _read(self, here: NodeFiles, file: int, size: int, legs: list[Leg]) -> None:
        if here.in_memory.touch(file) or here.disk is None:
            self.from_memory += size
            return
        self.from_disk += size
        legs.append(Leg(here.disk, size))
        here.in_memory.put(file, size)

    def _read_common(self, here: NodeFiles, file: int, size: int, legs: list[Leg]) -> None:
        if self.spec.shared_files and here.in_memory.touch(file):
            self.hits += 1
            self.from_memory += size
            return
        self.from_common += size
        if self.common is not None and size:
            legs.append(Leg(self.common, size))
        if self.spec.shared_files:
            here.in_memory.put(file, size)

    def _read_remote(self, here: NodeFiles, file: int, size: int, legs: list[Leg]) -> None:
        """Reads from the copy with the least used link; the busier one of the two links limits the transfer."""
        source = min(self.store.copies(file), key=lambda node: len(self.nodes[node].link))
        there = self.nodes[source]
        self.moved += size
        if there.disk is not None and not there.in_memory.touch(file):
            self.from_disk += size
            legs.append(Leg(there.disk, size, source))
            there.in_memory.put(file, size)
        busier = here.link if len(here.link) >= len(there.link) else there.link
        if busier.rate < inf and size:
            legs.append(Leg(busier, size, source))

    def keep(self, activity: Activity) -> None:
        """Records new copies on the node; to make room, other copies may be removed."""
        here = self.nodes[activity.node]
        fetched, activity.fetched = activity.fetched, []
        if not here.keeps or self.spec.shared_files:
            return
        pinned = frozenset(self.work.inputs_of(activity.task))
        for file in fetched:
            if self.store.location[file] == EVERYWHERE:
                self.store.location[file] = activity.node
            else:
                self.store.copied(file, activity.node)
            size = self.work.file_bytes[file]
            here.in_memory.put(file, size)
            for gone in here.copies.put(file, size, pinned):
                if len(self.store.copies(gone)) > 1:  # the last copy is never removed
                    self.store.dropped(gone, activity.node)
                    here.in_memory.remove(gone)

    def write(self, activity: Activity) -> list[Leg]:
        """The pipes for the output of a task."""
        here = self.nodes[activity.node]
        size = 0
        for file in self.work.outputs_of(activity.task):
            size += self.work.file_bytes[file]
            here.in_memory.put(file, self.work.file_bytes[file])
        here.written += size
        pipe = self.common if self.spec.shared_files else here.disk
        if pipe is None or not size:
            return []
        if not isinstance(pipe, ModelledDisk):
            return [Leg(pipe, size)]
        whole, rest = divmod(size, WRITTEN_AT_ONCE)
        return [Leg(pipe, WRITTEN_AT_ONCE)] * whole + ([Leg(pipe, rest)] if rest else [])
