"""Gets objects from peers into the cache: many at once, each from any of several places, resumed after breaks.

`fetch` may be called at any time and does not wait; `finished` returns what has ended since, and `fd` is readable when
there is something to return. At most `per_peer` objects come from one peer at once and `in_all` together; a peer has
one thread and one connection (`peer`). An object goes to the replica with the least trouble and the least work, and on
to the next if that one is broken, has it no more, or sends it damaged. If all that are left are broken it goes on
trying for `patience` seconds without a new chunk.

Which places there are, and what to do about an object that cannot be had, is for others to say.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from shoal.depot.cache import Cache
from shoal.depot.channel import checksum_of
from shoal.depot.handshake import Grant
from shoal.depot.job import Cause, Fetched, Job, Trouble
from shoal.depot.peer import Peer
from shoal.depot.protocol import Request, encode_request
from shoal.depot.shelf import AbsentError, Description

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
        self._peers: dict[Grant, Peer] = {}
        self._under_way = 0
        self._results: list[Fetched] = []
        self._lookers = ThreadPoolExecutor(LOOKERS, thread_name_prefix="depot look")
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fd(self) -> int:
        """Readable when `finished` has something to return."""
        return self._bell

    def fetch(self, name: str, grants: Sequence[Grant], size: int, checksum: int) -> None:
        """Wants an object. For one that is on its way already further places are added; each ends once."""
        encode_request(Request(name, 0, 0))  # a name that cannot be asked for is the caller's fault, not a peer's
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
                cause = Cause.CLOSED if self.closed else Cause.ABSENT
                self._finish(job, None, Trouble(cause, f"there is no place to get {name} from"))
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
                    self._finish(job, None, Trouble(Cause.CLOSED, "the depot was closed"))
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

    def done(self, job: Job, description: Description) -> None:
        with self.change:
            self._finish(job, description, None)

    def failed(self, job: Job, trouble: Trouble) -> None:
        with self.change:
            self._finish(job, None, trouble)

    def returned(self, job: Job, trouble: Trouble, *, strike: bool) -> None:
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
                self._finish(job, None, Trouble(Cause.CLOSED, "the depot was closed"))
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

    def _burden(self, grant: Grant) -> tuple[int, int]:
        peer = self._peers.get(grant)
        return (0, 0) if peer is None else (peer.failures, len(peer.waiting) + len(peer.active))

    def _release(self, job: Job) -> None:
        if job.counted:
            job.counted = False
            self._under_way -= 1
            self.change.notify_all()

    def _finish(self, job: Job, description: Description | None, trouble: Trouble | None) -> None:
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
