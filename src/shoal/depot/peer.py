"""One peer seen from the fetching side: a thread, one connection, and the few objects that come through it at once.

Requests go out ahead of the answers, in turn for each object, up to `WINDOW_BYTES`: so the connection is never idle and
a small object does not wait for a large one. A broken connection gives all its objects back to their owner, which
decides where they go next; they keep every chunk that has come.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import Future
from typing import Protocol

from shoal.depot.cache import FULL_DISK, ArrivingError, Cache, DepotFullError
from shoal.depot.channel import Channel, FileTroubleError, dial, introduce
from shoal.depot.checksum import CHUNK_BYTES
from shoal.depot.handshake import OBJECTS, Grant, RefusedError
from shoal.depot.job import Cause, Job, Trouble
from shoal.depot.protocol import (
    ABSENT,
    ANSWER_BYTES,
    EXECUTABLE,
    SENT,
    decode_answer,
    encode_request,
)
from shoal.depot.shelf import DamagedError, Description

WINDOW_BYTES = 8 * CHUNK_BYTES
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds between two tries to reach a peer, at first and at last."""
MOST_UNCHECKED = 2
"""Chunks that may be written and not yet looked at, before the next one is received."""
LINGER_SECONDS = 60.0
"""How long a connection without work is kept."""


class Owner(Protocol):
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

    def done(self, job: Job, description: Description) -> None: ...

    def failed(self, job: Job, trouble: Trouble) -> None: ...

    def returned(self, job: Job, trouble: Trouble, *, strike: bool) -> None:
        """The object did not come from this peer; with `strike` it need not be tried here again."""

    def look(self, job: Job, offset: int, length: int) -> Future[int]:
        """The checksum of what was written, perhaps found in another thread."""

    def leave(self, peer: Peer) -> None:
        """The thread of a peer ends. The lock is held."""


class Peer:
    """Fetches from one place."""

    def __init__(self, owner: Owner, grant: Grant) -> None:
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
                self._give_back(Trouble(Cause.REFUSED, str(error), self.grant), strike=True)
            except FileTroubleError as error:
                self._file_trouble(error)
            except OSError as error:
                self.failures += 1
                pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(self.failures - 1, 10))
                self._retry_at = time.monotonic() + pause
                text = f"the connection to {self.grant.host}:{self.grant.port} failed: {error}"
                self._give_back(Trouble(Cause.UNREACHABLE, text, self.grant), strike=False)
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
                self._owner.failed(job, Trouble(Cause.FULL, str(error)))
            except (ArrivingError, OSError, DamagedError) as error:
                self._owner.failed(job, Trouble(Cause.HERE, str(error)))
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
            cause, what = (Cause.ABSENT, "not there") if answer.status == ABSENT else (Cause.DIFFERENT, "another size")
            job.leaving = Trouble(cause, f"{job.name}: {what}", self.grant)
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
            self._owner.returned(job, Trouble(Cause.CORRUPT, str(error), self.grant), strike=not kept)
        except DepotFullError as error:
            self._owner.failed(job, Trouble(Cause.FULL, str(error)))
        except OSError as error:
            self._owner.failed(job, Trouble(Cause.HERE, str(error)))
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
        self._owner.failed(job, Trouble(Cause.FULL if full else Cause.HERE, text))
        self._give_back(Trouble(Cause.UNREACHABLE, text, self.grant), strike=False)

    def _give_back(self, trouble: Trouble, *, strike: bool) -> None:
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
