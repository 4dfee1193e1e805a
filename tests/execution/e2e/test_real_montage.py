"""A mosaic made by Debian's Montage from a Makeflow: the example as its page describes it, the original, a kill."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from support.command import PATIENCE, SHOAL, environment, shoal, start, wait_until
from support.ledgers import accepted

EXAMPLE = Path(__file__).parents[3] / "examples" / "montage"
WORKFLOW = "montage.makeflow"
N = "2"
TASKS = 31
"""Two for each of 4 images, two for each of 6 overlaps, 11 for the whole."""
PROGRAMS = ("mProjectPP", "makeflow")

pytestmark = pytest.mark.skipif(
    "CI" not in os.environ and None in map(shutil.which, PROGRAMS), reason="tools/install-packages has not been run"
)


def prepare(directory: Path) -> Path:
    """The scripts, the images of a small mosaic, and its workflow."""
    directory.mkdir()
    for script in EXAMPLE.glob("*.py"):
        shutil.copy(script, directory)
    python(directory, "observe.py", N)
    (directory / WORKFLOW).write_text(python(directory, "write_makeflow.py", N).stdout)
    return directory


def python(directory: Path, *words: str, expect: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs one of the example's scripts."""
    done = subprocess.run([sys.executable, *words], cwd=directory, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == expect, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a small mosaic has been made."""
    directory = prepare(tmp_path_factory.mktemp("montage") / "finished")
    shoal(directory, "run", WORKFLOW, "--quiet")
    return directory


def results(directory: Path) -> dict[str, bytes]:
    """Every table, header and image in a directory and below it."""
    kinds = (".fits", ".tbl", ".hdr", ".png", ".txt")
    paths = (path for path in directory.rglob("*") if path.suffix in kinds and ".shoal" not in path.parts)
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


def test_the_commands_of_the_page_make_a_mosaic_that_agrees_with_the_true_sky(tmp_path: Path) -> None:
    page = (EXAMPLE / "README.md").read_text()
    commands = re.search(r"```sh\n(.*?)```", page, re.DOTALL)
    assert commands is not None
    (tmp_path / "examples").symlink_to(EXAMPLE.parent)
    surroundings = environment({"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"})
    words = ["sh", "-ec", commands[1]]
    done = subprocess.run(words, cwd=tmp_path, env=surroundings, capture_output=True, text=True, timeout=5 * PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all done: 127 tasks done" in done.stdout
    assert done.stdout.splitlines()[-1] in page.splitlines()
    found = re.search(r"by (\S+) \(root mean square\); uncorrected it is (\S+)\.$", done.stdout)
    assert found is not None, done.stdout
    assert float(found[1]) < 0.5 < 10.0 < float(found[2])
    head = (tmp_path / "my-mosaic" / "mosaic.png").read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    assert min(struct.unpack(">II", head[16:])) > 300


def test_a_mosaic_with_stray_light_in_it_is_refused(finished: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(finished, tmp_path / "copy")
    python(copy, "check.py")
    shutil.copy(copy / "uncorrected.fits", copy / "mosaic.fits")
    assert "the stray light has not been removed" in python(copy, "check.py", expect=1).stderr


def test_an_edited_script_makes_again_what_depends_on_it_and_nothing_else(finished: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(finished, tmp_path / "copy")
    assert json.loads(shoal(copy, "plan", WORKFLOW, "--json").stdout)["to_run"] == 0
    with open(copy / "plane_table.py", "a") as script:
        script.write("# edited\n")
    plan = json.loads(shoal(copy, "plan", WORKFLOW, "--json").stdout)
    # The tables of planes, corrections and corrected images, the corrected images, the mosaic and its picture.
    assert Counter(task["category"] for task in plan["tasks"]) == {"table": 3, "correct": 4, "mosaic": 2}


@pytest.mark.parametrize("command", [["makeflow"], [*SHOAL, "makeflow"]], ids=["original", "shoal"])
def test_makeflow_makes_the_same_files(finished: Path, tmp_path: Path, command: list[str]) -> None:
    directory = prepare(tmp_path / "fresh")
    # Debian's makeflow starts MPI, which looks for a launcher unless it is told that there is none.
    alone = environment({"OMPI_MCA_ess_singleton_isolated": "1"})
    words = [*command, "-T", "local", WORKFLOW]
    done = subprocess.run(words, cwd=directory, env=alone, capture_output=True, text=True, timeout=5 * PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert results(directory) == results(finished)


def test_a_run_killed_midway_is_finished_by_the_next_without_repeating_what_was_done(
    finished: Path, tmp_path: Path
) -> None:
    directory = prepare(tmp_path / "fresh")
    text = (directory / WORKFLOW).read_text()
    gate = "while ! test -e go; do sleep 0.05; done"  # so that it is not over before it can be killed
    (directory / WORKFLOW).write_text(text.replace("\tmBgModel", f"\t{gate}; mBgModel"))
    process = start(directory, "run", WORKFLOW, "--quiet", "-j1")
    planes = directory / "planes"
    wait_until(lambda: planes.is_dir() and len(list(planes.iterdir())) >= 2, "two planes are fitted")
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert 0 < len(accepted(directory / WORKFLOW)) < TASKS

    (directory / "go").touch()
    shoal(directory, "run", WORKFLOW, "--quiet")
    assert results(directory) == results(finished)
    times = Counter(record.place for record in accepted(directory / WORKFLOW))
    assert len(times) == TASKS
    assert set(times.values()) == {1}
