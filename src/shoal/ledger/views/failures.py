"""Failures of a run: groups their messages by cause, and finds the tasks that cannot run because of a failure.

Messages have the same cause if they are equal except for quoted names and numbers. A name or number that is the same in
all messages of a group is shown, because it often is the important word ("No module named 'numpy'").
"""

from __future__ import annotations

import re
from collections.abc import Iterable

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
