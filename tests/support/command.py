"""Running the installed command as a user does, and waiting for conditions with a deadline."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

SHOAL = [sys.executable, "-m", "shoal"]
PATIENCE = 60.0
_started: list[subprocess.Popen[bytes]] = []


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Ours, without what would change the command's looks."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name == "SHOAL_LAUNCHER" or not name.startswith(("SHOAL", "PYTEST"))
    }
    return inherited | {"NO_COLOR": "1"} | dict(extra or {})


def shoal(directory: Path, *words: str, expect: int | None = 0) -> subprocess.CompletedProcess[str]:
    """Runs `shoal WORDS` in a directory and checks its exit status, showing what it said if that is not as expected."""
    done = subprocess.run(
        [*SHOAL, *words],
        cwd=directory,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE * 5,
        stdin=subprocess.DEVNULL,
    )
    said = f"$ shoal {' '.join(words)}\n{done.stdout}\n{done.stderr}"
    assert expect is None or done.returncode == expect, f"exit status {done.returncode}, expected {expect}:\n{said}"
    assert "Traceback" not in done.stderr, said
    return done


def start(
    directory: Path,
    *words: str,
    output: IO[bytes] | int = subprocess.DEVNULL,
    surroundings: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Starts `shoal WORDS` in the background; it is ended with the test, if not before. What it says goes nowhere,
    or to a file."""
    process = subprocess.Popen(
        [*SHOAL, *words],
        cwd=directory,
        env=environment() if surroundings is None else surroundings,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
    )
    _started.append(process)
    return process


def end_started() -> None:
    """Ends what `start` has left running, as a test does that fails half-way: its launcher then ends all tasks."""
    while _started:
        process = _started.pop()
        process.kill()
        process.wait()


def is_alive(pid: int) -> bool:
    """Whether there is such a process that has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def kill_process(pid: int) -> None:
    """Ends it without warning, and waits for that: on a busy machine it dies some time after the signal."""
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(pid), "the process has ended")


def wait_until(condition: Callable[[], bool], what: str, patience: float = PATIENCE) -> None:
    """Waits for a condition; says what did not come true in time."""
    deadline = time.monotonic() + patience
    pause, asked = 0.001, time.monotonic()
    while not condition():
        now = time.monotonic()
        assert now < deadline, f"waited {patience} s in vain: {what}"
        # Polls a condition with a deadline; not a fixed wait. One that starts a program is not asked without a break.
        time.sleep(max(pause, min(2 * (now - asked), 1.0)))
        pause, asked = min(pause * 1.5, 0.05), time.monotonic()
