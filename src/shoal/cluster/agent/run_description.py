"""Descriptions of a run for its agents: common options, task specifications in chunks, and entries of the run's log.
Pure.

Task specifications travel in chunks. An agent reads a chunk when it starts the first of its tasks, so no process holds
a million commands in memory. Results travel back as entries of the run's log.
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
"""Number of task specifications per chunk."""
KEPT_CHUNKS = 64


class RunDescription(msgspec.Struct, frozen=True):
    """Options of a run; the same for all its tasks."""

    name: str
    base: str
    """The working directory on every node, to which all names are relative."""
    tasks: int
    order: str = DEFAULT_ORDER
    policy: str = DEFAULT_POLICY
    retry_pause: float = FIRST_DELAY
    enforced: bool = True
    managed: bool = False
    """The nodes share no file system: they fetch inputs from each other."""
    origin: str = ""
    """Data address of the head, which has the client's input files."""
    client: str = ""
    """The submitting client, for viewers."""
    to: str = ONE
    """Where the first tasks go: to `one` node, from which others steal; distributed over `all`, or over those with a
    label."""
    throttle: str = "contract"
    """What limits the concurrent tasks of a node besides their declared resources."""
    workflow: str = ""
    """The workflow's file. With a shared file system, attempts' leftovers are kept in its `.shoal` directory."""


class TaskSpec(msgspec.Struct, frozen=True, array_like=True):
    """What one task runs."""

    command: str
    outputs: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    """Inputs in the order of the work; only set where nodes share no file system."""
    value: str = ""
    """For a Python call: the file for its result; `command` is then the file that describes the call."""
    before: bytes = b""
    """What remains in directories among its outputs when an attempt prepares them: a list of
    `ledger.attempt_journal.OutputBefore`, one for each output. Empty: nothing remains."""


Seen = tuple[int, int, bool]
"""Of a file: size, modification time, and whether it is a directory; of a directory, values from
`execution.files.trees`."""


class LogEntry(msgspec.Struct, frozen=True, array_like=True):
    """An entry of a run's log: how an attempt ended, and what follows for its task."""

    task: int
    attempt: int
    verdict: str
    """`done`, `retry` or `failed` for a task; `note`, `throttle`, `node` and `left` belong to no task."""
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
    """Its standard output, or the end of it."""
    usage: tuple[int, ...] = ()
    memory_limit: int = 0
    made: tuple[int, ...] = ()
    """Bytes of each output file; only set where nodes share no file system."""
    course: bytes = b""
    """Resource usage over time, as in `TaskCourse`."""
    seen: tuple[Seen, ...] = ()
    """State of each output file as the task left it; only set with a shared file system."""
    listing: bytes = b""
    """Contents of output directories, and links among the outputs, as in `TaskEnded`."""
    resources: tuple[tuple[str, int], ...] = ()
    """Resources of a node that takes part from `started` on."""
    checksums: tuple[int, ...] = ()
    """Checksum of each output file: identifies its version where it stays on nodes."""


_task_specs = file_names.Decoder(list[TaskSpec])
_entry = file_names.Decoder(LogEntry)
_about = file_names.Decoder(RunDescription)
encode = file_names.encode
decode_entry = _entry.decode
decode_about = _about.decode


def chunk_name(number: int) -> str:
    return f"deeds:{number}"


def chunks(specs: Iterable[TaskSpec]) -> Iterator[tuple[str, bytes]]:
    """Yields name and bytes of each chunk."""
    source = iter(specs)
    number = 0
    while chunk := list(islice(source, CHUNK)):
        yield chunk_name(number), encode(chunk)
        number += 1


class TaskSpecs:
    """The task specifications of a run, read on demand; the chunks used last are cached."""

    def __init__(self, read: Callable[[str], bytes | None]) -> None:
        self._read = read
        self._kept: dict[int, list[TaskSpec]] = {}

    def of(self, task: int) -> TaskSpec:
        number, at = divmod(task, CHUNK)
        chunk = self._kept.pop(number, None)
        if chunk is None:
            data = self._read(chunk_name(number))
            if data is None:
                raise RunError("the store no longer has the task specifications of this run")
            chunk = _task_specs.decode(data)
            if len(self._kept) >= KEPT_CHUNKS:
                del self._kept[next(iter(self._kept))]
        self._kept[number] = chunk
        return chunk[at]
