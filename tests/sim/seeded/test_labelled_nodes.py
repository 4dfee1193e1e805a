"""Simulated clusters whose nodes carry labels: where tasks run that require or prefer them, with and without faults."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from shoal.core.resources import required_labels, requiring
from shoal.core.work import Work
from shoal.sim.cluster.fault_schedule import FaultInjectionRun, run_cluster
from shoal.sim.cluster.files import Activity
from shoal.sim.cluster.run import ClusterRun, SimulationOptions
from shoal.sim.cluster.scenario import ONE_IN_LABELLED, ClusterScenario, draw_cluster
from shoal.sim.cluster.specification import ClusterSpec, NodeSpec
from shoal.sim.node import Violation
from shoal.sim.workloads.registry import make_workload

SEEDS = range(1, 270, ONE_IN_LABELLED)
"""Seeds with labelled nodes; the oracle checks that each task runs on a permitted node."""
HERE, THERE = NodeSpec(cores=2, labels=("site=a",)), NodeSpec(cores=2, labels=("site=b",))


class Watched(ClusterRun):
    """Counts where tasks ran."""

    def __init__(self, work: Work, spec: ClusterSpec, options: SimulationOptions) -> None:
        self.ran: Counter[str] = Counter()
        super().__init__(work, spec, options)

    def end(self, activity: Activity, _: None) -> None:
        self.ran[self.kinds[activity.node].labels[0]] += 1
        super().end(activity, _)


def watched(workload: str, requires: tuple[str, ...], prefers: tuple[str, ...], **options: object) -> Watched:
    work = make_workload(workload, 1)
    profiles = [
        msgspec.structs.replace(profile, resources=requiring(profile.resources, requires), prefers=prefers)
        for profile in work.profiles
    ]
    spec = ClusterSpec(nodes=6, node=HERE, others=((3, THERE),))
    made = Watched(msgspec.structs.replace(work, profiles=profiles), spec, SimulationOptions(seed=1, **options))  # type: ignore[arg-type]
    made.execute()
    return made


def test_under_faults_every_task_runs_on_a_node_with_its_labels() -> None:
    required, preferred, seen = 0, 0, Counter[str]()
    for seed in SEEDS:
        scenario = draw_cluster(seed)
        required += sum(bool(required_labels(profile.resources)) for profile in scenario.work.profiles)
        preferred += sum(bool(profile.prefers) for profile in scenario.work.profiles)
        seen.update(run_cluster(scenario).seen)
    assert required > 100
    assert preferred > 100
    assert seen.keys() >= {"deaths", "lost", "came back", "capacity_changes", "suspicions", "handed back"}


def test_the_oracle_detects_a_task_that_starts_without_its_label() -> None:
    work = make_workload("bag:tasks=4", 1)
    profiles = [
        msgspec.structs.replace(each, resources=requiring(each.resources, ["site=b"])) for each in work.profiles
    ]
    labelled = msgspec.structs.replace(work, profiles=profiles)
    run = FaultInjectionRun(ClusterScenario(1, labelled, ClusterSpec(nodes=2, node=HERE, others=((1, THERE),))))
    run.store.begin()
    run.oracle.started(1, 0, 1)
    with pytest.raises(Violation, match="starts on node 0, which does not have the label site=b"):
        run.oracle.started(0, 1, 1)


@pytest.mark.parametrize("submission", ["one", "all", "site=b", "site=a"])
@pytest.mark.parametrize("workload", ["bag:tasks=300", "pipeline:tasks=200,degree=4", "all-pairs:side=12"])
def test_required_labels_hold_wherever_a_run_is_submitted_to(workload: str, submission: str) -> None:
    run = watched(workload, ("site=b",), (), submission=submission)
    assert set(run.ran) == {"site=b"}
    assert run.tally.done == len(run.work)


def test_preferring_tasks_run_at_their_label_while_there_is_room() -> None:
    """A chain per core of the preferred nodes: no task needs to wait or to move."""
    run = watched("pipeline:tasks=60,degree=10", (), ("site=b",), submission="one")
    assert run.ran["site=b"] > 0.9 * len(run.work)


def test_others_help_when_preferring_tasks_would_wait_too_long() -> None:
    """Twice as many cores make it nearly twice as fast: a preference costs little."""
    preferring, free = (watched("bag:tasks=2000", (), label) for label in (("site=b",), ()))
    assert preferring.ran["site=a"] > 0.3 * len(preferring.work)
    assert preferring.tally.last_end < 1.1 * free.tally.last_end


def test_what_is_submitted_to_a_label_begins_there_and_spreads_from_there() -> None:
    few, many = (watched(f"bag:tasks={tasks}", (), (), submission="site=b") for tasks in (2, 2000))
    assert set(few.ran) == {"site=b"}
    assert many.ran["site=a"] > 0.3 * len(many.work)
