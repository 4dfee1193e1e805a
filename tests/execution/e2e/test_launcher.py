"""The launcher process: its death costs nothing but the attempts under way, and the engine's death leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from shoal.execution.processes.launcher_client import NATIVE
from shoal.execution.processes.process_table import marked_processes
from support.command import shoal, start, wait_until
from support.ledgers import accepted, final_records, run_ids

TASKS = 40


@pytest.fixture(autouse=True, params=["native", "python"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test runs with the compiled launcher and with the one in Python."""
    assert os.access(NATIVE, os.X_OK), "the launcher was not compiled"
    monkeypatch.setenv("SHOAL_LAUNCHER", request.param)
    return str(request.param)


def write_workflow(directory: Path, command: str) -> Path:
    lines = [f"o{number}:\n\t{command}; echo {number} > o{number}\n" for number in range(TASKS)]
    (directory / "Makeflow").write_text("".join(lines))
    return directory / "Makeflow"


def launcher_of(run: str) -> int:
    """The process that carries the run's own mark, without a task behind it."""
    found: set[int] = set()

    def is_alone() -> bool:  # a task that is just being started still shows the launcher's environment
        found.clear()
        found.update(set(marked_processes(run.encode())) - set(marked_processes(f"{run}:".encode())))
        return len(found) == 1

    wait_until(is_alone, "the launcher is seen")
    return found.pop()


def test_killed_launcher_is_replaced_and_nothing_is_lost(tmp_path: Path) -> None:
    # Whoever finds five done waits, so that some are under way when the launcher is killed.
    wait = "test \\$(ls | grep -c '^o') -lt 5 || while ! test -e go; do sleep 0.05; done"
    workflow = write_workflow(tmp_path, wait)
    process = start(tmp_path, "run", "Makeflow", "-j2", "--quiet")
    wait_until(lambda: len(list(tmp_path.glob("o*"))) > 3, "some tasks are done")
    os.kill(launcher_of(run_ids(workflow)[-1]), signal.SIGKILL)
    (tmp_path / "go").touch()
    assert process.wait(60) == 0
    assert sorted(path.read_text() for path in tmp_path.glob("o*")) == sorted(f"{n}\n" for n in range(TASKS))
    results = Counter(record.place for record in accepted(workflow))
    assert len(results) == TASKS and set(results.values()) == {1}


def test_killed_run_leaves_no_process_even_without_a_next_run(tmp_path: Path) -> None:
    workflow = write_workflow(tmp_path, "sleep 300 & setsid sleep 300 & wait")
    process = start(tmp_path, "run", "Makeflow", "-j2", "--quiet")
    wait_until(lambda: bool(run_ids(workflow)), "the run starts")
    run = run_ids(workflow)[-1]
    wait_until(lambda: len(marked_processes(f"{run}:".encode())) >= 6, "two tasks run, three processes each")
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_until(lambda: marked_processes(run.encode()) == [], "the launcher ends everything and itself")


def test_next_run_kills_tasks_without_a_mark_if_launcher_and_run_were_killed(tmp_path: Path) -> None:
    workflow = write_workflow(tmp_path, "echo \\$\\$ > pid.part; mv pid.part pid; test -e go || exec env -i sleep 300")
    process = start(tmp_path, "run", "Makeflow", "-j1", "--quiet")
    wait_until((tmp_path / "pid").exists, "the task runs")
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: b"SHOAL" not in Path(f"/proc/{pid}/environ").read_bytes(), "it has dropped its environment")
    run = run_ids(workflow)[-1]
    process.send_signal(signal.SIGSTOP)  # so that it cannot replace the launcher
    os.kill(launcher_of(run), signal.SIGKILL)
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_until(lambda: marked_processes(run.encode()) == [], "the launcher is gone")
    assert os.path.exists(f"/proc/{pid}/exe"), "the task should have survived until here"
    (tmp_path / "go").touch()
    shoal(tmp_path, "run", "Makeflow", "-j2", "--quiet")
    wait_until(lambda: not os.path.exists(f"/proc/{pid}/exe"), "the task of the killed run is gone")


def test_process_that_is_not_ours_is_never_ended(tmp_path: Path) -> None:
    """The table names a pid that now belongs to somebody else: another start moment, so it is left alone."""
    workflow = write_workflow(tmp_path, "true")
    process = start(tmp_path, "run", "Makeflow", "-j1", "--quiet")
    wait_until(lambda: bool(run_ids(workflow)), "the run starts")
    process.send_signal(signal.SIGKILL)
    process.wait()
    table = tmp_path / ".shoal" / "Makeflow" / "processes"
    bystander = subprocess.Popen(["sleep", "300"])
    try:
        table.write_bytes(bystander.pid.to_bytes(8, "little") + bytes(8))
        shoal(tmp_path, "run", "Makeflow", "-j2", "--quiet")
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_both_launchers_report_the_same_of_a_task(tmp_path: Path, kind: str) -> None:
    commands = {
        "ok": "echo out; echo err >&2; echo x > ok",
        "status": "exit 7",
        "signal": "kill -9 \\$\\$",
        "missing": "no-such-program",
        "plain": "touch plain",
        "environment": "test \\$V = 1 && touch environment",
        "bytes": "echo a\u00e9b > bytes; test `wc -c < bytes` = 5",
    }
    rules = "".join(f"{name}:\nV=1\n\t{command}\n" for name, command in commands.items())
    (tmp_path / "Makeflow").write_text(f"export V\n{rules}")
    shoal(tmp_path, "run", "Makeflow", "--quiet", expect=1)
    ended = {record.task: record for record in final_records(tmp_path / "Makeflow")}
    told = [(record.outcome, record.status, record.message) for _, record in sorted(ended.items())]
    assert told == [
        ("ok", 0, ""),
        ("failed", 7, "exit status 7"),
        ("crashed", -9, "ended by signal 9 (SIGKILL)"),
        ("failed", 127, "exit status 127"),
        ("ok", 0, ""),
        ("ok", 0, ""),
        ("ok", 0, ""),
    ]
    assert shoal(tmp_path, "output", "ok", "Makeflow").stdout == "out\nerr\n"
    if kind == "native":
        assert all(record.max_rss > 500_000 for record in ended.values()), "a small parent hides no task's memory"
