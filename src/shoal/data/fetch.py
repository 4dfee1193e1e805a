"""Gets objects from peers into the cache: many at once, each from any of several places, resumed after breaks.

`fetch` may be called at any time and does not wait; `finished` returns what has ended since, and `fd` is readable when
there is something to return. At most `per_peer` objects come from one peer at once and `in_all` together; a peer has
one thread and one connection (`peer`). An object goes to the replica with the least trouble and the least work, and on
to the next if that one is broken, has it no more, or sends it damaged. If all that are left are broken it goes on
trying for `patience` seconds without a new chunk.

Which places there are, and what to do about an object that cannot be had, is for others to say.
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
"""A replica that sends the same chunk wrong so many times is left."""


class FetchFailureCause(enum.Enum):
    """Why an object did not come from a replica."""

    ABSENT = "absent"
    DIFFERENT = "different"
    CORRUPT = "corrupt"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    FULL = "full"
    HERE = "here"
    """Something else that is wrong on this side."""
    CLOSED = "closed"


class FetchFailure(msgspec.Struct, frozen=True):
    """What was wrong with one replica, or (without a grant) with this side."""

    cause: FetchFailureCause
    text: str
    grant: DataGrant | None = None


class Fetched(msgspec.Struct, frozen=True):
    """How a fetch ended: with the object in the cache, or with what was wrong everywhere."""

    name: str
    description: ObjectDescription | None
    troubles: tuple[FetchFailure, ...] = ()
    """Also of a fetch that succeeded in the end: places that turned out not to have the object."""


class Job:
    """The state of one fetch; belongs to one thread at a time."""

    def __init__(self, name: str, grants: Sequence[DataGrant], size: int, checksum: int) -> None:
        self.name = name
        self.size = size
        self.checksum = checksum
        self.grants = list(grants)
        self.troubles: list[FetchFailure] = []
        self.executable = False
        self.started = 0.0
        """When the present try began: what it takes to get the object again is counted from there."""
        self.troubled_since: float | None = None
        """Since when there was only trouble and no new chunk."""
        self.counted = False
        """Whether it is one of those under way."""
        self.resumed = False
        """Whether some of its bytes are from an earlier time."""
        self.descriptor = -1
        self.sums: list[int] = []
        self.missing: deque[int] = deque()
        """Chunks to be asked for."""
        self.asked = 0
        """Requests that are not answered yet."""
        self.bad: dict[int, int] = {}
        """How often each chunk came wrong from the present replica."""
        self.leaving: FetchFailure | None = None
        """Why no more is asked of the present replica."""

    @property
    def complete(self) -> bool:
        return not self.missing and not self.asked

    def open(self, cache: Cache) -> None:
        """Takes up the partial file; what stands there from an earlier time is looked at, not fetched.

        Chunks are written before they are checked, so some of it may be wrong: that is found in the end, by the
        checksum of the whole.
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
        """The next chunk to ask for."""
        index = self.missing.popleft()
        self.asked += 1
        return ObjectRequest(self.name, index * CHUNK_BYTES, chunk_length(self.size, index))

    def unanswered(self, index: int) -> None:
        """A chunk that was asked for did not come."""
        self.asked -= 1
        self.missing.appendleft(index)

    def arrived(self, index: int, checksum: int, right: bool, grant: DataGrant) -> None:
        """A chunk was written and looked at; if it is wrong it is asked for again."""
        if not right:
            self.unanswered(index)
            self.bad[index] = self.bad.get(index, 0) + 1
            if self.bad[index] >= MOST_TRIES and self.leaving is None:
                self.leaving = FetchFailure(
                    FetchFailureCause.CORRUPT, f"{self.name} arrives damaged again and again", grant
                )
            return
        self.asked -= 1
        self.sums[index] = checksum
        self.troubled_since = None

    def begin_again(self) -> None:
        """Forgets all that has arrived: the chunks are right one by one and wrong together."""
        os.ftruncate(self.descriptor, 0)
        self.resumed = False
        self.missing = deque(range(chunk_count(self.size)))

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def strike(self, trouble: FetchFailure) -> None:
        """Does not go to that replica again."""
        self.troubles.append(trouble)
        self.grants = [grant for grant in self.grants if grant != trouble.grant]

    def next_replica(self) -> None:
        self.bad.clear()
        self.leaving = None


WINDOW_BYTES = 8 * CHUNK_BYTES
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds between two tries to reach a peer, at first and at last."""
MOST_UNCHECKED = 2
"""Chunks that may be written and not yet looked at, before the next one is received."""
LINGER_SECONDS = 60.0
"""How long a connection without work is kept."""


class FetchOwner(Protocol):
    """Whose objects they are: the fetcher."""

    cache: Cache
    change: threading.Condition
    """Held to touch what threads share; told when there may be something to do."""
    closed: bool
    per_peer: int
    stall: float
    received_bytes: int

    def take(self, peer: Peer) -> Job | None:
        """The next object that this peer may begin with."""

    def done(self, job: Job, description: ObjectDescription) -> None: ...

    def failed(self, job: Job, trouble: FetchFailure) -> None: ...

    def returned(self, job: Job, trouble: FetchFailure, *, strike: bool) -> None:
        """The object did not come from this peer; with `strike` it need not be tried here again."""

    def look(self, job: Job, offset: int, length: int) -> Future[int]:
        """The checksum of what was written, perhaps found in another thread."""

    def leave(self, peer: Peer) -> None:
        """The thread of a peer ends. The lock is held."""


class Peer:
    """Fetches from one place."""

    def __init__(self, owner: FetchOwner, grant: DataGrant) -> None:
        self.grant = grant
        self.waiting: deque[Job] = deque()
        self.active: deque[Job] = deque()
        self.failures = 0
        """Breaks since the last chunk."""
        self.channel: Channel | None = None
        self._owner = owner
        self._retry_at = 0.0
        self._asked: deque[tuple[Job, int, int]] = deque()
        """Job, chunk and bytes of each request that is not answered, in the order of the answers."""
        self._asked_bytes = 0
        self._unchecked: deque[tuple[Job, int, int, Future[int]]] = deque()
        """Chunks that have been written: job, chunk, promised checksum and that of what was written."""
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
        """Until there is something to fetch and the peer may be tried again; False when this thread should end."""
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
        """Fetches until nothing is left to fetch here."""
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
            return  # few messages with several requests cost less than many with one
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
        """One answer. The request stays listed until it is answered in full."""
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
                (FetchFailureCause.ABSENT, "not there")
                if answer.status == ABSENT
                else (FetchFailureCause.DIFFERENT, "another size")
            )
            job.leaving = FetchFailure(cause, f"{job.name}: {what}", self.grant)
            self._perhaps_over(job)

    def _settle(self, most: int) -> None:
        """Takes note of chunks that have been looked at, and waits for it until at most so many are left."""
        while self._unchecked and (len(self._unchecked) > most or self._unchecked[0][3].done()):
            job, index, promised, seen = self._unchecked.popleft()
            try:
                right = seen.result() == promised
            except (OSError, ValueError):
                right = False
            job.arrived(index, promised, right, self.grant)
            self._perhaps_over(job)

    def _perhaps_over(self, job: Job) -> None:
        """Ends with an object here if nothing of it is under way and there is nothing more to ask."""
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
            # Bytes kept from an earlier time may be at fault; without these it is the replica.
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
        """The disk on this side: the object at fault fails, the others begin a new connection."""
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
        """Hangs up and lets the owner decide about everything that was to come from here."""
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
"""Threads that check what has been written while more arrives."""
LOOKED_AT_ELSEWHERE_BYTES = 256 << 10
"""Less than that is checked by the thread that receives it."""


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
        """Of all objects that came."""
        self.change = threading.Condition()
        self.closed = False
        self.received_bytes = 0
        """Of objects, those that came twice or damaged included."""
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
        """Wants an object. For one that is on its way already further places are added; each ends once."""
        encode_request(ObjectRequest(name, 0, 0))  # a name that cannot be asked for is the caller's fault, not a peer's
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
                self._finish(job, None, FetchFailure(cause, f"there is no place to get {name} from"))
                return
            self._place(job)

    def finished(self) -> list[Fetched]:
        """Fetches that have ended since the last call."""
        with self.change:
            results, self._results = self._results, []
            if results and self._bell >= 0:
                os.eventfd_read(self._bell)
        return results

    def close(self) -> None:
        """Stops everything; what has arrived of unfinished objects is kept."""
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
                    self._finish(job, None, FetchFailure(FetchFailureCause.CLOSED, "the depot was closed"))
            bell, self._bell = self._bell, -1
        os.close(bell)
        self._lookers.shutdown(wait=False)

    # What peers call

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
                self._finish(job, None, FetchFailure(FetchFailureCause.CLOSED, "the depot was closed"))
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
        seen: Future[int] = Future()  # so little: waking another thread costs more than it saves
        try:
            seen.set_result(checksum_of(job.descriptor, offset, length))
        except (OSError, ValueError) as error:
            seen.set_exception(error)
        return seen

    def leave(self, peer: Peer) -> None:
        if self._peers.get(peer.grant) is peer:
            del self._peers[peer.grant]

    # Inside; the lock is held

    def _place(self, job: Job) -> None:
        """Hands the object to the peer with the least trouble, then the least to do."""
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
