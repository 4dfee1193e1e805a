"""One object on its way here: which chunks are missing, which replicas are left, what went wrong so far.

Nothing here talks to peers; `peer` does, and `fetch` decides which peer gets a job.
"""

from __future__ import annotations

import enum
import os
from collections import deque
from collections.abc import Sequence

import msgspec

from shoal.depot.cache import Cache
from shoal.depot.checksum import CHUNK_BYTES, chunk_count, chunk_length
from shoal.depot.handshake import Grant
from shoal.depot.protocol import Request
from shoal.depot.shelf import Description, read_chunks

MOST_TRIES = 3
"""A replica that sends the same chunk wrong so many times is left."""


class Cause(enum.Enum):
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


class Trouble(msgspec.Struct, frozen=True):
    """What was wrong with one replica, or (without a grant) with this side."""

    cause: Cause
    text: str
    grant: Grant | None = None


class Fetched(msgspec.Struct, frozen=True):
    """How a fetch ended: with the object in the cache, or with what was wrong everywhere."""

    name: str
    description: Description | None
    troubles: tuple[Trouble, ...] = ()
    """Also of a fetch that succeeded in the end: places that turned out not to have the object."""


class Job:
    """The state of one fetch; belongs to one thread at a time."""

    def __init__(self, name: str, grants: Sequence[Grant], size: int, checksum: int) -> None:
        self.name = name
        self.size = size
        self.checksum = checksum
        self.grants = list(grants)
        self.troubles: list[Trouble] = []
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
        self.leaving: Trouble | None = None
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

    def request(self) -> Request:
        """The next chunk to ask for."""
        index = self.missing.popleft()
        self.asked += 1
        return Request(self.name, index * CHUNK_BYTES, chunk_length(self.size, index))

    def unanswered(self, index: int) -> None:
        """A chunk that was asked for did not come."""
        self.asked -= 1
        self.missing.appendleft(index)

    def arrived(self, index: int, checksum: int, right: bool, grant: Grant) -> None:
        """A chunk was written and looked at; if it is wrong it is asked for again."""
        if not right:
            self.unanswered(index)
            self.bad[index] = self.bad.get(index, 0) + 1
            if self.bad[index] >= MOST_TRIES and self.leaving is None:
                self.leaving = Trouble(Cause.CORRUPT, f"{self.name} arrives damaged again and again", grant)
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

    def strike(self, trouble: Trouble) -> None:
        """Does not go to that replica again."""
        self.troubles.append(trouble)
        self.grants = [grant for grant in self.grants if grant != trouble.grant]

    def next_replica(self) -> None:
        self.bad.clear()
        self.leaving = None
