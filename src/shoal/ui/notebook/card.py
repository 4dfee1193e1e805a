"""The content of a notebook display: cards of runs, executors and futures as plain values, for HTML and for text.

Words and numbers are already formatted here; the layout is in `rendering`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from shoal.core.quantities import show_cores, show_seconds, show_share, time_left
from shoal.execution.executor.tally import BUCKETS, CallTally, FunctionTally, WorkerTime
from shoal.ledger.views import pace
from shoal.ledger.views.failures import Causes

Tone: TypeAlias = Literal["good", "bad", "live", "idle", "soft"]
"""The meaning of a colour: succeeded, failed, running, waiting, not relevant."""
MOST_ROWS, MOST_CAUSES, MOST_COLOURS = 8, 5, 12


class CardState(msgspec.Struct, frozen=True):
    """Number of tasks in one state."""

    word: str
    count: int
    tone: Tone


class CardRow(msgspec.Struct, frozen=True):
    """The tasks of one category, or the calls of one function."""

    name: str
    colour: int
    total: int
    done: int
    failed: int
    running: int
    mean: float | None
    """Mean seconds of the successful ones; None if there are none."""
    longest: float | None
    seconds: float | None
    """Core seconds of all attempts; None if durations are unknown."""


class CardFailure(msgspec.Struct, frozen=True):
    """Failed attempts with a common cause."""

    text: str
    attempts: int
    given_up: int
    examples: list[str]


class Area(msgspec.Struct, frozen=True):
    """Cores in use over time, stacked; all lists have one number per bucket."""

    end: float
    """End time in seconds; the first bucket begins at 0."""
    names: list[str]
    series: list[list[float]]
    """By name."""
    colours: list[int]
    limit: list[float]
    """Available cores."""
    lost: list[float]
    """Cores allocated to failed attempts; not part of the series."""
    used: str
    """The utilisation in words."""


class Card(msgspec.Struct, frozen=True):
    """The whole content of a display."""

    title: str
    state: str
    tone: Tone
    facts: list[str]
    noun: str
    """What is counted: `task` or `call`."""
    group: str
    """What a row of the table is: `category` or `function`."""
    total: int = 0
    """Expected number; 0 if unknown."""
    states: list[CardState] = []
    time: str = ""
    """Duration so far, or the time left, in words."""
    area: Area | None = None
    rows: list[CardRow] = []
    more_rows: int = 0
    failures: list[CardFailure] = []
    more_failures: int = 0
    note: str = ""

    @property
    def timed(self) -> bool:
        """Whether the rows have times."""
        return any(row.seconds is not None for row in self.rows)

    def part(self) -> int:
        """The number that the percentage refers to: tasks that are done."""
        return self.count("done")

    def count(self, word: str) -> int:
        """Number in a state."""
        return sum(state.count for state in self.states if state.word == word)


OTHERS = "other functions"
_TONES: dict[str, Tone] = {"done": "good", "failed": "bad", "not run": "bad", "running": "live"}


def executor_card(
    facts: list[str],
    tally: CallTally,
    busy: WorkerTime,
    running: Mapping[str, int],
    cores: float,
    *,
    going: Sequence[tuple[str, float]] = (),
    over: bool = False,
) -> Card:
    """`running`: calls assigned to workers, by function; `busy` also contains their durations.

    `going`: functions that workers are executing, each with its seconds so far.
    """
    lines = list(tally.lines.items())
    total = sum(line.accepted for _, line in lines)
    under_way = sum(running.values())
    rest = max(0, sum(line.open() for _, line in lines) - under_way)
    states = [CardState("done", tally.count("done"), "good"), CardState("failed", tally.count("failed"), "bad")]
    states += [
        CardState("not run", tally.count("not run"), "bad"),
        CardState("cancelled", tally.count("cancelled"), "soft"),
    ]
    states += [CardState("running", under_way, "live"), CardState("waiting", rest, "idle")]
    colours = {name: min(place, MOST_COLOURS - 1) for place, name in enumerate({**busy.rows, **tally.lines})}
    rows = [_row(name, line, colours[name], running.get(name, 0), busy) for name, line in lines]
    rows.sort(key=lambda row: -(row.seconds or 0.0))
    failures = _failures(tally)
    state = "shut down" if over else "working" if under_way or rest else "idle" if total else "ready"
    return Card(
        "shoal.Executor",
        state,
        "live" if state == "working" else "soft",
        facts,
        "call",
        "function",
        total,
        states if total else [],
        _time(lines, min(cores, under_way), going),
        _area(busy, cores),
        rows[:MOST_ROWS],
        max(0, len(rows) - MOST_ROWS),
        failures[:MOST_CAUSES],
        max(0, len(failures) - MOST_CAUSES),
    )


def _row(name: str, line: FunctionTally, colour: int, running: int, busy: WorkerTime) -> CardRow:
    done = line.ends["done"]
    return CardRow(
        name,
        colour,
        line.accepted,
        done,
        line.ends["failed"],
        running,
        line.seconds / done if done else None,
        line.longest if done else None,
        sum(busy.rows.get(name, ())),
    )


def _time(lines: Sequence[tuple[str, FunctionTally]], width: float, going: Sequence[tuple[str, float]]) -> str:
    """The time left for the present calls, from the same model as for runs."""
    tallies = {
        name: pace.CategoryPace(
            line.open() + line.ends["done"], line.ends["done"], seconds=line.seconds, squares=line.squares
        )
        for name, line in lines
    }
    if not width:
        return ""
    ages = [(tallies[name], age) for name, age in going if name in tallies]
    estimate = pace.progress_of(
        pace.KnownProgress(
            to_run=sum(tally.planned for tally in tallies.values()),
            up_to_date=0,
            running=0,
            elapsed=0.0,
            over=False,
            tallies=list(tallies.values()),
            going=ages,
            widths=[width],
            rate=0.0,
        )
    )
    return "" if estimate.left is None else time_left(estimate.left, estimate.least, estimate.most)


def _area(busy: WorkerTime, cores: float) -> Area | None:
    """WorkerTime workers over time."""
    if not busy.began:
        return None
    width = busy.width
    end = max(busy.last - busy.began, width)
    size = min(BUCKETS, int(end / width) + 1)
    names, series = list(busy.rows)[:MOST_COLOURS], []
    for at, row in enumerate(busy.rows.values()):
        cores_held = [spent / width for spent in row[:size]]
        cores_held[-1] *= width / max(end - (size - 1) * width, 0.05 * width)  # the last bucket is incomplete
        if at < MOST_COLOURS:
            series.append(cores_held)
        else:
            names[-1] = OTHERS
            series[-1] = [one + another for one, another in zip(series[-1], cores_held, strict=True)]
    used = sum(sum(row) for row in busy.rows.values())
    usage = f"{show_share(used, cores * end)} of {show_cores(cores)} in use"
    return Area(end, names, series, list(range(len(names))), [cores] * size, [0.0] * size, usage)


def _failures(tally: CallTally) -> list[CardFailure]:
    """Groups failures by the common part of their messages, the most frequent first."""
    found: dict[str, CardFailure] = {}
    causes = Causes()
    for text, entry in list(tally.messages.items()):
        cause = causes.add(text)
        known = found.get(cause, CardFailure(cause, 0, 0, []))
        names = list(dict.fromkeys((*known.examples, *entry.functions)))[:3]
        found[cause] = CardFailure(
            causes.text(cause), known.attempts + entry.attempts, known.given_up + entry.given_up, names
        )
    return sorted(found.values(), key=lambda failure: (-failure.given_up, -failure.attempts, failure.text))


def futures_card(
    states: Mapping[str, Mapping[str, int]], failures: Mapping[str, tuple[int, list[str]]], took: float
) -> Card:
    """Futures by function and state, and the messages of failed ones; `took` is the time for which they were
    watched."""
    words = ("done", "failed", "not run", "cancelled", "running", "waiting")
    counts = {word: sum(row.get(word, 0) for row in states.values()) for word in words}
    total = sum(counts.values())
    left = counts["running"] + counts["waiting"]
    over, tone = _end_of(counts)
    rows = [_future_row(name, row, place) for place, (name, row) in enumerate(states.items())]
    causes = [CardFailure(text, number, number, names) for text, (number, names) in failures.items()]
    causes.sort(key=lambda failure: (-failure.attempts, failure.text))
    return Card(
        "1 future" if total == 1 else f"{total:,} futures",
        "working" if left else over,
        "live" if left else tone,
        [],
        "call",
        "function",
        total,
        [CardState(word, counts[word], _TONES.get(word, "soft" if word == "cancelled" else "idle")) for word in words],
        f"watched for {show_seconds(took)}" if left else "",
        None,
        rows[:MOST_ROWS],
        max(0, len(rows) - MOST_ROWS),
        causes[:MOST_CAUSES],
        max(0, len(causes) - MOST_CAUSES),
    )


def _end_of(counts: Mapping[str, int]) -> tuple[str, Tone]:
    """The outcome of futures that are all done. Cancelled futures are not failures."""
    if counts["failed"] or counts["not run"]:
        return "failed", "bad"
    return ("cancelled", "soft") if counts["cancelled"] else ("done", "good")


def _future_row(name: str, row: Mapping[str, int], place: int) -> CardRow:
    done, failed, running = (row.get(word, 0) for word in ("done", "failed", "running"))
    return CardRow(name, min(place, MOST_COLOURS - 1), sum(row.values()), done, failed, running, None, None, None)
