"""Messengers over real sockets: messages arrive with the sender's role, and peers may come and go."""

from __future__ import annotations

import select
import socket
import time

import pytest
import zmq

from shoal.cluster.messaging.access import Role, make_access, narrowed
from shoal.cluster.messaging.authenticator import Context, client_socket
from shoal.cluster.messaging.caller import Caller
from shoal.cluster.messaging.envelope import BadFrame
from shoal.cluster.messaging.messenger import Messenger
from shoal.errors import InputError
from support.wire import DEADLINE, Echo, Message, Note, Tally, codec, echo, heard, texts, turn

ACCESS = make_access("corals")
WORKER = narrowed(ACCESS, Role.WORKER)


def post(sender: str = "", bind: str = "tcp://127.0.0.1:0", **options: float) -> Messenger[Message]:
    return Messenger(WORKER, codec(), bind=bind, sender=sender, **options)  # type: ignore[arg-type]


def test_what_is_sent_in_one_turn_arrives_as_one_envelope() -> None:
    one, other = post("one"), post("other")
    try:
        for number in range(100):
            one.send(other.address, Note(str(number)))
        one.send(other.address, Tally([1, 2], {"a": 0.5}))
        received = heard(other, lambda found: bool(found), [one])
        assert len(received) == 1
        assert received[0].messages == [*(Note(str(number)) for number in range(100)), Tally([1, 2], {"a": 0.5})]
        assert (received[0].role, received[0].sender, received[0].serial) == (Role.WORKER, "one", 1)
    finally:
        one.close()
        other.close()


def test_an_answer_goes_back_to_whoever_asked() -> None:
    one, other = post("one"), post("other")
    try:
        one.send(other.address, Note("question"))
        (asked,) = heard(other, lambda found: bool(found), [one])
        other.answer(asked.route, Note("answer"))
        (answer,) = heard(one, lambda found: bool(found), [other])
        assert (answer.messages, answer.sender, answer.role) == ([Note("answer")], "other", Role.WORKER)
        one.answer(answer.route, Note("thanks"))
        assert texts(heard(other, lambda found: bool(found), [one])) == ["thanks"]
    finally:
        one.close()
        other.close()


@pytest.mark.parametrize("role", list(Role))
def test_the_role_follows_from_the_key_and_not_from_what_is_said(role: Role) -> None:
    with echo(WORKER) as agent, Caller(narrowed(ACCESS.at([agent.address]), role), codec(), sender="worker") as caller:
        assert caller.ask(Note("hello")) == Note(f"{role}: hello 0")
        assert [one.role for one in agent.heard] == [role]


def test_many_messages_arrive_in_order_and_whole() -> None:
    one, other = post(), post()
    sent = 0
    numbers: list[int] = []
    deadline = time.monotonic() + DEADLINE
    try:
        while len(numbers) < 20_000:
            assert time.monotonic() < deadline
            while sent < min(20_000, len(numbers) + 2_000):
                one.send(other.address, Tally([sent]))
                sent += 1
            turn(one, 0)
            for found in turn(other):
                numbers += [message.numbers[0] for message in found.messages if isinstance(message, Tally)]
        assert numbers == list(range(20_000))
        assert one.dropped == 0
    finally:
        one.close()
        other.close()


def test_a_loop_that_only_polls_is_always_woken() -> None:
    """Sending can swallow libzmq's signal that something came in; a lost one would cost the whole timeout here."""
    with echo(WORKER) as agent:
        here = post()
        poll = select.poll()
        for fd in here.fds():
            poll.register(fd, select.POLLIN)
        try:
            done = 0
            here.send(agent.address, Note("0", answers=3))
            here.flush()
            while done < 3_000:
                assert poll.poll(1000 * DEADLINE), f"nothing woke us after {done} answers"
                for one in here.receive():
                    for message in one.messages:
                        done += 1
                        if done % 3 == 0:
                            here.send(agent.address, Note(str(done), answers=3))
                            here.flush()  # in mid-turn, while more may be coming in
                        assert isinstance(message, Note)
                here.flush()
        finally:
            here.close()


def test_a_peer_that_restarts_on_the_same_port_is_found_again() -> None:
    here = post()
    agent = Echo(WORKER)
    try:
        here.send(agent.address, Note("before"))
        assert texts(heard(here, lambda found: bool(found))) == ["worker: before 0"]
        for round in range(3):
            agent.stop()
            agent = Echo(WORKER, bind=agent.address)
            answers: list[str] = []
            deadline = time.monotonic() + DEADLINE
            # What is sent before the loss is noticed is lost, so it is said again. Late answers may come as well.
            while f"worker: after {round} 0" not in answers:
                assert time.monotonic() < deadline
                here.send(agent.address, Note(f"after {round}"))
                answers += texts(turn(here))
            assert f"after {round}" in texts(agent.heard)
    finally:
        agent.stop()
        here.close()


def test_an_absent_peer_costs_a_bounded_outbox_that_keeps_the_newest() -> None:
    here = post(outbox_bytes=50_000)
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        address = f"tcp://127.0.0.1:{port}"
        for number in range(1_000):
            here.send(address, Note(str(number), bytes(1_000)))
            turn(here, 0)
        assert here.waiting(address) < 50
        assert here.dropped + here.waiting(address) == 1_000
    late = post(bind=address)
    try:
        waiting = here.waiting(address)
        received = heard(late, lambda found: len(texts(found)) >= waiting, [here])
        assert texts(received) == [str(number) for number in range(1_000 - waiting, 1_000)]
    finally:
        here.close()
        late.close()


def test_a_peer_is_found_where_a_stranger_answered_before() -> None:
    """After a stranger has hung up in the greeting libzmq does not call again; the post does."""
    here = post(renewal=0.2)
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    here.send(address, Note("hello"))
    here.flush()
    stranger, _ = listener.accept()
    stranger.sendall(b"220 some other service\r\n" * 10)
    stranger.close()
    listener.close()
    late = post(bind=address)
    try:
        assert texts(heard(late, lambda found: bool(found), [here])) == ["hello"]
    finally:
        here.close()
        late.close()


def test_a_forgotten_peer_gets_nothing_more_and_can_be_met_again() -> None:
    one, other = post(), post()
    try:
        one.send(other.address, Note("never sent"))
        one.forget(other.address)
        one.forget("tcp://127.0.0.1:1")
        turn(one)
        one.send(other.address, Note("anew"))
        assert texts(heard(other, lambda found: bool(found), [one])) == ["anew"]
    finally:
        one.close()
        other.close()


def test_an_answer_to_somebody_who_has_gone_is_dropped() -> None:
    one, other = post(), post()
    one.send(other.address, Note("question"))
    (asked,) = heard(other, lambda found: bool(found), [one])
    one.close()
    try:
        deadline = time.monotonic() + DEADLINE
        while not other.dropped:
            assert time.monotonic() < deadline
            other.answer(asked.route, Note("answer"))
            turn(other)
    finally:
        other.close()


def test_a_viewer_who_does_not_listen_costs_a_bounded_outbox() -> None:
    here = post(outbox_bytes=100_000)
    context: Context = zmq.Context()
    viewer = client_socket(context, narrowed(ACCESS, Role.VIEWER), Role.VIEWER, 1 << 20)
    viewer.connect(here.address)
    deadline = time.monotonic() + DEADLINE
    try:
        while not viewer.poll(0, zmq.POLLOUT):
            assert time.monotonic() < deadline
            turn(here)
        viewer.send(codec().frame(ACCESS.cluster, "", 1, [codec().packed(Note("everything, please"))]))
        (asked,) = heard(here, lambda found: bool(found))
        answers = 0
        while not here.dropped:
            assert time.monotonic() < deadline
            for _ in range(50):
                here.answer(asked.route, Note("news", bytes(20_000)))
            answers += 50
            turn(here, 0)
        assert here.dropped < answers
        turn(here)
    finally:
        viewer.close()
        context.term()
        here.close()


def test_messages_too_large_for_a_frame_are_refused_at_once_and_large_ones_arrive() -> None:
    one, other = post(), post()
    try:
        with pytest.raises(BadFrame):
            one.send(other.address, Note("", bytes(17 << 20)))
        for size in (15 << 20, 1 << 20, 15 << 20):
            one.send(other.address, Note("", bytes(size)))
            heard(other, lambda found: bool(found), [one])
    finally:
        one.close()
        other.close()


def test_a_port_in_use_is_one_sentence() -> None:
    one = post()
    try:
        with pytest.raises(InputError, match="is in use by another program; choose another port"):
            post(bind=one.address)
    finally:
        one.close()


@pytest.mark.parametrize("bind", ["tcp://256.1.1.1:5", "tcp://127.0.0.1", "nonsense", "tcp://192.0.2.1:5000"])
def test_an_address_that_is_not_ours_is_one_sentence(bind: str) -> None:
    with pytest.raises(InputError, match="cannot listen on"):
        post(bind=bind)


@pytest.mark.parametrize("role", [Role.CLIENT, Role.VIEWER])
def test_who_is_no_worker_cannot_run_an_agent(role: Role) -> None:
    with pytest.raises(InputError, match="has no key to run an agent"):
        Messenger(narrowed(ACCESS, role), codec())
