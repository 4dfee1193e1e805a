"""A real cluster on this machine with several groups of nodes, each with a size and a factory of its own."""

from __future__ import annotations

import re
from pathlib import Path

from cluster.real.test_cluster_run import expect_whole, write_fan
from support.clusters import NAME, LocalCluster, local_cluster
from support.command import wait_until

CHOOSY_FLOW = """
from shoal import rule
for i in range(4):
    rule(f"part{i}", run=f"echo $SHOAL_NODE > part{i}", requires="gpu=a100")
rule("whole", [f"part{i}" for i in range(4)], run="cat {needs} > whole")
"""


def sizes(cluster: LocalCluster) -> dict[str, int]:
    """Nodes that are there, by group."""
    told = cluster.shoal("cluster", "status", NAME)
    return {name: int(count) for name, count in re.findall(r"^  group (\w+)[^:]*: (\d+) node", told, re.MULTILINE)}


def test_groups_are_added_resized_and_removed_one_by_one(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "cluster", 1) as cluster:
        first = cluster.agents()
        words = ("cluster", "add", NAME, "--group", "big")
        assert "1 node is running" in cluster.shoal(*words, "--local", "1", "--label", "site=alpha")
        assert sizes(cluster) == {"main": 1, "big": 1}
        assert "site=alpha" in cluster.shoal("cluster", "status", NAME)
        assert "has a group 'big' already" in cluster.shoal(*words, "--local", "1", expect=2)
        assert "several groups: main, big" in cluster.shoal("cluster", "scale", NAME, "2", expect=2)
        cluster.shoal("cluster", "scale", NAME, "2", "--group", "big")
        assert sizes(cluster) == {"main": 1, "big": 2}
        expect_whole(ran(cluster, tmp_path / "w"), 6)
        assert "group big is removed; 2 nodes end" in cluster.shoal("cluster", "remove", NAME, "--group", "big")
        wait_until(lambda: cluster.agents() == first, "only the first group is left")
        assert "no group 'small'" in cluster.shoal("cluster", "remove", NAME, "--group", "small", expect=2)
        assert "1 node is running" in cluster.shoal(*words, "--local", "1"), "the name is free again"
        assert "ended 2 nodes" in cluster.shoal("cluster", "stop", NAME)


def ran(cluster: LocalCluster, folder: Path) -> Path:
    write_fan(folder, 6, 0.05)
    cluster.shoal("run", "--cluster", NAME, "whole", "--plain", where=folder)
    return folder


def test_a_factory_starts_nodes_only_for_tasks_that_fit_them(tmp_path: Path) -> None:
    folder = tmp_path / "w"
    folder.mkdir()
    (folder / "flow.py").write_text(CHOOSY_FLOW)
    with local_cluster(tmp_path / "cluster", 1) as cluster:
        cluster.shoal("cluster", "add", NAME, "--group", "plain", "--local", "0", "--max", "1")
        cluster.shoal("cluster", "add", NAME, "--group", "gpu", "--local", "0", "--max", "1", "--label", "gpu=a100")
        assert sizes(cluster) == {"main": 1, "plain": 0, "gpu": 0}
        cluster.shoal("run", "--cluster", NAME, "whole", "--plain", where=folder)
        factories = cluster.logs()
        assert "group gpu: 0 tasks running, 4 queued: requesting 1 more" in factories
        assert "group plain: " not in factories
        assert sizes(cluster) == {"main": 1, "plain": 0, "gpu": 1}
        assert len({*(folder / "whole").read_text().split()}) == 1, "all of it was done by the one that could"
        assert "factory from 0 to 1 nodes: " in cluster.shoal("cluster", "status", NAME)


def test_a_group_that_cannot_be_reached_is_refused_and_the_cluster_stays_as_it_was(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "cluster", 0) as cluster:
        add = ("cluster", "add", NAME, "--group", "far")
        refused = cluster.shoal(*add, "--ssh", "192.0.2.1", expect=2)
        assert "can be reached only from this machine" in refused or "no address that other machines" in refused
        assert "is not a label" in cluster.shoal(*add, "--local", "1", "--label", "fast", expect=2)
        assert "--group NAME" in cluster.shoal("cluster", "add", NAME, "--local", "1", expect=2)
        assert "is reserved for the group's name" in cluster.shoal(*add, "--local", "1", "--label", "group=x", expect=2)
        broken = cluster.shoal(*add, "--local", "1", "--agent=--cores=none", expect=1)
        assert "--cores must be a number" in broken
        assert "group" not in cluster.shoal("cluster", "status", NAME)
