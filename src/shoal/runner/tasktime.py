"""Processor time of all tasks that were started from here, of those that have ended and those that run.

A process counts the time of children it has waited for, so what has ended is known from those who start tasks (the
roots), and only what still runs is walked over. The roots' own time is not counted. What others on the machine use is
so told apart from what tasks do. Without the kernel's list of children the answer is None.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

CHUNK = 1 << 12
MOST = 2000
"""Processes that are looked at; with more of them what is found is too little, and the answer None."""


def task_seconds(roots: Iterable[int], proc: str = "/proc") -> float | None:
    """Seconds of processor time so far; it may fall a little when a process ends that nobody waits for."""
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
    """Ticks as user and for the system, of the process and of the children it has waited for; None: it is gone."""
    text = _content(f"{proc}/{pid}/stat")
    words = text.rpartition(b")")[2].split()[11:15]
    return [int(word) for word in words] if len(words) == 4 else None


def _children(proc: str, pid: int) -> list[int] | None:
    """Of its first thread; None if the kernel keeps no such list, or the process is gone."""
    path = f"{proc}/{pid}/task/{pid}/children"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        text = chunk = os.read(descriptor, CHUNK)
        while chunk:
            chunk = os.read(descriptor, CHUNK)
            text += chunk
    except OSError:
        return []
    finally:
        os.close(descriptor)
    return [int(word) for word in text.split()]


def _content(path: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, CHUNK)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
