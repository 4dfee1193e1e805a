"""A session whose run is on a cluster: the same load, lock, plan and ledger as a local one, and coming back to it.

Which tasks were brought is noted beside the ledger until all is known of them, by what each of them makes. So whoever
comes back finds them again even if the workflow's file has been edited meanwhile.
"""

from __future__ import annotations

import os
import shutil
from array import array
from collections.abc import Callable, Sequence

import msgspec

from shoal.agent.about import ONE, About
from shoal.agent.messages import (
    Cancel,
    Entries,
    Follow,
    Refused,
    WireMessage,
    make_codec,
)
from shoal.agent.stranded import waiting_sentence
from shoal.broker.dealing import ALL
from shoal.cluster.groups import told
from shoal.cluster.luggage import ARRIVING
from shoal.cluster.remote import RemoteOptions, RemoteRun
from shoal.cluster.selection import Selection
from shoal.engine.books import Listener
from shoal.engine.load import Workflow
from shoal.engine.options import LARGER_NODE, RunOptions
from shoal.engine.session import Run, Session, refuse_oversized
from shoal.engine.workspace import Workspace
from shoal.errors import InputError
from shoal.ledger.file import LedgerWriter
from shoal.model.graph import NO_TASK, Graph
from shoal.model.labels import carrying, labels_as_text, parse_label, required_labels
from shoal.model.resources import FRACTION, Resources, is_label
from shoal.model.work import Work
from shoal.plan.identity import place_of
from shoal.policy.balance import DEFAULT_POLICY
from shoal.store.directory import NodeInfo
from shoal.wire.access import read
from shoal.wire.caller import Caller
from shoal.wire.places import access_path

MOST_LISTED = 12
"""Labels that are named to somebody who asked for one that is not there."""


class Note(msgspec.Struct):
    """What was brought where."""

    cluster: str
    """Name, or path of the access file."""
    run: str
    places: list[bytes]
    words: list[str]
    """Targets and values, as they were given."""
    managed: bool = False
    files: list[str] = []
    returned: list[str] = []
    """Where nodes share no files: those of the run, and those that come back."""


def read_note(workspace: Workspace) -> Note | None:
    """What was brought and is not wholly known yet."""
    try:
        with open(workspace.brought, "rb") as file:
            return msgspec.msgpack.decode(file.read(), type=Note)
    except (OSError, msgspec.MsgspecError):
        return None


def call(cluster: str) -> Caller[WireMessage]:
    """A line to a cluster, by its name or the path of an access file."""
    return Caller(read(access_path(cluster)), make_codec())


def largest_node(nodes: dict[int, NodeInfo]) -> Resources:
    """Of each resource what the node with the most of it has, and all labels: no task can ask for more."""
    most: dict[str, int] = {}
    for node in nodes.values():
        for name, amount in node.capacity().amounts:
            most[name] = max(amount, most.get(name, 0))
    return Resources.of(most)


def refuse_unknown_label(label: str, nodes: dict[int, NodeInfo]) -> None:
    """A cluster whose nodes have not come yet may have it later."""
    if not is_label(label):
        raise InputError(f"--to {label!r} is not {ONE}, {ALL} or a label", remedy="write a label as KEY=VALUE")
    parse_label(label, "--to")
    known = {name: None for node in nodes.values() for name in labels_as_text(node.labels)}
    if nodes and label not in known:
        listed = ", ".join(sorted(known)[:MOST_LISTED]) + (", ..." if len(known) > MOST_LISTED else "")
        raise InputError(f"no node of the cluster has the label {label}", remedy=f"there are {listed}")


class ClusterSession(Session):
    """One run on a cluster."""

    def __init__(
        self,
        workspace: Workspace,
        read_workflow: Callable[[], Workflow],
        options: RunOptions,
        listener: Listener,
        cluster: str,
        caller: Caller[WireMessage],
        *,
        words: Sequence[str] = (),
        policy: str = DEFAULT_POLICY,
        to: str = ONE,
        managed: bool = False,
        detach: bool = False,
        attach: Note | None = None,
        force: bool = False,
    ) -> None:
        self.cluster, self.caller, self.policy, self.detach, self.attach = cluster, caller, policy, detach, attach
        self.words = list(words)
        self.managed = managed if attach is None else attach.managed
        nodes = self.nodes = told(caller).nodes
        self.to = to
        if to not in (ONE, ALL):
            refuse_unknown_label(to, nodes)
        self.cores = sum(node.resources.get("cores") for node in nodes.values()) / FRACTION
        if nodes:
            options = msgspec.structs.replace(options, node=largest_node(nodes))
        self.notes: set[str] = set()
        """What the user has been told already."""
        super().__init__(workspace, read_workflow, options, listener, force=force)

    def total_cores(self) -> float:
        return self.cores

    def _refuse_what_fits_nowhere(self) -> None:
        """More than any node has is refused; for a label that no node has a node may still come."""
        graph = self.workflow.graph
        labels = [label for profile in graph.profiles for label in required_labels(profile.resources)]
        more = LARGER_NODE if self.nodes else self.options.more
        refuse_oversized(self.plan, carrying(self.options.node, labels), more)
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
            self.identity = self.attach.run

    def _unboot(self) -> None:
        self.caller.close()

    def _finish(self) -> None:
        self.caller.close()

    def _make_run(self, ledger: LedgerWriter) -> Run:
        graph = self.workflow.graph
        remote = RemoteOptions(
            self.cores,
            fail_fast=self.options.fail_fast,
            by_content=self.options.by_content,
            detach=self.detach,
            targets=self.workflow.targets,
            kept=sorted(self.workflow.kept),
            notes=self.notes,
        )
        if self.attach is not None:
            remote.brought = True
            remote.selection = _selection(graph, self.attach)
            remote.returned = set(self.attach.returned)
            remote.known = self._known(self.attach.places)
        about = About(
            self.workflow.graph.source,
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
        )
        run = RemoteRun(
            self.identity,
            self.plan,
            self.versions,
            self.workspace,
            ledger,
            self.listener,
            self.caller,
            about,
            remote,
            self.history,
        )
        self._note(run)
        return run

    def _known(self, places: list[bytes]) -> frozenset[tuple[bytes, float]]:
        found = [(place, self.history.result(place)) for place in places]
        return frozenset((place, result.ended) for place, result in found if result is not None)

    def _note(self, run: RemoteRun) -> None:
        """Before anything is brought, so that it can be found whenever we are ended."""
        if self.attach is None and run.selection.tasks:
            places = [place_of(run.graph, task) for task in run.selection.tasks]
            back = sorted(run.returned)
            note = Note(self.cluster, self.identity, places, self.words, self.managed, run.selection.files, back)
            fresh = f"{self.workspace.brought}.new"
            with open(fresh, "wb") as file:
                file.write(msgspec.msgpack.encode(note))
            os.replace(fresh, self.workspace.brought)

    def execute(self) -> Run:
        """As a local one; what was noted is dropped when all is known."""
        run = super().execute()
        assert isinstance(run, RemoteRun)
        if not run.detached:
            forget_note(self.workspace)
        return run


def is_there(caller: Caller[WireMessage], note: Note) -> bool:
    """Whether the cluster has the run: it may never have got there wholly, or is over and known."""
    told = caller.ask(Follow(note.run, 0))
    return not isinstance(told, Entries) or told.state != "unknown"


def cancel_brought(workspace: Workspace, tasks: Sequence[bytes]) -> str:
    """Cancels a run that nobody follows, or the tasks of it that make these places; the cluster it is on."""
    note = read_note(workspace)
    if note is None:
        raise InputError(f"{os.path.basename(workspace.workflow)} is not being run")
    number = {place: at for at, place in enumerate(note.places)}
    named = [number[place] for place in tasks if place in number]
    if tasks and not named:
        raise InputError("none of these tasks is on the cluster", remedy="'shoal status' shows what is")
    with call(note.cluster) as caller:
        answer = caller.ask(Cancel(note.run, named))
    if isinstance(answer, Refused):
        raise InputError(f"the cluster refuses: {answer.why}")
    return note.cluster


def forget_note(workspace: Workspace) -> None:
    """Nothing of the workflow is on a cluster any more, so nothing is on its way back."""
    shutil.rmtree(os.path.join(workspace.directory, ARRIVING), ignore_errors=True)
    try:
        os.unlink(workspace.brought)
    except FileNotFoundError:
        pass


def _selection(graph: Graph, note: Note) -> Selection:
    """The tasks of the workflow as it is now that make what was brought; -1 for those that are not there any more."""
    number = {place_of(graph, task): task for task in range(len(graph))}
    tasks = [number.get(place, NO_TASK) for place in note.places]
    nothing = Work("", array("d"), array("i"), [], array("i"), array("i", [0]), array("i"))
    return Selection(tasks, nothing, note.files)


def must_be_free(workspace: Workspace) -> None:
    """A workflow that is on a cluster is not run a second time."""
    note = read_note(workspace)
    if note is not None:
        raise InputError(
            f"this workflow is being run on the cluster {note.cluster!r}",
            remedy="follow it with 'shoal attach'; Ctrl-C there ends it",
        )
