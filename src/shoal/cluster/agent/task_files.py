"""Files of a run on a node without a shared file system: fetches inputs before a task starts, keeps outputs afterwards.

Every attempt has a directory of its own. Inputs are linked into it from the node's cache. Outputs of a successful
attempt are moved to the cache, and only then does the store record that they are here. The client has uploaded the
workflow's input files to the head.

A version of a file is an object in the cache. Its name contains run, file and attempt, so a file that was made again is
another object. The store records the version (`FileVersion`) with the result to which it belongs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

import msgspec

from shoal.cluster.agent.run_description import TaskSpec
from shoal.core.quantities import show_bytes
from shoal.core.scheduler_messages import Cramped
from shoal.core.store.interface import Store
from shoal.core.work import Work
from shoal.data.cache import Cache
from shoal.data.fetch import Fetched, Fetcher, FetchFailureCause
from shoal.data.shelf import AbsentError
from shoal.data.transfer_messages import DataGrant
from shoal.errors import ShoalError
from shoal.execution.files.trees import remove_quietly

PERIOD = 0.5
LEAST = 1 << 20
"""Bytes; a smaller transfer measures the latency of a request rather than the bandwidth."""
FRESH = 0.3
"""Weight of a new measurement against all earlier ones."""


class ArrivalRate:
    """Measures the bandwidth while transfers are in progress."""

    def __init__(self) -> None:
        self.rate: float | None = None
        """Bytes per second; None: not enough data has arrived yet."""
        self._since: float | None = None
        self._bytes = 0

    def begins(self, now: float) -> None:
        """A transfer begins."""
        if self._since is None:
            self._since = now

    def arrived(self, now: float, size: int, under_way: int) -> None:
        """`size` bytes have arrived; `under_way` transfers are still in progress."""
        if self._since is None:
            return
        self._bytes += size
        seconds = now - self._since
        if under_way and seconds < PERIOD:
            return
        if self._bytes >= LEAST and seconds > 0:
            seen = self._bytes / seconds
            self.rate = seen if self.rate is None else (1 - FRESH) * self.rate + FRESH * seen
        self._since = now if under_way else None
        self._bytes = 0


class ReadCounters:
    """Counts the reads of one run on one node."""

    def __init__(self) -> None:
        self.fetched = 0
        """Number of files that came from other nodes."""
        self.hits = 0
        self.hit_bytes = 0
        self._new: set[str] = set()

    def arrived(self, name: str) -> None:
        """A file has arrived from another node or from the head."""
        self.fetched += 1
        self._new.add(name)

    def read(self, name: str, size: int) -> None:
        """A task that is about to start reads the file."""
        if name in self._new:
            self._new.discard(name)
        else:
            self.hits += 1
            self.hit_bytes += size


SOURCE = 0
"""The attempt number of files that the client has uploaded."""


class FileVersion(msgspec.Struct, frozen=True, array_like=True):
    """A version of a file."""

    attempt: int
    size: int
    checksum: int


_decode = msgspec.msgpack.Decoder(FileVersion).decode
decode_sources = msgspec.msgpack.Decoder(dict[int, FileVersion]).decode
encode_made = msgspec.msgpack.Encoder().encode
SOURCES = "sources"
"""Name of the piece of a run that lists the client's input files, with a version for each."""


_NAMED = 3
"""Maximum number of files that a message names."""


def no_room_sentence(files: Sequence[str], cramped: Cramped) -> str:
    """Returns the message about a task whose inputs fit on no node."""
    named = ", ".join(repr(file) for file in files[:_NAMED])
    more = f" and {len(files) - _NAMED} more" if len(files) > _NAMED else ""
    return (
        f"its inputs fit on the disk of no node: {named}{more} take {show_bytes(cramped.need)}, and the largest "
        f"room that a node has for them is {show_bytes(max(0, cramped.most))}"
    )


def checksums_of(found: Sequence[tuple[int, int, bytes]]) -> tuple[int, ...]:
    """Returns the checksum of each file that `TaskFiles.collect` has kept."""
    return tuple(_decode(about).checksum for _, _, about in found)


def object_name(run: str, file: int, attempt: int) -> str:
    return f"{run}/{file}/{attempt}"


class NoRoomError(msgspec.Struct, frozen=True):
    """The inputs of a task do not fit on this node."""

    need: int
    """Bytes of all inputs."""
    room: int
    """Maximum bytes available for them when no other task runs. If less than `need`, they never fit."""


class _Wanted(msgspec.Struct):
    """A task whose inputs are in transfer."""

    attempt: int
    missing: dict[str, int]
    """Objects that have not arrived, with their files."""
    pinned: list[str]
    need: int
    """Bytes of all inputs."""


class NodeStorage(msgspec.Struct, frozen=True):
    """Where a node keeps the files of tasks, and how it gets more."""

    cache: Cache
    fetcher: Fetcher
    sandboxes: str
    """The directory that holds a working directory for each attempt."""


class FileOrigins(msgspec.Struct, frozen=True):
    """Where files are fetched from."""

    grant_of: Callable[[int], DataGrant | None]
    """How to read the files of a node; None: the node is unknown."""
    sources: Mapping[int, FileVersion]
    """Files that no task makes: the head node has them."""
    origin: Callable[[], DataGrant | None]
    """How to read the files of the head node."""


class TaskFiles:
    """The files of one run on one node."""

    def __init__(
        self,
        run: str,
        here: int,
        work: Work,
        store: Store,
        storage: NodeStorage,
        origins: FileOrigins,
        clock: Callable[[], float],
    ) -> None:
        self._run, self._here, self._work, self._store = run, here, work, store
        self._cache, self._fetcher = storage.cache, storage.fetcher
        self._sandboxes = storage.sandboxes
        self._grant_of, self._sources, self._origin = origins.grant_of, origins.sources, origins.origin
        self._wanted: dict[int, _Wanted] = {}
        """Waiting tasks, by number."""
        self._waiting: dict[str, list[int]] = {}
        """By object: tasks that wait for it; empty if it is fetched in advance."""
        self._files: dict[str, int] = {}
        """By object in transfer: its file."""
        self._coming: dict[str, int] = {}
        """By object in transfer: its size."""
        self._pins: dict[int, list[str]] = {}
        self._here_already: dict[int, str] = {}
        """By file: its object, if that was found here. As long as it is here, no node makes the file anew."""
        self._clock = clock
        self.inflow = ArrivalRate()
        self.reads = ReadCounters()

    # ---- inputs of a task
    # ------------------------------------------------------------------------------------------

    def want(self, task: int, attempt: int) -> bool | NoRoomError | None:
        """Returns True if all inputs of a task are here, False if some are in transfer, None if a file no longer
        exists."""
        missing: dict[str, int] = {}
        lacking: dict[str, FileVersion] = {}
        pinned: list[str] = []
        for file in self._work.inputs_of(task):
            name = self._here_already.get(file)
            if name is not None and self._cache.pin(name):  # no request to the store is necessary
                pinned.append(name)
                continue
            made = self._version(file)
            if made is None:
                self._unpin(pinned)
                return None
            name = object_name(self._run, file, made.attempt)
            if self._cache.pin(name):
                pinned.append(name)
                self._here_already[file] = name
            else:
                missing[name], lacking[name] = file, made
        if not missing:
            self._inputs_ready(task, pinned)
            return True
        absent = sum(made.size for made in lacking.values())
        need = absent + sum(self._cache.size(name) for name in pinned)
        most, now = self._cache.room_for({*pinned, *missing}, absent, self._coming)
        if absent and need > now:
            self._unpin(pinned)
            return NoRoomError(need, int(min(most, need)))
        self._wanted[task] = _Wanted(attempt, missing, pinned, need)
        for name, file in missing.items():
            self._waiting.setdefault(name, []).append(task)
            self._fetch(name, file, lacking[name])
        return False

    def fetch_ahead(self, task: int) -> None:
        """Fetches the inputs of a task that will probably start here soon."""
        for file in self._work.inputs_of(task):
            here = self._here_already.get(file)
            made = self._version(file) if here is None or not self._cache.has(here) else None
            if made is not None:
                name = object_name(self._run, file, made.attempt)
                if not self._cache.has(name) and made.size <= self._cache.room_for((), made.size, self._coming)[1]:
                    self._fetch(name, file, made)

    def _version(self, file: int) -> FileVersion | None:
        source = self._sources.get(file)
        if source is not None:
            return source
        about = self._store.about_of(file)
        return _decode(about) if about is not None else None

    def _fetch(self, name: str, file: int, made: FileVersion) -> None:
        if name in self._files:
            return
        self._files[name], self._coming[name] = file, made.size
        self.inflow.begins(self._clock())
        found = [self._grant_of(node) for node in self._store.copies(file) if node != self._here]
        if made.attempt == SOURCE:
            found.append(self._origin())
        self._fetcher.fetch(name, [grant for grant in found if grant is not None], made.size, made.checksum)

    def arrived(self) -> tuple[list[tuple[int, int]], list[tuple[int, int, NoRoomError | None]]]:
        """Returns tasks with their attempts: those that can start now, and those for which an input is not available or
        has no room here."""
        ready: list[tuple[int, int]] = []
        failed: list[tuple[int, int, NoRoomError | None]] = []
        for fetched in self._fetcher.finished():
            file = self._files.pop(fetched.name, None)
            self._coming.pop(fetched.name, None)
            if file is None:
                continue  # of a run that is over
            if fetched.description is not None:
                self.inflow.arrived(self._clock(), fetched.description.size, len(self._files))
                self._here_already[file] = fetched.name
                self.reads.arrived(fetched.name)
                self._store.copied(file, self._here)
            self._report_absent(file, fetched)
            for task in self._waiting.pop(fetched.name, ()):
                self._settle(task, fetched, ready, failed)
        return ready, failed

    def _report_absent(self, file: int, fetched: Fetched) -> None:
        """Records that nodes do not have a file that the store expects there. If the last copy is gone, the store has
        the file made again."""
        if not any(
            trouble.cause in (FetchFailureCause.ABSENT, FetchFailureCause.CORRUPT) for trouble in fetched.troubles
        ):
            return
        made = self._version(file)
        if made is None or made.attempt == SOURCE or object_name(self._run, file, made.attempt) != fetched.name:
            return
        absent = [
            trouble.grant
            for trouble in fetched.troubles
            if trouble.cause in (FetchFailureCause.ABSENT, FetchFailureCause.CORRUPT)
        ]
        for node in self._store.copies(file):
            if node != self._here and self._grant_of(node) in absent:
                self._store.dropped(file, node)

    def _settle(
        self,
        task: int,
        fetched: Fetched,
        ready: list[tuple[int, int]],
        failed: list[tuple[int, int, NoRoomError | None]],
    ) -> None:
        wanted = self._wanted.get(task)
        if wanted is None:
            return
        if fetched.description is not None and self._cache.pin(fetched.name):
            wanted.pinned.append(fetched.name)
            del wanted.missing[fetched.name]
            if not wanted.missing:
                del self._wanted[task]
                self._inputs_ready(task, wanted.pinned)
                ready.append((task, wanted.attempt))
        else:
            is_full = any(trouble.cause is FetchFailureCause.FULL for trouble in fetched.troubles)
            no_room = self._no_room(wanted) if is_full else None
            self.forget(task)
            failed.append((task, wanted.attempt, no_room))

    def _no_room(self, wanted: _Wanted) -> NoRoomError:
        """Decides whether a full disk is permanent: if no running task and no other program uses it, it stays full."""
        others = len(self._wanted) > 1 or self._pins
        here = sum(self._cache.size(name) for name in wanted.pinned)
        return NoRoomError(
            wanted.need, wanted.need if others else min(wanted.need - 1, here + self._cache.free_bytes())
        )

    def _inputs_ready(self, task: int, pinned: list[str]) -> None:
        """All inputs of a task are here, and are pinned for it."""
        self._pins[task] = pinned
        for name in pinned:
            try:
                self.reads.read(name, self._cache.size(name))
            except AbsentError:
                pass  # the file was deleted by another program; preparing the task's directory reports that

    def is_coming(self, task: int) -> bool:
        return task in self._wanted

    def coming(self) -> int:
        """Number of tasks that wait for inputs."""
        return len(self._wanted)

    def forget(self, task: int) -> None:
        """Unpins the inputs of a task that has ended, or does not start."""
        wanted = self._wanted.pop(task, None)
        if wanted is not None:
            self._unpin(wanted.pinned)
            for name in wanted.missing:
                if task in self._waiting.get(name, ()):
                    self._waiting[name].remove(task)
        self._unpin(self._pins.pop(task, ()))

    def _unpin(self, names: Sequence[str]) -> None:
        for name in names:
            self._cache.unpin(name)

    # ---- directory of an attempt
    # -----------------------------------------------------------------------------------

    def prepare_directory(self, task: int, attempt: int, spec: TaskSpec) -> tuple[str, str | None]:
        """Makes a directory with all inputs of a task; also returns why that failed, or None."""
        folder = os.path.join(self._sandboxes, f"{task}.{attempt}")
        try:
            remove_quietly(folder)
            os.makedirs(folder)
            for name, where in zip(self._pins[task], self._places(task, spec), strict=True):
                target = os.path.join(folder, where)
                os.makedirs(os.path.dirname(target), exist_ok=True)
                self._cache.link(name, target)
            for where in spec.outputs:
                os.makedirs(os.path.dirname(os.path.join(folder, where)), exist_ok=True)
        except (OSError, ShoalError) as error:
            return folder, f"cannot prepare its directory: {error}"
        return folder, None

    def _places(self, task: int, spec: TaskSpec) -> list[str]:
        """Paths of the pinned inputs of a task, in that order."""
        where = dict(zip(self._work.inputs_of(task), spec.inputs, strict=True))
        return [where[int(name.rsplit("/", 2)[1])] for name in self._pins[task]]

    def collect(
        self, task: int, attempt: int, spec: TaskSpec, seconds: float
    ) -> tuple[list[tuple[int, int, bytes]], str | None]:
        """Moves a task's outputs to the cache: file, bytes and version of each; or the reason why one is missing."""
        folder = os.path.join(self._sandboxes, f"{task}.{attempt}")
        found: list[tuple[int, int, bytes]] = []
        for file, where in zip(self._work.outputs_of(task), spec.outputs, strict=True):
            path = os.path.join(folder, where)
            if os.path.isdir(path):
                return [], f"{where!r} is a directory, which cannot be sent between nodes without a shared file system"
            if not os.path.lexists(path):
                return [], f"exit status 0, but it did not make {where!r}"
            try:
                made = self._cache.adopt(path, object_name(self._run, file, attempt), seconds_to_get=seconds)
            except (OSError, ShoalError) as error:
                return [], f"cannot keep {where!r}: {error}"
            found.append((file, made.size, encode_made(FileVersion(attempt, made.size, made.checksum))))
        return found, None

    def clear(self, task: int, attempt: int) -> None:
        """The attempt is over: removes its directory and unpins its inputs."""
        self.forget(task)
        remove_quietly(os.path.join(self._sandboxes, f"{task}.{attempt}"))

    def close(self) -> None:
        """Releases everything: the run is over on this node."""
        for task in [*self._wanted, *self._pins]:
            self.forget(task)
        remove_quietly(self._sandboxes)
