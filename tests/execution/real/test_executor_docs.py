"""The examples of `docs/futures.md` run as they stand and print what stands below them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).parents[3] / "docs" / "futures.md"
EXAMPLE = re.compile(r"^```python\n(.*?)^```\n(?:^```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
EXAMPLES = EXAMPLE.findall(DOCUMENT.read_text())


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 4


@pytest.mark.parametrize(("code", "output"), EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_prints_what_the_document_says(code: str, output: str, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(code)
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == (output, "", 0)
