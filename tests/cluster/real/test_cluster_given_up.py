"""A run that `shoal cancel --forget` gave up while its cluster could not be reached, and whose cluster comes back."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from shoal.cluster.agent.run_description import RunDescription, TaskSpec, TaskSpecs, encode
from shoal.cluster.agent.task_setup import GivenUpError, TaskSetup, why_ended
from shoal.core.task import Profile
from shoal.ledger.cluster_notes import drop_note, note_given_up
from shoal.ledger.workspace import Workspace
from support.clusters import NAME, LocalCluster, local_cluster
from support.command import kill_process, wait_until

FLOW = """from shoal import rule
wait = "echo begun >> begun; until test -e go; do sleep 0.05; done; test ! -e fail || exit 3; "
rule("out", ["source"], run=wait + "cat source > out")
rule("last", ["out"], run="echo last >> ran; cp out last")
"""
HERE = ("run", "flow.py", "last", "--plain")
THERE = (*HERE, "--cluster", NAME)
GIVEN_UP = "was given up with 'shoal cancel --forget'"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "w"
    folder.mkdir()
    (folder / "source").write_text("one\n")
    (folder / "flow.py").write_text(FLOW)
    return folder


def bring(cluster: LocalCluster, folder: Path, *options: str) -> None:
    cluster.shoal(*THERE, *options, "--detach", where=folder)
    wait_until((folder / "begun").exists, "its first task runs")


def give_up(cluster: LocalCluster, folder: Path) -> None:
    assert "is given up" in cluster.shoal("cancel", "--forget", "flow.py", where=folder)


def run_here(cluster: LocalCluster, folder: Path) -> None:
    """The run that follows makes everything, from another version of the source."""
    (folder / "source").write_text("three\n")
    (folder / "flow.py").write_text(FLOW.replace("run=wait + ", "run="))
    cluster.shoal(*HERE, where=folder)
    expect_made_here(folder)


def expect_made_here(folder: Path) -> None:
    assert (folder / "out").read_text() == (folder / "last").read_text() == "three\n"
    assert (folder / "begun").read_text() == "begun\n", "the task that was given up was not started again"
    assert (folder / "ran").read_text() == "last\n", "nor was the one that needs it"
    assert not (folder / ".shoal" / "flow.py" / "partial").exists()
    assert not (folder / ".shoal" / "flow.py" / "replaced").exists()


def runs(cluster: LocalCluster, state: str) -> bool:
    lines = [line for line in cluster.shoal("cluster", "status", NAME).splitlines() if "  run " in line]
    return all(f"  {state}  " in line for line in lines)


def notes(folder: Path) -> list[str]:
    path = folder / ".shoal" / "flow.py" / "given-up"
    return os.listdir(path) if path.exists() else []


def test_no_task_of_a_run_that_was_given_up_starts_when_its_cluster_is_back(tmp_path: Path, folder: Path) -> None:
    with local_cluster(tmp_path / "cluster", 1) as cluster:
        bring(cluster, folder)
        agents = cluster.agents()
        cluster.kill_head()
        for pid in agents.values():
            kill_process(pid)
        give_up(cluster, folder)
        run_here(cluster, folder)
        cluster.shoal("cluster", "restart", NAME)
        cluster.begin("agent", "--access", str(cluster.access), where=tmp_path)
        wait_until(lambda: GIVEN_UP in begun_log(cluster) and runs(cluster, "ended"), "the run is ended")
        expect_made_here(folder)
        (folder / "go").touch()
        (folder / "source").write_text("again\n")
        cluster.shoal(*THERE, where=folder)
        assert (folder / "last").read_text() == "again\n"


@pytest.mark.parametrize("ending", ["fail", "succeed"])
def test_an_agent_that_outlives_its_head_ends_what_was_given_up(tmp_path: Path, folder: Path, ending: str) -> None:
    """Its attempt ends after the later run has made the same files; it takes nothing away, and nothing follows."""
    with local_cluster(tmp_path / "cluster", 1) as cluster:
        bring(cluster, folder)
        os.kill(cluster.head(), signal.SIGSTOP)
        try:
            give_up(cluster, folder)
            run_here(cluster, folder)
            (folder / ending).touch()
            (folder / "go").touch()
        finally:
            os.kill(cluster.head(), signal.SIGCONT)
        wait_until(lambda: GIVEN_UP in cluster.logs() and runs(cluster, "ended"), "the run is ended")
        wait_until(lambda: not cluster.busy(), "nothing runs")
        expect_made_here(folder)


def test_an_attempt_that_runs_on_is_ended_when_the_run_was_given_up(tmp_path: Path, folder: Path) -> None:
    with local_cluster(tmp_path / "cluster", 1) as cluster:
        bring(cluster, folder)
        os.kill(cluster.head(), signal.SIGSTOP)
        try:
            give_up(cluster, folder)
            run_here(cluster, folder)
        finally:
            os.kill(cluster.head(), signal.SIGCONT)
        wait_until(lambda: GIVEN_UP in cluster.logs() and runs(cluster, "ended"), "the run is ended")
        wait_until(lambda: not cluster.busy(), "nothing runs")
        (folder / "go").touch()
        expect_made_here(folder)


@pytest.mark.parametrize("files", ["shared", "managed"])
def test_notes_of_what_was_given_up_outlive_clean_and_go_when_the_cluster_has_no_such_run(
    tmp_path: Path, folder: Path, files: str
) -> None:
    with local_cluster(tmp_path / "cluster", 1) as cluster:
        cluster.shoal(*THERE, "--files", files, "--detach", where=folder)
        wait_until(lambda: len(cluster.busy()) == 1, "its first task runs")
        os.kill(cluster.head(), signal.SIGSTOP)
        try:
            give_up(cluster, folder)
            cluster.shoal("clean", "flow.py", where=folder)
            assert len(notes(folder)) == 1
        finally:
            os.kill(cluster.head(), signal.SIGCONT)
        if files == "shared":  # the node sees the note; before that, an attempt may still end and leave its output
            wait_until(lambda: not cluster.busy(), "its first task is ended")
        (folder / "go").touch()
        for _ in range(3):
            (folder / "source").write_text((folder / "source").read_text() + "more\n")
            cluster.shoal(*THERE, where=folder)
        assert notes(folder) == []
        assert not cluster.runs()


def test_nothing_is_started_or_moved_of_a_run_that_was_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    about = RunDescription("flow.py", str(tmp_path), 1, workflow=str(tmp_path / "flow.py"))
    task_setup = TaskSetup("given", about, [Profile()], TaskSpecs(lambda name: encode([TaskSpec("true", ("out",))])))
    (tmp_path / "out").write_text("of a later run")
    workspace = Workspace(about.workflow, about.base)
    assert not why_ended("given", about)
    note_given_up(workspace, "given", NAME)
    assert GIVEN_UP in why_ended("given", about)
    for act in (lambda: task_setup.order(0, 2, 0), lambda: task_setup.take_away(0)):
        with pytest.raises(GivenUpError):
            act()
    assert (tmp_path / "out").read_text() == "of a later run"
    drop_note(workspace, "given")
    assert "partial/out" in task_setup.take_away(0), "otherwise it is what the attempt has half made"


def begun_log(cluster: LocalCluster) -> str:
    return (cluster.folder / "begun.log").read_text()
