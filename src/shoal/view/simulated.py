"""A recorded run once more in the simulator: the scheduler itself decides, over the recorded tasks and virtual time.

So what it says differs from the run by what is not modelled: the time between tasks, files on their way, a machine that
others use as well. On one machine it is the broker over all that tasks declare; on a cluster it is the members of all
nodes, which know of cores. The order and the policy are the default ones, since a ledger does not name them.
"""

from __future__ import annotations

import msgspec

from shoal.model.graph import GraphBuilder
from shoal.model.resources import FRACTION, Resources
from shoal.model.task import Profile
from shoal.model.work import ranks_of
from shoal.policy.balance import Stealing
from shoal.sim.cluster.run import ClusterRun, Options
from shoal.sim.cluster.spec import ClusterSpec, NodeSpec
from shoal.sim.predict import predict
from shoal.view.fold import Node
from shoal.view.graph import Needs
from shoal.view.run import RunView

MOST_SIMULATED, MOST_NODES = 20_000, 64
"""Tasks and nodes; more of them take longer than somebody wants to wait for a report."""
_THROUGHOUT = 0.05
"""A node that came later or left earlier than this share of the run was not there throughout."""
_LOOK = 0.001
"""Share of the run between two looks for work of an idle node. Live it looks more often, which would be most of the
events of a long simulation, and changes the answer by about as little."""


class Simulated(msgspec.Struct, frozen=True):
    """What the scheduler makes of the recorded tasks."""

    seconds: float
    nodes: int


def simulate(view: RunView, needs: Needs, cores: float, most: int = MOST_SIMULATED) -> Simulated | None:
    """None for runs that are too large, and for clusters that changed on the way."""
    if not 0 < len(needs) <= most or cores <= 0:
        return None
    if not view.is_cluster():
        return Simulated(_on_one_node(view, needs, cores), 1)
    nodes = list(view.nodes.values())
    if len(nodes) > MOST_NODES or not all(_was_there(view, node) for node in nodes):
        return None
    return Simulated(_on_nodes(view, needs, nodes), len(nodes))


def _on_one_node(view: RunView, needs: Needs, cores: float) -> float:
    there = {name: amount for name, amount in (view.start.node if view.start else []) if "=" not in name}
    node = Resources.of({**there, "cores": max(1, round(cores * FRACTION))})
    kind, kinds = needs.kinds(view)
    names = [*view.categories, "(groups)"]
    profiles = [_profile(view, names[code], cores, node) for code, cores in kinds]
    builder = GraphBuilder(as_written=True)
    start, parents = needs.parent_start.tolist(), needs.parents.tolist()
    groups = len(view.categories)
    for row, (mine, ran) in enumerate(zip(kind.tolist(), needs.ran.tolist(), strict=True)):
        runs = ran and mine != groups
        builder.task(
            str(row),
            "recorded" if runs else None,
            after=parents[start[row] : start[row + 1]],
            profile=profiles[mine] if runs else None,
        )
    return predict(builder.build(), needs.seconds.tolist(), node).makespan


def _profile(view: RunView, category: str, cores: float, node: Resources) -> Profile:
    """What its tasks declare beside these cores, as far as the node has it."""
    asked = view.declared.get(category, {}) | {"cores": round(cores * FRACTION)}
    fitting = {name: min(amount, node.get(name)) for name, amount in asked.items() if node.get(name)}
    return Profile(category=category or "task", resources=Resources.of(fitting))


def _was_there(view: RunView, node: Node) -> bool:
    spare = _THROUGHOUT * (view.last_time - view.origin)
    if len(node.present) != 1 or node.cores < 1:
        return False
    begin, end = node.present[0]
    return begin <= view.origin + spare and (end is None or end >= view.last_time - spare)


def _on_nodes(view: RunView, needs: Needs, nodes: list[Node]) -> float:
    work = needs.work(view)
    most = max(int(node.cores) for node in nodes)
    profiles = [
        msgspec.structs.replace(
            profile, resources=Resources.of({"cores": min(profile.resources.get("cores"), most * FRACTION)})
        )
        for profile in work.profiles
    ]
    rank = ranks_of(work.waits_for, work.child_start, work.children)
    work = msgspec.structs.replace(work, profiles=profiles, rank=rank)
    first, *others = (NodeSpec(cores=int(node.cores)) for node in nodes)
    spec = ClusterSpec(nodes=len(nodes), node=first, others=tuple((1, kind) for kind in others))
    usual, look = Stealing(), _LOOK * (view.last_time - view.origin)
    stealing = Stealing(
        first_interval=max(usual.first_interval, look / 2), longest_interval=max(usual.longest_interval, look)
    )
    return ClusterRun(work, spec, Options(stealing=stealing)).execute().makespan
