"""What the tasks of a category have cost in a run, as its records tell it."""

from __future__ import annotations

import msgspec

from shoal.ledger.records import NONE_ASKED, TaskEnded
from shoal.model.resources import FRACTION
from shoal.view.pace import Tally

_OF_DISK = " of disk"
"""In the message of an attempt that was ended for what it wrote; of others with that outcome it was memory."""


class Spent(msgspec.Struct):
    """The time of tasks that ask for the same cores."""

    seconds: float = 0.0
    """Of attempts that have ended."""
    cpu: float = 0.0
    begun: float = 0.0
    """Seconds that running ones have behind them."""

    def add(self, seconds: float, cpu: float) -> None:
        self.seconds += seconds
        self.cpu += cpu

    def held(self, asked: int, shared: bool) -> float:
        """Core seconds; where cores are shared, those that ask for none count with what they used, if that is known."""
        if asked == NONE_ASKED and shared:
            return self.cpu * (self.seconds + self.begun) / self.seconds if self.seconds > 0 else self.begun
        return (1.0 if asked == NONE_ASKED else asked / FRACTION) * (self.seconds + self.begun)


class CategoryState(Tally):
    """The tasks of one category in a run."""

    spent: float = 0.0
    """Seconds of all attempts."""
    cpu: float = 0.0
    declared: dict[str, int] = msgspec.field(default_factory=dict)
    """What its tasks ask for by themselves."""
    most_memory: int = 0
    most_cores: float = 0.0
    most_disk: int = 0
    """The largest footprint of the outputs of one task."""
    exhausted_at: int = 0
    """The largest size of memory that an attempt exceeded."""
    first_size: int = 0
    """What the last first attempt was given of memory."""
    retries: int = 0
    allocated: float = 0.0
    used: float = 0.0
    """Bytes of memory times seconds, given and made use of."""

    def asked(self) -> int:
        """Cores that one of its tasks asks for, unless that is another amount."""
        return self.declared.get("cores", NONE_ASKED)

    def measure(self, record: TaskEnded) -> None:
        """What an attempt used."""
        seconds = record.ended - record.started
        memory = max(record.max_rss, record.usage.tree_memory)
        if record.memory_limit:
            self.allocated += record.memory_limit * seconds
            if record.attempt == 1:
                self.first_size = record.memory_limit
        if not record.final and record.outcome != "cancelled":
            self.retries += 1
        if record.outcome == "exhausted":
            if exceeded_memory(record):
                self.exhausted_at = max(self.exhausted_at, record.memory_limit)
            return
        if record.memory_limit:
            self.used += min(memory, record.memory_limit) * seconds
        self.most_memory = max(self.most_memory, memory)
        self.most_cores = max(self.most_cores, cores_used(record))
        self.most_disk = max(self.most_disk, record.usage.disk, sum(size for size, _ in record.outputs if size > 0))


def exceeded_memory(record: TaskEnded) -> bool:
    """Whether the attempt was ended for the memory it used, and not for its disk."""
    return record.outcome == "exhausted" and _OF_DISK not in record.message


def cores_used(record: TaskEnded) -> float:
    """The cores an attempt kept busy at its busiest; on average where nothing else is recorded."""
    if record.usage.cores:
        return record.usage.cores / 1000
    seconds = record.ended - record.started
    return (record.user + record.system) / seconds if seconds > 0 else 0.0
