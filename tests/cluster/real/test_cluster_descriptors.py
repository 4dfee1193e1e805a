"""Head and agents have as many descriptors as the system permits, their tasks as many as they were given; and running
out of them is survived."""

from __future__ import annotations

import re
from pathlib import Path

from support.clusters import NAME, LocalCluster
from support.command import is_alive

GIVEN = 300


def limits(pid: int) -> tuple[int, int]:
    """The soft and the hard limit of open files of a process."""
    told = re.search(r"Max open files +(\d+) +(\d+)", Path(f"/proc/{pid}/limits").read_text())
    assert told is not None
    return int(told[1]), int(told[2])


def test_head_and_agents_take_the_hard_limit_and_tasks_get_the_given_one(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path)
    work = tmp_path / "w"
    work.mkdir()
    (work / "flow.py").write_text(
        "from shoal import rule, task\n"
        "def of_call(task):\n"
        "    import resource\n"
        "    open('of_call', 'w').write(str(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))\n"
        "rule('of_command', run='ulimit -Sn > of_command')\n"
        "rule('of_call', run=of_call)\n"
        "task('all', needs=['of_command', 'of_call'])\n"
    )
    try:
        cluster.limited(GIVEN, "cluster", "start", NAME, "--local", "1")
        cluster.shoal("run", "--cluster", NAME, "--plain", where=work)
        assert (work / "of_command").read_text().strip() == str(GIVEN)
        assert (work / "of_call").read_text() == str(GIVEN)
        for pid in (cluster.head(), *cluster.agents().values()):
            soft, hard = limits(pid)
            assert soft == hard > GIVEN
    finally:
        cluster.shoal("cluster", "stop", NAME, expect=None)


def test_a_cluster_is_stopped_with_few_descriptors(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path)
    cluster.shoal("cluster", "start", NAME, "--local", "10")
    agents = cluster.agents()
    cluster.limited(64, "cluster", "stop", NAME, hard=True)
    assert len(agents) == 10 and not any(is_alive(pid) for pid in agents.values())
