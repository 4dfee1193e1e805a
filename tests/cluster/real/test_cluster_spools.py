"""Agents leave nothing in the directory for temporary files, whether they are stopped or killed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from shoal.cluster import home
from shoal.cluster.home import LOCK, give_spool, make_spool, remove_dead, remove_spool
from support.clusters import NAME, LocalCluster
from support.command import kill_process, wait_until


def test_stop_removes_the_folders_of_agents_that_ended_and_of_those_that_were_killed(tmp_path: Path) -> None:
    cluster, temporary = LocalCluster(tmp_path), tmp_path / "tmp"
    temporary.mkdir()
    cluster.environment["TMPDIR"] = str(temporary)
    strange = temporary / "shoal-agent-of-somebody-else"
    try:
        cluster.shoal("cluster", "start", NAME, "--local", "2")
        assert len(list(temporary.glob("shoal-agent-*"))) == 2
        kill_process(cluster.agents()[0])
        lock = next(path / LOCK for path in temporary.glob("shoal-agent-*"))
        old = os.stat(lock).st_ctime
        (temporary / "shoal-agents.txt").write_text("of the user")
        strange.symlink_to(tmp_path)
        wait_until(lambda: os.stat(temporary).st_ctime > old + 1 or touched(temporary), "a second has passed")
    finally:
        cluster.shoal("cluster", "stop", NAME, expect=None)
    assert sorted(path.name for path in temporary.iterdir()) == [strange.name, "shoal-agents.txt"]
    assert tmp_path.exists()


def touched(folder: Path) -> bool:
    """Sets the time of a change; never true."""
    os.utime(folder)
    return False


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files, in which no folder is too young to be removed."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(home, "YOUNG_SECONDS", 0.0)
    return tmp_path


def test_a_folder_that_no_agent_made_stays_whatever_its_name_is(temporary: Path) -> None:
    of_user = temporary / "shoal-agent-results"
    of_user.mkdir()
    (of_user / "precious").write_text("mine")
    of_dead = make_spool()
    remove_spool(str(of_user))
    assert remove_dead() == [of_dead]
    assert (of_user / "precious").read_text() == "mine"


@pytest.mark.parametrize("is_made", [False, True])
def test_a_folder_that_was_given_to_an_agent_stays(temporary: Path, is_made: bool) -> None:
    given = Path(make_spool()) if is_made else temporary / "shoal-agent-given"
    give_spool(str(given))
    remove_spool(str(given))
    assert remove_dead() == []
    assert given.exists()


def test_an_agent_leaves_the_folder_that_it_was_given(tmp_path: Path) -> None:
    cluster, spool = LocalCluster(tmp_path), tmp_path / "shoal-agent-given"
    spool.mkdir()
    (spool / "precious").write_text("mine")
    try:
        cluster.shoal("cluster", "start", NAME, "--local", "1")
        agent = cluster.begin("agent", "--access", str(cluster.access), "--spool", str(spool), where=tmp_path)
        cluster.await_nodes(2)
        agent.terminate()
        agent.wait(60)
    finally:
        cluster.shoal("cluster", "stop", NAME, expect=None)
    assert (spool / "precious").read_text() == "mine"
