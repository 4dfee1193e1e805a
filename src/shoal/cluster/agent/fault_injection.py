"""Fault injection for tests of whole clusters: messages of an agent are lost, duplicated or delayed, by a seed.

`SHOAL_TROUBLE="SEED LOSS DOUBLE LATE [FIRST]"` in the environment of an agent; LOSS, DOUBLE and LATE are fractions of
all messages. Of the first FIRST messages to each other agent half are lost.
"""

from __future__ import annotations

import time
from collections import Counter
from random import Random
from typing import Any

from shoal.errors import InputError

VARIABLE = "SHOAL_TROUBLE"
LATEST_SECONDS = 2.0
LOSS_OF_FIRST = 0.5


class FaultInjector:
    """Wraps the messenger of an agent."""

    def __init__(self, messenger: Any, text: str) -> None:
        try:
            seed, loss, double, late, *first = text.split()
            (self._first,) = map(int, first or ("0",))
            self._random = Random(int(seed))
            self._loss, self._double, self._late = float(loss), float(double), float(late)
        except ValueError:
            raise InputError(f"{VARIABLE}={text!r} is not 'SEED LOSS DOUBLE LATE [FIRST]'") from None
        self._messenger = messenger
        self._held: list[tuple[float, str, Any]] = []
        self._sent: Counter[str] = Counter()
        """Number of messages sent to each address."""

    def send(self, address: str, message: Any) -> None:
        draw = self._random.random()
        self._sent[address] += 1
        if draw < (LOSS_OF_FIRST if self._sent[address] <= self._first else self._loss):
            return
        if draw < self._loss + self._double:
            self._messenger.send(address, message)
        elif draw < self._loss + self._double + self._late:
            self._held.append((time.monotonic() + self._random.uniform(0.0, LATEST_SECONDS), address, message))
            return
        self._messenger.send(address, message)

    def flush(self) -> None:
        """Flushes; also sends delayed messages that are due."""
        now = time.monotonic()
        due = [held for held in self._held if held[0] <= now]
        if due:
            self._held = [held for held in self._held if held[0] > now]
            for _, address, message in due:
                self._messenger.send(address, message)
        self._messenger.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._messenger, name)
