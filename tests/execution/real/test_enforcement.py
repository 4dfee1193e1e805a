"""Limits are held: whoever exceeds one ends as a whole tree, and nobody else notices.

Each test runs with control groups as this machine permits them, without any (memory is then watched), with the groups
of version 2 (which here may only contain processes), and with the launcher in Python.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.execution.processes.launcher_client import RECORD, clear_groups
from support.command import wait_until
from support.launching import MEBIBYTE, Ended, Launching, compile_program, launching

HOG = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* hog MEBIBYTES MILLISECONDS: takes memory as quickly as it can, never more than 2 GB, and keeps it for a while. */
int main(int count, char **words) {
    int wanted = atoi(words[1]) < 2048 ? atoi(words[1]) : 2048;
    (void)count;
    for (int taken = 0; taken < wanted; taken++) memset(malloc(1 << 20), 1, 1 << 20);
    usleep((useconds_t)atoi(words[2]) * 1000);
    return 0;
}
"""
MODES = {
    "groups": {"SHOAL_LAUNCHER": "native"},
    "sampling": {"SHOAL_LAUNCHER": "native", "SHOAL_CGROUPS": "off"},
    "version 2": {"SHOAL_LAUNCHER": "native", "SHOAL_CGROUPS": "v2"},
    "python": {"SHOAL_LAUNCHER": "python"},
}


@pytest.fixture(scope="module")
def hog(tmp_path_factory: pytest.TempPathFactory) -> str:
    return compile_program(tmp_path_factory.mktemp("hog"), "hog", HOG)


@pytest.fixture(params=list(MODES))
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in MODES[request.param].items():
        monkeypatch.setenv(name, value)
    return str(request.param)


@pytest.fixture
def launcher(mode: str, tmp_path: Path) -> Iterator[Launching]:
    with launching(tmp_path, f"enforce{os.getpid()}") as made:
        yield made


def has_groups(launcher: Launching) -> bool:
    """Whether the launcher has made control groups; it does with the first task that has a limit."""
    return (launcher.running / RECORD).exists()


def can_limit(launcher: Launching) -> bool:
    """Whether they hold tasks to their memory."""
    if not has_groups(launcher):
        return False
    base = Path((launcher.running / RECORD).read_text())
    return any(any(base.glob(f"*/{name}")) for name in ("memory.max", "memory.limit_in_bytes"))


def alive(token: str) -> list[int]:
    """Pids of processes with this word in their command line."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path("/proc", name, "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if token.encode() in words:
            found.append(int(name))
    return found


def nap(number: int) -> str:
    """A duration that nobody else sleeps for."""
    return f"600.{os.getpid()}{number:03d}"


def test_task_above_its_memory_limit_is_killed_and_reported(launcher: Launching, hog: str) -> None:
    end = launcher.execute(f"{hog} 400 60000", memory=100 * MEBIBYTE)
    assert end.outcome == "exhausted"
    assert "its 100 MiB" in end.message and "of memory" in end.message and end.message.endswith(" s")
    assert end.ended - end.started < 30


def test_task_within_its_memory_limit_is_left_alone(launcher: Launching, hog: str) -> None:
    for size in (5, 50, 200):
        assert launcher.execute(f"{hog} {size} 150", memory=(size + size // 50 + 2) * MEBIBYTE).outcome == "ok"


def test_memory_bomb_gets_no_further_than_its_limit(launcher: Launching, hog: str) -> None:
    launcher.execute("true", memory=MEBIBYTE * 64)
    end = launcher.execute(f"{hog} 2048 60000", memory=64 * MEBIBYTE)
    assert end.outcome == "exhausted"
    if can_limit(launcher):
        assert end.max_rss < 70 * MEBIBYTE


def test_whole_tree_counts(launcher: Launching, hog: str) -> None:
    end = launcher.execute(f"{hog} 80 60000 & {hog} 80 60000 & wait", memory=120 * MEBIBYTE)
    assert end.outcome == "exhausted"


def test_task_that_would_go_on_without_its_large_child_ends_with_it(launcher: Launching, hog: str) -> None:
    token = nap(1)
    end = launcher.execute(f"{hog} 300 60000; sleep {token}", memory=100 * MEBIBYTE)
    assert end.outcome == "exhausted"
    wait_until(lambda: alive(token) == [], "everything of the task is gone")


def test_place_of_an_offender_is_as_good_as_new(launcher: Launching, hog: str) -> None:
    for _ in range(3):
        assert launcher.execute(f"{hog} 300 60000", memory=100 * MEBIBYTE).outcome == "exhausted"
        assert launcher.execute(f"{hog} 80 30", memory=100 * MEBIBYTE).outcome == "ok"
        assert launcher.execute(f"{hog} 150 30").outcome == "ok"


def test_neighbours_are_not_disturbed(launcher: Launching, hog: str) -> None:
    neighbours = launcher.start(*[f"{hog} 60 400; echo fine"] * 3, memory=100 * MEBIBYTE)
    offenders = launcher.start(*[f"{hog} 2048 60000"] * 3, memory=64 * MEBIBYTE)
    assert {end.outcome for end in launcher.wait(offenders)} == {"exhausted"}
    assert {(end.outcome, end.output_size) for end in launcher.wait(neighbours)} == {("ok", 5)}


ESCAPES = {
    "background": "sleep {0} & sleep {0}",
    "own session": "setsid sleep {0} & sleep {0}",
    "double fork": "setsid sh -c '(sleep {0} &) &'; sleep {0}",
    "many": "for i in 1 2 3 4 5 6 7 8 9; do setsid sh -c '(sleep {0} & sleep {0}) &'; done; sleep {0}",
    "deaf": "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep {0}' & while :; do sleep {0}; done",
    "no mark": "env -i /usr/bin/setsid /bin/sleep {0} & sleep {0}",
}


@pytest.mark.parametrize("how", list(ESCAPES))
def test_nothing_of_a_tree_survives_its_time_limit(launcher: Launching, how: str) -> None:
    token = nap(2)
    end = launcher.execute(ESCAPES[how].format(token), timeout=0.3)
    assert end.outcome == "timeout"
    wait_until(lambda: alive(token) == [], "everything of the task is gone")


@pytest.mark.parametrize("how", list(ESCAPES))
def test_nothing_of_a_tree_survives_its_memory_limit(launcher: Launching, hog: str, how: str) -> None:
    token = nap(3)
    end = launcher.execute(f"({ESCAPES[how].format(token)}) & sleep 0.2; {hog} 200 60000", memory=100 * MEBIBYTE)
    assert end.outcome == "exhausted"
    wait_until(lambda: alive(token) == [], "everything of the task is gone")


@pytest.mark.parametrize("how", list(ESCAPES))
def test_nothing_of_a_cancelled_tree_survives(launcher: Launching, how: str) -> None:
    token = nap(4)
    (task,) = launcher.start(ESCAPES[how].format(token))
    wait_until(lambda: len(alive(token)) >= 2, "the task and what escaped from it run")
    launcher.cancel(task)
    assert launcher.wait([task])[0].outcome == "cancelled"
    wait_until(lambda: alive(token) == [], "everything of the task is gone")


def test_escaped_process_without_a_mark_cannot_leave_its_group(launcher: Launching) -> None:
    token = nap(5)
    command = f"env -i /usr/bin/setsid /bin/sh -c '(/bin/sleep {token} &) &'; sleep {token}"
    tasks = launcher.start(command, command, timeout=0.3)
    assert [end.outcome for end in launcher.wait(tasks)] == ["timeout", "timeout"]
    wait_until(lambda: alive(token) == [], "everything of the tasks is gone")


def test_offenders_of_all_kinds_at_once(launcher: Launching, hog: str) -> None:
    token = nap(8)
    commands = [escape.format(token) for escape in ESCAPES.values()]
    late = launcher.start(*commands, timeout=0.4)
    large = launcher.start(*[f"({command}) & {hog} 2048 60000" for command in commands], memory=64 * MEBIBYTE)
    assert {end.outcome for end in launcher.wait(late)} == {"timeout"}
    assert {end.outcome for end in launcher.wait(large)} == {"exhausted"}
    wait_until(lambda: alive(token) == [], "everything of the tasks is gone")
    assert launcher.execute("true").outcome == "ok"


def grow(target: Path, more: str = "") -> str:
    """A command that writes half a mebibyte after another into files that stay small, up to 18, and would then stay.

    It writes no more than that: on a busy machine it may get far before anybody looks.
    """
    piece = f"head -c {MEBIBYTE // 2} /dev/zero"
    return f"{more} i=0; while [ $i -lt 36 ]; do {piece} > {target}.$i; i=$((i+1)); sleep 0.02; done; sleep 600"


def test_file_larger_than_the_disk_limit_ends_its_task(launcher: Launching, tmp_path: Path) -> None:
    made = tmp_path / "made"
    end = launcher.execute(f"head -c 200000000 /dev/zero > {made}; sleep 600", disk=10 * MEBIBYTE, makes=[made])
    assert end.outcome == "exhausted"
    assert re.fullmatch(r"used \d+(\.\d)? MiB of disk, more than its 10 MiB, after \d+\.\d\d s", end.message)
    assert end.disk > 10 * MEBIBYTE


@pytest.mark.parametrize("ignores", ["", "trap '' XFSZ; "])
def test_task_above_its_disk_limit_is_never_done_with_half_a_file(
    launcher: Launching, tmp_path: Path, ignores: str
) -> None:
    """A file that is no output: who is quick may not be noticed, but then nothing has been cut."""
    scratch, made = tmp_path / "scratch", tmp_path / "made"
    command = f"{ignores}head -c {40 * MEBIBYTE} /dev/zero > {scratch}; wc -c < {scratch} > {made}"
    end = launcher.execute(command, disk=10 * MEBIBYTE, makes=[made])
    assert end.outcome == "exhausted" or int(made.read_text()) == 40 * MEBIBYTE


def test_files_that_are_no_outputs_count_when_they_have_been_closed(launcher: Launching, tmp_path: Path) -> None:
    piece = f"head -c {MEBIBYTE} /dev/zero >&9; sleep 0.2; exec 9>&-"
    loop = f"i=0; while [ $i -lt 200 ]; do exec 9> {tmp_path}/scratch.$i; {piece}; i=$((i+1)); done"
    end = launcher.execute(loop, disk=10 * MEBIBYTE, makes=[tmp_path / "made"])
    assert end.outcome == "exhausted" and end.files > 5


@pytest.mark.parametrize("how", ["{0}; true", "{0}; exit 3", "sh -c '{0}' || exit 0", "setsid sh -c '{0}'; sleep 0.3"])
def test_output_above_the_disk_limit_is_noticed_whatever_the_task_makes_of_it(
    launcher: Launching, tmp_path: Path, how: str
) -> None:
    made = tmp_path / "made"
    command = how.format(f"head -c 200000000 /dev/zero > {made}")
    assert launcher.execute(command, disk=10 * MEBIBYTE, makes=[made]).outcome == "exhausted"


def test_program_that_writes_all_at_once_has_exhausted_its_disk(launcher: Launching, tmp_path: Path) -> None:
    made = tmp_path / "made"
    program = f"open('{made}', 'wb').write(bytes({50 * MEBIBYTE}))"
    end = launcher.execute(f'{sys.executable} -c "{program}"', disk=10 * MEBIBYTE, makes=[made])
    assert end.outcome == "exhausted"


def test_many_small_files_are_more_than_the_disk_limit_together(launcher: Launching, tmp_path: Path) -> None:
    made = tmp_path / "made"
    end = launcher.execute(grow(made / "f", f"mkdir {made};"), disk=10 * MEBIBYTE, makes=[made])
    assert end.outcome == "exhausted"
    assert re.fullmatch(r"used 1\d(\.\d)? MiB of disk, more than its 10 MiB, after \d+\.\d\d s", end.message)
    assert 10 * MEBIBYTE < end.disk < 20 * MEBIBYTE and end.files > 20


def test_outputs_count_together(launcher: Launching, tmp_path: Path) -> None:
    made = [tmp_path / f"made.{number}" for number in range(30)]
    end = launcher.execute(grow(tmp_path / "made"), disk=10 * MEBIBYTE, makes=made)
    assert end.outcome == "exhausted" and end.files > 20


def test_deleted_file_that_is_still_open_counts(launcher: Launching, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    halves = "; ".join(f"head -c 6000000 /dev/zero >&{number}" for number in (8, 9))
    command = f"exec 8> {hidden} 9> {hidden}.2; rm {hidden} {hidden}.2; {halves}; sleep 60"
    end = launcher.execute(command, disk=10 * MEBIBYTE)
    assert end.outcome == "exhausted" and end.disk > 10 * MEBIBYTE
    assert end.ended - end.started < 30


def test_child_in_a_session_of_its_own_is_ended_with_the_disk_it_fills(launcher: Launching, tmp_path: Path) -> None:
    token, made = nap(11), tmp_path / "made"
    writer = grow(made / "f", f"mkdir {made}; sleep {token} &")
    end = launcher.execute(f"setsid sh -c '{writer}' & sleep {token}", disk=10 * MEBIBYTE, makes=[made])
    assert end.outcome == "exhausted"
    wait_until(lambda: alive(token) == [], "everything of the task is gone")
    before = len(os.listdir(made))
    assert launcher.execute("sleep 0.1").outcome == "ok"
    assert len(os.listdir(made)) == before


def test_task_within_its_disk_limit_is_left_alone(launcher: Launching, tmp_path: Path) -> None:
    made, kept = tmp_path / "made", tmp_path / "kept"
    kept.write_bytes(bytes(30 * MEBIBYTE))
    wait_until(lambda: time.time() > kept.stat().st_ctime + 0.5, "it is older than the task")
    command = f"head -c 9000000 /dev/zero > {made}; exec 9>> {kept}; sleep 0.2"
    end = launcher.execute(command, disk=10 * MEBIBYTE, makes=[made, kept])
    assert end.outcome == "ok" and end.disk == 9_000_000, "a file that was there before is not the task's"


def test_neighbours_of_one_that_fills_the_disk_are_not_disturbed(launcher: Launching, tmp_path: Path) -> None:
    neighbours = launcher.start("sleep 0.4; echo fine", "sleep 0.4; echo fine")
    for number in range(3):
        fine = tmp_path / f"fine{number}"
        command = f"head -c 9000000 /dev/zero > {fine}; sleep 0.4; echo fine"
        neighbours += launcher.start(command, disk=10 * MEBIBYTE, makes=[fine])
    offenders = []
    for number in range(3):
        made = tmp_path / f"made{number}"
        offenders += launcher.start(grow(made / "f", f"mkdir {made};"), disk=10 * MEBIBYTE, makes=[made])
    assert {end.outcome for end in launcher.wait(offenders)} == {"exhausted"}
    assert {(end.outcome, end.output_size) for end in launcher.wait(neighbours)} == {("ok", 5)}


def test_command_that_cannot_be_started_has_failed(launcher: Launching) -> None:
    end = launcher.execute("true; true", memory=64 * MEBIBYTE, shell=["/no/such/shell"])
    assert (end.outcome, end.status) == ("failed", 127)
    assert end.message.startswith("cannot start")
    assert launcher.execute("true", memory=64 * MEBIBYTE).outcome == "ok"


def test_task_cancelled_while_it_starts_ends(launcher: Launching) -> None:
    token = nap(10)
    tasks = launcher.start(*[f"sleep {token}"] * 20, memory=64 * MEBIBYTE)
    for task in tasks:
        launcher.cancel(task)
    assert {end.outcome for end in launcher.wait(tasks)} == {"cancelled"}
    wait_until(lambda: alive(token) == [], "everything of the tasks is gone")


def test_commands_in_one_place_run_one_after_another_under_their_limits(launcher: Launching, hog: str) -> None:
    orders = [
        (task, 1, os.fsencode(f"{hog} 40 0"), -1.0, b"", b"", (60 - task) * MEBIBYTE, b"") for task in range(1, 31)
    ]
    ends: list[Ended] = []
    while orders:  # what waits behind a slow one is handed back, to be started again
        launcher.client.start(1, orders)
        told = launcher.wait([order[0] for order in orders])
        launcher.ended.clear()
        ends += [end for end in told if end.outcome != "unbegun"]
        orders = [order for order, end in zip(orders, told, strict=True) if end.outcome == "unbegun"]
    # The last ones may have as much as they need within a hair; no claim is made about those.
    assert {end.outcome for end in ends if end.task < 18} == {"ok"}
    if can_limit(launcher):  # who only looks may be too late for one that is gone at once
        assert {end.outcome for end in ends if end.task > 24} == {"exhausted"}
    moments = sorted((end.started, end.ended) for end in ends)
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(moments))


def test_files_in_memory_left_by_one_task_are_not_charged_to_the_next(launcher: Launching, hog: str) -> None:
    left = Path(f"/dev/shm/shoal-test-{os.getpid()}")
    try:
        assert launcher.execute(f"head -c 100000000 /dev/zero > {left}", memory=200 * MEBIBYTE).outcome == "ok"
        assert launcher.execute(f"{hog} 80 30", memory=100 * MEBIBYTE).outcome == "ok"
    finally:
        left.unlink(missing_ok=True)


def test_no_group_is_left_behind(mode: str, tmp_path: Path, hog: str) -> None:
    with launching(tmp_path, f"enforce{os.getpid()}") as launcher:
        launcher.wait(launcher.start(*[f"{hog} 300 60000"] * 3, memory=50 * MEBIBYTE))
        launcher.start(f"setsid sleep {nap(6)} & sleep {nap(6)}", memory=50 * MEBIBYTE)
        record = launcher.running / RECORD
        group = record.read_text() if record.exists() else ""
    assert not record.exists() and not (group and os.path.exists(group))
    assert alive(nap(6)) == []


def test_groups_of_a_killed_launcher_are_emptied_and_removed(launcher: Launching) -> None:
    token = nap(7)
    launcher.start(f"env -i /usr/bin/setsid /bin/sleep {token} & sleep {token}", memory=50 * MEBIBYTE)
    wait_until(lambda: len(alive(token)) == 2, "the task and what escaped from it run")
    record = launcher.running / RECORD
    group = record.read_text() if record.exists() else ""
    os.kill(launcher.client.pid, signal.SIGKILL)
    launcher.client.replace()
    if group:
        assert alive(token) == [] and not os.path.exists(group) and not record.exists()
    for pid in alive(token):
        os.kill(pid, signal.SIGKILL)
    assert launcher.execute("true", memory=50 * MEBIBYTE).outcome == "ok"


def test_record_that_names_no_group_of_ours_is_not_believed(tmp_path: Path) -> None:
    innocent = tmp_path / "innocent"
    innocent.mkdir()
    (innocent / "cgroup.procs").write_text(f"{os.getppid()}\n")
    (tmp_path / RECORD).write_text(str(innocent))
    clear_groups(str(tmp_path))
    assert innocent.exists()
    clear_groups(str(tmp_path / "nowhere"))
