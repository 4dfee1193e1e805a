"""Which resources a task leaves open on a node, and the part of a panel that sizes each of them."""

from __future__ import annotations

from shoal.model.resources import FRACTION, Resources
from shoal.policy.sizing.cores import CoreNeed, LearnedCores
from shoal.policy.sizing.panel import SIZED
from shoal.policy.sizing.sizer import Sizer
from shoal.policy.sizing.sketch import Learned

UNIT = 1 << 20
"""Memory and disk are given in steps of this."""


def open_resources(request: Resources, node: Resources) -> list[str]:
    """What a task does not say it needs and the node has; one core is what is taken to be meant where nobody said."""
    found = []
    for name in SIZED:
        declared = request.get(name)
        if node.get(name) and (declared == FRACTION if name == "cores" else not declared):
            found.append(name)
    return found


def new_part(
    name: str, node_size: int, mode: str = "max-throughput", learned: Learned | LearnedCores | None = None
) -> Sizer | CoreNeed:
    """The part for one resource. Disk is plenty as a rule, so unknown tasks get no more of it than falls to each."""
    if name == "cores":
        return CoreNeed(node_size, learned=learned if isinstance(learned, LearnedCores) else None)
    known = learned if isinstance(learned, Learned) else None
    return Sizer(node_size, mode, unit=UNIT, learned=known, hopeful=name == "disk")
