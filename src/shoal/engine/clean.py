"""Removes what a workflow made, and nothing else.

What a task made is known from the ledger: the files of an accepted result with their signatures as the task left them.
Their names come from the workflow; of tasks that are no longer in it they are known when the task made one file, for
then the recorded name proves itself by its hash. A file that is not as it was left has been changed by somebody and is
kept, as is everything that only looks as if it had been made. Inside a directory that a task declared as its output,
files that came into being while the task ran are its own.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator

import msgspec

from shoal.engine.files import signature
from shoal.engine.history import History
from shoal.engine.workspace import DIRECTORY, Workspace
from shoal.ledger.file import LedgerReader
from shoal.ledger.records import TaskEnded, TasksPlanned, decode
from shoal.model.graph import NO_TASK, Graph
from shoal.plan.identity import place_of, place_of_text

_SLACK = 0.05
"""Seconds by which the file system's clock may be behind or ahead of ours."""


class Kept(msgspec.Struct, frozen=True):
    """A file that stays, and why."""

    name: str
    why: str
    is_output: bool = True


class Cleaning(msgspec.Struct):
    """What is to be removed, in the order in which it can be."""

    files: list[str] = []
    directories: list[str] = []
    """Declared output directories and parents of outputs, deepest first; they go only if nothing is left in them."""
    kept: list[Kept] = []
    size: int = 0
    unknown: int = 0
    """Results of tasks that are no longer in the workflow and whose files are therefore not known."""


def find_what_was_made(graph: Graph, history: History, workspace: Workspace, force: bool) -> Cleaning:
    """Looks at everything the ledger says was made; changes nothing. The current directory is the workflow's."""
    return _Search(graph, history, workspace, force).run()


def remove(cleaning: Cleaning) -> list[Kept]:
    """Removes what was found; returns what could not be removed."""
    stuck = []
    for name in cleaning.files:
        try:
            os.unlink(name)
        except FileNotFoundError:
            pass
        except OSError as error:
            stuck.append(Kept(name, error.strerror or "cannot be removed"))
    for name in cleaning.directories:
        try:
            os.rmdir(name)
        except OSError:
            pass  # something is left in it, which is not ours
    return stuck


def forget(workspace: Workspace) -> None:
    """Removes the records themselves."""
    shutil.rmtree(workspace.directory, ignore_errors=True)
    try:
        os.rmdir(os.path.join(workspace.base, DIRECTORY))
    except OSError:
        pass  # another workflow has its records there


class _Search:
    def __init__(self, graph: Graph, history: History, workspace: Workspace, force: bool) -> None:
        self.graph = graph
        self.history = history
        self.workspace = workspace
        self.force = force
        self.cleaning = Cleaning()
        self.sources = {graph.file_names[file] for file, maker in enumerate(graph.producer) if maker == NO_TASK} | {
            os.path.basename(workspace.workflow)
        }
        self._parents: dict[str, None] = {}

    def run(self) -> Cleaning:
        graph, history = self.graph, self.history
        known: dict[bytes, None] = {}
        directories: list[tuple[str, bytes]] = []
        for task in range(len(graph)):
            place = place_of(graph, task)
            known[place] = None
            result = history.result(place)
            names = graph.output_names(task)
            if result is None or result.outcome != "ok":
                for name in names:
                    self._unproven(name)
                continue
            for name, seen in zip(names, result.outputs, strict=False):
                if os.path.isdir(name) and not os.path.islink(name):
                    directories.append((name, place))
                else:
                    self._file(name, seen)
        self._forgotten(known)
        if directories:
            self._directories(directories)
        self.cleaning.directories += sorted(self._parents, key=lambda name: -name.count("/"))
        return self.cleaning

    def _forgotten(self, known: dict[bytes, None]) -> None:
        """Results of tasks that the workflow no longer has."""
        others = [place for place in self.history.results if place not in known]
        if not others:
            return
        names = _recorded_names(self.workspace)
        for place in others:
            result = self.history.result(place)
            if result is None or result.outcome != "ok" or not result.outputs:
                continue
            name = names.get(place)
            if name is None or len(result.outputs) != 1:
                self.cleaning.unknown += 1
            elif name not in self.sources and not os.path.isdir(name):
                self._file(name, result.outputs[0])

    def _file(self, name: str, seen: tuple[int, int]) -> None:
        found = _look(name)
        if found is None:
            return
        if self._is_as_left(name, seen) or self.force:
            self._take(name, found)
        else:
            self.cleaning.kept.append(Kept(name, "was changed since it was made"))

    @staticmethod
    def _is_as_left(name: str, seen: tuple[int, int]) -> bool:
        """By time, or by content if that is how the run looked at files."""
        if signature(name, by_content=False) == seen:
            return True
        try:
            return os.path.getsize(name) == seen[0] and signature(name, by_content=True) == seen
        except OSError:
            return False

    def _unproven(self, name: str) -> None:
        """An output that is there although no task is on record for having finished it: half made, or the user's."""
        found = _look(name)
        if found is None:
            return
        if self.force and not stat.S_ISDIR(found.st_mode):
            self._take(name, found)
        else:
            self.cleaning.kept.append(Kept(name, "is an output, but no task is on record for having finished it"))

    def _take(self, name: str, found: os.stat_result) -> None:
        self.cleaning.files.append(name)
        self.cleaning.size += found.st_size
        self._note_parents(name)

    def _note_parents(self, name: str) -> None:
        """Directories that were made for outputs; never the workflow's own, nor one outside of it."""
        parent = os.path.dirname(os.path.normpath(name))
        while parent and not os.path.isabs(parent) and not parent.startswith(".."):
            self._parents[parent] = None
            parent = os.path.dirname(parent)

    def _directories(self, directories: list[tuple[str, bytes]]) -> None:
        """Files below declared directories that have no rule of their own: a task's own if they came while it ran."""
        times = _times_of(self.workspace, {place for _, place in directories})
        ruled = set(map(os.path.normpath, self.graph.file_names))
        makers: dict[str, list[bytes]] = {}
        for name, place in directories:
            if (self.workspace.base + "/").startswith(os.path.abspath(name) + "/"):
                continue  # the workflow itself is in it
            for path in map(os.path.normpath, _files_below(name)):
                if path not in ruled:
                    makers.setdefault(path, []).append(place)
            for parent, _, _ in os.walk(name):
                self._parents[os.path.normpath(parent)] = None
        for path, places in makers.items():
            found = os.lstat(path)
            spans = [span for place in places for span in times.get(place, [])]
            if any(begin - _SLACK <= found.st_ctime <= end + _SLACK for begin, end in spans):
                self._take(path, found)
            else:
                self.cleaning.kept.append(Kept(path, "did not come from the task that makes its directory", False))


def _look(name: str) -> os.stat_result | None:
    try:
        return os.lstat(name)
    except OSError:
        return None


def _files_below(directory: str) -> Iterator[str]:
    for parent, subdirectories, files in os.walk(directory):
        for name in sorted(files):
            yield os.path.join(parent, name)
        for name in sorted(subdirectories):
            if os.path.islink(os.path.join(parent, name)):
                yield os.path.join(parent, name)


def _recorded_names(workspace: Workspace) -> dict[bytes, str]:
    """Names of tasks of all runs, by the place they would have if they were the one file that the task made."""
    names: dict[bytes, str] = {}
    for payload in LedgerReader(workspace.ledger).payloads():
        record = decode(payload)
        if isinstance(record, TasksPlanned):
            for name in record.names:
                names[place_of_text(name)] = name
    return names


def _times_of(workspace: Workspace, places: set[bytes]) -> dict[bytes, list[tuple[float, float]]]:
    """When the attempts at these places ran, in all runs."""
    times: dict[bytes, list[tuple[float, float]]] = {}
    for payload in LedgerReader(workspace.ledger).payloads():
        record = decode(payload)
        if isinstance(record, TaskEnded) and record.place in places:
            times.setdefault(record.place, []).append((record.started, record.ended))
    return times
