"""The monitor against real commands: figures of known hogs, limits, escapes, signals, and the original beside it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.compat.resource_monitor.process_tree import start as start_command
from shoal.compat.resource_monitor.start import EXHAUSTED, MONITOR_FAILED, OVER_LIMIT, OVER_WALL_TIME, quick_start
from support.command import environment, shoal, wait_until

MONITOR = [sys.executable, "-m", "shoal.monitor"]
PYTHON = [sys.executable, "-S", "-E", "-c"]


def monitor(directory: Path, *words: str, start: list[str] = MONITOR) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*start, "-O", "out", *words], cwd=directory, env=environment(), capture_output=True, text=True, timeout=60
    )


def measured(directory: Path, *words: str, expect: int = 0) -> dict[str, Any]:
    """The summary of a run of the monitor."""
    done = monitor(directory, *words)
    assert done.returncode == expect, done.stderr
    summary: dict[str, Any] = json.loads((directory / "out.summary").read_text())
    return summary


def hog(megabytes: float, then: str = "pass") -> list[str]:
    """A command that touches so much memory."""
    return [*PYTHON, f"import os, time; x = bytearray(int({megabytes} * 2**20)); {then}"]


SERIES = ("--with-time-series", "-i", "0.05")
SEEN = """
import os, time

def wait(looks, processes=1, megabytes=0):
    while len(list(filter(lambda row: int(row[3]) >= processes and int(row[5]) >= megabytes, rows()))) < looks:
        time.sleep(0.02)

def rows():
    lines = open("out.series").read().splitlines() if os.path.exists("out.series") else []
    return [line.split() for line in lines if line.count(" ") == 14 and not line.startswith("#")]
"""
"""A module for commands that go on until the monitor has looked at them, as its series says."""


Begin = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Starts the monitor in the background; it and its command are ended with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: str) -> subprocess.Popen[bytes]:
        command = [*MONITOR, "-O", "out", *words]
        started.append(subprocess.Popen(command, cwd=tmp_path, env=environment(), process_group=0))
        return started[-1]

    yield start
    for process in started:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def holds(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def alive(pid: int) -> bool:
    try:
        return b") Z " not in Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_the_exit_status_shows_how_the_command_ended(tmp_path: Path) -> None:
    assert measured(tmp_path, "--", "true")["exit_type"] == "normal"
    failed = measured(tmp_path, "--sh", "exit 7", expect=1)
    assert (failed["exit_status"], failed["exit_type"], failed["command"]) == (7, "normal", "exit 7")
    killed = measured(tmp_path, "--sh", "kill -9 $$", expect=1)
    assert (killed["exit_status"], killed["exit_type"], killed["signal"]) == (137, "signal", 9)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--", "no-such-program"], "program 'no-such-program' not found"),
        (["--", "./plain"], "'./plain' cannot be executed"),
        (["-L", "memory: much", "--", "true"], "'much' is not a valid limit of memory"),
        (["-l", "missing", "--", "true"], "missing: cannot read limits"),
        (["--bogus"], "unknown option '--bogus'"),
        (["-O", "plain/x", "--", "true"], "cannot write 'plain/x.summary'"),
    ],
)
def test_what_the_monitor_cannot_do_is_one_sentence(tmp_path: Path, words: list[str], said: str) -> None:
    (tmp_path / "plain").write_text("text")
    done = monitor(tmp_path, *words)
    assert done.returncode == MONITOR_FAILED
    assert done.stderr.startswith(f"shoal monitor: {said}")
    assert done.stderr.count("\n") == 1


def test_short_peaks_of_memory_are_not_missed(tmp_path: Path) -> None:
    base = measured(tmp_path, "--", *hog(0, "time.sleep(0.05)"))["memory"][0]
    for megabytes in (20, 60, 150):
        peak = measured(tmp_path, "--", *hog(megabytes, "del x"))["memory"][0]
        assert abs(peak - base - megabytes) <= 3, (megabytes, base, peak)


def test_small_commands_are_distinguished_from_the_monitor_itself(tmp_path: Path) -> None:
    assert measured(tmp_path, "--", "sleep", "0.2")["memory"][0] <= 5


def test_what_a_small_command_inherits_is_never_taken_for_its_own() -> None:
    for _ in range(50):  # the kernel's counts of pages are off by a little, and differently each time
        command = start_command("/bin/true", ["true"], [])
        _, status, spent = os.wait4(command.pid, 0)
        assert status == 0 and spent.ru_maxrss * 1024 <= command.peak_floor


def test_cpu_time_of_grandchildren_is_counted(tmp_path: Path) -> None:
    spin = "import time\nwhile time.process_time() < 0.4: pass"
    summary = measured(tmp_path, "--sh", f"{sys.executable} -S -E -c '{spin}'; {sys.executable} -S -E -c '{spin}'; :")
    assert 0.8 <= summary["cpu_time"][0] <= 1.1
    wall = summary["wall_time"][0]
    assert summary["cores"][0] == summary["cores_avg"][0] == pytest.approx(summary["cpu_time"][0] / wall, abs=0.01)


def test_traffic_of_a_command_of_milliseconds_is_counted(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(9_000_000))
    summary = measured(tmp_path, "--sh", "cat data data > copy; :")
    assert summary["bytes_read"][0] == 17
    assert summary["bytes_written"][0] in (0, 17)  # a file system in memory writes nothing
    assert summary["disk"][0] == 26


def test_disk_and_files_are_those_of_the_named_directories(tmp_path: Path) -> None:
    (tmp_path / "a" / "deep").mkdir(parents=True)
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "deep" / "file").write_bytes(bytes(3 << 20))
    (tmp_path / "a" / "link").symlink_to("/")
    command = "head -c 2097152 /dev/zero > b/made"
    summary = measured(tmp_path, "--measure-dir", "a", "--measure-dir=b", "--sh", command)
    assert (summary["disk"][0], summary["total_files"][0]) == (5, 5)
    assert measured(tmp_path, "--without-disk-footprint", "--", "true")["disk"] == [0, "MB"]


def test_a_shared_page_is_counted_once(tmp_path: Path) -> None:
    (tmp_path / "seen.py").write_text(SEEN)
    forks = "import seen; kids = [os.fork() or (time.sleep(600), os._exit(0)) for _ in range(4)]; "
    forks += "seen.wait(1, 5, 100); [os.kill(kid, 9) for kid in kids]; [os.wait() for _ in range(4)]"
    summary = measured(tmp_path, *SERIES, "-L", "memory: 200", "--", *hog(100, forks))
    assert 100 <= summary["memory"][0] <= 140
    assert summary["max_concurrent_processes"][0] == summary["total_processes"][0] == 5


def test_processes_that_ran_at_the_same_time_are_added_up(tmp_path: Path) -> None:
    (tmp_path / "seen.py").write_text(SEEN)
    one = " ".join([*PYTHON, f"'{hog(50, 'import seen; seen.wait(1, 3, 100)')[-1]}'"])
    summary = measured(tmp_path, *SERIES, "--sh", f"{one} & {one} & wait")
    assert 100 <= summary["memory"][0] <= 130


def test_more_memory_than_allowed_ends_the_command(tmp_path: Path) -> None:
    done = monitor(tmp_path, "-L", "memory: 60", "--", *hog(100, "time.sleep(60)"))
    assert done.returncode == OVER_LIMIT
    assert "is over the limit of 60 MB" in done.stderr
    summary = json.loads((tmp_path / "out.summary").read_text())
    assert (summary["exit_status"], summary["exit_type"]) == (143, "limits")
    assert summary["limits_exceeded"] == {"memory": [60, "MB"]}
    assert summary["wall_time"][0] < 30


def test_a_peak_over_the_limit_is_an_offence_even_if_it_was_short(tmp_path: Path) -> None:
    assert measured(tmp_path, "-L", "memory: 60", "--", *hog(100, "del x"), expect=OVER_LIMIT)["exit_type"] == "limits"


def test_wall_time_has_an_exit_status_of_its_own(tmp_path: Path) -> None:
    summary = measured(tmp_path, "-L", "wall_time: 0.3", "-i", "30", "--", "sleep", "60", expect=OVER_WALL_TIME)
    assert 0.3 <= summary["wall_time"][0] < 30, "it is not looked at every 30 s only"
    assert OVER_WALL_TIME in EXHAUSTED


def test_more_disk_than_allowed_ends_the_command(tmp_path: Path) -> None:
    writes = "head -c 5000000 /dev/zero > big; sleep 60"
    assert measured(tmp_path, "-L", "disk: 2", "--sh", writes, expect=OVER_LIMIT)["limits_exceeded"] == {
        "disk": [2, "MB"]
    }


def test_measuring_only_ends_nothing(tmp_path: Path) -> None:
    summary = measured(tmp_path, "--measure-only", "-L", "memory: 60", "--", *hog(100))
    assert (summary["exit_status"], summary["exit_type"]) == (0, "limits")


def test_limits_are_read_from_a_summary(tmp_path: Path) -> None:
    (tmp_path / "before").write_text(json.dumps({"host": "h", "memory": [60, "MB"], "start": [1, "s"]}))
    measured(tmp_path, "-l", "before", "--", *hog(100), expect=OVER_LIMIT)


def test_what_escaped_from_its_session_is_measured_and_ended(tmp_path: Path) -> None:
    escape = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        open('pid', 'w').write(str(os.getpid())); x = bytearray(100 * 2**20); time.sleep(60)\n"
        "    os._exit(0)\n"
        "os.wait(); time.sleep(60)"
    )
    measured(tmp_path, "-L", "memory: 60", "--", *PYTHON, escape, expect=OVER_LIMIT)
    assert not alive(int((tmp_path / "pid").read_text()))


def test_what_was_started_before_is_neither_measured_nor_ended(tmp_path: Path) -> None:
    words = " ".join([sys.executable, "-m", "shoal.monitor", "-O", "out", "-L", "'memory: 60'", "--", "sleep", "0.3"])
    earlier = " ".join([*PYTHON, f"'{hog(100, 'time.sleep(60)')[-1]}'"])
    done = subprocess.run(
        ["/bin/sh", "-c", f"{earlier} > log & echo $!; exec {words}"], cwd=tmp_path, stdout=subprocess.PIPE
    )
    pid = int(done.stdout.split()[0])
    assert done.returncode == 0
    assert alive(pid)
    os.kill(pid, signal.SIGKILL)


def test_the_end_of_the_command_is_noticed_even_if_such_signals_were_ignored(tmp_path: Path) -> None:
    words = " ".join([*MONITOR, "-O", "out", "--sh", "'exit 4'"])
    done = subprocess.run(["/bin/bash", "-c", f"trap '' CHLD INT; exec {words}"], cwd=tmp_path, timeout=60)
    assert done.returncode == 1
    assert json.loads((tmp_path / "out.summary").read_text())["exit_status"] == 4


def test_a_signal_reaches_the_command(tmp_path: Path, begin: Begin) -> None:
    script = "trap 'exit 5' TERM; echo ready > ready; while :; do sleep 0.01; done"
    started = begin("--sh", script)
    wait_until(lambda: holds(tmp_path / "ready"), "the command begins")
    started.send_signal(signal.SIGTERM)
    assert started.wait(60) == 1
    assert json.loads((tmp_path / "out.summary").read_text())["exit_status"] == 5


def test_a_command_that_will_not_end_is_ended_when_asked_twice(tmp_path: Path, begin: Begin) -> None:
    script = "trap '' TERM; echo $$ > pid; while :; do sleep 0.01; done"
    started = begin("--sh", script)
    wait_until(lambda: holds(tmp_path / "pid"), "the command begins")

    def asked() -> bool:
        started.send_signal(signal.SIGTERM)
        return started.poll() is not None

    wait_until(asked, "the monitor ends")
    assert not alive(int((tmp_path / "pid").read_text()))
    assert json.loads((tmp_path / "out.summary").read_text())["exit_type"] == "signal"


def test_the_command_dies_with_the_monitor(tmp_path: Path, begin: Begin) -> None:
    script = "echo $$ > pid; exec sleep 600"
    started = begin("--sh", script)
    wait_until(lambda: holds(tmp_path / "pid"), "the command begins")
    started.kill()
    started.wait()
    wait_until(lambda: not alive(int((tmp_path / "pid").read_text())), "the command is gone")


def test_the_command_has_our_input_output_and_signals(tmp_path: Path) -> None:
    show = "import signal; print(signal.getsignal(13), signal.pthread_sigmask(0, []), input())"
    done = subprocess.run(
        [*MONITOR, "-O", "out", "--", *PYTHON, f"import sys; {show}; print('oops', file=sys.stderr)"],
        cwd=tmp_path,
        env=environment(),
        input="hello\n",
        capture_output=True,
        text=True,
    )
    plain = subprocess.run([*PYTHON, show], input="hello\n", capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (plain.stdout, "oops\n")


def test_the_series_can_be_followed_while_the_command_runs(tmp_path: Path, begin: Begin) -> None:
    series = tmp_path / "out.series"
    started = begin("--with-time-series", "-i", "0.01", "--sh", "while ! test -e stop; do sleep 0.01; done")
    wait_until(lambda: series.exists() and series.read_text().count("\n") > 8, "rows appear")
    (tmp_path / "stop").touch()
    assert started.wait(60) == 0
    rows = [line.split() for line in series.read_text().splitlines() if not line.startswith("#")]
    assert {len(row) for row in rows} == {15}
    assert [float(row[0]) for row in rows] == sorted(float(row[0]) for row in rows)


def test_files_that_were_open_are_listed(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("text")
    (tmp_path / "seen.py").write_text(SEEN)
    command = " ".join([*PYTHON, "'import seen; seen.wait(5)' < in > made"])
    summary = measured(tmp_path, "--with-inotify", *SERIES, "--sh", command)
    assert [str(tmp_path / "in"), 1] in summary["input_files"]
    assert [str(tmp_path / "made"), 0] in summary["output_files"]
    assert str(tmp_path / "made") in (tmp_path / "out.files").read_text()


def test_scripts_and_programs_are_told_apart(tmp_path: Path) -> None:
    for name, text in (("script", "#!/bin/sh -e\necho a\n"), ("bare", "echo b\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    assert measured(tmp_path, "--", "./script")["executable_type"] == "#!/bin/sh -e"
    assert measured(tmp_path, "--", "./bare")["executable_type"] == "unknown"
    assert measured(tmp_path, "--", "sh", "-c", ":")["executable_type"] == "dynamic"


def test_the_directory_of_the_output_is_made(tmp_path: Path) -> None:
    monitor(tmp_path, "-O", "new/deep/rule-1", "--no-pprint", "--", "true")
    text = (tmp_path / "new" / "deep" / "rule-1.summary").read_text()
    assert text.count("\n") == 1
    assert json.loads(text)["exit_status"] == 0


def test_the_quick_start_does_the_same_without_what_takes_long_to_load(tmp_path: Path) -> None:
    done = monitor(tmp_path, "--sh", "exit 3", start=quick_start())
    assert done.returncode == 1
    assert json.loads((tmp_path / "out.summary").read_text())["exit_status"] == 3
    slow = "{'argparse', 'json', 'msgspec', 'dataclasses', 'subprocess', 'typing'}"
    loads = f"import sys, shoal.compat.resource_monitor.run; print({slow} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", loads], capture_output=True, text=True).stdout == "set()\n"


def test_shoal_monitor_is_the_same_for_people(tmp_path: Path) -> None:
    done = shoal(
        tmp_path, "monitor", "-O", "out", "-L", "memory: 4096", "--plot", "p.svg", "--", "echo", "-h", "--help"
    )
    assert done.stdout == "-h --help\n"
    summary = json.loads((tmp_path / "out.summary").read_text())
    assert summary["command"] == "echo -h --help"
    assert (tmp_path / "p.svg").read_text().startswith("<svg")
    refused = shoal(tmp_path, "monitor", "--intervall", "3", "--", "true", expect=1)
    assert "did you mean '--interval'?" in refused.stderr


@pytest.mark.skipif(shutil.which("resource_monitor") is None, reason="Debian's cctools are not installed")
def test_the_original_says_the_same_under_the_same_names(tmp_path: Path) -> None:
    spin = "import time; x = bytearray(80 * 2**20)\nwhile time.process_time() < 1.2: pass"
    words = ["-O", "out", "-i", "1", "-V", "category:c", "-L", "gpus: 1", "--", *PYTHON, spin]
    (tmp_path / "data").write_bytes(bytes(1 << 20))
    pair = []
    for start in (["resource_monitor"], MONITOR):
        done = subprocess.run([*start, *words], cwd=tmp_path, env=environment(), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        # The original does not escape what it quotes, so its command is no JSON.
        text = "\n".join(
            line for line in (tmp_path / "out.summary").read_text().splitlines() if '"command":' not in line
        )
        pair.append(json.loads(text))
    theirs, ours = pair
    assert [name for name in ours if name != "command"] == list(theirs)
    for name, value in theirs.items():
        assert not isinstance(value, list) or value[1] == ours[name][1], name
    assert set(theirs["peak_times"]) - {"machine_load"} <= set(ours["peak_times"])
    assert abs(theirs["memory"][0] - ours["memory"][0]) <= 6
    assert ours["cpu_time"][0] == pytest.approx(theirs["cpu_time"][0], abs=0.25)
    for name in ("category", "host", "executable_type", "exit_status", "exit_type", "gpus", "machine_cpus"):
        assert ours[name] == theirs[name], name
