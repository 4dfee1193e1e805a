"""Statistics of an executor's calls per function: counts, durations, worker time and error messages, for displays.

Keeps nothing per call: only counts, sums, the most frequent messages, and worker time in a fixed number of buckets that
grow wider with the age of the executor. The loop's thread writes, other threads read without a lock.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from math import inf
from operator import itemgetter
from typing import Literal, TypeAlias

from shoal.execution.calls.messages import CallResult

CallEnd: TypeAlias = Literal["done", "failed", "cancelled", "not run"]
BUCKETS = 96
FINEST = 1 / 16
"""Initial width of a bucket in seconds."""
MOST_MESSAGES = 200
"""Maximum number of different messages; all others are counted as one."""
OTHER_MESSAGE = "other causes"


_NAME = itemgetter(0)


class WorkerTime:
    """Worker time by function, in buckets since the start of the first call."""

    def __init__(self) -> None:
        self.began = 0.0
        """Seconds since the epoch; 0 before the first call."""
        self.last = 0.0
        """The end of the last call."""
        self.width = FINEST
        self.rows: dict[str, list[float]] = {}

    def copy(self) -> WorkerTime:
        """Returns a copy."""
        other = WorkerTime()
        other.began, other.last, other.width = self.began, self.last, self.width
        other.rows = {name: list(row) for name, row in list(self.rows.items())}
        return other

    def add(self, name: str, started: float, ended: float, seconds: float | None = None) -> None:
        """Adds `seconds` of worker time between two times; without `seconds`, one worker for the whole interval."""
        ended = max(started, ended)  # clocks may be set back
        if not self.began:
            self.began = started
        if ended > self.last:
            self.last = ended
        begin, end = max(0.0, started - self.began), max(0.0, ended - self.began)
        while end >= BUCKETS * self.width:
            self._widen()
        row = self.rows.get(name)
        if row is None:
            row = self.rows[name] = [0.0] * BUCKETS
        if seconds is None:
            seconds = end - begin
        width = self.width
        first, last = int(begin / width), int(end / width)
        if first == last:
            row[first] += seconds
            return
        together = seconds / (end - begin)
        row[first] += ((first + 1) * width - begin) * together
        for at in range(first + 1, last):
            row[at] += width * together
        row[last] += (end - last * width) * together

    def _widen(self) -> None:
        for name, row in self.rows.items():
            pairs = [row[at] + row[at + 1] for at in range(0, BUCKETS, 2)]
            self.rows[name] = pairs + [0.0] * (BUCKETS - len(pairs))
        self.width *= 2


class FunctionTally:
    """The calls of one function."""

    __slots__ = ("accepted", "ends", "longest", "seconds", "squares")

    def __init__(self) -> None:
        self.accepted = 0
        self.ends: dict[CallEnd, int] = {"done": 0, "failed": 0, "cancelled": 0, "not run": 0}
        self.seconds = 0.0
        self.squares = 0.0
        self.longest = 0.0
        """`seconds`, `squares` and `longest` cover calls that returned."""

    def open(self) -> int:
        """Returns the number of calls that have not ended."""
        return self.accepted - sum(self.ends.values())


class FailureMessage:
    """Unsuccessful attempts with the same message."""

    __slots__ = ("attempts", "functions", "given_up")

    def __init__(self) -> None:
        self.attempts = 0
        self.given_up = 0
        self.functions: dict[str, None] = {}


class CallTally:
    """All functions of one executor, in the order of their first calls."""

    def __init__(self) -> None:
        self.lines: dict[str, FunctionTally] = {}
        self.messages: dict[str, FailureMessage] = {}
        self.busy = WorkerTime()
        self.version = 0
        """Changes with every change of this object."""

    def count(self, how: CallEnd) -> int:
        """Returns the number of calls that ended this way, over all functions."""
        return sum(line.ends[how] for line in list(self.lines.values()))

    def open(self) -> int:
        """Returns the number of calls that have not ended, over all functions."""
        return sum(line.open() for line in list(self.lines.values()))

    def summary(self) -> str:
        """`9 calls done, 1 failed, 2 under way`."""
        done = self.count("done")
        others = [(self.count(how), how) for how in ("failed", "not run", "cancelled")]
        counted = [f"{number:,} {how}" for number, how in [*others, (self.open(), "under way")] if number]
        return ", ".join([f"{done:,} call{'s' * (done != 1)} done", *counted])

    def accept(self, name: str, calls: int) -> None:
        """Counts new calls of a function."""
        line = self.lines.get(name)
        if line is None:
            line = self.lines[name] = FunctionTally()
        line.accepted += calls
        self.version += 1

    def add_done(self, calls: Iterable[tuple[str, CallResult]]) -> None:
        """Counts calls that returned at about the same time.

        This runs for every call, so calls of one function are combined: their time is spread evenly between the start
        of the first and the end of the last of them.
        """
        self.version += 1
        for name, same in groupby(calls, _NAME):
            number, seconds, squares, longest, first, last = 0, 0.0, 0.0, 0.0, inf, 0.0
            for _, result in same:
                started, ended = result.started, result.ended
                took = max(0.0, ended - started)
                number += 1
                seconds += took
                squares += took * took
                if took > longest:
                    longest = took
                if started < first:
                    first = started
                if ended > last:
                    last = ended
            line = self.lines[name]
            line.ends["done"] += number
            line.seconds += seconds
            line.squares += squares
            line.longest = max(line.longest, longest)
            self.busy.add(name, first, last, seconds)

    def end(self, name: str, how: CallEnd, result: CallResult | None = None) -> None:
        """Counts a call that ended without a result, with the result of its last attempt if it had one."""
        self.lines[name].ends[how] += 1
        self.version += 1
        if result is not None and how == "failed":
            self._message(result).given_up += 1

    def fail(self, name: str, result: CallResult) -> None:
        """Counts an unsuccessful attempt, whether it is retried or not."""
        failure = self._message(result)
        failure.attempts += 1
        if len(failure.functions) < 3:
            failure.functions[name] = None
        self.version += 1
        if result.started:
            self.busy.add(name, result.started, result.ended)

    def _message(self, result: CallResult) -> FailureMessage:
        lines = result.error_text.strip().splitlines()
        text = lines[-1].strip()[:300] if lines else result.outcome
        if text not in self.messages and len(self.messages) >= MOST_MESSAGES:
            text = OTHER_MESSAGE
        return self.messages.setdefault(text, FailureMessage())
