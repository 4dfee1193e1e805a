"""What the factory's process makes of a cluster's answer; its life with a real cluster is in `test_cluster_factory`."""

from __future__ import annotations

import pytest

from shoal.agent.messages import ClusterTold, NodeNote, RunTold
from shoal.cluster.factory import Queue
from shoal.cluster.keeper import bounds_of, declared_cores, queue_of
from shoal.errors import InputError
from shoal.model.resources import Resources
from shoal.store.directory import NodeInfo


def node(name: str) -> NodeInfo:
    return NodeInfo(f"tcp://{name}", name, Resources.parse({"cores": 2}), {}, None, "", "1")


def test_the_work_is_that_of_the_first_run_that_has_not_ended() -> None:
    runs = [
        RunTold("a", "a", "ended", 100, 0, 0),
        RunTold("b", "b", "active", 50, 20, 12),
        RunTold("c", "c", "waiting", 9, 9, 9),
    ]
    notes = {1: NodeNote(2), 2: NodeNote(2, 3, 1, 6), 7: NodeNote(5)}
    assert queue_of(ClusterTold({1: node("a"), 2: node("b")}, runs, notes)) == Queue(8, 4)


def test_without_a_run_there_is_nothing_to_do() -> None:
    assert queue_of(ClusterTold({}, [], {})) == Queue(0, 0)


@pytest.mark.parametrize(
    ("words", "cores"),
    [
        ([], 1.0),
        (["--memory=4000", "--cores=4"], 4.0),
        (["--time=5", "--cpus-per-task=8"], 8.0),
        (["-c2"], 2.0),
        (["--cores=all"], 1.0),
    ],
)
def test_cores_of_a_node_are_known_before_there_is_one(words: list[str], cores: float) -> None:
    assert declared_cores(words) == cores


def test_bounds_that_are_no_range_are_refused() -> None:
    with pytest.raises(InputError, match="from 3 to 2 nodes is not a range"):
        bounds_of("slurm", 3, 2, 10.0)
