"""A factory that looks after a real cluster on this machine: nodes come with the work and go after it."""

from __future__ import annotations

import re
from pathlib import Path

from cluster.real.test_cluster_run import UNTIL_GO, expect_whole, write_fan
from support.clusters import NAME, LocalCluster, local_cluster
from support.command import is_alive, kill_process, wait_until


def factory_of(cluster: LocalCluster) -> int:
    text = (cluster.access.parent / "started.json").read_text()
    return int(re.search(r'"factory":\{[^}]*"pid":(\d+)', text)[1])  # type: ignore[index]


def test_nodes_come_with_the_work_and_go_after_it_down_to_the_least(tmp_path: Path) -> None:
    folder = write_fan(tmp_path / "w", 40, first=UNTIL_GO)
    with local_cluster(tmp_path / "cluster", 0, "--min", "1", "--max", "3", "--idle", "2") as cluster:
        wait_until(lambda: len(cluster.agents()) == 1, "the least number is there")
        client = cluster.begin("run", "--cluster", NAME, "whole", "--plain", where=folder)
        wait_until(lambda: len(cluster.agents()) == 3, "the most are there")
        (folder / "go").touch()
        assert client.wait(120) == 0, cluster.logs()
        expect_whole(folder, 40)
        wait_until(lambda: len(cluster.agents()) == 1, "those that are not needed have left")
        wait_until(lambda: "idle for" in cluster.shoal("cluster", "status", NAME), "it is said why")


def test_a_node_that_dies_is_replaced(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "cluster", 0, "--min", "1", "--max", "1") as cluster:
        wait_until(lambda: len(cluster.agents()) == 1, "a node is there")
        (first,) = cluster.agents().values()
        kill_process(first)
        wait_until(lambda: len({*cluster.agents().values()} - {first}) == 1, "another one is there")


def test_a_factory_that_was_killed_is_started_anew_and_goes_on(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "cluster", 0, "--min", "1", "--max", "2") as cluster:
        wait_until(lambda: len(cluster.agents()) == 1, "a node is there")
        agents, factory = cluster.agents(), factory_of(cluster)
        kill_process(factory)
        wait_until(lambda: "does not run" in cluster.shoal("cluster", "status", NAME), "its end is noticed")
        assert "a factory keeps 1 to 2 nodes" in cluster.shoal("cluster", "restart", NAME)
        assert factory_of(cluster) != factory
        assert "from 2 to 2 nodes" not in cluster.shoal("cluster", "status", NAME)
        assert "2 to 2 nodes" in cluster.shoal("cluster", "scale", NAME, "--min", "2", "--max", "2")
        wait_until(lambda: len(cluster.agents()) == 2, "the new bounds count")
        assert agents.items() <= cluster.agents().items(), "the first node was left alone"
        assert "a factory decides" in cluster.shoal("cluster", "scale", NAME, "1", expect=2)
        second, agents = factory_of(cluster), cluster.agents()
        cluster.shoal("cluster", "stop", NAME)
        assert not any(is_alive(pid) for pid in (second, *agents.values()))


def test_bounds_that_make_no_sense_are_one_sentence(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path)
    start = ("cluster", "start", NAME, "--local", "0")
    assert "is not a range" in cluster.shoal(*start, "--min", "3", "--max", "2", expect=2)
    assert "--max" in cluster.shoal(*start, "--min", "3", expect=2)
    assert "--idle must be a number" in cluster.shoal(*start, "--max", "3", "--idle", "soon", expect=2)
    assert not cluster.access.exists()


def test_the_cores_of_nodes_that_came_for_a_run_count_in_its_figures(tmp_path: Path) -> None:
    folder = write_fan(tmp_path / "w", 2)
    with local_cluster(tmp_path / "cluster", 0, "--min", "0", "--max", "1", "--idle", "2") as cluster:
        said = cluster.shoal("run", "--cluster", NAME, "whole", "--plain", where=folder)
        assert "running 3 tasks; no node has joined yet" in said
        (share, cores) = re.findall(r"(\d+) % of (\d+) cores? used", said)[0]
        assert 0 <= int(share) <= 100
        assert int(cores) > 0
