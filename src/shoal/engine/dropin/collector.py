"""Garbage collection of files that no rule needs any more.

A file is collected when every rule that reads it is done and it is neither an input nor an output of the workflow. What
was collected is recorded, so that its absence is no reason to make it again.
"""

from __future__ import annotations

import os
from array import array

from shoal.engine.dropin.settings import Settings
from shoal.engine.removal import remove_tree
from shoal.model.graph import NO_TASK, Graph
from shoal.plan.decide import Plan
from shoal.plan.identity import place_of


class Collector:
    """Counts the readers of every file that a rule makes."""

    def __init__(self, graph: Graph, plan: Plan, kept: frozenset[str], settings: Settings) -> None:
        self.graph = graph
        self.settings = settings
        self.removed: list[str] = []
        """Names removed since somebody looked."""
        self._kept = kept
        self._readers = array("i", bytes(4 * len(graph.file_names)))
        for task in plan.to_run():
            for file in dict.fromkeys(graph.inputs_of(task)):
                self._readers[file] += 1
        self._standing = 0
        """Files made and not yet removed."""
        self._candidates: list[int] = []
        self._take_over(plan)

    def _take_over(self, plan: Plan) -> None:
        """Files that earlier runs made stand there, too, and those that nothing here reads may go with the first."""
        graph = self.graph
        is_read = bytearray(len(graph.file_names))
        for file in graph.inputs:
            is_read[file] = 1
        for file, maker in enumerate(graph.producer):
            name = graph.file_names[file]
            if maker != NO_TASK and not plan.runs(maker) and os.path.lexists(name):
                self._standing += 1
                if is_read[file] and not self._readers[file] and name not in self._kept:
                    self._candidates.append(file)

    def made(self, task: int) -> None:
        """A rule is done: its outputs stand there, and it needs its inputs no more."""
        graph = self.graph
        self._standing += len(graph.outputs_of(task))
        for file in dict.fromkeys(graph.inputs_of(task)):
            self._readers[file] -= 1
            if not self._readers[file] and graph.producer[file] != NO_TASK and graph.file_names[file] not in self._kept:
                self._candidates.append(file)

    def collect(self) -> list[bytes]:
        """Removes what may go, if it is time to; returns the places of the rules that made it."""
        if not self._candidates or not self._is_time():
            return []
        graph = self.graph
        places: dict[bytes, None] = {}
        for file in self._candidates:
            name = graph.file_names[file]
            if remove_file(name):
                self.removed.append(name)
                places[place_of(graph, graph.producer[file])] = None
            self._standing -= 1
        self._candidates.clear()
        return list(places)

    def _is_time(self) -> bool:
        if self.settings.collection != "on_demand":
            return True
        if self._standing > self.settings.collect_above:
            return True
        room = os.statvfs(".")
        return room.f_bavail * room.f_frsize <= self.settings.collect_below


def remove_file(name: str) -> bool:
    """Removes a file, or a directory with all that is in it; False if there was nothing, or it cannot be removed."""
    if not os.path.lexists(name):
        return False
    try:
        remove_tree(name, force=False)
    except OSError:
        return False
    return True
