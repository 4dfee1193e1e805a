"""Reads aligned by Debian's bwa and samtools from a Makeflow: the example as its page describes it, parts, a kill."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.command import PATIENCE, environment, shoal, start, wait_until
from support.ledgers import accepted

EXAMPLE = Path(__file__).parents[3] / "examples" / "alignment"
WORKFLOW = "alignment.makeflow"
LENGTH = "60000"
READS = "6000"
PROGRAMS = ("bwa", "samtools")

pytestmark = pytest.mark.skipif(
    "CI" not in os.environ and None in map(shutil.which, PROGRAMS), reason="tools/install-packages has not been run"
)


def python(directory: Path, *words: str, expect: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs one of the example's scripts."""
    done = subprocess.run([sys.executable, *words], cwd=directory, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == expect, done.stdout + done.stderr
    return done


def prepare(directory: Path, parts: int) -> Path:
    """The scripts, a small genome with its reads, and the workflow for so many parts."""
    directory.mkdir()
    for script in EXAMPLE.glob("*.py"):
        shutil.copy(script, directory)
    python(directory, "sequence.py", LENGTH, READS)
    (directory / WORKFLOW).write_text(python(directory, "write_makeflow.py", READS, str(parts)).stdout)
    return directory


def alignments(directory: Path) -> list[str]:
    """Every alignment as a line of text, by name of the read: the order of reads at one place has no meaning."""
    words = ["samtools", "view", "alignment.bam"]
    done = subprocess.run(words, cwd=directory, capture_output=True, text=True, timeout=PATIENCE, check=True)
    return sorted(done.stdout.splitlines())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the reads were aligned in one part."""
    directory = prepare(tmp_path_factory.mktemp("alignment") / "whole", 1)
    shoal(directory, "run", WORKFLOW, "--quiet")
    return directory


def test_the_commands_of_the_page_align_the_reads_and_find_the_genome_of_the_sample(tmp_path: Path) -> None:
    page = (EXAMPLE / "README.md").read_text()
    commands = re.search(r"```sh\n(.*?)```", page, re.DOTALL)
    assert commands is not None
    (tmp_path / "examples").symlink_to(EXAMPLE.parent)
    surroundings = environment({"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"})
    words = ["sh", "-ec", commands[1]]
    done = subprocess.run(words, cwd=tmp_path, env=surroundings, capture_output=True, text=True, timeout=5 * PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all done: 22 tasks done" in done.stdout
    assert "\n".join(done.stdout.splitlines()[-2:]) in page
    numbers = [int(number) for number in re.findall(r"\d+", " ".join(done.stdout.splitlines()[-2:]))]
    placed, reads, found, differences, _, _ = numbers
    assert placed >= 0.99 * reads == 0.99 * 20_000
    assert found >= 0.95 * differences == 0.95 * 400


@pytest.mark.parametrize("parts", [3, 7])
def test_the_result_does_not_depend_on_the_number_of_parts(whole: Path, tmp_path: Path, parts: int) -> None:
    directory = prepare(tmp_path / "parts", parts)
    shoal(directory, "run", WORKFLOW, "--quiet")
    assert len(list(directory.glob("part.*.sam"))) == parts
    assert alignments(directory) == alignments(whole)
    for name in ("consensus.fa", "coverage.txt"):
        assert (directory / name).read_bytes() == (whole / name).read_bytes()


def test_a_genome_without_the_differences_of_the_sample_is_refused(whole: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(whole, tmp_path / "copy")
    python(copy, "check.py", LENGTH)
    shutil.copy(copy / "reference.fa", copy / "consensus.fa")
    assert "that is not good enough" in python(copy, "check.py", LENGTH, expect=1).stderr


def test_a_run_killed_midway_is_finished_by_the_next(whole: Path, tmp_path: Path) -> None:
    directory = prepare(tmp_path / "killed", 20)
    text = (directory / WORKFLOW).read_text()
    gate = "while ! test -e go; do sleep 0.05; done"  # so that it is not over before it can be killed
    (directory / WORKFLOW).write_text(text.replace("\tsamtools consensus", f"\t{gate}; samtools consensus"))
    process = start(directory, "run", WORKFLOW, "--quiet", "-j1")
    wait_until(lambda: len(list(directory.glob("part.*.sam"))) >= 3, "three parts are being aligned")
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(accepted(directory / WORKFLOW)) > 0
    assert not (directory / "consensus.fa").exists()

    (directory / "go").touch()
    shoal(directory, "run", WORKFLOW, "--quiet")
    assert alignments(directory) == alignments(whole)
    assert (directory / "consensus.fa").read_bytes() == (whole / "consensus.fa").read_bytes()
    assert len(accepted(directory / WORKFLOW)) == 2 + 2 * 20 + 4
