"""How a run is run on this machine, as asked for on the command line or by another program."""

from __future__ import annotations

import msgspec

from shoal.engine.attempt import Attendant
from shoal.engine.sizes import DEFAULT_MODE
from shoal.model.resources import Resources
from shoal.policy.order import DEFAULT_ORDER
from shoal.policy.retry import FIRST_DELAY
from shoal.policy.throttle.regime import NO_THROTTLE, Regime

MORE = "--resource {name}=N"
"""The option by which a user says that a machine has more than it seems."""
LARGER_NODE = "add a node that has so much"
"""What stands in its place on a cluster, whose nodes say themselves what they have."""


class RunOptions(msgspec.Struct):
    """How to run, as asked for on the command line."""

    node: Resources
    order: str = DEFAULT_ORDER
    fail_fast: bool = False
    by_content: bool = False
    paranoid: bool = False
    trace: str | None = None
    """A file that gets every event and the commands it led to, one JSON line each."""
    attendant: Attendant | None = None
    retry_pause: float = FIRST_DELAY
    """Seconds before the second repetition of an attempt; they double from there."""
    as_found: bool = False
    """Leave files as a plain runner finds them: changed outputs are taken as they are, outputs that stand there before
    the first run are not removed, and no directories are made for outputs."""
    overwrite: bool = False
    """Make outputs again that stand there although nothing on record has made them."""
    sizing: str = DEFAULT_MODE
    """How resources are sized that tasks do not declare."""
    throttle: Regime = NO_THROTTLE
    """What limits how many tasks run together, beside what they declare."""
    pass_streams: bool = False
    """Let tasks write where this process does, in place of keeping what they write."""
    more: str = MORE
    """The option by which the user can declare more of a resource."""
    enforced: bool = True
    """End tasks that use more memory or disk than they declared."""
    series: str | None = None
    """A directory that gets a time series of each task that runs long enough to be looked at."""
    check_sources: bool = True
    """Refuse to start when a source file is not there."""
