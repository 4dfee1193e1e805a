"""Fetches objects from peers into the cache: many at once, each from any of several replicas, resumed after failures.

`fetch` may be called at any time and does not block; `finished` returns the fetches that have ended since, and `fd` is
readable when there are any. At most `per_peer` objects come from one peer at once and `in_all` together; a peer has one
thread and one connection. An object is fetched from the replica with the fewest failures and the least load, and from
the next one if that is broken, no longer has it, or sends it damaged. If all remaining replicas are broken it is
retried for `patience` seconds without a new chunk.

Chunks of several objects are requested ahead on one connection, so a transfer does not wait for a round trip per chunk.
The caller decides which replicas exist, and what to do about an object that is not available.
"""

from __future__ import annotations

import enum
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import msgspec

from shoal.data.cache import FULL_DISK, ArrivingError, Cache, DepotFullError
from shoal.data.channel import Channel, FileTroubleError, checksum_of, dial, introduce
from shoal.data.shelf import AbsentError, DamagedError, ObjectDescription, read_chunks
from shoal.data.transfer_messages import (
    ABSENT,
    ANSWER_BYTES,
    CHUNK_BYTES,
    EXECUTABLE,
    OBJECTS,
    SENT,
    DataGrant,
    ObjectRequest,
    RefusedError,
    chunk_count,
    chunk_length,
    decode_answer,
    encode_request,
)

MOST_TRIES = 3
"""Number of times that a replica may send the same chunk wrong before it is abandoned."""


class FetchFailureCause(enum.Enum):
    """Why an object did not come from a replica."""

    ABSENT = "absent"
    DIFFERENT = "different"
    CORRUPT = "corrupt"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    FULL = "full"
    HERE = "here"
    """Any other local error."""
    CLOSED = "closed"


class FetchFailure(msgspec.Struct, frozen=True):
    """The failure of one replica, or (without a grant) of this node."""

    cause: FetchFailureCause
    text: str
    grant: DataGrant | None = None


class Fetched(msgspec.Struct, frozen=True):
    """How a fetch ended: with the object in the cache, or with the failure of each replica."""

    name: str
    description: ObjectDescription | None
    troubles: tuple[FetchFailure, ...] = ()
    """Also set if the fetch succeeded in the end: replicas that turned out not to have the object."""


class Job:
    """The state of one fetch; used by one thread at a time."""

    def __init__(self, name: str, grants: Sequence[DataGrant], size: int, checksum: int) -> None:
        self.name = name
        self.size = size
        self.checksum = checksum
        self.grants = list(grants)
        self.troubles: list[FetchFailure] = []
        self.executable = False
        self.started = 0.0
        """When the current attempt began: the seconds to fetch the object again are counted from there."""
        self.troubled_since: float | None = None
        """Since when there were only failures and no new chunk."""
        self.counted = False
        """Whether it counts among the active fetches."""
        self.resumed = False
        """Whether some of its bytes come from an earlier attempt."""
        self.descriptor = -1
        self.sums: list[int] = []
        self.missing: deque[int] = deque()
        """Chunks to request."""
        self.asked = 0
        """Requests without a reply."""
        self.bad: dict[int, int] = {}
        """How often each chunk came wrong from the current replica."""
        self.leaving: FetchFailure | None = None
        """Why the current replica gets no further requests."""

    @property
    def complete(self) -> bool:
        return not self.missing and not self.asked

    def open(self, cache: Cache) -> None:
        """Opens the partial file; bytes from an earlier attempt are checksummed, not fetched.

        Chunks are written before they are checked, so some may be wrong: the checksum of the whole object detects that
        in the end.
        """
        if self.descriptor >= 0:
            return
        path = cache.begin(self.name, self.size)
        try:
            self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            cache.leave(self.name)
            raise
        there = os.fstat(self.descriptor).st_size
        if there > self.size:
            there = 0
            os.ftruncate(self.descriptor, 0)
        good = min(there // CHUNK_BYTES, chunk_count(self.size) - 1)
        self.resumed = good > 0
        self.sums = [*read_chunks(self.descriptor, self.size, good), *[0] * (chunk_count(self.size) - good)]
        self.missing = deque(range(good, chunk_count(self.size)))

    def request(self) -> ObjectRequest:
        """Returns the next chunk to request."""
        index = self.missing.popleft()
        self.asked += 1
        return ObjectRequest(self.name, index * CHUNK_BYTES, chunk_length(self.size, index))

    def unanswered(self, index: int) -> None:
        """A requested chunk did not arrive."""
        self.asked -= 1
        self.missing.appendleft(index)

    def arrived(self, index: int, checksum: int, right: bool, grant: DataGrant) -> None:
        """A chunk was written and checked; a wrong one is requested again."""
        if not right:
            self.unanswered(index)
            self.bad[index] = self.bad.get(index, 0) + 1
            if self.bad[index] >= MOST_TRIES and self.leaving is None:
                self.leaving = FetchFailure(FetchFailureCause.CORRUPT, f"{self.name} arrives damaged repeatedly", grant)
            return
        self.asked -= 1
        self.sums[index] = checksum
        self.troubled_since = None

    def begin_again(self) -> None:
        """Drops all chunks: each has its checksum, but the object does not."""
        os.ftruncate(self.descriptor, 0)
        self.resumed = False
        self.missing = deque(range(chunk_count(self.size)))

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def strike(self, trouble: FetchFailure) -> None:
        """Excludes that replica from further attempts."""
        self.troubles.append(trouble)
        self.grants = [grant for grant in self.grants if grant != trouble.grant]

    def next_replica(self) -> None:
        self.bad.clear()
        self.leaving = None


WINDOW_BYTES = 8 * CHUNK_BYTES
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds between two attempts to reach a peer, at first and at most."""
MOST_UNCHECKED = 2
"""Number of written chunks that may be unchecked before the next one is received."""
LINGER_SECONDS = 60.0
"""Seconds after which an idle connection is closed."""


class FetchOwner(Protocol):
    """The fetcher as seen by its peers."""

    cache: Cache
    change: threading.Condition
    """Protects state shared by threads; notified when there may be work."""
    closed: bool
    per_peer: int
    stall: float
    received_bytes: int

    def take(self, peer: Peer) -> Job | None:
        """Returns the next object to fetch from this peer."""

    def done(self, job: Job, description: ObjectDescription) -> None: ...

    def failed(self, job: Job, trouble: FetchFailure) -> None: ...

    def returned(self, job: Job, trouble: FetchFailure, *, strike: bool) -> None:
        """The object did not come from this peer; with `strike` it is not tried here again."""

    def look(self, job: Job, offset: int, length: int) -> Future[int]:
        """Returns the checksum of written bytes, possibly computed in another thread."""

    def leave(self, peer: Peer) -> None:
        """The thread of a peer ends. The lock is held."""


class Peer:
    """Fetches objects from one peer, in a thread of its own."""

    def __init__(self, owner: FetchOwner, grant: DataGrant) -> None:
        self.grant = grant
        self.waiting: deque[Job] = deque()
        self.active: deque[Job] = deque()
        self.failures = 0
        """Failures since the last chunk."""
        self.channel: Channel | None = None
        self._owner = owner
        self._retry_at = 0.0
        self._asked: deque[tuple[Job, int, int]] = deque()
        """Job, chunk and bytes of each request without a reply, in order."""
        self._asked_bytes = 0
        self._unchecked: deque[tuple[Job, int, int, Future[int]]] = deque()
        """Written chunks: job, chunk, expected checksum and that of the written bytes."""
        self.thread = threading.Thread(target=self._run, name="depot fetch", daemon=True)

    def _run(self) -> None:
        while self._wait_for_work():
            try:
                self._work()
            except RefusedError as error:
                self._give_back(FetchFailure(FetchFailureCause.REFUSED, str(error), self.grant), strike=True)
            except FileTroubleError as error:
                self._file_trouble(error)
            except OSError as error:
                self.failures += 1
                pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(self.failures - 1, 10))
                self._retry_at = time.monotonic() + pause
                text = f"the connection to {self.grant.host}:{self.grant.port} failed: {error}"
                self._give_back(FetchFailure(FetchFailureCause.UNREACHABLE, text, self.grant), strike=False)
        self._hang_up()

    def _wait_for_work(self) -> bool:
        """Waits until there is an object to fetch and the peer may be tried again; False when this thread should
        end."""
        change, idle_since = self._owner.change, time.monotonic()
        with change:
            while not self._owner.closed:
                now = time.monotonic()
                if not self.waiting:
                    if now - idle_since > LINGER_SECONDS:
                        break
                    change.wait(LINGER_SECONDS)
                elif now < self._retry_at:
                    change.wait(self._retry_at - now)
                elif (job := self._owner.take(self)) is None:
                    change.wait(LINGER_SECONDS)
                    idle_since = time.monotonic()
                else:
                    self.waiting.appendleft(job)
                    return True
            self._owner.leave(self)
        return False

    def _work(self) -> None:
        """Fetches until nothing is left to fetch from this peer."""
        channel = self.channel
        if channel is None:
            channel = dial(self.grant, self._owner.stall)
            with self._owner.change:
                self.channel = channel
            if not self._owner.closed:
                introduce(channel, self.grant, OBJECTS)
        while not self._owner.closed:
            self._begin_more()
            self._ask(channel)
            if self._asked:
                self._receive(channel)
            elif not self._unchecked:
                return
            self._settle(MOST_UNCHECKED if self._asked else 0)

    def _begin_more(self) -> None:
        while len(self.active) < self._owner.per_peer:
            with self._owner.change:
                job = self._owner.take(self)
            if job is None:
                return
            try:
                job.open(self._owner.cache)
            except DepotFullError as error:
                self._owner.failed(job, FetchFailure(FetchFailureCause.FULL, str(error)))
            except (ArrivingError, OSError, DamagedError) as error:
                self._owner.failed(job, FetchFailure(FetchFailureCause.HERE, str(error)))
            else:
                self.active.append(job)

    def _ask(self, channel: Channel) -> None:
        if self._asked_bytes > WINDOW_BYTES // 2 or len(self._asked) > self._owner.per_peer // 2:
            return  # few messages with several requests each cost less than many with one
        requests = []
        passed_over = 0
        while self._asked_bytes < WINDOW_BYTES and passed_over < len(self.active):
            job = self.active[0]
            self.active.rotate(-1)
            if not job.missing or job.leaving is not None:
                passed_over += 1
                continue
            passed_over = 0
            request = job.request()
            self._asked.append((job, request.offset // CHUNK_BYTES, request.length))
            self._asked_bytes += request.length
            requests.append(encode_request(request))
        if requests:
            channel.send(b"".join(requests))

    def _receive(self, channel: Channel) -> None:
        """Receives one reply. The request stays listed until its reply is complete."""
        job, index, length = self._asked[0]
        answer = decode_answer(channel.receive(ANSWER_BYTES), length)
        if answer.status == SENT:
            checksum = channel.receive_file(job.descriptor, index * CHUNK_BYTES, length)
            with self._owner.change:
                self._owner.received_bytes += length
            job.executable = bool(answer.flags & EXECUTABLE)
            self.failures = 0
            seen = _known(checksum) if checksum is not None else self._owner.look(job, index * CHUNK_BYTES, length)
            self._unchecked.append((job, index, answer.checksum, seen))
        self._asked.popleft()
        self._asked_bytes -= length
        if answer.status != SENT:
            job.unanswered(index)
            cause, what = (
                (FetchFailureCause.ABSENT, "not found")
                if answer.status == ABSENT
                else (FetchFailureCause.DIFFERENT, "another size")
            )
            job.leaving = FetchFailure(cause, f"{job.name}: {what}", self.grant)
            self._perhaps_over(job)

    def _settle(self, most: int) -> None:
        """Handles checked chunks, and waits until at most `most` are unchecked."""
        while self._unchecked and (len(self._unchecked) > most or self._unchecked[0][3].done()):
            job, index, promised, seen = self._unchecked.popleft()
            try:
                right = seen.result() == promised
            except (OSError, ValueError):
                right = False
            job.arrived(index, promised, right, self.grant)
            self._perhaps_over(job)

    def _perhaps_over(self, job: Job) -> None:
        """Ends a fetch that has no outstanding and no further requests."""
        if job.asked or (job.missing and job.leaving is None):
            return
        self.active.remove(job)
        if job.missing and job.leaving is not None:
            self._owner.returned(job, job.leaving, strike=True)
        else:
            self._complete(job)

    def _complete(self, job: Job) -> None:
        seconds = time.monotonic() - job.started
        try:
            description = self._owner.cache.commit(
                job.name, job.size, job.checksum, job.sums, executable=job.executable, seconds_to_get=seconds
            )
        except DamagedError as error:
            # Bytes kept from an earlier attempt may be at fault; without these it is the replica.
            kept = job.resumed
            job.begin_again()
            self._owner.returned(job, FetchFailure(FetchFailureCause.CORRUPT, str(error), self.grant), strike=not kept)
        except DepotFullError as error:
            self._owner.failed(job, FetchFailure(FetchFailureCause.FULL, str(error)))
        except OSError as error:
            self._owner.failed(job, FetchFailure(FetchFailureCause.HERE, str(error)))
        else:
            self._owner.done(job, description)

    def _file_trouble(self, error: FileTroubleError) -> None:
        """Handles an error of the local disk: the affected object fails, the others continue on a new connection."""
        job = self._asked[0][0]
        self._forget_requests()
        self._settle(0)
        if job in self.active:
            self.active.remove(job)
        full = error.errno in FULL_DISK
        text = f"the disk that holds {self._owner.cache.directory} is full" if full else f"{job.name}: {error}"
        self._owner.failed(job, FetchFailure(FetchFailureCause.FULL if full else FetchFailureCause.HERE, text))
        self._give_back(FetchFailure(FetchFailureCause.UNREACHABLE, text, self.grant), strike=False)

    def _give_back(self, trouble: FetchFailure, *, strike: bool) -> None:
        """Disconnects and lets the owner decide about everything that was to come from this peer."""
        self._hang_up()
        self._forget_requests()
        self._settle(0)
        with self._owner.change:
            jobs = [*self.active, *self.waiting]
            self.active.clear()
            self.waiting.clear()
        for job in jobs:
            self._owner.returned(job, trouble, strike=strike)

    def _forget_requests(self) -> None:
        for job, index, _ in reversed(self._asked):
            job.unanswered(index)
        self._asked.clear()
        self._asked_bytes = 0

    def _hang_up(self) -> None:
        with self._owner.change:
            channel, self.channel = self.channel, None
        if channel is not None:
            channel.close()


def _known(checksum: int) -> Future[int]:
    known: Future[int] = Future()
    known.set_result(checksum)
    return known


CLOSE_SECONDS = 5.0
LOOKERS = 2
"""Number of threads that check written chunks while more arrive."""
LOOKED_AT_ELSEWHERE_BYTES = 256 << 10
"""Smaller chunks are checked by the thread that receives them."""


class Fetcher:
    """All fetches of one node."""

    def __init__(
        self, cache: Cache, *, per_peer: int = 8, in_all: int = 32, patience: float = 20.0, stall: float = 30.0
    ) -> None:
        """`stall`: seconds without a byte after which a connection counts as broken."""
        self.cache = cache
        self.per_peer = per_peer
        self.in_all = in_all
        self.patience = patience
        self.stall = stall
        self.bytes_fetched = 0
        """Bytes of all objects that have arrived."""
        self.change = threading.Condition()
        self.closed = False
        self.received_bytes = 0
        """Bytes of objects, including those that came twice or damaged."""
        self._jobs: dict[str, Job] = {}
        self._peers: dict[DataGrant, Peer] = {}
        self._under_way = 0
        self._results: list[Fetched] = []
        self._lookers = ThreadPoolExecutor(LOOKERS, thread_name_prefix="depot look")
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fd(self) -> int:
        """Readable when `finished` has something to return."""
        return self._bell

    def fetch(self, name: str, grants: Sequence[DataGrant], size: int, checksum: int) -> None:
        """Starts to fetch an object. If it is in transfer already, adds further replicas; each fetch ends once."""
        encode_request(ObjectRequest(name, 0, 0))  # an invalid name is the caller's fault, not a peer's
        with self.change:
            job = self._jobs.get(name)
            if job is not None:
                known = {*job.grants, *(trouble.grant for trouble in job.troubles)}
                job.grants.extend(grant for grant in grants if grant not in known)
                return
            try:
                self._report(Fetched(name, self.cache.describe(name)))
                return
            except AbsentError:
                pass
            job = Job(name, grants, size, checksum)
            self._jobs[name] = job
            if self.closed or not grants:
                cause = FetchFailureCause.CLOSED if self.closed else FetchFailureCause.ABSENT
                self._finish(job, None, FetchFailure(cause, f"no node has {name}"))
                return
            self._place(job)

    def finished(self) -> list[Fetched]:
        """Returns the fetches that have ended since the last call."""
        with self.change:
            results, self._results = self._results, []
            if results and self._bell >= 0:
                os.eventfd_read(self._bell)
        return results

    def close(self) -> None:
        """Stops all fetches; partial files of unfinished objects are kept."""
        with self.change:
            self.closed = True
            self.change.notify_all()
            peers = list(self._peers.values())
            for peer in peers:
                if peer.channel is not None:
                    peer.channel.end()
        deadline = time.monotonic() + CLOSE_SECONDS
        for peer in peers:
            peer.thread.join(max(0.0, deadline - time.monotonic()))
        with self.change:
            if not any(peer.thread.is_alive() for peer in peers):
                for job in list(self._jobs.values()):
                    self._finish(job, None, FetchFailure(FetchFailureCause.CLOSED, "the cache was closed"))
            bell, self._bell = self._bell, -1
        os.close(bell)
        self._lookers.shutdown(wait=False)

    # Called by peers

    def take(self, peer: Peer) -> Job | None:
        if not peer.waiting or self.closed:
            return None
        if not peer.waiting[0].counted:
            if self._under_way >= self.in_all:
                return None
            self._under_way += 1
            peer.waiting[0].counted = True
            peer.waiting[0].started = time.monotonic()
        return peer.waiting.popleft()

    def done(self, job: Job, description: ObjectDescription) -> None:
        with self.change:
            self._finish(job, description, None)

    def failed(self, job: Job, trouble: FetchFailure) -> None:
        with self.change:
            self._finish(job, None, trouble)

    def returned(self, job: Job, trouble: FetchFailure, *, strike: bool) -> None:
        with self.change:
            now = time.monotonic()
            self._release(job)
            if job.name not in self._jobs:
                return
            if strike:
                job.strike(trouble)
            elif job.troubled_since is None:
                job.troubled_since = now
            if self.closed:
                self._finish(job, None, FetchFailure(FetchFailureCause.CLOSED, "the cache was closed"))
            elif not job.grants:
                self._finish(job, None, None)
            elif not strike and job.troubled_since is not None and now - job.troubled_since > self.patience:
                self._finish(job, None, trouble)
            else:
                job.next_replica()
                self._place(job)

    def look(self, job: Job, offset: int, length: int) -> Future[int]:
        if length >= LOOKED_AT_ELSEWHERE_BYTES:
            return self._lookers.submit(checksum_of, job.descriptor, offset, length)
        seen: Future[int] = Future()  # small: waking another thread costs more than it saves
        try:
            seen.set_result(checksum_of(job.descriptor, offset, length))
        except (OSError, ValueError) as error:
            seen.set_exception(error)
        return seen

    def leave(self, peer: Peer) -> None:
        if self._peers.get(peer.grant) is peer:
            del self._peers[peer.grant]

    # Internal; the lock is held

    def _place(self, job: Job) -> None:
        """Assigns the fetch to the peer with the fewest failures, then the least load."""
        best = min(job.grants, key=self._burden)
        peer = self._peers.get(best)
        if peer is None:
            peer = self._peers[best] = Peer(self, best)
            peer.thread.start()
        peer.waiting.append(job)
        self.change.notify_all()

    def _burden(self, grant: DataGrant) -> tuple[int, int]:
        peer = self._peers.get(grant)
        return (0, 0) if peer is None else (peer.failures, len(peer.waiting) + len(peer.active))

    def _release(self, job: Job) -> None:
        if job.counted:
            job.counted = False
            self._under_way -= 1
            self.change.notify_all()

    def _finish(self, job: Job, description: ObjectDescription | None, trouble: FetchFailure | None) -> None:
        self._release(job)
        if self._jobs.pop(job.name, None) is None:
            return
        if job.descriptor >= 0:
            job.close()
            if description is None:
                self.cache.leave(job.name)
        if trouble is not None:
            job.troubles.append(trouble)
        if description is not None:
            self.bytes_fetched += job.size
        self._report(Fetched(job.name, description, tuple(job.troubles)))

    def _report(self, result: Fetched) -> None:
        self._results.append(result)
        if self._bell >= 0 and len(self._results) == 1:
            os.eventfd_write(self._bell, 1)
