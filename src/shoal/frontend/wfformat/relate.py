"""How the tasks of a trace hang together: ids become positions, and what disagrees is refused.

Dependencies are in a file up to three times: as parents, as children and by files. They must agree. A parent without a
file in between is a dependency like any other; a list of children or parents that is empty in every task is taken as
not recorded.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from shoal.errors import InputError
from shoal.frontend.wfformat.trace import TraceFile
from shoal.model.graph import GraphBuilder


class Draft(msgspec.Struct):
    """One task as its file names things."""

    path: str
    """Where it stands in the file."""
    id: str
    parents: list[str]
    inputs: list[str]
    outputs: list[str]
    children: list[str] | None = None
    """None if the version has no such field."""


class Relations(msgspec.Struct):
    """Positions of the parents and files of each task."""

    parents: list[tuple[int, ...]]
    inputs: list[tuple[int, ...]]
    outputs: list[tuple[int, ...]]


def relate(drafts: Sequence[Draft], references: dict[str, int], files: Sequence[TraceFile], source: str) -> Relations:
    """Resolves every reference; `references` says which task an id, or whatever else it goes by, stands for."""
    file_numbers = {file.id: number for number, file in enumerate(files)}
    inputs = [_files(draft, draft.inputs, "inputFiles", file_numbers, source) for draft in drafts]
    outputs = [_files(draft, draft.outputs, "outputFiles", file_numbers, source) for draft in drafts]
    makers = _makers(drafts, outputs, files, source)
    by_files = [tuple(dict.fromkeys(makers[file] for file in files_read if makers[file] >= 0)) for files_read in inputs]
    for draft, makers_of_inputs, position in zip(drafts, by_files, range(len(drafts)), strict=True):
        if position in makers_of_inputs:
            raise wrong(source, draft.path, f"task {draft.id!r} reads a file that it makes itself")
    parents = [_tasks(draft, draft.parents, "parents", references, source) for draft in drafts]
    children = [_tasks(draft, draft.children or [], "children", references, source) for draft in drafts]
    if any(parents) or any(children):
        _agree(drafts, parents, children, by_files, source)
    else:
        parents = by_files
    _refuse_cycles(drafts, parents, source)
    return Relations(parents, inputs, outputs)


def wrong(source: str, path: str, message: str, remedy: str | None = None) -> InputError:
    """The error for what stands at a path of the file."""
    return InputError(f"{message} (at {path})" if path else message, file=source, remedy=remedy)


def _tasks(draft: Draft, names: list[str], field: str, references: dict[str, int], source: str) -> tuple[int, ...]:
    found = []
    for position, name in enumerate(names):
        number = references.get(name)
        if number is None:
            raise wrong(source, f"{draft.path}.{field}[{position}]", f"there is no task {name!r}")
        found.append(number)
    return tuple(dict.fromkeys(found))


def _files(draft: Draft, names: list[str], field: str, numbers: dict[str, int], source: str) -> tuple[int, ...]:
    found = []
    for position, name in enumerate(names):
        number = numbers.get(name)
        if number is None:
            raise wrong(source, f"{draft.path}.{field}[{position}]", f"there is no file {name!r} in the list of files")
        found.append(number)
    return tuple(dict.fromkeys(found))


def _makers(
    drafts: Sequence[Draft], outputs: list[tuple[int, ...]], files: Sequence[TraceFile], source: str
) -> list[int]:
    makers = [-1] * len(files)
    for number, made in enumerate(outputs):
        for file in made:
            if makers[file] >= 0:
                first, second = drafts[makers[file]].id, drafts[number].id
                message = f"two tasks make the file {files[file].id!r}: {first!r} and {second!r}"
                raise wrong(source, drafts[number].path, message)
            makers[file] = number
    return makers


def _agree(
    drafts: Sequence[Draft],
    parents: list[tuple[int, ...]],
    children: list[tuple[int, ...]],
    by_files: list[tuple[int, ...]],
    source: str,
) -> None:
    declared = {(parent, number) for number, row in enumerate(parents) for parent in row}
    mirrored = {(number, child) for number, row in enumerate(children) for child in row}
    if mirrored:
        for parent, child in sorted(declared ^ mirrored):
            says, silent, role, other = child, parent, "parent", "child"
            if (parent, child) not in declared:
                says, silent, role, other = parent, child, "child", "parent"
            message = (
                f"task {drafts[says].id!r} has {drafts[silent].id!r} as a {role}, "
                f"but that does not have it as a {other}"
            )
            raise wrong(source, drafts[says].path, message)
    for number, row in enumerate(by_files):
        for maker in row:
            if (maker, number) not in declared:
                message = (
                    f"task {drafts[number].id!r} reads a file that {drafts[maker].id!r} makes, "
                    "but does not have it as a parent"
                )
                raise wrong(source, drafts[number].path, message)


def _refuse_cycles(drafts: Sequence[Draft], parents: list[tuple[int, ...]], source: str) -> None:
    builder = GraphBuilder(source, as_written=True)
    for draft, row in zip(drafts, parents, strict=True):
        builder.task(draft.id, None, after=row)
    builder.build()
