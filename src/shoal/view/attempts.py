"""The attempts of a run as columns: a row for each, and texts as numbers of a list."""

from __future__ import annotations

import numpy as np

from shoal.view.columns import Array, Column, Floats, Ints
from shoal.view.ends import EndColumns

_MOST_MESSAGES = 20_000
"""Different ones; what comes beyond that is counted as one."""
OTHER_MESSAGE = "other causes"


class Attempts:
    """All attempts that have ended, one row each, in the order of the ledger."""

    def __init__(self, expected: int = 0) -> None:
        self._task, self._node, self._category = (Column("i4", expected) for _ in range(3))
        self._number, self._message = Column("i4", expected), Column("i4", expected)
        self._outcome, self._final = Column("u1", expected), Column("?", expected)
        self._started, self._ended = Column("f8", expected), Column("f8", expected)
        self._cpu, self._memory, self._limit, self._made = (Column("f4", expected) for _ in range(4))
        self.read = 0
        self.written = 0
        """Bytes of all attempts together, from and to disks."""
        self.outcomes: list[str] = ["ok"]
        self.messages: list[str] = [""]
        self._outcome_codes: dict[str, int] = {"ok": 0}
        self._message_codes: dict[str, int] = {"": 0}

    def __len__(self) -> int:
        return len(self._task)

    def add(self, batch: EndColumns, categories: Array) -> None:
        """`categories` are the codes of those of the tasks."""
        size = len(batch.task)
        self._task.extend(batch.task)
        self._node.extend(batch.node)
        self._category.extend(categories)
        outcome, message = np.zeros(size, np.uint8), np.zeros(size, np.int32)
        for row, text in batch.outcomes:
            outcome[row] = self._outcome_of(text)
        for row, text in batch.messages:
            message[row] = self._message_of(text)
        self._outcome.extend(outcome)
        self._message.extend(message)
        self._final.extend(batch.final)
        self._number.extend(batch.number)
        self._started.extend(batch.started)
        self._ended.extend(batch.ended)
        self._cpu.extend(batch.cpu)
        self._memory.extend(batch.memory)
        self._limit.extend(batch.limit)
        self._made.extend(batch.made)
        self.read += batch.read
        self.written += batch.written

    def _outcome_of(self, text: str) -> int:
        code = self._outcome_codes.get(text)
        if code is None:
            code = self._outcome_codes[text] = len(self.outcomes)
            self.outcomes.append(text)
        return code

    def _message_of(self, text: str) -> int:
        code = self._message_codes.get(text)
        if code is None:
            if len(self.messages) >= _MOST_MESSAGES and text != OTHER_MESSAGE:
                return self._message_of(OTHER_MESSAGE)
            code = self._message_codes[text] = len(self.messages)
            self.messages.append(text)
        return code

    # The columns, not copied.

    @property
    def task(self) -> Ints:
        return self._task.values

    @property
    def node(self) -> Ints:
        return self._node.values

    @property
    def category(self) -> Ints:
        return self._category.values

    @property
    def outcome(self) -> Array:
        """Positions in `outcomes`; 0 is success."""
        return self._outcome.values

    @property
    def final(self) -> Array:
        return self._final.values

    @property
    def number(self) -> Ints:
        """Which attempt of its task it was, from 1."""
        return self._number.values

    @property
    def message(self) -> Ints:
        """Positions in `messages`."""
        return self._message.values

    @property
    def started(self) -> Floats:
        return self._started.values

    @property
    def ended(self) -> Floats:
        return self._ended.values

    @property
    def cpu(self) -> Floats:
        return self._cpu.values

    @property
    def memory(self) -> Floats:
        return self._memory.values

    @property
    def limit(self) -> Floats:
        """Bytes of memory that it might use; 0: no limit."""
        return self._limit.values

    @property
    def made(self) -> Floats:
        return self._made.values
