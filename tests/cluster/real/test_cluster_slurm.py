"""Whole clusters whose nodes are jobs of a real Slurm: they come, work, are taken away, and leave nothing behind."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster.real.test_cluster_run import UNTIL_GO
from shoal.cluster.nodes.machine import own_address_for_hosts
from shoal.errors import InputError
from shoal.execution.processes.process_table import read_small
from support.clusters import NAME, LocalCluster
from support.slurm import Slurm, private_slurm, wait_until

ON_LOOPBACK = ("--host", "127.0.0.1")
"""The nodes of this Slurm are on this machine, which need not have another address."""
WHOLE_NODE = ("--sbatch=--exclusive", "--sbatch=--time=10")
FAN = """
from shoal import rule
for i in range({count}):
    begin = f"set +u; echo job $SLURM_ARRAY_JOB_ID'_'$SLURM_ARRAY_TASK_ID >> begun{{i}}"
    rule(f"part{{i}}", run=f"{{begin}}; {wait}; echo {{i}} >> part{{i}}")
rule("whole", [f"part{{i}}" for i in range({count})], run="cat part* | sort -n > whole")
"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with private_slurm(4) as found:
        yield found


@contextmanager
def cluster_on(slurm: Slurm, folder: Path, *options: str, where: Sequence[str] = ON_LOOPBACK) -> Iterator[LocalCluster]:
    """A cluster on this Slurm; whatever the test leaves is ended."""
    folder.mkdir()
    cluster = LocalCluster(folder)
    cluster.environment["SLURM_CONF"] = str(slurm.conf)
    try:
        cluster.shoal("cluster", "start", NAME, *where, *options)
        yield cluster
    finally:
        cluster.shoal("cluster", "stop", NAME, expect=None)
        slurm.ask("scancel", "--user=root")
        wait_until(lambda: not job_processes(slurm), "no process of a job is left")
        wait_until(lambda: slurm.idle_nodes() == 4, "all nodes are free again")


def job_processes(slurm: Slurm) -> list[int]:
    """Whatever runs in a job; the head and clients are told of this Slurm as well, but are in none."""
    return [pid for pid in slurm.leftovers() if b"\0SLURM_JOB_ID=" in read_small(f"/proc/{pid}/environ")]


def fan(folder: Path, count: int, wait: str = UNTIL_GO) -> Path:
    folder.mkdir()
    (folder / "flow.py").write_text(FAN.format(count=count, wait=wait))
    return folder


def jobs_with_tasks(folder: Path) -> list[str]:
    """The jobs in which tasks were begun, that of the last one at the end; a node may have none for a while."""
    begun = sorted((path for path in folder.glob("begun*")), key=lambda path: path.stat().st_mtime_ns)
    words = [path.read_text().split() for path in begun]
    return list(dict.fromkeys(each[-1] for each in reversed(words) if each))[::-1]


def expect_whole(folder: Path, count: int) -> None:
    """The results are right, and each was made once."""
    assert (folder / "whole").read_text().split() == [str(number) for number in range(count)]


def nodes_of(cluster: LocalCluster) -> int:
    return len(cluster.agents())


def wait_for_nodes(cluster: LocalCluster, count: int) -> None:
    try:
        wait_until(lambda: nodes_of(cluster) == count, f"there are {count} nodes", 60)
    except AssertionError as error:
        status = cluster.shoal("cluster", "status", NAME)
        raise AssertionError(f"{error}\n{status}\n{cluster.logs()}") from None


def jobs(slurm: Slurm, *states: str) -> list[str]:
    chosen = f"--states={','.join(states or ('RUNNING',))}"
    return slurm.ask("squeue", "--noheader", "--array", chosen, "--format=%i").split()


def follow(cluster: LocalCluster, folder: Path) -> subprocess.Popen[bytes]:
    return cluster.begin("run", "--cluster", NAME, "whole", "--plain", where=folder)


def said(cluster: LocalCluster) -> str:
    return (cluster.folder / "begun.log").read_text()


def ends_well(client: subprocess.Popen[bytes], cluster: LocalCluster) -> None:
    try:
        status = client.wait(120)
    except subprocess.TimeoutExpired:
        client.send_signal(signal.SIGKILL)
        raise AssertionError(
            f"the run does not end:\n{said(cluster)}\n{cluster.shoal('cluster', 'status', NAME)}\n{cluster.logs()}"
        ) from None
    assert status == 0, f"{said(cluster)}\n{cluster.logs()}"


def own_way() -> Sequence[str]:
    """Nothing is said of the address if this machine has one that it can find out."""
    try:
        own_address_for_hosts([])
    except InputError:
        return ON_LOOPBACK
    return ()


def test_a_cluster_grows_from_none_to_four_nodes_and_back(slurm: Slurm, tmp_path: Path) -> None:
    where = own_way()
    with cluster_on(slurm, tmp_path / "cluster", "--slurm", "0", *WHOLE_NODE, where=where) as cluster:
        assert nodes_of(cluster) == 0
        cluster.shoal("cluster", "scale", NAME, "4")
        wait_for_nodes(cluster, 4)
        assert re.search(r"there for \d+ min \d\d s\)", cluster.shoal("cluster", "status", NAME))
        folder = fan(tmp_path / "w", 16, "sleep 0.1")
        cluster.shoal("run", "--cluster", NAME, "whole", "--plain", where=folder)
        expect_whole(folder, 16)
        cluster.shoal("cluster", "scale", NAME, "0")
        wait_for_nodes(cluster, 0)
        wait_until(lambda: not jobs(slurm), "no job is left")
        wait_until(lambda: not job_processes(slurm), "no process is left")


def test_a_job_that_waits_says_why(slurm: Slurm, tmp_path: Path) -> None:
    options = (*WHOLE_NODE, "--sbatch=--begin=now+1hour")
    with cluster_on(slurm, tmp_path / "cluster", "--slurm", *options) as cluster:
        wait_until(
            lambda: "its begin time has not come" in cluster.shoal("cluster", "status", NAME), "the reason is told"
        )
        assert re.search(r"waiting  job \d+  ", cluster.shoal("cluster", "status", NAME))
        folder = fan(tmp_path / "w", 2)
        cluster.shoal("run", "--cluster", NAME, "flow.py", "part0", "--detach", where=folder)
        said = cluster.shoal("why", "part0", "flow.py", where=folder)
        assert "waits for a node: the cluster has none (1 requested node of group" in said
        assert ": waiting: its begin time has not come (BeginTime))" in said
        whole = cluster.shoal("why", "flow.py", where=folder)
        assert (
            whole.startswith("Nothing is running: the cluster has no node.") and "its begin time has not come" in whole
        )
        cluster.shoal("cluster", "scale", NAME, "0")
        wait_until(lambda: not jobs(slurm, "PENDING"), "the job is cancelled")


def test_an_allocation_taken_away_in_the_midst_of_a_task_loses_nothing(slurm: Slurm, tmp_path: Path) -> None:
    count = 6
    folder = fan(tmp_path / "w", count)
    with cluster_on(slurm, tmp_path / "cluster", "--slurm", "2", *WHOLE_NODE) as cluster:
        wait_for_nodes(cluster, 2)
        client = follow(cluster, folder)
        wait_until(lambda: len(jobs_with_tasks(folder)) == 2, "tasks run on both nodes")
        job = jobs_with_tasks(folder)[-1]
        slurm.ask("scancel", job)
        wait_until(lambda: job not in jobs(slurm, "RUNNING", "COMPLETING"), "it is taken away")
        (folder / "go").touch()
        ends_well(client, cluster)
        expect_whole(folder, count)
        attempts = [path.read_text().count("job") for path in folder.glob("begun*")]
        assert max(attempts) == 2, "what was cut short was run again"
        assert sum(attempts) <= count + 2, "and nothing else was"
        for number in range(count):
            assert (folder / f"part{number}").read_text() == f"{number}\n"
        wait_for_nodes(cluster, 1)


def test_with_all_jobs_cancelled_nothing_is_left_and_a_run_waits_for_a_node(slurm: Slurm, tmp_path: Path) -> None:
    folder = fan(tmp_path / "w", 8)
    with cluster_on(slurm, tmp_path / "cluster", "--slurm", "2", *WHOLE_NODE) as cluster:
        wait_for_nodes(cluster, 2)
        client = follow(cluster, folder)
        wait_until(lambda: len(list(folder.glob("begun*"))) >= 4, "tasks run on both nodes")
        slurm.ask("scancel", "--user=root")
        wait_until(lambda: not job_processes(slurm), "no process is left")
        wait_until(lambda: "the cluster has no node; the run waits for one" in said(cluster), "the run says so")
        (folder / "go").touch()
        cluster.shoal("cluster", "scale", NAME, "1")
        ends_well(client, cluster)
        expect_whole(folder, 8)


def test_a_node_whose_time_ends_hands_over_what_it_has_not_done(slurm: Slurm, tmp_path: Path) -> None:
    """Its only minute is too short for a task whose duration nobody knows; another node without that limit is not."""
    folder = tmp_path / "w"
    folder.mkdir()
    long_at_first = "echo begun >> begun; [ $(wc -l < begun) -gt 1 ] || sleep 100; echo done >> whole"
    (folder / "flow.py").write_text(f'from shoal import rule\nrule("whole", run="{long_at_first}")\n')
    short = ("--sbatch=--exclusive", "--sbatch=--time=1")
    with cluster_on(slurm, tmp_path / "cluster", "--slurm", "0", *short) as cluster:
        client = follow(cluster, folder)
        wait_until(lambda: "the cluster has no node; the run waits for one" in said(cluster), "the run is there")
        cluster.shoal("cluster", "scale", NAME, "1")  # only now: its minute is short on a busy machine
        wait_until((folder / "begun").exists, "it runs")
        by_hand = LocalCluster(tmp_path / "by-hand")  # a node that nobody takes away
        by_hand.environment = cluster.environment
        tmp_path.joinpath("by-hand").mkdir()
        agent = by_hand.begin("agent", "--access", str(cluster.access), "--cores", "1", where=tmp_path)
        try:
            wait_until(lambda: (folder / "begun").read_text() == "begun\nbegun\n", "it is run again elsewhere", 120)
            wait_until(lambda: "they are run again" in said(cluster), "the run is told why")
            wait_until(lambda: not job_processes(slurm), "nothing is left of the first node")
            ends_well(client, cluster)
        finally:
            agent.terminate()
            agent.wait(60)
        assert (folder / "whole").read_text() == "done\n"


def test_a_factory_starts_nodes_for_a_run_and_drains_them_after_it(slurm: Slurm, tmp_path: Path) -> None:
    folder = fan(tmp_path / "w", 48)
    options = ("--slurm", "--max", "3", "--idle", "3", *WHOLE_NODE)
    with cluster_on(slurm, tmp_path / "cluster", *options) as cluster:
        assert nodes_of(cluster) == 0
        client = follow(cluster, folder)
        wait_for_nodes(cluster, 3)
        refused = cluster.shoal("cluster", "scale", NAME, "1", expect=2)
        assert "a factory decides" in refused
        assert "factory from 0 to 3 nodes: " in cluster.shoal("cluster", "status", NAME)
        slurm.ask("scancel", "--user=root")  # it brings others
        (folder / "go").touch()
        ends_well(client, cluster)
        expect_whole(folder, 48)
        wait_for_nodes(cluster, 0)
        wait_until(lambda: not jobs(slurm), "no job is left")


def test_a_partition_of_slurm_is_a_group_beside_nodes_on_this_machine(slurm: Slurm, tmp_path: Path) -> None:
    with cluster_on(slurm, tmp_path / "cluster", "--local", "1") as cluster:
        batch = ("cluster", "add", NAME, "--group", "batch", "--slurm", "1", *ON_LOOPBACK, *WHOLE_NODE)
        assert "invalid partition" in cluster.shoal(*batch, "--partition", "nowhere", expect=2)
        cluster.shoal(*batch)
        wait_for_nodes(cluster, 2)
        status = cluster.shoal("cluster", "status", NAME)
        assert "group main, local: 1 node\n" in status
        assert "group batch, slurm: 1 node\n" in status
        assert slurm.ask("squeue", "--noheader", "--format=%j").split() == [f"shoal-{NAME}-batch"]
        cluster.shoal("cluster", "remove", NAME, "--group", "batch")
        wait_until(lambda: not jobs(slurm), "its job has ended")
        assert nodes_of(cluster) == 1


def test_what_sbatch_refuses_is_one_sentence_and_no_head_is_left(slurm: Slurm, tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path)
    cluster.environment["SLURM_CONF"] = str(slurm.conf)
    words = ("cluster", "start", NAME, *ON_LOOPBACK, "--slurm", "2", "--sbatch=--partition=nowhere")
    assert "invalid partition specified: nowhere" in cluster.shoal(*words, expect=2)
    assert "cannot be used here" in cluster.shoal(*words[:-1], "--sbatch=--array=1-3", expect=2)
    assert not cluster.access.exists()
    assert '"head":null' in (cluster.access.parent / "started.json").read_text()
