"""SIGKILL of the whole `shoal` process at random moments, each followed by a resume.

Fifty kills over five executions of a 2,000-task workflow: every output correct, every result accepted exactly once, at
most 100 ms of finished work repeated per kill, and no process of a killed run left when the next one has started work.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from shoal.execution.processes.process_table import marked_processes
from support.command import shoal, start, wait_until
from support.ledgers import accepted, ledger_path, run_ids

WIDTH = 40
DEPTH = 50
KILLS = 10
JOBS = 2


def write_workflow(directory: Path) -> Path:
    """50 layers of 40 tasks; each appends to its own log when it is finished, and to its output, which must be whole.

    Appending makes a half result of a killed attempt visible: if it were still there, the output would be wrong. A few
    tasks sleep in a child of their own, so that there is something to leave behind.
    """
    lines = []
    for layer in range(DEPTH):
        for column in range(WIDTH):
            name = f"o/{layer}.{column}"
            needs = "" if layer == 0 else f"o/{layer - 1}.{column} o/{layer - 1}.{(column + 1) % WIDTH}"
            pause = "sleep 0.3 & wait; " if column == 7 and layer % 10 == 3 else ""
            read = f"cat {needs} | cksum >> {name}" if needs else f"echo {column} >> {name}"
            lines.append(f"{name}: {needs}\n\techo begun >> {name}; {pause}{read}; echo x >> log/{layer}.{column}\n")
    workflow = directory / "Makeflow"
    workflow.write_text("".join(lines))
    (directory / "log").mkdir()
    return workflow


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What an undisturbed run makes."""
    directory = tmp_path_factory.mktemp("expected")
    write_workflow(directory)
    shoal(directory, "run", "Makeflow", f"-j{JOBS}", "--quiet")
    return {path.name: path.read_bytes() for path in (directory / "o").iterdir()}


def kill_at_random_moment(directory: Path, workflow: Path, dice: random.Random) -> None:
    """Starts a run, lets it get anywhere between its very start and a second of work, and kills it."""
    before = len(run_ids(workflow))
    process = start(directory, "run", "Makeflow", f"-j{JOBS}", "--quiet")
    if dice.random() < 0.8:  # otherwise it is killed before or while it starts
        wait_until(lambda: len(run_ids(workflow)) > before or process.poll() is not None, "the run starts")
    wait = dice.random() * 0.6
    end = time.monotonic() + wait
    wait_until(lambda: time.monotonic() >= end, "the moment comes")
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize("seed", range(3))
def test_killed_runs_resume_without_loss_or_repetition(tmp_path: Path, expected: dict[str, bytes], seed: int) -> None:
    dice = random.Random(seed)
    directory = tmp_path
    workflow = write_workflow(directory)
    for _ in range(KILLS):
        kill_at_random_moment(directory, workflow, dice)
    shoal(directory, "run", "Makeflow", f"-j{JOBS}", "--quiet")

    assert {path.name: path.read_bytes() for path in (directory / "o").iterdir()} == expected
    results = Counter(record.place for record in accepted(workflow))
    assert len(results) == WIDTH * DEPTH
    assert set(results.values()) == {1}, "a result was accepted twice"
    executions = [len(path.read_text().split()) for path in (directory / "log").iterdir()]
    mean = sum(record.ended - record.started for record in accepted(workflow)) / (WIDTH * DEPTH)
    # What had only to end when the kill came was not finished: on a slow machine that is most of what is repeated.
    repeated = max(0, sum(executions) - len(executions) - JOBS * KILLS) * mean
    assert repeated <= 0.1 * KILLS, f"{repeated:.3f} s of finished work repeated over {KILLS} kills"
    for run in run_ids(workflow):
        assert marked_processes(run.encode()) == [], "a process of a killed run is still there"
    assert ledger_path(workflow).exists()
