"""The shell of commands on a cluster: what the node has counts, not what the client has."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from support.clusters import NAME, LocalCluster
from support.ledgers import final_records

FLOW = """
from shoal import file, task
task("pipe", run="false | cat")
task("earlier", run="false; true")
task("plain sh", run="false; true", shell="sh")
task("word", run="echo $0")
N = [f"a-name-that-is-rather-long-{number:030d}" for number in range(4000)]
task("long", run="printf '%s ' " + " ".join(N) + " | wc -w")
task("default", needs=["pipe", "earlier", "plain sh", "word", "long"])
"""


def without_bash(folder: Path) -> str:
    """A search path with few programs."""
    folder.mkdir()
    for name in ("sh", "cat", "wc", "env", "uname"):
        (folder / name).symlink_to(str(shutil.which(name)))
    return str(folder)


@pytest.mark.parametrize(("has_bash", "files"), [(True, "managed"), (False, "shared")])
def test_the_shell_of_the_node_runs_commands(tmp_path: Path, has_bash: bool, files: str) -> None:
    assert shutil.which("bash"), "the client has one"
    (tmp_path / "flow.py").write_text(FLOW)
    cluster = LocalCluster(tmp_path)
    client = dict(cluster.environment)
    if not has_bash:
        cluster.environment["PATH"] = without_bash(tmp_path / "bin")
    try:
        cluster.shoal("cluster", "start", NAME, "--local", "1")
        cluster.environment = client
        words = ("run", "--cluster", NAME, "--plain", "--files", files)
        said = cluster.shoal(*words, where=tmp_path, expect=1)
        found = {record.task: record.outcome for record in final_records(tmp_path / "flow.py")}
        pipe = "failed" if has_bash else "ok"
        assert [found[task] for task in sorted(found)] == [pipe, "failed", "ok", "ok", "ok"]
        assert said.count("bash is not installed") == (0 if has_bash else 1)
        shell = os.path.basename(cluster.shoal("output", "word", where=tmp_path).strip())
        assert shell == ("bash" if has_bash else "sh")
        assert cluster.shoal("output", "long", where=tmp_path).split() == ["4000"]
    finally:
        cluster.environment = client
        cluster.shoal("cluster", "stop", NAME, expect=None)
