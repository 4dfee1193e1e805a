"""What the next command will clear up after a killed run, found without changing anything.

`shoal.engine.backups.restore_all` does it. Whoever only says what a command would do sees files as they will be then.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec

from shoal.engine.asides import Asides, entry_of, everything_below, is_there
from shoal.engine.attempt_journal import OutputBefore, read_journal
from shoal.engine.backups import is_any_aside
from shoal.engine.history import History
from shoal.engine.workspace import Workspace
from shoal.ledger.records import BY_TIME
from shoal.plan.ownership import Entry


class Recovery(msgspec.Struct):
    """What will be moved, by the names of now; an empty one if no run was killed. Names are relative to the current
    directory, which is the workflow's."""

    moved: dict[str, str] = {}
    """What stands under the names of outputs, and where in `interrupted` it will be."""
    back: dict[str, str] = {}
    """What will be put back under a name, and where it is now."""
    replaced: bool = False
    """Whether something will go to `replaced`: the result that takes its place is accepted."""

    def now(self, name: str) -> str:
        """Where what will stand under a name is now; nothing, as an empty name, if it will have been moved away."""
        if not self.moved and not self.back:
            return name
        at = name
        while True:
            if at in self.back:
                return self.back[at] + name[len(at) :]
            if at in self.moved:
                return ""
            parent = os.path.dirname(at)
            if parent in ("", at):
                return name
            at = parent

    def look(self, name: str) -> os.stat_result | None:
        """The status of what will stand under a name."""
        try:
            return os.lstat(self.now(name))
        except OSError:
            # Directories around what is put back are made.
            return os.lstat(os.curdir) if any(each.startswith(f"{name}/") for each in self.back) else None

    def below(self, directory: str) -> dict[str, Entry]:
        """Everything that will be below a directory; directories stand before what is in them."""
        now = self.now(directory)
        found = everything_below(now) if os.path.isdir(now) else {}
        if now != directory or not (self.moved or self.back):
            return found
        inside = f"{directory}/"
        gone = {name[len(inside) :] for name in self.moved if name.startswith(inside)}
        for name in list(found):
            if name in gone or os.path.dirname(name) in gone:
                gone.add(name)
                del found[name]
        for name, place in self.back.items():
            if name.startswith(inside):
                found |= _with_parents(name[len(inside) :], place)
        return dict(sorted(found.items()))


def _with_parents(name: str, place: str) -> dict[str, Entry]:
    """Something that comes to stand in a directory, with the directories around it and everything in it."""
    found = {name: entry_of(place, BY_TIME)}
    if found[name].kind == "directory":
        found |= {os.path.join(name, each): entry for each, entry in everything_below(place).items()}
    while name := os.path.dirname(name):
        found[name] = Entry("directory", 0, 0, "")
    return found


def recovery_ahead(workspace: Workspace, history: History) -> Recovery:
    """What `restore_all` would do now. The history was read while the journal of the killed run was there."""
    asides = Asides(workspace, after_kill=True)
    ahead = Recovery()
    ended = history.ended_last or {}
    known: set[str] = set()
    for place, entry in read_journal(workspace.attempts).items():
        for before in entry.outputs:
            known |= {os.fsdecode(unit.aside) for unit in before.units}
            if ended.get(place):
                ahead.replaced |= any(_kept(before))
                continue
            if place not in ended or is_any_aside(before):
                _foresee(ahead, asides, before)
    for before in asides.strays():
        if os.fsdecode(before.units[0].aside) not in known:
            _foresee(ahead, asides, before)
    return ahead


def _foresee(ahead: Recovery, asides: Asides, before: OutputBefore) -> None:
    output = os.fsdecode(before.path)
    ahead.moved |= {name: asides.place_after_kill(output, name) for name in asides.half_made(before)}
    for unit in before.units:
        place = os.fsdecode(unit.aside)
        if place and is_there(place):
            ahead.back[os.fsdecode(unit.path)] = place


def _kept(before: OutputBefore) -> Iterator[bool]:
    for unit in before.units:
        place = os.fsdecode(unit.aside)
        if place and is_there(place):
            yield unit.keep or any(is_there(os.path.join(place, os.fsdecode(name))) for name in unit.changed)
