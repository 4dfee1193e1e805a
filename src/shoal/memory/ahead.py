"""Ranges that are fetched before they are needed, so that one task computes while the bytes of the next are coming.

A token names them. It is of use to every process of the node where it was made; elsewhere, or when what was fetched had
to give way, a get does what it does without. What comes with a token is as it was when it was fetched.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from functools import partial
from typing import Protocol

from shoal.errors import InputError
from shoal.memory.handle import Ahead
from shoal.memory.here import Here
from shoal.memory.layout import Range, Record
from shoal.memory.segments import buffer_of

AT_ONCE = 4
MOST_BYTES = 1 << 30
"""What a program may have fetched ahead that is no node; a node has its limit."""


class Owner(Protocol):
    """Who fetches."""

    here: Here | None

    def fill(self, allocation: Record, begin: int, end: int, descriptor: int) -> None: ...

    def lies_here(self, allocation: Record, begin: int, end: int) -> bool: ...


class _Coming:
    """One range on its way."""

    def __init__(self, begin: int, end: int, descriptor: int, future: Future[None]) -> None:
        self.begin, self.end, self.descriptor, self.future = begin, end, descriptor, future


class Fetches:
    """Everything that one service fetches ahead."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._guard = threading.Lock()
        self._coming: dict[str, list[_Coming]] = {}
        """By token, the oldest first."""
        self._bytes = 0
        self._closed = False
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="memory ahead")

    def begin(self, allocation: Record, ranges: Sequence[Range]) -> Ahead:
        """Begins with as many of the ranges as there is room for."""
        ahead = Ahead(secrets.token_hex(8), tuple((begin, end) for begin, end in ranges))
        coming = []
        for begin, end in ahead.ranges:
            if begin == end or self._closed or self._owner.lies_here(allocation, begin, end):
                continue
            if self._take_room(end - begin):
                descriptor = buffer_of(end - begin)
                future = self._pool.submit(self._owner.fill, allocation, begin, end, descriptor)
                coming.append(_Coming(begin, end, descriptor, future))
        if coming:
            with self._guard:
                self._coming[ahead.token] = coming
        return ahead

    def take(self, token: str, begin: int, end: int) -> tuple[int, int] | None:
        """A descriptor of what was fetched, for the caller to close, and where in it the range begins; waits for it.

        A range that is taken whole is not kept for others.
        """
        with self._guard:
            coming = self._coming.get(token, [])
            found = next((each for each in coming if each.begin <= begin and end <= each.end), None)
            if found is None:
                return None
            descriptor = os.dup(found.descriptor)
            is_last = (found.begin, found.end) == (begin, end)
            if is_last:
                coming.remove(found)
                if not coming:
                    del self._coming[token]
        try:
            found.future.result()
        except (InputError, OSError, CancelledError):
            os.close(descriptor)
            descriptor = -1
        if is_last:
            self._let_go(found)
        return None if descriptor < 0 else (descriptor, begin - found.begin)

    def close(self) -> None:
        """What nobody has claimed goes, as soon as nothing is written to it any more."""
        self._closed = True
        with self._guard:
            left = [each for coming in self._coming.values() for each in coming]
            self._coming.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)
        for each in left:
            each.future.add_done_callback(partial(self._let_go_after, each))

    def _take_room(self, amount: int) -> bool:
        """What came for earlier tokens and was not asked for gives way."""
        while True:
            here = self._owner.here
            with self._guard:
                if here.take_ahead(amount) if here is not None else self._bytes + amount <= MOST_BYTES:
                    self._bytes += amount
                    return True
                oldest = self._oldest()
            if oldest is None:
                return False
            self._let_go(oldest)

    def _oldest(self) -> _Coming | None:
        for token, coming in self._coming.items():
            for each in coming:
                if each.future.done():
                    coming.remove(each)
                    if not coming:
                        del self._coming[token]
                    return each
        return None

    def _let_go_after(self, gone: _Coming, _: Future[None]) -> None:
        self._let_go(gone)

    def _let_go(self, gone: _Coming) -> None:
        os.close(gone.descriptor)
        amount = gone.end - gone.begin
        with self._guard:
            self._bytes -= amount
        if self._owner.here is not None:
            self._owner.here.give_ahead(amount)
