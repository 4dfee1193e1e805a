"""A cluster over two hosts, each with an address of its own: who listens where. Hosts are network namespaces."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from support.clusters import NAME, LocalCluster
from support.command import PATIENCE, SHOAL, wait_until
from support.hosts import Hosts, some_hosts


class OnHost(LocalCluster):
    """A cluster whose commands are given on one host."""

    def __init__(self, folder: Path, hosts: Hosts, number: int) -> None:
        super().__init__(folder)
        self.hosts, self.number = hosts, number

    def give(self, *words: str, where: Path | None = None) -> tuple[int, str]:
        done = subprocess.run(
            self.hosts.command(self.number, [*SHOAL, *words]),
            cwd=where or self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE * 3,
            stdin=subprocess.DEVNULL,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout + done.stderr

    def expect(self, *words: str, where: Path | None = None) -> str:
        status, said = self.give(*words, where=where)
        assert status == 0, f"{said}\n{self.logs()}"
        return said


def test_an_agent_listens_where_the_head_reaches_it(tmp_path: Path) -> None:
    with some_hosts(2) as hosts:
        cluster = OnHost(tmp_path, hosts, 1)
        agent = None
        try:
            cluster.expect("cluster", "start", NAME, "--local", "1", "--host", hosts.address(1))
            words = [*SHOAL, "agent", "--access", str(cluster.access), "--cores", "1", "--label", "site=far"]
            agent = subprocess.Popen(hosts.command(2, words), env=cluster.environment, stdin=subprocess.DEVNULL)
            wait_until(lambda: "2 nodes" in cluster.expect("cluster", "status", NAME), "both are there")
            status = cluster.expect("cluster", "status", NAME)
            assert re.findall(r"tcp://([^:]+):", status) == [hosts.address(1), hosts.address(2)]
            assert "site=far" in status
            (tmp_path / "w").mkdir()
            both = "until [ $(cat address* | sort -u | wc -l) -ge 2 ]; do sleep 0.1; done"  # each host gets some
            (tmp_path / "w" / "flow.py").write_text(
                f"from shoal import task\nboth = {both!r}\n"
                'for i in range(8):\n    task(f"t{i}", run=f"hostname -I > address{i}; {both}")\n'
                'task("all", needs=[f"t{i}" for i in range(8)])\n'
            )
            cluster.expect("run", "--cluster", NAME, "all", "--plain", where=tmp_path / "w")
            found = {path.read_text().strip() for path in (tmp_path / "w").glob("address*")}
            assert found == {hosts.address(1), hosts.address(2)}, "both worked"
        finally:
            if agent is not None:
                agent.terminate()
                agent.wait(PATIENCE)
            cluster.give("cluster", "stop", NAME)


def test_a_machine_with_no_way_out_says_so(tmp_path: Path) -> None:
    with some_hosts(1) as hosts:
        cluster = OnHost(tmp_path, hosts, 1)
        status, said = cluster.give("cluster", "start", NAME, "--slurm", "1")
        assert status == 2
        assert "this machine has no address that other machines could reach" in said
        assert "--host" in said
        assert not cluster.access.exists()
