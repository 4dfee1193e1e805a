"""Records of a local run about attempts that went back to the queue before they had started."""

from __future__ import annotations

from pathlib import Path

from shoal.core.policies.retry import AttemptOutcome
from shoal.core.scheduler_messages import Accept, GiveUp, Retry
from shoal.execution.attempt_recorder import AttemptRecorder, EndedAttempt
from shoal.ledger.identity import Versions
from shoal.ledger.records import Record, TaskCourse, TaskEnded, TaskStarted
from shoal.ledger.statistics import Statistics
from support.graphs import graph_of

FIRST, SECOND = 0, 1


class Noted:
    """A ledger and a listener that keep what they are given."""

    def __init__(self, directory: Path) -> None:
        self.path = str(directory / "ledger")
        self.records: list[Record] = []
        self.heard: list[tuple[int, str]] = []

    def add(self, record: Record) -> None:
        self.records.append(record)

    def attempt_over(self, name: str, attempt: EndedAttempt, verdict: str) -> None:
        self.heard.append((attempt.attempt, verdict))

    def told(self) -> list[tuple[type, int, int]]:
        """Kind, task and number of the attempt of all records."""
        kinds = TaskStarted, TaskCourse, TaskEnded
        return [(type(each), each.task, each.attempt) for each in self.records if isinstance(each, kinds)]


def books_of(directory: Path) -> tuple[AttemptRecorder, Noted]:
    graph, noted = graph_of("a:\nb:"), Noted(directory)
    return AttemptRecorder(graph, Versions(graph), noted, Statistics(2, 0, 0.0, 1.0), noted), noted  # type: ignore[arg-type]


def hand_over(books: AttemptRecorder, task: int, attempt: int) -> None:
    """As a Python call: these are sent together, and which of them runs is not told."""
    books.started(TaskStarted(task, attempt, 1.0, 0, 0.0, -1))


def end(books: AttemptRecorder, task: int, attempt: int, outcome: AttemptOutcome) -> None:
    books.ended(EndedAttempt(task, attempt, outcome, 0, 1.0, 2.0))


def test_of_calls_that_were_handed_over_together_the_start_of_those_that_run_is_recorded(tmp_path: Path) -> None:
    books, noted = books_of(tmp_path)
    hand_over(books, FIRST, 1)
    hand_over(books, SECOND, 1)
    books.tick(first=[FIRST])
    assert noted.told() == [(TaskStarted, FIRST, 1)]
    assert list(books.statistics.going) == [FIRST]
    end(books, SECOND, 1, AttemptOutcome.UNBEGUN)
    books.enter([Retry(SECOND, 1, AttemptOutcome.UNBEGUN, 0.0)])
    books.tick(first=[FIRST])
    assert noted.told() == [(TaskStarted, FIRST, 1)], "it waits again, and never ran"


def test_a_call_that_comes_to_run_later_is_recorded_then(tmp_path: Path) -> None:
    books, noted = books_of(tmp_path)
    hand_over(books, FIRST, 1)
    hand_over(books, SECOND, 1)
    books.tick(first=[FIRST])
    end(books, FIRST, 1, AttemptOutcome.OK)
    books.enter([Accept(FIRST, 1)])
    books.tick(first=[SECOND])
    assert noted.told()[-1] == (TaskStarted, SECOND, 1)


def test_attempts_that_have_not_begun_do_not_count(tmp_path: Path) -> None:
    books, noted = books_of(tmp_path)
    for attempt in (1, 2):
        end(books, FIRST, attempt, AttemptOutcome.UNBEGUN)
        books.enter([Retry(FIRST, attempt, AttemptOutcome.UNBEGUN, 0.0)])
    hand_over(books, FIRST, 3)
    books.tick(first=[FIRST])
    books.course(TaskCourse(FIRST, 3, b""))
    end(books, FIRST, 3, AttemptOutcome.FAILED)
    books.enter([Retry(FIRST, 3, AttemptOutcome.FAILED, 0.0)])
    end(books, FIRST, 4, AttemptOutcome.UNBEGUN)
    books.enter([Retry(FIRST, 4, AttemptOutcome.UNBEGUN, 0.0)])
    end(books, FIRST, 5, AttemptOutcome.FAILED)
    books.enter([GiveUp(FIRST, 5, AttemptOutcome.FAILED)])
    numbers = [(TaskStarted, 1), (TaskCourse, 1), (TaskEnded, 1), (TaskEnded, 2)]
    assert noted.told() == [(kind, FIRST, number) for kind, number in numbers]
    assert noted.heard == [(1, "retry"), (2, "failed")]
    assert not books.unbegun, "of what is over nothing is kept"
