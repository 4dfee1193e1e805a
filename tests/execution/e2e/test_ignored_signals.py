"""Signals that whoever starts Shoal has told it to ignore, as `nohup` does, and a shell for its background jobs."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from shoal.cluster.agent.agent import SIGNALS
from shoal.execution.processes.wakeup import Wakeup, catchable
from support.command import SHOAL, environment, wait_until

UNTIL_GO = "touch begun; until test -e go; do sleep 0.5; done"
"""It sleeps long enough for the signal to be noticed before it sees that it may go on."""
FLOW = f'from shoal import rule\nrule("out", run="{UNTIL_GO}; touch out")\n'
MAKEFLOW = f"out:\n\t{UNTIL_GO}; touch out\n"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("flow.py", FLOW, ("run", "flow.py", "out", "--quiet")),
        ("Makeflow", MAKEFLOW, ("makeflow", "Makeflow")),
        ("none", "", ("monitor", "-O", "summary", "--", "sh", "-c", f"{UNTIL_GO}; touch out")),
    ],
    ids=["run", "makeflow", "monitor"],
)
def test_what_was_ignored_at_the_start_ends_nothing(
    tmp_path: Path, name: str, text: str, words: tuple[str, ...]
) -> None:
    (tmp_path / name).write_text(text)
    command = f"trap '' HUP INT; exec {shlex.join([*SHOAL, *words])}"
    with subprocess.Popen(["sh", "-c", command], cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL) as process:
        wait_until(lambda: (tmp_path / "begun").exists(), "the task runs")
        for number in (signal.SIGHUP, signal.SIGINT):
            process.send_signal(number)
        (tmp_path / "go").touch()
        assert process.wait(60) == 0
    assert (tmp_path / "out").exists()


@pytest.fixture
def hangup_is_ignored() -> Iterator[None]:
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGHUP, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("hangup_is_ignored")
def test_loops_of_agent_head_and_client_leave_it_ignored() -> None:
    wakeup = Wakeup(SIGNALS)
    try:
        for number in (signal.SIGHUP, signal.SIGINT):
            os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGTERM)
        wakeup.wait(60)
        assert wakeup.signals == [signal.SIGTERM]
    finally:
        wakeup.close()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_what_was_not_ignored_is_caught() -> None:
    assert catchable(SIGNALS) == list(SIGNALS)


def catches(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def test_the_page_of_a_run_stays_when_the_terminal_goes(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text('from shoal import rule\nrule("out", run="touch out")\n')
    subprocess.run([*SHOAL, "run", "flow.py", "out", "--quiet"], cwd=tmp_path, env=environment(), check=True)
    command = f"trap '' HUP; exec {shlex.join([*SHOAL, 'web', 'flow.py'])}"
    with subprocess.Popen(["sh", "-c", command], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split()[3].decode()
            wait_until(lambda: catches(process.pid, signal.SIGTERM), "it is ready for signals")
            with urlopen(address, timeout=60) as answer:
                assert answer.status == 200
            process.send_signal(signal.SIGHUP)
            with urlopen(address, timeout=60) as answer:
                assert answer.status == 200
        finally:
            process.kill()
