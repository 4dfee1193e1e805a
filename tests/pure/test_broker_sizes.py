"""The broker with an adviser: sizes that are learned, and attempts that exceeded them."""

from __future__ import annotations

from shoal.broker.broker import Lane
from shoal.broker.messages import Accept, GiveUp, Kill, Retry, Start, TaskGrew, TaskResult, TasksEnded, TasksReady
from shoal.model.resources import Resources
from shoal.policy.retry import Outcome
from support.case import BrokerCase, node

MB = 1 << 20


class Ladder:
    """An adviser that goes up a ladder of sizes; the first rung can be moved."""

    def __init__(self, *rungs: int) -> None:
        self.rungs = [rung * MB for rung in rungs]
        self.seen: list[tuple[float, float | None]] = []

    def ask(self, tried: tuple[float, ...] = ()) -> float:
        return next((rung for rung in self.rungs if not tried or rung > max(tried)), self.rungs[-1])

    def hopeless(self, tried: tuple[float, ...]) -> bool:
        return bool(tried) and max(tried) >= self.rungs[-1]

    def observe(self, peak, duration, exhausted_at=None, tried=(), size=None):  # type: ignore[no-untyped-def]
        self.seen.append((peak, exhausted_at))


def sized(adviser: Ladder) -> BrokerCase:
    lanes = [Lane(Resources.parse({"cores": 1}), adviser=adviser)]  # type: ignore[arg-type]
    return BrokerCase(node(cores=4, memory="1000M"), lanes)


def end(task: int, attempt: int, outcome: Outcome, peak: int = 0) -> TasksEnded:
    return TasksEnded([TaskResult(task, attempt, outcome, 1.0, peak)])


def test_no_more_tasks_run_together_than_their_sizes_allow() -> None:
    case = sized(Ladder(400))
    commands = case.broker.handle(0.0, TasksReady([0, 1, 2]))
    assert [command.tasks for command in commands if isinstance(command, Start)] == [(0,), (1,)]
    assert all(command.memory == 400 * MB for command in commands if isinstance(command, Start))


def test_an_exhausted_task_tries_the_next_size_and_is_not_charged() -> None:
    adviser = Ladder(100, 600, 1000)
    case = sized(adviser)
    case.tell(TasksReady([0]))
    commands = case.broker.handle(1.0, end(0, 1, Outcome.EXHAUSTED))
    assert commands[0] == Retry(0, 1, Outcome.EXHAUSTED, 0.0)
    assert isinstance(commands[1], Start)
    assert commands[1].memory == 600 * MB
    assert case.tell(end(0, 2, Outcome.OK, 500 * MB)) == [Accept(0, 2)]
    assert adviser.seen == [(100 * MB, 100 * MB), (500 * MB, None)]


def test_a_task_that_exhausts_everything_is_given_up() -> None:
    case = sized(Ladder(100, 1000))
    case.tell(TasksReady([0]))
    case.tell(end(0, 1, Outcome.EXHAUSTED))
    assert case.tell(end(0, 2, Outcome.EXHAUSTED)) == [GiveUp(0, 2, Outcome.EXHAUSTED)]
    assert case.broker.idle()


def test_a_size_that_was_learned_counts_for_the_next_starts_and_not_for_what_runs() -> None:
    adviser = Ladder(400)
    case = sized(adviser)
    case.tell(TasksReady([0, 1, 2, 3, 4]))
    adviser.rungs = [200 * MB]
    started = [command.tasks for command in case.tell(end(0, 1, Outcome.OK, 150 * MB)) if isinstance(command, Start)]
    assert started == [(2,), (3,), (4,)]


def test_a_task_over_a_limit_that_it_declared_itself_has_failed() -> None:
    case = BrokerCase(node(cores=2, memory="1000M"))
    case.tell(TasksReady([0]))
    assert case.tell(end(0, 1, Outcome.EXHAUSTED)) == [GiveUp(0, 1, Outcome.EXHAUSTED)]


def test_a_task_that_grows_holds_more_and_nothing_starts_until_there_is_room() -> None:
    case = sized(Ladder(300))
    case.tell(TasksReady([0, 1, 2, 3]))
    assert case.tell(TaskGrew(0, 1, 390 * MB)) == []
    assert case.tell(end(1, 1, Outcome.OK)) == [Accept(1, 1), Start((3,), (1,))]
    case = sized(Ladder(300))
    case.tell(TasksReady([0, 1, 2, 3]))
    assert case.tell(TaskGrew(0, 1, 400 * MB)) == []
    assert case.tell(TaskGrew(2, 1, 300 * MB)) == []
    assert case.tell(end(1, 1, Outcome.OK)) == [Accept(1, 1), Start((3,), (1,))]
    assert case.tell(TaskGrew(3, 1, 290 * MB)) == []


def test_the_task_that_grows_beyond_what_the_node_has_is_ended_and_tried_with_more() -> None:
    adviser = Ladder(300, 900)
    case = sized(adviser)
    case.tell(TasksReady([0, 1, 2]))
    assert case.tell(TaskGrew(1, 1, 500 * MB)) == [Kill(1, 1, Outcome.EXHAUSTED)]
    assert case.tell(TaskGrew(1, 1, 510 * MB)) == [], "it is told once"
    assert case.tell(end(1, 1, Outcome.EXHAUSTED)) == [Retry(1, 1, Outcome.EXHAUSTED, 0.0)]
    assert adviser.seen == [(510 * MB, 510 * MB)]
    case.tell(end(0, 1, Outcome.OK))
    assert case.tell(end(2, 1, Outcome.OK)) == [Accept(2, 1), Start((1,), (2,))]


def test_word_of_growth_that_comes_too_late_changes_nothing() -> None:
    case = sized(Ladder(300))
    case.tell(TasksReady([0]))
    case.tell(end(0, 1, Outcome.OK))
    assert case.tell(TaskGrew(0, 1, 900 * MB)) == []


def test_what_is_really_in_use_counts_where_it_is_known() -> None:
    case = sized(Ladder(300))
    case.tell(TasksReady([0, 1, 2]))
    assert case.tell(TaskGrew(1, 1, 500 * MB, total=600 * MB)) == [], "the others use less than was expected"
    assert case.tell(TaskGrew(1, 1, 800 * MB, total=1001 * MB)) == [Kill(1, 1, Outcome.EXHAUSTED)]
