"""Converts workflows between languages: reads a file and writes it as Makeflow, JSON, WfFormat or rules.

Between Makeflow, JSON and JX the document itself is converted, so nothing that both languages can express is lost. All
other pairs go through the task graph.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

import msgspec

from shoal import __version__
from shoal.core.graph import Graph
from shoal.core.resources import FRACTION, Resources
from shoal.errors import InputError
from shoal.execution.replay import Scales, replay_graph
from shoal.execution.session import enter, load
from shoal.execution.workflow_loader import Language, language_of, load_workflow, read_document, read_text
from shoal.formats.jx import Setting
from shoal.formats.makeflow import Makeflow, build_graph
from shoal.formats.makeflow.graphs import quote
from shoal.formats.wfformat import (
    DEFAULT_VERSION,
    Execution,
    TraceFile,
    TraceMachine,
    TraceRuntimeSystem,
    WorkflowTrace,
    cores_of,
    describe_graph,
    is_wfformat,
    read_wfformat,
    write_wfformat,
)
from shoal.ledger.file import LedgerReader
from shoal.ledger.identity import place_of
from shoal.ledger.records import RunEnded, RunStarted, SourcesSeen, TaskEnded, decode
from shoal.ledger.workspace import Workspace

Target = Literal["makeflow", "json", "wfformat", "rules"]


def convert(
    path: str,
    words: Sequence[str],
    target: Target,
    *,
    jx: Sequence[Setting] = (),
) -> bytes:
    """Returns the workflow at `path`, written as `target`; enters its directory. `words` are parameters and targets."""
    if target == "wfformat":
        return _to_wfformat(path, words, jx)
    jx = [(kind, os.path.abspath(text) if kind == "args" else text) for kind, text in jx]
    name = os.path.basename(enter(path).workflow)
    text = read_text(name)
    language = language_of(name, text)
    if language not in ("rules", "wfformat"):
        return _from_document(_document(name, text, language, words, jx), target)
    if jx:
        raise InputError("--jx-args and --jx-define are for JX workflows", file=path, remedy="leave them out")
    return _from_graph(_graph(name, text, language, words), target)


def _to_wfformat(path: str, words: Sequence[str], jx: Sequence[Setting]) -> bytes:

    if any(kind == "args" for kind, _ in jx):
        raise InputError("--jx-args cannot be used with --to wfformat", remedy="convert to json first")
    return export_wfformat(path, [*(text for _, text in jx), *words])


def _document(name: str, text: bytes, language: Language, words: Sequence[str], jx: Sequence[Setting]) -> Makeflow:
    if language == "makeflow" and jx:
        language = "jx"
    unused = next((word for word in words if language != "jx" or "=" not in word), None)
    if unused is not None:
        raise InputError(
            f"unexpected argument {unused!r}: the whole workflow is converted",
            remedy="give NAME=EXPRESSION for JX only",
        )
    defined: list[Setting] = [("define", word) for word in words]
    return read_document(name, text, language, [*jx, *defined])


def _graph(name: str, text: bytes, language: Language, words: Sequence[str]) -> Graph:
    if language == "wfformat":
        from shoal.formats.wfformat import read_wfformat, trace_graph

        return trace_graph(read_wfformat(text, name), name)
    return load_workflow(name, words).graph


def _from_document(document: Makeflow, target: Target) -> bytes:
    if target == "makeflow":
        from shoal.formats.makeflow.writer import write_makeflow

        return _encoded(write_makeflow(document))
    if target == "json":
        from shoal.formats.makeflow.json_form import write_json

        return _encoded(write_json(document))
    return _from_graph(build_graph(document), target)


def _from_graph(graph: Graph, target: Target) -> bytes:
    if target == "rules":
        from shoal.formats.rules.writer import write_rules

        return _encoded(write_rules(graph))
    from shoal.formats.makeflow.graphs import makeflow_from_graph

    return _from_document(with_directories(makeflow_from_graph(graph)), target)


def with_directories(document: Makeflow) -> Makeflow:
    """Adds `mkdir -p` to the commands, because other programs do not create the directories of outputs."""
    for rule in document.rules:
        parents = dict.fromkeys(os.path.dirname(name) for name in rule.outputs)
        parents.pop("", None)
        if parents and rule.command:
            rule.command = f"mkdir -p {' '.join(map(quote, parents))} && {rule.command}"
    return document


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def export_wfformat(path: str, words: Sequence[str], version: str = DEFAULT_VERSION) -> bytes:
    """Returns the workflow file at `path` as WfFormat; enters its directory. `words` are targets and parameters."""
    workspace = enter(path)
    name = os.path.basename(workspace.workflow)
    past = PastRuns(workspace)
    try:
        with open(workspace.workflow, "rb") as file:
            text = file.read()
    except OSError as error:
        raise InputError(f"cannot read the workflow: {error.strerror}", file=path) from None
    if is_wfformat(text):
        trace = measured_trace(read_wfformat(text, name), name, past)
    else:
        graph = load(workspace, words).graph
        executions = [past.execution(graph, task) for task in range(len(graph))]
        trace = past.complete(describe_graph(graph, name, executions, past.sizes(graph)))
    return msgspec.json.format(msgspec.json.encode(write_wfformat(trace, version)), indent=2) + b"\n"


def measured_trace(trace: WorkflowTrace, source: str, past: PastRuns) -> WorkflowTrace:
    """Returns the trace with the measurements of its last replay, or unchanged if it was never replayed."""
    graph = replay_graph(trace, source, Scales())
    executions = [past.execution(graph, task) for task in range(len(trace.tasks))]
    if not any(executions):
        return trace
    measured = dict(zip(graph.file_names, past.sizes(graph), strict=True))
    sizes: dict[int, str] = {}
    for number, task in enumerate(trace.tasks):
        sizes.update(zip(task.outputs, graph.output_names(number), strict=True))
        sizes.update(zip(task.inputs, graph.input_names(number), strict=True))
    files = [
        TraceFile(file.id, measured[sizes[number]]) if number in sizes else file
        for number, file in enumerate(trace.files)
    ]
    tasks = [msgspec.structs.replace(task, execution=run) for task, run in zip(trace.tasks, executions, strict=True)]
    return past.complete(msgspec.structs.replace(trace, tasks=tuple(tasks), files=tuple(files), author=None))


class PastRun(msgspec.Struct):
    """One run of the ledger."""

    start: RunStarted
    last: float
    """When it ended, or the last known time in it."""
    used: bool = False
    """Whether one of its results was used."""


class PastRuns:
    """The last result of every place, with the run that it comes from."""

    def __init__(self, workspace: Workspace) -> None:
        self.runs: list[PastRun] = []
        self.results: dict[bytes, tuple[int, bytes]] = {}
        self.sources: dict[str, int] = {}
        for payload in LedgerReader(workspace.ledger).payloads():
            self._take(payload)

    def _take(self, payload: bytes) -> None:
        record = decode(payload)
        match record:
            case RunStarted():
                self.runs.append(PastRun(record, record.time))
            case TaskEnded() if record.final and self.runs:
                self.results[record.place] = (len(self.runs) - 1, payload)
                self.runs[-1].last = max(self.runs[-1].last, record.ended)
            case SourcesSeen():
                self.sources.update(zip(record.names, record.sizes, strict=True))
            case RunEnded() if self.runs:
                self.runs[-1].last = record.time

    def result(self, graph: Graph, task: int) -> tuple[PastRun, TaskEnded] | None:
        found = self.results.get(place_of(graph, task))
        record = decode(found[1]) if found is not None else None
        if found is None or not isinstance(record, TaskEnded):
            return None
        return self.runs[found[0]], record

    def execution(self, graph: Graph, task: int) -> Execution | None:
        """Returns how the last run of a task went, or None if it never ran."""
        found = self.result(graph, task) if graph.actions[task] is not None else None
        if found is None:
            return None
        run, record = found
        run.used = True
        seconds = max(0.0, record.ended - record.started)
        cpu = record.user + record.system
        return Execution(
            round(seconds, 6),
            moment(record.started),
            cores_of(graph, task),
            round(100 * cpu / seconds, 4) if seconds else None,
            memory=record.max_rss or None,
            machines=(run.start.host,),
            exit_status=0 if record.outcome == "ok" else record.status or 1,
        )

    def sizes(self, graph: Graph) -> list[int]:
        """Returns the size of every file: as its task left it, else as a run recorded it, else as it is now, else 0."""
        sizes = [-1] * len(graph.file_names)
        for task in range(len(graph)):
            found = self.result(graph, task)
            if found is not None and found[1].outcome == "ok":
                for file, (size, _) in zip(graph.outputs_of(task), found[1].outputs, strict=False):
                    sizes[file] = size
        for file, name in enumerate(graph.file_names):
            if sizes[file] < 0:
                sizes[file] = self.sources.get(name, -1)
            if sizes[file] < 0:
                sizes[file] = os.path.getsize(name) if os.path.isfile(name) else 0
        return sizes

    def complete(self, trace: WorkflowTrace) -> WorkflowTrace:
        """Adds when, where and by which program the trace was run; counts only runs whose results are in the trace."""
        used = [run for run in self.runs if run.used]
        machines = {run.start.host: _machine(run.start) for run in used}
        return msgspec.structs.replace(
            trace,
            description=trace.description or f"{trace.name}, exported by Shoal",
            created_at=moment(datetime.now(UTC).timestamp()),
            system=TraceRuntimeSystem("Shoal", __version__),
            makespan=round(sum(run.last - run.start.time for run in used), 6) if used else None,
            executed_at=moment(used[0].start.time) if used else "",
            machines=tuple(machines.values()),
        )


def moment(seconds: float) -> str:
    """Returns a time in ISO 8601."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _machine(start: RunStarted) -> TraceMachine:
    """Describes the machine of a run with the resources that the run could use; adds details if it is this machine."""
    node = Resources(tuple(start.node))
    cores = max(1, node.get("cores") // FRACTION)
    here = os.uname()
    kind = (here.sysname.lower(), here.machine, here.release) if here.nodename == start.host else ("", "", "")
    system = {"linux": "linux", "darwin": "macos"}.get(kind[0], "")
    return TraceMachine(start.host, system, kind[1], kind[2], node.get("memory") or None, cores, has_cpu=True)
