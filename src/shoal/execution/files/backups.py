"""What stands under the names of outputs while their task is attempted: put aside before, settled afterwards.

Nothing is deleted before the new result is complete and recorded. What an attempt begins with is in a journal before
anything is moved, so that the next run completes what a killed one has left (`restore_all`).
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
    """Keeps what attempts of one run replace, until it is known what becomes of them."""

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
        """As a plain runner does it, old outputs are removed and the rest stays where it is."""
        self._asides = OutputMoves(workspace)
        self._journal = AttemptJournal(workspace.attempts)
        self._begun: dict[int, AttemptBegun] = {}
        self._stuck = False
        """Something could not be put back or removed: the journal stays for the next run."""
        self._kept = 0
        self._declared = _Declared(graph)

    def resume(self, tasks: Sequence[int]) -> None:
        """Goes on with what an earlier client of the same run has put aside."""
        found = self._journal.resume()
        entries = ((task, found.get(place_of(self._graph, task))) for task in tasks)
        self._begun = {task: entry for task, entry in entries if entry is not None}

    # ---- before ----------------------------------------------------------------------------------------------------

    def put_aside(self, tasks: Sequence[int]) -> dict[int, str]:
        """Makes room for attempts that are about to start; says of tasks that cannot start why."""
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
        """What is to be noted of an attempt that begins; None if nothing."""
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
        """What the output is as a former version of the workflow left it, with other rules."""
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
        """Removes an old output, if it is one; a directory is filled anew. A link goes only if the task made it: one of
        the user stays, and the task writes through it."""
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
        """What stands there before another attempt was not made by the one before: that was taken away."""
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
        """A link that did not stand there before was made by the attempt that failed."""
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
                    return f"cannot put {os.fsdecode(before.path)!r} aside: {error.strerror}"
        return None

    def _note_other_place(self, entry: AttemptBegun) -> None:
        self._journal.add([entry])
        self._journal.sync()  # a name beside an output is not looked for without the journal

    # ---- after -----------------------------------------------------------------------------------------------------

    def take_away(self, task: int) -> str:
        """An attempt did not succeed: moves what it has half made to `partial`; says where, for the message."""
        entry = self._begun.get(task)
        if entry is None or self._as_found:
            return ""
        places = []
        for before in entry.outputs:
            try:
                moved = self._asides.take_away(before)
            except OSError as error:
                self._stuck = True
                self._note(f"cannot move the half-made {os.fsdecode(before.path)!r} away: {error.strerror}")
                continue
            places += [*moved.values()][:1]
        if not places:
            return ""
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        return f"what it had made is kept as {places[0]}{more}"

    def stood_in(self, task: int, at: int) -> Container[str]:
        """What stood in the directory at this position of the task's outputs before it was attempted."""
        entry = self._begun.get(task)
        return frozenset(map(os.fsdecode, entry.outputs[at].stood)) if entry is not None and entry.outputs else ()

    def outputs_before(self, task: int) -> list[OutputBefore]:
        """What stood under the names of its outputs, for whoever attempts the task elsewhere; none if it has none."""
        entry = self._begun.get(task)
        return entry.outputs if entry is not None else []

    def settle(self, task: int) -> None:
        """The result is accepted and recorded: deletes what was put aside and is ours, keeps the rest in `replaced`."""
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
        """The task is over without a result, or the run stops."""
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
                    self._note(_cannot_put_back(before, error) + "; the next run tries it again")
                    return
        del self._begun[task]
        try:
            self._journal.add([AttemptOver(entry.place)])
        except OSError:
            self._stuck = True  # the next run looks at it again, and finds everything in its place

    def tidy(self) -> None:
        """Called now and then: bounds the journal."""
        if not self._stuck:
            try:
                self._journal.compact(self._begun)
            except OSError:
                self._stuck = True  # no room for a second one

    def has_any(self) -> bool:
        """Whether attempts have begun of which it is not known how they ended."""
        return bool(self._begun)

    def leave(self) -> None:
        """Leaves everything where it is, to whoever goes on with the run."""
        self._journal.close(remove=False)

    def close(self) -> None:
        """Puts back what is still aside, and removes the journal. Nothing that was started runs any more."""
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
            self._note(f"{name!r} was not as it was made: what stood there is kept as {place}")


def _cannot(error: OSError) -> str:
    return f"cannot put its outputs of before aside: {error.strerror}"


def _cannot_put_back(before: OutputBefore, error: OSError) -> str:
    return f"cannot put {os.fsdecode(before.path)!r} back: {error.strerror}"


def _encoded(names: Sequence[str]) -> list[bytes]:
    return [os.fsencode(name) for name in names]


class _Declared:
    """Outputs that lie below other outputs; found when the first one is asked for."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._parents: set[str] | None = None
        self._sorted: list[str] | None = None

    @property
    def parents(self) -> set[str]:
        """Directories that outputs lie in, and those around them."""
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
        """Outputs below a directory, relative to it."""
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
    """Puts back what a killed run had put aside, and moves what its attempts had half made to `interrupted`; returns
    where that is, by the names that it had. `shoal.execution.recovery` says beforehand what this does.

    Called under the lock, before anything looks at the files. May be interrupted at any moment: the next call completes
    it. The history learns which results do not count any more.
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
                        note(f"{name!r} was not as it was made: what stood there is kept as {where}")
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
            note(_what_was_restored(back, [*away.values()]))  # the next command does not speak of it again
        raise InputError(
            f"cannot put back what a killed run had put aside in {asides.aside}: {error.strerror} ({error.filename!r})",
            remedy="make it writable; nothing was run, and nothing is lost",
        ) from None
    remove_journal(workspace.attempts)
    asides.remove_empty()
    if back or away:
        note(_what_was_restored(back, [*away.values()]))
    return away


def _record_interrupted(workspace: Workspace, history: History, entries: dict[bytes, AttemptBegun]) -> None:
    """Results of attempts that had begun again and never ended do not count any more. Before anything is put back:
    what is as the result left it would count as up to date."""
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
    """Whether something of it is still put aside."""
    return any(unit.aside and is_there(os.fsdecode(unit.aside)) for unit in before.units)


def _what_was_restored(back: int, away: list[str]) -> str:
    told = []
    if back:
        told.append(f"put {back} output{'s' * (back > 1)} back")
    if away:
        more = f" and {len(away) - 1} more" if len(away) > 1 else ""
        told.append(f"moved what was half made to {away[0]}{more}")
    return f"a run was killed: {' and '.join(told)}"
