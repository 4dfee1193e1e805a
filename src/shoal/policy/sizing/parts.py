"""Which resources a task leaves open on a node, and the part of a panel that sizes each of them."""

from __future__ import annotations

from shoal.model.resources import Resources
from shoal.model.task import Profile
from shoal.policy.sizing.cores import CoreNeed, LearnedCores
from shoal.policy.sizing.panel import SIZED
from shoal.policy.sizing.sizer import Sizer
from shoal.policy.sizing.sketch import Learned

UNIT = 1 << 20
"""Memory and disk are given in steps of this."""


def open_resources(profile: Profile, node: Resources) -> list[str]:
    """What nobody said such tasks need, and the node has."""
    return [name for name in SIZED if node.get(name) and not profile.declares(name)]


def new_part(
    name: str, node_size: int, mode: str = "max-throughput", learned: Learned | LearnedCores | None = None
) -> Sizer | CoreNeed:
    """The part for one resource. Disk is plenty as a rule, so unknown tasks get no more of it than falls to each."""
    if name == "cores":
        return CoreNeed(node_size, learned=learned if isinstance(learned, LearnedCores) else None)
    known = learned if isinstance(learned, Learned) else None
    return Sizer(node_size, mode, unit=UNIT, learned=known, hopeful=name == "disk")
