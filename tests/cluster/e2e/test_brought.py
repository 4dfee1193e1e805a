"""The note of a run on a cluster, and its submitted plan, without a cluster."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shoal.cluster.selection import SubmittedPlan, forget_note, read_plan, write_submitted
from shoal.errors import InputError
from shoal.execution.session import enter, load, make_plan
from shoal.ledger.cluster_notes import SubmissionNote, is_submitted, read_note
from shoal.ledger.history import read_history
from shoal.ledger.identity import content_of, place_of
from shoal.ledger.workspace import LockHolder, Workspace

FLOW = r"""
import os
from shoal import file, files, rule, task

odd = "odd \udcff name"
rule("copy", ["source"], run="cp source copy")
rule(odd, ["copy"], run="cp copy '{out}'")

@rule("called", needs="copy")
def called(t):
    open(t.out, "w").write(os.getcwd())

task("all", needs=["copy", odd, "called"])
"""


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    (tmp_path / "flow.py").write_text(FLOW)
    (tmp_path / "source").write_text("source\n")
    monkeypatch.chdir(tmp_path)
    workspace = enter("flow.py")
    workspace.make()
    return workspace


def bring(workspace: Workspace) -> tuple[SubmissionNote, SubmittedPlan]:
    workflow = load(workspace, ["all"])
    plan, versions = make_plan(workflow, read_history(workspace), force=False, by_content=False)
    note = SubmissionNote(
        "lab", "run", [place_of(plan.graph, task) for task in plan.to_run()], ["all"], tasks=plan.to_run()
    )
    brought = SubmittedPlan(workflow, plan, versions)
    write_submitted(workspace, note, brought)
    return note, brought


def test_a_submitted_plan_is_read_unchanged(workspace: Workspace) -> None:
    note, brought = bring(workspace)
    Path("flow.py").write_text("this is no workflow any more")
    Path("source").write_text("edited\n")
    graph, found = brought.plan.graph, read_plan(workspace)
    assert read_note(workspace) == note
    assert found.plan.graph.names == graph.names
    assert found.plan.graph.file_names == graph.file_names
    assert found.plan.to_run() == brought.plan.to_run()
    for task in range(len(graph)):
        assert place_of(found.plan.graph, task) == place_of(graph, task)
        assert content_of(found.plan.graph, task) == content_of(graph, task)
        assert found.versions.digest_of_inputs(task) == brought.versions.digest_of_inputs(task)
    assert found.workflow.targets == brought.workflow.targets


def test_only_who_attaches_gets_the_lock_of_what_is_on_a_cluster(workspace: Workspace) -> None:
    bring(workspace)
    holder = LockHolder(os.getpid(), "here", "", 0.0)
    with pytest.raises(InputError, match="is being run on the cluster 'lab'; follow it with 'shoal attach'"):
        workspace.acquire(holder)
    assert workspace.holder() is None
    workspace.acquire(holder, attaching=True)
    forget_note(workspace)
    workspace.release()
    assert not is_submitted(workspace)
    workspace.acquire(holder)
    workspace.release()


@pytest.mark.parametrize("name", ["brought", "brought.plan"])
def test_a_damaged_note_is_one_sentence(workspace: Workspace, name: str) -> None:
    bring(workspace)
    Path(workspace.directory, name).write_bytes(b"\x93no note")
    with pytest.raises(InputError, match=r"is damaged; end the run with .* 'shoal cancel --forget'"):
        read_note(workspace)
        read_plan(workspace)
    with pytest.raises(InputError):
        workspace.acquire(LockHolder(os.getpid(), "here", "", 0.0))
