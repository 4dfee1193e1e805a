"""Processor time of tasks told apart from that of everybody else, with real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from shoal.execution.processes.node_sensors import task_seconds

BURN = "import time\nwhile time.process_time() < {seconds}: pass\nprint('burnt', flush=True)\ninput()"
LIST = f"/proc/{os.getpid()}/task/{os.getpid()}/children"
pytestmark = pytest.mark.skipif(not os.path.exists(LIST), reason="this kernel keeps no list of children")


def burner(seconds: float, shell: bool = False) -> subprocess.Popen[str]:
    words = [sys.executable, "-S", "-c", BURN.format(seconds=seconds)]
    if shell:
        words = ["/bin/sh", "-c", '"$@"; true', "sh", *words]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> None:
    process.communicate("\n", timeout=60)


@pytest.mark.parametrize("shell", [False, True])
def test_what_a_task_burns_is_seen_while_it_runs_and_after_its_end(shell: bool) -> None:
    roots = [os.getpid()]
    before = task_seconds(roots)
    assert before is not None
    process = burner(0.3, shell)
    assert process.stdout is not None and process.stdout.readline() == "burnt\n"
    during = task_seconds(roots)
    finish(process)
    after = task_seconds(roots)
    assert during is not None and after is not None
    assert 0.2 <= during - before <= 1.5
    assert during - 0.05 <= after <= during + 1.0


def test_what_the_roots_and_other_processes_burn_is_not_counted() -> None:
    other = burner(0.5)
    try:
        roots = [os.getpid(), other.pid]
        before = task_seconds(roots)
        until = time.process_time() + 0.3
        while time.process_time() < until:
            pass
        assert other.stdout is not None and other.stdout.readline() == "burnt\n"
        after = task_seconds(roots)
        assert before is not None and after is not None and after - before < 0.1
    finally:
        finish(other)


def test_a_root_that_is_gone_counts_for_nothing() -> None:
    process = burner(0.0)
    finish(process)
    assert task_seconds([process.pid]) == 0.0
