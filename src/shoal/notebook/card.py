"""What is shown of a run or an executor, as plain values: the same for HTML and for text.

Words and numbers are ready to be read here; how they are laid out is left to `markup` and `plain`.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

Tone: TypeAlias = Literal["good", "bad", "live", "idle", "soft"]
"""What a colour says: it went well, it failed, it goes on, it waits, it does not matter now."""
MOST_ROWS, MOST_CAUSES, MOST_COLOURS = 8, 5, 12


class State(msgspec.Struct, frozen=True):
    """How many tasks are in one state."""

    word: str
    count: int
    tone: Tone


class Row(msgspec.Struct, frozen=True):
    """The tasks of one category, or the calls of one function."""

    name: str
    colour: int
    total: int
    done: int
    failed: int
    running: int
    mean: float | None
    """Seconds of those that succeeded; None if there are none."""
    longest: float | None
    seconds: float | None
    """Core seconds of all attempts; None if times are not known."""


class Failure(msgspec.Struct, frozen=True):
    """Attempts that did not succeed, for like reasons."""

    text: str
    attempts: int
    given_up: int
    examples: list[str]


class Area(msgspec.Struct, frozen=True):
    """Cores in use over time, stacked; all lists have a number per bucket."""

    end: float
    """Seconds; the first bucket begins at 0."""
    names: list[str]
    series: list[list[float]]
    """By name."""
    colours: list[int]
    limit: list[float]
    """Cores that were there."""
    lost: list[float]
    """Held by attempts that did not succeed; not in the series."""
    used: str
    """In words, how much of the cores was in use."""


class Card(msgspec.Struct, frozen=True):
    """Everything that is shown."""

    title: str
    state: str
    tone: Tone
    facts: list[str]
    noun: str
    """What is counted: `task` or `call`."""
    group: str
    """What the rows of the table are: `category` or `function`."""
    total: int = 0
    """0 if it is not known beforehand how many there will be."""
    states: list[State] = []
    time: str = ""
    """How long it took, or how long it will take."""
    area: Area | None = None
    rows: list[Row] = []
    more_rows: int = 0
    failures: list[Failure] = []
    more_failures: int = 0
    note: str = ""

    @property
    def timed(self) -> bool:
        """Whether the rows have times."""
        return any(row.seconds is not None for row in self.rows)

    def part(self) -> int:
        """How much of all is told as a percentage: what is done."""
        return self.count("done")

    def count(self, word: str) -> int:
        """How many are in a state."""
        return sum(state.count for state in self.states if state.word == word)
