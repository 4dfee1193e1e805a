"""Return values of tasks: small ones travel in the ledger, large ones lie in a file each, and all are found again.

Values are pickled bytes here; only workers and whoever asks for a result unpickle them.
"""

from __future__ import annotations

import os

from shoal.engine.workspace import Workspace
from shoal.model.graph import Graph
from shoal.plan.decide import Past
from shoal.plan.identity import place_of

INLINE_BYTES = 1 << 16


class Values:
    """Values of the tasks of one run, those of earlier runs included."""

    def __init__(self, graph: Graph, workspace: Workspace, past: Past) -> None:
        self.graph = graph
        self.workspace = workspace
        self.past = past
        self._held: dict[int, bytes] = {}

    def keep(self, task: int, value: bytes) -> bytes | None:
        """Keeps a value for successors and later runs; returns what belongs into the ledger."""
        if self.graph.successor_start[task] != self.graph.successor_start[task + 1]:
            self._held[task] = value
        if len(value) <= INLINE_BYTES:
            return value
        os.makedirs(self.workspace.values, exist_ok=True)
        path = self._path(task)
        with open(path + ".new", "wb") as file:
            file.write(value)
        os.replace(path + ".new", path)
        return None

    def get(self, task: int) -> bytes | None:
        """The value of a task that is done; None if it has none."""
        value = self._held.get(task)
        if value is not None:
            return value
        result = self.past.result(place_of(self.graph, task))
        if result is not None and result.value is not None:
            value = result.value
        else:
            try:
                with open(self._path(task), "rb") as file:
                    value = file.read()
            except OSError:
                return None
        self._held[task] = value
        return value

    def _path(self, task: int) -> str:
        return os.path.join(self.workspace.values, place_of(self.graph, task).hex())
