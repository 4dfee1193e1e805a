"""Ended attempts as the view reads them: the same record as `TaskEnded`, with less of it made into objects, and many of
them as columns.

There are so many of these records that their decoding is most of what opening a ledger takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec
import numpy as np

from shoal.ledger.records import UNSAID, TaskEnded
from shoal.view.columns import Array


class Used(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The first columns of `Usage`; what stands behind them is skipped."""

    read_bytes: int = 0
    written_bytes: int = 0
    switches: int = 0
    major_faults: int = 0
    tree_memory: int = 0
    virtual_memory: int = 0
    swap: int = 0
    processes: int = 0
    total_processes: int = 0
    cores: int = 0
    disk: int = 0


class End(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="end"):
    """See `TaskEnded`."""

    task: int
    attempt: int
    outcome: str
    final: bool
    status: int
    started: float
    ended: float
    user: float
    system: float
    max_rss: int
    output_at: int
    output_size: int
    message: str
    place: bytes
    content: bytes
    inputs: bytes
    outputs: msgspec.Raw
    value: bytes | None
    usage: Used = Used()
    memory_limit: int = 0
    node: int = 0
    check: int = UNSAID
    listing: msgspec.Raw = msgspec.Raw()


AnyEnd: TypeAlias = TaskEnded | End


class EndColumns(msgspec.Struct, frozen=True):
    """Ended attempts, one row each, in the order of the ledger."""

    task: Array
    number: Array
    node: Array
    final: Array
    started: Array
    ended: Array
    cpu: Array
    memory: Array
    limit: Array
    made: Array
    outcomes: list[tuple[int, str]]
    """Row and outcome of those that are not `ok`."""
    messages: list[tuple[int, str]]
    """Row and message of those that have one."""
    read: int
    written: int
    """Bytes, of all together."""


def columns_of(batch: Sequence[AnyEnd]) -> EndColumns:
    """Records as columns."""
    usages = [record.usage for record in batch]
    largest, whole = [record.max_rss for record in batch], [usage.tree_memory for usage in usages]
    return EndColumns(
        np.array([record.task for record in batch], np.int64),
        np.array([record.attempt for record in batch]),
        np.array([record.node for record in batch]),
        np.array([record.final for record in batch], bool),
        np.array([record.started for record in batch]),
        np.array([record.ended for record in batch]),
        np.array([record.user + record.system for record in batch]),
        np.maximum(largest, whole),
        np.array([record.memory_limit for record in batch]),
        np.array([usage.disk for usage in usages]),
        [(row, record.outcome) for row, record in enumerate(batch) if record.outcome != "ok"],
        [(row, record.message) for row, record in enumerate(batch) if record.message],
        sum(usage.read_bytes for usage in usages),
        sum(usage.written_bytes for usage in usages),
    )
