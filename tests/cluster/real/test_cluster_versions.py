"""Versions of files that stay on nodes: a reader of an old version is out of date when there is a new one."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.clusters import NAME, LocalCluster, local_cluster
from support.command import wait_until

THERE = ("--cluster", NAME, "--files", "managed", "--plain")
FLOW = """
from shoal import file, task
file("mid", needs="src", run="cp src mid")
task("group", needs="mid")
file("out", needs="{needs}", run="touch {folder}/begun; while test -e {folder}/hold; do sleep 0.05; done; cp mid out")
file("out2", needs="{needs}", run="cp mid out2")
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path_factory.mktemp("versions") / "cluster", 1) as found:
        yield found


@pytest.fixture(params=["mid", "group"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """One in which two tasks read what stays away, as such or as a group of files."""
    (tmp_path / "flow.py").write_text(FLOW.format(needs=request.param, folder=tmp_path))
    (tmp_path / "src").write_text("1\n")
    return tmp_path


def run(check: str, *targets: str) -> tuple[str, ...]:
    return ("run", "flow.py", *THERE, "--check", check, *targets)


@pytest.mark.parametrize("check", ["time", "content"])
def test_another_version_of_the_same_size_makes_all_its_readers_run(
    cluster: LocalCluster, folder: Path, check: str
) -> None:
    assert "3 tasks done" in cluster.shoal(*run(check, "out", "out2"), where=folder)
    (folder / "src").write_text("2\n")
    assert "2 tasks done" in cluster.shoal(*run(check, "out2"), where=folder)
    assert "2 tasks done" in cluster.shoal(*run(check, "out"), where=folder)
    assert [(folder / name).read_text() for name in ("out", "out2")] == ["2\n", "2\n"]
    assert not (folder / "mid").exists()
    assert "up to date" in cluster.shoal(*run(check, "out", "out2"), where=folder)  # what it was made from is the same


@pytest.mark.parametrize("check", ["time", "content"])
def test_reader_that_was_stopped_after_what_it_reads_was_made_again_runs(
    cluster: LocalCluster, folder: Path, check: str
) -> None:
    cluster.shoal(*run(check, "out"), where=folder)
    (folder / "src").write_text("2\n")
    (folder / "begun").unlink()
    (folder / "hold").touch()
    client = cluster.begin(*run(check, "out"), where=folder)
    wait_until((folder / "begun").exists, "it runs")
    client.send_signal(signal.SIGTERM)
    assert client.wait(60) == 143
    assert (folder / "out").read_text() == "1\n"
    (folder / "hold").unlink()
    assert "2 tasks done" in cluster.shoal(*run(check, "out"), where=folder)
    assert (folder / "out").read_text() == "2\n"
