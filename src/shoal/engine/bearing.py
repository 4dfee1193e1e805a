"""What tasks use of a machine and how many it bears, as earlier runs found it; and forecasts under several throttles.

Where a throttle has learned it that counts. Else a task uses the processor time that was measured, else the cores that
it declares. The simulation is `shoal.sim.throttle.workflow`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from shoal.engine.expect import Expectation
from shoal.engine.measured import Took, read_measured
from shoal.engine.sizes import Kept, read_kept
from shoal.engine.workspace import Workspace
from shoal.model.graph import ancestors
from shoal.model.resources import FRACTION, Resources
from shoal.policy.throttle.profile import Profile
from shoal.policy.throttle.readings import CPU
from shoal.policy.throttle.regime import Regime
from shoal.sim.throttle.workflow import Demand, Throttled, ThrottledRun


def demands_of(expected: Expectation, node: Resources, machine_cores: int) -> dict[str, Demand]:
    """By category; `machine_cores` are those of the machine on which shares were learned."""
    graph = expected.workflow.graph
    kept, took = Kept(), dict[str, list[Took]]()
    if expected.origin == "ledger":
        workspace = Workspace(expected.workflow.path)
        kept, took = read_kept(workspace), read_measured(workspace).by_category()
    cores = node.get("cores") / FRACTION
    found: dict[str, Demand] = {}
    for profile in graph.profiles:
        category = profile.category
        if category in found:
            continue
        learned = kept.throttle.get(category)
        if learned is not None and learned.seconds:
            known = expected.samples.get(category) or [learned.seconds]
            found[category] = learned_demand(learned, sum(known) / len(known), machine_cores / cores)
        else:
            declared = profile.resources.get("cores") / FRACTION if profile.declares("cores") else 1.0
            found[category] = Demand({CPU: _measured_cores(took.get(category, ()), declared) / cores})
    return found


def learned_demand(learned: Profile, seconds: float, scale: float) -> Demand:
    """From a profile; its tasks took so long, and the node has `1 / scale` of the machine's processors."""
    use = {name: share for name, share in learned.use.items() if share > learned.error.get(name, 1.0)}
    if CPU in use:
        use[CPU] *= scale
    bears = learned.level if learned.dominant is None else 0
    return Demand(use, bears, min(1.0, learned.seconds / seconds) if seconds else 1.0)


def _measured_cores(took: Sequence[Took], declared: float) -> float:
    seconds = sum(each.seconds for each in took)
    return sum(each.cpu for each in took) / seconds if seconds else declared


def under_throttles(
    expected: Expectation, node: Resources, order: str, regimes: Sequence[Regime], demands: Mapping[str, Demand]
) -> list[Throttled]:
    """A simulated run for each throttle, with what a run takes beside its tasks."""
    graph, overheads = expected.workflow.graph, expected.overheads
    wanted = ancestors(graph, expected.workflow.targets)
    durations = [length + overheads.per_task for length in expected.durations]
    runs = [ThrottledRun(graph, durations, node, regime, demands, wanted=wanted, order=order) for regime in regimes]
    found = [run.execute() for run in runs]
    return [msgspec.structs.replace(each, makespan=each.makespan + overheads.at_ends) for each in found]
