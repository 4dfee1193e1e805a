"""Control groups that a launcher made and could not remove, because it was killed.

The launcher writes the path of its groups into a file beside the slots before it makes them, and takes the file away
with the groups. Whoever finds the file ends what is in the groups and removes them. Making groups and starting tasks in
them is the compiled launcher's business (`native/seat.c`); the one in Python does without.
"""

from __future__ import annotations

import os
import signal
import time

RECORD = "cgroup"
_NAME = "shoal-"
_PATIENCE = 5.0


def clear_groups(running: str) -> None:
    """Ends what is in the groups that the file in this directory names, and removes them."""
    record = os.path.join(running, RECORD)
    try:
        with open(record) as file:
            base = file.read()
    except OSError:
        return
    # Only ever a group of ours, whatever the file says.
    if os.path.basename(base).startswith(_NAME) and os.path.exists(os.path.join(base, "cgroup.procs")):
        deadline = time.monotonic() + _PATIENCE
        for group in (*_groups_below(base), base):
            _end(group, deadline)
    if not os.path.exists(base):
        os.unlink(record)


def _groups_below(base: str) -> list[str]:
    try:
        return [entry.path for entry in os.scandir(base) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _end(group: str, deadline: float) -> None:
    """A group can be removed once its last process is gone, which takes those a moment that had much memory."""
    while time.monotonic() < deadline:
        for pid in members(group):
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        try:
            os.rmdir(group)
            return
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.002)


def members(group: str) -> list[int]:
    """Pids in a group, without our own."""
    try:
        with open(os.path.join(group, "cgroup.procs")) as file:
            return [pid for pid in map(int, file.read().split()) if pid != os.getpid()]
    except OSError:
        return []
