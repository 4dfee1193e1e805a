"""Failures of a run: groups their messages by cause, and finds the tasks that cannot run because of a failure.

Messages have the same cause if they are equal except for quoted names and numbers. A name or number that is the same in
all messages of a group is shown, because it often is the important word ("No module named 'numpy'").
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from shoal.core.graph import NO_TASK
from shoal.ledger.records import TasksLinked
from shoal.ledger.views.attempts import Array, Ints

_PART = re.compile(r"'[^']*'|\"[^\"]*\"|(?<!status )(?<!signal )\b\d+(?:\.\d+)?")
"""A quoted name, or a number other than an exit status or signal."""
_KEPT = re.compile(r"; what it had made is kept as .*", re.DOTALL)
"""The location of a task's incomplete outputs, which is not part of the cause."""
_NAME, _NUMBER = "'…'", "N"
_MOST, _END = 300, 120
"""Maximum length of a shown message, and the number of characters kept from the end of a longer one."""


def cause_of(message: str) -> str:
    """The part of a message that is the same for different tasks: without quoted names and without numbers other than
    exit status and signal."""
    return shortened(_PART.sub(lambda found: _general(found[0]), _KEPT.sub("", message)).strip())


def _general(part: str) -> str:
    return _NAME if part[0] in "'\"" else _NUMBER


def shortened(text: str) -> str:
    """At most `_MOST` characters: beginning and end, since the end of a message often names the cause."""
    return text if len(text) <= _MOST else f"{text[: _MOST - _END - 3]} … {text[-_END:]}"


class CommonText:
    """The common text of one group of messages, those with the same `cause_of`."""

    def __init__(self, message: str) -> None:
        message = _KEPT.sub("", message)
        self._between = _PART.split(message)
        self._first: list[str] = _PART.findall(message)
        self._same = [True] * len(self._first)

    def add(self, message: str) -> None:
        """Adds a message of the group: names and numbers that differ will be replaced by placeholders."""
        parts = _PART.findall(_KEPT.sub("", message))
        for at, part in enumerate(self._first):
            self._same[at] &= at < len(parts) and parts[at] == part

    def text(self) -> str:
        """The common text; `'…'` and `N` replace names and numbers that differ."""
        shown = [part if same else _general(part) for part, same in zip(self._first, self._same, strict=True)]
        pieces = [self._between[0]]
        for part, following in zip(shown, self._between[1:], strict=True):
            pieces += [part, following]
        return shortened("".join(pieces).strip())

    def such_as(self) -> str:
        """An example of a name that differs between the messages; empty if none does."""
        names = (part for part, same in zip(self._first, self._same, strict=True) if not same and part[0] in "'\"")
        return next(names, "")


def common_text(messages: Iterable[str]) -> tuple[str, str]:
    """`CommonText.text` and `such_as` of the messages of one group."""
    first, *others = messages
    found = CommonText(first)
    for message in others:
        found.add(message)
    return found.text(), found.such_as()


class Causes:
    """Counts messages by cause."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._texts: dict[str, CommonText] = {}

    def add(self, message: str) -> str:
        """Counts a message; returns the key of its group."""
        key = cause_of(message)
        self._counts[key] = self._counts.get(key, 0) + 1
        known = self._texts.get(key)
        if known is None:
            self._texts[key] = CommonText(message)
        else:
            known.add(message)
        return key

    def __bool__(self) -> bool:
        return bool(self._counts)

    def text(self, key: str) -> str:
        return self._texts[key].text()

    def most_common(self, most: int) -> list[tuple[str, int]]:
        """Text and count of the most frequent causes."""
        ranked = sorted(self._counts.items(), key=lambda pair: -pair[1])[:most]
        return [(self.text(key), number) for key, number in ranked]


_PIECE = 1 << 15
"""Number of dependencies processed at once."""
_NARROW = 32
"""Up to this number, tasks are processed one by one: in a long chain numpy would be slower."""
_LOW = (1 << 32) - 1


class Doomed:
    """Finds the transitive dependents of failed tasks in one run; `links` may grow until the first failure."""

    def __init__(self, links: Sequence[TasksLinked]) -> None:
        self.links = len(links)
        columns = (np.frombuffer(column, "<i4") for record in links for column in (record.tasks, record.needs))
        self._size = 1 + max((int(column.max(initial=-1)) for column in columns), default=-1)
        counts: Ints = np.zeros(self._size + 1, np.int64)
        for needed, _ in pieces(links):
            np.add.at(counts, needed + 1, 1)
        self._start: Ints = np.cumsum(counts)
        """Where the dependents of each task begin in `_needing`."""
        self._needing: Array = np.empty(int(self._start[-1]), np.int32)
        self._sort(links, self._start[:-1].copy())
        self._over = bytearray(self._size)
        """1 for tasks that failed or are doomed and have been processed."""

    def _sort(self, links: Sequence[TasksLinked], free: Ints) -> None:
        """Fills `_needing`; `free` is the next free index for each task that others depend on."""
        for needed, needing in pieces(links):
            pairs = (needed << 32) | needing
            pairs.sort()
            needed = pairs >> 32
            first = np.flatnonzero(np.diff(needed, prepend=-1))
            many = np.diff(first, append=len(pairs))
            places = np.arange(len(pairs)) + np.repeat(free[needed[first]] - first, many)
            self._needing[places] = pairs & _LOW
            free[needed[first]] += many

    def follow(self, tasks: Ints) -> Ints:
        """Marks these tasks as failed; returns the tasks that cannot run because of them and were not returned before,
        including groups."""
        over = np.frombuffer(self._over, np.uint8)
        fresh = tasks[tasks < self._size]
        front: Ints = np.unique(fresh[over[fresh] == 0]).astype(np.int64)
        over[front] = 1
        found: list[Ints] = [np.zeros(0, np.int64)]
        while len(front):
            passed, front = self._one_by_one(front) if len(front) <= _NARROW else self._together(front, over)
            found.append(passed)
        return np.concatenate(found)

    def _one_by_one(self, front: Ints) -> tuple[Ints, Ints]:
        """Advances from a few tasks until there are many or none; returns the tasks found, and those to continue
        from."""
        over, start, needing = self._over, self._start.data, self._needing.data
        found: list[int] = []
        open_ones: list[int] = front.tolist()
        while 0 < len(open_ones) <= _NARROW:
            reached = []
            for task in open_ones:
                for child in needing[start[task] : start[task + 1]]:
                    if not over[child]:
                        over[child] = 1
                        reached.append(child)
            found += reached
            open_ones = reached
        return np.array(found, np.int64), np.array(open_ones, np.int64)

    def _together(self, front: Ints, over: Array) -> tuple[Ints, Ints]:
        """Advances one step from many tasks; the tasks found are those to continue from."""
        begins = self._start[front]
        counts = self._start[front + 1] - begins
        ends = np.cumsum(counts)
        found: list[Ints] = [np.zeros(0, np.int64)]
        for low in range(0, int(ends[-1]), _PIECE):
            at = np.arange(low, min(low + _PIECE, int(ends[-1])))
            which = np.searchsorted(ends, at, side="right")
            reached = self._needing[at - (ends - counts - begins)[which]]
            fresh = np.unique(reached[over[reached] == 0]).astype(np.int64)
            over[fresh] = 1
            found.append(fresh)
        passed = np.concatenate(found)
        return passed, passed


def pieces(links: Sequence[TasksLinked]) -> Iterator[tuple[Ints, Ints]]:
    """Yields dependencies as (needed, needing) columns, a limited number at a time."""
    for record in links:
        children = np.repeat(np.frombuffer(record.tasks, "<i4"), np.frombuffer(record.counts, "<i4"))
        parents = np.frombuffer(record.needs, "<i4")
        for low in range(0, len(parents), _PIECE):
            needed, needing = parents[low : low + _PIECE], children[low : low + _PIECE]
            known = needed != NO_TASK
            if known.any():
                yield needed[known].astype(np.int64), needing[known].astype(np.int64)
