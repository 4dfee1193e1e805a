"""A run on agents of several hosts to which everything happens that can: deaths, partitions, restarts; by seed."""

from __future__ import annotations

import hashlib
import random
import subprocess
import time
from pathlib import Path

from support.clusters import NAME, LocalCluster
from support.command import SHOAL
from support.hosts import Hosts
from support.redis_servers import RedisServer

LAYERS, WIDTH = 20, 100
PARTITION_SECONDS = 10.0


def write_workflow(folder: Path, seed: int, layers: int = LAYERS, width: int = WIDTH) -> dict[str, str]:
    """A random DAG of files; what each target must contain."""
    chance = random.Random(seed)
    folder.mkdir(parents=True)
    (folder / "seed.txt").write_text(f"{seed}\n")
    content = {"seed.txt": f"{seed}\n"}
    lines = ["from shoal import rule"]
    before = ["seed.txt"]
    for layer in range(layers):
        made = []
        for number in range(width):
            name = f"f{layer}_{number}"
            spread = [before[number % len(before)]]  # so that everything is needed by something
            needs = sorted({*spread, *chance.choices(before, k=chance.randint(0, 2))})
            lines.append(f"rule({name!r}, {needs!r}, run='cat {' '.join(needs)} | md5sum > {name}')")
            digest = hashlib.md5("".join(content[need] for need in needs).encode()).hexdigest()
            content[name] = f"{digest}  -\n"
            made.append(name)
        before = made
    lines.append(f"rule('whole', {before!r}, run='cat {' '.join(before)} > whole')")
    content["whole"] = "".join(content[name] for name in before)
    (folder / "flow.py").write_text("\n".join(lines) + "\n")
    return {"whole": content["whole"]}


class Campaign:
    """One cluster, one run, and whatever a seed does to them."""

    def __init__(
        self,
        folder: Path,
        hosts: Hosts,
        seed: int,
        redis: RedisServer | None,
        address: str = "",
        tasks: tuple[int, int] = (LAYERS, WIDTH),
    ) -> None:
        """`address` is that of Redis, as the hosts reach it."""
        self.address = address
        self.seed = seed
        self.trouble = True
        """Whether messages between agents get lost, doubled and late."""
        self.folder, self.hosts, self.redis = folder, hosts, redis
        self.chance = random.Random(seed)
        self.cluster = LocalCluster(folder / "cluster")
        self.cluster.folder.mkdir(parents=True)
        self.work = folder / "w"
        self.expected = write_workflow(self.work, seed, *tasks)
        self.agents: dict[int, subprocess.Popen[bytes]] = {}
        self.client: subprocess.Popen[bytes] | None = None
        self.happened: list[str] = []
        self.cut_until: dict[int, float] = {}

    def start(self) -> None:
        options = ["--redis", self.address] if self.redis is not None else []
        self.cluster.shoal("cluster", "start", NAME, "--local", "0", "--host", self.hosts.here, *options)
        for host in range(1, self.hosts.count + 1):
            self.start_agent(host)

    def start_agent(self, host: int) -> None:
        command = [*SHOAL, "agent", "--access", str(self.cluster.access), "--cores", "1"]
        command += ["--bind", f"tcp://{self.hosts.address(host)}:0"]
        logs = self.cluster.access.parent / "logs"
        logs.mkdir(exist_ok=True)
        with open(logs / f"host{host}.log", "ab") as log:
            self.agents[host] = subprocess.Popen(
                self.hosts.command(host, command),
                cwd="/",
                env=self.cluster.environment | (self._trouble(host) if self.trouble else {}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _trouble(self, host: int) -> dict[str, str]:
        return {"SHOAL_TROUBLE": f"{self.seed * 100 + host} 0.02 0.05 0.05"}

    def start_client(self) -> None:
        first = not (self.work / ".shoal" / "flow.py" / "brought").exists()
        words = ["run", "--cluster", NAME, "--files", "managed", "whole"] if first else ["attach"]
        self.client = self.cluster.begin(*words, "--plain", where=self.work)

    # ---- what happens --------------------------------------------------------------------------------------------

    def strike(self) -> None:
        kinds = ["kill", "kill", "cut", "client", "head"] + (["redis"] if self.redis is not None else [])
        kind = self.chance.choice(kinds)
        self.happened.append(kind)
        getattr(self, f"_{kind}")()

    def _kill(self) -> None:
        """An agent dies; another one comes in its place."""
        host = self.chance.choice(sorted(self.agents))
        self._end(self.agents[host])
        self.start_agent(host)

    def kill_for_good(self, host: int) -> None:
        self._end(self.agents.pop(host))

    def _cut(self) -> None:
        host = self.chance.choice(sorted(self.agents))
        if host not in self.cut_until:
            self.hosts.cut(host)
            self.cut_until[host] = time.monotonic() + PARTITION_SECONDS

    def _client(self) -> None:
        if self.client is not None:
            self.client.kill()
            self.client.wait()
            self.client = None

    def _head(self) -> None:
        self.cluster.kill_head()
        assert "anew" in self.cluster.shoal("cluster", "restart", NAME)

    def _redis(self) -> None:
        assert self.redis is not None
        self.redis.kill()
        self.redis.start()

    # ---- the whole -----------------------------------------------------------------------------------------------

    def play(self, strikes: int, seconds: float) -> None:
        """Until the client says that all is done."""
        deadline = time.monotonic() + seconds
        if self.client is None:
            self.start_client()
        next_strike = time.monotonic() + self.chance.uniform(1.0, 3.0)
        while True:
            now = time.monotonic()
            assert now < deadline, f"not done within {seconds} s: {self.told()}"
            for host in [host for host, until in self.cut_until.items() if now > until]:
                self.hosts.join(host)
                del self.cut_until[host]
            if strikes and now > next_strike:
                strikes -= 1
                next_strike = now + self.chance.expovariate(0.4)
                self.strike()
            if self.client is None:
                self.start_client()
            elif self.client.poll() == 2 and "nobody answers" in self.told():
                self.start_client()  # the head was just away, and the user tries again
            elif self.client.returncode is not None:
                assert self.client.returncode == 0, self.told()
                return
            time.sleep(0.02)  # polls with a deadline

    def told(self) -> str:
        log = self.cluster.folder / "begun.log"
        return f"{self.happened}\n{log.read_text() if log.exists() else ''}\n{self.cluster.logs()}"

    def check(self) -> None:
        for name, text in self.expected.items():
            assert (self.work / name).read_text() == text, f"{name} is wrong: {self.told()}"

    def end(self) -> None:
        self._client()
        for process in self.agents.values():
            self._end(process)
        self.cluster.shoal("cluster", "stop", NAME, expect=None)

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()
