"""What can be wrong when a cluster is started or asked: one clear sentence each."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from pathlib import Path

import pytest

from shoal.cluster.lifecycle import check_server
from shoal.cluster.messaging.access import Role, make_access, narrowed, write
from support.clusters import NAME, LocalCluster, local_cluster
from support.redis_servers import CAREFUL, one_server
from support.wire import echo

START = ("cluster", "start", NAME, "--local", "0")


def sentence(said: str) -> str:
    """What was complained of, which must be one line."""
    (line,) = [line for line in said.splitlines() if line.startswith("shoal: ")]
    return line


def nothing_is_left(cluster: LocalCluster) -> bool:
    return not cluster.access.exists() and '"head":{' not in (cluster.access.parent / "started.json").read_text()


@pytest.fixture
def cluster(tmp_path: Path) -> LocalCluster:
    return LocalCluster(tmp_path)


def test_a_redis_server_that_may_forget_is_used_with_a_warning(tmp_path: Path) -> None:
    careless = ("--appendonly", "no", "--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru")
    with one_server(tmp_path, *careless) as server:
        try:
            cluster = LocalCluster(tmp_path)
            said = cluster.shoal(*START, "--redis", server.address)
            assert "set 'appendonly yes'" in said
            assert "set 'maxmemory-policy noeviction'" in said
            assert "MiB more (maxmemory)" in said
        finally:
            cluster.shoal("cluster", "stop", NAME, expect=None)


def test_a_careful_redis_server_gives_no_cause_for_words(tmp_path: Path) -> None:
    said: list[str] = []
    with one_server(tmp_path, *CAREFUL) as server:
        check_server(server.address, NAME, said.append)
    assert said == []


def test_a_redis_server_that_does_not_answer_is_refused(cluster: LocalCluster) -> None:
    said = sentence(cluster.shoal(*START, "--redis", f"unix://{cluster.folder}/none", expect=2))
    assert "no Redis server replies at unix://" in said
    assert not cluster.access.exists()
    said = sentence(cluster.shoal(*START, "--redis", "http://nowhere", expect=2))
    assert "is not the address of a Redis server" in said


def test_a_redis_server_with_another_password_or_full_is_refused(tmp_path: Path, cluster: LocalCluster) -> None:
    with one_server(tmp_path, "--requirepass", "right", "--maxmemory", "1") as server:
        wrong = f"unix://:wrong@{server.socket}"
        assert "rejects the login" in sentence(cluster.shoal(*START, "--redis", wrong, expect=2))
        right = f"unix://:right@{server.socket}"
        assert "out of memory" in sentence(cluster.shoal(*START, "--redis", right, expect=2))
    assert not cluster.access.exists()


def test_a_head_whose_port_is_in_use_says_so_and_can_be_started_later(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "cluster", 0) as cluster:
        contact = json.loads(cluster.access.read_text())["contacts"][0]
        host, port = re.fullmatch(r"tcp://(.+):(\d+)", contact).groups()  # type: ignore[union-attr]
        os.kill(cluster.head(), signal.SIGKILL)
        with taken_port(host, int(port)):
            said = sentence(cluster.shoal("cluster", "restart", NAME, expect=2))
            assert f"{contact} is in use by another program" in said
        assert "the head was restarted" in cluster.shoal("cluster", "restart", NAME)
        assert "0 nodes" in cluster.shoal("cluster", "status", NAME)


def taken_port(host: str, port: int) -> socket.socket:
    """Takes the port as soon as its former holder is gone."""
    deadline = time.monotonic() + 30
    while True:
        taken = socket.socket()
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind((host, port))
            taken.listen()
            return taken
        except OSError:
            taken.close()
            assert time.monotonic() < deadline


def test_an_access_file_that_others_can_read_is_not_used(cluster: LocalCluster) -> None:
    path = cluster.folder / "open.json"
    write(make_access("lab"), str(path))
    path.chmod(0o644)
    assert "other users can read" in sentence(cluster.shoal("cluster", "status", str(path), expect=2))


def test_a_file_that_is_no_access_file_is_rejected(cluster: LocalCluster) -> None:
    path = cluster.folder / "none.json"
    path.write_text("{}")
    path.chmod(0o600)
    assert "none.json" in sentence(cluster.shoal("cluster", "status", str(path), expect=2))


def test_the_access_file_of_another_cluster_opens_nothing(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "cluster", 0) as cluster:
        contacts = json.loads(cluster.access.read_text())["contacts"]
        path = tmp_path / "other.json"
        write(make_access(NAME).at(contacts), str(path))
        said = sentence(cluster.shoal("cluster", "status", str(path), expect=2))
        assert "the key of this access file is refused" in said


def test_a_cluster_of_another_version_names_both(cluster: LocalCluster) -> None:
    access = make_access(NAME)
    path = cluster.folder / "newer.json"
    with echo(narrowed(access, Role.WORKER), version=99) as agent:
        write(access.at([agent.address]), str(path))
        said = sentence(cluster.shoal("cluster", "status", str(path), expect=2))
    assert re.search(r"speaks version 99 of Shoal's protocol, this program version \d+", said)


def test_a_cluster_that_an_earlier_version_started_is_one_sentence(cluster: LocalCluster) -> None:
    folder = cluster.access.parent
    folder.mkdir(parents=True)
    head = '{"type":"local","name":"n","pid":1,"ticks":1,"boot":"b","log":"l"}'
    (folder / "started.json").write_text(f'{{"head":{head},"nodes":[],"kind":"local"}}')
    for words in (START, ("cluster", "stop", NAME), ("cluster", "scale", NAME, "1")):
        assert "was started by an earlier version of Shoal" in sentence(cluster.shoal(*words, expect=2))
