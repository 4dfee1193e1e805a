"""A cluster whose store loses its data, whose head is killed, whose agents are renamed: no run hangs, and its client
hears how it ended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.cluster.messaging.access import read
from shoal.cluster.stores.redis import RedisDirectory, RedisLink, directory_key
from support.clusters import NAME, LocalCluster, local_cluster
from support.command import kill_process, wait_until
from support.redis_servers import FORGETFUL, RedisServer, one_server

FLOW = """
from shoal import rule
firsts = [f"first{i}" for i in range(4)]
for i in range(4):
    rule(f"first{i}", run=f"echo {i} >> first{i}")
    rule(f"part{i}", firsts, run=f"until test -e go; do sleep 0.05; done; cat first{i} > part{i}")
rule("whole", [f"part{i}" for i in range(4)], run="cat part* > whole")
"""
WHOLE = "0\n1\n2\n3\n"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with one_server(tmp_path, *FORGETFUL) as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "w"
    folder.mkdir()
    (folder / "flow.py").write_text(FLOW)
    return folder


def said(cluster: LocalCluster) -> str:
    return (cluster.folder / "begun.log").read_text()


def has_firsts(folder: Path) -> bool:
    return all((folder / f"first{number}").exists() for number in range(4))


def run_again(cluster: LocalCluster, folder: Path) -> None:
    """What was done stays done, and the rest is run."""
    (folder / "go").touch()
    assert "5 tasks done, 4 up to date" in cluster.shoal("run", "--cluster", NAME, "whole", "--plain", where=folder)
    assert (folder / "whole").read_text() == WHOLE
    assert [(folder / f"first{number}").read_text() for number in range(4)] == ["0\n", "1\n", "2\n", "3\n"]


def test_a_redis_that_restarts_empty_ends_the_run_with_a_sentence_and_serves_the_next(
    tmp_path: Path, server: RedisServer, folder: Path
) -> None:
    with local_cluster(tmp_path / "cluster", 2, "--redis", server.address) as cluster:
        agents = set(cluster.agents().values())
        client = cluster.begin("run", "--cluster", NAME, "whole", "--plain", where=folder)
        wait_until(lambda: "4 of 9" in cluster.shoal("status", where=folder, expect=None), "the first tasks are done")
        server.kill()
        server.start()
        wait_until(lambda: client.poll() is not None, f"the client ends: {said(cluster)}")
        assert client.returncode == 1
        assert "the cluster no longer has this run: its store was started without its data" in said(cluster)
        wait_until(lambda: set(cluster.agents().values()) == agents, "the agents are back, each once")
        run_again(cluster, folder)


def test_a_listed_run_whose_store_is_lost_keeps_no_later_one_waiting(
    tmp_path: Path, server: RedisServer, folder: Path
) -> None:
    with local_cluster(tmp_path / "cluster", 1, "--redis", server.address) as cluster:
        client = cluster.begin("run", "--cluster", NAME, "whole", "--plain", where=folder)
        wait_until(lambda: "4 of 9" in cluster.shoal("status", where=folder, expect=None), "the first tasks are done")
        (run,) = cluster.runs()
        link = RedisLink([server.address], "x")
        link.call("DEL", *(key for key in link.call("KEYS", f"shoal:{{{run}}}:*")))
        link.close()
        wait_until(lambda: client.poll() is not None, "the client ends")
        assert client.returncode == 1
        assert "the cluster no longer has this run" in said(cluster)
        run_again(cluster, folder)


def test_a_detached_run_that_the_cluster_does_not_have_any_more_is_given_up_by_cancel(
    tmp_path: Path, server: RedisServer, folder: Path
) -> None:
    with local_cluster(tmp_path / "cluster", 1, "--redis", server.address) as cluster:
        cluster.shoal("run", "--cluster", NAME, "whole", "--detach", "--plain", where=folder)
        server.kill()
        server.start()
        lost = "does not have this run"
        wait_until(lambda: lost in cluster.shoal("status", where=folder, expect=None), "the cluster has lost the run")
        assert lost in cluster.shoal("cancel", "flow.py", "whole", where=folder, expect=2)
        assert "does not have this run, so it is given up" in cluster.shoal("cancel", "flow.py", where=folder)
        assert "is not on a cluster" in cluster.shoal("attach", where=folder, expect=2)
        (folder / "go").touch()
        assert "is not being run" in cluster.shoal("cancel", "flow.py", where=folder, expect=2)


def test_a_client_hears_the_end_of_its_run_when_the_head_is_gone_for_good(
    tmp_path: Path, server: RedisServer, folder: Path
) -> None:
    with local_cluster(tmp_path / "cluster", 2, "--redis", server.address) as cluster:
        client = cluster.begin("run", "--cluster", NAME, "whole", "--plain", where=folder)
        wait_until(lambda: has_firsts(folder), "the first tasks are done")
        wait_until(lambda: len(read(str(cluster.access)).spare) == 2, "the access file names the agents")
        kill_process(cluster.head())
        (folder / "go").touch()
        wait_until(lambda: client.poll() is not None, "the client ends")
        assert client.returncode == 0, said(cluster)
        assert (folder / "whole").read_text() == WHOLE
        assert len(cluster.agents()) == 2, "who comes later finds an agent, too"


def test_an_agent_that_gets_another_number_does_what_it_had_before(
    tmp_path: Path, server: RedisServer, folder: Path
) -> None:
    with local_cluster(tmp_path / "cluster", 1, "--redis", server.address) as cluster:
        client = cluster.begin("run", "--cluster", NAME, "whole", "--plain", where=folder)
        wait_until(lambda: has_firsts(folder), "the first tasks are done")
        name = json.loads(cluster.access.read_text())["cluster"]
        directory = RedisDirectory(RedisLink([server.address], directory_key(name)), name)
        ((number, _),) = cluster.agents().items()
        directory.remove(number)
        wait_until(lambda: list(directory.nodes()) not in ([], [number]), "it joins again")
        directory.close()
        (folder / "go").touch()
        wait_until(lambda: client.poll() is not None, "the client ends")
        assert client.returncode == 0, said(cluster)
        assert (folder / "whole").read_text() == WHOLE
