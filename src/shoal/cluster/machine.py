"""Reads what this machine has and what the system lets this process have of it; `shoal.cluster.offer` judges it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from shoal.cluster.offer import Machine
from shoal.engine.node import free_disk

_GROUPS = "/sys/fs/cgroup"
_GPU_DEVICE = re.compile(r"nvidia[0-9]+")


def this_machine(directory: str, groups: str = _GROUPS, own_groups: str = "/proc/self/cgroup") -> Machine:
    """The facts about this machine; the disk is the one of `directory`."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    folders = _group_folders(groups, own_groups)
    return Machine(
        cores=os.cpu_count() or 1,
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        disk=free_disk(directory),
        gpus=_gpus(),
        affinity=affinity,
        group_cores=min((quota for folder in folders if (quota := _quota(folder)) is not None), default=None),
        group_memory=min((limit for folder in folders if (limit := _memory_limit(folder)) is not None), default=None),
    )


def shares_of_machine(words: Sequence[str], count: int) -> list[str]:
    """Options for each of so many agents on this machine, which divide its cores and its memory among them, beside
    those that somebody has given: who says how much an agent has is right."""
    machine, count = this_machine(os.getcwd()), max(1, count)
    found = []
    if not any(word.startswith("--cores") for word in words):
        found.append(f"--cores={max(1, (machine.affinity or machine.cores) // count)}")
    if not any(word.startswith("--memory") for word in words):
        found.append(f"--memory={max(1, min(machine.memory, machine.group_memory or machine.memory) // count >> 20)}")
    return found


def _group_folders(groups: str, own_groups: str) -> list[str]:
    """Folders of our control groups with all groups above them: each may limit us. Version 1 has one per controller."""
    folders = []
    for line in _read(own_groups).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        roots = [groups] if not controllers else [f"{groups}/{controllers}", f"{groups}/{controllers.split(',')[0]}"]
        for root in roots:
            parts = [part for part in path.split("/") if part not in ("", "..")]
            folders += ["/".join([root, *parts[:depth]]) for depth in range(len(parts) + 1)]
    return folders


def _quota(folder: str) -> float | None:
    """Cores' worth of time a group may use; `max` and -1 stand for no limit."""
    words = _read(f"{folder}/cpu.max").split()
    if not words:
        words = [*_read(f"{folder}/cpu.cfs_quota_us").split(), *_read(f"{folder}/cpu.cfs_period_us").split()]
    if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]) > 0:
        return int(words[0]) / int(words[1])
    return None


def _memory_limit(folder: str) -> int | None:
    for name in ("memory.max", "memory.limit_in_bytes"):
        text = _read(f"{folder}/{name}").strip()
        if text.isdigit():
            return int(text)
    return None


def _gpus() -> int:
    try:
        return sum(1 for name in os.listdir("/dev") if _GPU_DEVICE.fullmatch(name))
    except OSError:
        return 0


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
