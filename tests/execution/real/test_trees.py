"""Listings and signatures of directories on a real disk."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.execution.files.trees import OwnVersions, list_tree, tree_signature

LEVELS = 2000


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "deep" / "er").mkdir(parents=True)
    (root / "deep" / "er" / "x").write_text("one")
    (root / "y").write_text("two")
    (root / "empty").mkdir()
    (root / "link").symlink_to("y")
    return root


@pytest.fixture
def endless(tmp_path: Path) -> Iterator[Path]:
    """Directories below each other, with a path far above what one system call takes."""
    root = tmp_path / "endless"
    root.mkdir()
    descriptor = os.open(root, os.O_RDONLY)
    for _ in range(LEVELS):
        os.mkdir("level", dir_fd=descriptor)
        below = os.open("level", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(os.open("bottom", os.O_CREAT | os.O_WRONLY, dir_fd=descriptor))
    os.close(descriptor)
    yield root
    # Neither `shutil.rmtree` nor pytest's own removal reaches the bottom: the levels are taken from the top.
    descriptor = os.open(tmp_path, os.O_RDONLY)
    for _ in range(LEVELS):
        top = os.open("endless", os.O_RDONLY, dir_fd=descriptor)
        os.rename("level", "above", src_dir_fd=top, dst_dir_fd=descriptor)
        os.close(top)
        os.rmdir("endless", dir_fd=descriptor)
        os.rename("above", "endless", src_dir_fd=descriptor, dst_dir_fd=descriptor)
    os.close(descriptor)


def test_listing_names_everything_below_with_its_kind(tree: Path) -> None:
    found = {entry.name: (entry.kind, entry.size, entry.target) for entry in list_tree(str(tree))}
    assert found == {
        "deep": ("directory", 0, ""),
        "deep/er": ("directory", 0, ""),
        "deep/er/x": ("file", 3, ""),
        "y": ("file", 3, ""),
        "empty": ("directory", 0, ""),
        "link": ("link", 3, "y"),
    }
    assert {entry.number for entry in list_tree(str(tree)) if entry.name == "y"} == {(tree / "y").stat().st_mtime_ns}


def test_two_thousand_levels_are_listed_to_the_bottom(endless: Path) -> None:
    names = [entry.name for entry in list_tree(str(endless))]
    assert names[-1] == "level/" * LEVELS + "bottom"
    assert tree_signature(str(endless), by_content=True) == tree_signature(str(endless), by_content=True)


@pytest.mark.parametrize("by_content", [False, True])
@pytest.mark.parametrize("change", ["edit", "add", "remove", "rename", "mkdir", "rmdir", "link"])
def test_every_change_below_a_directory_changes_its_signature(tree: Path, change: str, by_content: bool) -> None:
    before = tree_signature(str(tree), by_content=by_content)
    x = tree / "deep" / "er" / "x"
    old = x.stat()
    match change:
        case "edit":
            x.write_text("eno")  # of the same size, and older
            os.utime(x, ns=(old.st_atime_ns, old.st_mtime_ns - 10**9))
        case "add":
            (tree / "deep" / "more").write_text("")
        case "remove":
            x.unlink()
        case "rename":
            x.rename(tree / "deep" / "x")
        case "mkdir":
            (tree / "empty" / "er").mkdir()
        case "rmdir":
            (tree / "empty").rmdir()
        case "link":
            (tree / "link").unlink()
            (tree / "link").symlink_to("deep/er/x")
    assert tree_signature(str(tree), by_content=by_content) != before


def test_times_do_not_count_by_content_and_own_files_of_shoal_and_python_never_count(tree: Path) -> None:
    by_content, by_time = tree_signature(str(tree), by_content=True), tree_signature(str(tree))
    (tree / ".shoal" / "x").mkdir(parents=True)
    (tree / "deep" / "__pycache__").mkdir()
    assert tree_signature(str(tree)) == by_time
    os.utime(tree / "y", (1, 1))
    assert tree_signature(str(tree), by_content=True) == by_content
    assert tree_signature(str(tree)) != by_time


def test_link_to_a_directory_is_not_followed_and_one_that_leads_nowhere_is_listed(tree: Path) -> None:
    (tree / "round").symlink_to(tree)
    (tree / "nowhere").symlink_to("gone")
    found = {entry.name: (entry.kind, entry.size) for entry in list_tree(str(tree))}
    assert found["round"] == ("link", 0) and found["nowhere"] == ("link", -1)
    assert not any(name.startswith("round/") for name in found)


def test_what_vanishes_or_may_not_be_read_while_it_is_listed_is_no_error(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    over = threading.Event()

    def churn() -> None:
        while not over.is_set():
            (root / "sub").mkdir(parents=True)
            for number in range(20):
                (root / "sub" / str(number)).write_text("x")
            shutil.rmtree(root)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(300):
            tree_signature(str(root), by_content=True)
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("name", ["out", "./out", "out/", "{base}/out", "other/../out"])
def test_names_with_versions_of_their_own_are_left_out_of_a_directory_however_it_is_written(
    tmp_path: Path, name: str
) -> None:
    own = OwnVersions(["out/made", "./out//also", f"{tmp_path}/out/third", "out2"], str(tmp_path))
    is_left_out = own.below(name.format(base=tmp_path))
    assert [each for each in ("made", "also", "third", "mine", "sub/made") if is_left_out(each)] == [
        "made",
        "also",
        "third",
    ]


def test_names_are_left_out_of_directories_above_and_beside_the_workflow(tmp_path: Path) -> None:
    base = tmp_path / "flow"
    own = OwnVersions(["a", "../beside/b"], str(base))
    assert own.below("..")("flow/a") and own.below("..")("beside/b") and own.below("../beside")("b")
    assert not own.below("..")("a")
