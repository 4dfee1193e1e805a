"""One run of a workflow from start to end: load, lock, recover, plan, run, record.

`look` provides everything that a reader needs (plan, why, graph) and changes nothing; `Session` is a run. The functions
at the top build the records at the head of a run in the ledger.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import msgspec

from shoal import __version__
from shoal.core.graph import NO_TASK, Graph, ancestors
from shoal.core.resources import FRACTION, Resources, is_label, show_amount
from shoal.errors import InputError
from shoal.execution.attempt_recorder import AttemptRecorder, RunListener
from shoal.execution.files.backups import restore_all
from shoal.execution.files.files import look_at_files, refuse_hidden_parts
from shoal.execution.local_run import LocalRun
from shoal.execution.process_limits import raise_limit
from shoal.execution.processes.launcher_client import LauncherClient
from shoal.execution.processes.orders import notes_on
from shoal.execution.processes.process_table import boot_identity, start_ticks
from shoal.execution.recovery import end_leftovers
from shoal.execution.run_options import LARGER_NODE, MORE, PlannedRun, RunOptions
from shoal.execution.workflow_loader import Workflow, load_workflow
from shoal.ledger.file import LedgerWriter
from shoal.ledger.history import History, read_history, repair_ledger
from shoal.ledger.identity import Versions, place_of, place_of_text
from shoal.ledger.ownership import find_unknown
from shoal.ledger.records import (
    BY_CONTENT,
    BY_TIME,
    DETACHED,
    NONE_REQUESTED,
    TASKS_CANCELLED,
    CategoriesDeclared,
    CoresAsked,
    OutputsNamed,
    RunEnded,
    RunStarted,
    SourcesSeen,
    TasksLinked,
    TasksPlanned,
)
from shoal.ledger.statistics import Statistics
from shoal.ledger.up_to_date import ADOPT_OR_OVERWRITE, NOT_MADE_HERE, Plan, Reason, decide
from shoal.ledger.workspace import LockHolder, Workspace

_CHUNK = 100_000
_MOST = (1 << 31) - 1


def links_of(graph: Graph, tasks: Sequence[int]) -> Iterator[TasksLinked]:
    """Yields the records of these tasks' dependencies: one for files they read, one for tasks they follow without a
    file."""
    for begin in range(0, len(tasks), _CHUNK):
        chunk = array("i", tasks[begin : begin + _CHUNK])
        files, counts = _rows(chunk, graph.input_start, graph.inputs)
        if files:
            producers = array("i", map(graph.producer.__getitem__, files))
            yield TasksLinked(_bytes(chunk), _bytes(counts), _bytes(producers))
        after, counts = _rows(chunk, graph.after_start, graph.after)
        if after:
            yield TasksLinked(_bytes(chunk), _bytes(counts), _bytes(after))


def names_of_outputs(graph: Graph, tasks: Sequence[int]) -> OutputsNamed | None:
    """Returns the record of those tasks whose name is not the name of their only output; None if there are none."""
    start, outputs, files, names = graph.output_start, graph.outputs, graph.file_names, graph.names
    others = [
        task
        for task in tasks
        if start[task] != start[task + 1]
        and (start[task] + 1 != start[task + 1] or files[outputs[start[task]]] != names[task])
    ]
    if not others:
        return None
    return OutputsNamed([place_of(graph, task) for task in others], [graph.output_names(task) for task in others])


def categories_of(graph: Graph) -> CategoriesDeclared:
    """Returns the largest request of each category with runnable tasks; groups have none."""
    declared: dict[str, dict[str, int]] = {}
    used = {number for number, action in zip(graph.profile, graph.actions, strict=True) if action is not None}
    for number in sorted(used):
        profile = graph.profiles[number]
        amounts = declared.setdefault(profile.category, {})
        for name, amount in (*profile.resources.without("cores").amounts, ("cores", profile.resources.get("cores"))):
            if profile.declares(name) and not is_label(name):
                amounts[name] = max(amount, amounts.get(name, 0))
    return CategoriesDeclared(list(declared), [sorted(amounts.items()) for amounts in declared.values()])


def cores_of(graph: Graph, tasks: Sequence[int], categories: CategoriesDeclared) -> Iterator[CoresAsked]:
    """Yields the records of those tasks that request other cores than their category, which are few. All of `tasks` are
    runnable."""
    usual = {
        name: dict(amounts).get("cores", NONE_REQUESTED)
        for name, amounts in zip(categories.names, categories.resources, strict=True)
    }
    other: dict[int, int] = {}
    for number, profile in enumerate(graph.profiles):
        asked = profile.resources.get("cores") if profile.declares("cores") else NONE_REQUESTED
        if asked != usual.get(profile.category, asked):
            other[number] = min(asked, _MOST)
    if not other:
        return
    apart = [task for task in tasks if graph.profile[task] in other]
    for begin in range(0, len(apart), _CHUNK):
        chunk = array("i", apart[begin : begin + _CHUNK])
        yield CoresAsked(_bytes(chunk), _bytes(array("i", [other[graph.profile[task]] for task in chunk])))


def _rows(tasks: array[int], start: array[int], values: array[int]) -> tuple[array[int], array[int]]:
    found = array("i")
    counts = array("i")
    if not values:
        return found, counts
    for task in tasks:
        begin, end = start[task], start[task + 1]
        counts.append(end - begin)
        if begin != end:
            found.extend(values[begin:end])
    return found, counts


def _bytes(column: array[int]) -> bytes:
    if sys.byteorder == "big":
        column = array("i", column)
        column.byteswap()
    return column.tobytes()


_PLAN_CHUNK = 500
_LISTED = 3
_GARBAGE_THRESHOLD = 100_000
"""A run makes many short-lived objects and hardly any reference cycles: a collection every 700 objects is a waste."""


class SessionView(msgspec.Struct):
    """A workflow, its history, and the plan of what to run."""

    workflow: Workflow
    workspace: Workspace
    history: History
    versions: Versions
    plan: Plan


def enter(path: str) -> Workspace:
    """Makes the workflow's directory the current one; all its names are relative to it."""
    workspace = Workspace(path)
    try:
        os.chdir(workspace.base)
    except OSError as error:
        raise InputError(f"cannot enter the workflow's directory {workspace.base!r}: {error.strerror}") from None
    return workspace


def load(workspace: Workspace, words: Sequence[str]) -> Workflow:
    """Loads the workflow; the current directory is its own."""
    return without_collection(lambda: load_workflow(os.path.basename(workspace.workflow), words))


def without_collection(read: Callable[[], Workflow]) -> Workflow:
    """Loads with the garbage collector off: a graph consists of many small objects without garbage."""
    gc.disable()
    try:
        return read()
    finally:
        gc.freeze()
        gc.set_threshold(_GARBAGE_THRESHOLD, 50, 50)
        gc.enable()


def make_plan(
    workflow: Workflow,
    history: History,
    force: bool,
    by_content: bool,
    as_found: bool = False,
    check_sources: bool = True,
) -> tuple[Plan, Versions]:
    graph = workflow.graph
    wanted = ancestors(graph, workflow.targets)
    versions = Versions(graph, BY_CONTENT if by_content else BY_TIME)
    if check_sources:
        refuse_results_as_sources(graph, history)
    signatures = look_at_files(graph, wanted, versions, by_content, check_sources)
    if versions.folders and not as_found:
        refuse_hidden_parts(graph, wanted, versions.folders)
    kept = workflow.wanted_files() if history.collected else ()
    plan = decide(graph, wanted, history, versions, force=force, as_found=as_found, kept=kept)
    if not as_found:
        find_unknown(plan, versions, history, signatures.foreign_files_in)
    else:
        for task in plan.to_run():
            if plan.reasons[task] == Reason.NEW:
                for file in graph.outputs_of(task):
                    versions.sizes[file] = -1  # an existing file there is not ours to remove
    return plan, versions


def refuse_results_as_sources(graph: Graph, history: History) -> None:
    """Refuses results that are now taken for sources. A task whose rule lacks an input would otherwise stay up to date
    for ever."""
    for name, (outs, need) in graph.lacking.items():
        if history.result(place_of_text("\0".join(outs))) is not None:
            raise InputError(
                f"{need!r} is needed by {name!r} but does not exist and no task makes it",
                file=graph.source,
                remedy=f"create it, correct the rule, or say that {name!r} is yours: file({name!r})",
            )


def look(
    path: str, words: Sequence[str], node: Resources | None, *, force: bool = False, by_content: bool = False
) -> SessionView:
    """Loads and plans without locking or writing anything."""
    workspace = enter(path)
    workflow = load(workspace, words)
    history = read_history(workspace)
    plan, versions = make_plan(workflow, history, force, by_content)
    if node is not None:
        refuse_oversized(plan, node)
    return SessionView(workflow, workspace, history, versions, plan)


def refuse_oversized(plan: Plan, node: Resources, more: str = MORE) -> None:
    """Refuses tasks that are larger than the machine before anything runs, because they would wait for ever."""
    for task, name in _lacking(plan, plan.to_run, node):
        raise too_large(plan.graph, task, name, node, more)


def why_too_large(plan: Plan, task: int, node: Resources) -> tuple[int, InputError] | None:
    """Returns the task, or the first of its dependencies, that would be refused, with the error message."""
    for found, name in _lacking(plan, lambda: _needed(plan, task), node):
        return found, too_large(plan.graph, found, name, node)
    return None


def refuse_unknown(plan: Plan) -> None:
    """Refuses to run if outputs exist that no recorded task made: they belong to the user."""
    if not plan.unknown:
        return
    graph, task = plan.graph, next(iter(plan.unknown))
    first, *others = (graph.file_names[file] for files in plan.unknown.values() for file in files)
    more = f" and {len(others) - _LISTED:,} more" if len(others) > _LISTED else ""
    beside = f" (nor were {', '.join(map(repr, others[:_LISTED]))}{more})" if others else ""
    raise InputError(
        f"{first!r} {NOT_MADE_HERE}{beside}",
        file=graph.source,
        line=graph.lines[task] or None,
        remedy=ADOPT_OR_OVERWRITE,
    )


def _lacking(plan: Plan, tasks: Callable[[], Iterable[int]], node: Resources) -> Iterator[tuple[int, str]]:
    """Yields the tasks that request more than the node has, each with the name of the resource. Calls `tasks` only if
    there can be any."""
    graph = plan.graph
    lacking = [profile.resources.lacking_in(node) for profile in graph.profiles]
    if any(lacking):
        for task in tasks():
            if lacking[graph.profile[task]]:
                yield task, lacking[graph.profile[task]][0]


def _needed(plan: Plan, task: int) -> list[int]:
    """Returns the task and its dependencies that would run, nearest first."""
    graph = plan.graph
    found = {task: None}
    queue = [task]
    for current in queue:  # the list grows during the loop
        for other in graph.predecessors_of(current):
            if other not in found:
                found[other] = None
                queue.append(other)
    return [each for each in queue if plan.runs(each) and graph.actions[each] is not None]


def too_large(graph: Graph, task: int, name: str, node: Resources, more: str = MORE) -> InputError:
    """Returns the error for a task that requests more of a resource than the machine has."""
    if is_label(name):
        message = f"{graph.names[task]!r} requires a node with the label {name}, which this machine does not have"
        remedy = f"run it on a cluster, or declare it for this machine with --label {name}"
    else:
        asked, there = (show_amount(name, each.get(name)) for each in (graph.profile_of(task).resources, node))
        is_cluster = more == LARGER_NODE
        who = "the largest node of the cluster" if is_cluster else "this machine"
        message = f"{graph.names[task]!r} asks for {name} {asked}, but {who} has {there}"
        declare = more if is_cluster else f"declare more with {more.format(name=name)} if the machine has it"
        remedy = f"ask for less, or {declare}"
    return InputError(message, file=graph.source, line=graph.lines[task] or None, remedy=remedy)


def recover(workspace: Workspace, history: History, note: Callable[[str], None]) -> dict[str, str]:
    """Recovers from a killed run, under the lock and before any file is examined; returns where existing outputs were
    moved."""
    ended = end_leftovers(workspace, history)
    if ended:
        note(f"ended {ended} process{'es' * (ended > 1)} that a killed run had left behind")
    moved = restore_all(workspace, history, note)
    history.begun = frozenset()
    damage = repair_ledger(workspace, history)
    if damage:
        note(damage)
    return moved


class RunDriver(Protocol):
    """Runs a plan to its end, on this machine or on a cluster."""

    @property
    def statistics(self) -> Statistics: ...
    @property
    def recorder(self) -> AttemptRecorder: ...
    @property
    def graph(self) -> Graph: ...
    @property
    def stop_reason(self) -> str: ...
    @property
    def detached(self) -> bool:
        """Whether the run continues without this process."""

    @property
    def stop_signal(self) -> int: ...
    def ended_at(self) -> float:
        """When the run ended: now, or earlier if this process was not attached then."""

    def execute(self) -> None: ...


class Session:
    """One run of a workflow, from lock to last record."""

    attaches = False
    """Whether it continues a run that was submitted to a cluster earlier."""

    def __init__(
        self,
        workspace: Workspace,
        read: Callable[[], Workflow],
        options: RunOptions,
        listener: RunListener,
        *,
        force: bool = False,
        afresh: bool = False,
        before: Callable[[Workflow], None] | None = None,
    ) -> None:
        """`read` is called while the launcher boots, `before` under the lock and before the history is read; the
        current directory is the workspace's base."""
        self.options = options
        self.listener = listener
        self.report_all = False
        """Report every attempt to the listener, not only unsuccessful ones."""
        raise_limit()  # each worker process needs some descriptors
        self.identity = os.urandom(6).hex()
        self.began = 0.0
        """When the run began; set when that is written to the ledger, unless it began earlier."""
        self.workspace = workspace
        self._boot()
        try:
            self._prepare(read, options, force, afresh, before)
        except BaseException:
            self._unboot()
            raise

    def _boot(self) -> None:
        self.launcher = LauncherClient(self.identity)

    def _unboot(self) -> None:
        self.launcher.abandon()

    def _prepare(
        self,
        read: Callable[[], Workflow],
        options: RunOptions,
        force: bool,
        afresh: bool,
        before: Callable[[Workflow], None] | None,
    ) -> None:
        self.workflow = read()
        self.workspace.make()
        holder = LockHolder(os.getpid(), os.uname().nodename, self.identity, time.time())
        self.workspace.acquire(holder, attaching=self.attaches)
        try:
            if before is not None:
                before(self.workflow)
            self.history = read_history(self.workspace)
            self._recover()
            if afresh and self.history.bytes_read:
                os.truncate(self.workspace.ledger, 0)
                self.history = read_history(self.workspace)
            self.plan, self.versions = self._make_plan(options, force)
            self._refuse_unknown()
            self._refuse_what_fits_nowhere()
            for note in (*self.workflow.notes, *self._notes()):
                self.listener.note(note)
            if self.workflow.check is not None:
                self.workflow.check(self.plan)
        except BaseException:
            self.workspace.release()
            raise

    def _notes(self) -> Iterable[str]:
        """Yields warnings about this machine for the user."""
        return notes_on(self.plan, enforced=self.options.enforced)

    def _refuse_unknown(self) -> None:
        if not self.options.overwrite:
            refuse_unknown(self.plan)

    def _make_plan(self, options: RunOptions, force: bool) -> tuple[Plan, Versions]:
        return make_plan(
            self.workflow, self.history, force, options.by_content, options.as_found, options.check_sources
        )

    def _refuse_what_fits_nowhere(self) -> None:
        refuse_oversized(self.plan, self.options.node, self.options.more)

    def total_cores(self) -> float:
        """Cores of all machines that run it."""
        return self.options.node.get("cores") / FRACTION

    def abandon(self) -> None:
        """Releases everything before anything was run."""
        self._unboot()
        self.workspace.release()

    def _recover(self) -> None:
        recover(self.workspace, self.history, self.listener.note)

    def _make_run(self, ledger: LedgerWriter) -> RunDriver:
        return LocalRun(self._planned(ledger), self.options, self.launcher)

    def _planned(self, ledger: LedgerWriter) -> PlannedRun:
        return PlannedRun(self.identity, self.plan, self.versions, self.workspace, ledger, self.listener, self.history)

    def _finish(self) -> None:
        self.launcher.close()

    def execute(self) -> RunDriver:
        """Runs the plan and closes the ledger; the returned run holds the statistics."""
        ledger = LedgerWriter(self.workspace.ledger, self.workspace.ballast)
        try:
            self._write_head(ledger)
            run = self._make_run(ledger)
            run.recorder.report_all = self.report_all
            try:
                run.execute()
            finally:
                totals = run.statistics
                outcome = "ok" if totals.done == totals.to_run() else _why_unfinished(run)
                left = totals.to_run() - totals.done - totals.failed
                cancelled = 0 if run.stop_reason else totals.cancelled  # otherwise the run was cancelled, not the tasks
                ledger.add(RunEnded(run.ended_at(), outcome, totals.done, totals.failed, left, cancelled))
        finally:
            ledger.close()
            self._finish()
            self.workspace.release()
        return run

    def _write_head(self, ledger: LedgerWriter) -> None:
        to_run = self.plan.to_run()
        graph = self.workflow.graph
        now = time.time()
        self.began = self.began or now
        up_to_date = sum(graph.actions[task] is not None for task in self.plan.up_to_date())
        ledger.add(
            RunStarted(
                self.identity,
                self.began,
                os.getpid(),
                start_ticks(os.getpid()) or 0,
                boot_identity(),
                os.uname().nodename,
                __version__,
                self.workflow.target_names,
                list(self.options.node.amounts),
                len(to_run) + up_to_date,
                len(to_run),
                now if self.attaches else 0.0,
            )
        )
        declared = categories_of(graph)
        ledger.add(declared)
        self._write_sources(ledger, graph)
        categories = [profile.category for profile in graph.profiles]
        for begin in range(0, len(to_run), _PLAN_CHUNK):
            chunk = to_run[begin : begin + _PLAN_CHUNK]
            names = [graph.names[task] for task in chunk]
            ledger.add(TasksPlanned(chunk, names, [categories[graph.profile[task]] for task in chunk]))
            outputs = names_of_outputs(graph, chunk)
            if outputs is not None:
                ledger.add(outputs)
            ledger.flush()
        for record in links_of(graph, [task for task in range(len(graph)) if self.plan.runs(task)]):
            ledger.add(record)
        for apart in cores_of(graph, to_run, declared):
            ledger.add(apart)
        ledger.flush()

    def _write_sources(self, ledger: LedgerWriter, graph: Graph) -> None:
        sizes, times = self.versions.sizes, self.versions.times
        sources = [file for file, maker in enumerate(graph.producer) if maker == NO_TASK and sizes[file] >= 0]
        for begin in range(0, len(sources), _PLAN_CHUNK):
            chunk = sources[begin : begin + _PLAN_CHUNK]
            names = [graph.file_names[file] for file in chunk]
            pairs = [sizes[file] for file in chunk], [times[file] for file in chunk]
            ledger.add(SourcesSeen(names, *pairs, self.versions.check))


def _why_unfinished(run: RunDriver) -> str:
    """Returns the reason that the ledger records for an unfinished run."""
    if run.stop_reason or run.detached:
        return run.stop_reason or DETACHED
    return TASKS_CANCELLED if run.statistics.cancelled and not run.statistics.failed else "failed"
