"""Real clusters of agents on this machine, each with a home of its own; all of it is ended with the test."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from support.command import PATIENCE, SHOAL, environment, kill_process, start, wait_until
from support.redis_servers import CAREFUL, one_server

NAME = "lab"


class LocalCluster:
    """A cluster, and the commands that one gives it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = environment({"SHOAL_HOME": str(folder / "home")})
        self.access = folder / "home" / "clusters" / NAME / "access.json"

    def shoal(self, *words: str, where: Path | None = None, expect: int | None = 0) -> str:
        """Runs `shoal WORDS`; what it wrote to both streams."""
        return self._run([*SHOAL, *words], where, expect)

    def limited(self, descriptors: int, *words: str, hard: bool = False) -> str:
        """The same with so many descriptors at most, for it and whatever it starts."""
        limit = f'ulimit -{"" if hard else "S"}n {descriptors}; exec "$@"'
        return self._run(["sh", "-c", limit, "sh", *SHOAL, *words], None, 0)

    def _run(self, words: Sequence[str], where: Path | None, expect: int | None) -> str:
        done = subprocess.run(
            words,
            cwd=where or self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE * 3,
            stdin=subprocess.DEVNULL,
        )
        said = f"$ {' '.join(words)}\n{done.stdout}\n{done.stderr}\n{self.logs()}"
        assert expect is None or done.returncode == expect, f"exit status {done.returncode}, expected {expect}:\n{said}"
        assert "Traceback" not in done.stderr, said
        return done.stdout + done.stderr

    def begin(self, *words: str, where: Path) -> subprocess.Popen[bytes]:
        """Starts `shoal WORDS` in the background; it is ended with the test, if not before."""
        with open(self.folder / "begun.log", "ab") as log:
            return start(where, *words, output=log, surroundings=self.environment)

    def agents(self) -> dict[int, int]:
        """Process of each node, by its number."""
        told = self.shoal("cluster", "status", NAME)
        return {int(number): int(pid) for number, pid in re.findall(r"^ +(\d+)  \S+/(\d+) ", told, re.MULTILINE)}

    def busy(self) -> list[int]:
        """Numbers of the nodes that say that tasks run on them."""
        told = self.shoal("cluster", "status", NAME)
        return [int(number) for number in re.findall(r"^ +(\d+)  \S+/\d+ .*\([1-9]\d* run,", told, re.MULTILINE)]

    def await_nodes(self, count: int) -> None:
        wait_until(lambda: len(self.agents()) >= count, f"{count} nodes are there")

    def runs(self) -> list[str]:
        """The runs that the cluster knows."""
        return re.findall(r"^ +run (\S+)", self.shoal("cluster", "status", NAME), re.MULTILINE)

    def kill_agent(self, number: int) -> None:
        kill_process(self.agents()[number])

    def kill_head(self) -> None:
        kill_process(self.head())

    def head(self) -> int:
        """The head's process."""
        text = (self.access.parent / "started.json").read_text()
        return int(re.search(r'"head":\{[^}]*"pid":(\d+)', text)[1])  # type: ignore[index]

    def logs(self) -> str:
        folder = self.access.parent / "logs"
        return "\n".join(path.read_text() for path in sorted(folder.glob("*.log"))) if folder.exists() else ""


@contextmanager
def local_cluster(folder: Path, nodes: int, *options: str) -> Iterator[LocalCluster]:
    folder.mkdir(parents=True, exist_ok=True)
    cluster = LocalCluster(folder)
    try:
        cluster.shoal("cluster", "start", NAME, "--local", str(nodes), *options)
        yield cluster
    finally:
        cluster.shoal("cluster", "stop", NAME, expect=None)


@contextmanager
def cluster_with_books(where: str, folder: Path, nodes: int = 2) -> Iterator[LocalCluster]:
    """So many agents, whose books are in `redis` or with the `head`."""
    if where == "head":
        with local_cluster(folder / "cluster", nodes) as found:
            yield found
        return
    with (
        one_server(folder, *CAREFUL) as server,
        local_cluster(folder / "cluster", nodes, "--redis", server.address) as found,
    ):
        yield found
