"""Trees are removed whatever their depth, and nothing outside of them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from shoal.execution.files.trees import remove_empty_directories, remove_quietly, remove_tree

DEEP = 3000
"""Far more levels than Python's own walks can take, and a path longer than PATH_MAX."""


def make_deep(top: Path, *, levels: int = DEEP, file: str = "") -> None:
    """A directory in a directory, and so on; in the deepest one an empty file."""
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("dd", dir_fd=here)
        below = os.open("dd", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    if file:
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT, dir_fd=here))
    os.close(here)


def count_open() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_deep_tree_is_removed(tmp_path: Path) -> None:
    make_deep(tmp_path / "top", file="x")
    before = count_open()
    remove_tree(str(tmp_path / "top"))
    assert os.listdir(tmp_path) == [] and count_open() == before


def test_tree_is_removed_by_a_relative_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(20):
        os.makedirs(f"top/{number % 4}/{number}")
        Path(f"top/{number % 4}/{number}/x").touch()
    remove_tree("top/")
    assert os.listdir() == []


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/x").touch()
    (tmp_path / "top").mkdir()
    (tmp_path / "top/link").symlink_to("../mine")
    (tmp_path / "top/astray").symlink_to("nowhere")
    (tmp_path / "link").symlink_to("mine")
    (tmp_path / "astray").symlink_to("nowhere")
    for name in ("top", "link/", "astray"):
        remove_tree(str(tmp_path / name))
    assert os.listdir(tmp_path) == ["mine"] and os.listdir(tmp_path / "mine") == ["x"]


def test_what_is_read_only_is_removed(tmp_path: Path) -> None:
    for name in ("top/a/b", "top/a/c"):
        os.makedirs(tmp_path / name)
        (tmp_path / name / "x").touch(0o400)
    for name, mode in (("top/a/b", 0), ("top/a/c", 0o500), ("top/a", 0o400), ("top", 0o500)):
        os.chmod(tmp_path / name, mode)
    (tmp_path / "file").touch(0o400)
    remove_tree(str(tmp_path / "top"))
    remove_tree(str(tmp_path / "file"))
    assert os.listdir(tmp_path) == []


def test_nothing_to_remove_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("none", "none/none", "file/none"):
        remove_tree(str(tmp_path / name))
        remove_empty_directories(str(tmp_path / name))
    assert os.listdir(tmp_path) == ["file"]


def test_what_cannot_be_removed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first error is told, after everything else has gone."""
    for name in ("a", "b", "c"):
        os.makedirs(tmp_path / "top" / name)
        (tmp_path / "top" / name / f"x{name}").touch()
    before, unlink = count_open(), os.unlink

    def refuse_one(name: str, **more: int) -> None:
        if name == "xb":
            raise PermissionError(1, "refused", name)
        unlink(name, **more)

    monkeypatch.setattr(os, "unlink", refuse_one)
    for force in (True, False):
        with pytest.raises(PermissionError, match="xb"):
            remove_tree(str(tmp_path / "top"), force=force)
    remove_quietly(str(tmp_path / "top"))
    assert os.listdir(tmp_path / "top") == ["b"] and count_open() == before


def test_empty_directories_are_removed_and_the_others_stay(tmp_path: Path) -> None:
    for name in ("top/a/b", "top/a/c", "top/d/e/f", "mine"):
        os.makedirs(tmp_path / name)
    (tmp_path / "top/a/b/x").touch()
    (tmp_path / "top/link").symlink_to("../mine")
    os.chmod(tmp_path / "top/d/e", 0o500)
    remove_empty_directories(str(tmp_path / "top"))
    assert sorted(os.listdir(tmp_path / "top")) == (["a", "link"] if os.geteuid() == 0 else ["a", "d", "link"])
    assert os.listdir(tmp_path / "top/a") == ["b"] and (tmp_path / "mine").is_dir()
    if os.geteuid():
        assert stat.S_IMODE(os.stat(tmp_path / "top/d/e").st_mode) == 0o500
        os.chmod(tmp_path / "top/d/e", 0o700)


def test_deep_empty_directories_are_removed(tmp_path: Path) -> None:
    make_deep(tmp_path / "top")
    remove_empty_directories(str(tmp_path / "top"))
    assert os.listdir(tmp_path) == []


def test_a_file_in_the_depth_keeps_all_directories_around_it(tmp_path: Path) -> None:
    make_deep(tmp_path / "top", file="x")
    remove_empty_directories(str(tmp_path / "top"))
    here = os.open(tmp_path / "top", os.O_RDONLY)
    for _ in range(DEEP):
        below = os.open("dd", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    assert os.listdir(here) == ["x"]
    os.close(here)
    remove_tree(str(tmp_path / "top"))
