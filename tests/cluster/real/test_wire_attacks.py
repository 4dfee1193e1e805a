"""An attacker's view of an agent's port: nothing gets through, nothing leaks, and proper peers go on being served."""

from __future__ import annotations

import random
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from shoal.cluster.messaging.access import Access, Role, make_access, narrowed
from shoal.cluster.messaging.authenticator import Context, Socket, client_socket
from shoal.cluster.messaging.caller import Caller
from support.wire import DEADLINE, Echo, Message, Note, codec, echo, texts, wait_until

ACCESS = make_access("corals")
WORKER = narrowed(ACCESS, Role.WORKER)
GREETING = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01CURVE" + bytes(47)
CROWD = 500


@pytest.fixture
def agent() -> Iterator[Echo]:
    with echo(WORKER) as found:
        yield found


class Attacker:
    """Sockets of somebody who knows ZeroMQ; all are closed after the test."""

    def __init__(self) -> None:
        self.context: Context = zmq.Context()
        self.context.set(zmq.MAX_SOCKETS, 4 * CROWD)
        self._kept: list[Socket] = []

    def bare(self) -> Socket:
        """A socket without keys."""
        self._kept.append(self.context.socket(zmq.DEALER))
        return self._kept[-1]

    def dealer(self, agent: Echo, access: Access = ACCESS, role: Role = Role.CLIENT, name: bytes = b"") -> Socket:
        """A socket with keys, which has called the agent."""
        self._kept.append(found := client_socket(self.context, access, role, 1 << 30))
        if name:
            found.setsockopt(zmq.ROUTING_ID, name)
        found.connect(agent.address)
        return found

    def watched(self, socket: Socket, events: int) -> Callable[[], int]:
        """Waits for the next of these events."""
        monitor = socket.get_monitor_socket(events)
        self._kept.append(monitor)

        def wait() -> int:
            assert monitor.poll(int(1000 * DEADLINE))
            return int(recv_monitor_message(monitor)["event"])

        return wait

    def close(self) -> None:
        for kept in self._kept:
            kept.close(linger=0)
        self.context.term()


@pytest.fixture
def attacker() -> Iterator[Attacker]:
    found = Attacker()
    yield found
    found.close()


@contextmanager
def served(agent: Echo) -> Iterator[None]:
    """A proper client is served before, meanwhile a new one too, and nobody else is heard."""
    with Caller(narrowed(ACCESS.at([agent.address]), Role.CLIENT), codec(), patience=DEADLINE) as old:
        assert old.ask(Note("proper"), DEADLINE) == Note("client: proper 0")
        yield
        with Caller(narrowed(ACCESS.at([agent.address]), Role.CLIENT), codec(), patience=DEADLINE) as new:
            for caller in (old, new):
                assert caller.ask(Note("proper"), DEADLINE) == Note("client: proper 0")
    assert set(texts(agent.heard)) == {"proper"}
    assert {one.role for one in agent.heard} == {Role.CLIENT}


def plug(agent: Echo) -> socket.socket:
    return socket.create_connection(("127.0.0.1", agent.port), timeout=DEADLINE)


def until_hung_up(plugged: socket.socket) -> bytes:
    """Everything that the agent says before it hangs up."""
    said = b""
    try:
        while data := plugged.recv(65536):
            said += data
    except ConnectionError:
        pass
    return said


def proper_frame(text: str = "evil") -> bytes:
    return codec().frame(ACCESS.cluster, "x", 1, [codec().packed(Note(text))])


def test_without_a_key_nothing_gets_through(agent: Echo, attacker: Attacker) -> None:
    with served(agent):
        bare = attacker.bare()
        event = attacker.watched(bare, zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        bare.connect(agent.address)
        bare.send(proper_frame())
        assert event() == zmq.EVENT_DISCONNECTED
        assert not bare.poll(0)


def test_with_a_fresh_key_nothing_gets_through(agent: Echo, attacker: Attacker) -> None:
    stranger = Access(ACCESS.name, ACCESS.cluster, ACCESS.server, make_access("x").roles)
    with served(agent):
        tried = [attacker.dealer(agent, stranger) for _ in range(20)]
        wait_until(lambda: agent.refused["key"] == 20, "20 refusals")
        assert not any(one.poll(0, zmq.POLLOUT | zmq.POLLIN) for one in tried)


def test_with_the_key_of_another_server_nothing_gets_through(agent: Echo, attacker: Attacker) -> None:
    other = Access(ACCESS.name, ACCESS.cluster, make_access("x").server, ACCESS.roles)
    with served(agent):
        one = attacker.dealer(agent, other, Role.WORKER)
        event = attacker.watched(one, zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        assert [event(), event()] == [zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL] * 2  # libzmq tries again
        assert not one.poll(0, zmq.POLLOUT | zmq.POLLIN)


def test_a_viewer_who_says_it_is_a_worker_is_seen_as_a_viewer(agent: Echo) -> None:
    with Caller(narrowed(ACCESS.at([agent.address]), Role.VIEWER), codec(), sender="worker") as viewer:
        assert viewer.ask(Note("submit"), DEADLINE) == Note("viewer: submit 0")
    assert [one.role for one in agent.heard] == [Role.VIEWER]


@pytest.mark.parametrize("seed", range(4))
def test_garbage_on_the_port_is_hung_up_on(agent: Echo, seed: int) -> None:
    rng = random.Random(seed)
    lines = [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"SSH-2.0-OpenSSH_9.9\r\n", b"\x16\x03\x01\x02\0\x01\0", bytes(200)]
    with served(agent):
        for _ in range(20):
            with plug(agent) as plugged:
                garbage = rng.choice(lines) if rng.random() < 0.3 else rng.randbytes(rng.randint(64, 4000))
                try:
                    plugged.sendall(garbage)
                    plugged.shutdown(socket.SHUT_WR)
                except OSError:  # it was hung up on already
                    pass
                assert len(until_hung_up(plugged)) < 300


@pytest.mark.parametrize("seed", range(4))
def test_garbage_after_a_proper_greeting_is_hung_up_on(agent: Echo, seed: int) -> None:
    """Handshake commands of any size and content, where the server's key has not been proven yet."""
    rng = random.Random(seed)
    with served(agent):
        for _ in range(20):
            with plug(agent) as plugged:
                body = rng.choice([b"\x05HELLO", b"\x08INITIATE", b"\x05READY", b"", b"\x07MESSAGE"])
                body += rng.randbytes(rng.choice([0, 1, 50, 194, 1000]))
                size = rng.choice([len(body), rng.randrange(1 << 64)])  # may announce more than there ever will be
                flags = rng.choice([6, 4, 2, 0, 3, rng.randrange(256)])
                header = bytes([flags | 2]) + size.to_bytes(8, "big")
                try:
                    plugged.sendall(GREETING + header + body)
                    plugged.shutdown(socket.SHUT_WR)
                except OSError:
                    pass
                until_hung_up(plugged)


@pytest.mark.parametrize("role", list(Role))
def test_random_and_truncated_frames_of_somebody_with_a_key_are_counted_and_dropped(
    agent: Echo, attacker: Attacker, role: Role
) -> None:
    rng = random.Random(1)
    whole = proper_frame()
    frames = [rng.randbytes(rng.randrange(300)) for _ in range(300)]
    frames += [whole[:length] for length in range(len(whole))]
    frames += [b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff", b"\x95\x01\xa1c\xa1s\x01\xdd\xff\xff\xff\xff"]
    frames += [codec().frame("another cluster", "x", 1, [codec().packed(Note("evil"))])]
    with served(agent):
        evil = attacker.dealer(agent, ACCESS, role)
        for frame in frames:
            evil.send(frame)
        wait_until(lambda: sum(agent.refused.values()) == len(frames), "every frame to be refused")
        assert agent.refused["cluster"] == 1
        assert not evil.poll(0)


def test_messages_of_several_parts_and_chosen_names_are_dropped(agent: Echo, attacker: Attacker) -> None:
    with served(agent):
        evil = attacker.dealer(agent)
        for parts in ([b"", proper_frame()], [proper_frame(), b""], [b""] * 100):
            evil.send_multipart(parts)
        attacker.dealer(agent, name=b"somebody else").send(proper_frame())
        wait_until(lambda: agent.refused["shape"] == 4, "four refusals")


def test_a_frame_above_the_limit_costs_its_sender_the_connection(agent: Echo, attacker: Attacker) -> None:
    with served(agent):
        evil = attacker.dealer(agent)
        event = attacker.watched(evil, zmq.EVENT_DISCONNECTED)
        evil.send(bytes(17 << 20))
        assert event() == zmq.EVENT_DISCONNECTED


def test_a_viewer_who_floods_the_agent_keeps_nobody_waiting(agent: Echo, attacker: Attacker) -> None:
    evil = attacker.dealer(agent, role=Role.VIEWER)
    evil.sndtimeo = int(1000 * DEADLINE)
    over = threading.Event()

    def flood() -> None:
        while not over.is_set():
            evil.send(bytes(1 << 20))

    flooding = threading.Thread(target=flood)
    with served(agent):
        flooding.start()
        try:
            with Caller(narrowed(ACCESS.at([agent.address]), Role.CLIENT), codec(), patience=DEADLINE) as caller:
                for _ in range(20):
                    assert caller.ask(Note("proper"), DEADLINE) == Note("client: proper 0")
            wait_until(lambda: agent.refused["frame"] > 50, "the flood to arrive")
        finally:
            over.set()
            flooding.join(DEADLINE)


def test_a_recorded_conversation_cannot_be_played_again(agent: Echo) -> None:
    recorded = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as tap:
        pumping = threading.Thread(target=_pump_once, args=(tap, agent.port, recorded))
        pumping.start()
        contact = f"tcp://127.0.0.1:{tap.getsockname()[1]}"
        with Caller(narrowed(ACCESS.at([contact]), Role.WORKER), codec(), patience=DEADLINE) as caller:
            assert caller.ask(Note("precious"), DEADLINE) == Note("worker: precious 0")
        pumping.join(DEADLINE)
    assert b"precious" not in recorded  # it was encrypted
    assert texts(agent.heard) == ["precious"]
    agent.heard.clear()
    with served(agent):
        for _ in range(5):
            with plug(agent) as plugged:
                try:
                    plugged.sendall(bytes(recorded))
                except ConnectionError:
                    pass
                assert b"precious" not in until_hung_up(plugged)


def _pump_once(tap: socket.socket, port: int, recorded: bytearray) -> None:
    """One connection passed on to the port, with what the caller sends written down."""
    tap.settimeout(DEADLINE)
    near, _ = tap.accept()
    with closing(near), closing(socket.create_connection(("127.0.0.1", port), timeout=DEADLINE)) as far:
        back = threading.Thread(target=_copy, args=(far, near, bytearray()))
        back.start()
        _copy(near, far, recorded)
        back.join(DEADLINE)


def _copy(source: socket.socket, target: socket.socket, record: bytearray) -> None:
    source.settimeout(DEADLINE)
    try:
        while data := source.recv(65536):
            record += data
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


@pytest.fixture
def many_files() -> Iterator[None]:
    """Both ends of the crowd's connections are in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8 * CROWD, hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_a_crowd_that_says_nothing_keeps_nobody_out(agent: Echo) -> None:
    with served(agent), ExitStack() as stack:
        for number in range(CROWD):
            plugged = stack.enter_context(plug(agent))
            if number % 2:
                plugged.sendall(GREETING[: number % 64])
        with Caller(narrowed(ACCESS.at([agent.address]), Role.CLIENT), codec(), patience=DEADLINE) as caller:
            assert caller.ask(Note("proper"), DEADLINE) == Note("client: proper 0")


@pytest.mark.usefixtures("many_files")
def test_a_crowd_with_wrong_keys_keeps_nobody_out(agent: Echo, attacker: Attacker) -> None:
    stranger = Access(ACCESS.name, ACCESS.cluster, ACCESS.server, make_access("x").roles)
    with served(agent):
        crowd = [attacker.dealer(agent, stranger) for _ in range(CROWD)]
        with Caller(narrowed(ACCESS.at([agent.address]), Role.CLIENT), codec(), patience=DEADLINE) as caller:
            assert caller.ask(Note("proper"), DEADLINE) == Note("client: proper 0")
        wait_until(lambda: agent.refused["key"] >= CROWD, "the whole crowd to be refused")
        assert not any(one.poll(0) for one in crowd)


@pytest.mark.usefixtures("many_files")
def test_a_crowd_with_proper_keys_is_served(agent: Echo, attacker: Attacker) -> None:
    frame = codec().frame(ACCESS.cluster, "x", 1, [codec().packed(Note("proper"))])
    crowd = [attacker.dealer(agent, ACCESS) for _ in range(CROWD)]
    for one in crowd:
        one.sndtimeo = one.rcvtimeo = int(1000 * DEADLINE)
    with served(agent):
        for one in crowd:
            one.send(frame)
        answers: list[list[Message]] = [codec().decode(one.recv()).messages for one in crowd]
    assert answers == [[Note("client: proper 0")]] * CROWD
