"""A server that is killed and started again while somebody uses it, as often as a test says, however slow both are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from support.command import wait_until

WINDOW = 50
"""Deeds of its user within which a server is killed: the user waits there for a strike that is late."""


class Mortal(Protocol):
    def kill(self) -> None: ...
    def start(self) -> None: ...


class Strikes:
    """At which deeds the server is killed, and how far its user is."""

    def __init__(self, server: Mortal, breaks: Callable[[], int], moments: Sequence[int]) -> None:
        """`breaks`: how often the user has noticed that the server was gone."""
        self._server, self._breaks, self._moments = server, breaks, moments
        self._deeds = self._struck = 0
        self._over = False

    def one_more_deed(self) -> None:
        """Called by the user after each."""
        self._deeds += 1
        due = sum(moment + WINDOW <= self._deeds for moment in self._moments)
        wait_until(lambda: self._struck >= due, "the server is killed")

    def _strike(self) -> None:
        for moment in self._moments:
            wait_until(lambda moment=moment: self._over or self._deeds >= moment, "the user gets on")  # type: ignore[misc]
            before = self._breaks()
            self._server.kill()
            self._struck += 1
            try:
                wait_until(lambda before=before: self._over or self._breaks() > before, "the user notices")  # type: ignore[misc]
            finally:
                self._server.start()

    @contextmanager
    def striking(self) -> Iterator[None]:
        striker = threading.Thread(target=self._strike)
        striker.start()
        try:
            yield
        finally:
            self._over = True
            striker.join()
