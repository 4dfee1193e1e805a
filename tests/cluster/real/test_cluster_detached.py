"""Runs on a cluster that no client follows: what is recorded of them, and what is forbidden meanwhile."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.ledger.records import NodeSeen, RunEnded, RunStarted, TaskEnded
from support.clusters import NAME, LocalCluster, local_cluster
from support.command import wait_until
from support.ledgers import records

FLOW = """
from shoal import rule
rule("copy", ["source"], run="{first}; cat source > copy; echo {word} >> copy")
rule("last", ["copy"], run="cat copy > last")
"""
UNTIL_GO = "until test -e go; do sleep 0.05; done"
RUN = ("run", "flow.py", "last", "--plain")
DETACH = (*RUN, "--cluster", NAME, "--detach")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path_factory.mktemp("detached") / "cluster", 2) as found:
        yield found


def write_flow(folder: Path, word: str = "old", first: str = ":") -> None:
    (folder / "flow.py").write_text(FLOW.format(word=word, first=first))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "source").write_text("source\n")
    write_flow(tmp_path)
    return tmp_path


@pytest.mark.parametrize("check", ["time", "content"])
@pytest.mark.parametrize("files", ["shared", "managed"])
@pytest.mark.parametrize("edited", ["command", "source"])
def test_an_edit_of_a_detached_run_is_seen_by_the_next_one(
    cluster: LocalCluster, folder: Path, edited: str, files: str, check: str
) -> None:
    cluster.shoal(*DETACH, "--files", files, "--check", check, where=folder)
    if edited == "command":
        write_flow(folder, word="new")
    else:
        wait_until(lambda: "all tasks have ended" in cluster.shoal("status", where=folder), "it has read the source")
        (folder / "source").write_text("edited\n")
    cluster.shoal("attach", "--plain", where=folder)
    assert (folder / "last").read_text() == "source\nold\n"
    cluster.shoal(*RUN, "--check", check, where=folder)
    assert (folder / "last").read_text() == ("source\nnew\n" if edited == "command" else "edited\nold\n")


@pytest.fixture
def detached(cluster: LocalCluster, folder: Path) -> Iterator[Path]:
    """A folder whose run waits on the cluster for the file `go`."""
    write_flow(folder, first=UNTIL_GO)
    cluster.shoal(*DETACH, where=folder)
    yield folder
    (folder / "go").touch()
    if (folder / ".shoal" / "flow.py" / "brought").exists():
        cluster.shoal("attach", "--plain", where=folder, expect=None)


@pytest.mark.parametrize(
    "words",
    [RUN, (*RUN, "--cluster", NAME), ("clean", "flow.py"), ("adopt", "flow.py")],
    ids=["run", "cluster", "clean", "adopt"],
)
def test_nothing_else_touches_what_a_detached_run_makes(
    cluster: LocalCluster, detached: Path, words: tuple[str, ...]
) -> None:
    said = cluster.shoal(*words, where=detached, expect=2)
    assert "flow.py is being run on the cluster 'lab'" in said
    assert "'shoal attach'" in said
    assert "'shoal cancel --forget'" in said
    (detached / "go").touch()
    cluster.shoal("attach", "--plain", where=detached)
    assert (detached / "last").read_text() == "source\nold\n"


def test_the_stand_in_does_not_run_what_is_on_a_cluster(cluster: LocalCluster, folder: Path) -> None:
    (folder / "Makeflow").write_text(f"copy: source\n\t{UNTIL_GO}; cp source copy\n")
    cluster.shoal("run", "Makeflow", "--plain", "--cluster", NAME, "--detach", where=folder)
    for words in (("makeflow", "Makeflow"), ("makeflow", "--clean", "Makeflow")):
        assert "is being run on the cluster" in cluster.shoal(*words, where=folder, expect=None)
    (folder / "go").touch()
    cluster.shoal("attach", "Makeflow", "--plain", where=folder)
    assert (folder / "copy").read_text() == "source\n"


def test_status_of_a_detached_run_says_where_it_is(cluster: LocalCluster, detached: Path) -> None:
    said = cluster.shoal("status", where=detached)
    assert "flow.py: on a cluster since" in said
    assert "0 of 2 tasks are recorded here as done" in said
    wait_until(
        lambda: (
            "on the cluster lab: 0 ended, 2 left, of which 1 is ready or running"
            in cluster.shoal("status", where=detached)
        ),
        "its first task is ready",
    )
    told = json.loads(cluster.shoal("status", "--json", where=detached))
    assert (told["state"], told["on_cluster"]["cluster"], told["on_cluster"]["left"]) == ("on a cluster", NAME, 2)
    (detached / "go").touch()
    over = "all tasks have ended on the cluster lab; 'shoal attach' fetches"
    wait_until(lambda: over in cluster.shoal("status", where=detached), "it is over")
    cluster.shoal("attach", "--plain", where=detached)
    assert "flow.py: ended at" in cluster.shoal("status", where=detached)


def test_a_refused_submission_leaves_the_workflow_unlocked(cluster: LocalCluster, folder: Path) -> None:
    viewer = folder / "viewer.json"
    cluster.shoal("cluster", "access", NAME, "--role", "viewer", "-o", str(viewer), where=folder)
    assert "a viewer may not" in cluster.shoal(*RUN, "--cluster", str(viewer), where=folder, expect=2)
    assert "2 tasks done" in cluster.shoal(*RUN, "--cluster", NAME, where=folder)


def test_a_run_that_the_cluster_has_is_not_given_up(cluster: LocalCluster, detached: Path) -> None:
    said = cluster.shoal("cancel", "--forget", "flow.py", where=detached, expect=2)
    assert "the cluster 'lab' replies and has this run" in said
    (detached / "go").touch()
    cluster.shoal("attach", "--plain", where=detached)
    assert "flow.py is not on a cluster" in cluster.shoal("cancel", "--forget", "flow.py", where=detached, expect=2)


def test_a_run_whose_cluster_is_gone_for_good_is_given_up(folder: Path) -> None:
    with local_cluster(folder / "cluster", 1) as cluster:
        write_flow(folder, first=UNTIL_GO)
        cluster.shoal(*DETACH, where=folder)
    for words in (("attach",), RUN, ("cancel", "flow.py")):
        assert "'shoal cancel --forget' gives the run up" in cluster.shoal(*words, where=folder, expect=2)
    said = cluster.shoal("status", where=folder)
    assert "the cluster lab cannot be reached: " in said
    assert "'shoal cancel --forget'" in said
    assert "the run on the cluster lab is given up" in cluster.shoal("cancel", "--forget", "flow.py", where=folder)
    (folder / "go").touch()
    assert "2 tasks done" in cluster.shoal(*RUN, where=folder)
    assert (folder / "last").read_text() == "source\nold\n"


def test_records_of_an_attached_run_are_those_of_the_whole_run(cluster: LocalCluster, detached: Path) -> None:
    (detached / "go").touch()
    wait_until(lambda: "all tasks have ended" in cluster.shoal("status", where=detached), "it is over")
    said = cluster.shoal("attach", "--plain", where=detached)
    found = records(detached / "flow.py")
    brought, attached = (record for record in found if isinstance(record, RunStarted))
    section = found[found.index(attached) :]
    ended = [record for record in section if isinstance(record, TaskEnded)]
    assert (attached.run, attached.time, attached.to_run) == (brought.run, brought.time, 2)
    assert attached.attached > max(record.ended for record in ended)
    assert [record.time for record in section if isinstance(record, RunEnded)] == [
        max(record.ended for record in ended)
    ], "it was over before anybody came back"
    nodes = {record.node: record for record in section if isinstance(record, NodeSeen)}
    for record in ended:
        assert dict(nodes[record.node].resources)["cores"] > 0
        assert attached.time <= nodes[record.node].time <= record.started
    (share,) = re.findall(r"(\d+) % of (\d+) cores? used", said)
    assert 0 <= int(share[0]) <= 100
    assert int(share[1]) > 0
    told = json.loads(cluster.shoal("status", "--json", where=detached))
    assert all(float(seconds) <= 1.1 * told["took"] + 0.1 for seconds in re.findall(r"([\d.]+) s so far", said)), said


def test_an_attached_run_has_what_its_killed_client_had_recorded(cluster: LocalCluster, folder: Path) -> None:
    (folder / "flow.py").write_text(
        "from shoal import rule\n"
        'rule("first", ["source"], run="echo said; cp source first")\n'
        f'rule("last", ["first"], run="{UNTIL_GO}; cp first last")\n'
    )
    client = cluster.begin(*RUN, "--cluster", NAME, where=folder)
    wait_until(
        lambda: "1 of 2 tasks done" in cluster.shoal("status", where=folder, expect=None), "the first is recorded"
    )
    client.kill()
    client.wait()
    (folder / "source").write_text("edited\n")
    (folder / "go").touch()
    cluster.shoal("attach", "--plain", where=folder)
    ended = [record for record in records(folder / "flow.py") if isinstance(record, TaskEnded)]
    assert len(ended) == 3
    assert ended[0].inputs == ended[1].inputs, "as it was when it was brought"
    assert "2 of 2 tasks done" in cluster.shoal("status", where=folder)
    assert cluster.shoal("output", "first", where=folder) == "said\n"
    assert "2 tasks done" in cluster.shoal(*RUN, where=folder)
    assert (folder / "last").read_text() == "edited\n"


def test_a_run_with_nothing_to_do_is_not_left_on_the_cluster(cluster: LocalCluster, tmp_path: Path) -> None:
    """Nobody would ever attach to it, and the workflow would count as being run there."""
    (tmp_path / "source").touch()
    (tmp_path / "flow.py").write_text("from shoal import task\ntask('group', needs='source')\n")
    assert "nothing to do" in cluster.shoal("run", "--detach", "--cluster", NAME, "--plain", where=tmp_path)
    assert "nothing to do" in cluster.shoal("run", "--plain", where=tmp_path)
