"""Every change of what a task read or made is seen by the next run, and nothing else is taken for one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from support.command import shoal

CHECKS = ["time", "content"]
DIRECTORY_NEED = """
from shoal import file
file("sum", needs="data", run="cat data/*/* > sum; echo ran >> log")
"""
DIRECTORY_OUTPUT = """
from shoal import file, task
file("out", run="mkdir -p out/sub; echo a > out/sub/a; echo ran >> log")
file("sum", needs="out", run="cat out/sub/* > sum")
"""
SHARED_DIRECTORY = """
from shoal import file, task
file("out", run="mkdir -p out; echo ran >> log")
for name in "ab":
    file(f"out/{name}", needs="out", run=f"echo {name} > out/{name}")
file("sum", needs=["out", "out/a", "out/b"], run="cat out/a out/b > sum; echo sum >> log")
"""


def write(path: Path, text: str, *, age: float = 0.0) -> None:
    """Writes a file that looks `age` seconds older than what stood there."""
    before = path.stat().st_mtime_ns if path.exists() else None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if before is not None and age:
        os.utime(path, ns=(before, before - int(age * 1e9)))


def runs(directory: Path, check: str, *words: str) -> str:
    return shoal(directory, "run", "flow.py", *(words or ("sum",)), "--check", check).stdout


def is_up_to_date(directory: Path, check: str, *words: str) -> bool:
    return runs(directory, check, *words).startswith("nothing to do")


@pytest.mark.parametrize("check", CHECKS)
def test_edit_inside_a_directory_that_a_task_needs_runs_it_again(tmp_path: Path, check: str) -> None:
    (tmp_path / "flow.py").write_text(DIRECTORY_NEED)
    write(tmp_path / "data" / "sub" / "a", "one\n")
    runs(tmp_path, check)
    assert is_up_to_date(tmp_path, check)
    write(tmp_path / "data" / "sub" / "a", "two\n", age=5)
    runs(tmp_path, check)
    assert (tmp_path / "sum").read_text() == "two\n"
    write(tmp_path / "data" / "sub" / "b", "new\n")
    runs(tmp_path, check)
    assert (tmp_path / "sum").read_text() == "two\nnew\n"
    assert is_up_to_date(tmp_path, check)


@pytest.mark.parametrize("check", CHECKS)
def test_edit_inside_a_directory_that_a_task_made_makes_it_again(tmp_path: Path, check: str) -> None:
    (tmp_path / "flow.py").write_text(DIRECTORY_OUTPUT)
    runs(tmp_path, check)
    assert is_up_to_date(tmp_path, check)
    write(tmp_path / "out" / "sub" / "a", "b\n", age=5)
    runs(tmp_path, check)
    assert (tmp_path / "out" / "sub" / "a").read_text() == "a\n"
    assert is_up_to_date(tmp_path, check)


@pytest.mark.parametrize("check", CHECKS)
def test_directory_that_other_tasks_make_files_in_stays_up_to_date(tmp_path: Path, check: str) -> None:
    (tmp_path / "flow.py").write_text(SHARED_DIRECTORY)
    runs(tmp_path, check)
    assert is_up_to_date(tmp_path, check)
    (tmp_path / "out" / "a").unlink()
    runs(tmp_path, check)
    assert (tmp_path / "log").read_text() == "ran\nsum\nsum\n"
    assert is_up_to_date(tmp_path, check)


HIDDEN_PART = """
from shoal import file, task
file("data/a", needs="raw", run="cp raw data/a")
task("parts", needs="data/a")
file("data/index", needs=["data", "data/a"], run="ls data > data/index.new; mv data/index.new data/index")
file("sum", needs={needs}, run="cat data/* > sum")
"""


@pytest.mark.parametrize("check", CHECKS)
def test_task_that_needs_a_directory_needs_what_others_make_in_it(tmp_path: Path, check: str) -> None:
    """A part has a version of its own: who needs only the directory would neither wait for it nor see a change."""
    write(tmp_path / "raw", "1\n")
    write(tmp_path / "data" / "b", "b\n")
    (tmp_path / "flow.py").write_text(HIDDEN_PART.format(needs="'data'"))
    for words in (("run", "flow.py"), ("plan", "flow.py")):
        refused = shoal(tmp_path, *words, "--check", check, expect=2).stderr
        assert "flow.py:6: 'sum' needs the directory 'data', where 'data/a' makes 'data/a'" in refused
        assert "add 'data/a' to its inputs" in refused
    assert not (tmp_path / "data" / "a").exists()
    shoal(tmp_path, "run", "flow.py", "data/index")
    for needs in ("['data', 'data/a']", "['data', 'parts']"):
        (tmp_path / "flow.py").write_text(HIDDEN_PART.format(needs=needs))
        for text in ("2\n", "3\n"):
            write(tmp_path / "raw", text)
            runs(tmp_path, check)
            assert text in (tmp_path / "sum").read_text()
        assert is_up_to_date(tmp_path, check)


GROUP = """
from shoal import file, files, task
task("inputs", needs=files("raw/*.txt"))
file("sum", needs="inputs", run="cat raw/*.txt > sum")
"""


@pytest.mark.parametrize("check", CHECKS)
def test_no_change_of_a_member_of_a_group_is_missed(tmp_path: Path, check: str) -> None:
    (tmp_path / "flow.py").write_text(GROUP)
    raw = tmp_path / "raw"
    for name in "abc":
        write(raw / f"{name}.txt", f"{name}\n")
    runs(tmp_path, check)
    assert is_up_to_date(tmp_path, check)
    for change in ("older", "larger", "added", "removed", "renamed"):
        match change:
            case "older":
                write(raw / "a.txt", "A\n", age=5)
            case "larger":
                write(raw / "b.txt", "bb\n", age=5)
            case "added":
                write(raw / "d.txt", "d\n")
                os.utime(raw / "d.txt", (1, 1))
            case "removed":
                (raw / "c.txt").unlink()
            case "renamed":
                (raw / "a.txt").rename(raw / "e.txt")
                (raw / "d.txt").rename(raw / "a.txt")
        runs(tmp_path, check)
        expected = "".join(path.read_text() for path in sorted(raw.iterdir()))
        assert (tmp_path / "sum").read_text() == expected
        assert is_up_to_date(tmp_path, check)


SEVERAL = """
from shoal import file, task
file("out", run="mkdir -p out; echo a > out/a")
file("b", needs=["out", "source"], run="cat out/a source > b")
task("all", needs=["b", "source"])
file("sum", needs="all", run="cat b > sum")
"""


def test_other_check_than_last_time_runs_nothing_and_still_sees_changes(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(SEVERAL)
    write(tmp_path / "source", "one\n")
    runs(tmp_path, "time")
    for check in ("content", "time", "content"):
        assert is_up_to_date(tmp_path, check)
    write(tmp_path / "source", "two\n", age=5)
    runs(tmp_path, "content")
    assert (tmp_path / "sum").read_text() == "a\ntwo\n"
    for check in ("content", "time"):
        assert is_up_to_date(tmp_path, check)
    write(tmp_path / "source", "six\n", age=5)
    runs(tmp_path, "time")
    assert (tmp_path / "sum").read_text() == "a\nsix\n"


def copy(directory: Path, to: Path) -> None:
    """As `cp -r` does it: with the time of the copying."""
    shutil.copytree(directory, to, copy_function=shutil.copy)
    for path in to.rglob("*"):
        if ".shoal" not in path.parts:
            os.utime(path, ns=(1, path.stat().st_mtime_ns + 10**9))


def test_copy_of_a_project_is_up_to_date_by_content_and_else_told_truly(tmp_path: Path) -> None:
    first = tmp_path / "first"
    write(first / "source", "one\n")
    (first / "flow.py").write_text(SEVERAL)
    runs(first, "time")
    copy(first, tmp_path / "second")
    said = shoal(tmp_path / "second", "plan", "flow.py", "sum").stdout
    assert "output changed after it was made" not in said and "changed" not in said
    runs(first, "content", "sum", "--force")
    copy(first, tmp_path / "third")
    for check in CHECKS:
        assert is_up_to_date(tmp_path / "third", check)


MODULES = """
import re
from pathlib import Path
from shoal import file, task
import first, pack.inner
from first import helper

P = Path("one")
WORD = re.compile("a+")

class Model:
    def rate(self):
        return 1

@file("sum")
def make(t):
    from late import last
    Path(t.out).write_text(f"{P} {WORD.pattern} {Model().rate()} {helper()} {pack.inner.X} {last()}")
"""


def test_edit_of_a_class_a_value_or_a_module_that_a_function_uses_runs_it_again(tmp_path: Path) -> None:
    write(tmp_path / "first.py", "from second import two\ndef helper():\n    return two() + 1\n")
    write(tmp_path / "second.py", "def two():\n    return 2\n")
    write(tmp_path / "late.py", "def last():\n    return 4\n")
    write(tmp_path / "pack" / "__init__.py", "")
    write(tmp_path / "pack" / "inner.py", "from . import other\nX = other.Y\n")
    write(tmp_path / "pack" / "other.py", "Y = 5\n")
    write(tmp_path / "unused.py", "Z = 6\n")
    write(tmp_path / "flow.py", MODULES)
    runs(tmp_path, "time")
    assert is_up_to_date(tmp_path, "time")
    edits = [
        ("flow.py", 'Path("one")', 'Path("two")'),
        ("flow.py", '"a+"', '"b+"'),
        ("flow.py", "return 1", "return 9"),
        ("first.py", "+ 1", "+ 7"),
        ("second.py", "return 2", "return 3"),
        ("late.py", "return 4", "return 8"),
        ("pack/other.py", "Y = 5", "Y = 6"),
    ]
    for name, before, after in edits:
        text = (tmp_path / name).read_text()
        write(tmp_path / name, text.replace(before, after) + "# so that the size differs, as Python wants it\n")
        assert "1 task done" in runs(tmp_path, "time"), (name, before)
    assert (tmp_path / "sum").read_text() == "two b+ 9 10 6 8"
    write(tmp_path / "unused.py", "Z = 7\n")
    assert is_up_to_date(tmp_path, "time")


def test_a_result_whose_rule_lacks_a_need_is_no_source(tmp_path: Path) -> None:
    """It would stay as it is for ever, whatever is edited."""
    flow = """
from shoal import file, rule
rule("made/{x}", needs="raw/{x}", run="cat {needs} > {out}")
file("sum", needs="made/a", run="cat {needs} > {out}")
"""
    write(tmp_path / "raw/a", "1")
    write(tmp_path / "flow.py", flow)
    runs(tmp_path, "time")
    write(tmp_path / "flow.py", flow.replace("raw/{x}", "rwa/{x}"))
    for words in (("sum",), ("made/a",)):
        refused = shoal(tmp_path, "run", "flow.py", *words, expect=2)
        assert "'rwa/a' is needed by 'made/a' but does not exist" in refused.stderr
    write(tmp_path / "flow.py", flow.replace("raw/{x}", "rwa/{x}") + 'file("made/a")\n')
    assert is_up_to_date(tmp_path, "time")
    (tmp_path / "raw/a").unlink()
    write(tmp_path / "flow.py", flow)
    assert "'raw/a' is needed by 'made/a'" in shoal(tmp_path, "run", expect=2).stderr
    assert "kept 'made/a': it could not be made again: 'raw/a' does not exist" in shoal(tmp_path, "clean").stdout
    assert not (tmp_path / "sum").exists() and (tmp_path / "made/a").exists()


def test_a_file_that_nobody_made_may_be_a_source_beside_a_rule(tmp_path: Path) -> None:
    write(tmp_path / "made/a", "by hand")
    write(
        tmp_path / "flow.py",
        """
from shoal import file, rule
rule("made/{x}", needs="raw/{x}", run="cat {needs} > {out}")
file("sum", needs="made/a", run="cat {needs} > {out}")
""",
    )
    runs(tmp_path, "time")
    assert (tmp_path / "sum").read_text() == "by hand"


@pytest.mark.parametrize("target", [(), ("sum",)])
def test_a_part_of_a_directory_that_a_task_makes_is_no_source(tmp_path: Path, target: tuple[str, ...]) -> None:
    """Without an edge the two tasks would run at the same time."""
    write(tmp_path / "i", "1")
    write(
        tmp_path / "flow.py",
        """
from shoal import file
file("d", needs="i", run="mkdir -p d/e; cp i d/e/x")
file("sum", needs="d/e/x", run="cat {needs} > {out}")
""",
    )
    refused = shoal(tmp_path, "run", "flow.py", *target, expect=2).stderr
    assert "flow.py:4: 'd/e/x' is part of 'd', which a task makes as a whole" in refused
    write(
        tmp_path / "flow.py",
        """
from shoal import file, rule
rule("{x}.d", needs="{x}", run="mkdir -p {out}; cp i {out}/x")
file("sum", needs=["i.d", "i.d/x"], run="cat {needs} > {out}")
""",
    )
    assert "flow.py:4: 'i.d/x' is part of 'i.d'" in shoal(tmp_path, "run", "flow.py", *target, expect=2).stderr
