"""Nodes whose time ends, as announced by a batch system to its jobs."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal.core.policies.retry import NOTICE
from support.clusters import NAME, LocalCluster, local_cluster
from support.command import PATIENCE, SHOAL, wait_until

SLACK = 15.0
"""How often an agent looks at the time, and some more for a machine so busy that a task begins long after its start."""


@pytest.fixture
def wrong_clock() -> dict[str, str]:
    """In this environment the time of day is an hour behind; time that only passes is as always."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    assert found, "libfaketime is not installed; 'make test' installs it as root"
    return {"LD_PRELOAD": str(found[0]), "FAKETIME": "-1h", "DONT_FAKE_MONOTONIC": "1"}


@contextmanager
def agent_until(cluster: LocalCluster, ends_at: float) -> Iterator[subprocess.Popen[bytes]]:
    """An agent of one core that will be taken away then."""
    given = {"SLURM_JOB_ID": "1", "SLURM_CPUS_ON_NODE": "1", "SLURM_JOB_END_TIME": str(int(ends_at))}
    with open(cluster.folder / "agent.log", "ab") as log:
        agent = subprocess.Popen(
            [*SHOAL, "agent", "--access", str(cluster.access), "--label", "stays=shortly"],
            env=cluster.environment | given,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        wait_until(lambda: "stays=shortly" in cluster.shoal("cluster", "status", NAME), "it has joined")
        yield agent
    finally:
        agent.terminate()
        agent.wait(PATIENCE)


def write_tasks(folder: Path, count: int, seconds: float) -> None:
    """Each notes when it began, and the job that it is in: only one agent is in any. When there is a file `enough`, it
    does not take its time."""
    folder.mkdir()
    (folder / "flow.py").write_text(
        "from shoal import rule, task\n"
        f"for i in range({count}):\n"
        f'    note = f"set +u; date +%s.%N > part{{i}}; echo $SLURM_JOB_ID >> part{{i}}"\n'
        f'    rule(f"part{{i}}", run=f"{{note}}; test -e enough || sleep {seconds}")\n'
        f'task("all", needs=[f"part{{i}}" for i in range({count})])\n'
    )


def beginnings(folder: Path) -> list[tuple[float, bool]]:
    """When each task began, and whether it was on the node whose time ends."""
    rows = [path.read_text().split() for path in folder.glob("part*")]
    return [(float(words[0]), words[1:] == ["1"]) for words in rows if words]


def test_nothing_begins_on_a_node_that_it_would_outlast(tmp_path: Path) -> None:
    write_tasks(tmp_path / "w", 60, 2)
    with local_cluster(tmp_path / "cluster", 1, "--agent=--cores=1") as cluster:
        ends_at = float(int(time.time() + NOTICE + 25))
        with agent_until(cluster, ends_at):
            client = cluster.begin("run", "--cluster", NAME, "all", "--plain", where=tmp_path / "w")
            wait_until(lambda: "starts nothing more" in cluster.shoal("cluster", "status", NAME), "it is noticed")
            before = sum(is_there for _, is_there in beginnings(tmp_path / "w"))
            (tmp_path / "w" / "enough").touch()
            assert client.wait(120) == 0, cluster.logs()
            begun = beginnings(tmp_path / "w")
    assert len(begun) == 60
    shortly = [when for when, is_there in begun if is_there]
    assert shortly, "it did its part"
    assert len(shortly) <= before + 1, "nothing more, but for what was just about to say that it had begun"
    assert max(shortly) <= ends_at - NOTICE - 2 + SLACK
    assert max(when for when, _ in begun) > max(shortly), "the other one did the rest"


def test_a_run_says_that_its_tasks_outlast_every_node_and_waits_for_another(tmp_path: Path) -> None:
    write_tasks(tmp_path / "w", 3, 20)
    with local_cluster(tmp_path / "cluster", 0) as cluster, agent_until(cluster, time.time() + NOTICE + 35):
        client = cluster.begin("run", "--cluster", NAME, "all", "--plain", where=tmp_path / "w")
        wait_until(lambda: "longer than any node remains" in told(cluster), "the run says so")
        (tmp_path / "w" / "enough").touch()
        cluster.shoal("cluster", "scale", NAME, "1")
        assert client.wait(120) == 0, cluster.logs()
        assert len(beginnings(tmp_path / "w")) == 3


def told(cluster: LocalCluster) -> str:
    return (cluster.folder / "begun.log").read_text()


def test_a_node_whose_clock_is_wrong_is_named(tmp_path: Path, wrong_clock: dict[str, str]) -> None:
    write_tasks(tmp_path / "w", 2, 0)
    with local_cluster(tmp_path / "cluster", 0) as cluster:
        with open(cluster.folder / "agent.log", "wb") as log:
            words = [*SHOAL, "agent", "--access", str(cluster.access)]
            agent = subprocess.Popen(words, env=cluster.environment | wrong_clock, stdout=log, stderr=log)
        try:
            cluster.await_nodes(1)
            told = "is 1 h 00 min behind the cluster's"
            wait_until(lambda: told in (cluster.folder / "agent.log").read_text(), "the agent says so")
            assert told in cluster.shoal("run", "--cluster", NAME, "all", where=tmp_path / "w")
        finally:
            agent.terminate()
            agent.wait(PATIENCE)
