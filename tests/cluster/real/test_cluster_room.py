"""Tasks whose inputs do not fit on the disk of a node run on another one, or fail with a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.clusters import NAME, LocalCluster, local_cluster

FILES, SIZE = 12, 3_000_000
FLOW = f"""
from shoal import rule
names = [f"part{{i}}" for i in range({FILES})]
for name in names:
    rule(name, run=f"head -c {SIZE} /dev/zero > {{name}}", requires=["size=large"])
rule("whole", names, run="cat part* | wc -c > whole", WHERE)
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """A node with a disk of 24 MB and one with a large disk."""
    with local_cluster(tmp_path / "cluster", 0) as cluster:
        for size, options in (("small", ("--disk", "24")), ("large", ())):
            words = ["--access", str(cluster.access), "--cores", "1", "--label", f"size={size}", *options]
            cluster.begin("agent", *words, "--spool", str(tmp_path / size), where=tmp_path)
        cluster.await_nodes(2)
        yield cluster


def run(cluster: LocalCluster, folder: Path, where: str, expect: int) -> str:
    (folder / "w").mkdir()
    (folder / "w" / "flow.py").write_text(FLOW.replace("WHERE", where))
    words = ["run", "--cluster", NAME, "--files", "managed", "whole", "--plain"]
    return cluster.shoal(*words, where=folder / "w", expect=expect)


def test_a_task_whose_inputs_do_not_fit_where_it_would_go_runs_where_they_do(
    tmp_path: Path, cluster: LocalCluster
) -> None:
    run(cluster, tmp_path, 'prefers=["size=small"]', 0)
    assert (tmp_path / "w" / "whole").read_text().split() == [str(FILES * SIZE)]


def test_a_task_whose_inputs_fit_nowhere_fails_with_a_sentence(tmp_path: Path, cluster: LocalCluster) -> None:
    said = run(cluster, tmp_path, 'requires=["size=small"]', 1)
    assert "its inputs fit on the disk of no node: 'part0', 'part1', 'part2' and 9 more" in said
    assert "take 34.3 MiB, and the largest room that a node has for them is 24 MiB" in said
