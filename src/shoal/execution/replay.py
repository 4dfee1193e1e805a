"""Turns a trace (WfFormat) into a workflow of synthetic tasks with the recorded I/O, CPU time and memory, scaled.

Every task is a call of `replay_task` in a worker process. Files lie in one directory beside the trace. Their names are
derived from their ids, which cannot be trusted as paths. Files that no task makes are made first, by tasks of the
category `source`. The scale factors are part of each task's identity: tasks run again under other factors.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Sequence
from hashlib import blake2b

import msgspec

from shoal.core.graph import Graph, GraphBuilder, lookup_tasks
from shoal.core.quantities import show_bytes
from shoal.core.resources import FRACTION, Resources
from shoal.core.task import Call, Profile
from shoal.errors import InputError
from shoal.execution.files.files import relative_here
from shoal.execution.process_limits import available_cores, free_disk
from shoal.execution.replay_tasks import replay_task
from shoal.execution.workflow_loader import Workflow, unknown_target
from shoal.formats.wfformat.reader import read_wfformat
from shoal.formats.wfformat.trace import TraceTask, WorkflowTrace, parents_without_files, profile_for, requested
from shoal.ledger.up_to_date import Plan

SOURCE_CATEGORY = "source"
CHUNK_FILES = 100
CHUNK_BYTES = 256 << 20
LARGEST_SCALE = 1e6
_LONGEST_NAME = 200
_UNSAFE = re.compile(r"[^A-Za-z0-9_.+=,@-]")


class Scales(msgspec.Struct, frozen=True):
    """Scale factors, and the maximum number of cores per task; memory scales with data unless it has a factor of its
    own."""

    time: float = 1.0
    data: float = 1.0
    memory: float | None = None
    cores: float | None = None

    @property
    def memory_scale(self) -> float:
        return self.data if self.memory is None else self.memory


def load_trace_workflow(path: str, text: bytes, words: Sequence[str]) -> Workflow:
    """Returns the replay of a trace; `words` are ids of tasks or files and `time=0.01 data=0.001 memory=1 cores=2`."""
    source = os.path.basename(path)
    scales, names = scales_and_targets(words, source)
    trace = read_wfformat(text, source)
    if scales.cores is None:  # the recorded number of cores was an allocation there, not a requirement here
        scales = msgspec.structs.replace(scales, cores=float(available_cores()))
    graph = replay_graph(trace, source, scales)
    if not names:
        return Workflow(path, graph, list(range(len(graph))), list(words), refuse_small_disk)
    find = lookup_tasks(graph, relative_here())
    safe = replay_names(trace, source)
    by_id = {file.id: name for file, name in zip(trace.files, safe, strict=True)}
    targets = []
    for name in names:
        task = find(by_id.get(name, name))
        if task is None:
            raise unknown_target(name, graph)
        targets.append(task)
    return Workflow(path, graph, targets, list(words), refuse_small_disk)


def scales_and_targets(words: Iterable[str], source: str) -> tuple[Scales, list[str]]:
    """Splits the words after a trace's name into scale factors and targets."""
    known = Scales.__struct_fields__
    found: dict[str, float] = {}
    targets = []
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            targets.append(word)
            continue
        if name not in known:
            remedy = f"a replay has the parameters {', '.join(known)}"
            raise InputError(f"there is no parameter {name!r}", file=source, remedy=remedy)
        found[name] = _scale(name, value, source)
    return Scales(**found), targets


def _scale(name: str, value: str, source: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number <= LARGEST_SCALE:
        raise InputError(
            f"{name}={value} is not a valid factor", file=source, remedy="write a number such as 0.01, or 1 for all"
        )
    return number


def replay_directory(source: str) -> str:
    """Returns the directory of a replay's files, relative to the trace."""
    return f"{os.path.splitext(os.path.basename(source))[0]}.replay"


def replay_names(trace: WorkflowTrace, source: str) -> list[str]:
    """Returns the replay name of each file of the trace."""
    directory = replay_directory(source)
    return [f"{directory}/{safe_name(file.id)}" for file in trace.files]


def safe_name(file_id: str) -> str:
    """Returns a name for a directory entry that is unique per id, whatever characters the id contains."""
    name = _UNSAFE.sub(_escaped, file_id) if file_id.strip(".") else file_id.replace(".", "%2E")
    if len(name) <= _LONGEST_NAME:
        return name
    digest = blake2b(file_id.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{name[:_LONGEST_NAME]}%~{digest}"


def _escaped(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogatepass"))


def scaled_size(size: int, scale: float) -> int:
    """Scales a size. A non-empty file stays non-empty unless the scale is 0."""
    return max(1, round(size * scale)) if size and scale else 0


def replay_graph(trace: WorkflowTrace, source: str, scales: Scales) -> Graph:
    """Returns the tasks of the trace in its order, followed by those that make its source files."""
    builder = GraphBuilder(source)
    makers = trace.producers()
    names = replay_names(trace, source)
    sizes = [scaled_size(file.size, scales.data) for file in trace.files]
    profiles: dict[Profile, Profile] = {}
    for task in trace.tasks:
        resources = requested(task, scales.memory_scale, scales.cores)
        profile = profile_for(task, resources)
        outputs = [names[file] for file in task.outputs]
        reads = tuple(names[file] for file in task.inputs)
        writes = tuple((names[file], sizes[file]) for file in task.outputs)
        builder.task(
            task.id,
            _call(reads, writes, _effort(task, scales, resources)),
            inputs=reads,
            outputs=outputs,
            after=parents_without_files(task, makers),
            profile=profiles.setdefault(profile, profile),
        )
    read = {file for task in trace.tasks for file in task.inputs}
    sources = [file for file, maker in enumerate(makers) if maker < 0 and file in read]
    profile = Profile(SOURCE_CATEGORY)
    for number, chunk in enumerate(_chunks(sources, sizes), 1):
        writes = tuple((names[file], sizes[file]) for file in chunk)
        call = _call((), writes, (0.0, 0.0, 1, 0))
        builder.task(f"source files {number}", call, outputs=[name for name, _ in writes], profile=profile)
    return builder.build()


def _effort(task: TraceTask, scales: Scales, resources: Resources) -> tuple[float, float, int, int]:
    """Returns seconds, CPU seconds, threads and memory of a replayed task; without a recorded CPU time, all the time
    counts."""
    executed = task.execution
    if executed is None:
        return 0.0, 0.0, 1, 0
    seconds = executed.seconds * scales.time
    share = 1.0 if executed.cpu_percent is None else executed.cpu_percent / 100
    threads = max(1, min(math.ceil(share - 0.05), resources.get("cores") // FRACTION))
    return seconds, seconds * min(share, threads), threads, resources.get("memory")


def _call(reads: tuple[str, ...], writes: tuple[tuple[str, int], ...], effort: tuple[float, float, int, int]) -> Call:
    seconds, cpu_seconds, threads, memory = effort
    sizes = ",".join(str(size) for _, size in writes)
    fingerprint = f"replay {seconds!r} {cpu_seconds!r} {threads} {memory} {sizes}"
    return Call(replay_task, fingerprint, arguments=(reads, writes, seconds, cpu_seconds, threads, memory))


def _chunks(files: Sequence[int], sizes: Sequence[int]) -> Iterable[list[int]]:
    chunk: list[int] = []
    total = 0
    for file in files:
        if chunk and (len(chunk) == CHUNK_FILES or total + sizes[file] > CHUNK_BYTES):
            yield chunk
            chunk, total = [], 0
        chunk.append(file)
        total += sizes[file]
    if chunk:
        yield chunk


def bytes_to_write(plan: Plan) -> int:
    """Returns how much more disk space a planned replay needs than its existing files take; 0 for other workflows."""
    total = 0
    for task in plan.to_run():
        action = plan.graph.actions[task]
        if isinstance(action, Call) and action.function is replay_task:
            for name, size in action.arguments[1]:
                total += size - (os.path.getsize(name) if os.path.isfile(name) else 0)
    return total


def refuse_small_disk(plan: Plan) -> None:
    """Refuses a replay that cannot fit on the disk before it begins; the trace's directory is the current one."""
    needed, free = bytes_to_write(plan), free_disk(".")
    if needed > free:
        raise InputError(
            f"the replay would write {show_bytes(needed)}, and {show_bytes(free)} are free here",
            file=plan.graph.source,
            remedy="make its files smaller, such as with data=0.001",
        )
