"""How a launcher starts a command and what it leaves behind; with the compiled launcher and with the one in Python."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.execution.processes.process_table import read_small
from shoal.execution.processes.shell import words_of_shell
from support.command import wait_until
from support.launching import MEBIBYTE, Ended, Launching, launching

STRICT = ["/bin/sh", "-eu"]


@pytest.fixture(params=["native", "python"], autouse=True)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SHOAL_LAUNCHER", request.param)
    return str(request.param)


@pytest.fixture
def launcher(kind: str, tmp_path: Path) -> Iterator[Launching]:
    with launching(tmp_path, f"start{os.getpid()}") as made:
        yield made


def output(tmp_path: Path, end: Ended) -> str:
    assert end.outcome == "ok", end
    return (tmp_path / "output").read_bytes()[end.output_at :][: end.output_size].decode()


def tool(directory: Path, word: str, name: str = "shoal-test-tool") -> Path:
    """A program of its own that says a word."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/sh\necho {word}\n")
    path.chmod(0o755)
    return path


# ---- search path ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["shoal-test-tool", "shoal-test-tool; true"])
def test_search_path_of_a_task_counts_with_and_without_a_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    tool(tmp_path / "ours", "ours")
    tool(tmp_path / "its", "its")
    rest = os.environ["PATH"]
    monkeypatch.setenv("PATH", f"{tmp_path}/ours:{rest}")
    with launching(tmp_path, f"path{os.getpid()}") as launcher:
        said = [output(tmp_path, launcher.execute(command))]
        said.append(output(tmp_path, launcher.execute(command, variables={"PATH": f"{tmp_path}/its:{rest}"})))
        said.append(output(tmp_path, launcher.execute(command)))
        missing = launcher.execute(command.removesuffix("; true"), variables={"PATH": "/no/such/directory"})
    assert said == ["ours\n", "its\n", "ours\n"]
    assert (missing.outcome, missing.status) == ("failed", 127)


def test_relative_search_path_means_the_directory_of_the_task(launcher: Launching, tmp_path: Path) -> None:
    tool(tmp_path / "place" / "bin", "there")
    path = {"PATH": "bin:/usr/bin:/bin"}
    for command in ("shoal-test-tool", "shoal-test-tool a/b"):
        end = launcher.execute(command, variables=path, directory=tmp_path / "place")
        assert output(tmp_path, end) == "there\n"


def test_home_in_a_search_path_is_what_the_shell_takes_it_for(launcher: Launching, tmp_path: Path) -> None:
    """Otherwise a command and the same one with a redirection would take different programs."""
    tool(tmp_path / "bin", "of the user")
    variables = {"PATH": "~/bin:/usr/bin:/bin", "HOME": str(tmp_path)}
    for command in ("shoal-test-tool", "shoal-test-tool > /dev/stdout"):
        end = launcher.execute(command, shell=["/bin/bash", "-eu"], variables=variables)
        assert output(tmp_path, end) == "of the user\n"


# ---- shells --------------------------------------------------------------------------------------------------------


def test_shell_of_an_order_runs_its_command(launcher: Launching, tmp_path: Path) -> None:
    failing = "false; echo on"
    assert output(tmp_path, launcher.execute(failing)) == "on\n"
    assert launcher.execute(failing, shell=STRICT).outcome == "failed"
    assert launcher.execute("echo $not_set_anywhere", shell=STRICT).outcome == "failed"
    elsewhere = launcher.execute(failing, shell=STRICT, directory=tmp_path)
    assert elsewhere.outcome == "failed"


def test_command_without_shell_syntax_does_without_a_shell_unless_it_must_not(
    launcher: Launching, tmp_path: Path
) -> None:
    shell = tool(tmp_path, "'the shell'", "shell")
    assert output(tmp_path, launcher.execute("echo plain", shell=[str(shell)])) == "plain\n"
    assert output(tmp_path, launcher.execute("echo $x", shell=[str(shell)])) == "the shell\n"
    assert output(tmp_path, launcher.execute("echo plain", shell=["", str(shell)])) == "the shell\n"


def test_shell_that_is_not_there_is_named(launcher: Launching) -> None:
    end = launcher.execute("echo $HOME", shell=["/no/such/shell"])
    assert (end.outcome, end.message) == ("failed", "cannot start /no/such/shell: No such file or directory")


# ---- long commands -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", [[], STRICT, ["", "/bin/sh"]])
@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_command_longer_than_an_argument_may_be_runs(
    launcher: Launching, tmp_path: Path, shell: list[str], is_elsewhere: bool
) -> None:
    names = " ".join(f"some-rather-long-directory/some-rather-long-name-{number:05d}.txt" for number in range(4000))
    command = f"printf '%s\\n' {names} | wc -l; echo 'last line'"
    assert len(command) > 200_000
    directory = tmp_path / "elsewhere"
    directory.mkdir()
    end = launcher.execute(command, shell=shell, directory=directory if is_elsewhere else None)
    assert output(tmp_path, end).split() == ["4000", "last", "line"]
    assert not list(launcher.running.glob("*.command")), "the file with the command is gone"


def test_file_with_a_long_command_goes_with_the_launcher(tmp_path: Path) -> None:
    with launching(tmp_path, f"gone{os.getpid()}") as launcher:
        launcher.start(f": {'x' * 300_000}; sleep 600")
        wait_until(lambda: bool(list(launcher.running.glob("*.command"))), "it has been written")
        running = launcher.running
    assert not list(running.glob("*.command"))


def test_long_command_that_needs_no_shell_runs(launcher: Launching, tmp_path: Path) -> None:
    words = " ".join(f"w{number:06d}" for number in range(20_000))
    assert output(tmp_path, launcher.execute(f"echo {words}")) == f"{words}\n"


def test_one_word_that_is_too_long_is_a_failure_of_the_task(launcher: Launching) -> None:
    end = launcher.execute(f"/bin/true {'x' * 300_000}")
    assert (end.outcome, end.status) == ("failed", 126)
    assert b"rgument list too long" in end.tail
    assert launcher.execute("true").outcome == "ok"


def test_long_command_under_a_memory_limit_runs(launcher: Launching, tmp_path: Path) -> None:
    end = launcher.execute(f": {'x' * 300_000}; echo fine", memory=100 * MEBIBYTE)
    assert output(tmp_path, end) == "fine\n"


# ---- what leaves its task ------------------------------------------------------------------------------------------

CHATTER = "while :; do echo stray; sleep 0.02; done"
LEAVES = {
    "own session": "env -i setsid sh -c '{0}' &",
    "double fork": "env -i setsid sh -c '({0}) & ' &",
    "child of one that is silent": "env -i setsid sh -c '({0}) & exec > /dev/null 2>&1; sleep {1}' &",
}


def alive(token: str) -> list[int]:
    """Pids of processes that have this text in their command line."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        if token.encode() in read_small(f"/proc/{name}/cmdline"):
            found.append(int(name))
    return found


@pytest.mark.parametrize("how", list(LEAVES))
def test_what_leaves_its_task_ends_with_it_and_prints_into_no_other(
    launcher: Launching, tmp_path: Path, how: str
) -> None:
    token = f"600.{os.getpid()}77"
    begun = tmp_path / "begun"
    escape = LEAVES[how].format(f"touch {begun}; : {token}; {CHATTER}", token)
    (other,) = launcher.start("while ! test -e end; do sleep 0.02; done", directory=tmp_path)
    end = launcher.execute(f"{escape} while ! test -e {begun}; do sleep 0.02; done; echo its own")
    assert "its own\n" in output(tmp_path, end)
    for _ in range(3):
        assert output(tmp_path, launcher.execute("sleep 0.1; echo next")) == "next\n"
    wait_until(lambda: alive(f": {token}") == [], "what has left is gone")
    (tmp_path / "end").touch()
    assert launcher.wait([other])[0].outcome == "ok"


def test_orphan_that_shows_nothing_of_its_task_ends_with_it_if_no_other_runs(
    launcher: Launching, tmp_path: Path
) -> None:
    token = f"600.{os.getpid()}78"
    assert launcher.execute("true").outcome == "ok"
    orphan = f"env -i setsid sh -c 'touch begun; exec sleep {token}' > /dev/null 2>&1 &"
    end = launcher.execute(f"{orphan} while ! test -e begun; do sleep 0.02; done", directory=tmp_path)
    assert end.outcome == "ok"
    wait_until(lambda: alive(token) == [], "what has left is gone")


def test_orphans_of_a_task_that_runs_are_left_alone(launcher: Launching, tmp_path: Path) -> None:
    """Others end meanwhile, and each time the launcher finds a child that it has not started."""
    daemon = f"cd {tmp_path}; while ! test -e end; do sleep 0.02; done; echo daemon; touch said"
    both = f"(env -i setsid sh -c '{daemon}' &); touch ready; while ! test -e said; do sleep 0.02; done"
    (task,) = launcher.start(both, directory=tmp_path)
    wait_until((tmp_path / "ready").exists, "the daemon has been started")
    for _ in range(5):
        assert launcher.execute("echo short").outcome == "ok"
    (tmp_path / "end").touch()
    assert output(tmp_path, launcher.wait([task])[0]) == "daemon\n"


# ---- descriptors ---------------------------------------------------------------------------------------------------

LIMITED = """
import os, resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
from support.launching import launching
with launching(Path(sys.argv[3]), f"few{os.getpid()}") as launcher:
    ends = launcher.wait(launcher.start(*["sleep 0.05; ulimit -S -n"] * int(sys.argv[4])))
print({(end.outcome, end.message) for end in ends})
print(Path(sys.argv[3], "output").read_text().split()[0])
"""


@pytest.mark.parametrize(("soft", "hard", "tasks"), [(64, 64, 150), (64, 4096, 100)])
def test_tasks_wait_where_descriptors_are_short(tmp_path: Path, soft: int, hard: int, tasks: int) -> None:
    found = subprocess.run(
        [sys.executable, "-c", LIMITED, str(soft), str(hard), str(tmp_path), str(tasks)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        timeout=300,
    )
    assert found.stdout.splitlines() == ["{('ok', '')}", "64"], found.stderr


def test_launcher_raises_its_limit_of_descriptors(launcher: Launching) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert launcher.execute("true").outcome == "ok"
    assert resource.prlimit(launcher.client.pid, resource.RLIMIT_NOFILE) == (hard, hard)


# ---- lists of the system -------------------------------------------------------------------------------------------


def test_lists_below_proc_are_read_to_their_end() -> None:
    text = read_small("/proc/self/smaps")
    assert len(text) > 4 * 4096 and text.count(b"VmFlags:") > 20
    assert b"[stack]" in text, "it stands near the end"


MANY_MOUNTS = """
set -e
mount --make-rprivate /
group=$(awk '$9 == "cgroup" && $NF ~ /memory/ { print $5 }' /proc/self/mountinfo)
umount "$group"
mkdir "$1/mounts"
for i in $(seq 100); do mkdir "$1/mounts/a-directory-$i"; mount --bind "$1" "$1/mounts/a-directory-$i"; done
mount -t cgroup -o memory cgroup "$group"
test "$(grep -c . /proc/self/mountinfo)" -gt 100
exec "$2" -c 'import sys; from pathlib import Path
from support.launching import launching
from shoal.execution.processes.launcher_client import RECORD
with launching(Path(sys.argv[1]), "mounts") as launcher:
    launcher.execute("true", memory=1 << 26)
    print((launcher.running / RECORD).exists())' "$1"
"""


def test_control_groups_are_found_behind_many_mounts(kind: str, tmp_path: Path) -> None:
    if kind == "python":
        return  # it makes no groups
    with launching(tmp_path, f"groups{os.getpid()}") as launcher:
        launcher.execute("true", memory=1 << 26)
        has_groups = (launcher.running / "cgroup").exists()
    can = subprocess.run(["unshare", "-m", "mount", "--make-rprivate", "/"], capture_output=True).returncode == 0
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    version = any(" - cgroup " in line and "memory" in line for line in mounts)
    if not (has_groups and can and version):
        pytest.skip("this machine lets us make no groups or no mounts of our own")
    words = ["unshare", "-m", "sh", "-c", MANY_MOUNTS, "sh", str(tmp_path), sys.executable]
    surroundings = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(words, capture_output=True, text=True, env=surroundings, timeout=120)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_strict_shell_is_bash_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bash = tool(tmp_path, "bash", "bash")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert words_of_shell("strict") == (str(bash), "-euo", "pipefail")
    bash.unlink()
    assert words_of_shell("strict") == ("/bin/sh", "-eu")
    assert words_of_shell("") == ()
    assert words_of_shell("/bin/sh -e") == ("/bin/sh", "-e")
    assert words_of_shell("/bin/bash -l") == ("", "/bin/bash", "-l")
    assert words_of_shell("zsh -e") == ("", "zsh", "-e")


def test_tasks_that_begin_while_others_leave_orphans_are_left_alone(launcher: Launching) -> None:
    """What begins in a control group is for a moment a copy of the launcher, which holds the output of every task."""
    for _ in range(25):
        tasks = launcher.start("env -i setsid sleep 600 & true")
        tasks += launcher.start(*["true; true"] * 6, memory=256 * MEBIBYTE)
        assert {(end.outcome, end.message) for end in launcher.wait(tasks)} == {("ok", "")}
