"""A session whose run is on a cluster: load, lock, plan and record as in a local session, and attach to a submitted
run.

A note of the submitted run lies beside the ledger until all of its results are recorded (`shoal.ledger.cluster_notes`).
"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from shoal.cluster.agent.messages import (
    CancelCommand,
    ClusterReply,
    ClusterRequest,
    ForgetCommand,
    LogReply,
    LogRequest,
    RefusedReply,
    WireMessage,
    make_codec,
)
from shoal.cluster.agent.run_description import ONE, RunDescription
from shoal.cluster.agent.unplaceable import waiting_sentence
from shoal.cluster.input_staging import WorkspaceCalls
from shoal.cluster.messaging.access import access_path, read
from shoal.cluster.messaging.caller import Caller
from shoal.cluster.nodes.groups import read_cluster
from shoal.cluster.remote_run import RemoteOptions, RemoteRun
from shoal.cluster.selection import Selection, SubmittedPlan, forget_note, read_plan, select, write_submitted
from shoal.core.distribution import ALL
from shoal.core.policies.stealing import DEFAULT_POLICY
from shoal.core.resources import FRACTION, Resources, carrying, is_label, labels_as_text, parse_label, required_labels
from shoal.core.store.directory import NodeInfo
from shoal.core.work import Work
from shoal.errors import InputError
from shoal.execution.attempt_recorder import RunListener
from shoal.execution.run_options import LARGER_NODE, RunOptions
from shoal.execution.session import RunDriver, Session, refuse_oversized
from shoal.execution.workflow_loader import Workflow
from shoal.ledger.cluster_notes import (
    GIVE_UP,
    SubmissionNote,
    drop_note,
    given_up_runs,
    is_submitted,
    note_given_up,
    read_note,
)
from shoal.ledger.file import LedgerWriter
from shoal.ledger.history import repair_ledger
from shoal.ledger.identity import Versions, place_of
from shoal.ledger.records import TaskEnded, decodable
from shoal.ledger.up_to_date import Plan
from shoal.ledger.workspace import LockHolder, Workspace

LOOK_SECONDS = 3.0
"""Seconds to wait for a reply to a status request."""
MOST_LISTED = 12
"""Maximum number of labels that an error message lists."""


def call(cluster: str) -> Caller[WireMessage]:
    """Opens a connection to a cluster, by its name or the path of an access file."""
    return Caller(read(access_path(cluster)), make_codec())


@contextmanager
def reach(cluster: str) -> Iterator[Caller[WireMessage]]:
    """Opens a connection to the cluster that has a run; if it is unreachable, the error names a remedy."""
    try:
        with call(cluster) as caller:
            yield caller
    except InputError as error:
        remedy = f"{error.remedy}; {GIVE_UP}" if error.remedy else GIVE_UP
        raise InputError(error.message, file=error.file, line=error.line, remedy=remedy) from None


def largest_node(nodes: dict[int, NodeInfo]) -> Resources:
    """Returns the maximum of each resource over the nodes, and all labels: the upper limit for one task."""
    most: dict[str, int] = {}
    for node in nodes.values():
        for name, amount in node.capacity().amounts:
            most[name] = max(amount, most.get(name, 0))
    return Resources.of(most)


def refuse_unknown_label(label: str, nodes: dict[int, NodeInfo]) -> None:
    """Rejects a label that no node has; if the cluster has no nodes yet, it may still get one."""
    if not is_label(label):
        raise InputError(f"--to {label!r} is not {ONE}, {ALL} or a label", remedy="write a label as KEY=VALUE")
    parse_label(label, "--to")
    known = {name: None for node in nodes.values() for name in labels_as_text(node.labels)}
    if nodes and label not in known:
        listed = ", ".join(sorted(known)[:MOST_LISTED]) + (", ..." if len(known) > MOST_LISTED else "")
        raise InputError(f"no node of the cluster has the label {label}", remedy=f"there are {listed}")


class SubmissionOptions(msgspec.Struct, frozen=True):
    """How a run is submitted to a cluster."""

    words: Sequence[str] = ()
    """The arguments of the workflow on the command line."""
    policy: str = DEFAULT_POLICY
    """How ready tasks are placed on the nodes."""
    to: str = ONE
    """The nodes that get the first tasks: one, all, or those with a label."""
    managed: bool = False
    """Nodes share no files, so the cluster transfers them."""
    detach: bool = False
    attach: SubmissionNote | None = None
    """The note of a run that the cluster has already: the session follows it and submits nothing."""


class ClusterSession(Session):
    """One run on a cluster."""

    def __init__(
        self,
        workspace: Workspace,
        read_workflow: Callable[[], Workflow],
        options: RunOptions,
        listener: RunListener,
        cluster: str,
        caller: Caller[WireMessage],
        submission: SubmissionOptions,
        *,
        force: bool = False,
    ) -> None:
        attach, to = submission.attach, submission.to
        self.cluster, self.caller, self.attach = cluster, caller, attach
        self.policy, self.detach = submission.policy, submission.detach
        self.attaches = attach is not None
        self._run: RemoteRun | None = None
        self._selection: Selection | None = None
        """What is to be submitted."""
        self.words = list(submission.words)
        self.managed = submission.managed if attach is None else attach.managed
        nodes = self.nodes = read_cluster(caller).nodes
        end_given_up(workspace, cluster, caller)
        self.to = to
        if to not in (ONE, ALL):
            refuse_unknown_label(to, nodes)
        self.cores = sum(node.resources.get("cores") for node in nodes.values()) / FRACTION
        if nodes:
            options = msgspec.structs.replace(options, node=largest_node(nodes))
        self.notes: set[str] = set()
        """Messages that were already shown."""
        super().__init__(workspace, read_workflow, options, listener, force=force)

    def total_cores(self) -> float:
        return self.cores

    def _notes(self) -> Iterable[str]:
        """Nodes report about themselves."""
        return ()

    def _refuse_what_fits_nowhere(self) -> None:
        """Rejects tasks that exceed every node, and files that cannot be sent, before anything is recorded of the run.
        A label that no node has is accepted: a node with it may still join."""
        graph = self.workflow.graph
        labels = [label for profile in graph.profiles for label in required_labels(profile.resources)]
        more = LARGER_NODE if self.nodes else self.options.more
        refuse_oversized(self.plan, carrying(self.options.node, labels), more)
        if self.attach is None:
            calls = WorkspaceCalls(graph, self.workspace)
            self._selection = select(self.plan, self.versions, calls, managed=self.managed)
        present = [node.capacity() for node in self.nodes.values()]
        if not present or self.attach is not None:
            return
        wanted = {graph.profile[task]: None for task in self.plan.to_run() if graph.actions[task] is not None}
        for number in wanted:
            sentence = waiting_sentence(graph.profiles[number], present)
            if sentence is not None:
                self.listener.note(sentence)
                self.notes.add(sentence)

    def _boot(self) -> None:
        if self.attach is not None:
            self.identity, self.began = self.attach.run, self.attach.began

    def _recover(self) -> None:
        """What was put aside when the run was brought is settled as its results come in."""
        if self.attach is None:
            super()._recover()
        elif damage := repair_ledger(self.workspace, self.history):
            self.listener.note(damage)

    def _make_plan(self, options: RunOptions, force: bool) -> tuple[Plan, Versions]:
        """Of a run that was submitted before: returns the plan of that time, even if the workflow has changed since."""
        if self.attach is None:
            return super()._make_plan(options, force)
        if read_note(self.workspace) != self.attach:
            raise InputError("another 'shoal attach' has just taken over this run", remedy="see 'shoal status'")
        brought = read_plan(self.workspace)
        self.workflow = brought.workflow
        return brought.plan, brought.versions

    def _unboot(self) -> None:
        self.caller.close()

    def _finish(self) -> None:
        """Drops the note, still under the lock, when all is known or nothing more can become known."""
        if self._run is not None and not self._run.may_be_there:
            forget_note(self.workspace)
        self.caller.close()

    def _make_run(self, ledger: LedgerWriter) -> RunDriver:
        remote = RemoteOptions(
            self.options,
            self.cores,
            fail_fast=self.options.fail_fast,
            by_content=self.options.by_content,
            detach=self.detach,
            targets=self.workflow.targets,
            kept=sorted(self.workflow.kept),
            selection=self._selection,
            notes=self.notes,
            began=self.began,
        )
        if self.attach is not None:
            remote.brought = True
            nothing = Work("", array("d"), array("i"), [], array("i"), array("i", [0]), array("i"))
            remote.selection = Selection(self.attach.tasks, nothing, self.attach.files)
            remote.returned = set(self.attach.returned)
            remote.known = self._known(self.attach.places)
        about = RunDescription(
            decodable(self.workflow.graph.source),
            self.workspace.base,
            0,
            self.options.order,
            self.policy,
            self.options.retry_pause,
            self.options.enforced,
            self.managed,
            client=f"{os.environ.get('USER', '')}@{os.uname().nodename}",
            to=self.to,
            throttle=self.options.throttle.name,
            workflow=self.workspace.workflow,
        )
        run = RemoteRun(self._planned(ledger), self.caller, about, remote)
        self._note(run)
        self._run = run
        return run

    def _known(self, places: list[bytes]) -> dict[bytes, TaskEnded]:
        found = [(place, self.history.result(place)) for place in places]
        return {place: result for place, result in found if result is not None}

    def _note(self, run: RemoteRun) -> None:
        """Writes the note before anything is submitted, so that the run is found even if this process is killed."""
        if self.attach is None and run.has_work:
            tasks = run.selection.tasks
            note = SubmissionNote(
                self.cluster,
                self.identity,
                [place_of(run.graph, task) for task in tasks],
                self.words,
                self.managed,
                run.selection.files,
                sorted(run.returned),
                self.began,
                tasks,
                self.options.by_content,
            )
            write_submitted(self.workspace, note, SubmittedPlan(self.workflow, self.plan, self.versions))


def is_there(caller: Caller[WireMessage], note: SubmissionNote) -> bool:
    """Whether the cluster has the run: the submission may be incomplete, or the run over and forgotten."""
    told = caller.ask(LogRequest(note.run, 0))
    return not isinstance(told, LogReply) or told.state != "unknown"


class SubmittedRun(msgspec.Struct, frozen=True):
    """State of a submitted run that no client follows, as far as it is known."""

    cluster: str
    since: float
    tasks: int | None = None
    """Number of submitted tasks; None: the cluster was not reached."""
    left: int | None = None
    """Number of unfinished tasks; None: the cluster does not have the run."""
    ready: int = 0
    """Number of unfinished tasks that are ready or running."""
    trouble: str = ""
    """Why the cluster could not be asked."""


def query_submitted(workspace: Workspace) -> SubmittedRun | None:
    """Asks the cluster for the state of the run; None if no run is submitted."""
    note = read_note(workspace)
    if note is None:
        return None
    try:
        with Caller(read(access_path(note.cluster)), make_codec(), patience=LOOK_SECONDS) as caller:
            found = caller.ask(ClusterRequest(), LOOK_SECONDS)
    except InputError as error:
        return SubmittedRun(note.cluster, note.began, trouble=error.message)
    if not isinstance(found, ClusterReply):
        why = found.why if isinstance(found, RefusedReply) else ""
        return SubmittedRun(note.cluster, note.began, trouble=f"the cluster does not reply: {why}")
    run = next((each for each in found.runs if each.run == note.run and each.state != "lost"), None)
    if run is None:
        return SubmittedRun(note.cluster, note.began, len(note.places))
    return SubmittedRun(note.cluster, note.began, run.tasks, run.left, run.ready)


def cancel_submitted(workspace: Workspace, tasks: Sequence[bytes]) -> tuple[str, bool]:
    """Cancels a run that no client follows, or its tasks that make `tasks`; returns the cluster and whether it has the
    run. A run that the cluster does not have is given up, since 'shoal attach' would submit it again."""
    note = read_note(workspace)
    if note is None:
        raise InputError(f"{os.path.basename(workspace.workflow)} is not being run")
    number = {place: at for at, place in enumerate(note.places)}
    named = [number[place] for place in tasks if place in number]
    if tasks and not named:
        raise InputError("none of these tasks is on the cluster", remedy="'shoal status' shows what is")
    with reach(note.cluster) as caller:
        there = is_there(caller, note)
        answer = caller.ask(CancelCommand(note.run, named)) if there else None
    if isinstance(answer, RefusedReply):
        raise InputError(f"the cluster refuses: {answer.why}")
    if not there and tasks:
        raise InputError(
            f"the cluster {note.cluster} does not have this run",
            remedy="give the run up with 'shoal cancel' and no task, or submit the rest of it with 'shoal attach'",
        )
    if not there:
        give_up_submitted(workspace)
    return note.cluster, there


def give_up_submitted(workspace: Workspace) -> str:
    """Gives up a run whose cluster is gone for good; returns its name. One that has the run is asked itself."""
    if not is_submitted(workspace):
        raise InputError(f"{os.path.basename(workspace.workflow)} is not on a cluster")
    workspace.acquire(LockHolder(os.getpid(), os.uname().nodename, "", time.time()), attaching=True)
    try:
        try:
            note = read_note(workspace)
        except InputError:
            note = None  # a damaged note is a reason to give it up
        if note is not None and _answers(note):
            raise InputError(
                f"the cluster {note.cluster!r} replies and has this run",
                remedy="end it there with 'shoal cancel', and record its results with 'shoal attach'",
            )
        if note is not None:
            _note_given_up(workspace, note)
        forget_note(workspace)
    finally:
        workspace.release()
    return note.cluster if note is not None else ""


def _note_given_up(workspace: Workspace, note: SubmissionNote) -> None:
    try:
        note_given_up(workspace, note.run, note.cluster)
    except OSError as error:
        raise InputError(
            f"cannot record in {workspace.given_up!r} that the run is given up: {error.strerror}",
            remedy="free some space there, or make it writable; nothing has changed",
        ) from None


def end_given_up(workspace: Workspace, cluster: str, caller: Caller[WireMessage]) -> None:
    """Ends runs on this cluster that were given up while it was unreachable.

    Cancels what still runs, forgets what has ended, and removes the note when the cluster does not know the run. Each
    submission to the cluster makes one of these steps, so the note outlives everything that nodes do because of it.
    """
    for run in given_up_runs(workspace, cluster):
        found = caller.ask(LogRequest(run, 0))
        if not isinstance(found, LogReply):
            continue
        if found.state == "unknown":
            drop_note(workspace, run)
        else:
            caller.ask(ForgetCommand(run) if found.state == "ended" else CancelCommand(run, []))


def _answers(note: SubmissionNote) -> bool:
    """Whether the cluster replies and has the run."""
    try:
        with call(note.cluster) as caller:
            return is_there(caller, note)
    except InputError:
        return False
