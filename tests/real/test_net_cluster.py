"""Nets whose tasks run on the agents of a real cluster: results, lost agents, and `shoal run --cluster`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import shoal
from shoal.errors import InputError
from shoal.flow.net import Net, each, take
from support.clusters import LocalCluster, local_cluster
from support.command import shoal as command
from support.command import wait_until

PATIENCE = 60.0
EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "nets"


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
    assert "--jobs is about this machine" in refused.stderr


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
