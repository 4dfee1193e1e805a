"""Modules of the project run as their files are, also if by its time and its size a file is unchanged."""

from __future__ import annotations

import importlib.util
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.execution.calls.call_main import pack_call
from shoal.execution.calls.protocol import plain_payload
from support.command import shoal

LATER = """
import sys
from shoal.execution.calls.source_modules import load_from_source
load_from_source()
sys.path.insert(0, "")
"""


@pytest.fixture(autouse=True)
def python_writes_compiled_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)


def put(file: Path, text: str) -> None:
    """Writes the file as if a second had not passed since it was written before."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    os.utime(file, (10**9, 10**9))


def python(program: str, directory: Path, *options: str) -> str:
    done = subprocess.run([sys.executable, *options, "-c", program], cwd=directory, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


WAYS = {
    "import": "import amodule; print(amodule.x)",
    "package": "from apackage.inner import x; print(x)",
    "path": """
import importlib.util
spec = importlib.util.spec_from_file_location("other", "amodule.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(module.x)
""",
    "loader": "from importlib.machinery import SourceFileLoader as L; print(L('a', 'amodule.py').load_module().x)",
}


@pytest.mark.parametrize("way", WAYS)
def test_module_is_loaded_as_its_file_is(way: str, tmp_path: Path) -> None:
    for number in (1, 2):
        put(tmp_path / "amodule.py", f"x = {number}\n")
        put(tmp_path / "apackage" / "inner.py", f"x = {number}\n")
        if number == 1:
            assert python(WAYS[way], tmp_path) == "1"
    assert python(WAYS[way], tmp_path) == "1"  # what Python does by itself
    assert python(LATER + WAYS[way], tmp_path) == "2"
    # What is left beside it is right for every other process.
    assert python(WAYS[way], tmp_path) == "2"
    put(tmp_path / "amodule.py", "x = 3\n")
    put(tmp_path / "apackage" / "inner.py", "x = 3\n")
    assert python(WAYS[way], tmp_path) == "3"


def test_compiled_form_is_used_while_the_source_is_the_same(tmp_path: Path) -> None:
    put(tmp_path / "amodule.py", "x = 1\n")
    python(LATER + WAYS["import"], tmp_path)
    cache = Path(importlib.util.cache_from_source(str(tmp_path / "amodule.py")))
    before = cache.stat()
    program = LATER + "from importlib.machinery import SourceFileLoader as L\nL.source_to_code = None\n"
    assert python(program + WAYS["import"], tmp_path) == "1"  # nothing was compiled
    assert (cache.stat().st_ino, cache.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_nothing_is_written_for_who_wants_no_compiled_forms(tmp_path: Path) -> None:
    put(tmp_path / "amodule.py", "x = 1\n")
    assert python(LATER + WAYS["import"], tmp_path, "-B") == "1"
    assert not (tmp_path / "__pycache__").exists()


def test_installed_modules_and_ours_keep_their_compiled_forms(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "site-packages"
    put(packages / "amodule.py", "x = 1\n")
    program = f"import sys; sys.path.insert(0, {str(packages)!r}); {WAYS['import']}"
    python(program, tmp_path)
    put(packages / "amodule.py", "x = 2\n")
    assert python(LATER + program, tmp_path) == "1"
    names = "shoal.errors, json.tool, colorsys"
    program = f"{LATER}from importlib.machinery import SourceFileLoader as L\nL.source_to_code = None\nimport {names}"
    python(f"import {names}", tmp_path)
    python(program, tmp_path)


RULES = {
    "file": "from shoal import file\nfrom amodule import make\nfile('out', run=make)\n",
    "worker": "from shoal import file\ndef f(task):\n  import amodule\n  amodule.make(task)\nfile('out', run=f)\n",
}
MAKE = "def make(task):\n    open('out', 'w').write('{}')\n"


@pytest.mark.parametrize("where", RULES)
def test_function_of_a_module_that_was_edited_within_a_second_runs_anew(where: str, tmp_path: Path) -> None:
    """The module is imported by the rules file, or by the process that runs the function alone."""
    put(tmp_path / "flow.py", RULES[where])
    for number in (1, 2, 3):
        put(tmp_path / "amodule.py", MAKE.format(number))
        shoal(tmp_path, "run", "flow.py")
        assert (tmp_path / "out").read_text() == str(number)


def test_call_as_a_program_of_its_own_runs_the_module_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "bymodule.py", "def give(): return 1\n")
    python("import bymodule", tmp_path)
    put(tmp_path / "bymodule.py", "def give(): return 2\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    give = __import__("bymodule").give
    (tmp_path / "call").write_bytes(pack_call(give, plain_payload((), {}), {}, sys.path))
    words = [sys.executable, "-m", "shoal.execution.calls.call_main", "call", "value"]
    subprocess.run(words, cwd=tmp_path, check=True, timeout=60)
    assert pickle.loads((tmp_path / "value").read_bytes()) == 2
