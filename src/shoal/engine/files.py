"""Files of a workflow on disk: what is there, what a task left behind, room for what it will make."""

from __future__ import annotations

import os
import stat
from hashlib import blake2b

from shoal.errors import InputError
from shoal.model.graph import NO_TASK, Graph
from shoal.plan.identity import Versions

_DIRECTORY_SIGNATURE = (0, 1)
"""For a directory only its being there counts: its own time changes with every file made in it."""
_LISTED = 3


def signature(path: str, by_content: bool) -> tuple[int, int] | None:
    """Size and modification time of a file (or a number made from its content); None if it is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    if stat.S_ISDIR(found.st_mode):
        return _DIRECTORY_SIGNATURE
    return found.st_size, content_number(path) if by_content else found.st_mtime_ns


def content_number(path: str) -> int:
    """A 62-bit number made from the file's bytes."""
    state = blake2b(digest_size=8)
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(1 << 20):
            state.update(piece)
    return int.from_bytes(state.digest(), "little") >> 2


def look_at_files(
    graph: Graph, wanted: bytearray, versions: Versions, by_content: bool, check_sources: bool = True
) -> None:
    """Fills `versions` for every file that a wanted task reads or makes, and refuses to go on without a source file."""
    seen = bytearray(len(graph.file_names))
    missing: list[tuple[int, int]] = []
    everything = 0 not in wanted
    for task in range(len(graph)):
        if not everything and not wanted[task]:
            continue
        for file in graph.inputs_of(task):
            if not seen[file]:
                seen[file] = 1
                if not _look(graph, file, versions, by_content) and graph.producer[file] == NO_TASK:
                    missing.append((file, task))
        for file in graph.outputs_of(task):
            if not seen[file]:
                seen[file] = 1
                _look(graph, file, versions, by_content)
    if missing and check_sources:
        raise _missing_error(graph, missing)


def _look(graph: Graph, file: int, versions: Versions, by_content: bool) -> bool:
    name = graph.file_names[file]
    if not os.access(name, os.F_OK):  # cheaper than the exception of a failing stat
        return False
    found = signature(name, by_content)
    if found is None:
        return False
    versions.sizes[file], versions.times[file] = found
    return True


def _missing_error(graph: Graph, missing: list[tuple[int, int]]) -> InputError:
    file, task = missing[0]
    names = ", ".join(repr(graph.file_names[file]) for file, _ in missing[1:_LISTED])
    more = len(missing) - _LISTED
    others = f" (also missing: {names}{f' and {more} more' if more > 0 else ''})" if names else ""
    return InputError(
        f"{graph.file_names[file]!r} is needed by {graph.names[task]!r} "
        f"but does not exist and no task makes it{others}",
        file=graph.source,
        line=graph.lines[task] or None,
        remedy="create it, correct its name, or add a rule that makes it",
    )


class Preparer:
    """Makes room for the outputs of a task before each attempt."""

    def __init__(self, graph: Graph, versions: Versions, *, make_parents: bool = True) -> None:
        self.graph = graph
        self.versions = versions
        self._make_parents = make_parents
        self._made = {""}

    def prepare(self, task: int, attempt: int) -> str | None:
        """Makes parent directories and removes what an earlier attempt left; a string says why that failed.

        Old outputs go first, so that a file found afterwards was made by this attempt, and a command that appends
        does not append to half a result.
        """
        graph = self.graph
        begin, end = graph.output_start[task], graph.output_start[task + 1]
        if begin == end:
            return None
        for file in graph.outputs[begin:end]:
            name = graph.file_names[file]
            try:
                if attempt > 1 or self.versions.sizes[file] >= 0:
                    self._remove(name)
                    self.versions.sizes[file] = -1
                parent = os.path.dirname(name) if self._make_parents else ""
                if parent not in self._made:
                    os.makedirs(parent, exist_ok=True)
                    self._made.add(parent)
            except OSError as error:
                return f"cannot prepare its output {name!r}: {error.strerror}"
        return None

    @staticmethod
    def _remove(name: str) -> None:
        if os.path.isdir(name) and not os.path.islink(name):
            return  # a directory is filled anew, not emptied: it may hold files of others
        try:
            os.unlink(name)
        except FileNotFoundError:
            pass

    def take_stock(self, task: int, by_content: bool) -> str | None:
        """Reads the signatures of what a task made; a string names the first file that is not there."""
        graph = self.graph
        begin, end = graph.output_start[task], graph.output_start[task + 1]
        for file in graph.outputs[begin:end]:
            found = signature(graph.file_names[file], by_content)
            if found is None:
                return f"exit status 0, but it did not make {graph.file_names[file]!r}"
            self.versions.sizes[file], self.versions.times[file] = found
        return None
