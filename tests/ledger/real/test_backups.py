"""What is put aside comes back whatever happens: the steps are cut off after every single change of the file system."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal.core.graph import Graph, GraphBuilder, ancestors
from shoal.core.resources import Resources
from shoal.execution.files.backups import Backups, restore_all
from shoal.execution.files.files import Preparer, look_at_files
from shoal.execution.run_options import RunOptions
from shoal.ledger.attempt_journal import read_journal
from shoal.ledger.history import History, read_history
from shoal.ledger.identity import Versions, content_of, place_of
from shoal.ledger.records import Record, RunStarted, TaskEnded, encode
from shoal.ledger.up_to_date import Reason, decide
from shoal.ledger.workspace import Workspace

CHANGES = ("rename", "replace", "unlink", "rmdir", "mkdir", "symlink", "write", "pwrite", "truncate", "ftruncate")
OUTPUTS = ("out", "changed", "link", "new", "made", "whole", "deep/er/x")
OURS = {"out": "old\n", "deep/er/x": "old x\n", "made/sub/a": "old a\n", "whole/b": "old b\n", "whole/sub/c": "old c\n"}
MINE = {"changed": "mine\n", "made/sub/own": "own\n", "made/b": "changed b\n", "whole/sub/d": "changed d\n"}
NEW = {name: f"new {name}\n" for name in ("out", "changed", "new", "made/sub/a", "made/b", "whole/z", "deep/er/x")}
REPLACED = {"changed": "mine\n", "made/b": "changed b\n", "whole/sub/d": "changed d\n"}


class Cut(BaseException):
    """The process is killed here."""


@contextmanager
def cut_after(changes: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Permits this number of file system changes; the process is killed at the next one."""
    left = changes

    def count() -> None:
        nonlocal left
        if left == 0:
            raise Cut
        left -= 1

    def counted(function: Callable[..., object]) -> Callable[..., object]:
        def call(*words: object, **more: object) -> object:
            count()
            return function(*words, **more)

        return call

    open_file = os.open

    def opened(path: str, flags: int, *words: int, **more: int) -> int:
        if flags & os.O_CREAT:
            count()
        return open_file(path, flags, *words, **more)

    with monkeypatch.context() as patch:
        for name in CHANGES:
            patch.setattr(os, name, counted(getattr(os, name)))
        patch.setattr(os, "open", opened)
        yield


def write(files: dict[str, str]) -> None:
    for name, text in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)


def tree(top: str = ".") -> dict[str, str]:
    """Contents of files and links, without our own records."""
    found = {}
    for parent, directories, names in os.walk(top):
        directories[:] = [name for name in directories if name != ".shoal"]
        for name in [*names, *directories]:
            path = os.path.join(parent, name)
            if os.path.islink(path):
                found[os.path.relpath(path, top)] = "-> " + os.readlink(path)
            elif not os.path.isdir(path):
                found[os.path.relpath(path, top)] = Path(path).read_text()
    return found


class Scene:
    """A task with outputs of every kind that has been done once, after which the user has changed some of them."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(root)
        self.workspace = Workspace(str(root / "flow.py"))
        self.workspace.make()
        builder = GraphBuilder("flow.py")
        builder.task("", "make", outputs=list(OUTPUTS), line=1)
        self.graph: Graph = builder.build()
        self.notes: list[str] = []
        self.append(RunStarted("r", 1.0, 1, 1, "b", "h", "v", [], [], 1, 1))
        write(OURS | {"changed": "old\n", "made/b": "old\n", "whole/sub/d": "old\n"})
        os.symlink("out", "link")
        os.mkdir("new")
        self.record(1.0)
        os.rmdir("new")
        write(MINE)
        self.append(RunStarted("s", 2.0, 1, 1, "b", "h", "v", [], [], 1, 1))
        self.before = tree()

    def append(self, record: Record) -> None:
        with open(self.workspace.ledger, "ab", buffering=0) as ledger:
            ledger.write(encode(record))

    def record(self, ended: float, backups: Backups | None = None) -> None:
        """An accepted result with what is there now."""
        versions = Versions(self.graph)
        entries_before = backups.entries_before if backups is not None else None
        missing, listing = Preparer(self.graph, versions).check_outputs(0, False, entries_before)
        assert missing is None
        pairs = [(versions.sizes[file], versions.times[file]) for file in self.graph.outputs_of(0)]
        figures = (0, ended - 0.5, ended, 0.0, 0.0, 0, 0, 0, "")
        identity = (place_of(self.graph, 0), content_of(self.graph, 0), b"")
        self.append(TaskEnded(0, 1, "ok", True, *figures, *identity, pairs, None, check=1, listing=listing))

    def backups(self) -> Backups:
        history = read_history(self.workspace)
        versions = Versions(self.graph)
        look_at_files(self.graph, bytearray(b"\1"), versions, by_content=False)
        plan = decide(self.graph, ancestors(self.graph, [0]), history, versions)
        return Backups(self.workspace, plan, versions, history, RunOptions(Resources.of({})), self.notes.append)

    def attempt(self) -> None:
        """Makes all outputs; it may be cut off anywhere."""
        os.mkdir("whole")
        os.makedirs("made/sub", exist_ok=True)
        os.symlink("new", "link")
        for name, text in NEW.items():
            Path(name).write_text("half")
            os.truncate(name, 0)
            Path(name).write_text(text)

    def fail(self) -> None:
        backups = self.backups()
        assert backups.put_aside([0]) == {}
        self.attempt()
        backups.take_away(0)
        backups.put_back(0)
        backups.close()

    def succeed(self) -> None:
        backups = self.backups()
        assert backups.put_aside([0]) == {}
        self.attempt()
        self.record(2.0, backups)
        backups.settle(0)
        backups.close()

    def recover(self) -> History:
        history = read_history(self.workspace)
        restore_all(self.workspace, history, self.notes.append)
        return history

    def reason(self, history: History) -> Reason:
        versions = Versions(self.graph)
        look_at_files(self.graph, bytearray(b"\1"), versions, by_content=False)
        return Reason(decide(self.graph, ancestors(self.graph, [0]), history, versions).reasons[0])

    def check_restored(self) -> None:
        assert tree() == self.before
        self.check_settled()

    def check_done(self) -> None:
        assert tree() == NEW | {"link": "-> new", "made/sub/own": "own\n"}
        assert tree(self.workspace.replaced) == REPLACED
        self.check_settled()

    def check_settled(self) -> None:
        assert not os.path.exists(self.workspace.attempts)
        assert not os.path.exists(self.workspace.aside)


def scenes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, Scene]]:
    """Fresh ones without end, numbered."""
    number = 0
    while True:
        root = tmp_path / str(number)
        root.mkdir()
        yield number, Scene(root, monkeypatch)
        monkeypatch.chdir(tmp_path)
        shutil.rmtree(root)
        number += 1


def test_failure_restores_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(tmp_path, monkeypatch)
    scene.fail()
    scene.check_restored()
    assert tree(scene.workspace.partial) == NEW | {"link": "-> new"}


def test_what_appears_between_attempts_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(tmp_path, monkeypatch)
    backups = scene.backups()
    assert backups.put_aside([0]) == {}
    scene.attempt()
    backups.take_away(0)
    write({"new": "mine, too\n", "out": "and this\n"})
    assert backups.put_aside([0]) == {}
    assert not os.path.exists("new") and not os.path.exists("out")
    scene.attempt()
    backups.close()
    scene.before["new"] = "mine, too\n"
    scene.check_restored()
    assert tree(scene.workspace.replaced) == {"out": "and this\n"}


def test_kill_at_any_moment_of_a_failing_attempt_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, scene in scenes(tmp_path, monkeypatch):
        try:
            with cut_after(number, monkeypatch):
                scene.fail()
        except Cut:
            was_under_way = bool(read_journal(scene.workspace.attempts))
            history = scene.recover()
            assert scene.reason(history) is (Reason.INTERRUPTED if was_under_way else Reason.OUTPUT_CHANGED)
            scene.check_restored()
            half_made = set(tree(scene.workspace.partial)) | set(tree(scene.workspace.interrupted))
            assert half_made <= set(NEW) | {"link"}
        else:
            break
    assert number > 50


def test_kill_at_any_moment_of_a_successful_attempt_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = 0
    for number, scene in scenes(tmp_path, monkeypatch):
        size = os.path.getsize(scene.workspace.ledger)
        try:
            with cut_after(number, monkeypatch):
                scene.succeed()
        except Cut:
            is_recorded = os.path.getsize(scene.workspace.ledger) > size
            recorded += is_recorded
            scene.recover()
            if is_recorded:
                scene.check_done()
            else:
                scene.check_restored()
        else:
            break
    scene.check_done()
    assert recorded > 10


@pytest.mark.parametrize("ends_well", [True, False])
def test_recovery_may_be_killed_at_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends_well: bool) -> None:
    for number, scene in scenes(tmp_path, monkeypatch):
        backups = scene.backups()
        backups.put_aside([0])
        scene.attempt()
        if ends_well:
            scene.record(2.0, backups)
        is_over = True
        for changes in (number, number // 2):
            try:
                with cut_after(changes, monkeypatch):
                    scene.recover()
            except Cut:
                is_over = False
            else:
                break
        scene.recover()
        if ends_well:
            scene.check_done()
        else:
            scene.check_restored()
        if is_over:
            break
    assert number > 10


def test_what_is_aside_comes_back_without_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss of power may take the journal and leave what was renamed."""
    scene = Scene(tmp_path, monkeypatch)
    scene.backups().put_aside([0])
    assert "out" not in tree()
    os.unlink(scene.workspace.attempts)
    write({"out": "half"})
    scene.recover()
    scene.check_restored()
    assert tree(scene.workspace.interrupted) == {"out": "half"}


@pytest.mark.parametrize("name", ["../above", "%", "%%x", "a/%/b", "%up", "a b\n", "n\udcff"])
def test_any_name_comes_back_from_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    root = tmp_path / "inner"
    root.mkdir()
    monkeypatch.chdir(root)
    os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
    Path(name).write_text("old")
    workspace = Workspace(str(root / "flow.py"))
    workspace.make()
    builder = GraphBuilder("flow.py")
    builder.task("", "make", outputs=[name], line=1)
    graph = builder.build()
    versions, history = Versions(graph), History()
    look_at_files(graph, bytearray(b"\1"), versions, by_content=False)
    plan = decide(graph, ancestors(graph, [0]), history, versions)
    Backups(workspace, plan, versions, history, RunOptions(Resources.of({})), print).put_aside([0])
    assert not os.path.exists(name)
    os.unlink(workspace.attempts)
    restore_all(workspace, history, print)
    assert Path(name).read_text() == "old"
    assert not os.path.exists(workspace.aside)
