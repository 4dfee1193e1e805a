"""Live runs under a throttle: the workloads, one run of a workload for a set time, and what its steady part came to.

A workflow has more tasks than the time allows; the run is ended with an interrupt. What happened is read from the lines
that `shoal run --json` writes: one per task, with the moment of its end and how long it took. Comparing the runs is
left to `throttle`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from shoal.execution.processes.node_sensors import NodeSensor, SensedNode
from support.slow_server import Running, client, serving

HERE = Path(__file__).resolve().parent
SHOAL = [sys.executable, "-m", "shoal"]
CAPACITY, KNEE = 40.0, 8
"""Of the server: requests a second, and how many at once keep it busy. One takes 0.2 s."""
NODE_MIB, TASK_MIB = 512, 16
"""Of memory: what a run may use, and what a task declares. So 32 tasks are the most the contract admits."""
ENDING = 30.0
TAIL = 5.0
"""A run goes on for so long after it was watched, so that what was under way then comes to an end and counts."""
PAUSE = 0.2
Span = tuple[float, float]


class Kind(NamedTuple):
    """Tasks of a category."""

    category: str
    words: str
    """Of the command, after the program; a number of the task follows."""
    fastest: float
    """Tasks a second that will not be exceeded, so that a run does not end before its time."""
    declared: int | None = TASK_MIB
    """Memory in MiB; None to have it learned."""


CPU = Kind("burn", "burn 0.1", 30)
LATENCY = Kind("nap", "nap 0.2", 200)
DISK = Kind("write", "write 32 64", 250)
LARGE = Kind("hold", "hold 0.3 48", 60, None)
SERVER = Kind("call", "{port} {tag} 1", 60)
WORKLOADS: dict[str, tuple[Kind, ...]] = {
    "cpu": (CPU,),
    "latency": (LATENCY,),
    "server": (SERVER,),
    "disk": (DISK,),
    "mixed": (CPU, SERVER),
    "memory": (LARGE,),
}


class Task(NamedTuple):
    """One that ended well."""

    category: str
    end: float
    seconds: float
    cpu: float
    memory: int

    @property
    def begin(self) -> float:
        return self.end - self.seconds


class Steady(NamedTuple):
    """The steady part of a run."""

    rates: dict[str, float]
    """Completed tasks a second of each category; one that was under way at an edge counts in part.

    Tasks that share a processor tend to end together, many at a time: counting ends would be a matter of luck.
    """
    together: dict[str, float]
    """How many of each ran at once, in the mean."""
    most: int
    """How many ran at once, at most, over the whole run."""
    memory: int
    """Bytes: the largest sum of the peaks of tasks that ran at once, over the whole run."""
    failed: int
    cores: float
    """Processors that the tasks used."""
    others: float
    """Processors that somebody else used or the host kept, our launcher among them: much of it spoils a comparison."""

    @property
    def rate(self) -> float:
        return sum(self.rates.values())


class Tools(NamedTuple):
    """The compiled programs."""

    task: str
    client: str


def build(folder: Path) -> Tools:
    task = folder / "throttle_task"
    subprocess.run(["cc", "-O2", "-o", task, HERE / "throttle_task.c"], check=True)
    return Tools(str(task), client(folder))


def has_throttle() -> bool:
    """Whether this version knows the option; without it only fixed numbers can be tried."""
    shown = subprocess.run([*SHOAL, "run", "--help"], capture_output=True, text=True, check=True)
    return "--throttle" in shown.stdout


def words_for(throttle: str, known: bool) -> list[str]:
    """Options that set a throttle. Before there was one, a fixed number of slots was a number of cores."""
    if known:
        return ["--throttle", throttle]
    assert throttle.startswith("slots="), f"this version has no --throttle {throttle}"
    return ["--jobs", throttle.removeprefix("slots="), "--sizing", "fixed"]


def write_workflow(path: Path, kinds: Sequence[Kind], tools: Tools, seconds: float, server: Running, tag: str) -> None:
    """Tasks of all kinds in turn, enough for the time and a half."""
    lines = []
    for kind in kinds:
        lines.append(f".MAKEFLOW CATEGORY {kind.category}\n")
        if kind.declared is not None:
            lines.append(f".MAKEFLOW MEMORY {kind.declared}\n")
    commands = []
    for kind in kinds:
        program = tools.client if kind.category == SERVER.category else tools.task
        commands.append(f"{program} {kind.words.format(port=server.port, tag=tag)}")
    for number in range(int(1.5 * (seconds + TAIL) * max(kind.fastest for kind in kinds))):
        for kind, command in zip(kinds, commands, strict=True):
            if len(kinds) > 1:
                lines.append(f".MAKEFLOW CATEGORY {kind.category}\n")
            lines.append(f":\n\t{command} {number}\n")
    path.write_text("".join(lines))


class LiveRun:
    """A run in a folder of its own, which is its home as well: it knows nothing of earlier ones."""

    def __init__(self, folder: Path, kinds: Sequence[Kind], throttle: Sequence[str]) -> None:
        self.folder = folder
        self.kinds = {kind.words.split()[0]: kind.category for kind in kinds}
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL")}
        words = ["run", "Makeflow", "--json", "--memory", f"{NODE_MIB}M", *throttle]
        with (folder / "events").open("wb") as events, (folder / "errors").open("wb") as errors:
            self.process = subprocess.Popen(
                [*SHOAL, *words],
                cwd=folder,
                env=environment | {"HOME": str(folder)},
                stdin=subprocess.DEVNULL,
                stdout=events,
                stderr=errors,
            )
        self.began = self._wait_for_start()

    def wait_until(self, moment: float) -> None:
        """A moment of the wall's clock; the run must last so long."""
        while time.time() < moment:
            if self.process.poll() is not None:
                said = (self.folder / "errors").read_text()[-2000:]
                raise SystemExit(f"a run ended with status {self.process.returncode} before its time:\n{said}")
            time.sleep(PAUSE)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(ENDING)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def steady(self, span: Span, busy: float = 0.0) -> Steady:
        """What the run did in a span in which so many processors were busy, other than with ourselves."""
        tasks, failed = self._tasks()
        begin, end = span
        rates: dict[str, float] = dict.fromkeys(self.kinds.values(), 0.0)
        together = dict(rates)
        cores = 0.0
        for task in tasks:
            inside = max(0.0, min(task.end, end) - max(task.begin, begin))
            part = inside / max(task.seconds, 1e-6) / (end - begin)
            rates[task.category] += part
            cores += part * task.cpu
            together[task.category] += inside / (end - begin)
        most, memory = peaks(tasks)
        return Steady(rates, together, most, memory, failed, cores, max(0.0, busy - cores))

    def _tasks(self) -> tuple[list[Task], int]:
        """Tasks that ended well, and how many did not; those that our interrupt ended are neither."""
        tasks, failed = [], 0
        for line in (self.folder / "events").read_text().splitlines():
            event = json.loads(line)
            if event["event"] != "task_ended":
                continue
            if event["outcome"] == "ok":
                category = self._category(event["name"])
                figures = (event["time"], event["seconds"], event["cpu"] or 0.0, event["memory_bytes"] or 0)
                tasks.append(Task(category, *figures))
            elif event["verdict"] == "failed":
                failed += 1
        return tasks, failed

    def _category(self, name: str) -> str:
        """A task's name is its command."""
        word = name.split()[1]
        return self.kinds.get(word, SERVER.category)

    def _wait_for_start(self) -> float:
        """When the run began: planning many tasks takes a moment."""
        deadline = time.time() + 120
        while time.time() < deadline and self.process.poll() is None:
            for line in (self.folder / "events").read_text().splitlines()[:1]:
                return float(json.loads(line)["time"])
            time.sleep(PAUSE)
        said = (self.folder / "errors").read_text()[-2000:]
        self.end()
        raise SystemExit(f"a run did not begin:\n{said}")


def peaks(tasks: Sequence[Task]) -> tuple[int, int]:
    """The most tasks, and the most memory as the sum of their peaks, at one moment."""
    changes = [(task.begin, 1, task.memory) for task in tasks] + [(task.end, -1, -task.memory) for task in tasks]
    count = memory = most = largest = 0
    # Moments are known to a few milliseconds: of two changes at once the end comes first.
    for _, one, amount in sorted(changes, key=lambda change: (round(change[0], 2), change[1])):
        count, memory = count + one, memory + amount
        most, largest = max(most, count), max(largest, memory)
    return most, largest


def run_once(tools: Tools, kinds: Sequence[Kind], throttle: Sequence[str], settle: float, seconds: float) -> Steady:
    """One run alone: settles for a while, then is watched for so many seconds."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="throttle-")))
        server = stack.enter_context(serving(folder, CAPACITY, KNEE))
        write_workflow(folder / "Makeflow", kinds, tools, settle + seconds, server, "alone")
        run = LiveRun(folder, kinds, throttle)
        stack.callback(run.end)
        begin = run.began + settle
        run.wait_until(begin)
        sensor = NodeSensor(time.monotonic(), [run.process.pid])
        stack.callback(sensor.close)
        run.wait_until(begin + seconds)
        busy = busy_processors(sensor.sense(time.monotonic()))
        run.wait_until(begin + seconds + TAIL)
        run.end()
        return run.steady((begin, begin + seconds), busy)


def busy_processors(sensed: SensedNode) -> float:
    share = (sensed.user or 0.0) + (sensed.system or 0.0) + (sensed.steal or 0.0)
    return share * len(os.sched_getaffinity(0))
