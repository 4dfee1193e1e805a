"""Nets whose tasks run on the agents of a real cluster: results, lost agents, and `shoal run --cluster`."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import shoal
from shoal.errors import InputError
from shoal.petri import Net, each, take
from support.clusters import NAME, LocalCluster, local_cluster
from support.command import is_alive, wait_until
from support.command import shoal as command

PATIENCE = 60.0
WAITING = """
from shoal import Net, take

net = Net("waiting")
todo, done, total = net.place("todo", range(4)), net.place("done"), net.place("total", [0])
until_go = "echo {a} $$ >> begun; until [ -e go ]; do sleep 0.05; done; echo 1"
net.task(name="wait", a=take(todo), put=done, command=until_go)


@net.step(one=take(done), so_far=take(total), put=total)
def add(one, so_far):
    return so_far + int(one)


@net.step(sum_=take(total), when=lambda sum_: sum_ == 4)
def finish(sum_):
    return net.result(sum_)
"""
"""Its tasks run until there is a file `go`."""
EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "nets"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path_factory.mktemp("lab"), 2, "--agent=--cores=1") as cluster:
        yield cluster


def test_a_net_runs_on_the_agents_and_says_what_none_of_them_can_run(lab: LocalCluster) -> None:
    net = Net("spread")
    todo, done = net.place("todo", [4]), net.place("done")

    @net.task(n=take(todo))
    def work(n: int) -> object:
        return {todo: each([n - 1, n - 1] if n else []), done: os.getppid()}

    with shoal.Executor(cluster=str(lab.access)) as ex:
        run = ex.start(net)
        assert run.wait(PATIENCE) and not run.problems()
        assert len(run.tokens("done")) == 31
        assert os.getpid() not in run.tokens("done")
        wide = Net("wide")
        wide.task(name="wide", x=take(wide.place("todo", [1])), cores=64)(abs)
        with pytest.raises(InputError, match=r"'wide' can never run: a call asks for 64 cores, but no agent"):
            ex.start(wide)


def test_the_command_runs_a_net_on_a_cluster(lab: LocalCluster, tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "tree.py", tmp_path)
    done = command(tmp_path, "run", "tree.py", "--cluster", str(lab.access), "-q")
    assert done.stdout == "1181\n"
    refused = command(tmp_path, "run", "tree.py", "--cluster", str(lab.access), "--jobs", "2", "--force", expect=2)
    assert "--jobs applies to this machine, but the net runs on a cluster" in refused.stderr


def test_tasks_of_an_agent_that_is_killed_run_elsewhere(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "lab", 2, "--agent=--cores=1") as cluster:
        net = Net("lost")
        todo, done = net.place("todo", range(40)), net.place("done")
        flag = str(tmp_path / "begun")

        @net.task(x=take(todo), put=done, retries=2)
        def work(x: int) -> int:
            import time

            with open(flag, "a") as file:
                file.write("x")
            time.sleep(0.02)
            return x

        with shoal.Executor(cluster=str(cluster.access)) as ex:
            run = ex.start(net)
            wait_until(lambda: os.path.exists(flag) and os.path.getsize(flag) > 4, "tasks run")
            cluster.kill_agent(0)
            assert run.wait(PATIENCE) and not run.problems()
            assert sorted(run.tokens("done")) == list(range(40))


def begun(folder: Path) -> list[int]:
    """The processes of all tasks that have begun, the oldest first."""
    path = folder / "begun"
    return [int(line.split()[1]) for line in path.read_text().splitlines()] if path.exists() else []


def begin_waiting(cluster: LocalCluster, folder: Path) -> subprocess.Popen[bytes]:
    """The client of a net of which two tasks run on the cluster."""
    (folder / "net.py").write_text(WAITING)
    client = cluster.begin("run", "net.py", "-q", "--cluster", NAME, where=folder)
    wait_until(lambda: len(begun(folder)) == 2, "two tasks run")
    return client


def kill(client: subprocess.Popen[bytes]) -> None:
    client.kill()
    client.wait()


@pytest.mark.parametrize("words", [("--jobs", "2"), ("--jobs", "2", "--force"), ("--cluster", NAME)], ids=" ".join)
def test_a_net_whose_client_was_killed_never_runs_twice_at_once(
    lab: LocalCluster, tmp_path: Path, words: tuple[str, ...]
) -> None:
    kill(begin_waiting(lab, tmp_path))
    old = begun(tmp_path)
    again = lab.begin("run", "net.py", "--plain", *words, where=tmp_path)
    wait_until(lambda: len(begun(tmp_path)) > len(old) or again.poll() is not None, "its tasks run again")
    assert not [pid for pid in old if is_alive(pid)]
    (tmp_path / "go").touch()
    assert again.wait(PATIENCE) == 0
    assert lab.shoal("run", "net.py", "-q", where=tmp_path) == "4\n"


def test_tasks_that_a_killed_client_left_are_ended_by_cancel(lab: LocalCluster, tmp_path: Path) -> None:
    kill(begin_waiting(lab, tmp_path))
    refused = lab.shoal("clean", "net.py", where=tmp_path, expect=2)
    assert f"net.py is a net whose tasks may still run on the cluster '{NAME}'; end them with 'shoal cancel" in refused
    assert all(is_alive(pid) for pid in begun(tmp_path))
    assert f"its tasks on the cluster {NAME} are stopped" in lab.shoal("cancel", "net.py", where=tmp_path)
    assert not [pid for pid in begun(tmp_path) if is_alive(pid)]
    (tmp_path / "go").touch()
    assert lab.shoal("run", "net.py", "-q", where=tmp_path) == "4\n"


def test_a_net_that_was_stopped_leaves_nothing_on_the_cluster(lab: LocalCluster, tmp_path: Path) -> None:
    client = begin_waiting(lab, tmp_path)
    note = tmp_path / ".shoal" / "net.py" / "farmed"
    assert note.exists()
    client.send_signal(signal.SIGINT)
    assert client.wait(PATIENCE) == 130
    assert not [pid for pid in begun(tmp_path) if is_alive(pid)]
    assert not note.exists()


def test_a_net_whose_cluster_cannot_be_asked_is_not_run_before_it_is_given_up(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "lab", 2, "--agent=--cores=1") as cluster:
        kill(begin_waiting(cluster, tmp_path))
        old = begun(tmp_path)
        away = cluster.access.rename(tmp_path / "away.json")  # as if it could not be reached: its tasks still run
        for words in (["run", "net.py", "--jobs", "2"], ["run", "net.py", "-q", "-f"], ["cancel", "net.py"]):
            refused = cluster.shoal(*words, where=tmp_path, expect=2)
            assert refused.count("shoal:") == 1
            assert "give the run up with 'shoal cancel --forget net.py'" in refused
        assert begun(tmp_path) == old
        away.rename(cluster.access)
    (tmp_path / "go").touch()
    refused = cluster.shoal("run", "net.py", "-q", where=tmp_path, expect=2)
    assert "cannot be asked to end them" in refused
    assert "is given up" in cluster.shoal("cancel", "--forget", "net.py", where=tmp_path)
    assert cluster.shoal("run", "net.py", "-q", where=tmp_path) == "4\n"
