"""The peer scheduler with tasks whose inputs do not fit on the disk of the node."""

from __future__ import annotations

from array import array
from random import Random

from shoal.core.explain.answer import WaitCause
from shoal.core.explain.scheduler_source import explain_held
from shoal.core.invariants import check_broker
from shoal.core.peer_messages import (
    HandBack,
    PeerMessageReceived,
    ReadyTask,
    Roster,
    Send,
    StealRequest,
    TasksPlaced,
    TaskTransfer,
)
from shoal.core.peer_scheduler import Event, MemberCommand, PeerScheduler
from shoal.core.policies.order import ORDERS, TaskColumns, TwoLevelQueue
from shoal.core.policies.retry import ROOM_DELAY, AttemptOutcome
from shoal.core.resources import FRACTION, Resources
from shoal.core.scheduler import Lane, Scheduler
from shoal.core.scheduler_messages import Cramped, GiveUp, Start, TaskResult, TasksEnded, TimePassed

NEED = 50
DISKS = {0: 30, 1: 20, 2: 60, 3: 70}


def member(disks: dict[int, int] = DISKS) -> PeerScheduler:
    """Node 0 of several, with a core."""
    has = {node: Resources.of({"cores": FRACTION, "disk": disk}) for node, disk in disks.items()}
    columns = TaskColumns(array("i", [0] * 4))
    tiers = TwoLevelQueue(lambda: ORDERS["fifo"](columns, 1, Random(0)), ())
    broker = Scheduler(has[0], columns, [Lane(Resources.of({"cores": FRACTION}), retries=0)], queue=tiers)
    return PeerScheduler(0, broker, Roster(has, has))


def tell(member: PeerScheduler, event: Event, now: float = 0.0) -> list[MemberCommand]:
    commands = member.handle(now, event)
    check_broker(member.broker)
    return commands


def no_room(member: PeerScheduler, attempt: int, room: int) -> list[MemberCommand]:
    return tell(member, TasksEnded([TaskResult(0, attempt, AttemptOutcome.NO_ROOM, need=NEED, room=room)]))


def kinds(commands: list[MemberCommand], kind: type) -> list[MemberCommand]:
    return [command for command in commands if type(command) is kind]


def test_a_task_that_can_never_fit_here_goes_to_a_node_whose_disk_is_large_enough() -> None:
    one = member()
    assert kinds(tell(one, TasksPlaced([ReadyTask(0)])), Start)
    cramped = Cramped(NEED, (0,), 30)
    assert kinds(no_room(one, 1, 30), HandBack) == [HandBack(ReadyTask(0, 1, cramped=cramped), for_room=True)]
    assert 0 not in one.broker.state
    (sent,) = kinds(tell(one, TasksPlaced([ReadyTask(0, 1 << 16, cramped=cramped)])), Send)
    assert isinstance(sent, Send)
    assert isinstance(sent.message, TaskTransfer)
    assert sent.peer in (2, 3)
    assert sent.message.tickets == [ReadyTask(0, 1 << 16, cramped=cramped)]


def test_a_task_that_only_waits_for_others_to_end_is_tried_again_and_not_charged() -> None:
    one = member()
    tell(one, TasksPlaced([ReadyTask(0)]))
    commands = no_room(one, 1, NEED)
    assert not kinds(commands, HandBack)
    assert not kinds(commands, GiveUp)
    answer = explain_held(one.broker, 0, 0.0)
    assert (answer.cause, answer.detail) == (WaitCause.RETRY, "its input files, 50 B, do not fit on the node now")
    assert kinds(tell(one, TimePassed(), ROOM_DELAY), Start) == [Start((0,), (2,), 2)]
    assert not one.broker.failures


def test_a_task_fails_when_no_node_has_room_and_names_what_the_largest_has() -> None:
    one = member({0: 30, 1: 20, 2: 45})
    tell(one, TasksPlaced([ReadyTask(0)]))
    assert kinds(no_room(one, 1, 30), GiveUp) == [GiveUp(0, 1, AttemptOutcome.NO_ROOM, Cramped(NEED, (0,), 45))]


def test_nodes_that_were_tried_are_not_tried_again() -> None:
    one = member({0: 80, 1: 20, 2: 60})
    tell(one, TasksPlaced([ReadyTask(1)]))
    tell(one, TasksEnded([TaskResult(1, 1, AttemptOutcome.OK)]))
    before = Cramped(NEED, (2,), 40)
    tell(one, PeerMessageReceived(2, TaskTransfer(1, [ReadyTask(0, 0, cramped=before)], dealt=True)))
    assert kinds(no_room(one, 1, 45), GiveUp) == [GiveUp(0, 1, AttemptOutcome.NO_ROOM, Cramped(NEED, (2, 0), 45))]


def test_no_thief_gets_what_does_not_fit_there() -> None:
    one = member({0: 80, 1: 20, 2: 60})
    tell(one, TasksPlaced([ReadyTask(1)]))  # it runs
    tell(one, PeerMessageReceived(2, TaskTransfer(1, [ReadyTask(0, 0, cramped=Cramped(NEED, (3,), 40))], dealt=True)))

    def given(peer: int) -> list[ReadyTask]:
        (sent,) = kinds(tell(one, PeerMessageReceived(peer, StealRequest(1))), Send)
        assert isinstance(sent, Send)
        assert isinstance(sent.message, TaskTransfer)
        return sent.message.tickets

    assert given(1) == []
    assert [ticket.task for ticket in given(2)] == [0]
