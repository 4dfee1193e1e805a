"""Object servers in processes of their own, a network between them that can misbehave, and waiting for fetches."""

from __future__ import annotations

import random
import select
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from shoal.data.cache import Cache
from shoal.data.fetch import Fetched, Fetcher
from shoal.data.transfer_messages import DataGrant

PATIENCE = 60.0
TOKEN = b"a token of thirty-two bytes ----"
PIECE_BYTES = 16 << 10

SERVING = """
import sys
from shoal.data.cache import Cache
from shoal.data.listener import DataListener
from shoal.data.listener import ObjectServer
cache = Cache(sys.argv[1])
listener = DataListener(bytes.fromhex(sys.argv[2]), port=int(sys.argv[3]), encrypted=sys.argv[4] == "True")
server = ObjectServer(cache, listener)
print(listener.port, flush=True)
for line in sys.stdin:
    cache.drop(line.strip())
    print("dropped", flush=True)
"""


@lru_cache(maxsize=8)
def content(name: str, size: int) -> bytes:
    return random.Random(name).randbytes(size)


def fill(folder: Path, sizes: dict[str, int]) -> None:
    """Makes a cache with objects of those sizes; their bytes follow from their names."""
    cache = Cache(str(folder))
    for name, size in sizes.items():
        data = content(name, size)
        Path(cache.begin(name, size)).write_bytes(data)
        cache.commit(name, size, zlib.crc32(data))
    cache.close()


class Serving:
    """A process that serves a cache."""

    def __init__(self, folder: Path, encrypted: bool, port: int = 0) -> None:
        self.folder, self.encrypted = folder, encrypted
        self.port = port
        self.start()

    def start(self) -> None:
        words = [sys.executable, "-c", SERVING, str(self.folder), TOKEN.hex(), str(self.port), str(self.encrypted)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def drop(self, name: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{name}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "dropped\n"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()

    def grant(self, port: int | None = None, token: bytes = TOKEN) -> DataGrant:
        """For this server, or for a proxy before it."""
        return DataGrant("127.0.0.1", port or self.port, token, self.encrypted)


@contextmanager
def serving(folder: Path, encrypted: bool, sizes: dict[str, int] | None = None) -> Iterator[Serving]:
    if sizes is not None:
        fill(folder, sizes)
    server = Serving(folder, encrypted)
    try:
        yield server
    finally:
        server.kill()


class Proxy:
    """Passes bytes on; `at` and `action` say when (in bytes of the way back, over all connections) something happens.

    The action gets the next byte's worth of control: it may return False to cut the connection there.
    """

    def __init__(self, port: int) -> None:
        self.target = port
        self.forwarded = 0
        """Bytes passed back to clients."""
        self.connections = 0
        self.recorded: list[bytearray] = []
        """What each client said."""
        self.at: int | None = None
        self.action: Callable[[], bool] = lambda: True
        self.flip: set[int] = set()
        """Places in the way back where a bit is turned."""
        self.flip_always = False
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._open:
            _shut(one)
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            try:
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                client.close()
                continue
            self._open += [client, server]
            record = bytearray()
            self.recorded.append(record)
            threading.Thread(target=self._forth, args=(client, server, record), daemon=True).start()
            threading.Thread(target=self._back, args=(server, client), daemon=True).start()

    def _forth(self, client: socket.socket, server: socket.socket, record: bytearray) -> None:
        try:
            while data := client.recv(PIECE_BYTES):
                record += data
                server.sendall(data)
        except OSError:
            pass
        _shut(server)

    def _back(self, server: socket.socket, client: socket.socket) -> None:
        try:
            while data := bytearray(server.recv(PIECE_BYTES)):
                begin, end = self.forwarded, self.forwarded + len(data)
                for place in [place for place in self.flip if begin <= place < end]:
                    data[place - begin] ^= 1
                if self.flip_always and len(data) > 1000:
                    data[-1] ^= 1
                client.sendall(data)
                self.forwarded = end
                if self.at is not None and end >= self.at:
                    self.at = None
                    if not self.action():
                        break
        except OSError:
            pass
        _shut(client)
        _shut(server)


@contextmanager
def proxy(port: int) -> Iterator[Proxy]:
    between = Proxy(port)
    try:
        yield between
    finally:
        between.close()


@contextmanager
def fetching(folder: Path, **options: float) -> Iterator[Fetcher]:
    cache = Cache(str(folder))
    fetcher = Fetcher(cache, **options)  # type: ignore[arg-type]  # whole numbers among them are given as such
    try:
        yield fetcher
    finally:
        fetcher.close()
        cache.close()


def want(fetcher: Fetcher, name: str, size: int, *grants: DataGrant) -> None:
    fetcher.fetch(name, grants, size, zlib.crc32(content(name, size)))


def results(fetcher: Fetcher, count: int) -> dict[str, Fetched]:
    """Waits for so many ends of fetches, woken by the descriptor alone."""
    poll = select.poll()
    poll.register(fetcher.fd(), select.POLLIN)
    got: dict[str, Fetched] = {}
    deadline = time.monotonic() + PATIENCE
    while len(got) < count:
        assert poll.poll(max(0.0, deadline - time.monotonic()) * 1000), f"only {sorted(got)} ended"
        for result in fetcher.finished():
            assert result.name not in got
            got[result.name] = result
    return got


def assert_there(fetcher: Fetcher, name: str, size: int) -> None:
    assert bytes(fetcher.cache.mapped(name)) == content(name, size)


def _shut(one: socket.socket) -> None:
    try:
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
