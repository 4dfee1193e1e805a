"""Ended attempts as the view reads them: the same record as `TaskEnded`, with less of it made into objects.

There are so many of these records that their decoding is most of what opening a ledger takes.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from shoal.ledger.records import TaskEnded


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


AnyEnd: TypeAlias = TaskEnded | End
