"""The state of a run as packed columns, as stored in Redis: conversion from and to a store in memory.

A million tasks are a dozen strings instead of a million keys: one string per column. The scripts (`rows.lua`) read and
write single rows in place. This module does not communicate with a server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.core.graph import NO_TASK
from shoal.core.store.memory import NOBODY, MemoryStore
from shoal.core.task import Profile
from shoal.core.work import Work
from shoal.errors import InputError

if TYPE_CHECKING:
    import numpy as np

ROW = [
    ("pending", "<i4"),
    ("generation", "<i4"),
    ("owner", "<i4"),
    ("giver", "<i4"),
    ("standing", "u1"),
    ("empty", "u1"),
]
FILE = [("location", "<i4"), ("producer", "<i4"), ("bytes", "<i8"), ("copied", "u1")]
LARGEST_COLUMN = 512 << 20
"""Maximum size of a value in Redis, in bytes."""
FLOATS = {"seconds", "upward_length"}
LONG = {"weight", "file_bytes"}
EXTRA = ("seconds", "category", "waits_for", "rank", "weight", "upward_length", "file_home")
"""Columns of the work that the scripts do not need; nodes that join the run read them."""
COLUMNS = (
    *("rows", "spans", "children", "inputs", "outputs", "files"),
    *(f"work:{name}" for name in EXTRA),
)
PIECE = 4 << 20
"""Bytes of a column that are sent at a time."""


class ColumnsSummary(msgspec.Struct, frozen=True):
    """Summary of a run without its columns; written last, so that a run with a summary is complete."""

    name: str
    tasks: int
    has_files: bool
    """Whether the store tracks locations of files."""
    reads: bool
    makes: bool
    profiles: list[Profile]
    version: int = 1


def summarize(store: MemoryStore) -> ColumnsSummary:
    work = store.work
    return ColumnsSummary(
        work.name, len(work), store.has_files, bool(work.input_start), bool(work.output_start), work.profiles
    )


def _numbers(values: Sequence[Any], kind: str) -> np.ndarray[Any, np.dtype[Any]]:
    import numpy as np

    if isinstance(values, (bytes, bytearray)):  # a column of small numbers
        return np.frombuffer(values, dtype="u1").astype(kind)
    return np.asarray(values, dtype=kind)


def _packed(values: Sequence[Any], kind: str) -> bytes:
    return _numbers(values, kind).tobytes()


def _kind(column: str) -> str:
    return "<f8" if column in FLOATS else "<i8" if column in LONG else "<i4"


def pack(store: MemoryStore) -> dict[str, bytes]:
    """The columns of a store, by the last part of their key; empty columns are omitted."""
    import numpy as np

    work = store.work
    spans = np.zeros((len(work) + 1, 3), dtype="<i4")
    for at, start in enumerate((work.child_start, work.input_start, work.output_start)):
        if len(start):
            spans[:, at] = start
    columns = {
        "rows": _rows(store).tobytes(),
        "spans": spans.tobytes(),
        "children": _packed(work.children, "<i4"),
        "inputs": _packed(work.inputs, "<i4"),
        "outputs": _packed(work.outputs, "<i4"),
        "files": _files(store).tobytes(),
        **{f"work:{name}": _packed(getattr(work, name), _kind(name)) for name in EXTRA},
    }
    for name, column in columns.items():
        if len(column) > LARGEST_COLUMN:
            raise InputError(
                f"the workflow is too large for the store: its {name} take {len(column) >> 20} MiB, a column holds 512",
                remedy="split it into several runs",
            )
    return {name: column for name, column in columns.items() if column}


def _rows(store: MemoryStore) -> np.ndarray[Any, np.dtype[Any]]:
    import numpy as np

    work = store.work
    rows = np.zeros(len(work), dtype=ROW)
    rows["pending"] = store.pending
    rows["generation"] = store.generation
    rows["owner"] = store.owner
    rows["giver"] = NOBODY
    for task, giver in store.giver.items():
        rows["giver"][task] = giver
    rows["standing"] = np.frombuffer(store.standing, dtype="u1")
    is_empty = np.array([not profile.resources.amounts for profile in work.profiles], dtype="u1")
    rows["empty"] = is_empty[_numbers(work.category, "<i4")]
    return rows


def _files(store: MemoryStore) -> np.ndarray[Any, np.dtype[Any]]:
    import numpy as np

    work = store.work
    files = np.zeros(len(work.file_bytes), dtype=FILE)
    files["bytes"] = work.file_bytes
    files["producer"] = NO_TASK
    if len(work.output_start):
        made_by = np.repeat(np.arange(len(work), dtype="i4"), np.diff(_numbers(work.output_start, "<i4")))
        files["producer"][_numbers(work.outputs, "<i4")] = made_by
    if len(store.location):
        files["location"] = store.location
    for file in store.replicas:
        files["copied"][file] = 1
    return files


def unpack_rows(rows: bytes) -> np.ndarray[Any, np.dtype[Any]]:
    """The rows of all tasks."""
    import numpy as np

    return np.frombuffer(rows, dtype=ROW)


def unpack_files(files: bytes) -> np.ndarray[Any, np.dtype[Any]]:
    """The rows of all files."""
    import numpy as np

    return np.frombuffer(files, dtype=FILE)


def unpack_work(summary: ColumnsSummary, columns: dict[str, bytes]) -> Work:
    """Restores the submitted work from columns made by `pack`; empty columns may be missing."""
    from array import array

    def numbers(name: str, kind: str = "i") -> array[Any]:
        found = array(kind)
        found.frombytes(columns.get(name, b""))
        return found

    spans = numbers("spans")
    extra: dict[str, Any] = {
        name: numbers(f"work:{name}", "d" if name in FLOATS else "q" if name in LONG else "i") for name in EXTRA
    }
    return Work(
        name=summary.name,
        profiles=summary.profiles,
        child_start=spans[0::3],
        children=numbers("children"),
        input_start=spans[1::3] if summary.reads else (),
        inputs=numbers("inputs"),
        output_start=spans[2::3] if summary.makes else (),
        outputs=numbers("outputs"),
        file_bytes=array("q", unpack_files(columns.get("files", b""))["bytes"].tolist()),
        **extra,
    )


def flaw(work: Work) -> str | None:
    """Checks work from another process: a description of the first inconsistency, or None."""
    tasks, files = len(work), len(work.file_bytes)
    lengths = {"category": tasks, "waits_for": tasks, "file_home": files}
    for name, length in lengths.items():
        if len(getattr(work, name)) != length:
            return f"expected {length} values in {name}"
    if not _lie_within(work.category, len(work.profiles)):
        return "a task has an unknown category"
    for what, start, items, end in (
        ("children", work.child_start, work.children, tasks),
        ("inputs", work.input_start, work.inputs, files),
        ("outputs", work.output_start, work.outputs, files),
    ):
        if what != "children" and not len(start):
            start = bytes(tasks + 1)  # no task has any
        if len(start) != tasks + 1 or not _is_partition(start, len(items)) or not _lie_within(items, end):
            return f"the {what} do not match the tasks"
    return None


def _lie_within(values: Sequence[int], end: int) -> bool:
    numbers = _numbers(values, "<i8")
    return not len(numbers) or bool(numbers.min() >= 0 and numbers.max() < end)


def _is_partition(start: Sequence[int], end: int) -> bool:
    numbers = _numbers(start, "<i8")
    return bool(numbers[0] == 0 and numbers[-1] == end and (numbers[1:] >= numbers[:-1]).all())
