"""HTTP on the loopback address: who may ask, what is sent, and events as they come.

Every path begins with a secret word, made anew for each server; programs may send it in a header instead. Without it
nothing is served. The name by which the server was asked for must be that of this machine, so that no page from
elsewhere can reach it through a name of its own. Nothing is loaded for showing a run before somebody who may asks.
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


class Visitors:
    """So many at a time. Where there is no room left somebody goes in favour of the next one: the stranger who came
    first, or else of those who have shown the token the one who has asked for nothing for the longest time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._strangers: dict[socket.socket, None] = {}
        """In the order in which they came."""
        self._known: dict[socket.socket, bool] = {}
        """In the order in which they asked last, and whether they have been answered; others wait or listen."""
        self._changing = threading.Lock()

    @property
    def known(self) -> int:
        """How many are here who have shown the token."""
        with self._changing:
            return len(self._known)

    @property
    def idle(self) -> int:
        """How many of those have been answered, and ask for nothing."""
        with self._changing:
            return sum(self._known.values())

    def admit(self, visitor: socket.socket) -> bool:
        """Somebody has come; whether there is room."""
        with self._changing:
            if len(self._strangers) + len(self._known) >= self._most:
                first = self._first_to_go()
                if first is None:
                    return False
                with suppress(OSError):  # it has gone by itself
                    first.shutdown(socket.SHUT_RDWR)  # whoever reads from it sees its end, and closes it
            self._strangers[visitor] = None
            return True

    def _first_to_go(self) -> socket.socket | None:
        """Takes somebody off; None: all are known, and wait for an answer or listen."""
        for stranger in self._strangers:
            del self._strangers[stranger]
            return stranger
        for visitor, is_answered in self._known.items():
            if is_answered:
                del self._known[visitor]
                return visitor
        return None

    def know(self, visitor: socket.socket) -> None:
        """One who is here has shown the token, and asks for something."""
        with self._changing:
            if visitor in self._strangers or visitor in self._known:
                self._strangers.pop(visitor, None)
                self._known.pop(visitor, None)
                self._known[visitor] = False

    def rest(self, visitor: socket.socket) -> None:
        """One has been answered, and may ask again."""
        with self._changing:
            if visitor in self._known:
                self._known[visitor] = True

    def leave(self, visitor: socket.socket) -> None:
        """One has gone."""
        with self._changing:
            self._known.pop(visitor, None)
            self._strangers.pop(visitor, None)


_Found = TypeVar("_Found")
HOSTS = ("127.0.0.1", "localhost", "[::1]")
STYLES = ("page.css", "live.css")
SCRIPTS = ("quantities.js", "plots.js", "nodes.js", "frame.js", "course.js", "graphs.js", "task.js")
RUN, CLUSTER = "live.js", "cluster.js"
"""The scripts that draw the page of a run, and that of a cluster."""
ASSETS = {**dict.fromkeys(STYLES, "text/css"), **dict.fromkeys((*SCRIPTS, RUN, CLUSTER), "text/javascript")}
EVENT_SECONDS, BEAT_SECONDS = 0.4, 15.0
STRANGER_SECONDS, KNOWN_SECONDS = 3.0, 60.0
"""How long a connection may take for a request before it has shown the token, and afterwards."""
ARRIVED_SECONDS = 0.001
"""How long a read waits when the time is over: long enough to get what has arrived already."""
GRACE_SECONDS = 2.0
"""How long those who look may still ask for the end of what they were shown."""
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
    """The page that this script draws."""
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
    """A file of the page."""
    return (resources.files("shoal.ui.web") / "assets" / name).read_bytes()


def of_run(workspace: Workspace, number: int | None = None) -> Callable[[], PageSource]:
    """How a run is shown: its last one, or the one of a number."""

    def make() -> PageSource:
        from shoal.ui.web.api import Api

        return Api(workspace, number)

    return make


def of_cluster(cluster: str) -> Callable[[], PageSource]:
    """How a cluster is shown, by its name or the path of an access file."""

    def make() -> PageSource:
        from shoal.ui.web.cluster_watch import ClusterApi

        return ClusterApi(cluster)

    return make


class PageServer(ThreadingHTTPServer):
    """Shows one run, or one cluster, to those who know the token."""

    daemon_threads = True

    def __init__(self, listening: socket.socket, token: str, make: Callable[[], PageSource], script: str = RUN) -> None:
        """What is shown is made when somebody asks for it."""
        super().__init__(listening.getsockname(), Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.token = token.encode()
        self.page = page(script)
        self._make = make
        self._api: PageSource | None = None
        self._making = threading.Lock()
        self.visitors = Visitors(MOST_CONNECTIONS)

    @property
    def api(self) -> PageSource:
        with self._making:
            if self._api is None:
                self._api = self._make()
            return self._api

    @property
    def was_asked(self) -> bool:
        """Whether anybody has looked."""
        return self._api is not None

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self.visitors.admit(request):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.visitors.leave(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Somebody who has gone is no trouble; anything else is a defect of ours."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            traceback.print_exc()


class _Hearing(io.RawIOBase):
    """Reads from a connection until a deadline, so that a client cannot stay by sending a byte now and then.

    Bytes that have arrived are read after the deadline, too. On a busy machine this thread may be stopped for longer
    than the deadline allows, and a client whose request is complete must not pay for that. Limits on the size of a
    request bound how long this can go on.
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
    """One connection."""

    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.0"
    server: PageServer
    _is_known = False

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self._hearing = _Hearing(self.connection)
        self.rfile = io.BufferedReader(self._hearing)

    def version_string(self) -> str:
        return "shoal"

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged: the paths have the token in them."""

    def handle_one_request(self) -> None:
        self.path, self.headers = "", Message()  # those of the request before are not those of one that cannot be read
        self._hearing.until = time.monotonic() + (KNOWN_SECONDS if self._is_known else STRANGER_SECONDS)
        super().handle_one_request()
        if not self.close_connection:
            self.server.visitors.rest(self.connection)

    def parse_request(self) -> bool:
        found = super().parse_request()
        if "Content-Length" in self.headers or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # what follows is no request, and nobody reads it
        return found

    def handle_expect_100(self) -> bool:
        """Nobody is told to go on: what would be sent is not read."""
        return True

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """In words of ours, and without what was asked."""
        self.close_connection = True
        if self._admitted() is not None:
            self._send(code, b"bad request\n", "text/plain")

    def do_GET(self) -> None:
        path = self._admitted()
        if path is not None:
            self._is_known = True
            self.server.visitors.know(self.connection)
            self._route(path, dict(parse_qsl(urlsplit(self.path).query[:4096])))

    do_HEAD = do_GET  # noqa: N815  the name is given

    def _admitted(self) -> str | None:
        """What is asked for; None from those who have not shown the token or ask for another machine, and are told."""
        path = self._behind_token()
        host = _HOST.fullmatch(self.headers.get("Host", ""))
        if path is not None and host is not None and host[1].lower() in HOSTS:
            self.connection.settimeout(KNOWN_SECONDS)
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
            return rest if slash else "/"  # which is no page
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
        """What is found, or why it cannot be: whoever asks is told that, too, also of a defect of ours."""
        from shoal.ui.web.board import RefusedRequest

        try:
            return ask()
        except (ShoalError, OSError) as error:
            return RefusedRequest(f"currently not available: {error}", 503).reply()
        except Exception as error:
            said = f"internal error in Shoal: {type(error).__name__}: {error}"
            reply = RefusedRequest(said, 500).reply()
            self.close_connection = True
            self._send(reply.status, reply.body, reply.type)
            raise  # to `PageServer.handle_error`

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
        """Parts as they change, until whoever asked goes away."""
        from shoal.ui.web.board import Reply

        api = self._attempt(lambda: self.server.api)
        if isinstance(api, Reply):  # what was to be shown has gone
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
            is_last = board.closed  # asked first: what was put up before the end is then sent, too
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
            board.pause(EVENT_SECONDS)  # several changes make one event
            board.wait(version, BEAT_SECONDS)


def _prepare(server: PageServer) -> None:
    with suppress(ShoalError, OSError):  # whoever asks is told of it
        server.api.prepare()


class Awaited(Protocol):
    """Something that is waited for, such as an event."""

    def wait(self) -> object: ...


def serve_until(server: PageServer, is_over: Awaited, *, at_once: bool = False) -> None:
    """Serves until it is over, and if anybody looks for a moment longer, so that everybody hears how it ended and can
    ask for the rest; `at_once` is to read the ledger before anybody asks."""
    thread = threading.Thread(target=server.serve_forever, args=(0.2,), name="server", daemon=True)
    thread.start()
    if at_once:
        threading.Thread(target=_prepare, args=(server,), name="preparing", daemon=True).start()
    is_over.wait()
    if server.was_asked:
        looking = server.visitors.known
        server.api.refresher.stop()
        server.api.refresher.join(10.0)
        time.sleep(GRACE_SECONDS if looking else 0.0)  # a page asks anew, and may have no connection meanwhile
    server.shutdown()
    server.server_close()
