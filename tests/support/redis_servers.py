"""Real Redis servers for tests: one, or a cluster of three masters, each with a folder of its own, ended by pid."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

SERVER = shutil.which("redis-server") or shutil.which("valkey-server")
CLIENT = shutil.which("redis-cli") or shutil.which("valkey-cli")
PATIENCE = 60.0
FORGETFUL = ("--appendonly", "no")
"""Of one that has lost everything when it is started again."""
CAREFUL = ("--appendfsync", "always")
"""Options of a server that has written down what it answers; the others may owe it to the disk for a second or two."""


def need_redis() -> None:
    """Without a server a laptop skips the test; where everything must be tested it fails."""
    if SERVER is None or CLIENT is None:
        if os.environ.get("CI"):
            pytest.fail("redis-server is not installed; tools/install-packages does that")
        pytest.skip("redis-server is not installed")


def wait_until(condition: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.01)


def free_port() -> int:
    """A port whose neighbour 10,000 above, which a cluster needs, is free as well."""
    while True:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            port = int(one.getsockname()[1])
            if port + 10_000 < 65_536:
                try:
                    other.bind(("127.0.0.1", port + 10_000))
                except OSError:
                    continue
                return port


class RedisServer:
    """One server with an append-only file."""

    def __init__(self, folder: Path, *options: str, cluster: bool = False) -> None:
        folder.mkdir(parents=True)
        self.port = free_port() if cluster else 0
        self.socket = str(folder / "redis.socket")
        where = ["--port", str(self.port), "--bind", "127.0.0.1", "--unixsocket", self.socket, "--dir", str(folder)]
        habits = ["--save", "", "--appendonly", "yes", "--logfile", str(folder / "log")]
        if cluster:
            habits += ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"]
        self.command = [str(SERVER), *where, *habits, *options]
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def address(self) -> str:
        return f"redis://127.0.0.1:{self.port}" if self.port else f"unix://{self.socket}"

    def start(self) -> None:
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL)

    def kill(self) -> None:
        """Ends it without warning."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(PATIENCE)
            self.process = None

    def answers(self) -> bool:
        with redis.Redis(unix_socket_path=self.socket, retry=Retry(NoBackoff(), 0)) as client:
            try:
                return bool(client.ping())
            except redis.AuthenticationError:
                return True
            except redis.RedisError:
                return False


@contextmanager
def one_server(folder: Path, *options: str) -> Iterator[RedisServer]:
    need_redis()
    server = RedisServer(folder / "one", *options)
    try:
        wait_until(server.answers, "the server answers")
        yield server
    finally:
        server.kill()


@contextmanager
def cluster_of_three(folder: Path) -> Iterator[list[RedisServer]]:
    """Three masters that share the slots."""
    need_redis()
    with ExitStack() as stack:
        servers = []
        for name in "abc":
            server = RedisServer(folder / name, cluster=True)
            stack.callback(server.kill)
            servers.append(server)
        for server in servers:
            wait_until(server.answers, "a node of the cluster answers")
        places = [f"127.0.0.1:{server.port}" for server in servers]
        made = subprocess.run(
            [str(CLIENT), "--cluster", "create", *places, "--cluster-yes"], capture_output=True, text=True, timeout=60
        )
        assert made.returncode == 0, made.stdout + made.stderr
        for server in servers:
            with redis.Redis(unix_socket_path=server.socket) as client:
                wait_until(lambda client=client: _is_whole(client), "the cluster is whole")  # type: ignore[misc]
        yield servers


def _is_whole(client: redis.Redis) -> bool:
    found = client.execute_command("CLUSTER", "INFO")  # type: ignore[no-untyped-call]
    state = found if isinstance(found, dict) else dict(line.split(":") for line in found.decode().split())
    return bool(state["cluster_state"] == "ok" and int(state["cluster_known_nodes"]) == 3)
