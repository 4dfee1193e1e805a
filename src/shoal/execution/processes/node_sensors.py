"""Measures the node (CPU, disk, network, memory, run queue) since the last sample, and the CPU time of task processes.

The caller samples every half second. Files stay open and are read with one system call each; `kernel_counters` parses
them. CPU time of our own processes is subtracted, so that the throttle controller sees that of tasks. Without `/proc`
every figure is None. `shoal.core.policies.throttle` interprets the figures.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from shoal.core.policies.throttle.readings import NodeSample
from shoal.execution.processes.kernel_counters import (
    CpuCounters,
    DiskCounters,
    InterfaceCounters,
    Shares,
    cpu_shares,
    disk_latency,
    parse_cpu,
    parse_disks,
    parse_links,
    parse_load,
    parse_number,
    parse_process,
    parse_waited,
    share,
)

CHUNK = 1 << 16
SHORT = 1 << 11
"""The kernel returns list files in chunks of a page, cut between lines: a shorter chunk is the last."""
UNKNOWN_LINK = 1_250_000_000
"""Assumed bytes per second of a link whose speed the system does not report, as for most virtual links: 10 Gbit/s.

A high value is safer: with a low one, normal traffic would look like a full link.
"""
SECTOR = 512
FILES = ("stat", "loadavg", "meminfo", "diskstats", "net/dev", "pressure/cpu", "pressure/memory", "pressure/io")
STAND_INS = (b"loop", b"ram", b"zram", b"dm-", b"md")
"""Block devices in memory, or on top of other disks."""


class SensedNode(msgspec.Struct, frozen=True):
    """A node since the last sample; fractions from 0 to 1, times in seconds. None: not available here."""

    user: float | None = None
    system: float | None = None
    iowait: float | None = None
    steal: float | None = None
    own: float | None = None
    """CPU fraction of our own processes, which is not in `user` and `system`."""
    cpu_pressure: float | None = None
    """Fraction of time in which some task waited for a CPU."""
    memory_pressure: float | None = None
    io_pressure: float | None = None
    memory_available: int | None = None
    """Bytes."""
    disk: float | None = None
    """Fraction of time in which the busiest disk was busy."""
    disk_bytes: float | None = None
    """Bytes read and written per second."""
    disk_latency: float | None = None
    """Seconds per request; 0 if there was none."""
    network: float | None = None
    """Utilisation of the busiest link, in its busier direction."""
    network_bytes: float | None = None
    """Bytes received and sent per second."""
    loopback_bytes: float | None = None
    """Bytes sent per second within the node."""
    run_queue: int | None = None
    """Runnable threads, without the one that measures."""
    blocked: int | None = None
    """Threads that wait for a disk."""
    load: float | None = None

    def sample(self, running: Mapping[str, int]) -> NodeSample:
        """Converts it for the throttle controller, with the number of running tasks per category; unavailable figures
        count as no usage."""
        return NodeSample(
            user=self.user or 0.0,
            system=self.system or 0.0,
            iowait=self.iowait or 0.0,
            steal=self.steal or 0.0,
            disk=self.disk or 0.0,
            disk_latency=self.disk_latency or 0.0,
            network=self.network or 0.0,
            memory_pressure=self.memory_pressure or 0.0,
            run_queue=self.run_queue or 0,
            running=running,
        )


class AccountReading(NamedTuple):
    """All counters at one time."""

    at: float
    cpu: CpuCounters | None
    own: Mapping[int, tuple[int, int]]
    """Clock ticks of our processes, by pid."""
    waited: tuple[int | None, int | None, int | None]
    """Microseconds of stall for CPU, memory and disk."""
    disks: Mapping[bytes, DiskCounters]
    links: Mapping[bytes, InterfaceCounters]


class NodeSensor:
    """Reads the counters and computes what happened in between. `now` is any monotonic clock."""

    def __init__(self, now: float, own: Iterable[int] = (), proc: str = "/proc", system: str = "/sys") -> None:
        self._proc = proc
        self._system = Path(system)
        self._files = [_opened(f"{proc}/{name}") for name in FILES]
        self._own: dict[int, int] = {}
        self._processors = _own_processors()
        self._disks = _disks(self._system)
        self._rates: dict[bytes, int] = {}
        """Bytes per second of the links that count; 0 for others."""
        for pid in own:
            self.exclude(pid)
        self._before, _ = self._read(now)

    def exclude(self, pid: int) -> None:
        """Counts the CPU time of this process as our own until it ends."""
        descriptor = _opened(f"{self._proc}/{pid}/stat")
        if descriptor is not None and pid not in self._own:
            self._own[pid] = descriptor
        elif descriptor is not None:
            os.close(descriptor)

    def sense(self, now: float) -> SensedNode:
        """Returns what happened since the last call, or since the start."""
        before = self._before
        after, (stat, load, memory) = self._read(now)
        seconds = after.at - before.at
        if seconds <= 0:
            return SensedNode()
        self._before = after
        shares, own = _processors(before, after)
        cpu_pressure, memory_pressure, io_pressure = (
            share(new - old, seconds * 1e6) if old is not None and new is not None else None
            for old, new in zip(before.waited, after.waited, strict=True)
        )
        running = parse_number(stat, b"procs_running")
        available = parse_number(memory, b"MemAvailable:")
        disk, disk_bytes, latency = _disk(before.disks, after.disks, seconds)
        network, network_bytes, loopback = self._network(before.links, after.links, seconds)
        return SensedNode(
            user=shares.user if shares is not None else None,
            system=shares.system if shares is not None else None,
            iowait=shares.iowait if shares is not None else None,
            steal=shares.steal if shares is not None else None,
            own=own,
            cpu_pressure=cpu_pressure,
            memory_pressure=memory_pressure,
            io_pressure=io_pressure,
            memory_available=available * 1024 if available is not None else None,
            disk=disk,
            disk_bytes=disk_bytes,
            disk_latency=latency,
            network=network,
            network_bytes=network_bytes,
            loopback_bytes=loopback,
            run_queue=max(0, running - 1) if running is not None else None,
            blocked=parse_number(stat, b"procs_blocked"),
            load=parse_load(load),
        )

    def close(self) -> None:
        for descriptor in (*self._files, *self._own.values()):
            if descriptor is not None:
                os.close(descriptor)
        self._files, self._own = [None] * len(FILES), {}

    def _read(self, now: float) -> tuple[AccountReading, tuple[bytes, bytes, bytes]]:
        """Returns the counters, and the texts of which only the latest values matter."""
        stat, load, memory, disks, links, *pressures = map(_content, self._files)
        own = {}
        for pid, descriptor in list(self._own.items()):
            ticks = parse_process(_content(descriptor))
            if ticks is None:  # the process has ended
                os.close(self._own.pop(pid))
            else:
                own[pid] = ticks
        cpu, memory_waited, io = map(parse_waited, pressures)
        reading = AccountReading(
            now,
            parse_cpu(stat, self._processors),
            own,
            (cpu, memory_waited, io),
            parse_disks(disks, self._disks) if self._disks else {},
            parse_links(links),
        )
        return reading, (stat, load, memory)

    def _network(
        self, before: Mapping[bytes, InterfaceCounters], after: Mapping[bytes, InterfaceCounters], seconds: float
    ) -> tuple[float | None, float | None, float | None]:
        """Returns the utilisation of the busiest link, and bytes per second of all links and of loopback."""
        if not after:
            return None, None, None
        if not after.keys() <= self._rates.keys():
            self._rates = _link_rates(self._system, list(after))
        busiest = total = loopback = 0.0
        for name, new in after.items():
            old = before.get(name, new)
            received, sent = max(0, new.received - old.received), max(0, new.sent - old.sent)
            if name == b"lo":
                loopback = sent / seconds
            elif rate := self._rates[name]:
                total += (received + sent) / seconds
                busiest = max(busiest, share(max(received, sent) / seconds, rate))
        return busiest, total, loopback


def _processors(before: AccountReading, after: AccountReading) -> tuple[Shares | None, float | None]:
    """Returns how CPU time was spent without our own processes, and our own fraction."""
    if before.cpu is None or after.cpu is None:
        return None, None
    user = sum(ticks[0] - before.own.get(pid, ticks)[0] for pid, ticks in after.own.items())
    system = sum(ticks[1] - before.own.get(pid, ticks)[1] for pid, ticks in after.own.items())
    shares = cpu_shares(before.cpu, after.cpu, user, system)
    return shares, share(user + system, after.cpu.total - before.cpu.total) if shares is not None else None


def _disk(
    before: Mapping[bytes, DiskCounters], after: Mapping[bytes, DiskCounters], seconds: float
) -> tuple[float | None, float | None, float | None]:
    """Returns the utilisation of the busiest disk, bytes per second of all disks, and seconds per request."""
    pairs = [(before[name], disk) for name, disk in after.items() if name in before]
    if not pairs:
        return None, None, None
    busiest = max(share(new.busy - old.busy, seconds * 1000) for old, new in pairs)
    sectors = sum(max(0, new.sectors - old.sectors) for old, new in pairs)
    return busiest, sectors * SECTOR / seconds, disk_latency(before, after)


def _opened(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _content(descriptor: int | None) -> bytes:
    """Returns the current content of the file; empty if it does not exist, its process has ended, or the kernel has
    disabled it."""
    if descriptor is None:
        return b""
    try:
        text = chunk = os.pread(descriptor, CHUNK, 0)
        while len(chunk) >= SHORT:
            chunk = os.pread(descriptor, CHUNK, len(text))
            text += chunk
        return text
    except OSError:
        return b""


def _own_processors() -> frozenset[int] | None:
    """Returns the numbers of the CPUs that this process may use; None if these are all."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    usable = frozenset(os.sched_getaffinity(0))
    return None if len(usable) == os.cpu_count() else usable


def _disks(system: Path) -> frozenset[bytes]:
    """Returns whole disks, each once: those with a device; if none has one, those that are not on top of others."""
    try:
        names = sorted(os.listdir(system / "block"))
    except OSError:
        return frozenset()
    devices = [name for name in names if (system / "block" / name / "device").exists()]
    chosen = devices or [name for name in names if not name.encode().startswith(STAND_INS)]
    return frozenset(name.encode() for name in chosen)


def _link_rates(system: Path, names: list[bytes]) -> dict[bytes, int]:
    """Returns bytes per second of the links; 0 for links that only forward the traffic of others.

    Bridges and similar links have no device. If no link has one, as in a container, all but loopback count.
    """
    links = {name: system / "class" / "net" / name.decode(errors="replace") for name in names if name != b"lo"}
    devices = [name for name, path in links.items() if (path / "device").exists()]
    rates = dict.fromkeys(names, 0)
    for name in devices or links:
        rates[name] = _rate_of(links[name])
    return rates


def _rate_of(link: Path) -> int:
    try:
        megabits = int((link / "speed").read_bytes())
    except (OSError, ValueError):
        return UNKNOWN_LINK
    return megabits * 125_000 if megabits > 0 else UNKNOWN_LINK


READ_BYTES = 1 << 12
MOST = 2000
"""Maximum number of processes to scan; with more of them the sum would be too small, so the result is None."""


def task_seconds(roots: Iterable[int], proc: str = "/proc") -> float | None:
    """Returns the CPU seconds of all descendants so far; may decrease slightly when a process ends that is not waited
    for."""
    kept = set(roots)
    ticks = 0
    looked_at = 0
    for root in sorted(kept):
        words = _stat(proc, root)
        waiting = _children(proc, root)
        if words is None:
            continue
        if waiting is None:
            return None
        ticks += words[2] + words[3]
        while waiting:
            pid = waiting.pop()
            if pid in kept:
                continue
            looked_at += 1
            if looked_at > MOST:
                return None
            words = _stat(proc, pid)
            if words is not None:
                ticks += sum(words)
                waiting += _children(proc, pid) or ()
    return ticks / os.sysconf("SC_CLK_TCK")


def _stat(proc: str, pid: int) -> list[int] | None:
    """Returns user and system ticks of a process and the children it has waited for; None if it has ended."""
    text = _read_file(f"{proc}/{pid}/stat")
    words = text.rpartition(b")")[2].split()[11:15]
    return [int(word) for word in words] if len(words) == 4 else None


def _children(proc: str, pid: int) -> list[int] | None:
    """Returns the children of its first thread; None if the kernel keeps no such list, or the process has ended."""
    path = f"{proc}/{pid}/task/{pid}/children"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        text = chunk = os.read(descriptor, READ_BYTES)
        while chunk:
            chunk = os.read(descriptor, READ_BYTES)
            text += chunk
    except OSError:
        return []
    finally:
        os.close(descriptor)
    return [int(word) for word in text.split()]


def _read_file(path: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, READ_BYTES)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
