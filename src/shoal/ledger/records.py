"""The record types of a ledger, and their encoding as checksummed frames that can be read from damaged files.

Each record is one frame: mark, length, checksum, payload. Where a reader finds no valid frame, it searches for the next
mark with a valid checksum. So damage costs only the records that it touches. Records of finished tasks identify the
task by its content (`place`, `content`) and not by its number in the run, so each of them can be used alone.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TypeAlias
from zlib import crc32

import msgspec

MARK = b"\xf5SHL"
_HEADER = struct.Struct("<4sII")
HEADER_BYTES = _HEADER.size


UNSAID, BY_TIME, BY_CONTENT = range(3)
"""How the files of a result were compared: by size and time, or by content. Older ledgers (`UNSAID`) do not record it,
keep only the newest time of a group, and record nothing of the files in a directory."""


class RunStarted(msgspec.Struct, frozen=True, array_like=True, tag="run"):
    """Start of a run; the records up to the next RunStarted belong to it."""

    run: str
    time: float
    pid: int
    pid_started: int
    """Start time of the process in clock ticks since boot. It tells whether a process with this pid is still the same
    one."""
    boot: str
    """Boot id of the machine: after another boot no process of this run can be alive."""
    host: str
    version: str
    targets: list[str]
    node: list[tuple[str, int]]
    """The node's resources, as in `Resources.amounts`."""
    total: int
    """Tasks of the targets that have an action, whether up to date or not."""
    to_run: int
    attached: float = 0.0
    """When a client attached to this run again, which has been on a cluster since `time`. The following records cover
    the whole run, including what earlier clients have recorded. 0: the run starts with this record."""
    target_bytes: list[bytes] = []
    """The targets as bytes, if one of them is not valid UTF-8. Older ledgers contain a replacement character there."""


class TasksPlanned(msgspec.Struct, frozen=True, array_like=True, tag="plan"):
    """Names and categories of the task numbers that the other records of this run use; a plan has several of these."""

    first: list[int]
    names: list[str]
    categories: list[str]


class OutputsNamed(msgspec.Struct, frozen=True, array_like=True, tag="outs"):
    """Output files of tasks whose name does not contain them; a plan has several of these records."""

    places: list[bytes]
    names: list[list[str]]


class TasksLinked(msgspec.Struct, frozen=True, array_like=True, tag="link"):
    """Dependencies of tasks as columns of 32-bit little-endian integers; a plan has several of these records.

    A task may appear in several records. Its dependencies may be repeated and may include tasks that do not run.
    """

    tasks: bytes
    counts: bytes
    """Number of dependencies of each of these tasks."""
    needs: bytes
    """The tasks that they depend on, concatenated; -1 stands for a file that no task makes."""


def numbers(column: bytes) -> tuple[int, ...]:
    """Decodes a column of 32-bit little-endian integers."""
    return struct.unpack(f"<{len(column) // 4}i", column)


class NodeSeen(msgspec.Struct, frozen=True, array_like=True, tag="node"):
    """A cluster node joins this run, under the number that later records use. A local run has none of these: its
    machine has number 0."""

    time: float
    node: int
    name: str
    resources: list[tuple[str, int]]
    """As in `Resources.amounts`; empty if the node left before its resources were known."""


class NodeLeft(msgspec.Struct, frozen=True, array_like=True, tag="left"):
    """A node has left."""

    time: float
    node: int


class NodeTold(msgspec.Struct, frozen=True, array_like=True, tag="told"):
    """A node's counters since it joined this run, except those of tasks, and its present load."""

    time: float
    node: int
    fetched: int = 0
    """Bytes of files transferred from other nodes."""
    stolen: int = 0
    """Tasks stolen from other nodes."""
    pushed: int = 0
    """Tasks that other nodes pushed to this one."""
    fetched_files: int = 0
    hits: int = 0
    """Number of file reads of tasks for which no transfer was needed."""
    hit_bytes: int = 0
    running: int | None = None
    """Running tasks now. None: the node did not report this field and the following ones."""
    wait: int = 0
    """Tasks on the node that cannot start: their inputs are being transferred, or they wait for a retry."""
    local: int = 0
    """Ready tasks that the node keeps because their data is local."""
    shared: int = 0
    """Ready tasks that any node may take."""
    cores: int = 0
    """Allocated to its tasks; 10,000 are one core."""
    memory_used: float = 0.0
    """Fraction of the machine's memory in use, by all processes."""


class CategoriesDeclared(msgspec.Struct, frozen=True, array_like=True, tag="cat"):
    """Declared resources of this run's categories, as in `Resources.amounts`; other resources are estimated from
    measurements."""

    names: list[str]
    resources: list[list[tuple[str, int]]]


NONE_REQUESTED = -1


class CoresAsked(msgspec.Struct, frozen=True, array_like=True, tag="cores"):
    """Tasks that request another number of cores than their category declares (the maximum of its tasks). Columns of
    32-bit little-endian integers; a run has any number of these records."""

    tasks: bytes
    cores: bytes
    """10,000 are one core; `NONE_REQUESTED` stands for a task that requests none and is allocated one."""


class SourcesSeen(msgspec.Struct, frozen=True, array_like=True, tag="src"):
    """Sizes of source files at the start of this run, with their modification times or content numbers."""

    names: list[str]
    sizes: list[int]
    times: list[int]
    check: int = UNSAID
    """With `BY_CONTENT` the times are numbers computed from the contents."""


class TaskStarted(msgspec.Struct, frozen=True, array_like=True, tag="on"):
    """An attempt was started; `boot_time` and `pid` together identify its process.

    On a cluster this is recorded only for attempts that have run for some time, without process and slot.
    """

    task: int
    attempt: int
    time: float
    pid: int
    boot_time: float
    """Seconds since boot when it was started."""
    slot: int
    node: int = 0
    """As in `NodeSeen`; 0 is the machine that writes the ledger."""


class TasksVanished(msgspec.Struct, frozen=True, array_like=True, tag="off"):
    """Attempts that their nodes do not report as running any more: they were cancelled, or the node was lost. If such
    an attempt has ended after all, a later record has its end."""

    time: float
    tasks: list[int]


class TasksCancelled(msgspec.Struct, frozen=True, array_like=True, tag="cancel"):
    """Tasks that a user cancelled while the run was in progress. They and their dependents remain for the next run."""

    tasks: list[int]


class Usage(msgspec.Struct, frozen=True, array_like=True):
    """Measured resources of an attempt; 0 where unknown. Short tasks are not sampled: only the first four fields,
    `cores` and, if they succeeded, `disk` and `files` are known."""

    read_bytes: int = 0
    written_bytes: int = 0
    switches: int = 0
    major_faults: int = 0
    tree_memory: int = 0
    """Peak resident memory of all its processes together."""
    virtual_memory: int = 0
    swap: int = 0
    processes: int = 0
    """Maximum number at the same time."""
    total_processes: int = 0
    cores: int = 0
    """In thousandths: the maximum over any second, or the mean over the whole attempt if that is higher."""
    disk: int = 0
    """Bytes of its outputs. With a disk limit the attempt's other files are sampled and counted, too."""
    files: int = 0


class TaskEnded(msgspec.Struct, frozen=True, array_like=True, tag="end"):
    """An attempt ended; with outcome `ok` it is the task's accepted result."""

    task: int
    attempt: int
    outcome: str
    final: bool
    """False if another attempt follows."""
    status: int
    """Exit status, or the negated signal that ended it."""
    started: float
    ended: float
    user: float
    system: float
    max_rss: int
    """Peak memory in bytes; 0 if it was too small to distinguish from the engine's own."""
    output_at: int
    output_size: int
    """Position of its output in the output stream."""
    message: str
    """Why it did not succeed; empty for `ok`."""
    place: bytes
    content: bytes
    inputs: bytes
    """Digest of what it read: sizes and times of files, versions of the tasks it depends on."""
    outputs: list[tuple[int, int]]
    """For each output file its size, and its modification time or content number."""
    value: bytes | None
    """Pickled return value; None if there is none or it is in a separate file."""
    usage: Usage = Usage()
    memory_limit: int = 0
    """Memory limit of the attempt in bytes; 0 if there was none."""
    node: int = 0
    """Where it ran, as in `NodeSeen`; 0 is the machine that writes the ledger."""
    check: int = UNSAID
    """`BY_TIME` or `BY_CONTENT`: how later runs compare `inputs` and `outputs` with the files."""
    listing: bytes = b""
    """Its files in output directories, and its links: see `shoal.ledger.ownership`. Empty if it made none."""


class TaskAdopted(msgspec.Struct, frozen=True, array_like=True, tag="taken"):
    """The user declares a task done with the existing files ('shoal adopt'): this is its accepted result from now on.
    The record belongs to no run."""

    time: float
    names: list[str]
    """The files that the task makes."""
    place: bytes
    content: bytes
    inputs: bytes
    outputs: list[tuple[int, int]]
    value: bytes | None
    check: int
    listing: bytes = b""
    """`place` to `listing` are as in `TaskEnded`."""

    def as_result(self) -> TaskEnded:
        """Returns the equivalent end of an attempt of zero duration."""
        nothing = (0.0, 0.0, 0, 0, 0, "")
        identity = self.place, self.content, self.inputs
        done = TaskEnded(-1, 1, "ok", True, 0, self.time, self.time, *nothing, *identity, self.outputs, self.value)
        return msgspec.structs.replace(done, check=self.check, listing=self.listing)


class TaskCourse(msgspec.Struct, frozen=True, array_like=True, tag="course"):
    """The usage series of an attempt that ran for at least a second; precedes the record of its end."""

    task: int
    attempt: int
    points: bytes
    """See `shoal.execution.processes.time_series`."""


class OutputsCollected(msgspec.Struct, frozen=True, array_like=True, tag="gone"):
    """Outputs of these places were deleted because no task needed them any more. Their absence does not make a task
    run."""

    places: list[bytes]


class TasksInterrupted(msgspec.Struct, frozen=True, array_like=True, tag="cut"):
    """Attempts at these places were running when their run was killed: earlier results are not valid any more. The
    files of those results may exist all the same, because the next run restores them."""

    places: list[bytes]


class ThrottleDecided(msgspec.Struct, frozen=True, array_like=True, tag="cap"):
    """The maximum number of concurrent tasks of a category from now on; also written when only the measurements have
    changed."""

    time: float
    node: str
    """Empty for the machine that writes the ledger."""
    category: str
    cap: int
    """-1: only the requested resources limit it."""
    running: int
    waiting: int
    state: str
    dominant: str
    """The resource that its tasks use most; empty if there is none or it is unknown."""
    use: float
    """Fraction of that resource in use on the node."""
    rate: float
    """Tasks completed per second."""
    reason: str


class NetBegun(msgspec.Struct, frozen=True, array_like=True, tag="net"):
    """The run executes a net; written at its start. The following net records, up to the next NetBegun, belong to
    it."""

    name: str
    digest: str
    """Digest of its places and transitions: a run can only continue a net with the same digest."""
    seed: int | None


class NetChanged(msgspec.Struct, frozen=True, array_like=True, tag="fire"):
    """Records of `shoal.petri`, pickled together."""

    records: bytes


class NetSaved(msgspec.Struct, frozen=True, array_like=True, tag="save"):
    """The complete state of a net, pickled; earlier net records are not needed any more."""

    state: bytes


class NetMarked(msgspec.Struct, frozen=True, array_like=True, tag="mark"):
    """A summary of a net's state, for status displays."""

    time: float
    tokens: dict[str, int]
    """Number of tokens on each place."""
    running: dict[str, int]
    """Number of tasks of each transition that have consumed their tokens and have not ended."""
    done: dict[str, int]
    problems: list[str]
    at_work: int | None = None
    """How many of those run now. It may be less, because tasks are created before there is room to start them. None:
    not reported."""

    def running_now(self) -> int:
        return sum(self.running.values()) if self.at_work is None else self.at_work


DETACHED = "detached"
"""Outcome of a run that continues on a cluster after its client has detached."""
TASKS_CANCELLED = "tasks were cancelled"
"""Outcome of a run whose only tasks without a result were cancelled by the user."""


class RunEnded(msgspec.Struct, frozen=True, array_like=True, tag="over"):
    """The run ended in an orderly way; a run without this record was killed."""

    time: float
    outcome: str
    done: int
    failed: int
    not_run: int
    """Neither done nor failed, including the cancelled ones."""
    cancelled: int = 0
    """Tasks that a user cancelled while the run was in progress."""


Record: TypeAlias = (
    RunStarted
    | TasksPlanned
    | OutputsNamed
    | TasksLinked
    | NodeSeen
    | NodeLeft
    | NodeTold
    | CategoriesDeclared
    | CoresAsked
    | SourcesSeen
    | TaskStarted
    | TasksVanished
    | TasksCancelled
    | TaskEnded
    | TaskAdopted
    | TaskCourse
    | OutputsCollected
    | TasksInterrupted
    | ThrottleDecided
    | NetBegun
    | NetChanged
    | NetSaved
    | NetMarked
    | RunEnded
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


def encode(record: Record) -> bytes:
    """Returns the record as one frame. Names that are not valid UTF-8 are written with replacement characters. Targets
    are also stored as bytes and decode unchanged, because a workflow may derive tasks from them."""
    try:
        payload = _encoder.encode(record)
    except UnicodeEncodeError:
        if type(record) is RunStarted:
            record = msgspec.structs.replace(record, target_bytes=list(map(_bytes_of, record.targets)))
        payload = _encoder.encode(decodable_parts(msgspec.to_builtins(record, builtin_types=(bytes,))))
    return framed(payload)


def _bytes_of(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # an unpaired surrogate, which neither file names nor command lines can contain
        return decodable(text).encode()


def framed(payload: bytes) -> bytes:
    """Wraps a payload in a frame of the ledger."""
    return _HEADER.pack(MARK, len(payload), crc32(payload)) + payload


def decodable(text: str) -> str:
    """Returns the text with invalid UTF-8 bytes replaced, so that it can be stored and shown."""
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    except UnicodeEncodeError:  # an unpaired surrogate, which the message of an exception may contain
        return text.encode("utf-8", "replace").decode("utf-8", "replace")


def decodable_parts(value: object) -> object:
    """Applies `decodable` to all strings in a list or in the values of a dictionary."""
    if isinstance(value, str):
        return decodable(value)
    if isinstance(value, (list, tuple)):
        return [decodable_parts(part) for part in value]
    if isinstance(value, dict):
        return {key: decodable_parts(part) for key, part in value.items()}
    return value


def decode(payload: bytes | memoryview) -> Record | None:
    """Decodes a payload; returns None for a record of a newer version."""
    try:
        record = _decoder.decode(payload)
    except msgspec.MsgspecError:
        return None
    if type(record) is RunStarted and record.target_bytes:
        targets = [name.decode("utf-8", "surrogateescape") for name in record.target_bytes]
        return msgspec.structs.replace(record, targets=targets, target_bytes=[])
    return record


class Damage(msgspec.Struct, frozen=True):
    """A range of a ledger that is not part of any valid frame."""

    offset: int
    size: int


def frames(data: bytes | memoryview, damage: list[Damage], start: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yields (end offset, payload) of every valid frame; appends the ranges between them to `damage`.

    A frame truncated at the very end counts as damage, too. A reader of a ledger that is being written continues from
    the last end offset that was yielded.
    """
    data = bytes(data)
    size = len(data)
    at = start
    header_size, unpack = _HEADER.size, _HEADER.unpack_from
    broken_since = -1
    while at < size:
        if size - at >= header_size:
            mark, length, checksum = unpack(data, at)
            # No record is empty, but a frame of zeros would pass the checksum test with length 0.
            if mark == MARK and 0 < length <= size - at - header_size:
                end = at + header_size + length
                payload = data[at + header_size : end]
                if crc32(payload) == checksum:
                    if broken_since >= 0:
                        damage.append(Damage(broken_since, at - broken_since))
                        broken_since = -1
                    yield end, payload
                    at = end
                    continue
        if broken_since < 0:
            broken_since = at
        following = data.find(MARK, at + 1)
        at = size if following < 0 else following
    if broken_since >= 0:
        damage.append(Damage(broken_since, size - broken_since))


def frames_in_bulk(data: bytes, damage: list[Damage]) -> tuple[list[bytes], int]:
    """Returns all valid payloads and the end of the last one. Same result as `frames`, in half the time if nothing is
    damaged."""
    found: list[bytes] = []
    header_size, unpack, last = _HEADER.size, _HEADER.unpack_from, len(data) - _HEADER.size
    at = 0
    while at <= last:
        mark, length, checksum = unpack(data, at)
        begin = at + header_size
        payload = data[begin : begin + length]
        if mark != MARK or not length or len(payload) != length or crc32(payload) != checksum:
            break
        found.append(payload)
        at = begin + length
    end = at
    if at < len(data):
        for end, payload in frames(data, damage, at):  # noqa: B007  the last `end` is used below
            found.append(payload)
    return found, end
