"""Signatures of files on disk, checks of sources and outputs, and parent directories for outputs."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Container, Iterator
from typing import TypeAlias

from shoal.core.file_names import RealDirectory, Relative
from shoal.core.graph import NO_TASK, Graph, files_read
from shoal.errors import InputError
from shoal.execution.files.trees import (
    OwnVersions,
    as_listing,
    list_tree,
    number_of_content,
    signature_of_entries,
    tree_signature,
)
from shoal.ledger.identity import Versions
from shoal.ledger.ownership import DirectoryEntry, Listing, encode_listings
from shoal.ledger.records import BY_CONTENT

_LISTED = 3
_PLAIN: Listing = {}
_NONE: Container[str] = ()
EntriesBefore: TypeAlias = Callable[[int, int], Container[str]]
"""Maps a task and the index of an output directory to the entries that existed there before the attempt."""


def signature(path: str, by_content: bool, own: OwnVersions | None = None) -> tuple[int, int] | None:
    """Returns size and modification time of a file (or a number made from its content); None if it does not exist.

    For a directory it covers everything below, except what has a version of its own.
    """
    try:
        found = os.stat(path)
    except OSError:
        return None
    if stat.S_ISDIR(found.st_mode):
        return tree_signature(path, by_content=by_content, is_left_out=own.below(path) if own else None)
    return signature_of_file(path, found, by_content)


def signature_of_file(path: str, found: os.stat_result, by_content: bool) -> tuple[int, int]:
    if by_content and stat.S_ISREG(found.st_mode):
        try:
            return found.st_size, content_number(path)
        except OSError:
            pass  # not readable: a change at least shows in the modification time
    return found.st_size, found.st_mtime_ns


def content_number(path: str) -> int:
    """Returns a 62-bit number made from the file's bytes."""
    return number_of_content(os.open(path, os.O_RDONLY | os.O_CLOEXEC))


class Signatures:
    """Reads the signatures of a graph's files from disk into `versions`; the workflow's directory is the current
    one."""

    def __init__(self, graph: Graph, versions: Versions) -> None:
        self.graph = graph
        self.versions = versions
        self._own: OwnVersions | None = None

    @property
    def own(self) -> OwnVersions:
        """The declared outputs, computed at the first directory."""
        if self._own is None:
            graph = self.graph
            made = (graph.file_names[file] for file, maker in enumerate(graph.producer) if maker != NO_TASK)
            self._own = OwnVersions(made, os.getcwd())
        return self._own

    def note(self, file: int, by_content: bool) -> bool:
        """Records the signature of a file; returns False if it does not exist."""
        name, versions = self.graph.file_names[file], self.versions
        try:
            found = os.stat(name)
        except OSError:
            return False
        if stat.S_ISDIR(found.st_mode):
            versions.folders.add(file)
            pair = tree_signature(name, by_content=by_content, is_left_out=self.own.below(name))
        else:
            if versions.folders:
                versions.folders.discard(file)
            pair = signature_of_file(name, found, by_content)
        versions.sizes[file], versions.times[file] = pair
        return True

    def note_made(self, file: int, by_content: bool) -> Listing | None:
        """Records the signature of a file that a task has made; None if it does not exist. Returns the entries of a
        directory, or the target of a link; nothing for a plain file."""
        name, versions = self.graph.file_names[file], self.versions
        try:
            found = os.lstat(name)
            if stat.S_ISREG(found.st_mode) and not versions.folders:
                versions.sizes[file], versions.times[file] = signature_of_file(name, found, by_content)
                return _PLAIN
            if stat.S_ISLNK(found.st_mode):
                target = os.readlink(name)
                return {"": DirectoryEntry("link", 0, 0, target)} if self.note(file, by_content) else None
        except OSError:
            return None
        if not stat.S_ISDIR(found.st_mode):
            return _PLAIN if self.note(file, by_content) else None
        versions.folders.add(file)
        entries = list(list_tree(name, by_content=by_content, is_left_out=self.own.below(name)))
        versions.sizes[file], versions.times[file] = signature_of_entries(entries)
        return {"": DirectoryEntry("directory", 0, 0, "")} | as_listing(entries)

    def look(self, file: int, check: int) -> tuple[int, int] | None:
        """Returns the signature of a file, by time or by content, without recording it."""
        own = self.own if file in self.versions.folders else None
        return signature(self.graph.file_names[file], check == BY_CONTENT, own)

    def foreign_files_in(self, file: int) -> Iterator[str]:
        """Yields the files in a directory that no task of the workflow makes."""
        name = self.graph.file_names[file]
        entries = list_tree(name, is_left_out=self.own.below(name))
        return (os.path.join(name, entry.name) for entry in entries if entry.kind != "directory")


def look_at_files(
    graph: Graph, wanted: bytearray, versions: Versions, by_content: bool, check_sources: bool = True
) -> Signatures:
    """Fills `versions` for every file that a wanted task reads or makes; raises `InputError` for missing sources."""
    signatures = Signatures(graph, versions)
    versions.look = signatures.look
    names, seen = graph.file_names, bytearray(len(graph.file_names))
    missing: list[tuple[int, int]] = []
    everything = 0 not in wanted
    for task in range(len(graph)):
        if not everything and not wanted[task]:
            continue
        for file in graph.inputs_of(task):
            if not seen[file]:
                seen[file] = 1
                # Checking access is cheaper than the exception of a failing stat.
                is_named = os.access(names[file], os.F_OK, follow_symlinks=False)
                is_there = is_named and signatures.note(file, by_content)
                if graph.producer[file] != NO_TASK:
                    if is_named:
                        versions.standing.append(file)
                elif not is_there:
                    missing.append((file, task))
        for file in graph.outputs_of(task):
            if not seen[file]:
                seen[file] = 1
                if os.access(names[file], os.F_OK, follow_symlinks=False):
                    versions.standing.append(file)
                    signatures.note(file, by_content)
    if missing and check_sources:
        raise _missing_error(graph, missing)
    return signatures


def refuse_hidden_parts(graph: Graph, wanted: bytearray, folders: Container[int]) -> None:
    """Refuses tasks that need a directory but not all declared outputs of other tasks in it.

    Such outputs have versions of their own and do not count for that of the directory. So the task would miss a change
    of them, and it would not wait for the tasks that make them. Tasks that turn files of a directory into other files
    there, one file each, do not need each other's outputs.
    """
    parts = _declared_parts(graph, {file for file in graph.inputs if file in folders})
    if not parts:
        return
    for task in range(len(graph)):
        if not wanted[task]:
            continue
        for file in graph.inputs_of(task):
            if file in parts:
                known = {*files_read(graph, task), *graph.outputs_of(task)}
                for other in graph.after_of(task):
                    known.update(graph.outputs_of(other))
                for part in parts[file]:
                    if part not in known:
                        raise _hidden_part_error(graph, task, file, part)


def _declared_parts(graph: Graph, folders: set[int]) -> dict[int, list[int]]:
    """Returns, for each directory, the outputs in it of tasks that do not need it."""
    paths = {os.path.abspath(graph.file_names[file]): file for file in folders}
    found: dict[int, list[int]] = {}
    for part in graph.outputs if paths else ():
        above = os.path.abspath(graph.file_names[part])
        while above != "/":
            above = os.path.dirname(above)
            file = paths.get(above)
            if file is not None and file not in files_read(graph, graph.producer[part]):
                found.setdefault(file, []).append(part)
    return found


def _hidden_part_error(graph: Graph, task: int, file: int, part: int) -> InputError:
    name, maker = graph.file_names[part], graph.names[graph.producer[part]]
    return InputError(
        f"{graph.names[task]!r} needs the directory {graph.file_names[file]!r}, where {maker!r} makes {name!r}: "
        "it would neither wait for that file nor notice a change of it",
        file=graph.source,
        line=graph.lines[task] or None,
        remedy=f"add {name!r} to its inputs, or replace the directory by the files that it reads",
    )


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
    """Creates directories for the outputs of a task, and checks what it made."""

    def __init__(self, graph: Graph, versions: Versions, *, make_parents: bool = True) -> None:
        self.graph = graph
        self.versions = versions
        self._make_parents = make_parents
        self.signatures = Signatures(graph, versions)
        self._made = {""}

    def prepare(self, task: int) -> str | None:
        """Creates parent directories; returns the error as a string."""
        graph = self.graph
        begin, end = graph.output_start[task], graph.output_start[task + 1]
        if begin == end or not self._make_parents:
            return None
        for file in graph.outputs[begin:end]:
            name = graph.file_names[file]
            parent = os.path.dirname(name)
            if parent not in self._made:
                try:
                    os.makedirs(parent, exist_ok=True)
                except OSError as error:
                    return f"cannot prepare its output {name!r}: {error.strerror}"
                self._made.add(parent)
        return None

    def check_outputs(
        self, task: int, by_content: bool, entries_before: EntriesBefore | None = None
    ) -> tuple[str | None, bytes]:
        """Reads the signatures of what a task made. Returns an error if an output is missing, and the listings for the
        ledger. `entries_before` returns what existed in a directory before, which is not the task's."""
        graph = self.graph
        begin, end = graph.output_start[task], graph.output_start[task + 1]
        listings: dict[int, Listing] = {}
        for at, file in enumerate(graph.outputs[begin:end]):
            listing = self.signatures.note_made(file, by_content)
            if listing is None:
                return f"exit status 0, but it did not make {graph.file_names[file]!r}", b""
            if listing:
                stood = entries_before(task, at) if entries_before is not None else _NONE
                listings[at] = {name: entry for name, entry in listing.items() if name not in stood}
        return None, encode_listings(listings)


def relative_to(base: str) -> Relative:
    """Returns a function that turns an absolute name below `base` into a relative one, also through symbolic links."""
    real_base = os.path.realpath(base)
    known: dict[str, str] = {}

    def relative(name: str) -> str:
        found = _below(name, base)
        if found is not None:
            return found
        folder, _, last = name.rpartition("/")
        real = known.get(folder)
        # many files lie in few directories, and each resolution costs a system call per path component
        if real is None:
            real = known[folder] = os.path.realpath(folder or "/")
        return _below(os.path.join(real, last), real_base) or name

    return relative


def _below(name: str, top: str) -> str | None:
    if name == top:
        return "."
    inside = name.startswith(top if top.endswith("/") else top + "/")
    return name[len(top) :].lstrip("/") if inside else None


def real_directories() -> RealDirectory:
    """Returns a function that resolves directories, relative to the current one, which is the workflow's own."""
    base = os.path.realpath(os.curdir)
    known: dict[str, str] = {}
    direct: set[str] = set()
    absent: set[str] = set()

    def is_direct(name: str) -> bool:
        """Returns whether neither it nor an ancestor is a link. Each directory is checked once: many names share their
        ancestors."""
        unknown = []
        while name and name not in direct:
            unknown.append(name)
            name = name.rpartition("/")[0]
        for each in reversed(unknown):
            if name not in absent:
                try:
                    if stat.S_ISLNK(os.lstat(each).st_mode):
                        return False
                except OSError:
                    absent.add(each)
            else:
                absent.add(each)  # nothing exists below a missing directory
            direct.add(each)
            name = each
        return True

    def real(name: str) -> str:
        found = known.get(name)
        if found is None:
            if name in direct or (".." not in name.split("/") and is_direct(name)):
                return name
            whole = os.path.realpath(name)
            inside = _below(whole, base)
            found = known[name] = whole if inside is None else "" if inside == "." else inside
        return found

    return real


def relative_here() -> Relative:
    """Like `relative_to` for the current directory, which is the workflow's own once it is loaded."""
    return relative_to(os.getcwd())
