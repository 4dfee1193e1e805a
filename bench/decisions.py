"""Figures behind the pages in `docs/decisions`: `python bench/decisions.py` prints them as a Markdown table.

Each figure is the best of three rounds, because other work on the machine only makes a round slower. The figures
compare alternatives with each other; `bench/run.py` says how fast Shoal is.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
import tracemalloc
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec

ROUNDS = 3
COMMANDS, TASKS, RECORDS, OBJECTS = 1_000, 5_000, 1_000, 200_000
RECORD = bytes(200)
FLOW = f"from shoal import task\nfor n in range({TASKS}):\n    task(f't{{n}}', run='/bin/true')\n"


@dataclasses.dataclass(frozen=True)
class Dataclass:
    task: int
    attempt: int
    started: float
    ended: float


class Struct(msgspec.Struct, frozen=True):
    task: int
    attempt: int
    started: float
    ended: float


def rate(count: int, work: Callable[..., object], *arguments: object) -> str:
    """How many a second, in the best round."""
    rounds = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        work(*arguments)
        rounds.append(time.perf_counter() - begin)
    return f"{count / min(rounds):,.0f}/s"


def bytes_per_task(make: Callable[[], object]) -> str:
    """Memory of what `make` returns for all tasks."""
    tracemalloc.start()
    made = make()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del made
    return f"{size / OBJECTS:.0f} bytes"


def spawn_and_wait() -> None:
    for _ in range(COMMANDS):
        os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)


def spawn_with_asyncio() -> None:
    async def run() -> None:
        for _ in range(COMMANDS):
            await (await asyncio.create_subprocess_exec("/bin/true", env={})).wait()

    asyncio.run(run())


def run_shoal(launcher: str, directory: str) -> None:
    words = [sys.executable, "-P", "-m", "shoal", "run", "flow.py", "--force", "--quiet", "--jobs", "2"]
    subprocess.run(words, cwd=directory, env=os.environ | {"SHOAL_LAUNCHER": launcher}, check=True)


def log_to_file(path: str, batch: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for _ in range(RECORDS // batch):
        os.write(descriptor, RECORD * batch)
        os.fdatasync(descriptor)
    os.close(descriptor)


def log_to_sqlite(path: str, batch: int) -> None:
    base = sqlite3.connect(path, isolation_level=None)
    base.executescript("pragma journal_mode=wal; pragma synchronous=full; create table if not exists r (data blob)")
    for _ in range(RECORDS // batch):
        base.execute("begin")
        base.executemany("insert into r values (?)", [(RECORD,)] * batch)
        base.execute("commit")
    base.close()


def make_objects(kind: type[Dataclass] | type[Struct]) -> list[Dataclass | Struct]:
    return [kind(task, 1, task + 0.5, task + 1.5) for task in range(OBJECTS)]


def make_columns() -> list[array[int] | array[float]]:
    return [array(code, range(OBJECTS)) for code in "iidd"]


def to_json(made: list[Dataclass]) -> str:
    return json.dumps([vars(one) for one in made])


def rows(directory: str) -> Iterator[tuple[str, str]]:
    """What was measured, and the figure."""
    yield "commands started with `os.posix_spawn`, one after another", rate(COMMANDS, spawn_and_wait)
    yield "the same with `asyncio.create_subprocess_exec`", rate(COMMANDS, spawn_with_asyncio)
    Path(directory, "flow.py").write_text(FLOW)
    for launcher in ("native", "python"):
        yield f"`shoal run` of /bin/true, launcher `{launcher}`", rate(TASKS, run_shoal, launcher, directory)
    for batch in (1, 100):
        path = os.path.join(directory, f"log-{batch}")
        yield f"200-byte records made durable {batch} at a time, file", rate(RECORDS, log_to_file, path, batch)
        yield "the same, SQLite (WAL, full)", rate(RECORDS, log_to_sqlite, path + ".db", batch)
    for name, kind in (("frozen dataclass", Dataclass), ("frozen `msgspec.Struct`", Struct)):
        yield f"objects with four numbers made, {name}", rate(OBJECTS, make_objects, kind)
        yield "memory of one", bytes_per_task(partial(make_objects, kind))
    yield "memory of the same in four columns", bytes_per_task(make_columns)
    yield "these objects encoded by `json`", rate(OBJECTS, to_json, make_objects(Dataclass))
    yield "the same by `msgspec.msgpack`", rate(OBJECTS, msgspec.msgpack.encode, make_objects(Struct))


def main() -> None:
    print("| what | measured |\n|---|---:|")
    with tempfile.TemporaryDirectory(dir=".") as directory:
        for what, figure in rows(directory):
            print(f"| {what} | {figure} |", flush=True)


if __name__ == "__main__":
    main()
