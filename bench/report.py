"""The report of a run of a million tasks: how long it takes to write, how large it is, how much memory it needs.

The ledger is made with the real writer, from a seeded schedule of a layered graph on the nodes of a cluster, with
retries, failures and a throttle. The promises: the ledger is in the view in at most 5 s and 300 MB, the report is
written in at most 20 s and has at most 10 MB. The exit status is 1 if one is not kept. Run with the project's
interpreter:

    python bench/report.py [--tasks N] [--depth N] [--keep DIRECTORY]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from heapq import heapify, heapreplace
from pathlib import Path
from random import Random

from shoal.ledger.file import LedgerWriter
from shoal.ledger.records import (
    CategoriesDeclared,
    NodeSeen,
    NodeTold,
    Record,
    RunEnded,
    RunStarted,
    SourcesSeen,
    TaskEnded,
    TasksLinked,
    TasksPlanned,
    ThrottleDecided,
    Usage,
)

NODES, CORES = 16, 32
GIB = 1 << 30
KINDS = (("fetch", 0.4), ("align", 3.0), ("filter", 0.9), ("merge", 6.0), ("plot", 1.5), ("pack", 0.2))
BEGAN = 1_700_000_000.0
OPENING_SECONDS, OPENING_BYTES = 5.0, 300e6
WRITING_SECONDS, PAGE_BYTES = 20.0, 10e6
_OPEN = """
import json, resource, sys, time
from shoal.ledger.bulk_reader import LedgerTail, read_into
from shoal.ledger.views.run import RunView
began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
view = RunView()
read_into(view, LedgerTail(sys.argv[1]))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([time.perf_counter() - began, peak * 1024, (peak - before) * 1024, len(ledger.views.attempts)]))
"""


def needs_of(task: int, width: int) -> list[int]:
    """Layers of this width; each task needs two of the layer before."""
    layer, place = divmod(task, width)
    if not layer:
        return []
    before = (layer - 1) * width
    return [before + place, before + (place * 7 + 3) % width]


def head(tasks: int, width: int) -> Iterator[Record]:
    """What a run writes before it begins."""
    node = [("cores", CORES * 10_000), ("memory", 128 * GIB)]
    yield RunStarted("benchrun", BEGAN, 1, 1, "boot", "client", "bench", ["all"], node, tasks, tasks)
    yield CategoriesDeclared([name for name, _ in KINDS], [[("memory", 2 * GIB)], *([] for _ in KINDS[1:])])
    yield SourcesSeen(["input"], [5 * GIB], [0])
    for begin in range(0, tasks, 500):
        numbers = list(range(begin, min(tasks, begin + 500)))
        yield TasksPlanned(numbers, [f"out/part-{n:07}.dat" for n in numbers], [KINDS[n % 6][0] for n in numbers])
    for begin in range(0, tasks, 100_000):
        numbers = list(range(begin, min(tasks, begin + 100_000)))
        rows = [needs_of(task, width) for task in numbers]
        flat = array("i", [need for row in rows for need in row])
        yield TasksLinked(array("i", numbers).tobytes(), array("i", map(len, rows)).tobytes(), flat.tobytes())
    for number in range(1, NODES + 1):
        yield NodeSeen(BEGAN, number, f"node{number:02}", node)


def attempts(tasks: int, width: int, random: Random) -> Iterator[TaskEnded]:
    """Every attempt, by a schedule that gives each task the core that is free first."""
    free = [(BEGAN + 0.01, slot) for slot in range(NODES * CORES)]
    heapify(free)
    done = array("d", [0.0]) * tasks
    for task in range(tasks):
        mean = KINDS[task % 6][1]
        number, bad = 1, random.random() < 0.004
        while True:
            moment, slot = free[0]
            ready = max((done[need] for need in needs_of(task, width)), default=BEGAN)
            started = max(moment, ready) + 0.001
            ended = started + random.expovariate(1 / mean) * (0.3 if bad else 1.0) + 0.002
            heapreplace(free, (ended, slot))
            yield ended_attempt(task, number, started, ended, slot // CORES + 1, random, "failed" if bad else "ok")
            done[task] = ended
            if not bad:
                break
            number, bad = number + 1, False


def ended_attempt(
    task: int, number: int, started: float, ended: float, node: int, random: Random, outcome: str
) -> TaskEnded:
    """One record, as a real run writes it."""
    identity = task.to_bytes(16, "little")
    memory = int(random.uniform(0.2, 0.9) * GIB)
    usage = Usage(1 << 20, 1 << 19, 12, 0, memory, 2 * memory, 0, 2, 3, 950, 1 << 20, 1)
    message = "" if outcome == "ok" else f"exit status {random.choice((1, 2, 137))}"
    took = ended - started
    return TaskEnded(
        task=task,
        attempt=number,
        outcome=outcome,
        final=outcome == "ok",
        status=0 if outcome == "ok" else 1,
        started=started,
        ended=ended,
        user=0.9 * took,
        system=0.05 * took,
        max_rss=memory,
        output_at=0,
        output_size=0,
        message=message,
        place=identity,
        content=identity,
        inputs=bytes(16),
        outputs=[(1 << 20, 1_700_000_000_000_000_000)],
        value=None,
        usage=usage,
        memory_limit=2 * GIB if task % 6 == 0 else 0,
        node=node,
    )


def write_ledger(path: str, tasks: int, width: int) -> None:
    """The whole ledger, with the writer that runs use."""
    random = Random(1)
    writer = LedgerWriter(path, path + ".ballast")
    for record in head(tasks, width):
        writer.add(record)
    last, count = BEGAN, 0
    for count, record in enumerate(attempts(tasks, width, random)):
        writer.add(record)
        last = max(last, record.ended)
        if count % 2000 == 0:
            writer.add(ThrottleDecided(record.ended, "node01", "align", 20, 19, 50, "holding", "cores", 0.9, 7.0, "so"))
            writer.flush()
    for number in range(1, NODES + 1):
        writer.add(NodeTold(last, number, 3 * GIB, 120 * number, 40))
    writer.add(RunEnded(last + 0.05, "ok", tasks, 0, 0))
    writer.close()
    print(f"ledger: {count + 1:,} attempts, {os.path.getsize(path) / 1e6:.0f} MB")


def kept(what: str, value: float, limit: float, unit: str) -> bool:
    """Tells a measurement beside its promise."""
    print(f"{what}: {value:.1f} {unit} (promised: at most {limit:g} {unit}){'' if value <= limit else '  NOT KEPT'}")
    return value <= limit


def measure(folder: Path, tasks: int, depth: int) -> bool:
    """Makes the ledger, opens it, writes the report."""
    workflow = folder / "million.py"
    workflow.write_text("")
    ledger = folder / ".shoal" / workflow.name / "ledger"
    ledger.parent.mkdir(parents=True)
    write_ledger(str(ledger), tasks, max(1, tasks // depth))
    shown = subprocess.run([sys.executable, "-c", _OPEN, str(ledger)], capture_output=True, text=True, check=True)
    took, peak, _, count = json.loads(shown.stdout)
    print(f"opened: {count:,} attempts")
    results = [kept("opening", took, OPENING_SECONDS, "s"), kept("memory", peak / 1e6, OPENING_BYTES / 1e6, "MB")]
    began = time.perf_counter()
    command = [sys.executable, "-m", "shoal", "report", workflow.name, "-o", "report.html"]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    results.append(kept("report", time.perf_counter() - began, WRITING_SECONDS, "s"))
    results.append(kept("page", os.path.getsize(folder / "report.html") / 1e6, PAGE_BYTES / 1e6, "MB"))
    return all(results)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument("--depth", type=int, default=1000, help="layers; as many as tasks make a chain")
    parser.add_argument("--keep", metavar="DIRECTORY", help="leave ledger and page there")
    arguments = parser.parse_args()
    if arguments.keep:
        Path(arguments.keep).mkdir(parents=True, exist_ok=True)
        return 0 if measure(Path(arguments.keep), arguments.tasks, arguments.depth) else 1
    with tempfile.TemporaryDirectory() as folder:
        return 0 if measure(Path(folder), arguments.tasks, arguments.depth) else 1


if __name__ == "__main__":
    sys.exit(main())
