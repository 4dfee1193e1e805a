"""What a member does with a task whose inputs do not fit on the disk of its node."""

from __future__ import annotations

from array import array
from random import Random

from shoal.broker.broker import Broker, Lane
from shoal.broker.check import check_broker
from shoal.broker.member import Event, Member, MemberCommand
from shoal.broker.messages import Cramped, GiveUp, Start, TaskResult, TasksEnded, TimePassed
from shoal.broker.peers import HandBack, Heard, Parcel, Roster, Send, TasksAsked, TasksPlaced, Ticket
from shoal.broker.tiers import Tiers
from shoal.explain.answer import Cause
from shoal.explain.held import explain_held
from shoal.model.resources import FRACTION, Resources
from shoal.policy.order import ORDERS, TaskColumns
from shoal.policy.retry import ROOM_DELAY, Outcome

NEED = 50
DISKS = {0: 30, 1: 20, 2: 60, 3: 70}


def member(disks: dict[int, int] = DISKS) -> Member:
    """Node 0 of several, with a core."""
    has = {node: Resources.of({"cores": FRACTION, "disk": disk}) for node, disk in disks.items()}
    columns = TaskColumns(array("i", [0] * 4))
    tiers = Tiers(lambda: ORDERS["fifo"](columns, 1, Random(0)), ())
    broker = Broker(has[0], columns, [Lane(Resources.of({"cores": FRACTION}), retries=0)], queue=tiers)
    return Member(0, broker, Roster(has, has))


def tell(member: Member, event: Event, now: float = 0.0) -> list[MemberCommand]:
    commands = member.handle(now, event)
    check_broker(member.broker)
    return commands


def no_room(member: Member, attempt: int, room: int) -> list[MemberCommand]:
    return tell(member, TasksEnded([TaskResult(0, attempt, Outcome.NO_ROOM, need=NEED, room=room)]))


def kinds(commands: list[MemberCommand], kind: type) -> list[MemberCommand]:
    return [command for command in commands if type(command) is kind]


def test_a_task_that_can_never_fit_here_goes_to_a_node_whose_disk_is_large_enough() -> None:
    one = member()
    assert kinds(tell(one, TasksPlaced([Ticket(0)])), Start)
    cramped = Cramped(NEED, (0,), 30)
    assert kinds(no_room(one, 1, 30), HandBack) == [HandBack(Ticket(0, 1, cramped=cramped), for_room=True)]
    assert 0 not in one.broker.state
    (sent,) = kinds(tell(one, TasksPlaced([Ticket(0, 1 << 16, cramped=cramped)])), Send)
    assert isinstance(sent, Send)
    assert isinstance(sent.message, Parcel)
    assert sent.peer in (2, 3)
    assert sent.message.tickets == [Ticket(0, 1 << 16, cramped=cramped)]


def test_a_task_that_only_waits_for_others_to_end_is_tried_again_and_not_charged() -> None:
    one = member()
    tell(one, TasksPlaced([Ticket(0)]))
    commands = no_room(one, 1, NEED)
    assert not kinds(commands, HandBack)
    assert not kinds(commands, GiveUp)
    answer = explain_held(one.broker, 0, 0.0)
    assert (answer.cause, answer.detail) == (Cause.RETRY, "its input files, 50 B, do not fit on the node now")
    assert kinds(tell(one, TimePassed(), ROOM_DELAY), Start) == [Start((0,), (2,), 2)]
    assert not one.broker.failures


def test_a_task_fails_when_no_node_has_room_and_it_is_told_what_the_largest_has() -> None:
    one = member({0: 30, 1: 20, 2: 45})
    tell(one, TasksPlaced([Ticket(0)]))
    assert kinds(no_room(one, 1, 30), GiveUp) == [GiveUp(0, 1, Outcome.NO_ROOM, Cramped(NEED, (0,), 45))]


def test_nodes_that_were_tried_are_not_tried_again() -> None:
    one = member({0: 80, 1: 20, 2: 60})
    tell(one, TasksPlaced([Ticket(1)]))
    tell(one, TasksEnded([TaskResult(1, 1, Outcome.OK)]))
    before = Cramped(NEED, (2,), 40)
    tell(one, Heard(2, Parcel(1, [Ticket(0, 0, cramped=before)], dealt=True)))
    assert kinds(no_room(one, 1, 45), GiveUp) == [GiveUp(0, 1, Outcome.NO_ROOM, Cramped(NEED, (2, 0), 45))]


def test_no_thief_gets_what_does_not_fit_there() -> None:
    one = member({0: 80, 1: 20, 2: 60})
    tell(one, TasksPlaced([Ticket(1)]))  # it runs
    tell(one, Heard(2, Parcel(1, [Ticket(0, 0, cramped=Cramped(NEED, (3,), 40))], dealt=True)))

    def given(peer: int) -> list[Ticket]:
        (sent,) = kinds(tell(one, Heard(peer, TasksAsked(1))), Send)
        assert isinstance(sent, Send)
        assert isinstance(sent.message, Parcel)
        return sent.message.tickets

    assert given(1) == []
    assert [ticket.task for ticket in given(2)] == [0]
