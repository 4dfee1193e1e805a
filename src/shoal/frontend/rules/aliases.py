"""Refuses one file under two names, where a directory in one of them is a symbolic link.

Tasks are connected by the names of files. Under a second name a file that a task makes would be a source: its reader
would not wait for the task, and would see a change of the file one run too late. Two tasks that make one file would
replace each other's results.

Only directories are resolved, each once: for files in directories without links this costs one look at each directory.
The last part of a name is not resolved, because an output that is a link is judged as a link.
"""

from __future__ import annotations

from collections.abc import Iterable

from shoal.errors import InputError
from shoal.frontend.rules.definitions import FILE, Definitions
from shoal.frontend.rules.search import NOBODY, Search
from shoal.model.filenames import RealDirectory, join_name
from shoal.model.graph import NO_TASK, Graph


def refuse_aliases(graph: Graph, definitions: Definitions, search: Search, real: RealDirectory) -> None:
    """Refuses a file with several names if a task makes it: also a task that is defined and not in the graph, because
    the edge to it is what the second name has cost."""
    linked = {}
    for directory in _directories(graph.file_names) | _directories(definitions.explicit):
        resolved = real(directory)
        if resolved != directory:
            linked[directory] = resolved
    if linked:
        _Aliases(graph, definitions, search, linked).refuse()


def _directories(names: Iterable[str]) -> set[str]:
    return {name.rpartition("/")[0] for name in names if "/" in name}


class _Aliases:
    """The files whose names lead through links."""

    def __init__(self, graph: Graph, definitions: Definitions, search: Search, linked: dict[str, str]) -> None:
        self._graph = graph
        self._definitions = definitions
        self._search = search
        self._linked = linked
        self._made = {graph.file_names[file]: None for file in graph.outputs}
        """In the order of their tasks; also those that are defined and not in the graph."""
        for name, node in definitions.explicit.items():
            if definitions.kinds[node] == FILE and definitions.runs[node] is not None:
                self._made[definitions.plain(name)] = None

    def refuse(self) -> None:
        names = dict.fromkeys([*self._graph.file_names, *self._made])
        groups: dict[str, list[str]] = {}
        for name in names:
            real = self._real(name)
            if real != name:
                groups.setdefault(real, []).append(name)
        for real, group in groups.items():
            others = [real] if real in names else group[1:]
            if others and not self._made.keys().isdisjoint([*group, *others]):
                raise self._same(group[0], others[0], real)
            if self._made.keys().isdisjoint(group):
                self._refuse_source(group[0], real)

    def _refuse_source(self, name: str, real: str) -> None:
        """A rule may make it under its real name, or a task the directory that it is in."""
        if self._search.maker(real) != NOBODY:
            raise self._same(name, real, real)
        above = real.rpartition("/")[0]
        while above:
            if above in self._made:
                message = f"{name!r} is the file {real!r}, which is part of {above!r}, which a task makes as a whole"
                raise self._placed(name, message, f"need {above!r}")
            above = above.rpartition("/")[0]

    def _real(self, name: str) -> str:
        directory, slash, last = name.rpartition("/")
        return join_name(self._linked[directory], last) if slash and directory in self._linked else name

    def _same(self, name: str, other: str, real: str) -> InputError:
        return self._placed(name, f"{name!r} and {other!r} are the same file, and a task makes it", f"write {real!r}")

    def _placed(self, name: str, message: str, remedy: str) -> InputError:
        """An error at the line of a task that makes or needs the file."""
        graph, node = self._graph, self._definitions.explicit.get(name)
        if node is not None:
            return self._definitions.placed(InputError(message, remedy=remedy), self._definitions.places.of(node))
        file = graph.file_names.index(name)
        task = graph.producer[file]
        if task == NO_TASK:
            task = next(task for task in range(len(graph)) if file in graph.inputs_of(task))
        return InputError(message, file=graph.source, line=graph.lines[task] or None, remedy=remedy)
