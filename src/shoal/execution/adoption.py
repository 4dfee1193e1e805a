"""`shoal adopt`: records existing output files as results without running the tasks.

The user's word replaces the record of the run that made them. Nothing is run and no file is changed. A task is recorded
with its outputs, inputs and command as they are now, so it is up to date until one of them changes. The return value of
a function is in no file: if another function reads values, the task can be adopted only with a recorded value that the
same function returned for the same inputs.
"""

from __future__ import annotations

import os
import pickle
import time
from types import CodeType

import msgspec

from shoal.core.graph import ancestors, topological_order
from shoal.core.task import Action, Call
from shoal.execution.calls.graph_calls import Values
from shoal.execution.calls.task_api import UnknownValue
from shoal.execution.files.files import look_at_files
from shoal.execution.workflow_loader import Workflow
from shoal.ledger.file import LedgerWriter
from shoal.ledger.history import History
from shoal.ledger.identity import Versions, content_of, place_of
from shoal.ledger.ownership import Listing, encode_listings, made_of
from shoal.ledger.records import BY_CONTENT, BY_TIME, UNSAID, TaskAdopted, TaskEnded
from shoal.ledger.up_to_date import Plan, decide
from shoal.ledger.workspace import Workspace


class Refusal(msgspec.Struct, frozen=True):
    """A task that cannot be adopted, and why."""

    task: int
    why: str


class Adoption:
    """The tasks among the targets that can be adopted; building it changes nothing."""

    def __init__(self, workflow: Workflow, history: History, workspace: Workspace, *, by_content: bool) -> None:
        graph = self.graph = workflow.graph
        self.taken: list[int] = []
        self.refused: list[Refusal] = []
        self.up_to_date = 0
        """Number of tasks that are already recorded as done."""
        self.records: list[TaskAdopted] = []
        self._history = history
        self._versions = Versions(graph, BY_CONTENT if by_content else BY_TIME)
        self._values = Values(graph, workspace, history)
        self._time = time.time()
        self._done = bytearray(len(graph))
        wanted = ancestors(graph, workflow.targets)
        self._signatures = look_at_files(graph, wanted, self._versions, by_content, check_sources=False)
        kept = workflow.wanted_files() if history.collected else ()
        plan = decide(graph, wanted, history, self._versions, kept=kept)
        for task in topological_order(graph):
            if wanted[task]:
                self._decide(task, plan)
        self.taken.sort()
        self.refused.sort(key=lambda each: each.task)

    def _decide(self, task: int, plan: Plan) -> None:
        graph = self.graph
        if graph.actions[task] is None:
            self._done[task] = all(self._done[other] for other in graph.predecessors_of(task))
            return
        place = place_of(graph, task)
        last = self._history.result(place)
        if not plan.runs(task) and last is not None and self._reads_the_same(task, last):
            self._done[task] = 1
            self.up_to_date += 1
            return
        content = content_of(graph, task)
        is_same = last is not None and last.outcome == "ok" and last.content == content
        value = self._values.get(task) if is_same and last is not None and self._reads_the_same(task, last) else None
        why = self._obstacle(task, has_value=value is not None)
        if why:
            self.refused.append(Refusal(task, why))
            return
        self._take(task, place, content, value)

    def _take(self, task: int, place: bytes, content: bytes, value: bytes | None) -> None:
        graph, versions = self.graph, self._versions
        inputs = versions.digest_of_inputs(task)
        listing = self._listing(task, place)
        outputs = [(versions.sizes[file], versions.times[file]) for file in graph.outputs_of(task)]
        names = graph.output_names(task)
        if value is None and isinstance(graph.actions[task], Call):
            value = pickle.dumps(UnknownValue(graph.names[task]))
        identity = place, content, inputs
        self.records.append(TaskAdopted(self._time, names, *identity, outputs, value, versions.check, listing))
        versions.done[task] = self._time
        self._done[task] = 1
        self.taken.append(task)

    def _listing(self, task: int, place: bytes) -> bytes:
        """Returns the encoded content of directories and the targets of links. Entries of a directory that its task did
        not make last time still belong to the user."""
        before = made_of(self._history.accepted(place))
        listings: dict[int, Listing] = {}
        for at, file in enumerate(self.graph.outputs_of(task)):
            listing = self._signatures.note_made(file, self._versions.check == BY_CONTENT)
            if listing:
                made = before[at] if at < len(before) and before[at].listing else None
                listings[at] = {name: entry for name, entry in listing.items() if made is None or made.lists(name)}
        return encode_listings(listings)

    def _reads_the_same(self, task: int, result: TaskEnded) -> bool:
        versions = self._versions
        check = versions.check if result.check == UNSAID else result.check
        return versions.digest_otherwise(task, check) == result.inputs

    def _obstacle(self, task: int, *, has_value: bool) -> str:
        """Returns why a task cannot be adopted, or an empty string if it can."""
        graph, sizes = self.graph, self._versions.sizes
        for file in graph.inputs_of(task):
            if sizes[file] < 0:
                return f"its input {graph.file_names[file]!r} does not exist"
        for other in graph.predecessors_of(task):
            if not self._done[other]:
                return f"{graph.names[other]!r}, which it needs, is not done"
        if not len(graph.outputs_of(task)):
            return "it has no output file that would show whether it is done"
        for file in graph.outputs_of(task):
            # Files that garbage collection removed have a recorded size.
            if sizes[file] < 0 or not os.path.exists(graph.file_names[file]):
                return f"its output {graph.file_names[file]!r} does not exist"
        if isinstance(graph.actions[task], Call) and not has_value:
            for other in graph.successors_of(task):
                if _reads_values(graph.actions[other]):
                    return f"its return value is not recorded, and {graph.names[other]!r} reads values"
        return ""


def _reads_values(action: Action) -> bool:
    """Returns whether a function may read values of its inputs; functions that it calls are not inspected."""
    if not isinstance(action, Call):
        return False
    codes = [getattr(action.function, "__code__", None)]
    for code in codes:  # the list grows during the loop
        if code is None or "value" in code.co_names:
            return True
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return False


def record(adoption: Adoption, workspace: Workspace) -> None:
    """Writes the adopted results to the ledger."""
    ledger = LedgerWriter(workspace.ledger, workspace.ballast)
    try:
        for each in adoption.records:
            ledger.add(each)
    finally:
        ledger.close()
