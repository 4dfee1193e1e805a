"""Sensing this machine, and a made-up one whose accounts are plain files."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal.core.policies.throttle.readings import CPU, DISK, NETWORK, NodeSample
from shoal.execution.processes.node_sensors import NodeSensor, SensedNode

DEADLINE = 60.0
BURN = "import time\nwhile True: pass"
needs_proc = pytest.mark.skipif(not Path("/proc/stat").exists(), reason="there is no /proc here")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A disk and a loop device, a link of 100 Mbit/s and a bridge over it, and a process 77 of ours."""
    for folder in ("proc/net", "proc/pressure", "proc/77", "sys/block/sda/device", "sys/block/loop0"):
        (tmp_path / folder).mkdir(parents=True)
    for folder in ("eth0/device", "br0"):
        (tmp_path / "sys/class/net" / folder).mkdir(parents=True)
    (tmp_path / "sys/class/net/eth0/speed").write_text("100\n")
    write(tmp_path)
    return tmp_path


def write(
    machine: Path, ticks: int = 0, user: int = 0, own: int = 0, busy: int = 0, sent: int = 0, stalled: int = 0
) -> None:
    """The accounts after so many ticks, milliseconds of the disk, bytes, and microseconds of waiting."""
    proc = machine / "proc"
    cpu = f"{1000 + user} 0 500 {9000 + ticks - user} 0 0 0 0 0 0"
    usable = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    (proc / "stat").write_text(f"cpu  {cpu}\ncpu{usable} {cpu}\nprocs_running 4\nprocs_blocked 1\n")
    (proc / "loadavg").write_text("2.50 1.00 1.00 4/99 77\n")
    (proc / "meminfo").write_text("MemTotal: 2000 kB\nMemAvailable:    1500 kB\n")
    disk = f"{10 + busy} 0 {busy * 2} 0 0 0 0 0 0 {busy} {busy * 3}"
    (proc / "diskstats").write_text(f"8 0 sda {disk}\n7 0 loop0 {disk}\n")
    link = f"0 0 0 0 0 0 0 0 {sent} 0 0 0 0 0 0 0"
    (proc / "net/dev").write_text(f"a\nb\n    lo: {link}\n  eth0: {link}\n   br0: {link}\n")
    for name in ("cpu", "memory"):
        (proc / "pressure" / name).write_text(f"some avg10=0.00 avg60=0.00 avg300=0.00 total={stalled}\n")
    (proc / "77" / "stat").write_text(f"77 (shoal) S 1 77 77 0 -1 0 0 0 0 0 {own} 0 0 0 20 0 1 0 5 0 0\n")


@contextmanager
def sensing(machine: Path, *own: int) -> Iterator[NodeSensor]:
    sensor = NodeSensor(0.0, own, str(machine / "proc"), str(machine / "sys"))
    try:
        yield sensor
    finally:
        sensor.close()


def test_changes_since_the_last_sample_are_reported(machine: Path) -> None:
    with sensing(machine) as sensor:
        sensor.sense(1.0)
        write(machine, ticks=50, user=40, busy=250, sent=1_250_000, stalled=100_000)
        sensed = sensor.sense(1.5)
    assert (sensed.user, sensed.system, sensed.iowait, sensed.steal) == pytest.approx((0.8, 0, 0, 0))
    assert sensed.disk == pytest.approx(0.5)
    assert sensed.disk_latency == pytest.approx(0.003)
    assert sensed.disk_bytes == pytest.approx(250 * 2 * 512 / 0.5)
    assert sensed.network == pytest.approx(2_500_000 / 12_500_000)
    assert sensed.network_bytes == sensed.loopback_bytes == 2_500_000
    assert sensed.cpu_pressure == sensed.memory_pressure == pytest.approx(0.2)
    assert sensed.io_pressure is None
    assert (sensed.run_queue, sensed.blocked, sensed.load) == (3, 1, 2.5)
    assert sensed.memory_available == 1500 * 1024


def test_our_own_processes_are_not_use_of_the_node(machine: Path) -> None:
    with sensing(machine, 77) as sensor:
        write(machine, ticks=50, user=40, own=30)
        sensed = sensor.sense(0.5)
    assert (sensed.user, sensed.own) == pytest.approx((0.2, 0.6))


def test_a_process_that_has_ended_is_forgotten(machine: Path) -> None:
    with sensing(machine, 77) as sensor:
        write(machine, ticks=50, user=10)
        (machine / "proc/77/stat").write_text("")
        sensor.sense(0.5)
        write(machine, ticks=100, user=20, own=40)
        assert sensor.sense(1.0).user == pytest.approx(0.2)


def test_a_sample_has_what_was_sensed_and_what_runs(machine: Path) -> None:
    with sensing(machine) as sensor:
        sensor.sense(1.0)
        write(machine, ticks=50, user=40, busy=250, sent=1_250_000, stalled=100_000)
        sample = sensor.sense(1.5).sample({"blast": 3})
    assert (sample.use(CPU), sample.use(DISK), sample.use(NETWORK)) == pytest.approx((0.8, 0.5, 0.2))
    assert sample.memory_pressure == pytest.approx(0.2)
    assert (sample.run_queue, sample.running) == (3, {"blast": 3})


def test_a_machine_without_accounts_has_no_figures(tmp_path: Path) -> None:
    with sensing(tmp_path, 1) as sensor:
        sensed = sensor.sense(1.0)
    assert sensed == SensedNode()
    assert sensed.sample({}) == NodeSample()


def test_two_samples_at_the_same_time_report_nothing_and_lose_nothing(machine: Path) -> None:
    with sensing(machine) as sensor:
        assert sensor.sense(0.0) == SensedNode()
        write(machine, ticks=50, user=40)
        assert sensor.sense(0.5).user == pytest.approx(0.8)


def test_accounts_longer_than_the_kernel_gives_at_once_are_read_to_the_end(machine: Path) -> None:
    many = "".join(f"veth{number:05}: {'7 ' * 16}\n" for number in range(3000))
    (machine / "proc/net/dev").write_text(f"a\nb\n{many}eth0: {'0 ' * 16}\n")
    with sensing(machine) as sensor:
        sensor.sense(1.0)
        (machine / "proc/net/dev").write_text(f"a\nb\n{many}eth0: {'1250000 ' * 16}\n")
        assert sensor.sense(2.0).network == pytest.approx(0.1)


@needs_proc
def test_burning_a_core_shows() -> None:
    whole = len(os.sched_getaffinity(0))

    def seconds_of_a_core(sensed: SensedNode) -> float:
        return ((sensed.user or 0.0) + (sensed.system or 0.0)) * whole

    with burning() as pid:
        sensor = NodeSensor(time.monotonic())
        # Others may use the rest, or most of what there is; at least this much goes to somebody.
        eventually(sensor, lambda sensed: seconds_of_a_core(sensed) + (sensed.steal or 0.0) * whole > 0.9)
        sensor.exclude(pid)
        sensor.sense(time.monotonic())
        eventually(sensor, lambda sensed: (sensed.own or 0.0) * whole > 0.02)  # its share among all who want a core
        sensor.close()


@needs_proc
def test_this_machine_has_every_figure_of_the_processors() -> None:
    sensor = NodeSensor(time.monotonic(), [os.getpid()])
    eventually(sensor, lambda sensed: None not in (sensed.user, sensed.system, sensed.iowait, sensed.steal, sensed.own))
    eventually(sensor, lambda sensed: None not in (sensed.memory_available, sensed.run_queue, sensed.network))
    sensor.close()


@contextmanager
def burning() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-S", "-c", BURN])
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def eventually(sensor: NodeSensor, condition: Callable[[SensedNode], bool]) -> None:
    """Samples at the pace of a driver until the condition holds."""
    deadline = time.monotonic() + DEADLINE
    while True:
        time.sleep(0.25)  # the pace of samples, not a wait for something
        sensed = sensor.sense(time.monotonic())
        if condition(sensed):
            return
        assert time.monotonic() < deadline, f"not within {DEADLINE} s; at last {sensed}"
