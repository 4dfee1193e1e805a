"""The peer scheduler: its reactions to events and messages, one behaviour at a time."""

from __future__ import annotations

from array import array
from random import Random

import pytest

from shoal.core.invariants import check_broker
from shoal.core.peer_messages import (
    HandBack,
    LoadReply,
    LoadRequest,
    PeerMessageReceived,
    PeersChanged,
    QueueNearlyEmpty,
    ReadyTask,
    Roster,
    Send,
    StealRequest,
    TasksPlaced,
    TaskTransfer,
    TransferReceivedReply,
    WorkAvailableEvent,
)
from shoal.core.peer_scheduler import MOST_UNWANTED, Alarm, Event, MemberCommand, PeerOptions, PeerScheduler
from shoal.core.policies.order import ORDERS, TaskColumns, TwoLevelQueue
from shoal.core.policies.retry import AttemptOutcome
from shoal.core.resources import FRACTION, Resources
from shoal.core.scheduler import Lane, Scheduler
from shoal.core.scheduler_messages import (
    CancelRequested,
    CapacityChanged,
    DrainRequested,
    GiveUp,
    Start,
    TaskResult,
    TasksEnded,
    TimePassed,
    WakeAt,
)

TASKS = 1000
WIDE = 500
"""Tasks from this number on ask for four cores."""


def member(
    cores: int = 1,
    *,
    here: int = 0,
    peers: int = 3,
    policy: str = "mdl",
    patience: float | None = None,
    weight: tuple[int, ...] = (),
) -> PeerScheduler:
    """Of a cluster in which tasks ask for one core, or for four."""
    lanes = [Lane(Resources.of({"cores": count * FRACTION}), retries=1) for count in (1, 4)]
    columns = TaskColumns(array("i", [0] * WIDE + [1] * (TASKS - WIDE)), input_bytes=weight)
    tiers = TwoLevelQueue(lambda: ORDERS["fifo"](columns, cores, Random(0)), weight)
    broker = Scheduler(Resources.of({"cores": cores * FRACTION}), columns, lanes, queue=tiers)
    return PeerScheduler(here, broker, Roster(range(peers)), PeerOptions(policy, patience=patience))


def tell(member: PeerScheduler, event: Event, now: float = 0.0) -> list[MemberCommand]:
    commands = member.handle(now, event)
    check_broker(member.broker)
    return commands


def place(member: PeerScheduler, tasks: range, now: float = 0.0) -> list[MemberCommand]:
    return tell(member, TasksPlaced([ReadyTask(task) for task in tasks]), now)


def sent(commands: list[MemberCommand]) -> list[tuple[int, object]]:
    return [(command.peer, command.message) for command in commands if isinstance(command, Send)]


def parcels(commands: list[MemberCommand]) -> list[TaskTransfer]:
    return [message for _, message in sent(commands) if isinstance(message, TaskTransfer)]


def given(commands: list[MemberCommand]) -> list[int]:
    return [ticket.task for parcel in parcels(commands) for ticket in parcel.tickets]


def started(commands: list[MemberCommand]) -> list[int]:
    return [task for command in commands if isinstance(command, Start) for task in command.tasks]


def test_an_idle_peer_scheduler_asks_several_peers_at_once() -> None:
    asked = sent(tell(member(peers=20), TimePassed()))
    assert len({peer for peer, _ in asked}) == 4
    assert {type(message) for _, message in asked} == {LoadRequest}


def test_the_richest_is_asked_and_then_the_second() -> None:
    thief = member(peers=5)
    asked = [peer for peer, _ in sent(tell(thief, TimePassed()))]
    first, second = asked[:2]
    round = 1
    assert not sent(tell(thief, PeerMessageReceived(first, LoadReply(round, 3))))
    assert sent(tell(thief, PeerMessageReceived(second, LoadReply(round, 9)))) == [(second, StealRequest(round, (1,)))]
    answer = sent(tell(thief, PeerMessageReceived(second, TaskTransfer(0, [], 0, round))))
    assert answer == [(first, StealRequest(round, (1,)))]


def test_a_round_without_an_answer_is_followed_by_another() -> None:
    thief = member()
    now = 0.0
    rounds = 0
    for _ in range(400):
        commands = tell(thief, TimePassed(), now)
        rounds += any(isinstance(message, LoadRequest) for _, message in sent(commands))
        now += 0.1
    assert rounds > 50


def test_half_of_one_task_is_one() -> None:
    victim = member()
    place(victim, range(2))
    assert given(tell(victim, PeerMessageReceived(1, StealRequest(1)))) == [1]


def test_what_was_run_in_the_meantime_is_not_given() -> None:
    victim = member(cores=2)
    place(victim, range(3))
    tell(victim, TasksEnded([TaskResult(0, 1, AttemptOutcome.OK, 1.0)]))
    assert parcels(tell(victim, PeerMessageReceived(1, StealRequest(1)))) == [TaskTransfer(0, [], 0, 1)]


def test_thieves_get_the_tasks_with_the_least_data() -> None:
    weights = tuple(100 - task % 100 for task in range(TASKS))
    victim = member(weight=weights)
    place(victim, range(9))
    assert given(tell(victim, PeerMessageReceived(1, StealRequest(1)))) == [8, 7, 6, 5]


def test_thief_gets_nothing_that_it_could_not_start() -> None:
    victim = member(cores=4)
    place(victim, range(WIDE, WIDE + 3))
    assert sent(tell(victim, PeerMessageReceived(1, LoadRequest(1, (1,))))) == [(1, LoadReply(1, 0))]
    assert parcels(tell(victim, PeerMessageReceived(1, StealRequest(2, (1,))))) == [TaskTransfer(0, [], 0, 2)]
    assert given(tell(victim, PeerMessageReceived(2, StealRequest(1)))) == [WIDE + 1]


def test_ready_task_is_pushed_to_its_data_at_most_once() -> None:
    here, there = member(), member(here=1)
    pushed = parcels(tell(here, TasksPlaced([ReadyTask(7)], [((1, 100),)])))
    assert [parcel.tickets for parcel in pushed] == [[ReadyTask(7)]]
    assert started(tell(there, PeerMessageReceived(0, pushed[0]))) == [7]
    assert not there.parcels.unsettled


def test_stolen_task_is_never_pushed() -> None:
    thief = member(here=2)
    commands = tell(thief, PeerMessageReceived(0, TaskTransfer(1, [ReadyTask(7), ReadyTask(8)], 0, 1)))
    assert started(commands) == [7]
    assert not parcels(commands)


def test_a_hot_spot_takes_more_than_it_can_run_soon_into_its_shared_queue() -> None:
    hot = member(policy="flds", here=1, patience=10.0)
    tickets = [ReadyTask(task) for task in range(200)]
    tell(hot, PeerMessageReceived(0, TaskTransfer(1, tickets, 0, 0)))
    assert 0 < len(hot.tiers.local) <= 10
    assert len(hot.tiers.shared) + len(hot.tiers.local) == 199


def test_a_peer_scheduler_with_more_than_it_can_start_wakes_thieves_that_got_nothing() -> None:
    victim = member()
    tell(victim, PeerMessageReceived(2, StealRequest(1)))
    assert (2, WorkAvailableEvent(9)) in sent(place(victim, range(10)))


def test_who_is_woken_asks_at_once() -> None:
    thief = member()
    tell(thief, TimePassed())
    tell(thief, TimePassed(), 0.06)
    assert (2, StealRequest(2, (1,))) in sent(tell(thief, PeerMessageReceived(2, WorkAvailableEvent(5)), 0.0601))


def test_when_little_is_left_data_does_not_decide() -> None:
    here = member()
    tell(here, QueueNearlyEmpty())
    commands = tell(here, TasksPlaced([ReadyTask(7)], [((1, 10**12),)]))
    assert started(commands) == [7]


def test_a_transfer_is_repeated_until_it_is_acknowledged() -> None:
    victim = member()
    place(victim, range(4))
    first = parcels(tell(victim, PeerMessageReceived(1, StealRequest(1))))[0]
    assert parcels(tell(victim, TimePassed(), 0.6)) == [first]
    tell(victim, PeerMessageReceived(1, TransferReceivedReply(first.number)), 0.7)
    assert not parcels(tell(victim, TimePassed(), 60.0))


def test_a_transfer_that_comes_twice_is_taken_in_once_and_acknowledged_twice() -> None:
    thief = member(here=2)
    parcel = TaskTransfer(1, [ReadyTask(7)], 0, 1)
    assert started(tell(thief, PeerMessageReceived(0, parcel))) == [7]
    tell(thief, TasksEnded([TaskResult(7, 1, AttemptOutcome.OK, 1.0)]), 1.0)
    again = tell(thief, PeerMessageReceived(0, parcel), 2.0)
    assert not started(again)
    assert (0, TransferReceivedReply(1, 0)) in sent(again)


def test_what_a_peer_says_that_is_gone_does_not_count() -> None:
    thief = member(here=2)
    tell(thief, PeersChanged(Roster([1, 2])))
    assert not tell(thief, PeerMessageReceived(0, TaskTransfer(1, [ReadyTask(7)], 0, 1)))


def test_transfers_to_a_peer_that_is_gone_are_forgotten() -> None:
    victim = member()
    place(victim, range(4))
    tell(victim, PeerMessageReceived(1, StealRequest(1)))
    tell(victim, PeersChanged(Roster([0, 2])), 0.1)
    assert not parcels(tell(victim, TimePassed(), 60.0))


def test_a_cancelled_task_that_is_under_way_ends_when_it_arrives() -> None:
    thief = member(here=2)
    tell(thief, CancelRequested([7]))
    assert started(tell(thief, PeerMessageReceived(0, TaskTransfer(1, [ReadyTask(7), ReadyTask(8)], 0, 1)))) == [8]


def test_cancelled_tasks_are_not_remembered_forever() -> None:
    thief = member(here=2)
    for first in range(0, 5 * MOST_UNWANTED, 1000):
        tell(thief, CancelRequested(list(range(first, first + 1000))))
    assert len(thief.unwanted) == MOST_UNWANTED


def test_a_task_that_is_here_already_stays_where_it_is() -> None:
    here = member()
    place(here, range(3))
    tell(here, TasksPlaced([ReadyTask(2)], [((0, 100),)]))
    assert not here.tiers.local
    tell(here, CancelRequested([2]))
    assert 2 not in here.broker.state


def test_what_a_node_is_too_small_for_is_handed_back_not_failed() -> None:
    small = member(cores=1)
    commands = tell(small, PeerMessageReceived(1, TaskTransfer(1, [ReadyTask(WIDE), ReadyTask(3)], 0, 1)))
    assert [command.ticket.task for command in commands if isinstance(command, HandBack)] == [WIDE]
    assert started(commands) == [3]


@pytest.mark.parametrize("rests", [False, True])
def test_what_waits_on_a_node_that_shrinks_is_handed_back_with_what_it_was_charged(rests: bool) -> None:
    node = member(cores=4)
    place(node, range(WIDE, WIDE + 1))
    attempts = 2 if rests else 1
    for attempt in range(1, attempts + 1):
        tell(node, TasksEnded([TaskResult(WIDE, attempt, AttemptOutcome.LOST)]), float(attempt))
    if not rests:
        place(node, range(WIDE + 1, WIDE + 2))
    commands = tell(node, CapacityChanged(Resources.of({"cores": FRACTION})), 3.0)
    assert not any(isinstance(command, GiveUp) for command in commands)
    handed = [command.ticket for command in commands if isinstance(command, HandBack)]
    assert handed == ([ReadyTask(WIDE, 2, 0, 2)] if rests else [ReadyTask(WIDE + 1)])


def test_an_attempt_that_is_lost_after_its_node_shrank_goes_to_another_node() -> None:
    node = member(cores=4)
    place(node, range(WIDE, WIDE + 1))
    tell(node, CapacityChanged(Resources.of({"cores": FRACTION})), 1.0)
    commands = tell(node, TasksEnded([TaskResult(WIDE, 1, AttemptOutcome.LOST)]), 2.0)
    assert [command.ticket for command in commands if isinstance(command, HandBack)] == [ReadyTask(WIDE, 1, 0, 1)]


def test_thieves_may_have_everything_of_a_node_that_drains() -> None:
    full = member()
    place(full, range(9))
    tell(full, DrainRequested())
    assert len(given(tell(full, PeerMessageReceived(1, StealRequest(1))))) == 8


def test_worst_case_submission_spreads_in_a_logarithm_of_rounds() -> None:
    """All tasks to one of sixteen: each thief takes half, so after four rounds of asking all have some."""
    members = [member(here=node, peers=16) for node in range(16)]
    place(members[0], range(400))
    have = [0]
    for round in range(4):
        for victim in list(have):
            thief = len(have)
            parcel = parcels(tell(members[victim], PeerMessageReceived(thief, StealRequest(round + 1))))[0]
            tell(members[thief], PeerMessageReceived(victim, parcel))
            have.append(thief)
    held = [len(each.broker.state) for each in members]
    assert sum(held) == 400
    assert min(held) >= 20


def test_a_timer_outlives_a_message_that_comes_in_the_same_turn_of_the_loop() -> None:
    """A driver keeps one moment, and takes messages before it looks at the clock: both are due at once here."""
    thief, alarm = member(peers=2), Alarm()

    def hear(event: Event, now: float) -> None:
        for command in tell(thief, event, now):
            if isinstance(command, WakeAt):
                alarm.set(command.when)

    hear(TimePassed(), 0.0)  # a round, whose answer is waited for until a moment
    late = alarm.when + 0.001
    hear(PeerMessageReceived(1, LoadRequest(7)), late)  # the round is over: the next one begins at a later moment
    assert alarm.goes_off(late)
    hear(TimePassed(), late)
    assert alarm.when < late + 1.0, "an idle member is not woken any more"


@pytest.mark.parametrize("peers", [2, 3, 4, 9, 12, 30, 101])
def test_each_peer_is_asked_within_so_many_rounds(peers: int) -> None:
    """Whichever round one begins to count with: a peer that has work is found after as many."""
    thief = member(peers=peers)
    now, rounds = 0.0, []
    for _ in range(3000):
        now += 0.05
        messages = sent(tell(thief, TimePassed(), now))
        asked = {peer for peer, message in messages if isinstance(message, LoadRequest)}
        if asked:
            rounds.append(asked)
    most = thief.rounds.rounds_for_all(peers - 1)
    assert len(rounds) > 10 * most
    for first in range(len(rounds) - most):
        assert len(set().union(*rounds[first : first + most])) == peers - 1
    assert now >= len(rounds) / most * thief.rounds.longest_search(peers - 1) * 0.1


@pytest.mark.parametrize("delay", [0.06, 0.2, 0.6])
def test_a_thief_whose_answers_come_late_asks_for_tasks_all_the_same(delay: float) -> None:
    """Over a slow link every answer comes after the round in which it was asked for."""
    thief = member(peers=2)
    now, under_way = 0.0, list[tuple[float, LoadRequest]]()
    for _ in range(500):
        now += 0.01
        commands = tell(thief, TimePassed(), now)
        for when, question in [each for each in under_way if each[0] <= now]:
            under_way.remove((when, question))
            commands += tell(thief, PeerMessageReceived(1, LoadReply(question.round, 5)), now)
        under_way += [(now + delay, message) for _, message in sent(commands) if isinstance(message, LoadRequest)]
        if any(isinstance(message, StealRequest) for _, message in sent(commands)):
            return
    pytest.fail("it was never asked for tasks")


def test_a_peer_scheduler_whose_tasks_are_too_large_for_its_free_cores_asks_for_others() -> None:
    thief = member(4, peers=2)
    place(thief, range(1))
    place(thief, range(WIDE, WIDE + 1))  # one core is busy: it waits, and three cores are idle
    tell(thief, TimePassed(), 1.0)  # nobody has answered to what was asked before
    commands = tell(thief, TimePassed(), 2.0)
    ((peer, question),) = [each for each in sent(commands) if isinstance(each[1], LoadRequest)]
    assert isinstance(question, LoadRequest) and question.unable == (1,)
    assert [
        message for _, message in sent(tell(thief, PeerMessageReceived(peer, LoadReply(question.round, 9)), 2.0))
    ] == [StealRequest(question.round, (1,))]
    parcel = TaskTransfer(1, [ReadyTask(7), ReadyTask(8)], 0, question.round)
    assert started(tell(thief, PeerMessageReceived(peer, parcel), 2.0)) == [7, 8]
    assert thief.idle_cores() == 1


def test_cores_that_are_kept_for_a_large_task_are_not_idle() -> None:
    thief = member(4, peers=2)
    place(thief, range(1))
    place(thief, range(WIDE, WIDE + 1))
    thief.broker.lanes[1].passed_over = thief.broker.patience
    for now in (1.0, 2.0, 3.0):  # the first one ends the round that was begun before
        assert not sent(tell(thief, TimePassed(), now))
