"""A full disk and an unwritable ledger: the run stops with a message and nothing finished is lost."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command import shoal
from support.ledgers import accepted

TASKS = 60


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB of its own. Needs root, which CI and a container have."""
    if os.geteuid() != 0 and not os.environ.get("CI"):
        pytest.skip("mounting a small file system needs root")
    point = tmp_path / "disk"
    point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(point)], check=True)
    yield point
    subprocess.run(["umount", "-l", str(point)], check=True)


def write_workflow(directory: Path) -> Path:
    lines = [f"o{number}:\n\thead -c 250000 /dev/zero > o{number}\n" for number in range(TASKS)]
    (directory / "Makeflow").write_text("".join(lines))
    return directory / "Makeflow"


def test_full_disk_stops_the_run_and_keeps_what_finished(small_disk: Path) -> None:
    workflow = write_workflow(small_disk)
    done = shoal(small_disk, "run", "Makeflow", "-j2", expect=1)
    assert "disk is full" in done.stderr + done.stdout
    first = {record.place for record in accepted(workflow)}
    assert 5 < len(first) < TASKS
    subprocess.run(["mount", "-o", "remount,size=40m", str(small_disk)], check=True)
    shoal(small_disk, "run", "Makeflow", "-j2", "--quiet")
    results = [record.place for record in accepted(workflow)]
    assert len(results) == len(set(results)) == TASKS, "a finished task was run again"
    assert all((small_disk / f"o{number}").stat().st_size == 250000 for number in range(TASKS))


def test_disk_that_other_programs_filled_is_noticed_before_anything_runs(small_disk: Path) -> None:
    write_workflow(small_disk)
    (small_disk / "filler").write_bytes(bytes(7_700_000))
    done = shoal(small_disk, "run", "Makeflow", "-j2", expect=None)
    assert done.returncode in (1, 2)
    assert "disk" in done.stderr or "room" in done.stderr or "space" in done.stderr
    assert not list(small_disk.glob("o*"))


def test_directory_that_cannot_be_written_is_refused(small_disk: Path) -> None:
    write_workflow(small_disk)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    done = shoal(small_disk, "run", "Makeflow", "-j2", expect=2)
    assert "cannot write" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
