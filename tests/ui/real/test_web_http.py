"""HTTP as others speak it: whatever is asked without the token is refused, and nobody is left without an answer."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from shoal.ui.web import server as server_module
from shoal.ui.web.api import Api
from shoal.ui.web.companion import MOST_CONNECTIONS, address_of, listen
from shoal.ui.web.server import UNAUTHORISED_SECONDS, PageServer, of_run, serve_until
from support.command import PATIENCE, wait_until
from support.web import Shown
from ui.real.test_web_troubles import TOKEN, connected, fill, served, wait_for_event, workspace_in

HOST = "Host: 127.0.0.1\r\n"


def said(line: socket.socket) -> bytes:
    """All that comes until the other side closes, which is a reset if it has not read all that was sent."""
    found = b""
    with suppress(ConnectionResetError):
        while piece := line.recv(1 << 16):
            found += piece
    return found


def statuses(shown: Shown, request: str) -> list[int]:
    """Of all answers to what is sent, until the connection is closed."""
    with connected(shown) as line:
        with suppress(ConnectionError):  # the server has answered before it was sent to the end
            line.sendall(request.encode())
        return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d+)", said(line))]


MANY = "".join(f"X{number}: 1\r\n" for number in range(200))


@pytest.mark.parametrize(
    "request_",
    [
        f"POST / HTTP/1.1\r\n{HOST}\r\n",
        f"OPTIONS /x/api/v1/ HTTP/1.1\r\n{HOST}\r\n",
        f"BREW /x/ HTTP/1.1\r\n{HOST}\r\n",
        f"GET /{'a' * 70000} HTTP/1.1\r\n{HOST}\r\n",
        f"GET / HTTP/1.1\r\n{HOST}{MANY}\r\n",
        f"GET / HTTP/1.1\r\n{HOST}Long: {'a' * 70000}\r\n\r\n",
        f"GET / HTTP/9.9\r\n{HOST}\r\n",
        f"GET / HTTP/x\r\n{HOST}\r\n",
        "what?\r\n\r\n",
        "GET /x/\r\n\r\n",
        f"POST / HTTP/1.1\r\n{HOST}Expect: 100-continue\r\nContent-Length: 3\r\n\r\n",
        f"POST /{TOKEN}/ HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    ],
)
def test_whatever_is_asked_without_the_token_is_refused_alike(
    tmp_path: Path, request_: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(workspace_in(tmp_path)) as shown:
        assert statuses(shown, request_) == [403]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (f"POST /{TOKEN}/api/v1/ HTTP/1.1\r\n{HOST}\r\n", 501),
        (f"OPTIONS /api/v1/ HTTP/1.1\r\n{HOST}Authorization: Bearer {TOKEN}\r\n\r\n", 501),
        (f"GET /{TOKEN} HTTP/1.1\r\n{HOST}Connection: close\r\n\r\n", 404),
    ],
)
def test_those_who_have_the_token_are_told_what_is_wrong(tmp_path: Path, request_: str, status: int) -> None:
    with served(workspace_in(tmp_path)) as shown:
        assert statuses(shown, request_) == [status]


@pytest.mark.parametrize("head", ["Content-Length: 70", "Transfer-Encoding: chunked"])
def test_the_body_of_a_request_is_no_request(tmp_path: Path, head: str) -> None:
    inner = f"GET /{TOKEN}/ HTTP/1.1\r\n{HOST}\r\n"
    with served(workspace_in(tmp_path)) as shown:
        assert statuses(shown, f"GET /{TOKEN}/api/v1/ HTTP/1.1\r\n{HOST}{head}\r\n\r\n{inner}") == [200]


@pytest.mark.parametrize(
    ("name", "status"),
    [("[::1]", 200), ("[::1]:80", 200), ("localhost", 200), ("LOCALHOST:1", 200), ("[::2]", 403), ("a:b:1", 403)],
)
def test_this_machine_has_three_names(tmp_path: Path, name: str, status: int) -> None:
    with served(workspace_in(tmp_path)) as shown:
        request = f"GET /{TOKEN}/api/v1/ HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n"
        assert statuses(shown, request) == [status]


def test_a_stranger_who_sends_a_byte_now_and_then_goes_all_the_same(tmp_path: Path) -> None:
    took: list[float] = []
    with served(workspace_in(tmp_path)) as shown:
        while not took or (took[-1] >= 3 * UNAUTHORISED_SECONDS and len(took) < TRIES):
            began = time.monotonic()  # before the server can know of the connection, however late this thread goes on
            with connected(shown) as line:
                until_sent_away(line)
            took.append(time.monotonic() - began)
            assert took[-1] > UNAUTHORISED_SECONDS / 2
    assert took[-1] < 3 * UNAUTHORISED_SECONDS, took


TRIES = 5
"""Seconds are counted on a machine that may be busy with other things: then it is tried again."""


def until_sent_away(line: socket.socket) -> None:
    """Sends a byte now and then, and never asks for anything, until the server closes the connection."""
    began = time.monotonic()
    line.settimeout(0.3)
    with pytest.raises(OSError, match=r"reset|pipe"):  # or it would be a time-out of ours
        line.sendall(b"GET /")
        while time.monotonic() - began < PATIENCE:
            line.sendall(b"a")
            try:
                if line.recv(1) == b"":
                    raise ConnectionResetError("reset")
            except TimeoutError:
                continue


def test_a_request_that_has_arrived_is_read_although_the_time_is_over() -> None:
    """The thread of a connection may be stopped for longer than a client has for its request."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        hearing = server_module._DeadlineReader(ours)
        hearing.until = time.monotonic() - 1.0
        theirs.sendall(b"GET")
        buffer = bytearray(8)
        assert hearing.readinto(buffer) == 3 and buffer[:3] == b"GET"
        with pytest.raises(TimeoutError):
            hearing.readinto(buffer)


def test_those_who_are_known_and_idle_keep_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in (
        "UNAUTHORISED_SECONDS",
        "AUTHORISED_SECONDS",
    ):  # no connection ends by itself, however long this takes
        monkeypatch.setattr(server_module, limit, 10 * PATIENCE)
    ask = f"GET /{TOKEN}/api/v1/ HTTP/1.1\r\n{HOST}\r\n".encode()
    with served(workspace_in(tmp_path)) as shown, ExitStack() as open_lines:
        stream = open_lines.enter_context(connected(shown))
        stream.sendall(f"GET /{TOKEN}/api/v1/events HTTP/1.1\r\n{HOST}\r\n".encode())
        events = open_lines.enter_context(stream.makefile("rb"))
        assert events.readline().split()[1] == b"200"
        lines = []
        for _ in range(MOST_CONNECTIONS - 1):
            line = open_lines.enter_context(connected(shown))
            line.sendall(ask)
            answer = http.client.HTTPResponse(line)
            answer.begin()
            assert answer.status == 200 and answer.read()
            lines.append(line)
        # An answer may be here before the thread that sent it notes that: until then nobody counts as idle.
        wait_until(lambda: shown.server.connections.idle == len(lines), "all have been answered")
        assert statuses(shown, ask.decode().replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n")) == [200]
        assert lines[0].recv(1) == b"", "the one that was idle for the longest time has gone"
        lines[1].sendall(ask)
        assert lines[1].recv(12) == b"HTTP/1.1 200"
        fill(workspace_in(tmp_path))
        wait_for_event(events, b'"done":1')


def test_a_defect_is_an_answer_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def stumble(api: Api, query: object) -> None:
        raise KeyError("unforeseen")

    monkeypatch.setattr(Api, "_run", stumble)
    with served(workspace_in(tmp_path)) as shown:
        status, body, _ = shown.ask(f"/{TOKEN}/api/v1/run")
        assert status == 500 and "internal error in Shoal: KeyError: 'unforeseen'" in json.loads(body)["error"]
        wait_until(lambda: shown.ask(f"/{TOKEN}/api/v1/")[0] == 200, "it goes on")
    assert capfd.readouterr().err.count("Traceback") == 1


def test_a_page_can_ask_for_the_end_of_a_run_that_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    last = threading.Event()
    patient = SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: last.wait(PATIENCE if seconds else 0.0))
    monkeypatch.setattr(
        "shoal.ui.web.server.time", patient
    )  # the moment that it is served for lasts until we have asked
    workspace, listening, over = workspace_in(tmp_path), listen(0), threading.Event()
    fill(workspace)
    thread = threading.Thread(target=serve_until, args=(PageServer(listening, TOKEN, of_run(workspace)), over))
    thread.start()
    shown = Shown(address_of(listening, TOKEN))
    with connected(shown) as stream:
        stream.sendall(f"GET /{TOKEN}/api/v1/events HTTP/1.1\r\n{HOST}\r\n".encode())
        assert stream.makefile("rb").readline().split()[1] == b"200"
        over.set()
        assert b"event: over" in said(stream)
    for _ in range(3):
        assert shown.data("gantt")
    last.set()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    listen(shown.port or 0).close()


def test_a_server_at_which_nobody_looks_goes_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.ui.web.server.GRACE_SECONDS", 10 * PATIENCE)
    workspace, listening, over = workspace_in(tmp_path), listen(0), threading.Event()
    server = PageServer(listening, TOKEN, of_run(workspace))
    thread = threading.Thread(target=serve_until, args=(server, over))
    thread.start()
    assert Shown(address_of(listening, TOKEN)).ask(f"/{TOKEN}/api/v1/run")[0] == 200
    wait_until(lambda: not server.connections.authorised, "whoever asked has gone")
    over.set()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_the_next_run_gets_the_port_of_one_that_has_just_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    first = listen(0)
    port = first.getsockname()[1]
    monkeypatch.setattr(time, "sleep", lambda seconds: first.close())  # it goes while it is waited for
    with listen(port) as second:
        assert second.getsockname()[1] == port
