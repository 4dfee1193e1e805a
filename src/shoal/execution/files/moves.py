"""Moves output files: aside before an attempt, and back or away afterwards.

Every move is a single rename, and each step can be repeated: after a kill at any point, the same steps find what is
left to do. A backup is identified by device and inode, so a restored file is not mistaken for a partial output of an
attempt.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence

from shoal.execution.files.files import signature_of_file
from shoal.execution.files.trees import (
    as_listing,
    list_tree,
    make_directories,
    reachable,
    remove_empty_directories,
    remove_tree,
)
from shoal.ledger.attempt_journal import MovedUnit, OutputBefore
from shoal.ledger.ownership import DirectoryEntry, MadeOutput
from shoal.ledger.records import BY_CONTENT
from shoal.ledger.workspace import Workspace

UNITS = "%"
"""In `aside`, the directory that holds what was moved aside out of its parent directory."""
_ABOVE, _ROOT = "%up", "%root"
_SPECIAL = {_ROOT: "", _ABOVE: ".."}
_LONGEST_PATH = 3800
"""Bytes; PATH_MAX minus the longest name."""
_HALF_MADE = (b"partial", b"interrupted")


def mirrored(path: str) -> list[str]:
    """Returns the components of a path, for use below one of our directories. No component is `..` or `UNITS`."""
    parts = [_ROOT] if path.startswith("/") else []
    for part in path.split("/"):
        if part == "..":
            parts.append(_ABOVE)
        elif part not in ("", "."):
            parts.append("%" + part if part.startswith("%") else part)
    return parts


def unmirrored(parts: Sequence[str]) -> str:
    """The inverse of `mirrored`."""
    return "/".join(_SPECIAL[part] if part in _SPECIAL else part.removeprefix("%") for part in parts)


def _is_directory(path: str) -> bool:
    """Returns whether it is a directory and not a link."""
    return os.path.isdir(path) and not os.path.islink(path)


def _can_merge(one: str, other: str) -> bool:
    """Returns whether both are directories in which every name can be reached by its path."""
    if not (_is_directory(one) and _is_directory(other)):
        return False
    return max(len(os.fsencode(one)), len(os.fsencode(other))) < _LONGEST_PATH


def is_there(path: str) -> bool:
    """Returns whether it exists, even as a dangling link."""
    return os.access(path, os.F_OK, follow_symlinks=False)


# ---- what existed before -------------------------------------------------------------------------------------------


def entry_of(path: str, check: int) -> DirectoryEntry:
    """Returns the entry at a path, checked by time or by content; does not follow a link."""
    with reachable(path) as name:
        found = os.lstat(name)
        if stat.S_ISLNK(found.st_mode):
            return DirectoryEntry("link", 0, 0, os.readlink(name))
        if stat.S_ISDIR(found.st_mode):
            return DirectoryEntry("directory", 0, 0, "")
        if not stat.S_ISREG(found.st_mode):
            return DirectoryEntry("other", 0, 0, "")
        return DirectoryEntry("file", *signature_of_file(name, found, check == BY_CONTENT), "")


def everything_below(directory: str, *, by_content: bool = False) -> dict[str, DirectoryEntry]:
    """Returns everything below a directory, including what never counts as part of a tree; directories come before
    their entries."""
    return as_listing(list_tree(directory, by_content=by_content, always_left_out=()))


def movable(entries: Sequence[str], stays: Callable[[str], bool], others: Sequence[str], *, remains: bool) -> list[str]:
    """Returns the smallest set of names that cover everything below a directory except what stays.

    Empty for the directory itself. `others` stay with everything below them, whether they exist or not.
    """
    fixed = {"": None} if remains else {}
    apart = dict.fromkeys(others)
    for name in entries:
        if os.path.dirname(name) in apart:
            apart[name] = None
        if name in apart or stays(name):
            _fix(name, fixed)
    for name in others:
        _fix(name, fixed)
    if not fixed:
        return [""]
    return [name for name in entries if name not in fixed and os.path.dirname(name) in fixed]


def _fix(name: str, fixed: dict[str, None]) -> None:
    """Marks a name and its ancestor directories as staying."""
    while name not in fixed:
        fixed[name] = None
        name = os.path.dirname(name)


class OutputMoves:
    """Moves files between their own names and the directories of one workspace. The current directory is its base."""

    def __init__(self, workspace: Workspace, *, after_kill: bool = False) -> None:
        """`after_kill`: existing outputs may belong to the user, so they go where nothing is overwritten."""

        def shortened(path: str) -> str:
            return os.path.relpath(path, workspace.base)

        self.aside = shortened(workspace.aside)
        self.partial = shortened(workspace.partial)
        self.interrupted = shortened(workspace.interrupted)
        self.replaced = shortened(workspace.replaced)
        self._base = workspace.base
        self._after_kill = after_kill
        self._made: set[str] = set()

    # ---- aside -----------------------------------------------------------------------------------------------------

    def before(
        self, path: str, made: MadeOutput | None, others: Sequence[str], *, given_up: bool, has_appeared: bool = False
    ) -> OutputBefore:
        """Returns what exists under the name of an output, and which parts of it are to be moved aside.

        `given_up`: the user does not want it any more. A directory without a record of what the task made in it is
        moved aside as a whole, to be kept. One that `has_appeared` since the plan was made stays, because a dependency
        of this task may have created it for this task's outputs.
        """
        found = os.lstat(path)
        outside = [os.fsencode(name) for name in others]
        if not stat.S_ISDIR(found.st_mode):
            is_ours = made is not None and any(made.has_left("", entry_of(path, check)) for check in made.checks())
            unit = self._unit(path, "", found, keep=not (is_ours or given_up))
            return OutputBefore(os.fsencode(path), [unit], others=outside)
        if (self._base + "/").startswith(os.path.abspath(path).rstrip("/") + "/"):
            # It contains the workflow itself: nothing of it is moved.
            return OutputBefore(
                os.fsencode(path), [MovedUnit(os.fsencode(path), b"", found.st_dev, found.st_ino, True)]
            )
        known = made if made is not None and made.is_directory() else None
        entries = everything_below(path, by_content=known is not None and known.check == BY_CONTENT)
        if known is None and has_appeared:
            return OutputBefore(os.fsencode(path), [], True, list(map(os.fsencode, entries)), outside)

        def stays(name: str) -> bool:
            return known is not None and not known.lists(name)

        # An empty directory is no obstacle: it may have been created for outputs inside it.
        names = movable(list(entries), stays, others, remains=known is None and not entries)
        changed = {name for name, entry in entries.items() if known is None or not known.has_left(name, entry)}
        units = []
        for name in names:
            keep = known is None or name in changed
            unit = self._unit(path, name, os.lstat(os.path.join(path, name)) if name else found, keep=keep)
            if not keep:
                inside = name + "/" if name else ""
                unit.changed = [os.fsencode(each[len(inside) :]) for each in changed if each.startswith(inside)]
            units.append(unit)
        if names == [""]:
            return OutputBefore(os.fsencode(path), units, others=outside)
        gone = tuple(name + "/" for name in names)
        stood = [name for name in entries if name not in names and not name.startswith(gone)]
        return OutputBefore(os.fsencode(path), units, True, [os.fsencode(name) for name in stood], outside)

    def _unit(self, path: str, name: str, found: os.stat_result, *, keep: bool) -> MovedUnit:
        whole = os.path.join(path, name) if name else path
        *parents, last = mirrored(whole)
        place = "/".join([self.aside, *parents, UNITS, last])
        return MovedUnit(os.fsencode(whole), os.fsencode(place), found.st_dev, found.st_ino, keep)

    def put(self, before: OutputBefore, note: Callable[[], None]) -> None:
        """Moves all units of an output aside. Calls `note` before a different destination is used; raises OSError if a
        unit cannot be moved."""
        for unit in before.units:
            if not unit.aside:
                continue
            if is_there(os.fsdecode(unit.aside)):
                if not is_there(os.fsdecode(unit.path)):
                    continue  # moved aside before an earlier attempt
                raise FileExistsError(errno.EEXIST, "a backup already exists", os.fsdecode(unit.aside))
            try:
                self._rename(unit.path, unit.aside)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                unit.aside = beside(before.path, unit.path, b"aside")
                note()
                self._rename(unit.path, unit.aside)

    def _rename(self, old: bytes, new: bytes) -> None:
        self._make_parents(os.fsdecode(new))
        os.rename(old, new)

    def _make_parents(self, path: str) -> None:
        parent = os.path.dirname(path)
        if parent and parent not in self._made:
            make_directories(parent)
            self._made.add(parent)

    # ---- after an unsuccessful attempt
    # ---------------------------------------------------------------------------------

    def take_away(self, before: OutputBefore) -> dict[str, str]:
        """Moves partial outputs to `partial`, or to `interrupted`; returns their new paths by their former names."""
        path = os.fsdecode(before.path)
        if self._after_kill:
            return {name: self._keep(name, path, name, self.interrupted) for name in self.half_made(before)}
        return {name: self._to_partial(path, name) for name in self.half_made(before)}

    def half_made(self, before: OutputBefore) -> list[str]:
        """Returns the partial outputs to be moved away; none of them lies inside another."""
        path = os.fsdecode(before.path)
        try:
            found = os.lstat(path)
        except OSError:
            return []
        is_whole = not before.remains and not before.others
        if not stat.S_ISDIR(found.st_mode) or is_whole:
            if any(unit.path == before.path and _is_back(unit, found) for unit in before.units):
                return []
            return [path]
        stood = set(map(os.fsdecode, before.stood))
        back = {os.fsdecode(unit.path) for unit in before.units if _has_come_back(unit)}

        def stays(name: str) -> bool:
            return name in stood or os.path.join(path, name) in back or _is_below(os.path.join(path, name), back)

        names = list(everything_below(path))
        found_names = movable(names, stays, list(map(os.fsdecode, before.others)), remains=before.remains)
        return [os.path.join(path, name) if name else path for name in found_names]

    def place_after_kill(self, output: str, path: str) -> str:
        """Returns the path of a partial output after a kill."""
        is_near = os.lstat(path).st_dev == os.lstat(os.path.dirname(self.interrupted)).st_dev
        return _free([self.interrupted], mirrored(path)) if is_near else _free_beside(output, path, "interrupted")

    def _to_partial(self, output: str, path: str) -> str:
        place = "/".join([self.partial, *mirrored(path)])
        try:
            self._replace(path, place)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            place = os.fsdecode(beside(os.fsencode(output), os.fsencode(path), b"partial"))
            self._replace(path, place)
        return place

    def _replace(self, path: str, place: str) -> None:
        """Moves something to where an earlier attempt may have left its own.

        Directories are merged; of each file the latest is kept. Merging matters for a file that the user put into the
        directory while the task ran: it was moved here with the failed attempt, and the next failure must not remove
        it. Where paths would become too long for that, the existing content is kept under another name.
        """
        parent = os.path.dirname(place)
        try:
            make_directories(parent)
        except (FileExistsError, NotADirectoryError):
            while parent and (os.path.isdir(parent) or not is_there(parent)):
                parent = os.path.dirname(parent)
            os.rename(parent, _free([], [parent]))
            make_directories(os.path.dirname(place))
        pending = [(path, place)]
        emptied = []
        while pending:
            path, place = pending.pop()
            if not is_there(place):
                os.rename(path, place)
            elif not _is_directory(path) and not _is_directory(place):
                os.replace(path, place)
            elif _can_merge(path, place):
                emptied.append(path)
                pending += [(os.path.join(path, name), os.path.join(place, name)) for name in os.listdir(path)]
            else:
                os.rename(place, _free([], [place]))
                os.rename(path, place)
        for directory in reversed(emptied):
            os.rmdir(directory)

    def put_back(self, before: OutputBefore) -> int:
        """Restores the units of an output and counts them. Raises OSError if one cannot be moved; it is safe where it
        is."""
        count = 0
        for unit in before.units:
            aside, path = os.fsdecode(unit.aside), os.fsdecode(unit.path)
            if not aside or not is_there(aside):
                continue
            if is_there(path):
                raise FileExistsError(errno.EEXIST, "another file was created there meanwhile", path)
            parent = os.path.dirname(path)
            if parent:
                make_directories(parent)
            os.rename(aside, path)
            count += 1
        return count

    # ---- after an accepted result ----------------------------------------------------------------------------------

    def settle(self, before: OutputBefore) -> Iterator[tuple[str, str]]:
        """Deletes what was ours and moves the rest to `replaced`; yields (name, new path) of each."""
        for unit in before.units:
            aside, path = os.fsdecode(unit.aside), os.fsdecode(unit.path)
            if not aside or not is_there(aside):
                continue
            too_long = any(len(unit.aside) + len(name) > _LONGEST_PATH for name in unit.changed)
            if unit.keep or too_long:
                yield path, self.keep(aside, os.fsdecode(before.path), path)
                continue
            for name in map(os.fsdecode, unit.changed):
                inside = os.path.join(aside, name)
                if is_there(inside):
                    yield os.path.join(path, name), self.keep(inside, path, os.path.join(path, name))
            remove_tree(aside)

    def keep(self, thing: str, output: str, path: str) -> str:
        """Moves the former content of a path to `replaced`; returns its new path. Overwrites nothing."""
        return self._keep(thing, output, path, self.replaced)

    def _keep(self, thing: str, output: str, path: str, root: str) -> str:
        place = _free([root], mirrored(path))
        try:
            self._make_parents(place)
            os.rename(thing, place)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            place = _free_beside(output, path, os.path.basename(root))
            make_directories(os.path.dirname(place))
            os.rename(thing, place)
        return place

    # ---- leftovers -------------------------------------------------------------------------------------------------

    def strays(self) -> list[OutputBefore]:
        """Returns backups without a journal entry, identified by their path only."""
        found = []
        pending = [self.aside]
        while pending:
            top = pending.pop()
            try:
                names = os.listdir(top)
            except OSError:
                continue
            parts = mirrored_parts(top, self.aside)
            for name in names:
                if name == UNITS:
                    for each in sorted(os.listdir(os.path.join(top, name))):
                        path, place = unmirrored([*parts, each]), os.path.join(top, name, each)
                        unit = MovedUnit(os.fsencode(path), os.fsencode(place), 0, 0, True)
                        found.append(OutputBefore(os.fsencode(path), [unit]))
                else:
                    pending.append(os.path.join(top, name))
        return found

    def remove_empty(self) -> None:
        """Removes the directory of backups, if it is empty."""
        remove_empty_directories(self.aside)
        self._made.clear()


def mirrored_parts(directory: str, root: str) -> list[str]:
    below = os.path.relpath(directory, root)
    return [] if below == "." else below.split("/")


def beside(output: bytes, path: bytes, kind: bytes) -> bytes:
    """Returns a hidden name beside an output, because a rename cannot reach another file system."""
    parent, last = os.path.split(output)
    top = os.path.join(parent, b".%s.shoal-%s" % (last[:200], kind))
    return top if path == output else os.path.join(top, path[len(output) + 1 :])


def _free_beside(output: str, path: str, kind: str) -> str:
    return _free([], [os.fsdecode(beside(os.fsencode(output), os.fsencode(path), kind.encode()))])


def half_made_beside(output: str) -> Iterator[str]:
    """Yields partial outputs on another file system than the records."""
    partial, interrupted = (os.fsdecode(beside(os.fsencode(output), os.fsencode(output), kind)) for kind in _HALF_MADE)
    if is_there(partial):
        yield partial
    place, number = interrupted, 0
    while is_there(place):
        yield place
        number += 1
        place = f"{interrupted}.{number}"


def _free(root: list[str], parts: Sequence[str]) -> str:
    """Returns an unused name below the root: existing components get a number."""
    place = "/".join(root)
    for at, part in enumerate(parts, 1):
        is_last = at == len(parts)
        number = 0
        while True:
            name = f"{part}.{number}" if number else part
            there = f"{place}/{name}" if place else name
            if not is_there(there) or (not is_last and os.path.isdir(there) and not os.path.islink(there)):
                break
            number += 1
        place = there
    return place


def _is_back(unit: MovedUnit, found: os.stat_result) -> bool:
    """Returns whether the file is the backup itself, or was to become it, and not something newer."""
    is_same = (found.st_dev, found.st_ino) == (unit.device, unit.inode)
    return is_same and not (unit.aside and is_there(os.fsdecode(unit.aside)))


def _has_come_back(unit: MovedUnit) -> bool:
    try:
        return _is_back(unit, os.lstat(unit.path))
    except OSError:
        return False


def _is_below(path: str, tops: set[str]) -> bool:
    if not tops:
        return False
    parent = os.path.dirname(path)
    while parent and parent != "/":
        if parent in tops:
            return True
        parent = os.path.dirname(parent)
    return False
