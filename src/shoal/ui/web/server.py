"""The HTTP server of the live page: access control, routing, and server-sent events, on the loopback address only.

Every path begins with a secret token, which is new for each server; programs may send it in a header instead. Without
the token nothing is served. The `Host` header must name this machine, so that no foreign web page can reach the server
by DNS rebinding. What a page needs is loaded at the first authorised request, not before.
"""

from __future__ import annotations

import hmac
import io
import re
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from email.message import Message
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from shoal.errors import ShoalError
from shoal.ui.web.companion import MOST_CONNECTIONS

if TYPE_CHECKING:
    from shoal.ledger.workspace import Workspace
    from shoal.ui.web.board import PageSource, Reply


class ConnectionLimit:
    """Limits the number of open connections.

    When the limit is reached, a new connection replaces another one: the oldest that has not shown the token, else the
    authorised one that has been idle longest.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._unauthorised: dict[socket.socket, None] = {}
        """Connections that have not shown the token, oldest first."""
        self._authorised: dict[socket.socket, bool] = {}
        """Authorised connections in order of their last request; True if idle, False if waiting or receiving events."""
        self._changing = threading.Lock()

    @property
    def authorised(self) -> int:
        """Number of authorised connections."""
        with self._changing:
            return len(self._authorised)

    @property
    def idle(self) -> int:
        """Number of authorised connections that are idle."""
        with self._changing:
            return sum(self._authorised.values())

    def admit(self, connection: socket.socket) -> bool:
        """Registers a new connection; returns whether there is room for it."""
        with self._changing:
            if len(self._unauthorised) + len(self._authorised) >= self._most:
                first = self._pop_replaceable()
                if first is None:
                    return False
                with suppress(OSError):  # already closed by the client
                    first.shutdown(socket.SHUT_RDWR)  # its handler thread reads end-of-file and closes it
            self._unauthorised[connection] = None
            return True

    def _pop_replaceable(self) -> socket.socket | None:
        """Removes and returns the connection to replace; None if all are authorised and busy."""
        for candidate in self._unauthorised:
            del self._unauthorised[candidate]
            return candidate
        for connection, is_answered in self._authorised.items():
            if is_answered:
                del self._authorised[connection]
                return connection
        return None

    def mark_busy(self, connection: socket.socket) -> None:
        """Marks a connection as authorised and busy."""
        with self._changing:
            if connection in self._unauthorised or connection in self._authorised:
                self._unauthorised.pop(connection, None)
                self._authorised.pop(connection, None)
                self._authorised[connection] = False

    def mark_idle(self, connection: socket.socket) -> None:
        """Marks a connection as idle: its request has been answered."""
        with self._changing:
            if connection in self._authorised:
                self._authorised[connection] = True

    def remove(self, connection: socket.socket) -> None:
        """Removes a closed connection."""
        with self._changing:
            self._authorised.pop(connection, None)
            self._unauthorised.pop(connection, None)


_Found = TypeVar("_Found")
HOSTS = ("127.0.0.1", "localhost", "[::1]")
STYLES = ("page.css", "live.css")
SCRIPTS = ("quantities.js", "plots.js", "nodes.js", "frame.js", "course.js", "graphs.js", "task.js")
RUN, CLUSTER = "live.js", "cluster.js"
"""Scripts that draw the page of a run and of a cluster."""
ASSETS = {**dict.fromkeys(STYLES, "text/css"), **dict.fromkeys((*SCRIPTS, RUN, CLUSTER), "text/javascript")}
EVENT_SECONDS, BEAT_SECONDS = 0.4, 15.0
UNAUTHORISED_SECONDS, AUTHORISED_SECONDS = 3.0, 60.0
"""Time limits for receiving a request, before and after a connection has shown the token."""
ARRIVED_SECONDS = 0.001
"""Timeout of a read after the deadline: long enough to get bytes that have already arrived."""
GRACE_SECONDS = 2.0
"""How long clients may still fetch the final state after the end of what is shown."""
_HOST = re.compile(r"(\[[^]]*\]|[^:]*)(:\d*)?")
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


def page(script: str) -> bytes:
    """The HTML page that loads this script."""
    text = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n<title>Shoal</title>\n'
        + "".join(f'<link rel="stylesheet" href="assets/{name}">\n' for name in STYLES)
        + '</head>\n<body>\n<a class="skip" href="#content">Skip to content</a>\n'
        '<header id="head"></header>\n<main id="content"></main>\n'
        "<noscript><p>This page needs JavaScript, which is served from this machine. Please enable it.</p></noscript>"
        "\n" + "".join(f'<script src="assets/{name}"></script>\n' for name in (*SCRIPTS, script)) + "</body>\n</html>\n"
    )
    return text.encode()


@cache
def asset(name: str) -> bytes:
    """Content of a file of the page."""
    return (resources.files("shoal.ui.web") / "assets" / name).read_bytes()


def of_run(workspace: Workspace, number: int | None = None) -> Callable[[], PageSource]:
    """Returns a function that opens a run: the latest one, or the one with this number."""

    def make() -> PageSource:
        from shoal.ui.web.api import Api

        return Api(workspace, number)

    return make


def of_cluster(cluster: str) -> Callable[[], PageSource]:
    """Returns a function that opens a cluster, by its name or the path of an access file."""

    def make() -> PageSource:
        from shoal.ui.web.cluster_watch import ClusterApi

        return ClusterApi(cluster)

    return make


class PageServer(ThreadingHTTPServer):
    """Serves one run or one cluster to clients that know the token."""

    daemon_threads = True

    def __init__(self, listening: socket.socket, token: str, make: Callable[[], PageSource], script: str = RUN) -> None:
        """`make` opens what is shown, at the first authorised request."""
        super().__init__(listening.getsockname(), Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.token = token.encode()
        self.page = page(script)
        self._make = make
        self._api: PageSource | None = None
        self._making = threading.Lock()
        self.connections = ConnectionLimit(MOST_CONNECTIONS)

    @property
    def api(self) -> PageSource:
        with self._making:
            if self._api is None:
                self._api = self._make()
            return self._api

    @property
    def was_opened(self) -> bool:
        """Whether any authorised request has arrived."""
        return self._api is not None

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self.connections.admit(request):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.connections.remove(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores closed connections; reports anything else as an internal error."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            traceback.print_exc()


class _DeadlineReader(io.RawIOBase):
    """Reads from a connection until a deadline, so that a client cannot hold it open by sending single bytes.

    Bytes that have already arrived are read after the deadline, too. On a busy machine this thread may be suspended for
    longer than the deadline allows, and a client whose request is complete must not suffer from that. The limits on the
    size of a request bound how long this can continue.
    """

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self.until = 0.0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._line.settimeout(max(ARRIVED_SECONDS, self.until - time.monotonic()))
        return self._line.recv_into(buffer)


class Handler(BaseHTTPRequestHandler):
    """Handles one connection."""

    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.0"
    server: PageServer
    _is_authorised = False

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self._deadline_reader = _DeadlineReader(self.connection)
        self.rfile = io.BufferedReader(self._deadline_reader)

    def version_string(self) -> str:
        return "shoal"

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing, because the paths contain the token."""

    def handle_one_request(self) -> None:
        self.path, self.headers = "", Message()  # an unreadable request must not inherit them from the previous one
        self._deadline_reader.until = time.monotonic() + (
            AUTHORISED_SECONDS if self._is_authorised else UNAUTHORISED_SECONDS
        )
        super().handle_one_request()
        if not self.close_connection:
            self.server.connections.mark_idle(self.connection)

    def parse_request(self) -> bool:
        found = super().parse_request()
        if "Content-Length" in self.headers or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # the rest of the stream is not a valid request
        return found

    def handle_expect_100(self) -> bool:
        """Never sends `100 Continue`, because request bodies are not read."""
        return True

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Sends a message of our own that does not repeat the request."""
        self.close_connection = True
        if self._admitted() is not None:
            self._send(code, b"bad request\n", "text/plain")

    def do_GET(self) -> None:
        path = self._admitted()
        if path is not None:
            self._is_authorised = True
            self.server.connections.mark_busy(self.connection)
            self._route(path, dict(parse_qsl(urlsplit(self.path).query[:4096])))

    do_HEAD = do_GET  # noqa: N815  the base class calls this name

    def _admitted(self) -> str | None:
        """Returns the requested path; None (after a reply) if the token is missing or another host is named."""
        path = self._behind_token()
        host = _HOST.fullmatch(self.headers.get("Host", ""))
        if path is not None and host is not None and host[1].lower() in HOSTS:
            self.connection.settimeout(AUTHORISED_SECONDS)
            return path
        self.close_connection = True
        lacking, elsewhere = "contain the token that 'shoal web' printed", "name this machine"
        self._send(
            403, f"access denied: the address must {lacking if path is None else elsewhere}\n".encode(), "text/plain"
        )
        return None

    def _behind_token(self) -> str | None:
        try:
            path = urlsplit(self.path).path[1:]
        except ValueError:
            return None
        first, slash, rest = path.partition("/")
        if self._is_token(unquote(first)):
            return rest if slash else "/"  # not found
        bearer = self.headers.get("Authorization", "")
        return path if bearer.startswith("Bearer ") and self._is_token(bearer[7:].strip()) else None

    def _is_token(self, word: str) -> bool:
        return hmac.compare_digest(word.encode("utf-8", "replace"), self.server.token)

    def _route(self, path: str, query: dict[str, str]) -> None:
        if path == "":
            self._send(200, self.server.page, "text/html; charset=utf-8")
        elif path.startswith("assets/") and path[7:] in ASSETS:
            self._send(200, asset(path[7:]), f"{ASSETS[path[7:]]}; charset=utf-8")
        elif path == "api/v1/events":
            self._events()
        elif path == "metrics":
            self._answer(lambda: self.server.api.metrics())
        elif path.startswith("api/v1/") or path == "api/v1":
            self._answer(lambda: self.server.api.answer(path[7:], query))
        else:
            self._send(404, b"page not found\n", "text/plain")

    def _answer(self, ask: Callable[[], Reply]) -> None:
        reply = self._attempt(ask)
        self._send(reply.status, reply.body, reply.type)

    def _attempt(self, ask: Callable[[], _Found]) -> _Found | Reply:
        """Returns the result of `ask`, or an error reply. Internal errors are reported to the client, too."""
        from shoal.ui.web.board import RefusedRequest

        try:
            return ask()
        except (ShoalError, OSError) as error:
            return RefusedRequest(f"currently not available: {error}", 503).reply()
        except Exception as error:
            message = f"internal error in Shoal: {type(error).__name__}: {error}"
            reply = RefusedRequest(message, 500).reply()
            self.close_connection = True
            self._send(reply.status, reply.body, reply.type)
            raise  # handled by `PageServer.handle_error`

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _events(self) -> None:
        """Sends changed parts as server-sent events until the client disconnects."""
        from shoal.ui.web.board import Reply

        api = self._attempt(lambda: self.server.api)
        if isinstance(api, Reply):  # an error reply
            self._send(api.status, api.body, api.type)
            return
        self.close_connection = True
        self.send_response(200)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command == "HEAD":
            return
        board = api.board
        board.watch(1)
        api.refresher.wake()
        try:
            self._stream(api, board.version_of(self.headers.get("Last-Event-ID", "")))
        finally:
            board.watch(-1)

    def _stream(self, api: PageSource, version: int) -> None:
        board = api.board
        self.wfile.write(b"retry: 1000\n\n")
        while True:
            is_last = board.closed  # read first, so that parts published before the end are still sent
            found, parts = board.since(version)
            if found > version:
                self.wfile.write(b"id: %b\ndata: %b\n\n" % (board.ident(found).encode(), parts))
            else:
                self.wfile.write(b": still here\n\n")
            self.wfile.flush()
            version = found
            if is_last:
                self.wfile.write(b"event: over\ndata: {}\n\n")
                return
            board.pause(EVENT_SECONDS)  # combines several changes into one event
            board.wait(version, BEAT_SECONDS)


def _prepare(server: PageServer) -> None:
    with suppress(ShoalError, OSError):  # reported to the client at its request
        server.api.prepare()


class Waitable(Protocol):
    """Something to wait for, such as an event."""

    def wait(self) -> object: ...


def serve_until(server: PageServer, is_over: Waitable, *, at_once: bool = False) -> None:
    """Serves until `is_over`, then a moment longer if there are clients, so that they can fetch the final state.

    `at_once`: read the ledger before the first request.
    """
    thread = threading.Thread(target=server.serve_forever, args=(0.2,), name="server", daemon=True)
    thread.start()
    if at_once:
        threading.Thread(target=_prepare, args=(server,), name="preparing", daemon=True).start()
    is_over.wait()
    if server.was_opened:
        looking = server.connections.authorised
        server.api.refresher.stop()
        server.api.refresher.join(10.0)
        # A page reconnects between events, and may have no open connection at this moment.
        time.sleep(GRACE_SECONDS if looking else 0.0)
    server.shutdown()
    server.server_close()
