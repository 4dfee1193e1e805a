"""Whole clusters whose nodes are on hosts reached over SSH: a real server on loopback, with keys made for the test."""

from __future__ import annotations

import getpass
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from cluster.real.test_ssh_starter import Server, free_port, server
from shoal.cluster.home import ClusterRecord
from shoal.cluster.nodes.starters import SshHandle
from support.clusters import NAME, LocalCluster
from support.command import wait_until

__all__ = ["server"]

FLOW = """
from shoal import rule
for i in range(12):
    rule(f"part{i}", run=f"echo {i} > part{i}")
rule("whole", [f"part{i}" for i in range(12)], run="cat part* | sort -n > whole")
"""


def options_of(server: Server, port: int | None = None) -> list[str]:
    words = server.client(port=port).prefix
    return [f"--ssh-option={word}" for word in words[words.index("-F") :]]


def started_of(cluster: LocalCluster) -> ClusterRecord:
    return msgspec.json.decode((cluster.access.parent / "started.json").read_bytes(), type=ClusterRecord)


def me_at(host: str) -> str:
    return f"{getpass.getuser()}@{host}"


@contextmanager
def cluster_on(folder: Path, *options: str) -> Iterator[LocalCluster]:
    folder.mkdir()
    cluster = LocalCluster(folder)
    lodgings = {}
    try:
        cluster.shoal("cluster", "start", NAME, *options)
        lodgings = started_of(cluster).group(None).lodgings
        yield cluster
    finally:
        cluster.shoal("cluster", "stop", NAME, expect=None)
        for lodging in lodgings.values():
            shutil.rmtree(lodging.logs, ignore_errors=True)


def test_nodes_on_a_host_get_what_they_need_work_and_leave(server: Server, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text(f"# all there is\n{me_at('127.0.0.1')} 2\n")
    with cluster_on(tmp_path / "cluster", "--ssh", str(hosts), *options_of(server), "--agent=--cores=1") as cluster:
        status = cluster.shoal("cluster", "status", NAME)
        assert len(cluster.agents()) == 2
        assert set(re.findall(r"tcp://([^:]+):", status)) == {"127.0.0.1"}, "all of it is on this machine"
        started = started_of(cluster).group(None)
        (lodging,) = started.lodgings.values()
        private = Path(lodging.access)
        assert private != cluster.access, "the host has a file of its own"
        assert private.stat().st_mode & 0o077 == 0
        folder = tmp_path / "w"
        folder.mkdir()
        (folder / "flow.py").write_text(FLOW)
        cluster.shoal("run", "--cluster", NAME, "whole", "--plain", where=folder)
        assert (folder / "whole").read_text().split() == [str(number) for number in range(12)]
        cluster.shoal("cluster", "scale", NAME, "1")
        wait_until(lambda: len(cluster.agents()) == 1, "one has left")
        cluster.shoal("cluster", "stop", NAME)
        assert not private.exists()
        for handle in started.nodes:
            assert isinstance(handle, SshHandle)
            assert handle.name.encode() not in environment_of(handle.pid)


def environment_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def test_a_host_that_cannot_be_reached_is_one_sentence_and_leaves_no_head(server: Server, tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path)
    words = ("cluster", "start", NAME, "--ssh", me_at("127.0.0.1"), *options_of(server, port=free_port()))
    said = cluster.shoal(*words, expect=2)
    assert "cannot be reached" in said
    assert "Connection refused" in said
    assert started_of(cluster).head is None
    assert not cluster.access.exists()


def test_one_host_that_cannot_be_reached_does_not_keep_the_others_from_it(server: Server, tmp_path: Path) -> None:
    hosts = f"{me_at('127.0.0.1')},no-such-host.invalid"
    options = ("--host", "127.0.0.1", "--ssh", hosts, *options_of(server))
    with cluster_on(tmp_path / "cluster", *options) as cluster:
        assert len(cluster.agents()) == 1
        assert list(started_of(cluster).group(None).lodgings) == [me_at("127.0.0.1")]


def test_a_host_of_the_list_that_is_no_host_is_refused(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path)
    assert "'host [slots]'" in cluster.shoal("cluster", "start", NAME, "--ssh=-oProxyCommand=id,b", expect=2)
    assert not cluster.access.exists()
