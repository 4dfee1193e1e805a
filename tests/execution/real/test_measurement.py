"""What is measured of tasks, against programs whose needs are known; with either launcher."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.execution.processes.process import LEAST_PAUSE, LIMIT_PAUSE
from shoal.execution.processes.time_series import COLUMNS
from support.command import environment, shoal, wait_until
from support.launching import MEBIBYTE, Ended, Launching, compile_program, launching
from support.ledgers import accepted

HOG = r"""
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
/* hog MEBIBYTES MILLISECONDS|FILE [CHILDREN]: takes memory, may share it with children, and keeps it for a while, or
 * until there is a file. */
int main(int count, char **words) {
    size_t size = (size_t)atoi(words[1]) << 20;
    char *memory = malloc(size + 1);
    for (size_t at = 0; at < size; at += 4096) memory[at] = 1;
    for (int child = count > 3 ? atoi(words[3]) : 0; child > 0; child--)
        if (!fork()) break;
    if (words[2][0] == '/')
        while (access(words[2], F_OK)) usleep(5000);
    else
        usleep((useconds_t)atoi(words[2]) * 1000);
    while (wait(NULL) > 0) continue;
    return memory[size / 2] > 1;
}
"""
BURNER = r"""
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
/* burner MILLISECONDS [FILE]: uses so much CPU time, and may then wait until there is a file. */
int main(int count, char **words) {
    struct timespec used;
    do clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    while (used.tv_sec * 1000 + used.tv_nsec / 1000000 < atoi(words[1]));
    while (count > 2 && access(words[2], F_OK)) usleep(5000);
    return 0;
}
"""


@pytest.fixture(scope="module")
def hog(tmp_path_factory: pytest.TempPathFactory) -> str:
    return compile_program(tmp_path_factory.mktemp("hog"), "hog", HOG)


@pytest.fixture(scope="module")
def burner(tmp_path_factory: pytest.TempPathFactory) -> str:
    return compile_program(tmp_path_factory.mktemp("burner"), "burner", BURNER)


@pytest.fixture(params=["native", "python"])
def launcher(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launching]:
    monkeypatch.setenv("SHOAL_LAUNCHER", request.param)
    with launching(tmp_path, f"measure{os.getpid()}") as made:
        yield made


@pytest.fixture
def native(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launching]:
    monkeypatch.setenv("SHOAL_LAUNCHER", "native")
    with launching(tmp_path, f"measure{os.getpid()}") as made:
        yield made


@pytest.fixture(params=["native", "python"])
def telling(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launching]:
    """A launcher that writes down each of its looks."""
    monkeypatch.setenv("SHOAL_LAUNCHER", request.param)
    (tmp_path / "series").mkdir()
    with launching(tmp_path, f"measure{os.getpid()}", series=str(tmp_path / "series")) as made:
        yield made


def execute_until_seen(
    telling: Launching, command: str, go: Path, processes: int = 1, mebibytes: int = 0, disk: int = 0
) -> Ended:
    """Runs a command that waits for a file, which is made when there was a look at so much of it at the same time."""
    (task,) = telling.start(command, disk=disk)
    series = telling.running.parent / "series" / f"{task}.1.series"

    def is_seen() -> bool:
        lines = series.read_text().splitlines() if series.exists() else []
        rows = [line.split() for line in lines if not line.startswith("#")]
        return any(int(row[3]) >= processes and int(row[5]) >= mebibytes for row in rows if len(row) == len(COLUMNS))

    wait_until(is_seen, "the launcher has looked")
    go.touch()
    return telling.wait([task])[0]


def close_to(measured: float, known: float, least: float, share: float = 0.02) -> bool:
    return abs(measured - known) <= max(least, share * known)


def test_short_peaks_are_exact(native: Launching, hog: str) -> None:
    chance = random.Random(4)
    sizes = [chance.randint(5, 400) for _ in range(40)]
    for size in sizes:
        end = native.execute(f"{hog} {size} {chance.randint(20, 200)}")
        assert end.outcome == "ok"
        assert close_to(end.max_rss, size * MEBIBYTE, MEBIBYTE), (size, end.max_rss)
        assert close_to(end.resident, size * MEBIBYTE, MEBIBYTE), (size, end.resident)


def test_peak_of_a_task_that_is_gone_at_once_is_not_lost(native: Launching, hog: str) -> None:
    for size in (5, 20):
        assert close_to(native.execute(f"{hog} {size} 0").resident, size * MEBIBYTE, MEBIBYTE)


def test_peaks_with_a_memory_limit_are_the_same(native: Launching, hog: str) -> None:
    end = native.execute(f"{hog} 50 20", memory=100 * MEBIBYTE)
    assert end.outcome == "ok" and close_to(end.resident, 50 * MEBIBYTE, MEBIBYTE)


def test_cpu_time_is_exact(launcher: Launching, burner: str) -> None:
    for known in (20, 80, 200):
        ends = [launcher.execute(f"{burner} {known}") for _ in range(5)]
        spent = min(end.user + end.system for end in ends)  # what a virtual machine is denied may be charged to a task
        assert close_to(spent, known / 1000, 0.01), (known, ends)


def with_orphan(command: str) -> str:
    """A command that leaves this one to nobody, and goes on until it has ended and been buried."""
    orphan = f"setsid sh -c '{command} > /dev/null & echo $!'"
    return f"orphan=$({orphan}); while test -e /proc/$orphan; do sleep 0.2; done"


def test_cpu_time_of_an_orphan_is_its_tasks(telling: Launching, burner: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    end = execute_until_seen(telling, with_orphan(f"{burner} 150 {go}"), go, 3)
    assert end.outcome == "ok"
    assert 0.15 <= end.user + end.system < 0.6


def test_memory_of_an_orphan_is_its_tasks(telling: Launching, hog: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    end = execute_until_seen(telling, with_orphan(f"{hog} 80 {go}"), go, mebibytes=80)
    assert close_to(end.resident, 80 * MEBIBYTE, 3 * MEBIBYTE)


def test_memory_of_a_tree_is_that_of_all_its_processes_at_once(telling: Launching, hog: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    end = execute_until_seen(telling, f"{hog} 60 {go} & {hog} 40 {go} & wait", go, 3, 100)
    assert close_to(end.resident, 100 * MEBIBYTE, 4 * MEBIBYTE)
    assert end.virtual >= end.resident
    assert end.most_processes == end.all_processes == 3


def test_shared_pages_count_once(telling: Launching, hog: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    end = execute_until_seen(telling, f"{hog} 64 {go} 3", go, 4, 64)
    assert close_to(end.resident, 64 * MEBIBYTE, 4 * MEBIBYTE)
    assert end.most_processes == 4


def test_bytes_read_and_written(launcher: Launching, tmp_path: Path) -> None:
    data = tmp_path / "data"
    end = launcher.execute(f"head -c 8000000 /dev/zero > {data}; cat {data} > /dev/null")
    assert 16_000_000 <= end.read < 17_000_000
    kind = subprocess.run(["stat", "-f", "-c", "%T", tmp_path], capture_output=True, text=True).stdout.strip()
    assert end.written >= 8_000_000 or kind == "tmpfs", "only a file system in memory writes nothing"


def test_context_switches_are_counted(launcher: Launching) -> None:
    assert launcher.execute("for i in 1 2 3 4 5 6 7 8 9; do sleep 0.001; done").switches >= 9


def test_task_that_was_never_looked_at_reports_zeros(launcher: Launching) -> None:
    end = launcher.execute("/bin/true")
    figures = (end.virtual, end.swap, end.most_processes, end.all_processes)
    assert figures == (0, 0, 0, 0) or end.ended - end.started > LEAST_PAUSE, "nobody looks at it so soon"


def test_cores_of_a_short_task_are_cpu_time_per_wall_time(launcher: Launching, burner: str) -> None:
    def is_short() -> bool:
        """On a busy machine it may become a long one, of which less is known: then it is tried again."""
        end = launcher.execute(f"{burner} 20")
        took = end.ended - end.started
        assert took >= 1.0 or abs(end.cores - 1000 * (end.user + end.system) / took) <= 1
        return took < 1.0

    wait_until(is_short, "a task takes less than a second")


def test_cores_of_a_longer_task_are_those_of_its_busiest_second(launcher: Launching, burner: str) -> None:
    end = launcher.execute(f"{burner} 600; sleep 2")
    average = 1000 * (end.user + end.system) / (end.ended - end.started)
    assert 1.1 * average < end.cores <= 1050


def test_cores_of_processes_that_run_together_add_up(launcher: Launching, burner: str) -> None:
    end = launcher.execute(f"{burner} 1500 & setsid {burner} 1500 & wait; sleep 1")
    slowest_second = 3000 / (end.ended - end.started - 1)  # what an even share of the time would have given
    assert 0.9 * min(2000.0, slowest_second) <= end.cores <= 2100


def test_bytes_and_files_of_a_task_with_a_disk_limit_are_measured(launcher: Launching, tmp_path: Path) -> None:
    made, folder = tmp_path / "made", tmp_path / "folder"
    command = (
        f"head -c 3000000 /dev/zero > {made}; mkdir {folder}; head -c 500000 /dev/zero | tee {folder}/a > {folder}/b"
    )
    end = launcher.execute(command, disk=100 * MEBIBYTE, makes=[made, folder])
    assert (end.outcome, end.disk, end.files) == ("ok", 4_000_000, 4)


def test_what_a_task_prints_is_counted_once(telling: Launching, hog: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    command = f"head -c 6000000 /dev/zero; {hog} 1 {go}"
    end = execute_until_seen(telling, command, go, mebibytes=1, disk=10 * MEBIBYTE)
    assert (end.outcome, end.disk, end.files) == ("ok", 6_000_000, 0)


def test_what_tasks_made_stands_in_the_ledger(tmp_path: Path) -> None:
    (tmp_path / "Makeflow").write_text(
        "one two:\n\thead -c 100000 /dev/zero | tee one two > /dev/null\n"
        "folder:\n\tmkdir folder; echo 12345 > folder/a; echo 123 > folder/b\n"
        ":\n\ttrue\n"
    )
    shoal(tmp_path, "run", "Makeflow", "--quiet")
    found = sorted((record.usage.disk, record.usage.files) for record in accepted(tmp_path / "Makeflow"))
    assert found == [(0, 0), (10, 3), (200_000, 2)]


@pytest.mark.parametrize("kind", ["native", "python"])
def test_series_of_a_task_can_be_read_and_drawn(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_LAUNCHER", kind)
    (tmp_path / "wait").write_text('until test "$(grep -vc "#" told/series/0.1.series)" -ge 3; do sleep 0.05; done\n')
    (tmp_path / "Makeflow").write_text(
        "out: wait\n\thead -c 90000000 /dev/zero | tail -c 80000000 > out; sh wait 2> /dev/null\n:\n\ttrue\n"
    )
    shoal(tmp_path, "run", "Makeflow", "--quiet", "--series", "told/series")
    file = tmp_path / "told" / "series" / "0.1.series"
    (short,) = [record for record in accepted(tmp_path / "Makeflow") if record.task == 1]
    assert list(file.parent.iterdir()) == [file] or short.ended - short.started > LIMIT_PAUSE / 4, (
        "of short ones is none"
    )
    first, *comments, names = [line for line in file.read_text().splitlines() if line.startswith("#")]
    assert first.startswith("# task 0, attempt 1: head -c 90000000") and len(comments) == 2
    assert names == "#" + " ".join(COLUMNS)
    rows = [list(map(float, line.split())) for line in file.read_text().splitlines() if not line.startswith("#")]
    assert len(rows) >= 3 and {len(row) for row in rows} == {len(COLUMNS)}
    told = {name: [row[at] for row in rows] for at, name in enumerate(COLUMNS)}
    for growing in ("wall_clock", "cpu_time", "bytes_read"):
        assert told[growing] == sorted(told[growing])
    assert max(told["memory"]) >= 1 and max(told["max_concurrent_processes"]) >= 2
    shoal(tmp_path, "monitor", "--from-series", str(file), "--plot", "drawn.svg")
    assert (tmp_path / "drawn.svg").read_text().count("<polyline") == 2


@pytest.mark.parametrize("kind", ["native", "python"])
def test_measurement_can_be_switched_off(kind: str, hog: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_LAUNCHER", kind)
    monkeypatch.setenv("SHOAL_MEASURE", "off")
    with launching(tmp_path, f"measure{os.getpid()}") as launcher:
        end = launcher.execute("head -c 1000000 /dev/zero > /dev/null; sleep 0.3")
        assert (end.outcome, end.read, end.virtual, end.most_processes) == ("ok", 0, 0, 0)
        assert end.max_rss > 0 or kind == "python", "what wait4 tells is known all the same"
        end = launcher.execute(f"{hog} 60 60000", memory=20 * MEBIBYTE)
        assert end.outcome == "exhausted", "limits are held all the same"


HIDING = "mount --bind {0} /proc && mount --bind {0} /sys/fs/cgroup && exec {1} -m shoal run Makeflow --quiet"


@pytest.mark.parametrize("kind", ["native", "python"])
@pytest.mark.parametrize("hidden", [True, False])
def test_run_without_proc_and_groups_measures_less_and_succeeds(kind: str, hidden: bool, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "Makeflow").write_text(
        "MEMORY=64\nDISK=20\na:\n\thead -c 1000000 /dev/zero > a; sleep 1\n"
        "b: a\n\t(setsid sleep 0.1 & sleep 0.2); cat a > b\n"
    )
    script = HIDING if hidden else HIDING.rpartition("&& ")[2]
    words = ["unshare", "--mount", "sh", "-c", script.format(tmp_path / "empty", sys.executable)]
    impossible = environment({"SHOAL_LAUNCHER": kind, "SHOAL_CGROUPS": "v3"})
    done = subprocess.run(words, cwd=tmp_path, env=impossible, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    first, second = accepted(tmp_path / "Makeflow")
    assert first.usage.disk == second.usage.disk == 1_000_000
    assert bool(first.usage.processes) is not hidden
    assert first.user + first.system > 0
