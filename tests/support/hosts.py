"""Several hosts on one machine: network namespaces on a bridge, with links of a given rate. Needs root."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest


def need_namespaces() -> None:
    """Without them a laptop skips the test; where everything must be tested it fails."""
    problem = ""
    if os.geteuid() != 0:
        problem = "network namespaces need root"
    elif shutil.which("ip") is None or shutil.which("tc") is None:
        problem = "ip and tc are not installed; tools/install-packages does that"
    if problem:
        pytest.fail(problem) if os.environ.get("CI") else pytest.skip(problem)


class Hosts:
    """Hosts 1 to `count`, at SUBNET.1 and on; the test itself is at SUBNET.254."""

    def __init__(self, prefix: str, subnet: str, count: int) -> None:
        self.prefix, self.subnet, self.count = prefix, subnet, count
        self.bridge = f"{prefix}br"
        self.here = f"{subnet}.254"

    def up(self, rate: str) -> None:
        shape = ("root", "tbf", "rate", rate, "burst", "192kb", "latency", "50ms")
        _call("ip", "link", "add", self.bridge, "type", "bridge")
        _call("ip", "link", "set", self.bridge, "up")
        _call("ip", "addr", "add", f"{self.here}/24", "dev", self.bridge)
        for number in range(1, self.count + 1):
            name, port = self.name(number), self._port(number)
            _call("ip", "netns", "add", name)
            _call("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
            _call("ip", "link", "set", port, "master", self.bridge, "up")
            _call("ip", "-n", name, "addr", "add", f"{self.address(number)}/24", "dev", "eth0")
            _call("ip", "-n", name, "link", "set", "eth0", "up")
            _call("ip", "-n", name, "link", "set", "lo", "up")
            _call("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "eth0", *shape)
            _call("tc", "qdisc", "add", "dev", port, *shape)

    def down(self) -> None:
        for number in range(1, self.count + 1):
            subprocess.run(["ip", "netns", "del", self.name(number)], capture_output=True)
        subprocess.run(["ip", "link", "del", self.bridge], capture_output=True)

    def name(self, number: int) -> str:
        return f"{self.prefix}{number}"

    def _port(self, number: int) -> str:
        return f"{self.prefix}v{number}"

    def address(self, number: int) -> str:
        return f"{self.subnet}.{number}"

    def command(self, number: int, words: Sequence[str]) -> list[str]:
        """The command that runs `words` on a host."""
        return ["ip", "netns", "exec", self.name(number), *words]

    def cut(self, number: int) -> None:
        """The host is there, and nobody reaches it."""
        _call("ip", "link", "set", self._port(number), "down")

    def join(self, number: int) -> None:
        _call("ip", "link", "set", self._port(number), "up")

    def bytes_sent(self, number: int) -> int:
        """Bytes that a host has sent over its link."""
        with open(f"/sys/class/net/{self._port(number)}/statistics/rx_bytes", encoding="ascii") as file:
            return int(file.read())


def _call(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"


@contextmanager
def some_hosts(count: int, rate: str = "1gbit") -> Iterator[Hosts]:
    """Names and addresses are this process's own, so that several tests can have hosts at once."""
    need_namespaces()
    number = os.getpid() % 200
    hosts = Hosts(f"sh{os.getpid() % 100000}x", f"10.{77 + number // 100}.{number}", count)
    hosts.down()
    try:
        hosts.up(rate)
        yield hosts
    finally:
        hosts.down()
