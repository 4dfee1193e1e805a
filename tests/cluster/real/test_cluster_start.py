"""The start of an agent: another version is reported at once, and a signal ends it while it waits for the head."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.cluster.messaging.envelope import VERSION
from support.clusters import LocalCluster, cluster_with_books, local_cluster
from support.command import PATIENCE, SHOAL, wait_until

OTHER = f"""
import sys
from shoal.cluster.messaging.envelope import Codec
Codec.__init__.__kwdefaults__["version"] = {VERSION + 1}
from shoal.ui.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def start_agent(cluster: LocalCluster, *program: str) -> subprocess.Popen[str]:
    words = [*program, "agent", "--access", str(cluster.access), "--cores", "1", "--bind", "tcp://127.0.0.1:0"]
    streams = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL}
    return subprocess.Popen(words, env=cluster.environment, cwd=cluster.folder, text=True, **streams)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("where", ["head", "redis"])
def test_an_agent_of_another_version_says_so_at_once_and_ends(tmp_path: Path, where: str) -> None:
    with cluster_with_books(where, tmp_path, nodes=0) as cluster:
        agent = start_agent(cluster, sys.executable, "-c", OTHER)
        _, said = agent.communicate(timeout=PATIENCE / 2)  # less than it would go on asking
        assert agent.returncode == 2
        assert f"speaks version {VERSION} of Shoal's protocol, this program version {VERSION + 1}" in said
        assert "Traceback" not in said


def test_an_agent_that_waits_for_its_head_ends_on_request(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "cluster", 0) as cluster:
        head = cluster.head()
        os.kill(head, signal.SIGSTOP)
        cluster.environment["TMPDIR"] = str(tmp_path)
        agent = start_agent(cluster, *SHOAL)
        wait_until(lambda: any(tmp_path.glob("shoal-agent-*/depot/cache")), "it is about to join")
        wait_until(lambda: catches_signals(agent.pid), "it asks the head")
        agent.terminate()
        _, said = agent.communicate(timeout=PATIENCE / 2)
        os.kill(head, signal.SIGCONT)
        assert agent.returncode == 0
        assert "Traceback" not in said
        assert not any(tmp_path.glob("shoal-agent-*"))


def catches_signals(pid: int) -> bool:
    """Whether a process has a handler for SIGTERM: from then on it asks."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(status.split("SigCgt:")[1].split()[0], 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)
