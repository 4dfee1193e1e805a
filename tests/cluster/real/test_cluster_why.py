"""`shoal why` on a real cluster whose parts are in trouble: it names what is wrong, and says nothing that is not so."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.clusters import NAME, LocalCluster, local_cluster
from support.command import PATIENCE, wait_until
from support.redis_servers import CAREFUL, one_server

GATED = """from shoal import rule
rule("long", run="touch begun; while ! test -e go; do sleep 0.05; done; touch long")
rule("more{n}", run="touch more{n}", cores=2)
rule("after", ["long"], run="touch after")
rule("last", ["after"], run="touch last")
"""


def begin(cluster: LocalCluster, folder: Path) -> Path:
    """A run of which one task runs until somebody makes the file `go`."""
    folder.mkdir()
    (folder / "flow.py").write_text(GATED)
    cluster.shoal("run", "--cluster", NAME, "flow.py", "last", "more0", "more1", "--detach", where=folder)
    return folder


def finish(cluster: LocalCluster, folder: Path) -> None:
    (folder / "go").touch()
    cluster.shoal("attach", "flow.py", "--quiet", where=folder)
    assert (folder / "last").exists()


def why(cluster: LocalCluster, folder: Path, *words: str) -> str:
    return cluster.shoal("why", *words, "flow.py", where=folder)


def becomes_why(cluster: LocalCluster, folder: Path, *words: str, says: tuple[str, ...] = (), begins: str = "") -> None:
    """Waits until all of this is said: a busy node may have to be asked again."""
    wait_until(
        lambda: (said := why(cluster, folder, *words)).startswith(begins) and all(each in said for each in says),
        f"{begins!r} {says}",
    )


@contextmanager
def stopped(agent: int) -> Iterator[None]:
    """Not for long: when its lease is over, the node counts as lost."""
    os.kill(agent, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(agent, signal.SIGCONT)


def test_a_node_that_is_full_and_then_silent_is_named(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "cluster", 1, "--agent=--cores=2") as cluster:
        folder = begin(cluster, tmp_path / "w")
        wait_until(lambda: (folder / "begun").exists(), "the long one runs")
        wait_until(lambda: "held by 'long' (1)" in why(cluster, folder, "more0"), "the other one has come there")
        room = " and waits for cores: it asks for 2, and 1 of 2 is free; held by 'long' (1"
        becomes_why(cluster, folder, "more0", says=("'more0' is queued on ", room))
        becomes_why(cluster, folder, "last", says=("'long'", "has been running on"))
        chain = json.loads(cluster.shoal("why", "last", "flow.py", "--json", where=folder))
        assert [chain["names"][str(task)] for task in chain["chain"]] == ["after", "long"]
        assert chain["root"]["cause"] == "running" and chain["root"]["node"]
        each = "each waits for cores: it asks for 2, and 1 of 2 is free"
        becomes_why(cluster, folder, says=(each,), begins="1 running, 2 ready, ")
        behind = begin(cluster, tmp_path / "x")
        turn = "waits for its run's turn: the cluster serves an earlier run first (flow.py)"
        becomes_why(cluster, behind, "long", says=(turn,))
        becomes_why(cluster, behind, begins="Nothing is running: the cluster serves another run first.")
        cluster.shoal("cancel", "flow.py", where=behind)
        (agent,) = cluster.agents().values()
        with stopped(agent):
            said = why(cluster, folder, "long")
        assert said.startswith("'long' is on ") and "which does not answer, and may be running there" in said
        becomes_why(cluster, folder, says=(each,), begins="1 running, 2 ready, ")
        with stopped(agent):
            whole = why(cluster, folder)
        assert whole.startswith("It is not known what is running: the nodes that have tasks do not answer."), whole
        assert "  3: each is on " in whole and "its running tasks are not known" in whole
        finish(cluster, folder)


def test_a_cluster_without_a_node_is_the_reason_and_why_there_is_none(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "cluster", 1) as cluster:
        folder = begin(cluster, tmp_path / "w")
        wait_until(lambda: (folder / "begun").exists(), "the long one runs")
        (number,) = cluster.agents()
        cluster.kill_agent(number)
        wait_until(lambda: "the cluster has none" in why(cluster, folder, "long"), "the node is missed")
        said = why(cluster, folder, "long")
        assert "1 requested node of group 'main': ended" in said, said
        assert why(cluster, folder).startswith("Nothing is running: the cluster has no node.")
        cluster.shoal("cluster", "scale", NAME, "1")
        finish(cluster, folder)


def test_unplaceable_and_cancelled_tasks_are_explained_for_the_whole_run(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "cluster", 1, "--agent=--cores=1") as cluster:
        folder = tmp_path / "w"
        folder.mkdir()
        (folder / "flow.py").write_text(
            'from shoal import rule\nrule("there", run="touch there", requires="site=omega")\n'
            'rule("wide{n}", run="touch wide{n}", requires="site=psi")\nrule("after", ["there"], run="touch after")\n'
        )
        cluster.shoal("run", "--cluster", NAME, "flow.py", "after", "wide0", "wide1", "--detach", where=folder)
        wait_until(
            lambda: "cannot start: no node of the cluster has the label" in why(cluster, folder, "there"), "it is kept"
        )
        wait_until(lambda: "  2 such as 'wide" in why(cluster, folder), "the others are")
        whole = why(cluster, folder)
        assert whole.startswith("Nothing is running: no node has the label that the ready tasks ask for."), whole
        lacks = "no node of the cluster has the label site"
        assert f": each cannot start: {lacks}=psi; it waits for one\n" in whole
        assert (
            "  1 ('there') cannot start: no node of the cluster has the label site=omega; it waits for one\n" in whole
        )
        told = json.loads(cluster.shoal("why", "there", "flow.py", "--json", where=folder))
        assert (told["cause"], told["shortage"]["resource"]) == ("label", "site=omega")
        cluster.shoal("cancel", "flow.py", where=folder)
        wait_until(lambda: why(cluster, folder).startswith("Nothing is left to run"), "all is cancelled")
        assert why(cluster, folder) == (
            "Nothing is left to run: 0 tasks are done.\n  3 failed or were cancelled; 1 cannot run because of that\n"
        )


WITH_GROUP = """from shoal import rule, task
rule("long", run="while ! test -e go; do sleep 0.05; done; touch long")
rule("bad", run="exit 4")
rule("also", run="while ! test -e go; do sleep 0.05; done; touch also")
rule("huge", run="touch huge", cores=64)
task("all", needs=["long", "bad", "also"])
"""


def test_the_explanation_of_the_whole_run_agrees_with_ledger_and_status(tmp_path: Path) -> None:
    """A task that only groups others is none to count, and what failed was not cancelled."""
    with local_cluster(tmp_path / "cluster", 2, "--agent=--cores=2") as cluster:
        folder = tmp_path / "w"
        folder.mkdir()
        (folder / "flow.py").write_text(WITH_GROUP)
        said = cluster.shoal("run", "--cluster", NAME, "flow.py", "huge", where=folder, expect=2)
        assert "'huge' asks for cores 64, but the largest node of the cluster has 2; ask for less" in said
        client = cluster.begin("run", "--cluster", NAME, "flow.py", "all", "--quiet", where=folder)
        try:
            words = ("why", "flow.py")
            whole = "2 running, 0 ready, 0 waiting for dependencies.\n  1 failed\n"
            wait_until(lambda: cluster.shoal(*words, where=folder, expect=None) == whole, "the ledger has heard of it")
            cluster.shoal("cancel", "flow.py", "also", where=folder)
            wait_until(lambda: "  1 failed, 1 was cancelled\n" in why(cluster, folder), "the other one is told of, too")
        finally:
            (folder / "go").touch()
            client.wait(PATIENCE)
        (number, _) = cluster.agents()
        cluster.kill_agent(number)
        assert "ended 1 node and the head" in cluster.shoal("cluster", "stop", NAME)


def test_an_unreachable_store_is_the_reason_while_it_lasts(tmp_path: Path) -> None:
    with (
        one_server(tmp_path, *CAREFUL) as server,
        local_cluster(tmp_path / "cluster", 1, "--redis", server.address) as cluster,
    ):
        folder = begin(cluster, tmp_path / "w")
        wait_until(lambda: (folder / "begun").exists(), "the long one runs")
        server.kill()
        said = cluster.shoal("why", "last", "flow.py", where=folder, expect=None)
        assert "the cluster's store does not answer" in said, said
        server.start()
        wait_until(
            lambda: "waits for the task" in cluster.shoal("why", "last", "flow.py", where=folder, expect=None),
            "they are back",
            PATIENCE * 2,
        )
        finish(cluster, folder)


def test_a_node_that_is_idle_beside_work_notices_it_and_says_so(tmp_path: Path) -> None:
    """Whatever the agents say to each other gets lost, so neither can take from the other."""
    (tmp_path / "cluster").mkdir()
    cluster = LocalCluster(tmp_path / "cluster")
    cluster.environment["SHOAL_TROUBLE"] = "1 1.0 0 0"
    folder = tmp_path / "w"
    folder.mkdir()
    wait = "until test -e go; do sleep 0.05; done"
    (folder / "flow.py").write_text(f'from shoal import rule\nrule("a{{n}}", run="{wait}; touch a{{n}}")\n')
    try:
        cluster.shoal("cluster", "start", NAME, "--local", "2", "--agent=--cores=1")
        cluster.await_nodes(2)
        files = [f"a{number}" for number in range(6)]
        cluster.shoal("run", "--cluster", NAME, "flow.py", *files, "--throttle", "contract", "--detach", where=folder)
        told = " some of which it could run; it asks again"
        wait_until(lambda: told in cluster.logs(), "the idle one notices it")
        becomes_why(cluster, folder, says=(" has been idle for ", " s beside ", " queued tasks of ", told))
        (folder / "go").touch()
        assert told in cluster.shoal("attach", "flow.py", "--plain", where=folder)
        assert all((folder / name).exists() for name in files)
    finally:
        cluster.shoal("cluster", "stop", NAME, expect=None)
