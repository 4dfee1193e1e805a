"""What `shoal top` says of a net, and of a run that is over."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from shoal.ledger.records import NetBegun, NetMarked, Record, encode
from shoal.ledger.workspace import LockHolder, Workspace
from shoal.ui.top import model as model_module
from shoal.ui.top.model import TopModel
from shoal.ui.top.tables import TopView, table_of
from shoal.ui.top.view import ASKING, HELP, Window, help_lines, lines, task_lines
from shoal.ui.web.run_page import quick_parts, slow_parts
from shoal.ui.web.watch import Watch
from support.command import wait_until
from support.views import BEGAN, ended, over, planned, started

NET: list[Record] = [
    started(0),
    NetBegun("search", "digest", None),
    planned(["expand 0", "expand 1", "expand 2"]),
    ended(0, 1.0, 3.0),
    NetMarked(BEGAN + 4.0, {"todo": 7}, {"expand": 2}, {"expand": 1}, []),
]


def shown(workspace: Workspace) -> str:
    watch = Watch(workspace)
    watch.refresh()
    parts: dict[str, Any] = {**slow_parts(watch), **quick_parts(watch)}
    return "\n".join(lines(parts, table_of("c", parts), TopView(), Window(99, 30, lambda text, colour: text)))


def workspace_of(folder: Path, *records: Record) -> Workspace:
    (folder / "flow.py").write_text("")
    workspace = Workspace(str(folder / "flow.py"))
    workspace.make()
    Path(workspace.ledger).write_bytes(b"".join(map(encode, records)))
    return workspace


def test_a_net_has_no_share_and_no_time_left(tmp_path: Path) -> None:
    workspace = workspace_of(tmp_path, *NET)
    workspace.acquire(LockHolder(1, "here", NET[0].run, BEGAN))  # type: ignore[union-attr]  # it begins with that
    try:
        text = shown(workspace)
    finally:
        workspace.release()
    assert text.split("\n")[1].startswith("1 done, 0 failed, 2 running, ")  # where else the bar is
    assert "net search: todo 7" in text and " left" not in text and "nearly" not in text


def test_of_a_run_that_is_over_no_cores_are_shown_as_in_use(tmp_path: Path) -> None:
    text = shown(workspace_of(tmp_path, started(1), planned(["a"]), ended(0, 0.0, 8.0), over(10.0)))
    assert "peak 1.0 of " in text and "1 of 1 done" in text


def test_a_task_that_stands_otherwise_is_asked_of_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workflow is another process, which is slow to answer."""
    answers = ["it runs", "it is done"]
    monkeypatch.setattr(model_module, "ask_workflow", lambda *words, **how: {"why": answers.pop(0), "command": "true"})
    workspace = workspace_of(tmp_path, started(1), planned(["a"]))
    readable, writable = os.pipe()
    try:
        watch = Watch(workspace)
        watch.refresh()
        model = TopModel(watch, writable)

        def why() -> str:
            found, output = model.task(0)
            assert found is not None
            return task_lines(found, output, model.description(0, found), 5.0)

        assert ASKING in why()
        wait_until(lambda: "why: it runs" in why(), "it has answered")
        with open(workspace.ledger, "ab") as file:
            file.write(encode(ended(0, 0.0, 8.0)))
        watch.refresh()
        said = why()
        assert "it runs" not in said and ASKING in said and "command:" in said
        wait_until(lambda: "why: it is done" in why(), "it has answered once more")
        assert not answers
    finally:
        os.close(readable)
        os.close(writable)


def test_the_help_is_broken_where_it_does_not_fit() -> None:
    assert help_lines(99, 30) == HELP
    narrow = help_lines(40, 30)
    assert max(map(len, narrow)) <= 40
    assert " ".join(" ".join(narrow).split()) == " ".join(" ".join(HELP).split())
    assert len(help_lines(40, 10)) == 10 and len(help_lines(10, 3)) == 3
