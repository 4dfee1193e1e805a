"""`shoal clean`: removes the files that a workflow made, and nothing else.

The ledger records what tasks made: the files of accepted results with their signatures, and the entries that a task
made in a directory. The names of outputs come from the workflow, or from the plans of earlier runs for tasks that are
no longer in it. Files that were changed later are kept, and so is every file without a record. In a directory, only
recorded entries are removed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Sequence

import msgspec

from shoal.core.graph import NO_TASK, Graph
from shoal.execution.files.moves import entry_of, half_made_beside
from shoal.execution.files.trees import reachable, remove_quietly, remove_tree
from shoal.execution.recovery import Recovery
from shoal.ledger.file import LedgerReader
from shoal.ledger.history import History
from shoal.ledger.identity import place_of, place_of_text
from shoal.ledger.ownership import DirectoryEntry, MadeOutput, made_of
from shoal.ledger.records import BY_CONTENT, BY_TIME, TasksPlanned, decode
from shoal.ledger.workspace import DIRECTORY, Workspace


class KeptFile(msgspec.Struct, frozen=True):
    """A file that is kept, and why."""

    name: str
    why: str
    is_output: bool = True


class Removal(msgspec.Struct):
    """What is to be removed, in a possible order of removal."""

    files: list[str] = []
    directories: list[str] = []
    """Output directories and parent directories of outputs, deepest first; removed only if they are empty then."""
    partial: list[str] = []
    """Half-written outputs on another file system than the records."""
    kept: list[KeptFile] = []
    size: int = 0
    unknown: int = 0
    """Number of results of tasks that are no longer in the workflow and whose output names are not known."""


def find_what_was_made(
    graph: Graph,
    history: History,
    workspace: Workspace,
    force: bool,
    *,
    only: Sequence[int] | None = None,
    ahead: Recovery | None = None,
) -> Removal:
    """Returns everything that the ledger records as made; changes nothing. The current directory is the workflow's.

    `only` restricts it to the outputs of these tasks, without half-written files. Files are seen as they will be after
    the recovery `ahead`.
    """
    return _Search(graph, history, workspace, force, ahead or Recovery()).run(only)


def tasks_that_make(graph: Graph, targets: Sequence[int]) -> list[int]:
    """Returns the tasks that the targets stand for: a group is replaced by its members, recursively."""
    found = dict.fromkeys(targets)
    queue = list(found)
    for task in queue:  # the list grows during the loop
        if graph.actions[task] is None:
            more = [each for each in graph.predecessors_of(task) if each not in found]
            found.update(dict.fromkeys(more))
            queue += dict.fromkeys(more)
    return queue


def remove(cleaning: Removal, spared: Collection[str] = ()) -> list[KeptFile]:
    """Removes what was found, except the `spared` paths; returns what could not be removed."""
    stuck = []
    for name in cleaning.files:
        try:
            with reachable(name) as path:
                os.unlink(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            stuck.append(KeptFile(name, error.strerror or "cannot be removed"))
    for name in cleaning.partial:
        try:
            _remove_except(name, spared)
        except OSError as error:
            stuck.append(KeptFile(name, error.strerror or "cannot be removed"))
    for name in cleaning.directories:
        try:
            with reachable(name) as path:
                os.rmdir(path)
        except OSError:
            pass  # it still contains entries that Shoal did not make
    return stuck


def forget(workspace: Workspace, spared: Iterable[str] = ()) -> bool:
    """Removes the records and half-written files, except the `spared` paths (relative to the workflow's directory).
    Replaced files belong to the user and stay; returns whether there are any. Notes of abandoned cluster runs stay,
    too: their clusters may come back."""
    stays = (os.path.basename(workspace.replaced), os.path.basename(workspace.given_up))
    kept = frozenset(os.path.join(workspace.base, place) for place in spared)
    try:
        names = os.listdir(workspace.directory)
    except OSError:
        return False
    for name in names:
        path = os.path.join(workspace.directory, name)
        if os.path.isdir(path) and not os.path.islink(path):
            if path == workspace.interrupted and kept:
                _remove_except(path, kept)
            elif name not in stays:
                remove_quietly(path)
        else:
            os.unlink(path)
    for directory in (workspace.replaced, workspace.directory, os.path.join(workspace.base, DIRECTORY)):
        try:
            os.rmdir(directory)
        except OSError:
            pass  # it contains files of the user, or records of another workflow
    return os.path.isdir(workspace.replaced)


def _remove_except(path: str, spared: Collection[str]) -> None:
    """Removes a directory tree except the spared paths and their parent directories."""
    pending = [path]
    while pending:
        path = pending.pop()
        if not any(place == path or place.startswith(f"{path}/") for place in spared):
            remove_tree(path)
        elif path not in spared:
            pending += [os.path.join(path, name) for name in os.listdir(path)]


class _Search:
    def __init__(self, graph: Graph, history: History, workspace: Workspace, force: bool, ahead: Recovery) -> None:
        self.graph = graph
        self.history = history
        self.workspace = workspace
        self.force = force
        self.ahead = ahead
        self.cleaning = Removal()
        self.sources = {graph.file_names[file] for file, maker in enumerate(graph.producer) if maker == NO_TASK} | {
            os.path.basename(workspace.workflow)
        }
        self._claims: dict[str, list[MadeOutput]] = {}
        """By output name: how recorded results left it; an empty list if there is no record."""
        self._parents: dict[str, None] = {}

    def run(self, only: Sequence[int] | None) -> Removal:
        graph, history = self.graph, self.history
        places: dict[bytes, None] = {}
        for task in range(len(graph)):
            place = place_of(graph, task)
            places[place] = None
            made = made_of(history.accepted(place))
            for at, name in enumerate(graph.output_names(task)):
                self._claims.setdefault(name, []).extend(made[at : at + 1])
        self._claim_for_others(places)
        if only is not None:
            self.cleaning.unknown = 0
            for name in dict.fromkeys(name for task in only for name in graph.output_names(task)):
                self._output(name, self._claims[name])
        else:
            for name, (outs, need) in graph.lacking.items():
                if history.result(place_of_text("\0".join(outs))) is not None:
                    self._keep(name, f"could not be made again: {need!r} does not exist", is_output=False)
            for name, claims in self._claims.items():
                self._output(name, claims)
                self.cleaning.partial += half_made_beside(name)
        self.cleaning.directories += sorted(self._parents, key=lambda name: -name.count("/"))
        return self.cleaning

    def _claim_for_others(self, places: dict[bytes, None]) -> None:
        """Claims files of tasks that are no longer in the workflow. A file that the workflow makes now is claimed only
        through its own result, unless it has none."""
        others = [place for place in self.history.results if place not in places]
        if not others:
            return
        names = _recorded_names(self.workspace, self.history)
        for place in others:
            made = made_of(self.history.accepted(place))
            if place not in names:
                self.cleaning.unknown += bool(made)
                continue
            for name, each in zip(names[place], made, strict=False):
                if name not in self.sources and not self._claims.get(name):
                    self._claims[name] = [each]

    def _output(self, name: str, claims: list[MadeOutput]) -> None:
        found = self.ahead.look(name)
        if found is None:
            return
        if stat.S_ISDIR(found.st_mode):
            if claims and not (self.workspace.base + "/").startswith(os.path.abspath(name) + "/"):
                self._directory(name, claims[0])
            elif not claims:
                self._keep(name, "is an output, but no finished task is recorded for it")
        elif any(_is_as_left(made, "", self.ahead.current_path(name)) for made in claims) or self.force:
            self._take(name, found)
        elif claims:
            self._keep(name, "has changed since it was made")
        else:
            self._keep(name, "is an output, but no finished task is recorded for it")

    def _directory(self, name: str, made: MadeOutput) -> None:
        """Adds the entries that its task made in it and that no other task makes."""
        self._note_parents(name)
        self._parents[os.path.normpath(name)] = None
        inside: set[str] = set()
        for relative, entry in self.ahead.below(name).items():
            path = os.path.join(name, relative)
            now = self.ahead.current_path(path)
            if os.path.dirname(relative) in inside or path in self._claims:
                if entry.kind == "directory":
                    inside.add(relative)
                continue
            if entry.kind == "directory":
                if made.lists(relative):
                    self._parents[os.path.normpath(path)] = None
            elif _is_as_left(made, relative, now) or (self.force and made.lists(relative)):
                with reachable(now) as there:
                    self._take(path, os.lstat(there))
            elif made.lists(relative):
                self._keep(path, "has changed since it was made")
            else:
                self._keep(path, "was not made by the task that makes its directory", is_output=False)

    def _keep(self, name: str, why: str, *, is_output: bool = True) -> None:
        self.cleaning.kept.append(KeptFile(name, why, is_output))

    def _take(self, name: str, found: os.stat_result) -> None:
        self.cleaning.files.append(name)
        self.cleaning.size += found.st_size
        self._note_parents(name)

    def _note_parents(self, name: str) -> None:
        """Adds directories that were made for outputs; never the workflow's own directory or one outside of it."""
        parent = os.path.dirname(os.path.normpath(name))
        while parent and not os.path.isabs(parent) and not parent.startswith(".."):
            self._parents[parent] = None
            parent = os.path.dirname(parent)


def _is_as_left(made: MadeOutput, relative: str, path: str) -> bool:
    """Compares by time, or by content if the run did so."""
    return any(made.has_left(relative, found) for found in _entries(path, made))


def _entries(path: str, made: MadeOutput) -> list[DirectoryEntry]:
    try:
        return [entry_of(path, check) for check in made.checks() if check in (BY_TIME, BY_CONTENT)]
    except OSError:
        return []


def _recorded_names(workspace: Workspace, history: History) -> dict[bytes, list[str]]:
    """Returns the output names of tasks of all runs; tasks with one output are found by the place of its name."""
    names = history.names_of_outputs()
    for payload in LedgerReader(workspace.ledger).payloads():
        record = decode(payload)
        if isinstance(record, TasksPlanned):
            for name in record.names:
                names.setdefault(place_of_text(name), [name])
    return names
