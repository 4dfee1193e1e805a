"""The server that stands for a shared file system in tests and benchmarks does what it is said to do."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from support.command import wait_until
from support.slow_server import Answer, Capacity, Running, client, read_log, serving

PATIENCE = 60.0


def finish(capacity: Capacity[str], sizes: dict[str, float]) -> dict[str, float]:
    """When each job ends, if all come at 0."""
    for name, size in sizes.items():
        capacity.add(0.0, size, name)
    ends = {}
    while len(capacity):
        now = capacity.due()
        for name in capacity.done(now):
            ends[name] = now
    return ends


def test_up_to_the_knee_a_job_takes_as_long_as_alone() -> None:
    assert finish(Capacity(40, 8), {"a": 1.0}) == {"a": pytest.approx(0.2)}
    assert finish(Capacity(40, 8), {str(n): 1.0 for n in range(8)}) == {str(n): pytest.approx(0.2) for n in range(8)}


def test_beyond_the_knee_jobs_share_the_capacity() -> None:
    ends = finish(Capacity(40, 8), {str(n): 1.0 for n in range(16)})
    assert max(ends.values()) == pytest.approx(0.4)


def test_a_server_that_thrashes_does_less_beyond_the_knee() -> None:
    ends = finish(Capacity(40, 8, thrash=1.0), {str(n): 1.0 for n in range(16)})
    assert max(ends.values()) == pytest.approx(0.8)


def test_a_small_job_ends_before_a_large_one_and_leaves_it_its_share() -> None:
    ends = finish(Capacity(10, 1), {"large": 2.0, "small": 1.0})
    assert ends == {"small": pytest.approx(0.2), "large": pytest.approx(0.3)}


def test_less_capacity_holds_for_what_is_being_served() -> None:
    capacity: Capacity[str] = Capacity(10, 1)
    capacity.add(0.0, 1.0, "a")
    capacity.change(0.05, 5)
    assert capacity.due() == pytest.approx(0.15)


def requests_at(port: int) -> int:
    """How many connections to a port have brought something that nobody has read."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    there = [queues for _, local, _, state, queues, *_ in rows if local.endswith(f":{port:04X}") and state == "01"]
    return sum(int(queues.partition(":")[2], 16) > 0 for queues in there)


def call(server: Running, program: str, tag: str, count: int) -> list[Answer]:
    """So many clients at once, and what the log has of them afterwards."""
    words = [*program.split(), str(server.port), tag, "1"]
    server.process.send_signal(signal.SIGSTOP)  # until all have said what they want, however slowly they begin
    try:
        clients = [subprocess.Popen(words) for _ in range(count)]
        wait_until(lambda: requests_at(server.port) == count, "all have called")
    finally:
        server.process.send_signal(signal.SIGCONT)
    assert [process.wait(PATIENCE) for process in clients] == [0] * count
    deadline = time.monotonic() + PATIENCE
    while len(found := [answer for answer in read_log(server.log) if answer.tag == tag]) < count:
        assert time.monotonic() < deadline, found
        time.sleep(0.01)
    return found


def test_clients_are_served_and_logged(tmp_path: Path) -> None:
    program = client(tmp_path)
    with serving(tmp_path, capacity=16, knee=4) as server:
        (alone,) = call(server, program, "alone", 1)
        assert alone.seconds >= 0.99 * server.unloaded
        crowd = call(server, program, "crowd", 12)
        # Clients do not start at the same moment; half of the full crowd's time is well above what one takes.
        assert max(answer.beside for answer in crowd) >= 4
        assert max(answer.seconds for answer in crowd) > 1.2 * server.unloaded
        server.change(8)
        (slow,) = call(server, program, "slow", 1)
        assert slow.seconds >= 0.99 * 2 * server.unloaded


def test_a_client_without_a_server_fails(tmp_path: Path) -> None:
    program = client(tmp_path)
    with serving(tmp_path, capacity=40, knee=4) as server:
        port = server.port
    done = subprocess.run([*program.split(), str(port), "a", "1"], capture_output=True, timeout=PATIENCE)
    assert done.returncode != 0
