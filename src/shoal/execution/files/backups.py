"""Backups of existing outputs during an attempt: moved aside before, deleted or restored afterwards.

Nothing is deleted before the new result is complete and recorded. A journal records what an attempt replaces before
anything is moved, so that the next run can restore what a killed run has left (`restore_all`).
"""

from __future__ import annotations

import os
import stat
from bisect import bisect_left
from collections.abc import Callable, Container, Sequence

from shoal.core.graph import Graph
from shoal.errors import InputError
from shoal.execution.files.moves import OutputMoves, entry_of, is_there
from shoal.execution.run_options import RunOptions
from shoal.ledger.attempt_journal import (
    AttemptBegun,
    AttemptJournal,
    AttemptOver,
    MovedUnit,
    OutputBefore,
    read_journal,
    remove_journal,
)
from shoal.ledger.history import History
from shoal.ledger.identity import Versions, place_of
from shoal.ledger.ownership import MadeOutput, made_of
from shoal.ledger.records import TasksInterrupted, encode
from shoal.ledger.up_to_date import Plan
from shoal.ledger.workspace import Workspace

_MOST_NOTES = 5


class Backups:
    """Keeps the files that attempts of one run replace, until their outcome is known."""

    def __init__(
        self,
        workspace: Workspace,
        plan: Plan,
        versions: Versions,
        history: History,
        options: RunOptions,
        note: Callable[[str], None],
    ) -> None:
        graph = plan.graph
        self._graph = graph
        self._versions = versions
        self._history = history
        self._has_results = not history.empty()
        self._note = note
        self._given_up = plan.given_up() if options.overwrite else frozenset()
        self._inherited = plan.inherited
        self._as_found = options.as_found
        """As plain runners do: old outputs are removed, everything else stays where it is."""
        self._asides = OutputMoves(workspace)
        self._journal = AttemptJournal(workspace.attempts)
        self._begun: dict[int, AttemptBegun] = {}
        self._stuck = False
        """A file could not be restored or removed: the journal stays for the next run."""
        self._kept = 0
        self._declared = _Declared(graph)

    def resume(self, tasks: Sequence[int]) -> None:
        """Takes over what an earlier client of the same run has moved aside."""
        found = self._journal.resume()
        entries = ((task, found.get(place_of(self._graph, task))) for task in tasks)
        self._begun = {task: entry for task, entry in entries if entry is not None}

    # ---- before ----------------------------------------------------------------------------------------------------

    def put_aside(self, tasks: Sequence[int]) -> dict[int, str]:
        """Makes room for attempts that are about to start; returns the reasons for tasks that cannot start."""
        obstacles: dict[int, str] = {}
        entries: list[tuple[int, AttemptBegun]] = []
        for task in tasks:
            try:
                entry = self._begin(task)
            except OSError as error:
                obstacles[task] = _cannot(error)
                continue
            if entry is not None:
                entries.append((task, entry))
        if entries:
            try:
                self._journal.add([entry for _, entry in entries])
            except OSError as error:
                return obstacles | dict.fromkeys([task for task, _ in entries], _cannot(error))
            for task, entry in entries:
                self._begun[task] = entry
                obstacle = self._put(entry)
                if obstacle is not None:
                    obstacles[task] = obstacle
        return obstacles

    def _begin(self, task: int) -> AttemptBegun | None:
        """Returns the journal entry for an attempt; None if there is nothing to record."""
        graph = self._graph
        begin, end = graph.output_start[task], graph.output_start[task + 1]
        known = self._begun.get(task)
        if begin == end:
            if known is not None or not self._has_results:
                return None
            place = place_of(graph, task)
            return AttemptBegun(place, []) if self._history.result(place) is not None else None
        if known is not None:
            return self._begin_again(task, known)
        found: dict[int, OutputBefore] = {}
        made: list[MadeOutput | None] | None = None
        place = place_of(graph, task)
        for at in range(begin, end):
            file = graph.outputs[at]
            name = graph.file_names[file]
            if is_there(name):
                if made is None:
                    made = [*made_of(self._history.accepted(place)), *[None] * (end - begin)]
                found[at] = self._look(file, name, made[at - begin] or self._made_elsewhere(file, name))
                self._versions.sizes[file] = -1
            elif name in self._declared.parents:
                found[at] = OutputBefore(os.fsencode(name), others=_encoded(self._declared.below(name)))
        names = graph.file_names
        outputs = [found.get(at) or OutputBefore(os.fsencode(names[graph.outputs[at]])) for at in range(begin, end)]
        return AttemptBegun(place, outputs)

    def _made_elsewhere(self, file: int, name: str) -> MadeOutput | None:
        """Returns the output as an earlier version of the workflow left it, with other rules."""
        if file not in self._inherited:
            return None
        return next((made_of(result)[at] for result, at in self._history.made(name)), None)

    def _look(self, file: int, name: str, made: MadeOutput | None) -> OutputBefore:
        was_planned = self._versions.sizes[file] >= 0
        if self._as_found:
            return self._remove(name, was_planned, made)
        others = self._declared.below(name) if name in self._declared.parents else []
        given_up = file in self._given_up
        return self._asides.before(name, made, others, given_up=given_up, has_appeared=not was_planned)

    @staticmethod
    def _remove(name: str, was_planned: bool, made: MadeOutput | None) -> OutputBefore:
        """Removes an old output; a directory is refilled by the task. A link is removed only if the task made it: a
        link of the user stays, and the task writes through it."""
        found = os.lstat(name)
        is_link = stat.S_ISLNK(found.st_mode)
        if is_link:
            goes = made is not None and made.has_left("", entry_of(name, made.check))
        else:
            goes = was_planned and not stat.S_ISDIR(found.st_mode)
        if goes:
            os.unlink(name)
            return OutputBefore(os.fsencode(name))
        unit = MovedUnit(os.fsencode(name), b"", found.st_dev, found.st_ino, True)
        return OutputBefore(os.fsencode(name), [unit], stood=[b""] if is_link else [])

    def _begin_again(self, task: int, known: AttemptBegun) -> AttemptBegun | None:
        """The earlier attempt's own outputs have already been moved away, so whatever exists now was not made by it."""
        changed = False
        for at, before in enumerate(known.outputs):
            name = os.fsdecode(before.path)
            if before.remains or before.others or not is_there(name):
                continue
            if any(not unit.aside for unit in before.units) and not self._as_found:
                continue  # it stays where it is
            if self._as_found:
                known.outputs[at] = self._remove_again(name, before)
            elif before.units:
                self._tell_kept(name, self._asides.keep(name, name, name))
            else:
                known.outputs[at] = self._asides.before(name, None, [], given_up=False, has_appeared=True)
                changed = True
        return known if changed else None

    def _remove_again(self, name: str, before: OutputBefore) -> OutputBefore:
        """A link that did not exist before was made by the failed attempt."""
        if os.path.islink(name) and not before.stood:
            os.unlink(name)
            return OutputBefore(before.path)
        return self._remove(name, True, None)

    def _put(self, entry: AttemptBegun) -> str | None:
        if self._as_found:
            return None
        for before in entry.outputs:
            if before.units:
                try:
                    self._asides.put(before, lambda: self._note_other_place(entry))
                except OSError as error:
                    return f"cannot move {os.fsdecode(before.path)!r} aside: {error.strerror}"
        return None

    def _note_other_place(self, entry: AttemptBegun) -> None:
        self._journal.add([entry])
        self._journal.sync()  # without the journal, the next run would not find a name beside an output

    # ---- after -----------------------------------------------------------------------------------------------------

    def take_away(self, task: int) -> str:
        """Moves the partial outputs of an unsuccessful attempt to `partial`; returns a sentence that says where."""
        entry = self._begun.get(task)
        if entry is None or self._as_found:
            return ""
        places = []
        for before in entry.outputs:
            try:
                moved = self._asides.take_away(before)
            except OSError as error:
                self._stuck = True
                self._note(f"cannot move the partial output {os.fsdecode(before.path)!r}: {error.strerror}")
                continue
            places += [*moved.values()][:1]
        if not places:
            return ""
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        return f"what it had made is kept as {places[0]}{more}"

    def entries_before(self, task: int, at: int) -> Container[str]:
        """Returns what existed in the directory at this position of the task's outputs before the attempt."""
        entry = self._begun.get(task)
        return frozenset(map(os.fsdecode, entry.outputs[at].stood)) if entry is not None and entry.outputs else ()

    def outputs_before(self, task: int) -> list[OutputBefore]:
        """Returns what existed under the names of its outputs, for attempts on other nodes; empty if the task has
        none."""
        entry = self._begun.get(task)
        return entry.outputs if entry is not None else []

    def settle(self, task: int) -> None:
        """After the result is accepted and recorded: deletes backups that are ours, moves the rest to `replaced`."""
        entry = self._begun.pop(task, None)
        if entry is None:
            return
        for before in entry.outputs:
            if before.units:
                try:
                    for name, place in self._asides.settle(before):
                        self._tell_kept(name, place)
                except OSError as error:
                    self._stuck = True
                    self._note(f"cannot remove the old {os.fsdecode(before.path)!r}: {error.strerror}")

    def put_back(self, task: int) -> None:
        """Restores the backups of a task that has ended without a result, or whose run stops."""
        entry = self._begun.get(task)
        if entry is None:
            return
        for before in entry.outputs:
            if before.units and not self._as_found:
                try:
                    self._asides.take_away(before)
                    self._asides.put_back(before)
                except OSError as error:
                    self._stuck = True
                    self._note(_cannot_put_back(before, error) + "; the next run tries again")
                    return
        del self._begun[task]
        try:
            self._journal.add([AttemptOver(entry.place)])
        except OSError:
            self._stuck = True  # the next run checks it again, and finds everything in its place

    def tidy(self) -> None:
        """Compacts the journal; called from time to time."""
        if not self._stuck:
            try:
                self._journal.compact(self._begun)
            except OSError:
                self._stuck = True  # no disk space for a second journal

    def has_any(self) -> bool:
        """Whether there are attempts whose outcome is not known."""
        return bool(self._begun)

    def leave(self) -> None:
        """Leaves everything in place, for the process that continues the run."""
        self._journal.close(remove=False)

    def close(self) -> None:
        """Restores remaining backups and removes the journal. No task runs any more."""
        for task in list(self._begun):
            self.take_away(task)
            self.put_back(task)
        if self._kept > _MOST_NOTES:
            self._note(f"{self._kept - _MOST_NOTES} more are kept in {self._asides.replaced}")
        self._journal.close(remove=not self._stuck)
        self._asides.remove_empty()

    def _tell_kept(self, name: str, place: str) -> None:
        self._kept += 1
        if self._kept <= _MOST_NOTES:
            self._note(f"{name!r} had been modified: the previous content is kept as {place}")


def _cannot(error: OSError) -> str:
    return f"cannot move its previous outputs aside: {error.strerror}"


def _cannot_put_back(before: OutputBefore, error: OSError) -> str:
    return f"cannot restore {os.fsdecode(before.path)!r}: {error.strerror}"


def _encoded(names: Sequence[str]) -> list[bytes]:
    return [os.fsencode(name) for name in names]


class _Declared:
    """Outputs that lie below other outputs; computed at first use."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._parents: set[str] | None = None
        self._sorted: list[str] | None = None

    @property
    def parents(self) -> set[str]:
        """All ancestor directories of outputs."""
        if self._parents is None:
            names = self._graph.file_names
            found = {names[file].rpartition("/")[0] for file in self._graph.outputs}
            for name in list(found):
                while name and name not in ("/", "."):
                    name = os.path.dirname(name)
                    found.add(name)
            self._parents = found
        return self._parents

    def below(self, directory: str) -> list[str]:
        """Returns the outputs below a directory, relative to it."""
        if self._sorted is None:
            names = self._graph.file_names
            self._sorted = sorted(names[file] for file in self._graph.outputs)
        prefix = directory.rstrip("/") + "/"
        at = bisect_left(self._sorted, prefix)
        found = []
        while at < len(self._sorted) and self._sorted[at].startswith(prefix):
            found.append(self._sorted[at][len(prefix) :])
            at += 1
        return found


# ---- after a kill --------------------------------------------------------------------------------------------------


def restore_all(workspace: Workspace, history: History, note: Callable[[str], None]) -> dict[str, str]:
    """Restores what a killed run had moved aside, and moves partial outputs of its attempts to `interrupted`; returns
    their new paths by their former names. `shoal.execution.recovery` predicts what this does.

    Called under the lock, before any file is examined. May be interrupted at any time: the next call completes it. The
    history learns which results are void.
    """
    asides = OutputMoves(workspace, after_kill=True)
    entries = read_journal(workspace.attempts)
    _record_interrupted(workspace, history, entries)
    ended = history.ended_last or {}
    back = 0
    away: dict[str, str] = {}
    try:
        for place, entry in entries.items():
            if ended.get(place):
                for before in entry.outputs:
                    for name, where in asides.settle(before):
                        note(f"{name!r} had been modified: the previous content is kept as {where}")
                continue
            for before in entry.outputs:
                if place not in ended or is_any_aside(before):
                    away |= asides.take_away(before)
                back += asides.put_back(before)
        for before in asides.strays():
            away |= asides.take_away(before)
            back += asides.put_back(before)
    except OSError as error:
        if back or away:
            note(_what_was_restored(back, [*away.values()]))  # the next command does not repeat this message
        raise InputError(
            f"cannot restore what a killed run moved aside to {asides.aside}: {error.strerror} ({error.filename!r})",
            remedy="make it writable; nothing was run, and nothing is lost",
        ) from None
    remove_journal(workspace.attempts)
    asides.remove_empty()
    if back or away:
        note(_what_was_restored(back, [*away.values()]))
    return away


def _record_interrupted(workspace: Workspace, history: History, entries: dict[bytes, AttemptBegun]) -> None:
    """Voids results of attempts that had begun again and never ended. This comes before the restore: a file that is as
    its result left it would count as up to date."""
    ended = history.ended_last or {}
    places = [place for place in entries if place not in ended and history.result(place) is not None]
    places = [place for place in places if not history.is_interrupted(place)]
    if not places:
        return
    frame = encode(TasksInterrupted(places))
    descriptor = os.open(workspace.ledger, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        while frame:
            frame = frame[os.write(descriptor, frame) :]
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
    history.interrupted.update(dict.fromkeys(places))


def is_any_aside(before: OutputBefore) -> bool:
    """Returns whether some of its backups still exist."""
    return any(unit.aside and is_there(os.fsdecode(unit.aside)) for unit in before.units)


def _what_was_restored(back: int, away: list[str]) -> str:
    actions = []
    if back:
        actions.append(f"put {back} output{'s' * (back > 1)} back")
    if away:
        more = f" and {len(away) - 1} more" if len(away) > 1 else ""
        actions.append(f"moved partial outputs to {away[0]}{more}")
    return f"a run was killed: {' and '.join(actions)}"
