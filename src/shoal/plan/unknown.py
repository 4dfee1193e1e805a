"""Outputs that stand there although nothing on record has made them: no task may touch them without the user's word.

A task that has an accepted result has made its outputs here: as it left them they are ours, otherwise somebody has
changed them. Without a result an output is unknown, unless another task of this workflow made it (a former version of
the file had other rules), or an attempt was cut off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from shoal.ledger.records import UNSAID, TaskEnded
from shoal.model.graph import Graph
from shoal.plan.decide import Plan
from shoal.plan.identity import Versions, place_of


class Records(Protocol):
    """What is asked of earlier runs about files that stand there."""

    def accepted(self, place: bytes) -> TaskEnded | None:
        """The last result that was accepted, also if an attempt has failed since."""

    def made(self, name: str) -> Iterable[tuple[TaskEnded, int]]:
        """Accepted results of any tasks that made a file of this name, and which of their outputs that is."""

    def may_be_half_made(self, name: str) -> bool:
        """Whether an attempt may have begun a file of this name and not ended it."""


def find_unknown(
    plan: Plan, versions: Versions, records: Records, strangers_in: Callable[[int], Iterable[str]]
) -> None:
    """Notes in the plan which outputs of tasks that would run stand there and are unknown.

    `strangers_in` names what is in an output directory and no task of the workflow makes.
    """
    if not plan.anything_runs():
        return
    graph = plan.graph
    results: dict[int, bool] = {}
    for file in versions.standing:
        task = graph.producer[file]
        if not plan.runs(task):
            continue
        if task not in results:
            results[task] = records.accepted(place_of(graph, task)) is not None
        if results[task]:
            continue
        if _is_as_made(graph, file, versions, records):
            plan.inherited.add(file)
        elif records.may_be_half_made(graph.file_names[file]):
            continue
        elif file not in versions.folders or any(strangers_in(file)):
            plan.unknown.setdefault(task, []).append(file)


def _is_as_made(graph: Graph, file: int, versions: Versions, records: Records) -> bool:
    """Whether a task that has another place now, or is not in the workflow any more, left it like this."""
    return any(
        versions.seen(file, versions.check if result.check == UNSAID else result.check) == result.outputs[at]
        for result, at in records.made(graph.file_names[file])
    )
