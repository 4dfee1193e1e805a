"""What an agent must know of a run beside its columns: where and how its tasks run, and what each of them does. Pure.

Commands travel in chunks that an agent reads when it starts the first task of one, so that nobody holds a million of
them. Results travel back as entries of the run's log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import msgspec

from shoal.core import file_names
from shoal.core.policies.order import DEFAULT_ORDER
from shoal.core.policies.retry import FIRST_DELAY
from shoal.core.policies.stealing import DEFAULT_POLICY
from shoal.errors import RunError

ONE = "one"
JOINED, LEFT = "node", "left"
"""Verdicts of entries that say since when, or until when, a node takes part."""
CHUNK = 512
"""Tasks whose commands travel together."""
KEPT_CHUNKS = 64


class RunDescription(msgspec.Struct, frozen=True):
    """How a run is run; the same for all its tasks."""

    name: str
    base: str
    """The directory that all names are relative to, on every node."""
    tasks: int
    order: str = DEFAULT_ORDER
    policy: str = DEFAULT_POLICY
    retry_pause: float = FIRST_DELAY
    enforced: bool = True
    managed: bool = False
    """The nodes share no files: they fetch what tasks read from each other."""
    origin: str = ""
    """Data address of the head, which has what the client brought."""
    client: str = ""
    """Who brought it, for those who look."""
    to: str = ONE
    """Where the first tasks go: `one` node, from which others take; dealt out to `all`, or to those with a label."""
    throttle: str = "contract"
    """What limits how many tasks run together on a node, beside what they declare."""
    workflow: str = ""
    """The workflow's file. Where nodes share files they keep there what attempts leave."""


class TaskSpec(msgspec.Struct, frozen=True, array_like=True):
    """What one task does."""

    command: str
    outputs: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    """What it reads, in the order of the work; only told where nodes share no files."""
    value: str = ""
    """Of a Python call, where its result goes; `command` is then the file that tells about the call."""
    before: bytes = b""
    """What stays in directories among its outputs, which attempts make room for and leave again: a list of
    `ledger.attempt_journal.OutputBefore`, one for each output. Empty: nothing does."""


Seen = tuple[int, int, bool]
"""Of a file: size, time of its last change, and whether it is a directory; of one of these as `execution.files.trees`
has it."""


class LogEntry(msgspec.Struct, frozen=True, array_like=True):
    """One line of a run's log: how an attempt ended, and what that means for its task."""

    task: int
    attempt: int
    verdict: str
    """`done`, `retry` or `failed` of a task; `note`, `throttle`, `node` and `left` are of none."""
    outcome: str
    node: str
    status: int = 0
    started: float = 0.0
    ended: float = 0.0
    user: float = 0.0
    system: float = 0.0
    max_rss: int = 0
    message: str = ""
    output: bytes = b""
    """What it wrote, or the end of it."""
    usage: tuple[int, ...] = ()
    memory_limit: int = 0
    made: tuple[int, ...] = ()
    """Bytes of each file that it made; only told where nodes share no files."""
    course: bytes = b""
    """What was seen of it over time, as in `TaskCourse`."""
    seen: tuple[Seen, ...] = ()
    """Of each file that it made, as it left it; only told where nodes share files."""
    listing: bytes = b""
    """What it made in directories, and links among its outputs, as in `TaskEnded`."""
    resources: tuple[tuple[str, int], ...] = ()
    """Of a node that takes part from `started` on."""
    checksums: tuple[int, ...] = ()
    """Of each file that it made, beside its size in `made`: what tells its version where it stays on nodes."""


_deeds = file_names.Decoder(list[TaskSpec])
_entry = file_names.Decoder(LogEntry)
_about = file_names.Decoder(RunDescription)
encode = file_names.encode
decode_entry = _entry.decode
decode_about = _about.decode


def chunk_name(number: int) -> str:
    return f"deeds:{number}"


def chunks(deeds: Iterable[TaskSpec]) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of each chunk."""
    source = iter(deeds)
    number = 0
    while chunk := list(islice(source, CHUNK)):
        yield chunk_name(number), encode(chunk)
        number += 1


class TaskSpecs:
    """What the tasks of a run do, read as it is needed; the chunks used last are kept."""

    def __init__(self, read: Callable[[str], bytes | None]) -> None:
        self._read = read
        self._kept: dict[int, list[TaskSpec]] = {}

    def of(self, task: int) -> TaskSpec:
        number, at = divmod(task, CHUNK)
        chunk = self._kept.pop(number, None)
        if chunk is None:
            data = self._read(chunk_name(number))
            if data is None:
                raise RunError("what the tasks of this run do is not in the store any more")
            chunk = _deeds.decode(data)
            if len(self._kept) >= KEPT_CHUNKS:
                del self._kept[next(iter(self._kept))]
        self._kept[number] = chunk
        return chunk[at]
