"""A launcher without an engine: commands go in, rows come out; for tests of what is measured and enforced."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from shoal.core.policies.retry import AttemptOutcome
from shoal.execution.processes.launcher_client import LauncherClient
from shoal.execution.processes.launcher_messages import NO_LIMIT, NO_MEMORY_LIMIT
from shoal.execution.processes.time_series import header

PATIENCE = 60.0
MEBIBYTE = 1 << 20


class Ended(NamedTuple):
    """An `ended` row, field by field."""

    task: int
    attempt: int
    outcome: str
    status: int
    started: float
    ended: float
    user: float
    system: float
    max_rss: int
    output_at: int
    output_size: int
    message: str
    tail: bytes
    read: int
    written: int
    switches: int
    faults: int
    resident: int
    virtual: int
    swap: int
    most_processes: int
    all_processes: int
    cores: int
    disk: int
    files: int


class Launching:
    """One launcher of a run of its own."""

    def __init__(self, directory: Path, run: str, series: str = "") -> None:
        running = directory / "running"
        running.mkdir(exist_ok=True)
        self.run = run
        self.running = running
        self.client = LauncherClient(run)
        places = (str(running), str(directory / "output"), str(directory / "table"))
        offset = time.time() - time.monotonic()
        self.client.configure(*places, offset, series=series, series_header=header(with_footprint=False))
        self.ended: dict[int, Ended] = {}
        self.started: set[int] = set()
        """Tasks that are known to run for some time."""
        self._tasks = 0

    def start(
        self,
        *commands: str,
        timeout: float = NO_LIMIT,
        memory: int = NO_MEMORY_LIMIT,
        disk: int = 0,
        makes: Sequence[Path] = (),
        variables: Mapping[str, str] | None = None,
        directory: Path | None = None,
        shell: Sequence[str] = (),
    ) -> list[int]:
        """Starts commands, each in a place of its own; returns their tasks."""
        tasks = []
        paths = b"".join(os.fsencode(path) + b"\0" for path in makes)
        settings = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in (variables or {}).items())
        place = os.fsencode(directory or "")
        words = b"".join(os.fsencode(word) + b"\0" for word in shell)
        for command in commands:
            self._tasks += 1
            tasks.append(self._tasks)
            plain = (self._tasks, 1, os.fsencode(command), timeout, settings, place, memory, words)
            self.client.start(self._tasks, [(*plain, disk, paths) if disk else plain])
        return tasks

    def hear(self, seconds: float) -> None:
        """Takes what the launcher has to tell, and waits so long for something."""
        if select.select([self.client.descriptor], [], [], seconds)[0]:
            told = self.client.collect()
            assert told is not None, "the launcher is gone"
            for row in told:
                self._take(row)

    def _take(self, row: tuple[Any, ...]) -> None:
        if row[0] == "ended":
            self.ended[row[1]] = Ended(*row[1:])
        elif row[0] == "running":
            self.started.add(row[1])

    def wait(self, tasks: Sequence[int]) -> list[Ended]:
        """The rows of these tasks, once they have ended."""
        deadline = time.monotonic() + PATIENCE
        while not all(task in self.ended for task in tasks):
            assert time.monotonic() < deadline, f"waited {PATIENCE} s in vain for the end of the tasks"
            self.hear(0.1)
        return [self.ended[task] for task in tasks]

    def execute(
        self,
        command: str,
        timeout: float = NO_LIMIT,
        memory: int = NO_MEMORY_LIMIT,
        disk: int = 0,
        makes: Sequence[Path] = (),
        variables: Mapping[str, str] | None = None,
        directory: Path | None = None,
        shell: Sequence[str] = (),
    ) -> Ended:
        """Runs one command to its end."""
        started = self.start(
            command,
            timeout=timeout,
            memory=memory,
            disk=disk,
            makes=makes,
            variables=variables,
            directory=directory,
            shell=shell,
        )
        return self.wait(started)[0]

    def cancel(self, task: int) -> None:
        self.client.kill(task, AttemptOutcome.CANCELLED, "cancelled", at_once=True)


@contextmanager
def launching(directory: Path, run: str, series: str = "") -> Iterator[Launching]:
    """A launcher that is gone afterwards, with all that it started."""
    made = Launching(directory, run, series)
    try:
        yield made
    finally:
        made.client.close()


def compile_program(directory: Path, name: str, source: str) -> str:
    """The path of a small C program, static where that can be done: its memory is then its own."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler is not None, "these tests need a C compiler"
    (directory / f"{name}.c").write_text(source)
    words = [compiler, "-O1", "-o", str(directory / name), str(directory / f"{name}.c")]
    if subprocess.run([*words, "-static"], capture_output=True).returncode:
        subprocess.run(words, check=True)
    return str(directory / name)
