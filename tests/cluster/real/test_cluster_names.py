"""Names, commands and variables with bytes that are not UTF-8, on nodes that share files and on others."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.clusters import NAME, LocalCluster, local_cluster
from support.command import wait_until

FLOW = r"""
import os
from shoal import rule, task
program, said, copied, bad = (os.fsdecode(name) for name in (b"p\xff.sh", b"said\xfe", b"copied\xfd", b"bad\xff"))
rule(program, run="printf '#!/bin/sh\\necho $WORD\\n' > {out}; chmod +x {out}")
rule(said, program, run="./{program} > {out}".replace("{program}", program), env={"WORD": os.fsdecode(b"w\xff")})

@rule(copied, needs=said)
def copy(t):
    with open(t.out, "wb") as file:
        file.write(open(said, "rb").read())

rule("last", copied, run="cat {needs} > {out}")
rule(bad, "last", run="echo half > {out}; exit 3")
task("all", needs=bad)
"""
FILES = ("shared", "managed")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path_factory.mktemp("names") / "cluster", 1) as found:
        yield found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / os.fsdecode(b"w\xff")
    folder.mkdir()
    (folder / "flow.py").write_text(FLOW)
    return folder


@pytest.mark.parametrize("files", FILES)
def test_tasks_run_with_names_that_are_not_utf_8(cluster: LocalCluster, folder: Path, files: str) -> None:
    words = ("run", "flow.py", "--cluster", NAME, "--files", files, "--plain")
    assert "4 tasks done" in cluster.shoal(*words, "last", where=folder)
    assert (folder / "last").read_bytes() == b"w\xff\n"
    assert "up to date" in cluster.shoal(*words, "last", where=folder)
    assert "exit status 3" in cluster.shoal(*words, "all", where=folder, expect=None)
    told = json.loads(cluster.shoal("status", "--json", where=folder))
    assert [failure["attempt"] for failure in told["failures"]] == [1]


@pytest.mark.parametrize("files", FILES)
def test_a_detached_run_with_such_names_is_followed(cluster: LocalCluster, folder: Path, files: str) -> None:
    cluster.shoal("run", "--cluster", NAME, "--files", files, "--detach", "--plain", "last", where=folder)
    wait_until(lambda: "all tasks have ended" in cluster.shoal("status", where=folder), "it is over")
    cluster.shoal("attach", "--plain", where=folder)
    assert (folder / "last").read_bytes() == b"w\xff\n"
