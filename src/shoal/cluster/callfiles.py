"""Python calls of a workflow as files, so that they can run on other nodes: what is called, and what came of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from shoal.cluster.selection import values_read
from shoal.engine.removal import remove_quietly
from shoal.engine.values import Values
from shoal.engine.workspace import Workspace
from shoal.errors import InputError
from shoal.model.graph import Graph
from shoal.model.task import Call
from shoal.plan.identity import place_of


class WorkspaceCalls:
    """In the workflow's own `.shoal` directory: results where those of local runs are, calls beside them."""

    def __init__(self, graph: Graph, workspace: Workspace) -> None:
        self._graph = graph
        self._folder = os.path.join(workspace.directory, "calls")
        self._values = os.path.relpath(workspace.values, workspace.base)
        self._calls = os.path.relpath(self._folder, workspace.base)

    def call_of(self, task: int) -> str:
        return f"{self._calls}/{place_of(self._graph, task).hex()}"

    def value_of(self, task: int) -> str:
        return f"{self._values}/{place_of(self._graph, task).hex()}"

    def write(self, tasks: Sequence[int], values: Values) -> None:
        """Writes what tells about the calls among some tasks, and the results of earlier runs that they need."""
        graph, chosen = self._graph, set(tasks)
        for task in tasks:
            action = graph.actions[task]
            if isinstance(action, Call):
                self._write_call(task, action)
                for other in self._makers(task):
                    if other not in chosen:
                        self._write_value(other, values)

    def _makers(self, task: int) -> list[int]:
        """Calls whose results a call may read."""
        graph = self._graph
        found = [graph.producer[file] for file in graph.inputs_of(task)] + list(graph.after_of(task))
        return [maker for maker in found if maker >= 0 and isinstance(graph.actions[maker], Call)]

    def _write_call(self, task: int, action: Call) -> None:
        from shoal.runner.apart import pack_call
        from shoal.runner.call_payload import plain_payload, task_payload

        graph = self._graph
        needs = [graph.file_names[file] for file in graph.inputs_of(task)]
        needs += [graph.names[other] for other in graph.after_of(task)]
        try:
            if action.wants_task:
                payload = task_payload(
                    graph.names[task],
                    graph.output_names(task),
                    needs,
                    named=dict(action.named),
                    wildcards=dict(action.wildcards),
                )
            else:
                payload = plain_payload(action.arguments, dict(action.keywords))
            packed = pack_call(action.function, payload, values_read(graph, task, self), sys.path)
        except Exception as error:  # whatever pickling of the user's own objects raises
            raise InputError(
                f"{graph.names[task]!r} cannot be brought to other nodes: {type(error).__name__}: {error}",
                file=graph.source,
                line=graph.lines[task] or None,
            ) from None
        _write(self.call_of(task), packed)

    def _write_value(self, task: int, values: Values) -> None:
        value = values.get(task)
        if value is not None and not os.path.exists(self.value_of(task)):
            _write(self.value_of(task), value)

    def clear(self) -> None:
        remove_quietly(self._folder)


def _write(path: str, data: bytes) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(f"{path}.new", "wb") as file:
        file.write(data)
    os.replace(f"{path}.new", path)
