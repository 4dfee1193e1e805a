"""The store server of a cluster without Redis: holds the directory and all runs in memory, with journals on disk.

`StoreServer` takes requests as bytes and returns replies as bytes; transport and authorisation are up to its owner. It
keeps one journal for the directory and one for each run. A server that was killed and is restarted on the same
directory continues with the same state, except that all leases begin anew. A run is read from its journal at the first
request for it. `sync` forces the journals to disk: a failure of the machine loses what came after the last call.

The clients, `RemoteStore` and `RemoteDirectory`, are in `shoal.cluster.stores.remote`.
"""

from __future__ import annotations

import fcntl
import os
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha256
from typing import Annotated, Any, BinaryIO, TypeAlias
from zlib import crc32

import msgspec

from shoal.cluster.stores.remote import DIRECTORY, RemoteDirectory, RemoteStore, Transport
from shoal.core.store.directory import MemoryDirectory, NodeInfo
from shoal.core.store.interface import LEASE, GoneError
from shoal.core.store.memory import MemoryStore
from shoal.core.store.packed_columns import COLUMNS, PIECE, ColumnsSummary, flaw, unpack_work
from shoal.core.store.requests import CHANGING, MOST, BadRequest, carry_out, check
from shoal.errors import InputError, RunError

MARK = b"\xf5SHJ"
_HEADER = struct.Struct("<4sII")


class StoreJournal:
    """A journal file, opened by one process."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise RunError(f"cannot open the journal {path}: {error.strerror}") from None
        self._end = os.fstat(self._descriptor).st_size
        self._is_dirty = False

    def records(self) -> Iterator[bytes]:
        """Yields all records from the beginning and truncates an incomplete one. Call it once, before anything is
        appended."""
        end = 0
        with open(self.path, "rb") as file:
            while (record := _read_frame(file)) is not None:
                end = file.tell()
                yield record
            file.seek(end)
            if _has_whole_frame(file.read()):
                raise RunError(f"the journal {self.path} is damaged at byte {end}; the data after it is not reliable")
        os.ftruncate(self._descriptor, end)
        self._end = end

    def append(self, record: bytes) -> None:
        """Writes a complete record, or raises RunError and leaves the file unchanged."""
        data = _HEADER.pack(MARK, len(record), crc32(record)) + record
        written = 0
        try:
            while written < len(data):
                written += os.write(self._descriptor, data[written:] if written else data)
        except OSError as error:
            os.ftruncate(self._descriptor, self._end)
            raise RunError(f"cannot write the journal {self.path}: {error.strerror}") from None
        self._end += written
        self._is_dirty = True

    def restart(self) -> None:
        """Drops all records."""
        os.ftruncate(self._descriptor, 0)
        self._end = 0

    def sync(self) -> None:
        """Forces everything that was appended to disk."""
        if self._is_dirty:
            self._is_dirty = False
            try:
                os.fdatasync(self._descriptor)
            except OSError as error:
                raise RunError(f"cannot write the journal {self.path}: {error.strerror}") from None

    def close(self) -> None:
        os.close(self._descriptor)

    def remove(self) -> None:
        """Closes and removes the file."""
        os.unlink(self.path)
        self.close()


def _read_frame(file: BinaryIO) -> bytes | None:
    """Returns the next record; None if there is no complete one."""
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return None
    mark, length, checksum = _HEADER.unpack(header)
    if mark != MARK:
        return None
    record = file.read(length)
    return record if len(record) == length and crc32(record) == checksum else None


def _has_whole_frame(data: bytes) -> bool:
    at = data.find(MARK)
    while at >= 0:
        if at + _HEADER.size <= len(data):
            _, length, checksum = _HEADER.unpack_from(data, at)
            record = data[at + _HEADER.size : at + _HEADER.size + length]
            if len(record) == length and crc32(record) == checksum:
                return True
        at = data.find(MARK, at + 1)
    return False


FORMAT = 2
MOST_NOTED = 4096
"""Maximum bytes of a node's status."""
FORGOTTEN = "the store no longer has this run"

_DIRECTORY: dict[str, Any] = {
    "join": tuple[NodeInfo, int],
    "update": tuple[int, NodeInfo],
    "remove": tuple[int, str | None],
    "submit": tuple[str, bytes],
    "begin": tuple[str],
    "end": tuple[str, str],
    "forget": tuple[str],
    "renew": tuple[int, Annotated[bytes, msgspec.Meta(max_length=MOST_NOTED)], str],
    "notes": tuple[()],
    "nodes": tuple[()],
    "expired": tuple[()],
    "runs": tuple[()],
    "leave": tuple[()],
}
"""By operation of the directory, the types of its arguments."""
_LOOKING = ("renew", "notes", "nodes", "expired", "runs", "leave")
_PARTS = ("put_piece", "get_piece", "get_column")
"""Operations of a run that read data beside its store."""
_OTHER_LOOKS = ("renew", "expired", "log", "about", "standings")

_encode_record = msgspec.msgpack.Encoder().encode
_arguments = msgspec.msgpack.Decoder(tuple[list[int], list[bytes]])


class ServedRequest(msgspec.Struct, array_like=True, frozen=True):
    """A request; `shoal.cluster.stores.remote` describes the fields."""

    client: Annotated[str, msgspec.Meta(max_length=64)]
    sequence: Annotated[int, msgspec.Meta(ge=0)]
    scope: Annotated[str, msgspec.Meta(max_length=1000)]
    operation: str
    arguments: msgspec.Raw


_request = msgspec.msgpack.Decoder(ServedRequest)
read_request = _request.decode

Action: TypeAlias = Callable[[float], Any]
"""Executes a prepared request, given the time, and returns the result."""


class Scope(ABC):
    """Executes the requests to one run or the directory, each once, and restores the state from the journal."""

    def __init__(self, name: str, path: str) -> None:
        self.name = name
        self.journal = StoreJournal(path)
        self._title = _encode_record(("shoal store", FORMAT, name))
        self._replies: dict[str, tuple[int, bytes]] = {}
        """By client: its last request that changed something, and the reply."""
        self._has_leases = False
        """Whether the leases were restarted since the start of the server."""

    def replay(self) -> None:
        """Executes the requests in the journal again."""
        try:
            is_empty = True
            for record in self.journal.records():
                if is_empty and record != self._title:
                    raise RunError(f"the journal {self.journal.path} is of another version or another run")
                if not is_empty:
                    request = read_request(record)
                    self._carry_out(request, self.prepare(request)[1], 0.0)
                is_empty = False
            if is_empty:
                self.journal.append(self._title)
        except (BadRequest, InputError, msgspec.MsgspecError) as error:
            raise RunError(f"the journal {self.journal.path} cannot be decoded: {error}") from None

    def perform(self, request: ServedRequest, record: bytes, now: float) -> bytes:
        """Executes a request; `record` is the form in which it is written to the journal. Returns the reply."""
        if request.sequence:
            last, answer = self._replies.get(request.client, (0, b""))
            if request.sequence == last:
                return answer
            if request.sequence < last:
                raise BadRequest("it is older than other requests of the same client")
        is_recorded, action = self.prepare(request)
        if not self._has_leases:
            self.start_leases(now)
            self._has_leases = True
        if is_recorded:
            self.record(request, record)
        return self._carry_out(request, action, now)

    def record(self, request: ServedRequest, record: bytes) -> None:
        """Writes a request to the journal."""
        self.journal.append(record)

    def _carry_out(self, request: ServedRequest, action: Action, now: float) -> bytes:
        try:
            answer = _encode_record(("", action(now)))
        except InputError as error:
            answer = refusal(error)
        if request.sequence:
            self._replies[request.client] = (request.sequence, answer)
        return answer

    def leave(self, client: str) -> None:
        """A client sends no further requests: drops its last reply."""
        self._replies.pop(client, None)

    @abstractmethod
    def prepare(self, request: ServedRequest) -> tuple[bool, Action]:
        """Returns whether the request must be in the journal, and how to execute it; raises BadRequest, InputError or
        RunError."""

    @abstractmethod
    def start_leases(self, now: float) -> None:
        """Restarts the leases of all nodes."""


def refusal(error: InputError) -> bytes:
    return _encode_record(("input", error.message, error.remedy or ""))


def _must_count(request: ServedRequest, changes: bool) -> None:
    if changes != (request.sequence > 0):
        raise BadRequest(f"{request.operation} with the sequence {request.sequence}")


class DirectoryScope(Scope):
    """The directory of the cluster."""

    def __init__(self, name: str, path: str, lease: float) -> None:
        super().__init__(name, path)
        self.directory = MemoryDirectory(lease=lease)

    def prepare(self, request: ServedRequest) -> tuple[bool, Action]:
        """Prepares an operation of the directory."""
        operation = request.operation
        if operation not in _DIRECTORY:
            raise BadRequest(f"there is no operation {operation!r}")
        changes = operation not in _LOOKING
        _must_count(request, changes)
        given = msgspec.msgpack.decode(request.arguments, type=_DIRECTORY[operation])
        if operation == "leave":
            return False, lambda now: self.leave(request.client)
        method = getattr(self.directory, operation)
        if operation in ("join", "renew", "expired"):  # these operations take the time
            return changes, lambda now: method(*given[:1], now, *given[1:])
        return changes, lambda now: method(*given)

    def start_leases(self, now: float) -> None:
        """Restarts the leases of all nodes."""
        self.directory.start_leases(now)


class RunScope(Scope):
    """The state of a run: its columns while it is being created, then its store."""

    def __init__(self, name: str, path: str, lease: float) -> None:
        super().__init__(name, path)
        self.store: MemoryStore | None = None
        self._lease = lease
        self._bringer = ""
        self._columns: dict[str, bytearray] = {}
        self._summary = b""

    def record(self, request: ServedRequest, record: bytes) -> None:
        """Writes a request to the journal. A client that creates a run drops what another client has left
        incomplete."""
        if request.operation == "open":
            self.journal.restart()
            self.journal.append(self._title)
        super().record(request, record)

    def start_leases(self, now: float) -> None:
        """Restarts the leases of all known nodes."""
        if self.store is not None:
            self.store.start_leases(now)

    def prepare(self, request: ServedRequest) -> tuple[bool, Action]:
        """Prepares an operation; all have a list of numbers and one of texts."""
        given, texts = _arguments.decode(request.arguments)
        if request.operation in ("open", "put_column", "bring"):
            _must_count(request, True)
            return True, self._prepare_bringing(request, given, texts)
        if request.operation == "summary":
            return False, lambda now: [self._summary] if self.store is not None else []
        if self.store is None:
            raise GoneError(FORGOTTEN)
        if request.operation in _PARTS:
            return self._prepare_part(self.store, request, given, texts)
        _must_count(request, request.operation in CHANGING)
        if request.operation in _OTHER_LOOKS:
            return self._prepare_look(self.store, request, given)
        check(self.store, request.operation, given, texts)
        action = partial(carry_out, self.store, request.operation, given, texts)
        return request.operation in CHANGING, lambda now: action()

    # ---- creation ------------------------------------------------------------------------------------------------

    def _prepare_bringing(self, request: ServedRequest, given: list[int], texts: list[bytes]) -> Action:
        if self.store is not None:
            raise InputError(
                f"the store already has a run {self.name!r}", remedy="choose another name or forget that one"
            )
        if request.operation == "open":
            return lambda now: self._open(request.client)
        if request.client != self._bringer:
            raise InputError(f"another client is submitting a run {self.name!r}", remedy="choose another name")
        if request.operation == "bring":
            return self._prepare_bring(given, texts)
        if len(given) != 1 or len(texts) != 2:
            raise BadRequest("it is not a part of a column")
        name, column = texts[0].decode("utf-8", "replace"), texts[1]
        if name not in COLUMNS or given[0] != len(self._columns.get(name, b"")):
            raise BadRequest("it is not a part of a column")
        return lambda now: self._extend(name, column)

    def _open(self, client: str) -> None:
        self._bringer = client
        self._columns.clear()

    def _extend(self, name: str, column: bytes) -> None:
        self._columns.setdefault(name, bytearray()).extend(column)

    def _prepare_bring(self, given: list[int], texts: list[bytes]) -> Action:
        if len(given) != 2 or len(texts) != 1:
            raise BadRequest("invalid arguments of bring")
        nodes, shared_files = given[0], bool(given[1])
        summary = msgspec.msgpack.decode(texts[0], type=ColumnsSummary)
        try:
            work = unpack_work(summary, {name: bytes(column) for name, column in self._columns.items()})
        except ValueError as error:
            raise BadRequest(f"the columns of the run cannot be read: {error}") from None
        if (what := flaw(work)) is not None or summary.tasks != len(work) or (nodes < 1 and not shared_files):
            raise BadRequest(f"invalid run: {what or 'its columns are incomplete'}")
        store = MemoryStore(work, nodes, shared_files=shared_files, lease=self._lease)
        if store.has_files != summary.has_files:
            raise BadRequest("invalid run: its files do not match its summary")
        store.begin()
        return lambda now: self._install(store, texts[0])

    def _install(self, store: MemoryStore, summary: bytes) -> None:
        self.store, self._summary = store, summary

    # ---- data beside the store -----------------------------------------------------------------------------------

    def _prepare_part(
        self, store: MemoryStore, request: ServedRequest, given: list[int], texts: list[bytes]
    ) -> tuple[bool, Action]:
        """Prepares writing a part of large data at an offset."""
        changes = request.operation == "put_piece"
        _must_count(request, changes)
        if len(given) != 1 or given[0] < 0 or len(texts) != 1 + changes:
            raise BadRequest(f"invalid arguments of {request.operation}")
        at, name = given[0], texts[0].decode("utf-8", "replace")
        if changes:
            before = (store.get_piece(name) or b"") if at else b""
            if at != len(before):
                raise BadRequest("it is not a part of this piece")
            return True, lambda now: store.put_piece(name, before + texts[1])
        found = self._columns.get(name) if request.operation == "get_column" else store.get_piece(name)
        return False, lambda now: [] if found is None else [bytes(found[at : at + PIECE])]

    def _prepare_look(self, store: MemoryStore, request: ServedRequest, given: list[int]) -> tuple[bool, Action]:
        numbers = {"renew": 1, "log": 2, "about": 1}.get(request.operation, 0)
        if len(given) != numbers or not all(0 <= number < MOST for number in given):
            raise BadRequest(f"invalid arguments of {request.operation}")
        match request.operation:
            case "renew":
                node = given[0]
                return not store.has_lease(node) and node not in store.lost, lambda now: [int(store.renew(node, now))]
            case "expired":
                return False, store.expired
            case "about":
                about = store.about_of(given[0])
                return False, lambda now: [] if about is None else [about]
            case "log":
                return False, lambda now: store.log(given[0], given[1])
        return False, lambda now: [bytes(store.standing)]


__all__ = ["RemoteDirectory", "RemoteStore", "StoreServer", "Transport"]

_encode = msgspec.msgpack.Encoder().encode
_DONE = _encode(("", None))
_NOTHING = _encode(("", []))


class StoreServer:
    """All runs and the directory of one cluster. Not thread-safe."""

    def __init__(self, directory_path: str, *, lease: float = LEASE) -> None:
        """Opens a server on a directory of its own, which is created if necessary."""
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
        """Executes a request and returns the reply; errors are replies, too. `now` is any monotonic clock."""
        try:
            asked = read_request(request)
            return self._perform(asked, request, now)
        except (BadRequest, msgspec.MsgspecError, UnicodeDecodeError) as error:
            return _encode(("run", f"invalid request to the store: {error}"))
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
        """Forces everything that was confirmed to disk."""
        for scope in (self._directory, *self._runs.values()):
            scope.journal.sync()

    def close(self) -> None:
        """Closes the files; afterwards another server may be started on the directory. Without it, nothing is lost."""
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
    """Locks the directory: two servers on it would each miss the other's changes."""
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
        raise InputError(f"another server uses the store in {directory}", remedy="end it first") from None
    return descriptor
