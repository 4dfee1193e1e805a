"""The scheduler with an adviser: learned sizes, and attempts that exceeded them."""

from __future__ import annotations

from shoal.core.policies.retry import AttemptOutcome
from shoal.core.policies.sizing.adviser import SIZED, Amounts, SizeAdviser, Tried
from shoal.core.policies.sizing.undeclared import new_part
from shoal.core.resources import FRACTION, Resources
from shoal.core.scheduler import Lane
from shoal.core.scheduler_messages import (
    Accept,
    Command,
    GiveUp,
    Kill,
    Retry,
    Start,
    TaskGrew,
    TaskResult,
    TasksEnded,
    TasksReady,
)
from support.case import BrokerCase, node

MB = 1 << 20
MEMORY, DISK = SIZED.index("memory"), SIZED.index("disk")


class Ladder:
    """An adviser for one resource that goes up a ladder of sizes; the first rung can be moved."""

    def __init__(self, *rungs: int, resource: str = "memory") -> None:
        self.at = SIZED.index(resource)
        self.rungs = [rung * MB for rung in rungs]
        self.seen: list[tuple[int, int]] = []
        self.node = Resources()

    def ask(self, tried: Tried) -> Amounts:
        largest = max(tried[self.at], default=0)
        size = next((rung for rung in self.rungs if rung > largest), self.rungs[-1])
        return tuple(size if at == self.at else 0 for at in range(len(SIZED)))

    def hopeless(self, tried: Tried) -> bool:
        return max(tried[self.at], default=0) >= self.rungs[-1]

    def observe(self, used: Amounts, duration: float, tried: Tried, sizes: Amounts, exhausted: int = -1) -> None:
        self.seen.append((sizes[self.at] if exhausted == self.at else used[self.at], exhausted))

    def resize(self, node: Resources) -> None:
        self.node = node
        self.rungs = [min(rung, node.get(SIZED[self.at])) for rung in self.rungs]


def sized(adviser: Ladder) -> BrokerCase:
    return BrokerCase(
        node(cores=4, memory="1000M", disk="1000M"), [Lane(Resources.parse({"cores": 1}), adviser=adviser)]
    )


def exhaust(case: BrokerCase, task: int, attempt: int, amount: int, resource: str = "memory") -> list[Command]:
    """The task outgrows the node, is told to end, and does."""
    grown = TaskGrew(task, attempt, amount, total=2000 * MB, resource=resource)
    assert case.tell(grown) == [Kill(task, attempt, AttemptOutcome.EXHAUSTED)]
    return case.broker.handle(1.0, end(task, attempt, AttemptOutcome.EXHAUSTED))


def end(task: int, attempt: int, outcome: AttemptOutcome, peak: int = 0) -> TasksEnded:
    return TasksEnded([TaskResult(task, attempt, outcome, 1.0, (0, peak, 0))])


def test_no_more_tasks_run_together_than_their_sizes_allow() -> None:
    case = sized(Ladder(400))
    commands = case.broker.handle(0.0, TasksReady([0, 1, 2]))
    assert [command.tasks for command in commands if isinstance(command, Start)] == [(0,), (1,)]
    assert all(command.sizes == (0, 400 * MB, 0) for command in commands if isinstance(command, Start))


def test_an_exhausted_task_tries_the_next_size_and_is_not_charged() -> None:
    adviser = Ladder(100, 600, 1000)
    case = sized(adviser)
    case.tell(TasksReady([0]))
    commands = exhaust(case, 0, 1, 150 * MB)
    assert commands[0] == Retry(0, 1, AttemptOutcome.EXHAUSTED, 0.0)
    assert isinstance(commands[1], Start)
    assert commands[1].sizes == (0, 600 * MB, 0)
    assert case.tell(end(0, 2, AttemptOutcome.OK, 500 * MB)) == [Accept(0, 2)]
    assert adviser.seen == [(150 * MB, MEMORY), (500 * MB, -1)]


def test_a_task_that_exhausts_everything_is_given_up() -> None:
    case = sized(Ladder(100, 1000))
    case.tell(TasksReady([0]))
    exhaust(case, 0, 1, 150 * MB)
    assert exhaust(case, 0, 2, 1001 * MB) == [GiveUp(0, 2, AttemptOutcome.EXHAUSTED)]
    assert case.broker.idle()


def test_a_size_that_was_learned_counts_for_the_next_starts_and_not_for_what_runs() -> None:
    adviser = Ladder(400)
    case = sized(adviser)
    case.tell(TasksReady([0, 1, 2, 3, 4]))
    adviser.rungs = [200 * MB]
    started = [
        command.tasks for command in case.tell(end(0, 1, AttemptOutcome.OK, 150 * MB)) if isinstance(command, Start)
    ]
    assert started == [(2,), (3,), (4,)]


def test_a_task_over_a_limit_that_it_declared_itself_has_failed() -> None:
    case = BrokerCase(node(cores=2, memory="1000M"))
    case.tell(TasksReady([0]))
    assert case.tell(end(0, 1, AttemptOutcome.EXHAUSTED)) == [GiveUp(0, 1, AttemptOutcome.EXHAUSTED)]


def test_a_task_over_what_it_declared_fails_also_where_something_else_is_learned() -> None:
    case = sized(Ladder(100, 1000))
    case.tell(TasksReady([0]))
    assert case.tell(end(0, 1, AttemptOutcome.EXHAUSTED)) == [GiveUp(0, 1, AttemptOutcome.EXHAUSTED)]


def test_disk_is_sized_and_retried_as_memory_is() -> None:
    adviser = Ladder(400, 1000, resource="disk")
    case = sized(adviser)
    commands = case.broker.handle(0.0, TasksReady([0, 1, 2]))
    assert [command.tasks for command in commands if isinstance(command, Start)] == [(0,), (1,)]
    assert exhaust(case, 1, 1, 700 * MB, "disk")[0] == Retry(1, 1, AttemptOutcome.EXHAUSTED, 0.0)
    assert adviser.seen == [(700 * MB, DISK)]
    case.tell(end(0, 1, AttemptOutcome.OK))
    commands = case.broker.handle(2.0, end(2, 1, AttemptOutcome.OK))
    assert commands == [Accept(2, 1), Start((1,), (2,), 4, (0, 0, 1000 * MB))]


def test_growth_of_what_is_not_sized_changes_nothing() -> None:
    case = sized(Ladder(400, resource="disk"))
    case.tell(TasksReady([0]))
    assert case.tell(TaskGrew(0, 1, 900 * MB, 5000 * MB)) == []


def test_a_change_of_capacity_reaches_the_adviser_and_the_sizes_of_what_waits() -> None:
    adviser = Ladder(400, 1000)
    case = sized(adviser)
    case.tell(TasksReady([0, 1, 2]))
    assert case.resize(node(cores=4, memory="300M")) == []
    assert adviser.node.get("memory") == 300 * MB
    case.tell(end(0, 1, AttemptOutcome.OK))
    commands = case.broker.handle(1.0, end(1, 1, AttemptOutcome.OK))
    assert commands[1:] == [Start((2,), (1,), 3, (0, 300 * MB, 0))]


def test_tasks_that_keep_more_cores_busy_are_packed_less_densely() -> None:
    four = node(cores=4)
    panel = SizeAdviser(four, FRACTION, {"cores": new_part("cores", four.get("cores"))})
    case = BrokerCase(four, [Lane(Resources.parse({"cores": 1}), adviser=panel)])
    assert len(case.tell(TasksReady(list(range(12))))) == 4
    for task in range(4):
        used = (2 * FRACTION, 0, 0)
        commands = case.tell(TasksEnded([TaskResult(task, 1, AttemptOutcome.OK, 5.0, used)]))
    assert [command.tasks for command in commands if isinstance(command, Start)] == [(5,)]
    assert case.running == [4, 5]


def test_a_task_that_grows_holds_more_and_nothing_starts_until_there_is_room() -> None:
    case = sized(Ladder(300))
    case.tell(TasksReady([0, 1, 2, 3]))
    assert case.tell(TaskGrew(0, 1, 390 * MB)) == []
    assert case.tell(end(1, 1, AttemptOutcome.OK)) == [Accept(1, 1), Start((3,), (1,))]
    case = sized(Ladder(300))
    case.tell(TasksReady([0, 1, 2, 3]))
    assert case.tell(TaskGrew(0, 1, 400 * MB)) == []
    assert case.tell(TaskGrew(2, 1, 300 * MB)) == []
    assert case.tell(end(1, 1, AttemptOutcome.OK)) == [Accept(1, 1), Start((3,), (1,))]
    assert case.tell(TaskGrew(3, 1, 290 * MB)) == []


def test_the_task_that_grows_beyond_what_the_node_has_is_ended_and_tried_with_more() -> None:
    adviser = Ladder(300, 900)
    case = sized(adviser)
    case.tell(TasksReady([0, 1, 2]))
    assert case.tell(TaskGrew(1, 1, 500 * MB)) == [Kill(1, 1, AttemptOutcome.EXHAUSTED)]
    assert case.tell(TaskGrew(1, 1, 510 * MB)) == [], "it is told once"
    assert case.tell(end(1, 1, AttemptOutcome.EXHAUSTED)) == [Retry(1, 1, AttemptOutcome.EXHAUSTED, 0.0)]
    assert adviser.seen == [(510 * MB, MEMORY)]
    case.tell(end(0, 1, AttemptOutcome.OK))
    assert case.tell(end(2, 1, AttemptOutcome.OK)) == [Accept(2, 1), Start((1,), (2,))]


def test_word_of_growth_that_comes_too_late_changes_nothing() -> None:
    case = sized(Ladder(300))
    case.tell(TasksReady([0]))
    case.tell(end(0, 1, AttemptOutcome.OK))
    assert case.tell(TaskGrew(0, 1, 900 * MB)) == []


def test_what_is_really_in_use_counts_where_it_is_known() -> None:
    case = sized(Ladder(300))
    case.tell(TasksReady([0, 1, 2]))
    assert case.tell(TaskGrew(1, 1, 500 * MB, total=600 * MB)) == [], "the others use less than was expected"
    assert case.tell(TaskGrew(1, 1, 800 * MB, total=1001 * MB)) == [Kill(1, 1, AttemptOutcome.EXHAUSTED)]
