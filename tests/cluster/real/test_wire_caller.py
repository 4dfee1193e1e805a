"""Callers over real sockets: questions, streams of answers, and one sentence for each way not to get any."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from shoal.cluster.messaging.access import Access, Role, make_access, narrowed
from shoal.cluster.messaging.caller import Caller
from shoal.cluster.messaging.messenger import Messenger
from shoal.errors import InputError
from support.wire import DEADLINE, Echo, Message, Note, Tally, codec, echo, heard, texts

ACCESS = make_access("corals")
WORKER = narrowed(ACCESS, Role.WORKER)
ABSENT = "tcp://127.0.0.1:1"


def client(*contacts: str, access: Access = ACCESS, patience: float = DEADLINE) -> Caller[Message]:
    return Caller(narrowed(access.at(list(contacts)), Role.CLIENT), codec(), patience=patience)


def failure(caller: Caller[Message], timeout: float = DEADLINE) -> str:
    with caller, pytest.raises(InputError) as raised:
        caller.ask(Note("hello"), timeout)
    assert raised.value.remedy
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_several_questions_are_answered_over_one_connection() -> None:
    with echo(WORKER) as agent, client(agent.address) as caller:
        assert caller.agent is None
        assert [caller.ask(Note(str(number))) for number in range(50)] == [
            Note(f"client: {number} 0") for number in range(50)
        ]
        assert caller.agent == agent.address
        assert len({one.route[0] for one in agent.heard}) == 1


def test_the_first_contact_that_answers_is_used() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, echo(WORKER) as agent:
        contacts = [ABSENT, f"tcp://127.0.0.1:{silent.getsockname()[1]}", agent.address]
        with client(*contacts) as caller:
            assert caller.ask(Note("hello")) == Note("client: hello 0")
            assert caller.agent == agent.address


def test_an_agent_among_very_many_contacts_is_found() -> None:
    with echo(WORKER) as agent, client(*[ABSENT] * 40, agent.address, patience=9.0) as caller:
        assert caller.ask(Note("hello")) == Note("client: hello 0")


def test_an_agent_that_comes_a_little_later_is_waited_for() -> None:
    with echo(WORKER) as first:
        address = first.address
    found: list[Message] = []
    caller = client(address)
    asking = threading.Thread(target=lambda: found.append(caller.ask(Note("hello"))))
    asking.start()
    with echo(WORKER, bind=address):
        asking.join(DEADLINE)
        assert found == [Note("client: hello 0")]
        caller.close()


def test_a_stream_of_answers_is_listened_to() -> None:
    with echo(WORKER) as agent, client(agent.address) as caller:
        stream = caller.listen(Note("go", answers=1_000), DEADLINE)
        assert [next(stream) for _ in range(1_000)] == [Note(f"client: go {number}") for number in range(1_000)]


def test_a_late_answer_is_not_taken_for_that_of_the_next_question() -> None:
    here = Messenger(WORKER, codec())
    caller = client(here.address)
    said: list[object] = []

    def ask() -> None:
        try:
            caller.ask(Note("first"), timeout=0.05)
        except InputError as error:
            said.append(str(error))
        said.append(caller.ask(Note("second"), DEADLINE))

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        first, second = heard(here, lambda found: len(found) >= 2)
        here.answer(first.route, Note("to the first"))
        here.answer(second.route, Note("to the second"))
        here.flush()
        asking.join(DEADLINE)
        assert "did not reply within 0.05 s" in str(said[0])
        assert said[1] == Note("to the second")
    finally:
        caller.close()
        here.close()


def test_nobody_at_any_contact_names_them() -> None:
    said = failure(client(ABSENT, "tcp://127.0.0.1:2", patience=0.3))
    assert "no reply from 127.0.0.1:1, 127.0.0.1:2; check that the cluster is running" in said


def test_a_host_whose_name_nobody_knows_does_not_answer() -> None:
    assert "no reply from no.such.host.invalid:5" in failure(client("tcp://no.such.host.invalid:5", patience=0.3))


def test_a_host_that_accepts_and_says_nothing_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert f"no reply from 127.0.0.1:{port}" in failure(client(f"tcp://127.0.0.1:{port}", patience=0.3))


def test_many_silent_contacts_are_not_all_listed() -> None:
    assert "127.0.0.1:1 and 15 more" in failure(client(*[ABSENT] * 20, patience=0.3))


def test_the_key_of_another_cluster_is_distinguished_from_an_absent_host() -> None:
    with echo(WORKER) as agent:
        before = time.monotonic()
        other = client(agent.address, access=make_access("corals"))
        assert f"the key of this access file is refused at 127.0.0.1:{agent.port}; use" in failure(other)
        assert time.monotonic() - before < DEADLINE / 2
        assert agent.heard == []


def test_an_unknown_key_is_distinguished_from_an_absent_host() -> None:
    stranger = Access(ACCESS.name, ACCESS.cluster, ACCESS.server, make_access("x").roles)
    with echo(WORKER) as agent:
        assert "is refused at" in failure(client(agent.address, access=stranger))
        assert agent.heard == []
        assert agent.refused["key"] == 1


def test_refusal_and_absence_are_reported_together() -> None:
    with echo(WORKER) as agent:
        caller = client(agent.address, ABSENT, access=make_access("corals"), patience=5.0)
        assert f"refused at 127.0.0.1:{agent.port}, and no reply from 127.0.0.1:1" in failure(caller)


def test_another_program_at_the_port_is_distinguished_from_an_absent_host() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def greet() -> None:
        stranger, _ = listener.accept()
        with stranger:
            stranger.sendall(b"220 some other service\r\n" * 10)
            stranger.settimeout(DEADLINE)
            try:
                while stranger.recv(1000):
                    pass
            except ConnectionError:
                pass

    greeting = threading.Thread(target=greet)
    greeting.start()
    with listener:
        assert "is refused at" in failure(client(f"tcp://127.0.0.1:{listener.getsockname()[1]}"))
        greeting.join(DEADLINE)


@pytest.mark.parametrize(("here", "there"), [(1, 2), (2, 1)])
def test_another_version_names_both(here: int, there: int) -> None:
    with echo(WORKER, version=there) as agent:
        caller = Caller(narrowed(ACCESS.at([agent.address]), Role.CLIENT), codec(here))
        said = failure(caller)
        assert f"speaks version {there} of Shoal's protocol, this program version {here}" in said
        assert agent.heard == []
        assert agent.refused["version"] == 1
        with Caller(narrowed(ACCESS.at([agent.address]), Role.CLIENT), codec(there)) as proper:
            assert proper.ask(Note("hello")) == Note("client: hello 0")


def test_an_agent_that_ends_before_its_reply_is_reported_and_the_next_one_found() -> None:
    here = Messenger(WORKER, codec())
    caller = client(here.address)
    said: list[object] = []

    def ask() -> None:
        for _ in range(2):
            try:
                said.append(caller.ask(Note("hello"), DEADLINE))
            except InputError as error:
                said.append(str(error))

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        assert texts(heard(here, lambda found: bool(found))) == ["hello"]
    finally:
        here.close()
    agent = Echo(WORKER, bind=here.address)
    asking.join(DEADLINE)
    agent.stop()
    caller.close()
    assert f"the agent at {here.address} disconnected before it replied; try again" in str(said[0])
    assert said[1] == Note("client: hello 0")


def test_an_answer_counts_also_if_the_agent_hangs_up_right_after_it() -> None:
    for _ in range(200):
        here = Messenger(WORKER, codec())

        def answer_and_end(here: Messenger[Message] = here) -> None:
            (one,) = heard(here, lambda found: bool(found))
            here.answer(one.route, Note("last word"))
            here.flush()
            here.close(linger=DEADLINE)

        ending = threading.Thread(target=answer_and_end)
        ending.start()
        with client(here.address) as caller:
            assert caller.ask(Note("end"), DEADLINE) == Note("last word")
        ending.join(DEADLINE)


def test_an_agent_that_does_not_answer_in_time_is_named() -> None:
    with echo(WORKER) as agent, client(agent.address) as caller:
        with pytest.raises(InputError, match=f"the agent at {agent.address} did not reply within 0.1 s; check whether"):
            caller.ask(Tally([]), timeout=0.1)
        assert caller.ask(Note("hello")) == Note("client: hello 0")


def test_an_access_file_without_contacts_says_so() -> None:
    assert "names no agent; start the cluster first" in failure(client())


def test_a_role_that_the_access_does_not_give_cannot_be_taken() -> None:
    with (
        Caller(narrowed(ACCESS.at([ABSENT]), Role.VIEWER), codec(), role=Role.CLIENT) as caller,
        pytest.raises(InputError, match="has no key for the role of a client"),
    ):
        caller.ask(Note("hello"))
