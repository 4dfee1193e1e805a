"""What agents leave in the directory for temporary files: nothing, whether they were told to end or killed."""

from __future__ import annotations

import os
from pathlib import Path

from shoal.agent.spools import LOCK
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
