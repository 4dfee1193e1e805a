"""Distribution of tasks by labels and of the first batch over all nodes."""

from __future__ import annotations

from array import array
from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.distribution import ALL, LARGEST_PARCEL, Distribution, Distributor
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
)
from shoal.core.peer_scheduler import Event, MemberCommand, PeerOptions, PeerScheduler
from shoal.core.policies.order import ORDERS, TaskColumns, TwoLevelQueue
from shoal.core.policies.placement import ANYWHERE
from shoal.core.resources import FRACTION, Resources, carrying, requiring
from shoal.core.scheduler import Lane, Scheduler
from shoal.core.scheduler_messages import Start

CORE = Resources.of({"cores": FRACTION})
ANY, ON_B, LIKES_B, LIKES_GPU = range(4)
"""Lanes, of which task numbers are multiples and remainders: task t is of lane t % 4."""
LANES = [
    Lane(CORE),
    Lane(requiring(CORE, ["site=b"])),
    Lane(CORE, prefers=("site=b",)),
    Lane(CORE, prefers=("gpu=x", "site=b")),
]
SITES = {0: ("site=a",), 1: ("site=b",), 2: ("site=b",), 3: ("gpu=x", "site=b")}


def roster(sites: dict[int, tuple[str, ...]] = SITES, cores: int = 1) -> Roster:
    return Roster(
        sites, {node: carrying(Resources.of({"cores": cores * FRACTION}), has) for node, has in sites.items()}
    )


def member(
    here: int = 0, cores: int = 1, policy: str = "flds", sites: dict[int, tuple[str, ...]] = SITES
) -> PeerScheduler:
    columns = TaskColumns(array("i", [task % len(LANES) for task in range(60_000)]))
    capacity = carrying(Resources.of({"cores": cores * FRACTION}), sites[here])
    tiers = TwoLevelQueue(lambda: ORDERS["fifo"](columns, cores, Random(0)), ())
    lanes = [Lane(lane.resources, prefers=lane.prefers) for lane in LANES]
    broker = Scheduler(capacity, columns, lanes, queue=tiers)
    return PeerScheduler(here, broker, roster(sites, cores), PeerOptions(policy))


def tell(member: PeerScheduler, event: Event, now: float = 0.0) -> list[MemberCommand]:
    commands = member.handle(now, event)
    check_broker(member.broker)
    return commands


def tickets(lane: int, count: int) -> list[ReadyTask]:
    return [ReadyTask(4 * number + lane) for number in range(count)]


def parcels(commands: list[MemberCommand]) -> list[tuple[int, TaskTransfer]]:
    sends = [command for command in commands if isinstance(command, Send)]
    return [(send.peer, send.message) for send in sends if isinstance(send.message, TaskTransfer)]


def sizes(commands: list[MemberCommand]) -> dict[int, int]:
    found: Counter[int] = Counter()
    for peer, parcel in parcels(commands):
        found[peer] += len(parcel.tickets)
    return dict(found)


# ---- required labels -----------------------------------------------------------------------------------------------


def test_what_this_node_has_not_the_label_for_is_dealt_to_those_that_have() -> None:
    answer = tell(member(), TasksPlaced(tickets(ON_B, 9)))
    assert sizes(answer) == {1: 3, 2: 3, 3: 3}
    assert all(parcel.dealt for _, parcel in parcels(answer)), "whoever is idle there may have it"


def test_what_no_node_has_the_label_for_is_handed_back() -> None:
    alone = member(sites={0: ("site=a",), 1: ("site=a",)})
    answer = tell(alone, TasksPlaced(tickets(ON_B, 2)))
    assert [command.ticket.task for command in answer if isinstance(command, HandBack)] == [1, 5]
    assert not parcels(answer)


def test_a_node_that_comes_with_the_label_gets_what_is_placed_then() -> None:
    alone = member(sites={0: ("site=a",), 1: ("site=a",)})
    tell(alone, PeersChanged(roster({0: ("site=a",), 1: ("site=a",), 7: ("site=b",)})))
    assert sizes(tell(alone, TasksPlaced(tickets(ON_B, 2)))) == {7: 2}


def test_data_on_a_node_without_the_label_does_not_attract_a_task() -> None:
    at_b = member(here=1, policy="mdl")
    answer = tell(at_b, TasksPlaced(tickets(ON_B, 1), [((0, 1 << 30), (2, 1))]))
    assert sizes(answer) == {2: 1}


def test_a_node_does_not_ask_for_what_it_has_not_the_label_for() -> None:
    idle = member()
    asked = [send.message for send in tell(idle, QueueNearlyEmpty(False)) if isinstance(send, Send)]
    assert asked
    assert all(isinstance(question, LoadRequest) and question.unable == (ON_B,) for question in asked)


def test_a_thief_gets_nothing_that_it_has_not_the_label_for_and_is_not_woken_for_it() -> None:
    owner = member(here=1)
    tell(owner, TasksPlaced(tickets(ON_B, 40)))
    told = [
        send.message for send in tell(owner, PeerMessageReceived(0, LoadRequest(1, (ON_B,)))) if isinstance(send, Send)
    ]
    assert told == [LoadReply(1, 0)]
    assert not [send for send in tell(owner, TasksPlaced(tickets(ON_B, 90)[40:])) if isinstance(send, Send)]
    assert parcels(tell(owner, PeerMessageReceived(0, StealRequest(1, (ON_B,))))) == [(0, TaskTransfer(0, [], 0, 1))]


# ---- preferred labels ----------------------------------------------------------------------------------------------


def test_preferring_tasks_are_pushed_evenly_to_nodes_with_the_label() -> None:
    answer = tell(member(), TasksPlaced(tickets(LIKES_B, 300)))
    assert sizes(answer) == {1: 100, 2: 100, 3: 100}
    assert not any(parcel.dealt for _, parcel in parcels(answer)), "they are Local there"


def test_the_node_with_most_of_the_labels_is_preferred() -> None:
    assert sizes(tell(member(), TasksPlaced(tickets(LIKES_GPU, 10)))) == {3: 10}
    without_gpu = member(sites={0: ("site=a",), 1: ("site=b",)})
    assert sizes(tell(without_gpu, TasksPlaced(tickets(LIKES_GPU, 10)))) == {1: 10}


def test_among_preferred_nodes_the_one_with_most_of_the_data_is_chosen() -> None:
    answer = tell(member(), TasksPlaced(tickets(LIKES_B, 1), [((0, 1000), (1, 5), (2, 7))]))
    assert sizes(answer) == {2: 1}


def test_a_preference_that_no_node_meets_changes_nothing() -> None:
    alone = member(sites={0: ("site=a",), 1: ("site=a",)})
    answer = tell(alone, TasksPlaced(tickets(LIKES_B, 3)))
    assert not parcels(answer)
    assert [command.tasks for command in answer if isinstance(command, Start)] == [(LIKES_B,)]


def test_a_single_task_stays_on_a_preferred_node_and_many_are_spread_from_there() -> None:
    assert not parcels(tell(member(here=1), TasksPlaced(tickets(LIKES_B, 1))))
    assert sizes(tell(member(here=1), TasksPlaced(tickets(LIKES_B, 30)))) == {2: 10, 3: 10}


def test_pushed_tasks_wait_beside_their_label_and_are_released_when_that_takes_too_long() -> None:
    there = member(here=1, cores=1)
    tell(there, PeerMessageReceived(0, TaskTransfer(1, tickets(LIKES_B, 100), 0, 0, 1)))
    assert not there.tiers.local, "each would take a second, as far as is known: all but none would wait too long"
    for lane in there.broker.lanes:
        lane.mean_duration = 0.001
    tell(
        there,
        PeerMessageReceived(
            0, TaskTransfer(2, [ReadyTask(4 * number + LIKES_B) for number in range(200, 300)], 0, 0, 1)
        ),
    )
    assert len(there.tiers.local) == 100
    tell(there, QueueNearlyEmpty(True))
    assert not there.tiers.local


def test_where_nothing_is_ever_released_preferring_tasks_are_free_to_be_stolen() -> None:
    answer = tell(member(policy="mlb"), TasksPlaced(tickets(LIKES_B, 3)))
    assert all(parcel.dealt for _, parcel in parcels(answer))
    there = member(here=1, policy="mlb")
    tell(there, PeerMessageReceived(0, TaskTransfer(1, tickets(LIKES_B, 10), 0, 0, 1, True)))
    assert not there.tiers.local
    assert len(there.tiers.shared) == 9


def test_a_preference_counts_even_when_little_is_left() -> None:
    here = member()
    tell(here, QueueNearlyEmpty(True))
    assert sum(sizes(tell(here, TasksPlaced(tickets(LIKES_B, 1)))).values()) == 1


# ---- dealing out ---------------------------------------------------------------------------------------------------


def test_a_batch_is_dealt_to_all_in_transfers_that_are_not_too_large() -> None:
    answer = tell(member(), TasksPlaced(tickets(ANY, 15_000), [], ALL))
    assert set(sizes(answer)) == {1, 2, 3}
    assert all(3_000 < count < 4_500 for count in sizes(answer).values())
    assert all(parcel.dealt for _, parcel in parcels(answer))
    deal = Distribution()
    for ticket in tickets(ANY, 2 * LARGEST_PARCEL + 1):
        deal.deal(5, ticket)
    assert [len(some) for _, some, _ in deal.parcels()] == [LARGEST_PARCEL, LARGEST_PARCEL, 1]


def test_a_batch_is_dealt_to_nodes_with_a_label() -> None:
    assert set(sizes(tell(member(), TasksPlaced(tickets(ANY, 400), [], "site=b")))) == {1, 2, 3}
    assert set(sizes(tell(member(), TasksPlaced(tickets(ANY, 400), [], "gpu=x")))) == {3}
    nowhere = tell(member(), TasksPlaced(tickets(ANY, 400), [], "site=nowhere"))
    assert not parcels(nowhere), "what cannot go where it was to go stays"


def test_data_counts_before_the_deal() -> None:
    answer = tell(member(policy="mdl"), TasksPlaced(tickets(ANY, 40), [((2, 1 << 30),)] * 40, ALL))
    assert sizes(answer) == {2: 40}


def test_dealt_tasks_may_be_taken_by_idle_peers() -> None:
    there = member(here=1)
    tell(there, PeerMessageReceived(0, TaskTransfer(1, tickets(ANY, 11), 0, 0, 1, True)))
    given_away = parcels(tell(there, PeerMessageReceived(2, StealRequest(1))))
    assert [(peer, len(parcel.tickets)) for peer, parcel in given_away] == [(2, 5)]


@settings(max_examples=60, deadline=None)
@given(
    cores=st.lists(st.integers(1, 64), min_size=1, max_size=12),
    lane=st.sampled_from([ANY, ON_B]),
    to=st.sampled_from([ALL, "site=b", "site=a"]),
)
def test_shares_follow_the_cores_and_only_reach_nodes_that_can_run_the_task(
    cores: list[int], lane: int, to: str
) -> None:
    sites = {node: "site=b" if node % 2 else "site=a" for node in range(len(cores))}
    has = {node: carrying(Resources.of({"cores": cores[node] * FRACTION}), [site]) for node, site in sites.items()}
    dealer = Distributor(0, LANES, Roster(has, has))
    got = Counter(dealer.share_of(task, lane, to) for task in range(4000))
    allowed = [n for n, site in sites.items() if (lane == ANY or site == "site=b") and to in (ALL, site)]
    if to == ALL and lane == ON_B and not allowed:
        allowed = list(sites)  # it is placed somewhere, and handed back from there
    if not allowed:
        assert set(got) == {ANYWHERE}
        return
    assert set(got) <= set(allowed)
    total = sum(cores[node] for node in allowed)
    for node in allowed:
        assert got[node] == pytest.approx(4000 * cores[node] / total, rel=0.02, abs=12)
