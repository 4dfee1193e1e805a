"""The `.shoal` directory beside a workflow: where its ledger, output and lock are, and who may run.

Each workflow file has a directory of its own in it. The lock is held by the process of the run and by nobody it starts,
so it is free the moment that process is gone, however it went.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import threading
import time

import msgspec

from shoal.errors import InputError

DIRECTORY = ".shoal"
_LOCK_TRIES = 4
_LOCK_PAUSE = 0.01


class LockHolder(msgspec.Struct, frozen=True):
    """Who holds the lock of a workflow."""

    pid: int
    host: str
    run: str
    since: float


class Workspace:
    """Paths of one workflow's own directory."""

    def __init__(self, workflow: str, base: str | None = None, name: str | None = None) -> None:
        self.workflow = os.path.abspath(workflow)
        self.base = os.path.dirname(self.workflow) if base is None else base
        """The directory tasks run in."""
        self.directory = os.path.join(self.base, DIRECTORY, name or os.path.basename(self.workflow))
        self.ledger = os.path.join(self.directory, "ledger")
        self.ballast = os.path.join(self.directory, "ballast")
        self.output = os.path.join(self.directory, "output")
        self.values = os.path.join(self.directory, "values")
        self.running = os.path.join(self.directory, "running")
        self.processes = os.path.join(self.directory, "processes")
        self.requests = os.path.join(self.directory, "requests")
        self.sizes = os.path.join(self.directory, "sizes")
        self.attempts = os.path.join(self.directory, "attempts")
        """What attempts under way began with; there while a run goes on, or after it was killed."""
        self.aside = os.path.join(self.directory, "aside")
        self.partial = os.path.join(self.directory, "partial")
        """What attempts that failed have half made."""
        self.interrupted = os.path.join(self.directory, "interrupted")
        """What stood under the names of outputs after a kill."""
        self.replaced = os.path.join(self.directory, "replaced")
        self.lock = os.path.join(self.directory, "lock")
        self.brought = os.path.join(self.directory, "brought")
        """There while the run is on a cluster and not all of it is known here."""
        self.brought_plan = os.path.join(self.directory, "brought.plan")
        self.farmed = os.path.join(self.directory, "farmed")
        """There while tasks of a net may run on a cluster."""
        self.given_up = os.path.join(self.directory, "given-up")
        """Notes of runs that a cluster may still have although they were given up."""
        self._lock_descriptor = -1

    def make(self) -> None:
        """Creates the directories; says in one sentence if the workflow's directory cannot be written."""
        try:
            for path in (self.directory, self.running, self.requests):
                os.makedirs(path, exist_ok=True)
        except OSError as error:
            remedy = (
                "free some space" if error.errno == errno.ENOSPC else "make it writable or copy the workflow elsewhere"
            )
            raise InputError(
                f"cannot write in the workflow's directory {self.base!r}: {error.strerror}", remedy=remedy
            ) from None

    def acquire(self, holder: LockHolder, *, attaching: bool = False, ending: bool = False) -> None:
        """Takes the lock or says who holds it. Only who is `attaching` gets it while a run is on a cluster, and only
        who is `ending` them while tasks of a net may run there."""
        try:
            descriptor = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise InputError(
                f"cannot write in the workflow's directory {self.base!r}: {error.strerror}",
                remedy="make it writable or copy the workflow elsewhere",
            ) from None
        if not _lock(descriptor):
            os.close(descriptor)
            other = self.holder()
            who = f"process {other.pid} on {other.host}" if other else "another process"
            raise InputError(
                f"{os.path.basename(self.workflow)} is being run by {who}",
                remedy="wait for it, watch it with 'shoal status' or end it with 'shoal cancel'",
            )
        if not attaching and os.path.exists(self.brought):
            os.close(descriptor)
            from shoal.ledger.cluster_notes import cluster_refusal  # it imports this module

            raise cluster_refusal(self)
        if not ending and os.path.exists(self.farmed):
            os.close(descriptor)
            from shoal.ledger.cluster_notes import net_refusal as farmed_refusal  # it imports this module

            raise farmed_refusal(self)
        self._expect_knocks()
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, msgspec.json.encode(holder), 0)
        self._lock_descriptor = descriptor

    def _expect_knocks(self) -> None:
        """Whoever sees who holds the lock may ask it something, with a signal that would end a process by default.
        Who listens to it already, as the run of a net does, goes on doing so.

        What was asked of an earlier run is not meant for this one.
        """
        unheard = signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
        if unheard and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGUSR1, _take_no_notice)
        try:
            for name in os.listdir(self.requests):
                os.unlink(os.path.join(self.requests, name))
        except OSError:
            pass

    def release(self) -> None:
        if self._lock_descriptor >= 0:
            os.close(self._lock_descriptor)
            self._lock_descriptor = -1

    def holder(self) -> LockHolder | None:
        """Who runs the workflow at this moment, or None; never waits."""
        try:
            descriptor = os.open(self.lock, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
        except OSError:
            try:
                return msgspec.json.decode(os.pread(descriptor, 4096, 0), type=LockHolder)
            except msgspec.MsgspecError:
                return LockHolder(0, "this machine", "", 0.0)
        finally:
            os.close(descriptor)


def _take_no_notice(number: int, frame: object) -> None:
    """A handler in place of SIG_IGN, which programs that are started would inherit."""


def _lock(descriptor: int) -> bool:
    """Takes the lock, if it is free; one who only looks who has it keeps it for a moment, so it is tried again."""
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            time.sleep(_LOCK_PAUSE)
    return False


def write_durably(path: str, data: bytes) -> None:
    """Replaces a note as a whole; whoever loses power right after finds it."""
    fresh = f"{path}.new"
    with open(fresh, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
    sync_directory(os.path.dirname(path))


def sync_directory(path: str) -> None:
    """Names that were made or replaced there are still so after a loss of power."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
