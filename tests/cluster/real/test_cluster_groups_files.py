"""Groups where nodes share no files: who needs a group has its files, and what stayed on nodes is made when needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.clusters import NAME, LocalCluster, local_cluster

THERE = ("--cluster", NAME, "--files", "managed", "--plain")
FLOW = """
from shoal import file, files, rule, task
rule("p/{x}.txt", needs="raw/{x}.txt", run="cp {needs} {out}")
task("parts", needs=["p/1.txt", "p/2.txt"])
task("inputs", needs=files("raw/*.txt"))
task("outer", needs=["parts", "inputs"])
file("parts.sum", needs="parts", run="echo $(find . -name '*.txt' | wc -l) > {out}")
file("inputs.sum", needs="inputs", run="echo $(find . -name '*.txt' | wc -l) > {out}")
file("outer.sum", needs="outer", run="echo $(find . -name '*.txt' | wc -l) > {out}")
file("local.sum", needs="parts", run="echo $(find p -name '*.txt' | wc -l) > {out}")
file("whole", needs=["p/1.txt", "p/2.txt"], run="cat {needs} > {out}")
file("w", run="echo 1 > {out}")
file("x", needs="w", run="cat {needs} > {out}")
task("both", needs=["w", "x"])
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path_factory.mktemp("groups") / "cluster", 2) as found:
        yield found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "flow.py").write_text(FLOW)
    (tmp_path / "raw").mkdir()
    for name in "12":
        (tmp_path / "raw" / f"{name}.txt").write_text(f"{name}\n")
    return tmp_path


def test_a_task_has_the_files_of_groups_that_it_needs(cluster: LocalCluster, folder: Path) -> None:
    names = {"parts.sum": 2, "inputs.sum": 2, "outer.sum": 4}
    cluster.shoal("run", "flow.py", *names, *THERE, where=folder)
    assert {name: int((folder / name).read_text()) for name in names} == names
    for name in names:  # the groups are up to date now
        (folder / name).unlink()
    cluster.shoal("run", "flow.py", *names, *THERE, where=folder)
    assert {name: int((folder / name).read_text()) for name in names} == names


def test_files_of_a_group_that_stayed_on_nodes_are_made_again_here(cluster: LocalCluster, folder: Path) -> None:
    cluster.shoal("run", "flow.py", "whole", *THERE, where=folder)
    assert not (folder / "p").exists()
    why = cluster.shoal("why", "p/1.txt", "flow.py", where=folder)
    assert "Its output 'p/1.txt' is not here" in why
    cluster.shoal("run", "flow.py", "local.sum", "--plain", where=folder)
    assert (folder / "local.sum").read_text() == "2\n"


@pytest.mark.parametrize("words", [("w",), (), ("both",), ("w", *THERE), ("both", *THERE)])
def test_what_stayed_on_a_node_is_made_for_a_run_that_is_for_it(
    cluster: LocalCluster, folder: Path, words: tuple[str, ...]
) -> None:
    cluster.shoal("run", "flow.py", "x", *THERE, where=folder)
    assert not (folder / "w").exists()
    assert "up to date" in cluster.shoal("run", "flow.py", "x", "--plain", where=folder)
    assert "'w' is missing" in cluster.shoal("plan", "flow.py", "w", where=folder)
    cluster.shoal("run", "flow.py", *words, where=folder)
    assert (folder / "w").read_text() == "1\n"
