"""Parses the kernel's counters in `/proc` (CPU, disks, network, pressure) and computes rates between two readings.

All functions are pure. Truncated or unknown texts give None, or skip the line: a node that cannot be measured has no
figures, which is not an error. `node_sensors` reads the files.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

CPU_FIELDS = 8
"""user, nice, system, idle, iowait, irq, softirq, steal; later fields are already included in user and nice."""
DISK_BUSY = 12
"""Index of the busy milliseconds in a line of diskstats; the weighted time of all requests follows."""


class CpuCounters(NamedTuple):
    """Clock ticks of all CPUs since boot."""

    user: int
    system: int
    """Includes interrupts."""
    iowait: int
    steal: int
    total: int


class DiskCounters(NamedTuple):
    """One disk since boot."""

    requests: int
    waited: int
    """Milliseconds of all requests together."""
    busy: int
    """Milliseconds in which at least one request was in flight."""
    sectors: int


class InterfaceCounters(NamedTuple):
    """One network interface since its creation."""

    received: int
    sent: int


class Shares(NamedTuple):
    """Fractions of the CPU time between two readings, from 0 to 1."""

    user: float
    system: float
    iowait: float
    steal: float


def parse_cpu(text: bytes, processors: Collection[int] | None = None) -> CpuCounters | None:
    """Returns the counters of `/proc/stat`: of all CPUs, or of those with the given numbers."""
    if processors is None:
        return _cpu_line(text[: text.find(b"\n")])
    sums = [0] * len(CpuCounters._fields)
    found = 0
    for line in text.split(b"\n"):
        if not line.startswith(b"cpu"):
            break
        number = line[3 : line.find(b" ")]
        if number.isdigit() and int(number) in processors and (one := _cpu_line(line)) is not None:
            found += 1
            sums = [before + more for before, more in zip(sums, one, strict=True)]
    return CpuCounters(*sums) if found else None


def _cpu_line(line: bytes) -> CpuCounters | None:
    numbers = _numbers(line.split()[1 : 1 + CPU_FIELDS])
    if numbers is None or len(numbers) < CPU_FIELDS or not line.startswith(b"cpu"):
        return None
    user, nice, system, _, iowait, interrupts, soft, steal = numbers
    return CpuCounters(user + nice, system + interrupts + soft, iowait, steal, sum(numbers))


def parse_number(text: bytes, name: bytes) -> int | None:
    """Returns the number after a name at the start of a line: `procs_running` in stat, `MemAvailable:` in meminfo."""
    rest = (b"\n" + text).partition(b"\n" + name + b" ")[2]
    word = rest.partition(b"\n")[0].split(None, 1)[:1]
    return int(word[0]) if word and word[0].isdigit() else None


def parse_load(text: bytes) -> float | None:
    """Returns the load average of the last minute, from `/proc/loadavg`."""
    word = text.partition(b" ")[0]
    return float(word) if word.replace(b".", b"", 1).isdigit() else None


def parse_waited(text: bytes) -> int | None:
    """Returns the microseconds in which some task was stalled, from a file of `/proc/pressure`."""
    line = text.partition(b"\n")[0]
    word = line.rpartition(b"total=")[2]
    return int(word) if line.startswith(b"some ") and word.isdigit() else None


def parse_disks(text: bytes, names: Collection[bytes]) -> dict[bytes, DiskCounters]:
    """Returns the named disks of `/proc/diskstats`."""
    found = {}
    for line in text.split(b"\n"):
        words = line.split()
        if len(words) > DISK_BUSY + 1 and words[2] in names and (numbers := _numbers(words[3:])) is not None:
            # Later kernels added discards (four numbers) and flushes (two).
            discards = numbers[11] if len(numbers) > 14 else 0
            flushes = numbers[15] if len(numbers) > 16 else 0
            requests = numbers[0] + numbers[4] + discards + flushes
            found[words[2]] = DiskCounters(requests, numbers[10], numbers[9], numbers[2] + numbers[6])
    return found


def parse_links(text: bytes) -> dict[bytes, InterfaceCounters]:
    """Returns the received and sent bytes of each interface in `/proc/net/dev`."""
    found = {}
    for line in text.split(b"\n")[2:]:
        name, colon, rest = line.rpartition(b":")
        words = rest.split()
        if colon and len(words) > 8 and words[0].isdigit() and words[8].isdigit():
            found[name.strip()] = InterfaceCounters(int(words[0]), int(words[8]))
    return found


def parse_process(text: bytes) -> tuple[int, int] | None:
    """Returns user and system clock ticks of a process itself, from its `stat`."""
    numbers = _numbers(text.rpartition(b")")[2].split()[11:13])
    return (numbers[0], numbers[1]) if numbers is not None and len(numbers) == 2 else None


def _numbers(words: list[bytes]) -> list[int] | None:
    for word in words:
        if not word.isdigit():
            return None
    return list(map(int, words))


def cpu_shares(before: CpuCounters, after: CpuCounters, own_user: int = 0, own_system: int = 0) -> Shares | None:
    """Returns how CPU time was spent between two readings, without the ticks of our own processes; None if no tick has
    passed."""
    total = after.total - before.total
    if total <= 0:
        return None
    user = after.user - before.user - own_user
    system = after.system - before.system - own_system
    # The kernel's iowait sometimes decreases, and own ticks may be accounted later than the total.
    return Shares(
        *(share(part, total) for part in (user, system, after.iowait - before.iowait, after.steal - before.steal))
    )


def share(part: float, whole: float) -> float:
    """Returns the fraction, limited to 0 to 1."""
    return min(1.0, max(0.0, part / whole))


def disk_latency(before: Mapping[bytes, DiskCounters], after: Mapping[bytes, DiskCounters]) -> float:
    """Returns the seconds per request over all disks; 0 if none was completed."""
    pairs = [(before[name], disk) for name, disk in after.items() if name in before]
    requests = sum(new.requests - old.requests for old, new in pairs)
    waited = sum(new.waited - old.waited for old, new in pairs)
    return max(0, waited) / requests / 1000 if requests > 0 else 0.0
