"""What a ledger holds, and how records become bytes and come back from damaged ones.

Each record is a frame of its own: mark, length, checksum, payload. A reader that meets bytes that are no whole frame
looks for the next mark whose checksum holds, so damage anywhere costs the records it touches and no others. Records of
finished tasks carry the task's identity by content (`place`, `content`), never by position, so they stand on their own.
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
"""How the files of a result were looked at: by size and time, or by content. Older ledgers do not say it, have only the
newest moment of a group, and nothing of what is below a directory."""


class RunStarted(msgspec.Struct, frozen=True, array_like=True, tag="run"):
    """A run begins here; the records up to the next one of these belong to it."""

    run: str
    time: float
    pid: int
    pid_started: int
    """Start time of the process in clock ticks since boot, so that the pid can be trusted later."""
    boot: str
    """Names the boot of the machine: after another boot no process of this run can be alive."""
    host: str
    version: str
    targets: list[str]
    node: list[tuple[str, int]]
    """The node's resources, as in `Resources.amounts`."""
    total: int
    """Tasks of the targets that run something, whether up to date or not."""
    to_run: int
    attached: float = 0.0
    """When a client came back to this run, which has been on a cluster since `time`. The records that follow are those
    of the whole run, also what earlier clients of it have recorded. 0: it begins with this record."""
    target_bytes: list[bytes] = []
    """In a ledger: the targets, where one of them is not UTF-8. Older ledgers have a replacement character there."""


class TasksPlanned(msgspec.Struct, frozen=True, array_like=True, tag="plan"):
    """Names for the numbers that the other records of this run use; several of these make up the plan."""

    first: list[int]
    names: list[str]
    categories: list[str]


class OutputsNamed(msgspec.Struct, frozen=True, array_like=True, tag="outs"):
    """The files that tasks make, of those whose name does not say it; several of these make up the plan."""

    places: list[bytes]
    names: list[list[str]]


class TasksLinked(msgspec.Struct, frozen=True, array_like=True, tag="link"):
    """What tasks of this run wait for, as columns of 32-bit numbers in little-endian order; several make up the plan.

    A task may stand in more than one of these, and one that it needs may be named twice or not run at all.
    """

    tasks: bytes
    counts: bytes
    """How many it needs, of each of these tasks."""
    needs: bytes
    """The tasks that they need, one after another; -1 stands for a file that no task makes."""


def numbers(column: bytes) -> tuple[int, ...]:
    """A column of 32-bit numbers."""
    return struct.unpack(f"<{len(column) // 4}i", column)


class NodeSeen(msgspec.Struct, frozen=True, array_like=True, tag="node"):
    """A node of a cluster that takes part in this run from now on, and the number it goes by. A run on one machine has
    none: that machine is number 0."""

    time: float
    node: int
    name: str
    resources: list[tuple[str, int]]
    """As in `Resources.amounts`; empty if it was gone before it could be asked."""


class NodeLeft(msgspec.Struct, frozen=True, array_like=True, tag="left"):
    """A node is not there any more."""

    time: float
    node: int


class NodeTold(msgspec.Struct, frozen=True, array_like=True, tag="told"):
    """What a node has done beside running tasks, since it was seen first in this run, and how it stands."""

    time: float
    node: int
    fetched: int = 0
    """Bytes of files that it has got from others."""
    stolen: int = 0
    """Tasks that it has taken from others."""
    pushed: int = 0
    """Tasks that others have sent to it."""
    fetched_files: int = 0
    hits: int = 0
    """How often a task has read a file for which nothing had to be fetched."""
    hit_bytes: int = 0
    running: int | None = None
    """Tasks at this moment; None, with the following: it did not say."""
    wait: int = 0
    """Tasks that it has and that cannot start: their inputs are on their way, or they rest after a failure."""
    local: int = 0
    """Ready tasks that it keeps for itself, since their data is here."""
    shared: int = 0
    """Ready tasks that any node may take."""
    cores: int = 0
    """Held by its tasks; 10,000 are one core."""
    memory_used: float = 0.0
    """The share of its machine's memory that is in use, by whomever."""


class CategoriesDeclared(msgspec.Struct, frozen=True, array_like=True, tag="cat"):
    """What the categories of this run ask for by themselves, as in `Resources.amounts`; the rest is learned."""

    names: list[str]
    resources: list[list[tuple[str, int]]]


NONE_ASKED = -1


class CoresAsked(msgspec.Struct, frozen=True, array_like=True, tag="cores"):
    """Tasks of this run that ask for other cores than their category is declared with, which is the most that one of
    its tasks asks for. Columns of 32-bit numbers in little-endian order; there may be several of these, or none."""

    tasks: bytes
    cores: bytes
    """10,000 are one core; `NONE_ASKED` stands for a task that asks for none, and is given one."""


class SourcesSeen(msgspec.Struct, frozen=True, array_like=True, tag="src"):
    """Size of source files as this run found them, and their modification time or a number made from the content."""

    names: list[str]
    sizes: list[int]
    times: list[int]
    check: int = UNSAID
    """`BY_CONTENT`: the times are numbers made from the contents."""


class TaskStarted(msgspec.Struct, frozen=True, array_like=True, tag="on"):
    """An attempt was started; `boot_time` and `pid` together name its process.

    On a cluster this is written of attempts that have taken a while, without process and slot.
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
    """Attempts that had been started on nodes of a cluster, of which these do not say any more that they run: they were
    cancelled, or their node is lost. If one has ended all the same, that is told later."""

    time: float
    tasks: list[int]


class TasksCancelled(msgspec.Struct, frozen=True, array_like=True, tag="cancel"):
    """Tasks that somebody cancelled while the run went on: they and what needs them are left to the next run."""

    tasks: list[int]


class Usage(msgspec.Struct, frozen=True, array_like=True):
    """What an attempt used, as far as it is known; 0 where it is not. Short tasks have not been looked at while they
    ran: of them the first four are known, `cores` and, if they succeeded, `disk` and `files`."""

    read_bytes: int = 0
    written_bytes: int = 0
    switches: int = 0
    major_faults: int = 0
    tree_memory: int = 0
    """Largest resident memory of all its processes together."""
    virtual_memory: int = 0
    swap: int = 0
    processes: int = 0
    """Most at the same time."""
    total_processes: int = 0
    cores: int = 0
    """Thousandths: the most over any second, or over all of its time if that is more."""
    disk: int = 0
    """Bytes of the files it made: of its outputs, and of more if it had a limit of disk and so was looked at."""
    files: int = 0


class TaskEnded(msgspec.Struct, frozen=True, array_like=True, tag="end"):
    """An attempt ended; with outcome `ok` it is the task's accepted result."""

    task: int
    attempt: int
    outcome: str
    final: bool
    """False when another attempt follows."""
    status: int
    """Exit status, or the negated signal that ended it."""
    started: float
    ended: float
    user: float
    system: float
    max_rss: int
    """Peak memory in bytes; 0 if it was too small to be told from the engine's own."""
    output_at: int
    output_size: int
    """Where its output stands in the output stream."""
    message: str
    """Why it did not succeed; empty for `ok`."""
    place: bytes
    content: bytes
    inputs: bytes
    """Digest over what it read: sizes and times of files, versions of the tasks it came after."""
    outputs: list[tuple[int, int]]
    """Of each file that it made its size, and its modification time or a number made from its content."""
    value: bytes | None
    """Pickled return value; None if it has none or it lies in a file of its own."""
    usage: Usage = Usage()
    memory_limit: int = 0
    """Bytes of memory it was allowed to use; 0 if there was no limit."""
    node: int = 0
    """Where it ran, as in `NodeSeen`; 0 is the machine that writes the ledger."""
    check: int = UNSAID
    """`BY_TIME` or `BY_CONTENT`: how `inputs` and `outputs` are to be compared with what is there later."""
    listing: bytes = b""
    """What it made in directories, and links among its outputs: see `shoal.ledger.ownership`. Empty if it made none."""


class TaskAdopted(msgspec.Struct, frozen=True, array_like=True, tag="taken"):
    """The user says that a task is done with the files that stand there: from now on this is its accepted result. It
    belongs to no run."""

    time: float
    names: list[str]
    """The files that it makes."""
    place: bytes
    content: bytes
    inputs: bytes
    outputs: list[tuple[int, int]]
    value: bytes | None
    check: int
    listing: bytes = b""
    """All of them as in `TaskEnded`."""

    def as_result(self) -> TaskEnded:
        """The same as the end of an attempt that took no time."""
        nothing = (0.0, 0.0, 0, 0, 0, "")
        identity = self.place, self.content, self.inputs
        done = TaskEnded(-1, 1, "ok", True, 0, self.time, self.time, *nothing, *identity, self.outputs, self.value)
        return msgspec.structs.replace(done, check=self.check, listing=self.listing)


class TaskCourse(msgspec.Struct, frozen=True, array_like=True, tag="course"):
    """What was seen over time of an attempt that took a second or more; it stands before the record of its end."""

    task: int
    attempt: int
    points: bytes
    """See `shoal.execution.processes.time_series`."""


class OutputsCollected(msgspec.Struct, frozen=True, array_like=True, tag="gone"):
    """Outputs of these places were removed because nothing needed them any more: their absence is no reason to run."""

    places: list[bytes]


class TasksInterrupted(msgspec.Struct, frozen=True, array_like=True, tag="cut"):
    """Attempts at these places had begun when their run was killed: earlier results do not count any more. The files of
    these results may be there all the same, put back by the next run."""

    places: list[bytes]


class ThrottleDecided(msgspec.Struct, frozen=True, array_like=True, tag="cap"):
    """How many tasks of a category may run together from now on; also written when only the figures are new."""

    time: float
    node: str
    """Empty for the machine that writes the ledger."""
    category: str
    cap: int
    """-1: only the contract limits."""
    running: int
    waiting: int
    state: str
    dominant: str
    """The resource that its tasks use most of; empty if there is none or it is not known."""
    use: float
    """The share of that resource in use on the node."""
    rate: float
    """Tasks completed per second."""
    reason: str


class NetBegun(msgspec.Struct, frozen=True, array_like=True, tag="net"):
    """The run is that of a net, at its beginning; the records of nets up to the next one of these belong to it."""

    name: str
    digest: str
    """Of its places and transitions: another net cannot go on from here."""
    seed: int | None


class NetChanged(msgspec.Struct, frozen=True, array_like=True, tag="fire"):
    """Records of `shoal.petri`, pickled together."""

    records: bytes


class NetSaved(msgspec.Struct, frozen=True, array_like=True, tag="save"):
    """The whole state of a net, pickled: what was recorded before it is not needed any more."""

    state: bytes


class NetMarked(msgspec.Struct, frozen=True, array_like=True, tag="mark"):
    """How a net stands, for those who look."""

    time: float
    tokens: dict[str, int]
    """On each place."""
    running: dict[str, int]
    """Tasks of each transition that have their tokens and are not over."""
    done: dict[str, int]
    problems: list[str]
    at_work: int | None = None
    """How many of those run at this moment: some have been drawn before there is room for them. None: nobody said."""

    def running_now(self) -> int:
        return sum(self.running.values()) if self.at_work is None else self.at_work


DETACHED = "detached"
"""The outcome of a run that its client has left to a cluster."""
TASKS_CANCELLED = "tasks were cancelled"
"""The outcome of a run that would have done everything, had nobody cancelled some of it."""


class RunEnded(msgspec.Struct, frozen=True, array_like=True, tag="over"):
    """The run came to its own end; a run without this was killed."""

    time: float
    outcome: str
    done: int
    failed: int
    not_run: int
    """Neither done nor failed, the cancelled ones among them."""
    cancelled: int = 0
    """Tasks that somebody cancelled while the run went on."""


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
    """The record as one frame. Names that are not UTF-8 are written with a replacement character; targets come back
    as they were, since a workflow may make its tasks of them."""
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
    except UnicodeEncodeError:  # half of a surrogate pair, which no file name and no word of a command line can hold
        return decodable(text).encode()


def framed(payload: bytes) -> bytes:
    """A payload as it stands in a ledger."""
    return _HEADER.pack(MARK, len(payload), crc32(payload)) + payload


def decodable(text: str) -> str:
    """The text as it can be stored and shown: bytes that are no UTF-8 become a replacement character."""
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    except UnicodeEncodeError:  # half of a surrogate pair, which the message of an exception may hold
        return text.encode("utf-8", "replace").decode("utf-8", "replace")


def decodable_parts(value: object) -> object:
    """The same for all texts in a list, or in the values of a dictionary."""
    if isinstance(value, str):
        return decodable(value)
    if isinstance(value, (list, tuple)):
        return [decodable_parts(part) for part in value]
    if isinstance(value, dict):
        return {key: decodable_parts(part) for key, part in value.items()}
    return value


def decode(payload: bytes | memoryview) -> Record | None:
    """The record of a payload; None if it was written by a version that knew more than this one."""
    try:
        record = _decoder.decode(payload)
    except msgspec.MsgspecError:
        return None
    if type(record) is RunStarted and record.target_bytes:
        targets = [name.decode("utf-8", "surrogateescape") for name in record.target_bytes]
        return msgspec.structs.replace(record, targets=targets, target_bytes=[])
    return record


class Damage(msgspec.Struct, frozen=True):
    """A stretch of a ledger that is not made of whole frames."""

    offset: int
    size: int


def frames(data: bytes | memoryview, damage: list[Damage], start: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yields (end offset, payload) of every whole frame; appends to `damage` what lies between them.

    A frame cut off at the very end counts as damage too; a reader of a ledger that is being written asks again from the
    last end offset it was given.
    """
    data = bytes(data)
    size = len(data)
    at = start
    header_size, unpack = _HEADER.size, _HEADER.unpack_from
    broken_since = -1
    while at < size:
        if size - at >= header_size:
            mark, length, checksum = unpack(data, at)
            # No record is empty, but zeros in place of length and checksum would say so.
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
