"""The `.shoal` directory beside a workflow: paths of its ledger, output and lock, and the lock that allows one run at a
time.

Each workflow file has its own directory in it. The process of the run holds the lock and its children do not inherit
it. So the kernel releases it when that process ends, for any reason.
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
    """The process that holds the lock of a workflow."""

    pid: int
    host: str
    run: str
    since: float


class Workspace:
    """Paths of one workflow's own directory, and its lock."""

    def __init__(self, workflow: str, base: str | None = None, name: str | None = None) -> None:
        self.workflow = os.path.abspath(workflow)
        self.base = os.path.dirname(self.workflow) if base is None else base
        """The working directory of tasks."""
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
        """The attempt journal; exists while a run is in progress, or after it was killed."""
        self.aside = os.path.join(self.directory, "aside")
        self.partial = os.path.join(self.directory, "partial")
        """Incomplete outputs of failed attempts."""
        self.interrupted = os.path.join(self.directory, "interrupted")
        """Existing outputs of interrupted attempts, moved here after a run was killed."""
        self.replaced = os.path.join(self.directory, "replaced")
        self.lock = os.path.join(self.directory, "lock")
        self.submission_note = os.path.join(self.directory, "brought")
        """Exists while the run is on a cluster and not all of its results are recorded here."""
        self.submitted_plan = os.path.join(self.directory, "brought.plan")
        self.net_note = os.path.join(self.directory, "farmed")
        """Exists while tasks of a net may run on a cluster."""
        self.given_up = os.path.join(self.directory, "given-up")
        """Notes of abandoned runs that a cluster may still have."""
        self._lock_descriptor = -1

    def make(self) -> None:
        """Creates the directories; raises InputError if the workflow's directory is not writable."""
        try:
            for path in (self.directory, self.running, self.requests):
                os.makedirs(path, exist_ok=True)
        except OSError as error:
            remedy = (
                "free some space" if error.errno == errno.ENOSPC else "make it writable or copy the workflow elsewhere"
            )
            raise InputError(
                f"cannot write to the workflow's directory {self.base!r}: {error.strerror}", remedy=remedy
            ) from None

    def acquire(self, holder: LockHolder, *, attaching: bool = False, ending: bool = False) -> None:
        """Takes the lock, or raises InputError with the process that holds it. While a run is on a cluster, only a
        command that is `attaching` gets the lock. While tasks of a net may run there, only one that is `ending` them
        does."""
        try:
            descriptor = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise InputError(
                f"cannot write to the workflow's directory {self.base!r}: {error.strerror}",
                remedy="make it writable or copy the workflow elsewhere",
            ) from None
        if not _lock(descriptor):
            os.close(descriptor)
            other = self.holder()
            who = f"process {other.pid} on {other.host}" if other else "another process"
            raise InputError(
                f"{os.path.basename(self.workflow)} is being run by {who}",
                remedy="wait for it, watch it with 'shoal status', or end it with 'shoal cancel'",
            )
        if not attaching and os.path.exists(self.submission_note):
            os.close(descriptor)
            from shoal.ledger.cluster_notes import cluster_refusal  # here because of the import cycle

            raise cluster_refusal(self)
        if not ending and os.path.exists(self.net_note):
            os.close(descriptor)
            from shoal.ledger.cluster_notes import net_refusal  # here because of the import cycle

            raise net_refusal(self)
        self._prepare_for_requests()
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, msgspec.json.encode(holder), 0)
        self._lock_descriptor = descriptor

    def _prepare_for_requests(self) -> None:
        """Prepares for requests of other processes. They signal the lock holder with SIGUSR1, which would kill a
        process without a handler. An existing handler, as that of a net's run, is kept.

        Requests to an earlier run are deleted.
        """
        unheard = signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
        if unheard and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGUSR1, _ignore_signal)
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
        """The process that runs the workflow now, or None; never blocks."""
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


def _ignore_signal(number: int, frame: object) -> None:
    """A handler that does nothing. SIG_IGN would be inherited by started programs."""


def _lock(descriptor: int) -> bool:
    """Takes the lock if it is free. It retries, because `holder` takes the lock for a moment, too."""
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            time.sleep(_LOCK_PAUSE)
    return False


def write_durably(path: str, data: bytes) -> None:
    """Replaces a file atomically and durably: it survives a power failure."""
    fresh = f"{path}.new"
    with open(fresh, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
    sync_directory(os.path.dirname(path))


def sync_directory(path: str) -> None:
    """Makes created and renamed directory entries durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
