"""Where functions run on a cluster, and with which variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.clusters import NAME, local_cluster

FLOW = """
import os
from shoal import file, task

@task("number", cwd="inside", env={"MARK": "a"})
def number(t):
    return f"{os.environ['MARK']} in {os.path.basename(os.getcwd())}"

@file("inside/told", needs={"number": "number", "given": "inside/given"}, cwd="inside", env={"MARK": "b"})
def told(t):
    with open("told", "w") as file, open("given") as given:
        file.write(f"{t.needs.number.value}, {os.environ['MARK']}, {given.read()}")

@file("plain", needs="inside/told")
def plain(t):
    with open("plain", "w") as file, open("inside/told") as told:
        file.write(f"{told.read()}, {os.environ.get('MARK')}")
"""


@pytest.mark.parametrize("files", ["shared", "managed"])
def test_functions_run_in_their_directory_with_their_variables(tmp_path: Path, files: str) -> None:
    folder = tmp_path / "w"
    (folder / "inside").mkdir(parents=True)
    (folder / "inside/given").write_text("given")
    (folder / "flow.py").write_text(FLOW)
    with local_cluster(tmp_path / "cluster", 1) as cluster:
        cluster.shoal("run", "--cluster", NAME, "--plain", "--files", files, where=folder)
        assert (folder / "plain").read_text() == "a in inside, b, given, None"
