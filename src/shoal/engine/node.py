"""What this machine offers: found out, or declared on the command line."""

from __future__ import annotations

import os
from collections.abc import Mapping

from shoal.model.resources import FRACTION, Resources, parse_amount


def this_node(directory: str, jobs: float | None = None, declared: Mapping[str, str] | None = None) -> Resources:
    """The node's resources; `jobs` stands for its cores, `declared` adds to or replaces what was found."""
    amounts = {
        "cores": parse_amount(jobs, "--jobs") if jobs is not None else available_cores() * FRACTION,
        "memory": available_memory(),
        "disk": free_disk(directory),
    }
    amounts.update(dict(Resources.parse(dict(declared or {})).amounts))
    return Resources.of(amounts)


def available_cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def available_memory() -> int:
    """Bytes of memory: what the machine has, or the limit of our control group if that is less."""
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
    room = os.statvfs(directory)
    return room.f_bavail * room.f_frsize
