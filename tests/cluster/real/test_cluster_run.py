"""Workflows on real agents: results, failures, deaths of agents and clients. Stores in Redis and at the head."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.ledger.records import NodeTold
from support.clusters import NAME, LocalCluster, cluster_with_books, local_cluster
from support.command import is_alive, wait_until
from support.ledgers import ledger_path, records

FAN = """
from shoal import rule
for i in range({count}):
    rule(f"part{{i}}", run=f"{first}; echo {{i}} >> part{{i}}")
rule("whole", [f"part{{i}}" for i in range({count})], run="cat part* | sort -n > whole")
"""
UNTIL_GO = "until test -e go; do sleep 0.05; done"
"""Goes on when the test makes that file."""


def write_fan(folder: Path, count: int, seconds: float = 0.0, first: str = "") -> Path:
    """Each part sleeps, or does something else first."""
    folder.mkdir()
    (folder / "flow.py").write_text(FAN.format(count=count, first=first or f"sleep {seconds}"))
    return folder


def expect_whole(folder: Path, count: int) -> None:
    """Every part was made once, and all of them are in the whole."""
    assert (folder / "whole").read_text().split() == [str(number) for number in range(count)]
    for number in range(count):
        assert (folder / f"part{number}").read_text() == f"{number}\n"


def known_to_run(folder: Path) -> set[int]:
    """The nodes of which the client has heard that tasks run on them."""
    heard = records(folder / "flow.py") if ledger_path(folder / "flow.py").exists() else []
    return {record.node for record in heard if isinstance(record, NodeTold) and record.running}


@pytest.fixture(scope="module", params=["redis", "head"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with cluster_with_books(request.param, tmp_path_factory.mktemp(request.param)) as found:
        yield found


def test_a_fan_runs_on_two_agents_and_a_second_run_finds_it_up_to_date(cluster: LocalCluster, tmp_path: Path) -> None:
    folder = write_fan(tmp_path / "w", 40)
    cluster.shoal("run", "--cluster", NAME, "whole", "--plain", where=folder)
    expect_whole(folder, 40)
    assert "41 of 41 tasks done" in cluster.shoal("status", where=folder)
    assert "up to date" in cluster.shoal("run", "--cluster", NAME, "whole", "--plain", where=folder)
    assert not cluster.runs(), "what is known is forgotten"


def test_output_and_failure_of_a_task_reach_the_client(cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(
        "from shoal import rule, task\n"
        'rule("a", run="echo said by a; touch a")\n'
        'rule("b", ["a"], run="echo alas >&2; exit 3", retries=1)\n'
        'rule("c", ["b"], run="touch c")\n'
    )
    said = cluster.shoal("run", "--cluster", NAME, "c", "--plain", where=tmp_path, expect=1)
    assert "exit status 3" in said
    assert "alas" in said
    assert "said by a" in cluster.shoal("output", "a", where=tmp_path)
    status = cluster.shoal("status", where=tmp_path)
    assert "1 done" in status
    assert "1 failed" in status
    assert "1 not run" in status


def test_a_killed_client_comes_back_and_misses_nothing(cluster: LocalCluster, tmp_path: Path) -> None:
    folder = write_fan(tmp_path / "w", 30, 0.1)
    client = cluster.begin("run", "--cluster", NAME, "whole", "--plain", where=folder)
    wait_until(lambda: (folder / "part3").exists(), "the run has begun")
    client.send_signal(signal.SIGKILL)
    client.wait()
    refused = cluster.shoal("run", "--cluster", NAME, "whole", where=folder, expect=2)
    assert "is being run on the cluster" in refused
    cluster.shoal("attach", "--plain", where=folder)
    expect_whole(folder, 30)
    assert "up to date" in cluster.shoal("run", "whole", "--plain", where=folder)
    assert "not on a cluster" in cluster.shoal("attach", where=folder, expect=2)


def test_a_run_that_was_left_goes_on(cluster: LocalCluster, tmp_path: Path) -> None:
    folder = write_fan(tmp_path / "w", 10, 0.05)
    cluster.shoal("run", "--cluster", NAME, "whole", "--detach", "--plain", where=folder)
    wait_until(lambda: (folder / "whole").exists(), "it is done without anybody looking")
    cluster.shoal("attach", "--plain", where=folder)
    expect_whole(folder, 10)


def test_ctrl_c_ends_the_run_and_its_tasks(cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(
        "from shoal import task\n"
        'for i in range(4):\n    task(f"t{i}", run=f"echo $$ > pid{i}; exec sleep 1000")\n'
        'task("all", needs=[f"t{i}" for i in range(4)])\n'
    )
    client = cluster.begin("run", "--cluster", NAME, "all", "--plain", where=tmp_path)
    wait_until(lambda: len(list(tmp_path.glob("pid*"))) >= 2, "two tasks run")
    pids = [int(text) for path in tmp_path.glob("pid*") if (text := path.read_text())]
    client.send_signal(signal.SIGINT)
    assert client.wait(60) == 130
    wait_until(lambda: not any(is_alive(pid) for pid in pids), "its tasks have ended")
    assert not cluster.runs()


def test_tasks_are_cancelled_with_and_without_somebody_following(cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(
        "from shoal import rule\n"
        'rule("quick", run="touch quick")\n'
        'rule("slow", run="touch begun; sleep 1000; touch slow")\n'
        'rule("after", ["slow"], run="touch after")\n'
        'rule("whole", ["quick"], run="while ! test -e go; do sleep 0.05; done; touch whole")\n'
    )
    client = cluster.begin("run", "--cluster", NAME, "after", "whole", "--plain", where=tmp_path)
    wait_until(lambda: (tmp_path / "begun").exists(), "the slow one runs")

    def becomes_why(sentence: str, *words: str) -> None:
        wait_until(lambda: sentence in cluster.shoal("why", *words, "flow.py", where=tmp_path), sentence)

    becomes_why("'slow' has been running on", "slow")
    becomes_why("'after' waits for the task 'slow'; that has been running on", "after")
    becomes_why("running, 0 ready, 1 waiting for dependencies")
    cluster.shoal("cancel", "flow.py", "slow", where=tmp_path)
    (tmp_path / "go").touch()
    assert client.wait(60) == 1
    assert (tmp_path / "whole").exists()
    assert "2 done" in cluster.shoal("status", where=tmp_path)
    (tmp_path / "begun").unlink()
    cluster.shoal("run", "--cluster", NAME, "after", "--detach", "--plain", where=tmp_path)
    wait_until(lambda: (tmp_path / "begun").exists(), "the slow one runs again")
    assert "asked the cluster lab to stop it" in cluster.shoal("cancel", "flow.py", where=tmp_path)
    assert "2 not run" in cluster.shoal("attach", "--plain", where=tmp_path, expect=1)


CALLS = """
from shoal import rule, task

rule("raw/{name}", run="seq 1 {name} > {out}")

@rule("count/{name}", needs="raw/{name}")
def count(t):
    lines = open(t.needs[0]).read().split()
    open(t.out, "w").write(f"{len(lines)}\\n")
    return {"lines": len(lines)}

@task(needs=[f"count/{n}" for n in (3, 5, 7)])
def total(t):
    print("counting")
    return sum(need.value["lines"] for need in t.needs)

@rule("answer.txt", needs="total")
def answer(t):
    open("answer.txt", "w").write(f"{t.needs[0].value}\\n")

@task
def broken(t):
    raise ValueError("not today")
"""


@pytest.mark.parametrize("files", ["shared", "managed"])
def test_python_functions_and_their_values(cluster: LocalCluster, tmp_path: Path, files: str) -> None:
    (tmp_path / "flow.py").write_text(CALLS)
    run = ("run", "--cluster", NAME, "--files", files, "--plain")
    cluster.shoal(*run, "answer.txt", where=tmp_path)
    assert (tmp_path / "answer.txt").read_text() == "15\n"
    assert "counting" in cluster.shoal("output", "total", where=tmp_path)
    assert "up to date" in cluster.shoal(*run, "answer.txt", where=tmp_path)
    (tmp_path / "answer.txt").unlink()
    assert "1 task done" in cluster.shoal("run", "answer.txt", "--plain", where=tmp_path), "values are known here, too"
    assert (tmp_path / "answer.txt").read_text() == "15\n"
    said = cluster.shoal(*run, "broken", where=tmp_path, expect=1)
    assert "ValueError: not today" in said


def test_an_unknown_cluster_is_one_sentence(cluster: LocalCluster, tmp_path: Path) -> None:
    folder = write_fan(tmp_path / "w", 1)
    assert "there is no cluster 'elsewhere'" in cluster.shoal(
        "run", "--cluster", "elsewhere", "whole", where=folder, expect=2
    )


def test_a_viewer_may_look_and_not_run(cluster: LocalCluster, tmp_path: Path) -> None:
    folder = write_fan(tmp_path / "w", 2)
    viewer = folder / "viewer.json"
    cluster.shoal("cluster", "access", NAME, "--role", "viewer", "-o", str(viewer), where=folder)
    assert "2 nodes" in cluster.shoal("cluster", "status", str(viewer), where=folder)
    said = cluster.shoal("run", "--cluster", str(viewer), "whole", where=folder, expect=2)
    assert "a viewer may not send this request" in said
    assert not (folder / "part0").exists()
    viewer.chmod(0o644)
    assert "chmod 600" in cluster.shoal("cluster", "status", str(viewer), where=folder, expect=2)


def test_an_agent_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    folder = write_fan(tmp_path / "w", 40, first=UNTIL_GO)
    with local_cluster(tmp_path / "cluster", 3) as cluster:
        client = cluster.begin("run", "--cluster", NAME, "whole", "--plain", where=folder)
        wait_until(lambda: len(known_to_run(folder)) == 3, "the client knows that all have something to do")
        cluster.kill_agent(0)
        said = cluster.folder / "begun.log"
        wait_until(lambda: "is lost; its unfinished tasks run elsewhere" in said.read_text(), "the run says so")
        (folder / "go").touch()
        assert client.wait(120) == 0
        expect_whole(folder, 40)
        wait_until(lambda: sorted(cluster.agents()) == [1, 2], "it is missed")


def test_the_head_is_killed_and_started_anew(tmp_path: Path) -> None:
    folder = write_fan(tmp_path / "w", 40, first=f"sleep 0.1; test {{i}} -lt 35 || {UNTIL_GO}")
    with local_cluster(tmp_path / "cluster", 2) as cluster:
        client = cluster.begin("run", "--cluster", NAME, "whole", "--plain", where=folder)
        wait_until(lambda: (folder / "part5").exists(), "the run has begun")
        cluster.kill_head()
        assert "was restarted" in cluster.shoal("cluster", "restart", NAME)
        (folder / "go").touch()
        assert client.wait(120) == 0
        expect_whole(folder, 40)


def test_a_cluster_grows_shrinks_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "cluster", 1) as cluster:
        cluster.shoal("cluster", "scale", NAME, "3")
        agents = cluster.agents()
        assert len(agents) == 3
        cluster.shoal("cluster", "scale", NAME, "1")
        wait_until(lambda: len(cluster.agents()) == 1, "two have left")
        wait_until(lambda: sum(map(is_alive, agents.values())) == 1, "and ended")
        assert "is already running" in cluster.shoal("cluster", "start", NAME, "--local", "1", expect=2)
        head = cluster.head()
        assert NAME in cluster.shoal("cluster", "list")
        assert "ended 1 node and" in cluster.shoal("cluster", "stop", NAME)
        assert not any(is_alive(pid) for pid in (*agents.values(), head))
        assert "there is no cluster" in cluster.shoal("cluster", "status", NAME, expect=2)


def test_a_foreign_file_stops_a_run_before_it_is_submitted(cluster: LocalCluster, tmp_path: Path) -> None:
    folder = write_fan(tmp_path / "w", 2)
    (folder / "part1").write_text("by hand\n")
    words = ("run", "--cluster", NAME, "whole", "--plain")
    assert "'part1' exists, but was not made by this workflow" in cluster.shoal(*words, where=folder, expect=2)
    assert (folder / "part1").read_text() == "by hand\n" and not (folder / "part0").exists()
    assert not cluster.runs()
    cluster.shoal(*words, "--overwrite", where=folder)
    expect_whole(folder, 2)
    (folder / "part1").write_text("1\n")
    cluster.shoal("adopt", "whole", where=folder)
    assert "up to date" in cluster.shoal(*words, where=folder)
