"""The factory process and a cluster's reply; `test_cluster_factory` tests it with a real cluster."""

from __future__ import annotations

from array import array

import pytest

from shoal.cluster.agent.messages import ClusterNodeFacts, ClusterReply, ClusterRunFacts
from shoal.cluster.home import GroupRecord
from shoal.cluster.nodes.factory_process import bounds_of, present_of, ready_by_category, running_on, served
from shoal.cluster.nodes.groups import drop_ended
from shoal.cluster.nodes.starters import LocalHandle, NodePhase
from shoal.cluster.nodes.starters import NodeStatus as NodeStanding
from shoal.core.resources import Resources
from shoal.core.store.directory import NodeInfo
from shoal.core.store.interface import TaskStanding
from shoal.errors import InputError


def node(name: str) -> NodeInfo:
    return NodeInfo(f"tcp://{name}", name, Resources.parse({"cores": 2}), {"node": name}, None, "", "1")


def handle(name: str) -> LocalHandle:
    return LocalHandle(name, 1, 1, "", "")


def test_the_work_is_that_of_the_first_run_that_has_not_ended() -> None:
    runs = [
        ClusterRunFacts("a", "a", "ended", 100, 0, 0),
        ClusterRunFacts("b", "b", "active", 50, 20, 12),
        ClusterRunFacts("c", "c", "waiting", 9, 9, 9),
    ]
    assert served(ClusterReply({}, runs)) == runs[1]
    assert served(ClusterReply({}, runs[:1])) is None


def test_ready_tasks_are_counted_by_category() -> None:
    standings = bytes(
        [TaskStanding.READY, TaskStanding.DONE, TaskStanding.READY, TaskStanding.WAITING, TaskStanding.READY]
    )
    assert ready_by_category(standings, array("i", [2, 2, 0, 0, 2]), 4) == [1, 0, 2, 0]


def test_running_tasks_are_listed_for_present_nodes() -> None:
    found = ClusterReply(
        {1: node("a"), 2: node("b"), 3: node("new")},
        [],
        {1: ClusterNodeFacts(2), 2: ClusterNodeFacts(1), 7: ClusterNodeFacts(5)},
    )
    assert {number: count for number, (_, count) in running_on(found).items()} == {1: 2, 2: 1}


def test_a_group_has_the_nodes_that_were_started_for_it() -> None:
    found = ClusterReply({1: node("a"), 2: node("b"), 3: node("c")}, [])
    assert present_of(GroupRecord(nodes=[handle("a"), handle("z")], leaving=[handle("c")]), found) == [1, 3]


def test_bounds_that_are_no_range_are_refused() -> None:
    with pytest.raises(InputError, match="from 3 to 2 nodes is not a range"):
        bounds_of("slurm", 3, 2, 10.0)


def test_a_node_that_is_ending_is_not_counted_on_and_one_that_has_ended_is_forgotten() -> None:
    group = GroupRecord("main", nodes=[handle("a"), handle("b"), handle("c")], leaving=[handle("d")])
    ended, ending = NodeStanding(NodePhase.ENDED), NodeStanding(NodePhase.RUNNING, "it is ending", is_ending=True)
    drop_ended(group, {handle("a"): ended, handle("b"): ending, handle("d"): ended})
    assert group.nodes == [handle("c")]
    assert group.leaving == [handle("b")]
