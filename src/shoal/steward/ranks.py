"""A grant over several machines as the processes of a parallel program: who runs where, and what each is told.

The names are our own; a program started by `mpirun` reads the host list, one that does its own communication reads rank
and number of ranks. Starting the processes is left to the caller, pinning them to `shoal.runner.pinning`.
"""

from __future__ import annotations

import msgspec

from shoal.errors import InputError
from shoal.steward.grants import Grant, Place


class Rank(msgspec.Struct, frozen=True):
    """One process of a parallel task."""

    rank: int
    node: str
    local_rank: int
    """Among the ranks on its machine."""
    places: tuple[Place, ...]
    """What it has on its machine; several ranks there share it unless there is one for each unit."""
    environment: tuple[tuple[str, str], ...]


def ranks_of(grant: Grant, *, per: str | None = None) -> list[Rank]:
    """One rank for each machine, or one for each held unit of the class `per`; ordered by machine.

    Ranks of one machine stand together, so that `SHOAL_HOSTS` with its counts says who is where.
    """
    nodes = grant.nodes()
    shares: list[tuple[str, tuple[Place, ...]]] = []
    for node in nodes:
        places = grant.on(node)
        if per is None:
            shares.append((node, tuple(places)))
        else:
            count = sum(place.kinds.count(per) for place in places)
            shares += [(node, tuple(places))] * count
    if not shares:
        raise InputError(f"the grant holds no {per}, so there is nothing to run a rank on")
    counts = {node: sum(each == node for each, _ in shares) for node in nodes}
    common = (
        ("SHOAL_HOSTS", ",".join(node for node in nodes if counts[node])),
        ("SHOAL_HOST_RANKS", ",".join(str(counts[node]) for node in nodes if counts[node])),
        ("SHOAL_RANKS", str(len(shares))),
    )
    ranks: list[Rank] = []
    on_node = dict.fromkeys(nodes, 0)
    for rank, (node, places_here) in enumerate(shares):
        own = (("SHOAL_RANK", str(rank)), ("SHOAL_LOCAL_RANK", str(on_node[node])))
        ranks.append(Rank(rank, node, on_node[node], places_here, (*common, *own)))
        on_node[node] += 1
    return ranks
