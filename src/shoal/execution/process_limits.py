"""What this process may use of the machine: open files (raising and passing on that limit), cores, memory, disk.

A process with many connections raises its soft limit to the hard limit. The programs that it starts get the original
soft limit: some programs allocate a table of that size, or close all descriptors up to it.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

MOST_RESERVED = 64
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
"""Error numbers: the limit of this process, or of the machine, is reached."""

_given: int | None = None
"""The soft limit before it was raised; None if it was not raised."""


def raise_limit() -> int:
    """Raises the soft limit to the hard limit; returns the original soft limit."""
    global _given
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _given is None and soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            return soft  # some containers do not permit it: the limit stays as it is
        _given = soft
    return soft if _given is None else _given


@contextmanager
def given_limit() -> Iterator[None]:
    """Restores the original soft limit while programs are being started.

    Descriptors above the limit stay open. Other threads may fail to open new ones meanwhile, so the block must be
    short.
    """
    if _given is None:
        yield
        return
    raised = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(_given, raised[1]), raised[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, raised)


def is_above_given_limit(descriptor: int) -> bool:
    """Returns whether starting a program with the original limit fails because this descriptor has to be duplicated."""
    return _given is not None and descriptor >= _given


def with_given_limit(words: Sequence[str]) -> list[str]:
    """Returns a command that first sets the original soft limit itself, then executes `words`."""
    return ["/bin/sh", "-c", 'ulimit -S -n "$1" && shift && exec "$@"', "shoal", str(_given), *words]


def limit() -> int:
    """Returns the current soft limit."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def most_left(descriptor: int) -> int:
    """Returns an upper bound of the number of free descriptors, found by duplicating `descriptor`.

    The kernel returns the lowest free number, so all numbers below it are in use.
    """
    try:
        lowest = os.dup(descriptor)
    except OSError:
        return 0
    os.close(lowest)
    return limit() - lowest


def reserve() -> int:
    """Returns the number of descriptors reserved for files and programs; below it, no new connections are accepted."""
    return min(MOST_RESERVED, limit() // 8)


def is_scarce(descriptor: int) -> bool:
    """Returns whether new connections must wait."""
    return most_left(descriptor) < reserve()


def shortage() -> str:
    """Returns the warning for the user."""
    return (
        f"almost no file descriptors are left (limit: {limit()}): new connections wait, existing ones continue; "
        "a higher hard limit ('ulimit -Hn') permits more"
    )


def available_cores() -> int:
    """Returns the number of cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def available_memory() -> int:
    """Returns the machine's memory in bytes, or the limit of our control group if that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path) as file:
                limit = int(file.read())
        except (OSError, ValueError):
            continue
        total = min(total, limit)
    return total


def free_disk(directory: str) -> int:
    """Returns the bytes that this user may still write below a directory."""
    room = os.statvfs(directory)
    return room.f_bavail * room.f_frsize
