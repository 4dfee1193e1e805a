"""Runs on agents that share no files: what tasks read is fetched, what they make is passed on, targets come back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.clusters import NAME, LocalCluster, cluster_with_books, local_cluster
from support.command import wait_until

MANAGED = ("run", "--cluster", NAME, "--files", "managed", "--plain")
TREE = """
from shoal import rule
for i in range({count}):
    rule(f"leaf/{{i}}", "seed.txt", run=f"{leaf}; cat seed.txt > leaf/{{i}}; echo {{i}} >> leaf/{{i}}")
for i in range({count}):
    needs = [f"leaf/{{i}}", f"leaf/{{(i + 1) % {count}}}"]
    rule(f"pair{{i}}", needs, run=f"{pair}; cat {{needs[0]}} {{needs[1]}} | grep -v seed > pair{{i}}")
rule("whole", [f"pair{{i}}" for i in range({count})], run="cat pair* | sort -n > whole")
"""


def write_tree(folder: Path, count: int, leaf: str = "true", pair: str = "true") -> Path:
    """Leaves and pairs of them, with what is to be done before each is made."""
    folder.mkdir()
    (folder / "flow.py").write_text(TREE.format(count=count, leaf=leaf, pair=pair))
    (folder / "seed.txt").write_text("seed\n")
    return folder


def expect_whole(folder: Path, count: int) -> None:
    assert (folder / "whole").read_text().split() == [str(number) for number in range(count) for _ in range(2)]
    assert sorted(path.name for path in folder.iterdir()) == [".shoal", "flow.py", "seed.txt", "whole"]


@pytest.fixture(scope="module", params=["redis", "head"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with cluster_with_books(request.param, tmp_path_factory.mktemp(request.param)) as found:
        yield found


def test_only_what_the_run_is_for_comes_back(cluster: LocalCluster, tmp_path: Path) -> None:
    folder = write_tree(tmp_path / "w", 12)
    cluster.shoal(*MANAGED, "whole", where=folder)
    expect_whole(folder, 12)
    assert "up to date" in cluster.shoal(*MANAGED, "whole", where=folder)
    (folder / "seed.txt").write_text("seed\nseed\n")
    assert "25 tasks done" in cluster.shoal(*MANAGED, "whole", where=folder)
    expect_whole(folder, 12)


def test_nothing_is_recorded_of_a_run_whose_files_cannot_be_sent(cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text("from shoal import rule\nrule('copy', '/etc/hostname', run='cp {needs} {out}')\n")
    said = cluster.shoal(*MANAGED, "copy", where=tmp_path, expect=2)
    assert "'/etc/hostname' is outside the workflow's directory" in said
    assert "no run is recorded" in cluster.shoal("status", where=tmp_path, expect=None)


def test_what_did_not_come_back_is_made_again_when_it_is_needed(cluster: LocalCluster, tmp_path: Path) -> None:
    folder = write_tree(tmp_path / "w", 4)
    cluster.shoal(*MANAGED, "whole", where=folder)
    (folder / "flow.py").write_text((folder / "flow.py").read_text().replace("sort -n >", "sort -n -s >"))
    cluster.shoal(*MANAGED, "whole", where=folder)
    expect_whole(folder, 4)


def test_programs_large_files_and_folders_of_the_workflow(cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    tool = tmp_path / "tools" / "double"
    tool.write_text("#!/bin/sh\ncat $1 $1\n")
    tool.chmod(0o755)
    large = bytes(range(256)) * 40_000
    (tmp_path / "large.bin").write_bytes(large)
    (tmp_path / "flow.py").write_text(
        "from shoal import rule\n"
        'rule("twice.bin", ["tools/double", "large.bin"], run="tools/double large.bin > twice.bin")\n'
        'rule("deep/er/size.txt", ["twice.bin"], run="wc -c < twice.bin > deep/er/size.txt")\n'
    )
    cluster.shoal(*MANAGED, "deep/er/size.txt", "twice.bin", where=tmp_path)
    assert (tmp_path / "twice.bin").read_bytes() == large + large
    assert int((tmp_path / "deep/er/size.txt").read_text()) == 2 * len(large)
    assert (tmp_path / "twice.bin").stat().st_mode & 0o200, "it is the user's own file"


def test_a_task_cannot_spoil_what_others_read(cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "seed.txt").write_text("good\n")
    (tmp_path / "flow.py").write_text(
        "from shoal import rule\n"
        'rule("first", ["seed.txt"], run="rm seed.txt; echo bad > seed.txt; touch first")\n'
        'rule("second", ["seed.txt", "first"], run="cp seed.txt second")\n'
    )
    cluster.shoal(*MANAGED, "second", where=tmp_path)
    assert (tmp_path / "second").read_text() == "good\n"
    assert (tmp_path / "seed.txt").read_text() == "good\n"


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ('rule("a", ["/etc/hostname"], run="cp /etc/hostname a")', "outside the workflow's directory"),
        ('rule("a", run="true")', "did not make 'a'"),
        ('rule("a", run="mkdir a")', "is a directory"),
    ],
)
def test_what_cannot_be_done_is_said(cluster: LocalCluster, tmp_path: Path, rule: str, said: str) -> None:
    (tmp_path / "flow.py").write_text(f"from shoal import rule\n{rule}\n")
    assert said in cluster.shoal(*MANAGED, "a", where=tmp_path, expect=None)


def test_a_killed_client_gets_its_files_later(cluster: LocalCluster, tmp_path: Path) -> None:
    go = tmp_path / "go"
    folder = write_tree(tmp_path / "w", 10, f"until test -e {go}; do sleep 0.05; done")
    client = cluster.begin(*MANAGED, "whole", where=folder)
    wait_until(lambda: bool(cluster.runs()), "the run is there")
    client.kill()
    client.wait()
    go.touch()
    cluster.shoal("attach", "--plain", where=folder)
    expect_whole(folder, 10)


def test_files_that_died_with_a_node_are_made_again(tmp_path: Path) -> None:
    marks, go = tmp_path / "marks", tmp_path / "go"
    marks.mkdir()
    together = f"until test -e {go} || [ $(cat {marks}/leaf* | sort -u | wc -l) -ge 3 ]; do sleep 0.05; done"
    leaf = f"echo $SHOAL_NODE > {marks}/leaf{{i}}; {together}"  # so that every node makes some
    pair = f"echo $SHOAL_NODE > {marks}/pair{{i}}; until test -e {go}; do sleep 0.05; done"
    folder = write_tree(tmp_path / "w", 24, leaf, pair)
    with local_cluster(tmp_path / "cluster", 3) as cluster:
        client = cluster.begin(*MANAGED, "whole", where=folder)
        done = tmp_path / "cluster" / "begun.log"
        wait_until(
            lambda: len({*map(Path.read_text, marks.glob("pair*"))} - {""}) == 3,
            "every node has made leaves and goes on with pairs",
        )
        cluster.kill_agent(1)
        go.touch()
        assert client.wait(150) == 0, done.read_text() + cluster.logs()
        expect_whole(folder, 24)
