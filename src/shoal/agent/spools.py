"""Folders in which agents keep what runs there: one for each, in the directory for temporary files unless it is given.

An agent removes its own when it ends. What one leaves that was killed, the next agent of the same user on the same
machine removes, or `shoal cluster start` and `stop`. An agent that lives holds the lock of its cache.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time

PREFIX = "shoal-agent-"
"""How the name of a folder begins that was made for one agent, and goes with it."""
LOCK = os.path.join("depot", "cache", "lock")
YOUNG_SECONDS = 60.0
"""An agent that starts makes its lock sooner than that, and takes it at once."""
_AT_ONCE = 1.0


def make_spool() -> str:
    """A folder for one agent."""
    return tempfile.mkdtemp(prefix=PREFIX)


def remove_spool(path: str) -> None:
    """The end of an agent; a folder that somebody gave it stays."""
    if os.path.basename(path).startswith(PREFIX):
        shutil.rmtree(path, ignore_errors=True)


def remove_dead() -> list[str]:
    """Removes the folders of this user's agents that do not live any more, and returns them."""
    removed = []
    folder = tempfile.gettempdir()
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return []
    for entry in entries:
        try:
            about = entry.stat(follow_symlinks=False)
            if not entry.name.startswith(PREFIX) or not entry.is_dir(follow_symlinks=False):
                continue
            if about.st_uid != os.geteuid() or _is_used(entry.path, time.time() - about.st_ctime):
                continue
        except OSError:
            continue  # it is just being removed
        shutil.rmtree(entry.path, ignore_errors=True)
        removed.append(entry.path)
    return removed


def _is_used(path: str, age: float) -> bool:
    """Whether an agent lives there, or may be about to."""
    try:
        descriptor = os.open(os.path.join(path, LOCK), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return age < YOUNG_SECONDS
    try:
        if time.time() - os.fstat(descriptor).st_ctime < _AT_ONCE:
            return True
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
