"""Folders in which agents keep what runs there: one for each, in the directory for temporary files unless it is given.

An agent removes its own when it ends. What one leaves that was killed, the next agent of the same user on the same
machine removes, or `shoal cluster start` and `stop`. An agent that lives holds the lock of its cache.

Only folders with the mark are removed: a name alone does not say that we made the folder.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
import time

from shoal.execution.files.trees import remove_quietly

PREFIX = "shoal-agent-"
"""How the name of a folder begins that was made for one agent, and goes with it."""
MARK = "shoal-spool"
"""A file in each folder that we made. A folder without it stays: also an empty one whose agent was killed before it
wrote the mark."""
LOCK = os.path.join("depot", "cache", "lock")
YOUNG_SECONDS = 60.0
"""An agent that starts makes its lock sooner than that, and takes it at once."""
_AT_ONCE = 1.0


def make_spool() -> str:
    """A folder for one agent."""
    path = tempfile.mkdtemp(prefix=PREFIX)
    os.close(os.open(os.path.join(path, MARK), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    return path


def give_spool(path: str) -> None:
    """Makes the folder that the user gives an agent, if it is not there. It is never removed: a mark of ours goes."""
    if os.path.basename(path).startswith(PREFIX) and _is_ours(path):
        os.unlink(os.path.join(path, MARK))
    os.makedirs(path, mode=0o700, exist_ok=True)


def remove_spool(path: str) -> None:
    """The end of an agent; a folder that somebody gave it stays."""
    if os.path.basename(path).startswith(PREFIX) and _is_ours(path):
        remove_quietly(path)


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
            if not entry.name.startswith(PREFIX) or not _is_ours(entry.path):
                continue
            if _is_used(entry.path, time.time() - entry.stat(follow_symlinks=False).st_ctime):
                continue
        except OSError:
            continue  # it is just being removed
        remove_quietly(entry.path)
        removed.append(entry.path)
    return removed


def _is_ours(path: str) -> bool:
    """Whether this user's Shoal made the folder: directory and mark belong to the user, and neither is a link."""
    try:
        folder, mark = os.lstat(path), os.lstat(os.path.join(path, MARK))
    except OSError:
        return False
    is_made = stat.S_ISDIR(folder.st_mode) and stat.S_ISREG(mark.st_mode)
    return is_made and folder.st_uid == mark.st_uid == os.geteuid()


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
