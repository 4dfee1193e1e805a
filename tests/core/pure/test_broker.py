"""The scheduler, event by event: what it starts, accepts, repeats and gives up."""

from __future__ import annotations

import pytest

from shoal.core.invariants import BrokenInvariantError, check_broker
from shoal.core.policies.retry import FIRST_DELAY, MOST_LOSSES, AttemptOutcome
from shoal.core.scheduler import TRANSITIONS, Lane, StateChange, TaskState
from shoal.core.scheduler_messages import Accept, GiveUp, Kill, Retry, Start, TaskResult, TasksEnded, TasksReady, WakeAt
from support.case import BrokerCase, lane, node, started


def test_ready_tasks_start_as_far_as_the_node_bears_and_the_rest_follows() -> None:
    case = BrokerCase(node(cores=2))
    assert case.ready(0, 1, 2) == [Start((0,), (1,)), Start((1,), (1,))]
    assert case.end(1) == [Accept(1, 1), Start((2,), (1,))]
    assert case.end(0, 2) == [Accept(0, 1), Accept(2, 1)]
    assert case.broker.idle()


@pytest.mark.parametrize("order", ["fifo", "lifo", "lifo+hrf"])
def test_the_first_of_a_batch_starts_first_whatever_the_order(order: str) -> None:
    case = BrokerCase(node(cores=2), order=order, rank=[0] * 9)
    assert started(case.ready(3, 4, 5)) == [3, 4]


def test_starts_wait_for_the_ready_tasks_that_were_announced() -> None:
    case = BrokerCase(node(cores=1), order="lifo")
    case.ready(0, 1)
    assert case.tell(TasksEnded([TaskResult(0, 1, AttemptOutcome.OK)], ready_follows=True)) == [Accept(0, 1)]
    assert started(case.ready(7)) == [7]


def test_an_empty_announcement_lets_starts_go_on() -> None:
    case = BrokerCase(node(cores=1))
    case.ready(0, 1)
    case.tell(TasksEnded([TaskResult(0, 1, AttemptOutcome.OK)], ready_follows=True))
    assert started(case.ready()) == [1]


def test_nothing_is_waited_for_when_no_result_was_accepted() -> None:
    case = BrokerCase(node(cores=1), [lane(retries=1)])
    case.ready(0)
    commands = case.tell(TasksEnded([TaskResult(0, 1, AttemptOutcome.FAILED)], ready_follows=True))
    assert commands == [Retry(0, 1, AttemptOutcome.FAILED, 0.0), Start((0,), (2,))]


def test_a_failed_attempt_is_repeated_as_often_as_asked_then_given_up() -> None:
    case = BrokerCase(node(cores=1), [lane(retries=2)])
    case.ready(0)
    assert case.end(0, outcome=AttemptOutcome.FAILED) == [Retry(0, 1, AttemptOutcome.FAILED, 0.0), Start((0,), (2,))]
    assert case.end(0, outcome=AttemptOutcome.CRASHED) == [
        Retry(0, 2, AttemptOutcome.CRASHED, FIRST_DELAY),
        WakeAt(FIRST_DELAY),
    ]
    assert case.pass_time(FIRST_DELAY) == [Start((0,), (3,))]
    assert case.end(0, outcome=AttemptOutcome.TIMEOUT) == [GiveUp(0, 3, AttemptOutcome.TIMEOUT)]
    assert case.broker.idle()


def test_a_resting_task_is_not_woken_before_its_time() -> None:
    case = BrokerCase(node(cores=1), [lane(retries=2)])
    case.ready(0)
    case.end(0, outcome=AttemptOutcome.FAILED)
    case.end(0, outcome=AttemptOutcome.FAILED)
    assert case.pass_time(FIRST_DELAY / 2) == [WakeAt(FIRST_DELAY)]


def test_lost_attempts_are_not_charged_but_bounded() -> None:
    case = BrokerCase(node(cores=1), [lane(retries=0)])
    case.ready(0)
    for loss in range(1, MOST_LOSSES + 1):
        (retry, *_) = case.end(0, outcome=AttemptOutcome.LOST)
        assert isinstance(retry, Retry) and retry.attempt == loss
        case.pass_time(case.now + retry.delay)
    assert case.end(0, outcome=AttemptOutcome.LOST) == [GiveUp(0, MOST_LOSSES + 1, AttemptOutcome.LOST)]


def test_a_second_or_late_word_about_an_attempt_changes_nothing() -> None:
    case = BrokerCase(node(cores=1), [lane(retries=1)])
    case.ready(0)
    assert started(case.end(0, outcome=AttemptOutcome.FAILED)) == [0]
    assert case.late(0, 1) == []
    assert case.running == [0]
    assert case.end(0) == [Accept(0, 2)]
    assert case.late(0, 2, AttemptOutcome.FAILED) == []
    assert case.late(0, 2) == []


def test_a_result_reported_twice_in_one_batch_is_accepted_once() -> None:
    case = BrokerCase(node(cores=1))
    case.ready(0)
    twice = TaskResult(0, 1, AttemptOutcome.OK)
    assert case.tell(TasksEnded([twice, twice])) == [Accept(0, 1)]


def test_cancelling_a_queued_task_ends_it_at_once() -> None:
    case = BrokerCase(node(cores=1))
    case.ready(0, 1)
    assert case.cancel(1) == [GiveUp(1, 0, AttemptOutcome.CANCELLED)]
    assert case.end(0) == [Accept(0, 1)]


def test_cancelling_a_running_task_kills_it_once_and_waits_for_its_end() -> None:
    case = BrokerCase(node(cores=1), [lane(retries=5)])
    case.ready(0, 1)
    assert case.cancel(0) == [Kill(0, 1)]
    assert case.cancel(0) == []
    assert case.running == [0]
    assert case.end(0, outcome=AttemptOutcome.CRASHED) == [GiveUp(0, 1, AttemptOutcome.CANCELLED), Start((1,), (1,))]


def test_a_cancelled_task_that_was_faster_than_its_kill_is_accepted() -> None:
    case = BrokerCase(node(cores=1))
    case.ready(0)
    case.cancel(0)
    assert case.end(0) == [Accept(0, 1)]


def test_cancelling_a_resting_task_ends_it_and_its_timer() -> None:
    case = BrokerCase(node(cores=1), [lane(retries=3)])
    case.ready(0)
    case.end(0, outcome=AttemptOutcome.FAILED)
    case.end(0, outcome=AttemptOutcome.FAILED)
    assert case.cancel(0) == [GiveUp(0, 2, AttemptOutcome.CANCELLED)]
    assert case.pass_time(99.0) == []
    assert case.broker.idle()


def test_cancelling_a_task_that_is_not_here_changes_nothing() -> None:
    assert BrokerCase(node(cores=1)).cancel(5) == []


def test_a_drain_starts_nothing_and_loses_nothing() -> None:
    case = BrokerCase(node(cores=1), [lane(retries=1)])
    case.ready(0, 1)
    case.drain()
    assert case.end(0, outcome=AttemptOutcome.FAILED) == [Retry(0, 1, AttemptOutcome.FAILED, 0.0)]
    assert case.ready(2) == []
    assert sorted(case.broker.queue.waiting()) == [0, 1, 2]
    assert started(case.end_drain()) == [1]


def test_a_task_larger_than_the_node_is_given_up_when_it_arrives() -> None:
    case = BrokerCase(node(cores=2), [lane(), lane(cores=3)], [0, 1])
    assert case.ready(0, 1) == [GiveUp(1, 0, AttemptOutcome.FAILED), Start((0,), (1,))]


def test_a_node_that_shrinks_gives_up_what_can_never_run_on_it() -> None:
    case = BrokerCase(node(cores=2), [lane(), lane(cores=2)], [1, 1, 0])
    case.ready(0, 1, 2)
    assert case.resize(node(cores=1)) == [GiveUp(1, 0, AttemptOutcome.FAILED)]
    assert case.running == [0]
    assert case.end(0) == [Accept(0, 1), Start((2,), (1,))]


def test_a_failed_task_is_not_queued_again_on_a_node_that_became_too_small_for_it() -> None:
    case = BrokerCase(node(cores=2), [lane(cores=2, retries=3)])
    case.ready(0)
    case.resize(node(cores=1))
    assert case.end(0, outcome=AttemptOutcome.CRASHED) == [GiveUp(0, 1, AttemptOutcome.CRASHED)]
    assert case.broker.idle()


def test_a_resting_task_does_not_wait_for_a_node_that_became_too_small_for_it() -> None:
    case = BrokerCase(node(cores=2), [lane(cores=2, retries=3)])
    case.ready(0)
    case.end(0, outcome=AttemptOutcome.FAILED)
    case.end(0, outcome=AttemptOutcome.FAILED)
    assert case.resize(node(cores=1)) == [GiveUp(0, 2, AttemptOutcome.FAILED)]
    assert case.pass_time(99.0) == []


def test_a_node_that_shrinks_starts_nothing_until_enough_has_ended() -> None:
    case = BrokerCase(node(cores=4))
    case.ready(0, 1, 2, 3, 4)
    case.resize(node(cores=2))
    assert started(case.end(0)) == []
    assert started(case.end(1)) == []
    assert started(case.end(2)) == [4]


def test_a_node_that_grows_starts_more_at_once() -> None:
    case = BrokerCase(node(cores=1))
    case.ready(0, 1, 2)
    assert started(case.resize(node(cores=2))) == [1]


def test_a_rank_order_counts_with_the_cores_the_node_has_now() -> None:
    case = BrokerCase(node(cores=1), order="lifo+hrf", rank=[9, 3, 3, 1, 1])
    case.ready(0)
    case.ready(1, 2)
    case.ready(3, 4)
    # Two of rank 3 queued: more than one core, so newest first; not more than two, so highest rank first.
    assert started(case.resize(node(cores=2))) == [1]


def test_narrow_tasks_start_beside_a_wide_one_that_does_not_fit() -> None:
    case = BrokerCase(node(cores=2), [lane(), lane(cores=2)], [0, 1, 0])
    assert started(case.ready(0, 1, 2)) == [0, 2]


def test_a_wide_task_is_not_passed_over_for_ever() -> None:
    case = BrokerCase(node(cores=2), [lane(), lane(cores=2)], [0, 0, 1] + [0] * 100, patience=5)
    case.ready(*range(100))
    others = 0
    while 2 not in case.running:
        case.end(case.running[0])
        others += 1
    assert others <= 5 + 2


def test_room_kept_for_a_task_that_waits_for_one_resource_leaves_the_others_in_use() -> None:
    lanes = [lane(), lane(cores=1, gpus=1)]
    case = BrokerCase(node(cores=4, gpus=1), lanes, [1, 1] + [0] * 100, patience=5)
    case.ready(*range(100))
    for _ in range(20):
        case.end(case.running[-1])
    # The second GPU task has waited long: one core is kept for it, the other two are busy, and so is the GPU.
    assert 0 in case.running
    assert len(case.running) == 3
    assert started(case.end(0))[0] == 1


def test_two_wide_lanes_both_get_their_turn() -> None:
    lanes = [lane(), lane(cores=2), lane(cores=2, memory="1G")]
    case = BrokerCase(node(cores=2, memory="1G"), lanes, [0, 0, 1, 2] + [0] * 100, patience=3)
    case.ready(*range(60))
    wide: list[int] = []
    for _ in range(20):
        wide += [task for task in started(case.end(case.running[0])) if task in (2, 3)]
    assert sorted(wide) == [2, 3]


def short_calls(cores: int, tasks: int) -> BrokerCase:
    """A case whose lane has learned that its calls take ten microseconds."""
    case = BrokerCase(node(cores=cores), [lane(retries=1, bundled=True)])
    case.ready(999)
    case.end(999, duration=1e-5)
    case.ready(*range(tasks))
    return case


def test_short_calls_are_started_several_at_a_time_and_take_one_place() -> None:
    case = short_calls(cores=2, tasks=400)
    bundles = {id(bundle): bundle for bundle in case.broker.running.values()}
    assert len(bundles) == 2
    assert all(bundle.left > 50 for bundle in bundles.values())
    assert case.broker.contract.free == [0]


def test_bundles_get_smaller_towards_the_end_so_that_no_place_idles() -> None:
    case = short_calls(cores=2, tasks=40)
    sizes = []
    while not case.broker.idle():
        commands = case.end(min(case.broker.running), duration=1e-5)
        sizes += [len(command.tasks) for command in commands if isinstance(command, Start)]
    assert sizes[-1] == 1
    assert sizes == sorted(sizes, reverse=True)


def test_a_place_is_free_again_only_when_the_whole_bundle_is_over() -> None:
    case = short_calls(cores=1, tasks=8)
    bundle = case.running
    assert len(bundle) > 1
    assert started(case.end(*bundle[:-1], duration=1e-5)) == []
    assert started(case.end(bundle[-1], duration=1e-5)) != []


def test_a_lost_worker_costs_the_running_call_an_attempt_and_the_others_of_the_bundle_none() -> None:
    case = short_calls(cores=1, tasks=8)
    first, *others = case.running
    results = [TaskResult(first, 1, AttemptOutcome.CRASHED)] + [
        TaskResult(task, 1, AttemptOutcome.LOST) for task in others
    ]
    commands = case.tell(TasksEnded(results))
    assert [command.outcome for command in commands if isinstance(command, Retry)] == [
        AttemptOutcome.CRASHED,
        *[AttemptOutcome.LOST] * len(others),
    ]
    assert case.broker.failures == {first: 1}


def test_calls_of_unknown_or_long_duration_are_started_one_by_one() -> None:
    case = BrokerCase(node(cores=1), [lane(bundled=True)])
    assert case.ready(*range(100)) == [Start((0,), (1,))]
    assert case.end(0, duration=1.0) == [Accept(0, 1), Start((1,), (1,))]


def test_lanes_may_be_added_while_the_scheduler_runs() -> None:
    lane_of = [0]
    case = BrokerCase(node(cores=2), [lane()], lane_of)
    case.ready(0)
    lane_of.append(case.broker.add_lane(lane(cores=2)))
    assert case.ready(1) == []
    assert started(case.end(0)) == [1]


def test_a_task_that_arrives_twice_is_a_defect() -> None:
    case = BrokerCase(node(cores=1))
    case.ready(0)
    with pytest.raises(KeyError):
        case.ready(0)


def test_every_state_can_be_left_and_every_move_is_used() -> None:
    assert {state for state, _ in TRANSITIONS} == set(TaskState)
    assert {move for _, move in TRANSITIONS} == set(StateChange)


@pytest.mark.parametrize("damage", ["queue", "state", "free", "bundle", "attempt", "rest", "idle"])
def test_the_checker_finds_an_inconsistent_scheduler(damage: str) -> None:
    case = BrokerCase(node(cores=1), [lane(retries=5)])
    case.ready(0, 1)
    broker = case.broker
    check_broker(broker)
    match damage:
        case "queue":
            broker.queue.remove(1)
        case "state":
            broker.state[0] = TaskState.QUEUED
        case "free":
            broker.contract.free[0] += 1
        case "bundle":
            broker.running[0].left += 1
        case "attempt":
            broker.attempt[77] = 1
        case "rest":
            broker.state[0] = TaskState.RESTING
            del broker.running[0]
            broker.contract.give_back(broker.contract.needs[0])
        case "idle":
            broker.handle(0.0, TasksReady([]))
            broker.contract.resize(node(cores=2))
    with pytest.raises(BrokenInvariantError):
        check_broker(broker)


def refilling_case(*lane_of: int) -> BrokerCase:
    """One core; tasks of a millisecond, which go out in bundles that are refilled; the first one teaches that."""
    lanes = [Lane(node(cores=1), bundled=True, refilled=True), Lane(node(cores=1))]
    return BrokerCase(node(cores=1), lanes, lane_of=lane_of or [0] * 1000)


def test_place_with_little_left_gets_more_before_it_is_empty() -> None:
    case = refilling_case()
    case.ready(*range(400))
    (_, first) = case.end(0, duration=0.001)
    assert isinstance(first, Start) and len(first.tasks) > 8
    most = len(first.tasks) - len(first.tasks) // 4
    commands = case.end(*first.tasks[:most], duration=0.001)
    more = [command for command in commands if isinstance(command, Start)]
    assert len(more) == 1 and case.places[-1] == case.places[-2], "the same place goes on"
    assert case.broker.contract.free == [0], "it still takes the resources of one task"


def test_place_is_not_refilled_while_another_lane_waits() -> None:
    case = refilling_case(*[0] * 300, 1)
    case.ready(*range(300))
    (_, first) = case.end(0, duration=0.001)
    assert isinstance(first, Start)
    case.ready(300)
    most = len(first.tasks) - len(first.tasks) // 4
    assert started(case.end(*first.tasks[:most], duration=0.001)) == []
