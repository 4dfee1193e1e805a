"""The store of a cluster without Redis: one process holds directory and books in memory, and journals what changes.

`StoreServer` takes requests as bytes and returns answers as bytes; how they travel, and who may send them, is the
business of whoever owns it. It keeps one journal for the directory and one for each run, so that a server which was
killed and is started again on the same directory goes on as if nothing had happened, except that all leases begin anew.
The books of a run are read back when somebody first asks for them. `sync` puts on the disk what was journalled: a
failure of the machine costs what came after the last call.

The other end, `RemoteStore` and `RemoteDirectory`, is in `remote`.
"""

from __future__ import annotations

import fcntl
import os
from hashlib import sha256

import msgspec

from shoal.cluster.stores.journal import (
    FORGOTTEN,
    DirectoryScope,
    RunScope,
    Scope,
    ServedRequest,
    read_request,
    refusal,
)
from shoal.cluster.stores.remote import DIRECTORY, RemoteDirectory, RemoteStore, Transport
from shoal.core.store.interface import LEASE, GoneError
from shoal.core.store.requests import BadRequest
from shoal.errors import InputError, RunError

__all__ = ["RemoteDirectory", "RemoteStore", "StoreServer", "Transport"]

_encode = msgspec.msgpack.Encoder().encode
_DONE = _encode(("", None))
_NOTHING = _encode(("", []))


class StoreServer:
    """All scopes of one cluster. Not for several threads."""

    def __init__(self, directory_path: str, *, lease: float = LEASE) -> None:
        """A server on a directory of its own, which is made if it is not there."""
        self._path = directory_path
        self._lease = lease
        self._lock = _locked(directory_path)
        self._runs: dict[str, RunScope] = {}
        try:
            self._directory = DirectoryScope(DIRECTORY, os.path.join(directory_path, "directory.journal"), lease)
            _replayed(self._directory)
        except RunError:
            os.close(self._lock)
            raise

    def perform(self, request: bytes, now: float) -> bytes:
        """The answer to a request; what cannot be done is answered too. `now` is any clock that does not go back."""
        try:
            asked = read_request(request)
            return self._perform(asked, request, now)
        except (BadRequest, msgspec.MsgspecError, UnicodeDecodeError) as error:
            return _encode(("run", f"the store was asked for something that cannot be done: {error}"))
        except RunError as error:
            return _encode(("gone" if isinstance(error, GoneError) else "run", str(error)))
        except InputError as error:
            return refusal(error)

    def _perform(self, asked: ServedRequest, record: bytes, now: float) -> bytes:
        if asked.scope == DIRECTORY:
            return self._directory.perform(asked, record, now)
        if asked.operation == "leave":
            if asked.scope in self._runs:
                self._runs[asked.scope].leave(asked.client)
            return _DONE
        run = self._run(asked.scope, is_new=asked.operation == "open")
        match asked.operation:
            case "forget":
                if run is not None:
                    del self._runs[asked.scope]
                    run.journal.remove()
                return _DONE
            case "summary" if run is None:
                return _NOTHING
        if run is None:
            raise GoneError(FORGOTTEN)
        return run.perform(asked, record, now)

    def _run(self, name: str, is_new: bool) -> RunScope | None:
        run = self._runs.get(name)
        if run is None:
            path = os.path.join(self._path, f"run-{sha256(name.encode()).hexdigest()[:32]}.journal")
            if is_new or os.path.exists(path):
                run = RunScope(name, path, self._lease)
                _replayed(run)
                self._runs[name] = run
        return run

    def sync(self) -> None:
        """Everything that was answered survives the end of the machine when this returns."""
        for scope in (self._directory, *self._runs.values()):
            scope.journal.sync()

    def close(self) -> None:
        """Nothing is lost without this; another server may be started on the directory after it."""
        for scope in (self._directory, *self._runs.values()):
            scope.journal.close()
        os.close(self._lock)


def _replayed(scope: Scope) -> None:
    try:
        scope.replay()
    except RunError:
        scope.journal.close()
        raise


def _locked(directory: str) -> int:
    """Two servers on one directory would each know half of what happens."""
    path = os.path.join(directory, "lock")
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InputError(f"the store cannot use {directory}: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise InputError(f"another server keeps its store in {directory}", remedy="end it first") from None
    return descriptor
