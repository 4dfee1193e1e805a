"""Every example in README and docs runs, and prints what the page says it prints.

A fenced block whose first line is `# file: NAME` is written to that file. In a `console` block each line that starts
with `$ ` is run by the shell, and what follows must be its output; `...` stands for anything, also for whole lines. A
`python` block without a file name is run as a program.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.command import environment

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def run(command: str, directory: Path) -> str:
    path = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=directory,
        env=environment({"PATH": path, "COLUMNS": "100", "SHOAL_HOME": str(directory / ".home")}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    return done.stdout


def pattern_of(expected: str) -> re.Pattern[str]:
    """The expected text with `...` as a wildcard; blanks at line ends do not count."""
    lines = [re.escape(line.rstrip()).replace(r"\.\.\.", ".*") for line in expected.rstrip().splitlines()]
    return re.compile("\n".join(lines), re.DOTALL)


def check_console(block: str, directory: Path) -> None:
    parts = re.split(r"^\$ (.*)\n", block, flags=re.MULTILINE)
    assert not parts[0].strip(), f"output before the first command: {parts[0]!r}"
    for command, expected in zip(parts[1::2], parts[2::2], strict=True):
        said = "\n".join(line.rstrip() for line in run(command, directory).rstrip().splitlines())
        if expected.strip():
            assert pattern_of(expected).fullmatch(said), f"$ {command}\nexpected:\n{expected}\ngot:\n{said}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_run_and_print_what_the_page_says(page: Path, tmp_path: Path) -> None:
    try:
        check_page(page, tmp_path)
    finally:
        for name in run("shoal cluster list", tmp_path).split():
            run(f"shoal cluster stop {name}", tmp_path)


def check_page(page: Path, tmp_path: Path) -> None:
    for language, block in FENCE.findall(page.read_text()):
        first, _, rest = block.partition("\n")
        named = re.fullmatch(r"# file: (\S+)", first)
        if named:
            target = tmp_path / named[1]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(rest)
        elif language == "console":
            check_console(block, tmp_path)
        elif language == "python":
            (tmp_path / "example.py").write_text(block)
            done = subprocess.run(
                [sys.executable, "example.py"], cwd=tmp_path, env=environment(), capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr
