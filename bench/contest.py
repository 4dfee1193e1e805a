"""Runs contestants one after another, round by round, and keeps what each of them needed.

A round runs every contestant once, so that whatever else the machine does hits all of them; the best of the rounds
counts. Each run has a fresh directory, a time limit and its own session, and whatever it leaves running is ended by
its process number before the next one starts. Knows nothing of particular tools.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
GRACE_SECONDS = 3.0


@dataclass(frozen=True)
class Contestant:
    """A tool and how it is started in an empty directory; `missing` says why it cannot run at all."""

    name: str
    tasks: int
    prepare: Callable[[Path], list[str]]
    own_clock: bool = False
    """It prints its own seconds as a line of JSON (servers and pools, which are warm by then)."""
    starts_processes: bool = True
    """It must start at least as many processes as it has tasks; checked, so that nobody wins by doing nothing."""
    environment: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    missing: str = ""
    time_limit: float = 120.0


@dataclass
class Result:
    """The rounds of one contestant; `error` if it could not run or failed once."""

    name: str
    tasks: int
    note: str = ""
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    extra: list[dict[str, float]] = field(default_factory=list)
    error: str = ""

    @property
    def best(self) -> float | None:
        return min(self.seconds) if self.seconds and not self.error else None

    @property
    def rate(self) -> float | None:
        return self.tasks / self.best if self.best else None

    def least(self, key: str) -> float | None:
        """The smallest of a figure that the contestant reported itself."""
        values = [extra[key] for extra in self.extra if key in extra]
        return min(values) if values and not self.error else None


class ContestError(Exception):
    """A contestant failed; the text is the reason shown in its row."""


def hold(contestants: list[Contestant], rounds: int, directory: Path) -> list[Result]:
    """All rounds of one contest, interleaved; a contestant that fails is left out of the rounds that follow."""
    results = [Result(one.name, one.tasks, one.note, error=one.missing) for one in contestants]
    for number in range(rounds):
        for contestant, result in zip(contestants, results, strict=True):
            if result.error:
                continue
            say(f"  round {number + 1} of {rounds}: {contestant.name} …", end="")
            try:
                run_once(contestant, result, directory / "run")
            except ContestError as error:
                result.error = tidy(str(error), directory)
            say(f" {result.error or f'{result.seconds[-1]:.2f} s'}")
    return results


def run_once(contestant: Contestant, result: Result, directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    command = contestant.prepare(directory)
    # Tools write caches, tokens and first-use marks into the home directory; they shall not touch the user's.
    environment = {**os.environ, "HOME": str(directory), **contestant.environment}
    os.sync()
    forks = processes_started()
    try:
        wall, cpu, answer = run_command(command, directory, environment, contestant.time_limit)
    finally:
        end_leftovers()
    if contestant.starts_processes and processes_started() - forks < contestant.tasks:
        raise ContestError(f"started fewer than {contestant.tasks} processes")
    extra = read_answer(answer) if contestant.own_clock else {}
    result.seconds.append(extra.pop("seconds", wall))
    result.cpu_seconds.append(cpu)
    result.extra.append(extra)
    shutil.rmtree(directory, ignore_errors=True)


def run_command(
    command: list[str], directory: Path, environment: Mapping[str, str], time_limit: float
) -> tuple[float, float, Path]:
    """Wall-clock seconds, CPU seconds of the process and all it waited for, and the file with the standard output."""
    output, errors = directory / ".stdout", directory / ".stderr"
    with output.open("wb") as out, errors.open("wb") as err:
        started = time.perf_counter()
        process = subprocess.Popen(
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
    if not ended_within(process.pid, time_limit):
        kill(process.pid, signal.SIGKILL)
        os.wait4(process.pid, 0)
        process.returncode = -signal.SIGKILL
        raise ContestError(f"not done after {time_limit:.0f} s")
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise ContestError(f"exit status {process.returncode}: {last_line(errors) or last_line(output)}")
    return wall, usage.ru_utime + usage.ru_stime, output


def ended_within(pid: int, seconds: float) -> bool:
    """Whether the process, which is a child of ours and not yet reaped, ends in time."""
    descriptor = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(1000 * seconds))
    finally:
        os.close(descriptor)


def read_answer(output: Path) -> dict[str, float]:
    line = last_line(output)
    try:
        answer = json.loads(line)
    except ValueError:
        raise ContestError(f"no measurement in its output: {line!r}") from None
    return {key: float(value) for key, value in answer.items()}


def last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def adopt_orphans() -> None:
    """Makes this process the parent of whatever its children leave behind, so that it can be found and ended."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_leftovers() -> None:
    """Ends every process that descends from this one: first politely, then for good."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + GRACE_SECONDS
        for pid in descendants():
            kill(pid, number)
        while time.monotonic() < deadline:
            reap()
            if not descendants():
                return
            time.sleep(0.01)


def descendants() -> list[int]:
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            parent = parent_of(int(entry))
            if parent is not None:
                parents[int(entry)] = parent
    found, last = [], [os.getpid()]
    while last:
        last = [pid for pid, parent in parents.items() if parent in last]
        found += last
    return found


def parent_of(pid: int) -> int | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name in parentheses may hold anything, also spaces and parentheses.
    return int(text.rpartition(")")[2].split()[1])


def kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def processes_started() -> int:
    """Processes and threads started on this machine since it booted."""
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith("processes "):
            return int(line.split()[1])
    return 0


def tidy(text: str, directory: Path) -> str:
    """One short line without paths of this machine."""
    for path, name in ((directory, "."), (Path(__file__).parent.parent, "."), (Path.home(), "~")):
        text = text.replace(str(path), name)
    return " ".join(text.replace("|", "/").split())[:160]


def say(text: str, end: str = "\n") -> None:
    print(text, end=end, file=sys.stderr, flush=True)
