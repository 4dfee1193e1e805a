"""HTTP on the loopback address: who may ask, what is sent, and events as they come.

Every path begins with a secret word, made anew for each server; programs may send it in a header instead. Without it
nothing is served. The name by which the server was asked for must be that of this machine, so that no page from
elsewhere can reach it through a name of its own. Nothing is loaded for showing a run before somebody who may asks.
"""

from __future__ import annotations

import hmac
import socket
import sys
import threading
import time
import traceback
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from shoal.web.thrift import use_one_heap

if TYPE_CHECKING:
    from shoal.engine.workspace import Workspace
    from shoal.web.api import Api

ADDRESS = "127.0.0.1"
HOSTS = ("127.0.0.1", "localhost", "[::1]")
ASSETS = {"page.css": "text/css", "live.css": "text/css", "plots.js": "text/javascript", "live.js": "text/javascript"}
SCRIPTS, STYLES = ("plots.js", "live.js"), ("page.css", "live.css")
MOST_CONNECTIONS = 64
EVENT_SECONDS, BEAT_SECONDS = 0.4, 15.0
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
PAGE = (
    '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n<title>Shoal</title>\n'
    + "".join(f'<link rel="stylesheet" href="assets/{name}">\n' for name in STYLES)
    + '</head>\n<body>\n<a class="skip" href="#content">Skip to the run</a>\n'
    '<header id="head"></header>\n<main id="content"></main>\n'
    "<noscript><p>This page draws itself with a script that comes from this machine. Allow it to run.</p></noscript>\n"
    + "".join(f'<script src="assets/{name}"></script>\n' for name in SCRIPTS)
    + "</body>\n</html>\n"
)


@cache
def asset(name: str) -> bytes:
    """A file of the page."""
    return (resources.files("shoal.view") / "assets" / name).read_bytes()


def listen(port: int) -> socket.socket:
    """A socket on the loopback address; port 0 stands for any that is free."""
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((ADDRESS, port))
        found.listen(MOST_CONNECTIONS)
    except OSError:
        found.close()
        raise
    return found


def address_of(listening: socket.socket, token: str) -> str:
    """What is opened in a browser."""
    return f"http://{ADDRESS}:{listening.getsockname()[1]}/{token}/"


class Server(ThreadingHTTPServer):
    """Shows one run to those who know the token."""

    daemon_threads = True

    def __init__(self, listening: socket.socket, token: str, workspace: Workspace, number: int | None = None) -> None:
        super().__init__(listening.getsockname(), Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.token = token.encode()
        self._workspace, self._number = workspace, number
        self._api: Api | None = None
        self._making = threading.Lock()
        self._room = threading.Semaphore(MOST_CONNECTIONS)

    @property
    def api(self) -> Api:
        with self._making:
            if self._api is None:
                from shoal.web.api import Api

                self._api = Api(self._workspace, self._number)
            return self._api

    @property
    def was_asked(self) -> bool:
        """Whether anybody has looked."""
        return self._api is not None

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Somebody who has gone is no trouble; anything else is a defect of ours."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            traceback.print_exc()


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    timeout = 60
    server: Server

    def version_string(self) -> str:
        return "shoal"

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged: the paths have the token in them."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """In words of ours, and without what was asked."""
        self.close_connection = True
        self._send(code, b"this cannot be had\n", "text/plain")

    def do_GET(self) -> None:
        host = self.headers.get("Host", "").rsplit(":", 1)[0] if self.headers.get("Host") else ""
        if host.lower() not in HOSTS:
            self._send(403, b"this server answers to the name of this machine only\n", "text/plain")
            return
        parts = urlsplit(self.path)
        first, slash, rest = parts.path[1:].partition("/")
        bearer = self.headers.get("Authorization", "")
        if self._is_token(unquote(first)):
            if not slash:
                self.close_connection = True
                self._send(404, b"add a slash\n", "text/plain")
                return
            path = rest
        elif bearer.startswith("Bearer ") and self._is_token(bearer[7:].strip()):
            path = parts.path[1:]
        else:
            self._send(403, b"the address must have the token in it that 'shoal web' has printed\n", "text/plain")
            return
        self._route(path, dict(parse_qsl(parts.query[:4096])))

    do_HEAD = do_GET  # noqa: N815  the name is given

    def _is_token(self, word: str) -> bool:
        return hmac.compare_digest(word.encode("utf-8", "replace"), self.server.token)

    def _route(self, path: str, query: dict[str, str]) -> None:
        if path == "":
            self._send(200, PAGE.encode(), "text/html; charset=utf-8")
        elif path.startswith("assets/") and path[7:] in ASSETS:
            self._send(200, asset(path[7:]), f"{ASSETS[path[7:]]}; charset=utf-8")
        elif path == "api/v1/events":
            self._events()
        elif path == "metrics":
            reply = self.server.api.metrics()
            self._send(reply.status, reply.body, reply.type)
        elif path.startswith("api/v1/") or path == "api/v1":
            reply = self.server.api.answer(path[7:], query)
            self._send(reply.status, reply.body, reply.type)
        else:
            self._send(404, b"there is no such page\n", "text/plain")

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
        self.close_connection = True
        self.send_response(200)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command == "HEAD":
            return
        api = self.server.api
        board = api.board
        board.watch(1)
        api.refresher.wake()
        try:
            self._stream(api, board.version_of(self.headers.get("Last-Event-ID", "")))
        finally:
            board.watch(-1)

    def _stream(self, api: Api, version: int) -> None:
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


def serve_until(server: Server, is_over: threading.Event) -> None:
    """Serves until it is over, and for a moment longer, so that everybody hears how it ended."""
    use_one_heap()
    thread = threading.Thread(target=server.serve_forever, args=(0.2,), name="server", daemon=True)
    thread.start()
    is_over.wait()
    if server.was_asked:
        server.api.refresher.stop()
        server.api.refresher.join(10.0)
        deadline = time.monotonic() + 2.0
        while server.api.board.watchers and time.monotonic() < deadline:
            time.sleep(0.02)
    server.shutdown()
    server.server_close()
