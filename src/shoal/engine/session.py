"""From a file name to a finished run: load, lock, look back, plan, run.

`look` does everything a reader needs (plan, why, graph) and touches nothing; `Session` is a run.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from shoal import __version__
from shoal.engine.books import Books, Listener
from shoal.engine.files import look_at_files
from shoal.engine.history import History, mend, read_history
from shoal.engine.leftovers import end_leftovers
from shoal.engine.links import links_of
from shoal.engine.load import Workflow, load_workflow
from shoal.engine.local import LocalRun
from shoal.engine.options import MORE, RunOptions
from shoal.engine.statistics import Statistics
from shoal.engine.workspace import Holder, Workspace
from shoal.errors import InputError
from shoal.ledger.file import LedgerWriter
from shoal.ledger.records import CategoriesDeclared, RunEnded, RunStarted, SourcesSeen, TasksPlanned
from shoal.model.graph import NO_TASK, Graph, ancestors
from shoal.model.resources import FRACTION, Resources, is_label, show_amount
from shoal.plan.decide import Plan, Reason, decide
from shoal.plan.identity import Versions
from shoal.runner.launch import LauncherClient
from shoal.runner.proc import boot_identity, start_ticks

_PLAN_CHUNK = 500
_GARBAGE_THRESHOLD = 100_000
"""A run makes many short-lived objects and hardly any cycles: looking for those every 700 objects is a waste."""


class View(msgspec.Struct):
    """A workflow, what is known of its past, and what is to be done."""

    workflow: Workflow
    workspace: Workspace
    history: History
    versions: Versions
    plan: Plan


def enter(path: str) -> Workspace:
    """Makes the workflow's directory the current one, where all its names are relative to."""
    workspace = Workspace(path)
    try:
        os.chdir(workspace.base)
    except OSError as error:
        raise InputError(f"cannot enter the workflow's directory {workspace.base!r}: {error.strerror}") from None
    return workspace


def load(workspace: Workspace, words: Sequence[str]) -> Workflow:
    """Loads the workflow; the current directory is its own."""
    return undisturbed(lambda: load_workflow(os.path.basename(workspace.workflow), words))


def undisturbed(read: Callable[[], Workflow]) -> Workflow:
    """Loads without the garbage collector in the way: a graph is many small objects and no garbage."""
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
    versions = Versions(graph)
    look_at_files(graph, wanted, versions, by_content, check_sources)
    plan = decide(graph, wanted, history, versions, force=force, adopt=as_found, kept=workflow.kept)
    if as_found:
        for task in plan.to_run():
            if plan.reasons[task] == Reason.NEW:
                for file in graph.outputs_of(task):
                    versions.sizes[file] = -1  # what stands there is not ours to remove
    return plan, versions


def look(
    path: str, words: Sequence[str], node: Resources | None, *, force: bool = False, by_content: bool = False
) -> View:
    """Loads and plans without locking or writing anything."""
    workspace = enter(path)
    workflow = load(workspace, words)
    history = read_history(workspace)
    plan, versions = make_plan(workflow, history, force, by_content)
    if node is not None:
        refuse_oversized(plan, node)
    return View(workflow, workspace, history, versions, plan)


def refuse_oversized(plan: Plan, node: Resources, more: str = MORE) -> None:
    """A task larger than the machine would wait for ever, so it is refused before anything runs."""
    graph = plan.graph
    too_large = {number for number, profile in enumerate(graph.profiles) if profile.resources.lacking_in(node)}
    if not too_large:
        return
    for task in plan.to_run():
        if graph.profile[task] in too_large:
            resources = graph.profile_of(task).resources
            name = resources.lacking_in(node)[0]
            if is_label(name):
                raise InputError(
                    f"{graph.names[task]!r} requires a node with the label {name}, which this machine does not have",
                    file=graph.source,
                    line=graph.lines[task] or None,
                    remedy=f"run it on a cluster, or say that this machine has it with --label {name}",
                )
            raise InputError(
                f"{graph.names[task]!r} asks for {name} {show_amount(name, resources.get(name))}, "
                f"but this machine has {show_amount(name, node.get(name))}",
                file=graph.source,
                line=graph.lines[task] or None,
                remedy=f"ask for less, or declare more with {more.format(name=name)} if it is there",
            )


class Run(Protocol):
    """What runs a plan to its end, here or elsewhere."""

    @property
    def statistics(self) -> Statistics: ...
    @property
    def books(self) -> Books: ...
    @property
    def graph(self) -> Graph: ...
    @property
    def stop_reason(self) -> str: ...
    @property
    def detached(self) -> bool:
        """Whether it goes on without us."""

    @property
    def stop_signal(self) -> int: ...
    def clock(self) -> float: ...
    def execute(self) -> None: ...


class Session:
    """One run of a workflow, from lock to last record."""

    def __init__(
        self,
        workspace: Workspace,
        read: Callable[[], Workflow],
        options: RunOptions,
        listener: Listener,
        *,
        force: bool = False,
        afresh: bool = False,
        before: Callable[[Workflow], None] | None = None,
    ) -> None:
        """`read` is called while the launcher boots, `before` under the lock and before the past is looked at; the
        current directory is the workspace's base."""
        self.options = options
        self.listener = listener
        self.tell_all = False
        """Tell the listener of every attempt, not only of those that did not succeed."""
        self.identity = os.urandom(6).hex()
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
        self.workspace.acquire(Holder(os.getpid(), os.uname().nodename, self.identity, time.time()))
        try:
            if before is not None:
                before(self.workflow)
            self.history = read_history(self.workspace)
            self._look_back()
            if afresh and self.history.bytes_read:
                os.truncate(self.workspace.ledger, 0)
                self.history = read_history(self.workspace)
            self.plan, self.versions = make_plan(
                self.workflow,
                self.history,
                force,
                options.by_content,
                options.as_found,
                options.check_sources,
            )
            self._refuse_what_fits_nowhere()
            if self.workflow.check is not None:
                self.workflow.check(self.plan)
        except BaseException:
            self.workspace.release()
            raise

    def _refuse_what_fits_nowhere(self) -> None:
        refuse_oversized(self.plan, self.options.node, self.options.more)

    def total_cores(self) -> float:
        """Cores of all machines that run it."""
        return self.options.node.get("cores") / FRACTION

    def abandon(self) -> None:
        """Gives up before anything was run."""
        self._unboot()
        self.workspace.release()

    def _look_back(self) -> None:
        ended = end_leftovers(self.workspace, self.history)
        if ended:
            self.listener.note(f"ended {ended} process{'es' * (ended > 1)} that a killed run had left behind")
        damage = mend(self.workspace, self.history)
        if damage:
            self.listener.note(damage)

    def _make_run(self, ledger: LedgerWriter) -> Run:
        return LocalRun(
            self.identity,
            self.plan,
            self.versions,
            self.workspace,
            ledger,
            self.options,
            self.listener,
            self.history,
            self.launcher,
        )

    def _finish(self) -> None:
        self.launcher.close()

    def execute(self) -> Run:
        """Runs what is to be run and closes the ledger; the returned run holds the statistics."""
        ledger = LedgerWriter(self.workspace.ledger, self.workspace.ballast)
        try:
            self._write_head(ledger)
            run = self._make_run(ledger)
            run.books.tell_all = self.tell_all
            try:
                run.execute()
            finally:
                totals = run.statistics
                unfinished = run.stop_reason or ("detached" if run.detached else "failed")
                outcome = "ok" if totals.done == totals.to_run() else unfinished
                left = totals.to_run() - totals.done - totals.failed
                ledger.add(RunEnded(run.clock(), outcome, totals.done, totals.failed, left))
        finally:
            ledger.close()
            self._finish()
            self.workspace.release()
        return run

    def _write_head(self, ledger: LedgerWriter) -> None:
        to_run = self.plan.to_run()
        graph = self.workflow.graph
        up_to_date = sum(graph.actions[task] is not None for task in self.plan.up_to_date())
        ledger.add(
            RunStarted(
                self.identity,
                time.time(),
                os.getpid(),
                start_ticks(os.getpid()) or 0,
                boot_identity(),
                os.uname().nodename,
                __version__,
                self.workflow.target_names,
                list(self.options.node.amounts),
                len(to_run) + up_to_date,
                len(to_run),
            )
        )
        self._write_categories(ledger, graph)
        self._write_sources(ledger, graph)
        categories = [profile.category for profile in graph.profiles]
        for begin in range(0, len(to_run), _PLAN_CHUNK):
            chunk = to_run[begin : begin + _PLAN_CHUNK]
            names = [graph.names[task] for task in chunk]
            ledger.add(TasksPlanned(chunk, names, [categories[graph.profile[task]] for task in chunk]))
            ledger.flush()
        for record in links_of(graph, [task for task in range(len(graph)) if self.plan.runs(task)]):
            ledger.add(record)
        ledger.flush()

    @staticmethod
    def _write_categories(ledger: LedgerWriter, graph: Graph) -> None:
        """The largest request of each category that has anything to run; groups have not."""
        declared: dict[str, dict[str, int]] = {}
        used = {number for number, action in zip(graph.profile, graph.actions, strict=True) if action is not None}
        for number in sorted(used):
            profile = graph.profiles[number]
            amounts = declared.setdefault(profile.category, {})
            for name, amount in profile.resources.amounts:
                if profile.declares(name) and not is_label(name):
                    amounts[name] = max(amount, amounts.get(name, 0))
        ledger.add(CategoriesDeclared(list(declared), [sorted(amounts.items()) for amounts in declared.values()]))

    def _write_sources(self, ledger: LedgerWriter, graph: Graph) -> None:
        sizes, times = self.versions.sizes, self.versions.times
        sources = [file for file, maker in enumerate(graph.producer) if maker == NO_TASK and sizes[file] >= 0]
        for begin in range(0, len(sources), _PLAN_CHUNK):
            chunk = sources[begin : begin + _PLAN_CHUNK]
            names = [graph.file_names[file] for file in chunk]
            ledger.add(SourcesSeen(names, [sizes[file] for file in chunk], [times[file] for file in chunk]))
