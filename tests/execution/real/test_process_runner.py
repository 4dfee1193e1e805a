"""The process runner against real processes: what ends, what is measured, and that nothing survives a kill."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.core.policies.retry import AttemptOutcome
from shoal.execution.processes.output import OutputSlots
from shoal.execution.processes.process import LEAST_PAUSE, ProcessEnd, ProcessRunner, Running
from shoal.execution.processes.process_table import (
    ProcessTable,
    become_subreaper,
    marked_processes,
    read_table,
    started_at,
)
from support.command import wait_until

RUN = f"test{os.getpid()}"
PR_SET_CHILD_SUBREAPER = 36


@pytest.fixture
def heir() -> Iterator[None]:
    """What loses its parent falls to us, as to every process that has a runner."""
    assert become_subreaper()
    yield
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.fixture
def runner(tmp_path: Path, heir: None) -> Iterator[ProcessRunner]:
    slots = OutputSlots(str(tmp_path))
    table = ProcessTable(str(tmp_path / "table"))
    made = ProcessRunner(RUN, os.environ, slots, table, time.time)
    yield made
    made.close()
    slots.close()
    table.close()


def run(runner: ProcessRunner, command: str, **options: object) -> ProcessEnd:
    started = runner.start(time.time(), 1, 1, command, **options)  # type: ignore[arg-type]
    assert isinstance(started, Running), started
    return finish(runner)


def finish(runner: ProcessRunner) -> ProcessEnd:
    ends: list[ProcessEnd] = []

    def over() -> bool:
        runner.enforce(time.time())
        runner.look(time.time())
        ends.extend(runner.reap(time.time()))
        return bool(ends)

    wait_until(over, "the process ends")
    return ends[0]


def nothing_left() -> bool:
    return marked_processes(f"{RUN}:".encode()) == []


def output(runner: ProcessRunner, end: ProcessEnd) -> str:
    descriptor = runner.slots.descriptors[end.running.slot]
    return os.pread(descriptor, 1 << 16, 0).decode()


def test_plain_command_is_executed_without_a_shell(runner: ProcessRunner) -> None:
    end = run(runner, "/bin/cat /proc/self/cmdline")
    assert (end.outcome, end.status) == (AttemptOutcome.OK, 0)
    assert output(runner, end) == "/bin/cat\0/proc/self/cmdline\0"


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("echo a b | tr a-z A-Z", "A B\n"),
        ("X=5 sh -c 'echo $X'", "5\n"),
        ("echo *", None),
        ("cd / && pwd", "/\n"),
        ("echo 'one  two'", "one  two\n"),
        ("echo out; echo err >&2", "out\nerr\n"),
    ],
)
def test_shell_syntax_goes_through_the_shell(runner: ProcessRunner, command: str, text: str | None) -> None:
    end = run(runner, command)
    assert end.outcome is AttemptOutcome.OK
    assert text is None or output(runner, end) == text


def test_builtins_work_although_no_such_executable_exists(runner: ProcessRunner) -> None:
    assert run(runner, "exit 7").status == 7


def test_missing_executable_is_a_failure_with_a_message(runner: ProcessRunner) -> None:
    end = run(runner, "/nonexistent/tool --now")
    assert (end.outcome, end.status) == (AttemptOutcome.FAILED, 127)
    assert "not found" in output(runner, end)


def test_script_without_interpreter_line_is_run_by_the_shell(runner: ProcessRunner, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("echo from script $1\n")
    script.chmod(0o755)
    assert output(runner, run(runner, f"{script} word")) == "from script word\n"


def test_environment_directory_and_standard_input(runner: ProcessRunner, tmp_path: Path) -> None:
    end = run(runner, "pwd; echo $COLOUR; cat; echo end", environment=(("COLOUR", "blue"),), directory=str(tmp_path))
    assert output(runner, end) == f"{tmp_path}\nblue\nend\n"


def test_end_by_signal_is_a_crash_that_names_it(runner: ProcessRunner) -> None:
    end = run(runner, "kill -SEGV $$")
    assert (end.outcome, end.status) == (AttemptOutcome.CRASHED, -signal.SIGSEGV)
    assert "SIGSEGV" in end.message


def test_cpu_time_and_peak_memory_are_measured(runner: ProcessRunner) -> None:
    size = (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 * 2 + 60_000_000
    )  # well above what the kernel starts at
    end = run(runner, f"python3 -c 'b = bytearray({size}); s = sum(range(2_000_000))'")
    assert size < end.max_rss < size + 30_000_000
    assert end.user > 0.01


def test_peak_not_above_our_own_is_not_reported(runner: ProcessRunner) -> None:
    assert run(runner, "/bin/true").max_rss == 0


def test_memory_limit_ends_the_whole_tree_and_says_how_much_it_was(runner: ProcessRunner) -> None:
    hungry = "python3 -c 'import time; b = bytearray(80_000_000); time.sleep(600)'"
    end = run(runner, f"setsid sleep 600 & {hungry}", memory=40_000_000)
    assert end.outcome is AttemptOutcome.EXHAUSTED
    assert "more than its 38.1 MiB" in end.message
    wait_until(nothing_left, "everything of the task is gone")


def test_tree_is_looked_at_while_it_lives(runner: ProcessRunner, tmp_path: Path) -> None:
    for name in ("one", "two"):
        os.mkfifo(tmp_path / name)
    started = runner.start(time.time(), 1, 1, f"cat {tmp_path}/one & cat {tmp_path}/two; wait")
    assert isinstance(started, Running)
    gates = [os.open(tmp_path / name, os.O_WRONLY) for name in ("one", "two")]  # when both of them run
    wait_until(lambda: time.time() > started.started + LEAST_PAUSE, "it is old enough to be looked at")
    runner.look(time.time())
    for gate in gates:
        os.close(gate)
    resident, virtual, _, most, in_all = finish(runner).counts[4:9]
    assert 0 < resident <= virtual
    assert most == in_all == 3


def test_file_that_is_made_before_we_go_on_is_the_tasks_own(
    runner: ProcessRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, spawn = tmp_path / "hidden", runner._spawn

    def spawn_and_dawdle(*arguments: Any) -> int:
        pid = spawn(*arguments)
        wait_until(lambda: hidden.exists() and time.time() > hidden.stat().st_ctime + 0.1, "the task is far ahead")
        return pid

    monkeypatch.setattr(runner, "_spawn", spawn_and_dawdle)
    halves = "; ".join(f"head -c 600000 /dev/zero >&{number}" for number in (8, 9))
    end = run(runner, f"exec 8> {hidden}.2 9> {hidden}; {halves}; sleep 600", disk=1_000_000)
    assert end.outcome is AttemptOutcome.EXHAUSTED


def test_time_limit_ends_the_whole_tree(runner: ProcessRunner) -> None:
    end = run(runner, "sleep 600 & sleep 600 & wait", timeout=0.2)
    assert end.outcome is AttemptOutcome.TIMEOUT
    wait_until(nothing_left, "everything of the task is gone")


def test_task_that_ignores_sigterm_is_killed_after_a_grace_period(
    runner: ProcessRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.execution.processes.process.KILL_GRACE", 0.2)
    end = run(runner, "trap '' TERM; while :; do sleep 0.05; done", timeout=0.2)
    assert end.outcome is AttemptOutcome.TIMEOUT
    wait_until(nothing_left, "everything of the task is gone")


def test_cancel_ends_what_escaped_by_double_fork_and_setsid(runner: ProcessRunner, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    runner.start(time.time(), 1, 1, f"setsid sh -c '(sleep 600 & echo $! > {ready}; sleep 600) &'; sleep 600")
    wait_until(lambda: ready.exists() and bool(ready.read_text().strip()), "the escaped process runs")
    escaped = int(ready.read_text())
    runner.kill(1, AttemptOutcome.CANCELLED, "cancelled")
    assert finish(runner).outcome is AttemptOutcome.CANCELLED
    wait_until(nothing_left, "everything of the task is gone")
    wait_until(lambda: not os.path.exists(f"/proc/{escaped}/exe"), "the escaped process is gone")


def test_background_process_does_not_outlive_its_task(runner: ProcessRunner) -> None:
    end = run(runner, "sleep 600 > /dev/null 2>&1 & echo $!")
    pid = int(output(runner, end))
    wait_until(lambda: not os.path.exists(f"/proc/{pid}/exe"), "the background process is gone")


def test_table_names_pid_and_start_moment_of_what_runs(runner: ProcessRunner, tmp_path: Path) -> None:
    started = runner.start(time.time(), 1, 1, "sleep 600")
    assert isinstance(started, Running)
    assert (started.pid, started.boot_time) in read_table(str(tmp_path / "table"))
    assert started_at(started.pid, started.boot_time)
    assert not started_at(started.pid, started.boot_time - 5)
    assert not started_at(os.getpid(), started.boot_time)


def test_silent_tasks_share_a_slot_and_leave_no_files(runner: ProcessRunner) -> None:
    for _ in range(5):
        end = run(runner, "true")
        runner.slots.give_back(end.running.slot)
    assert len(runner.slots.descriptors) == 1
