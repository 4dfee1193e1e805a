"""What the kernel's own accounts say: texts of `/proc` as numbers, and two readings of them as shares of time.

Everything here is a function of its arguments. Texts that are cut off or strange give None, or leave the line out: a
node that cannot be sensed is a node without figures, not an error. Reading the files is left to `sensing`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

CPU_FIELDS = 8
"""user, nice, system, idle, iowait, irq, softirq, steal; what follows is contained in user and nice already."""
DISK_BUSY = 12
"""The place of the milliseconds at work in a line of diskstats; those of all requests together follow."""


class CpuCounters(NamedTuple):
    """Clock ticks of all processors since boot."""

    user: int
    system: int
    """With interrupts."""
    iowait: int
    steal: int
    total: int


class DiskCounters(NamedTuple):
    """One disk since boot."""

    requests: int
    waited: int
    """Milliseconds that all requests took together."""
    busy: int
    """Milliseconds in which at least one was under way."""
    sectors: int


class InterfaceCounters(NamedTuple):
    """One network interface since it is there."""

    received: int
    sent: int


class Shares(NamedTuple):
    """Of the processors' time between two readings, from 0 to 1."""

    user: float
    system: float
    iowait: float
    steal: float


def parse_cpu(text: bytes, processors: Collection[int] | None = None) -> CpuCounters | None:
    """The processors of `/proc/stat`: all of them, or those with the given numbers."""
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
    """The number after a name that begins a line: `procs_running` of stat, `MemAvailable:` of meminfo."""
    rest = (b"\n" + text).partition(b"\n" + name + b" ")[2]
    word = rest.partition(b"\n")[0].split(None, 1)[:1]
    return int(word[0]) if word and word[0].isdigit() else None


def parse_load(text: bytes) -> float | None:
    """The run queue over the last minute, of `/proc/loadavg`."""
    word = text.partition(b" ")[0]
    return float(word) if word.replace(b".", b"", 1).isdigit() else None


def parse_waited(text: bytes) -> int | None:
    """Microseconds in which some task waited, of a file of `/proc/pressure`."""
    line = text.partition(b"\n")[0]
    word = line.rpartition(b"total=")[2]
    return int(word) if line.startswith(b"some ") and word.isdigit() else None


def parse_disks(text: bytes, names: Collection[bytes]) -> dict[bytes, DiskCounters]:
    """The named disks of `/proc/diskstats`."""
    found = {}
    for line in text.split(b"\n"):
        words = line.split()
        if len(words) > DISK_BUSY + 1 and words[2] in names and (numbers := _numbers(words[3:])) is not None:
            # Discards and flushes came later than the rest: four more numbers, then two.
            discards = numbers[11] if len(numbers) > 14 else 0
            flushes = numbers[15] if len(numbers) > 16 else 0
            requests = numbers[0] + numbers[4] + discards + flushes
            found[words[2]] = DiskCounters(requests, numbers[10], numbers[9], numbers[2] + numbers[6])
    return found


def parse_links(text: bytes) -> dict[bytes, InterfaceCounters]:
    """The interfaces of `/proc/net/dev`; bytes."""
    found = {}
    for line in text.split(b"\n")[2:]:
        name, colon, rest = line.rpartition(b":")
        words = rest.split()
        if colon and len(words) > 8 and words[0].isdigit() and words[8].isdigit():
            found[name.strip()] = InterfaceCounters(int(words[0]), int(words[8]))
    return found


def parse_process(text: bytes) -> tuple[int, int] | None:
    """Clock ticks as user and for the system that a process itself has used, of its `stat`."""
    numbers = _numbers(text.rpartition(b")")[2].split()[11:13])
    return (numbers[0], numbers[1]) if numbers is not None and len(numbers) == 2 else None


def _numbers(words: list[bytes]) -> list[int] | None:
    for word in words:
        if not word.isdigit():
            return None
    return list(map(int, words))


def cpu_shares(before: CpuCounters, after: CpuCounters, own_user: int = 0, own_system: int = 0) -> Shares | None:
    """How the processors spent the time between; without the ticks of our own processes. None if no tick has passed."""
    total = after.total - before.total
    if total <= 0:
        return None
    user = after.user - before.user - own_user
    system = after.system - before.system - own_system
    # The kernel's figures for waiting go back at times, and own ticks may be told later than those of all.
    return Shares(
        *(share(part, total) for part in (user, system, after.iowait - before.iowait, after.steal - before.steal))
    )


def share(part: float, whole: float) -> float:
    """From 0 to 1."""
    return min(1.0, max(0.0, part / whole))


def disk_latency(before: Mapping[bytes, DiskCounters], after: Mapping[bytes, DiskCounters]) -> float:
    """Seconds per request over all disks; 0 if none was completed."""
    pairs = [(before[name], disk) for name, disk in after.items() if name in before]
    requests = sum(new.requests - old.requests for old, new in pairs)
    waited = sum(new.waited - old.waited for old, new in pairs)
    return max(0, waited) / requests / 1000 if requests > 0 else 0.0
