"""Why a request can never be met, in a sentence: what is asked for, and the most there is."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.model.quantities import show_bytes
from shoal.steward.asking import ANYWHERE, Choice, Requirement
from shoal.steward.forest import Forest
from shoal.steward.placing import allowed_by
from shoal.steward.unit import Unit


def why_never(forest: Forest, request: Sequence[Requirement]) -> str:
    """The reason for a request that has no claim."""
    for wanted in request:
        reason = _why_not(forest, wanted)
        if reason is not None:
            return f"{wanted} can never be granted: {reason}"
    together = ", and ".join(map(str, request))
    machines = len(forest.machines)
    return f"{together} can never be granted together on the {machines} machine{'s' * (machines != 1)} there are"


def _why_not(forest: Forest, wanted: Requirement) -> str | None:
    """Why one requirement alone cannot be met; None if it can, as far as counts tell."""
    roots = list(forest.roots())
    if not roots:
        return "there are no machines"
    roots = list(forest.roots(allowed_by(forest, wanted.only)))
    if not roots:
        return f"no machine is {' and '.join(wanted.only)}"
    reasons = [_why_not_choice(roots, forest, wanted.nodes, choice) for choice in wanted.choices]
    return None if None in reasons else "; ".join(reason for reason in reasons if reason)


def _why_not_choice(roots: list[Unit], forest: Forest, nodes: int, choice: Choice) -> str | None:
    for kind, count in choice.needs:
        counts = [_number(root, kind) for root in roots]
        if not any(counts):
            return f"no machine has any {kind}"
        if nodes == ANYWHERE:
            if sum(counts) < count:
                return f"there are {sum(counts)} {kind} in all"
        elif max(counts) < count:
            return f"the most {kind} on one node is {max(counts)}"
    most = max(forest.capacity[root.number] for root in roots)
    if most < choice.memory:
        return f"the most memory on one node is {show_bytes(most)}"
    if nodes == ANYWHERE:
        return None
    having = [
        root
        for root in roots
        if forest.capacity[root.number] >= choice.memory
        and all(_number(root, kind) >= count for kind, count in choice.needs)
    ]
    if not having:
        return f"no node has {choice} together"
    if len(having) < nodes:
        return f"only {len(having)} machine{'s' * (len(having) > 1)} can give that"
    return None


def _number(root: Unit, kind: str) -> int:
    """How many of a class a machine has, or is."""
    return root.total.get(kind, 0) + (root.kind == kind)
