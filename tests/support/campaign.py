"""A run on agents of several hosts to which everything happens that can: deaths, partitions, restarts; by seed."""

from __future__ import annotations

import hashlib
import json
import random
import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from shoal.cluster.stores.redis import RedisDirectory, RedisLink, directory_key
from support.clusters import NAME, LocalCluster
from support.command import SHOAL
from support.hosts import Hosts
from support.redis_servers import RedisServer

LAYERS, WIDTH = 20, 100
LOST = "the cluster no longer has this run: its store was started without its data"
AWAY = ("no reply from", "this agent does not keep clients' files")
"""What a client says that needs a head while there is none."""
HEADLESS_SECONDS = 5.0
PARTITION_SECONDS = 10.0
FIRST_MESSAGES = 20
"""Of so many messages to each agent half get lost."""
LONGEST_IDLE = 40
"""Seconds that an agent may say it has been idle beside tasks of another one: that cannot be heard in a partition."""


def write_workflow(
    folder: Path, seed: int, layers: int = LAYERS, width: int = WIDTH, seconds: float = 0.0, gate: Path | None = None
) -> dict[str, str]:
    """A random DAG of files, whose tasks take at least so long; what each target must contain. The last task waits
    until the file `gate` is there."""
    wait = f"sleep {seconds}; " if seconds else ""
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
            lines.append(f"rule({name!r}, {needs!r}, run='{wait}cat {' '.join(needs)} | md5sum > {name}')")
            digest = hashlib.md5("".join(content[need] for need in needs).encode()).hexdigest()
            content[name] = f"{digest}  -\n"
            made.append(name)
        before = made
    wait = f"until test -e {gate}; do sleep 0.1; done; " if gate else ""
    lines.append(f"rule('whole', {before!r}, run='{wait}cat {' '.join(before)} > whole')")
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
        task_seconds: float = 0.0,
        gated: bool = False,
    ) -> None:
        """`address` is that of Redis, as the hosts reach it. With `gated` the run goes on until all has happened."""
        self.address = address
        self.seed = seed
        self.trouble = True
        """Whether messages between agents get lost, doubled and late."""
        self.folder, self.hosts, self.redis = folder, hosts, redis
        self.chance = random.Random(seed)
        self.cluster = LocalCluster(folder / "cluster")
        self.cluster.folder.mkdir(parents=True)
        self.work = folder / "w"
        self.gate = folder / "gate"
        self.expected = write_workflow(self.work, seed, *tasks, task_seconds, self.gate if gated else None)
        self.agents: dict[int, subprocess.Popen[bytes]] = {}
        self.client: subprocess.Popen[bytes] | None = None
        self.happened: list[str] = []
        self.kinds = ["kill", "kill", "cut", "client", "head"]
        self.kinds += ["redis", "headless", "rename"] if redis is not None else []
        """What may strike; and `empty`, where the store keeps nothing."""
        self.emptied = 0
        """How often the store has lost its data."""
        self._head_is_back_at: float | None = None
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
        return {"SHOAL_TROUBLE": f"{self.seed * 100 + host} 0.02 0.05 0.05 {FIRST_MESSAGES}"}

    def start_client(self) -> None:
        first = not (self.work / ".shoal" / "flow.py" / "brought").exists()
        words = ["run", "--cluster", NAME, "--files", "managed", "whole"] if first else ["attach"]
        self.client = self.cluster.begin(*words, "--plain", where=self.work)

    # ---- what happens --------------------------------------------------------------------------------------------

    def let_strike(self, kind: str) -> None:
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
        if self._head_is_back_at is None:
            self.cluster.kill_head()
        self._head_is_back_at = None
        assert "anew" in self.cluster.shoal("cluster", "restart", NAME)

    def _redis(self) -> None:
        assert self.redis is not None
        self.redis.kill()
        self.redis.start()

    def _empty(self) -> None:
        """The store is started without its data, as a server that writes nothing down is."""
        self.emptied += 1
        self._redis()

    def _headless(self) -> None:
        """The head is away for a while."""
        if self._head_is_back_at is None:
            self.cluster.kill_head()
            self._head_is_back_at = time.monotonic() + HEADLESS_SECONDS

    def _rename(self) -> None:
        """A node is struck off although it lives: its agent comes back under another number."""
        assert self.redis is not None
        name = json.loads(self.cluster.access.read_text())["cluster"]
        directory = RedisDirectory(RedisLink([self.redis.address], directory_key(name)), name)
        try:
            nodes = directory.nodes()
            if nodes:
                directory.remove(self.chance.choice(sorted(nodes)))
        finally:
            directory.close()

    def _go_on(self, now: float) -> None:
        """What was away for a while comes back."""
        for host in [host for host, until in self.cut_until.items() if now > until]:
            self.hosts.join(host)
            del self.cut_until[host]
        if self._head_is_back_at is not None and now > self._head_is_back_at:
            self._head_is_back_at = None
            self.cluster.shoal("cluster", "restart", NAME)

    # ---- the whole -----------------------------------------------------------------------------------------------

    def play(self, strikes: int, seconds: float) -> None:
        """Until the client says that all is done, with so many strikes on the way."""
        self.play_all([self.chance.choice(self.kinds) for _ in range(strikes)], seconds)

    def play_all(self, strikes: Sequence[str], seconds: float) -> None:
        left = list(strikes)
        deadline = time.monotonic() + seconds
        if self.client is None:
            self.start_client()
        next_strike = time.monotonic() + self.chance.uniform(1.0, 3.0)
        lost = self._lost_runs()
        while True:
            now = time.monotonic()
            assert now < deadline, f"not done within {seconds} s: {self.told()}"
            self._go_on(now)
            if left and now > next_strike:
                next_strike = now + self.chance.expovariate(0.4)
                self.let_strike(left.pop(0))
            if not left:
                self.gate.touch()
            if self.client is None:
                self.start_client()
            elif self.client.poll() == 2 and any(word in self.told() for word in AWAY):
                self.start_client()  # the head was just away, and the user tries again
            elif self.client.returncode == 1 and self._lost_runs() > lost:
                lost = self._lost_runs()
                assert lost <= self.emptied, self.told()
                self.start_client()  # the run is over, and the user says so again
            elif self.client.returncode is not None:
                assert self.client.returncode == 0, self.told()
                return
            time.sleep(0.02)  # polls with a deadline

    def _lost_runs(self) -> int:
        """How many clients were told that their run is lost."""
        log = self.cluster.folder / "begun.log"
        return log.read_text().count(LOST) if log.exists() else 0

    def told(self) -> str:
        log = self.cluster.folder / "begun.log"
        return f"{self.happened}\n{log.read_text() if log.exists() else ''}\n{self.cluster.logs()}"

    def check(self) -> None:
        """The outputs are right, and no agent stood idle beside tasks of another one."""
        found = re.findall(r"has been idle for (?:(\d+) h )?(?:(\d+) min ?)?(?:(\d+) s)? ?beside", self.cluster.logs())
        idle = [3600 * int(h or 0) + 60 * int(m or 0) + int(s or 0) for h, m, s in found]
        assert max(idle, default=0) < LONGEST_IDLE, self.told()
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
