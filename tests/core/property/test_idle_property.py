"""An idle peer scheduler always has an alarm set, and asks all peers, under random messages and times."""

from __future__ import annotations

from array import array
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.peer_messages import (
    LoadReply,
    LoadRequest,
    PeerMessageReceived,
    PeersChanged,
    ReadyTask,
    Roster,
    Send,
    StealRequest,
    TasksPlaced,
    TaskTransfer,
    TransferReceivedReply,
    WorkAvailableEvent,
)
from shoal.core.peer_scheduler import Alarm, Event, PeerOptions, PeerScheduler
from shoal.core.policies.order import ORDERS, TaskColumns, TwoLevelQueue
from shoal.core.policies.retry import AttemptOutcome
from shoal.core.resources import FRACTION, Resources
from shoal.core.scheduler import Lane, Scheduler
from shoal.core.scheduler_messages import Start, TaskResult, TasksEnded, TimePassed, WakeAt
from shoal.core.steal_rounds import PeerOrder

PEERS = 4
TASKS = 400
ROUNDING = 1e-9


class Driver:
    """One member as an agent drives it: messages first, then what ran, then the one alarm."""

    def __init__(self, seed: int) -> None:
        columns = TaskColumns(array("i", [0] * TASKS))
        tiers = TwoLevelQueue(lambda: ORDERS["fifo"](columns, 1, Random(0)), ())
        lanes = [Lane(Resources.of({"cores": FRACTION}), retries=3)]
        broker = Scheduler(Resources.of({"cores": FRACTION}), columns, lanes, queue=tiers, retry_pause=0.1)
        self.member = PeerScheduler(0, broker, Roster(range(PEERS)), PeerOptions(seed=seed))
        self.alarm, self.now = Alarm(), 0.0
        self.running: list[tuple[int, int]] = []
        self.asked: set[int] = set()
        self.next_task = self.next_parcel = 0
        self.tell(TimePassed())

    def tell(self, event: Event) -> None:
        for command in self.member.handle(self.now, event):
            match command:
                case WakeAt(when):
                    self.alarm.set(when)
                case Start(tasks, attempts):
                    self.running += zip(tasks, attempts, strict=True)
                case Send(peer, LoadRequest() | StealRequest()):
                    self.asked.add(peer)
        self.check()

    def check(self) -> None:
        rounds = self.member.rounds
        if rounds.is_searching(self.member.roster):
            goes_on = rounds.deadline if rounds.is_open else rounds.next_try
            assert self.alarm.when <= max(goes_on, self.now) + ROUNDING
        if self.member.parcels.unsettled:
            assert self.alarm.when <= max(self.member.parcels.next_due(), self.now) + ROUNDING
        if self.member.broker.resting:
            assert self.alarm.when <= max(self.member.broker.resting[0][0], self.now) + ROUNDING

    def turn(self) -> None:
        if self.alarm.goes_off(self.now):
            self.tell(TimePassed())

    def tickets(self, count: int) -> list[ReadyTask]:
        self.next_task += count
        return [ReadyTask(task % TASKS) for task in range(self.next_task - count, self.next_task)]

    def happen(self, kind: str, peer: int, number: int) -> None:
        rounds = self.member.rounds
        match kind:
            case "load asked":
                self.tell(PeerMessageReceived(peer, LoadRequest(number)))
            case "load told":
                self.tell(PeerMessageReceived(peer, LoadReply(max(0, rounds._round - number % 3), number)))
            case "nothing":
                self.tell(PeerMessageReceived(peer, TaskTransfer(0, [], 0, rounds._round)))
            case "parcel":
                self.next_parcel += 1
                self.tell(
                    PeerMessageReceived(
                        peer, TaskTransfer(self.next_parcel, self.tickets(1 + number % 3), number, rounds._round)
                    )
                )
            case "tasks asked":
                self.tell(PeerMessageReceived(peer, StealRequest(number)))
            case "got":
                self.tell(PeerMessageReceived(peer, TransferReceivedReply(number)))
            case "woken":
                self.tell(PeerMessageReceived(peer, WorkAvailableEvent(number)))
            case "placed":
                self.tell(TasksPlaced(self.tickets(number % 4)))
            case "ended" if self.running:
                outcome = AttemptOutcome.FAILED if number % 3 == 0 else AttemptOutcome.OK
                self.tell(TasksEnded([TaskResult(*self.running.pop(0), outcome, 0.01)], ready_follows=False))
            case "peers":
                self.tell(PeersChanged(Roster(range(1 + number % PEERS))))


KINDS = (
    *("load asked", "load told", "load told", "nothing", "parcel", "tasks asked", "got", "woken", "placed"),
    *("ended", "ended", "peers"),
)
PAUSES = st.sampled_from((0.0, 0.0005, 0.01, 0.049, 0.0501, 0.2, 1.0))
HAPPENINGS = st.lists(
    st.tuples(PAUSES, st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, PEERS - 1), st.integers(0, 9)))),
    max_size=60,
)


@settings(deadline=None, max_examples=200)
@given(seed=st.integers(0, 99), happenings=HAPPENINGS)
def test_whatever_it_hears_an_idle_peer_scheduler_has_an_alarm_set(
    seed: int, happenings: list[tuple[float, list[tuple[str, int, int]]]]
) -> None:
    driver = Driver(seed)
    for pause, events in happenings:
        driver.now += pause
        for kind, peer, number in events:
            driver.happen(kind, peer, number)
        driver.turn()
    expect_everybody_asked(driver)


def expect_everybody_asked(driver: Driver) -> None:
    """From now on nobody says anything: an idle member has asked all of them after its longest search."""
    member = driver.member
    driver.tell(PeersChanged(Roster(range(PEERS))))
    if not member.rounds.is_searching(member.roster):
        return
    driver.asked.clear()
    end = driver.now + member.rounds.longest_search(PEERS - 1)
    while driver.alarm.when <= end:
        driver.now = driver.alarm.when
        driver.turn()
        if not member.rounds.is_searching(member.roster):
            return  # a task whose attempt failed is tried again
    assert driver.asked == set(range(1, PEERS))


@given(size=st.integers(2, 60), seed=st.integers(0, 2**32), count=st.integers(1, 4), calls=st.integers(1, 40))
def test_a_walk_asks_no_peer_twice_before_it_has_asked_all(size: int, seed: int, count: int, calls: int) -> None:
    here = seed % size
    walk, roster = PeerOrder(here, Random(seed)), Roster(range(size))
    count = min(count, size - 1)
    asked = [peer for _ in range(calls) for peer in walk.next(roster, count)]
    assert here not in asked
    for at in range(len(asked) - (size - 1) + 1):
        assert len(set(asked[at : at + size - 1])) == size - 1
