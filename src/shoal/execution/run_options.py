"""Options of a run, and the resources (cores, memory, disk) of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from shoal.core.policies.order import DEFAULT_ORDER
from shoal.core.policies.retry import FIRST_DELAY
from shoal.core.policies.throttle.registry import NO_THROTTLE, Regime
from shoal.core.resources import FRACTION, Resources, parse_amount
from shoal.execution.attempt_recorder import AttemptHooks
from shoal.execution.learned_sizes import DEFAULT_MODE
from shoal.execution.process_limits import available_cores, available_memory, free_disk

if TYPE_CHECKING:
    from shoal.execution.attempt_recorder import RunListener
    from shoal.ledger.file import LedgerWriter
    from shoal.ledger.history import History
    from shoal.ledger.identity import Versions
    from shoal.ledger.up_to_date import Plan
    from shoal.ledger.workspace import Workspace

MORE = "--resource {name}=N"
"""The option with which a user declares that a machine has more of a resource."""
LARGER_NODE = "add a larger node"
"""Replaces `MORE` on a cluster, where each node declares its own resources."""


class PlannedRun(msgspec.Struct, frozen=True):
    """What a run executes, and where its records and notes go. Local runs and runs on a cluster begin with the same."""

    identity: str
    plan: Plan
    versions: Versions
    workspace: Workspace
    ledger: LedgerWriter
    listener: RunListener
    history: History
    """What earlier runs left in the ledger."""


class RunOptions(msgspec.Struct):
    """The options of a run, from the command line or from another program."""

    node: Resources
    order: str = DEFAULT_ORDER
    fail_fast: bool = False
    by_content: bool = False
    paranoid: bool = False
    trace: str | None = None
    """A file for every event and the commands it led to, one JSON line each."""
    hooks: AttemptHooks | None = None
    retry_pause: float = FIRST_DELAY
    """Seconds before the second retry of a task; doubles with each further retry."""
    as_found: bool = False
    """Take files as a plain runner finds them: changed outputs count as they are, outputs that exist before the first
    run are not removed, and no directories are created for outputs."""
    overwrite: bool = False
    """Overwrite existing outputs for which there is no record."""
    sizing: str = DEFAULT_MODE
    """How undeclared resources of tasks are sized."""
    throttle: Regime = NO_THROTTLE
    """What limits the number of concurrent tasks, in addition to their declared resources."""
    pass_streams: bool = False
    """Let tasks write to this process's own output streams instead of capturing what they write."""
    more: str = MORE
    """The option by which the user can declare more of a resource."""
    enforced: bool = True
    """Kill tasks that use more memory or disk than they declared."""
    series: str | None = None
    """A directory for a time series of each task that runs long enough to be sampled."""
    check_sources: bool = True
    """Refuse to start when a source file is missing."""


def this_node(directory: str, jobs: float | None = None, declared: Mapping[str, str] | None = None) -> Resources:
    """Returns the node's resources; `jobs` replaces its cores, `declared` adds to or replaces what was detected."""
    amounts = {
        "cores": parse_amount(jobs, "--jobs") if jobs is not None else available_cores() * FRACTION,
        "memory": available_memory(),
        "disk": free_disk(directory),
    }
    amounts.update(dict(Resources.parse(dict(declared or {})).amounts))
    return Resources.of(amounts)
