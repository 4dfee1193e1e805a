"""Clients without the token get no objects, and can hardly disturb those with it."""

from __future__ import annotations

import os
import secrets
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from data.unit.world import PATIENCE, TOKEN, assert_there, fetching, proxy, results, serving, want
from shoal.data.channel import Channel, dial, introduce, make_identity
from shoal.data.fetch import FetchFailureCause
from shoal.data.listener import DataListener
from shoal.data.transfer_messages import (
    HELLO_BYTES,
    MAGIC,
    MEMORY,
    NONCE_BYTES,
    OBJECTS,
    PROOF_BYTES,
    DataGrant,
    ObjectRequest,
    encode_hello,
    encode_request,
)
from shoal.errors import InputError

SIZES = {"x": 1000, "y": 1000}
both = pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])


def still_serves(folder: Path, grant: DataGrant) -> None:
    with fetching(folder) as fetcher:
        want(fetcher, "y", 1000, grant)
        assert results(fetcher, 1)["y"].description is not None
        assert_there(fetcher, "y", 1000)


def all_that_comes(connection: socket.socket) -> bytes:
    """Everything until the other side closes."""
    data = b""
    connection.settimeout(PATIENCE)
    try:
        while more := connection.recv(65536):
            data += more
    except OSError:
        pass
    return data


@both
def test_a_wrong_token_gets_nothing_and_is_named_as_the_reason(tmp_path: Path, encrypted: bool) -> None:
    with (
        serving(tmp_path / "there", encrypted, SIZES) as server,
        proxy(server.port) as between,
        fetching(tmp_path / "here") as fetcher,
    ):
        want(fetcher, "x", 1000, server.grant(between.port, token=b"another token of 32 bytes ------"))
        (trouble,) = results(fetcher, 1)["x"].troubles
        assert trouble.cause is FetchFailureCause.REFUSED
        assert "does not know the token" in trouble.text
        assert fetcher.received_bytes == 0
        if not encrypted:
            assert len(between.recorded[0]) == HELLO_BYTES  # not even the name was said
        still_serves(tmp_path / "proper", server.grant())


@both
def test_a_client_that_skips_its_proof_gets_nothing(tmp_path: Path, encrypted: bool) -> None:
    with serving(tmp_path / "there", encrypted, SIZES) as server:
        channel = dial(server.grant(), PATIENCE)
        channel.open()
        channel.send(encode_hello(OBJECTS, secrets.token_bytes(NONCE_BYTES)))
        assert channel.receive(HELLO_BYTES + PROOF_BYTES).startswith(MAGIC)
        channel.send(secrets.token_bytes(PROOF_BYTES) + encode_request(ObjectRequest("x", 0, 1000)))
        with pytest.raises(OSError):
            channel.receive(1)
        channel.close()
        still_serves(tmp_path / "proper", server.grant())


@both
def test_a_recorded_conversation_is_worth_nothing(tmp_path: Path, encrypted: bool) -> None:
    with serving(tmp_path / "there", encrypted, SIZES) as server, proxy(server.port) as between:
        with fetching(tmp_path / "here") as fetcher:
            want(fetcher, "x", 1000, server.grant(between.port))
            assert results(fetcher, 1)["x"].description is not None
        recorded = bytes(between.recorded[0])
        assert len(recorded) > HELLO_BYTES + PROOF_BYTES
        with socket.create_connection(("127.0.0.1", server.port)) as replay:
            replay.sendall(recorded)
            answer = all_that_comes(replay)
        # Plain: the server's own hello, and no object. Encrypted: a handshake that leads to nothing.
        assert len(answer) < 1000 + HELLO_BYTES
        if not encrypted:
            assert len(answer) <= HELLO_BYTES + PROOF_BYTES
        still_serves(tmp_path / "proper", server.grant())


@contextmanager
def man_in_the_middle(folder: Path, target: int) -> Iterator[int]:
    """Ends TLS with a certificate of its own and passes on what is said; yields its port."""
    (folder / "identity").write_bytes(make_identity()[1])
    shown = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    shown.load_cert_chain(folder / "identity")
    believing = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    believing.check_hostname, believing.verify_mode = False, ssl.CERT_NONE
    listener = socket.create_server(("127.0.0.1", 0))

    def relay() -> None:
        try:
            client = shown.wrap_socket(listener.accept()[0], server_side=True)
            server = believing.wrap_socket(socket.create_connection(("127.0.0.1", target)))
        except OSError:
            return
        with client, server:
            try:
                server.sendall(client.recv(HELLO_BYTES))
                client.sendall(server.recv(HELLO_BYTES + PROOF_BYTES))
                server.sendall(client.recv(PROOF_BYTES))
            except OSError:
                pass

    thread = threading.Thread(target=relay, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(PATIENCE)


def test_somebody_between_the_two_who_passes_on_the_proofs_is_found_out(tmp_path: Path) -> None:
    with (
        serving(tmp_path / "there", True, SIZES) as server,
        man_in_the_middle(tmp_path, server.port) as port,
        fetching(tmp_path / "here") as fetcher,
    ):
        want(fetcher, "x", 1000, server.grant(port))
        assert results(fetcher, 1)["x"].troubles[0].cause is FetchFailureCause.REFUSED
        still_serves(tmp_path / "proper", server.grant())


@both
def test_garbage_before_and_after_the_proofs_ends_that_connection_only(tmp_path: Path, encrypted: bool) -> None:
    with serving(tmp_path / "there", encrypted, SIZES) as server:
        for length in (1, 40, 72, 5000):
            with socket.create_connection(("127.0.0.1", server.port)) as rude:
                try:
                    rude.sendall(os.urandom(length))
                    rude.shutdown(socket.SHUT_WR)
                except OSError:
                    pass  # the server has hung up already
                assert len(all_that_comes(rude)) <= HELLO_BYTES + PROOF_BYTES
        for garbage in (b"\xff" * 100, os.urandom(200), b"\0" * 50, encode_request(ObjectRequest("x", 0, 1000))[:-1]):
            channel = dial(server.grant(), PATIENCE)
            introduce(channel, server.grant(), OBJECTS)
            channel.send(garbage)
            if garbage[0] == 0xFF or garbage[:2] == b"\0\0":
                with pytest.raises(OSError):
                    channel.receive(1)
            channel.close()
        still_serves(tmp_path / "proper", server.grant())


@both
def test_a_flood_of_strangers_does_not_keep_a_peer_out(tmp_path: Path, encrypted: bool) -> None:
    with serving(tmp_path / "there", encrypted, SIZES) as server:
        flood = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(300)]
        try:
            still_serves(tmp_path / "proper", server.grant())
        finally:
            for one in flood:
                one.close()


def test_a_short_token_is_not_accepted_by_a_server() -> None:
    with pytest.raises(ValueError, match="at least 16 bytes"):
        DataListener(b"short")


def test_a_port_in_use_is_one_sentence() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(InputError, match="cannot listen on 127"),
    ):
        DataListener(TOKEN, port=taken.getsockname()[1])


@both
def test_one_port_passes_each_connection_to_the_service_that_it_names(encrypted: bool) -> None:
    listener = DataListener(TOKEN, encrypted=encrypted)
    grant = DataGrant("127.0.0.1", listener.port, TOKEN, encrypted)

    def echo(prefix: bytes) -> Callable[[Channel], None]:
        def serve(channel: Channel) -> None:
            while True:
                channel.send(prefix + channel.receive(1))

        return serve

    def opened(service: bytes) -> Channel:
        channel = dial(grant, PATIENCE)
        introduce(channel, grant, service)
        return channel

    try:
        listener.offer(OBJECTS, echo(b"o"))
        refused = opened(MEMORY)
        with pytest.raises(OSError):
            refused.send(b"?")
            refused.receive(1)
        listener.offer(MEMORY, echo(b"m"))
        objects, memory = opened(OBJECTS), opened(MEMORY)
        objects.send(b"?")
        memory.send(b"?")
        assert (objects.receive(2), memory.receive(2)) == (b"o?", b"m?")
        listener.withdraw(MEMORY)
        with pytest.raises(OSError):
            memory.receive(1)
        objects.send(b"!")
        assert objects.receive(2) == b"o!"
        for channel in (refused, objects, memory):
            channel.close()
    finally:
        listener.close()
    with pytest.raises(OSError):
        dial(grant, PATIENCE)
