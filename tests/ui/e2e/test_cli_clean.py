"""`shoal clean` removes what a workflow made, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command import shoal, start, wait_until

WORKFLOW = (
    "made/a.txt: source.txt\n\tcp source.txt made/a.txt\n\n"
    "made/deep/b.txt: made/a.txt\n\tcp made/a.txt made/deep/b.txt\n\n"
    "c.txt:\n\techo c > c.txt\n"
)


def names(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if ".shoal" not in path.parts)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    (tmp_path / "Makeflow").write_text(WORKFLOW)
    (tmp_path / "source.txt").write_text("source\n")
    (tmp_path / "notes.txt").write_text("the user's own\n")
    shoal(tmp_path, "run", "-q")
    return tmp_path


def test_clean_leaves_what_was_there_before_the_run(made: Path) -> None:
    said = shoal(made, "clean").stdout
    assert "removed 3 files" in said
    assert names(made) == ["Makeflow", "notes.txt", "source.txt"]
    assert not (made / ".shoal").exists()


def test_dry_run_removes_nothing(made: Path) -> None:
    before = names(made)
    assert "would remove 3 files" in shoal(made, "clean", "--dry-run").stdout
    assert names(made) == before
    assert "3 tasks are up to date" in shoal(made, "run").stdout


def test_file_changed_by_the_user_is_kept_unless_forced(made: Path) -> None:
    (made / "c.txt").write_text("edited by hand\n")
    said = shoal(made, "clean").stdout
    assert "kept 'c.txt': it has changed since it was made" in said
    assert (made / "c.txt").read_text() == "edited by hand\n"


def test_forced_clean_removes_changed_outputs_but_no_source(made: Path) -> None:
    (made / "c.txt").write_text("edited by hand\n")
    (made / "source.txt").write_text("edited by hand\n")
    shoal(made, "clean", "--force")
    assert names(made) == ["Makeflow", "notes.txt", "source.txt"]


def test_directory_with_a_file_of_the_user_stays(made: Path) -> None:
    (made / "made/deep/mine.txt").write_text("mine\n")
    shoal(made, "clean")
    assert names(made) == ["Makeflow", "made", "made/deep", "made/deep/mine.txt", "notes.txt", "source.txt"]


def test_output_that_was_there_before_any_run_is_kept(tmp_path: Path) -> None:
    (tmp_path / "Makeflow").write_text("ok:\n\ttouch ok\n\nout:\n\tfalse\n")
    shoal(tmp_path, "run", "ok", "-q")
    (tmp_path / "out").write_text("not made by a task\n")
    said = shoal(tmp_path, "clean").stdout
    assert "kept 'out'" in said
    assert names(tmp_path) == ["Makeflow", "out"]


def test_target_whose_name_is_not_utf8_is_known_again(tmp_path: Path) -> None:
    """It is what makes the task: without it nobody knows the file that was made."""
    (tmp_path / "flow.py").write_text('from shoal import rule\nrule("r/{x}.txt", run="echo {x} > {out}")\n')
    shoal(tmp_path, "run", "flow.py", "r/x\udcff.txt")
    shoal(tmp_path, "status", "flow.py")
    shoal(tmp_path, "status", "flow.py", "--json")
    shoal(tmp_path, "report", "flow.py", "--json")
    assert "removed 1 file " in shoal(tmp_path, "clean", "flow.py").stdout
    shoal(tmp_path, "run", "flow.py", "r/x\udcff.txt")


def test_output_of_a_task_that_left_the_workflow_is_found(made: Path) -> None:
    (made / "Makeflow").write_text(WORKFLOW.split("\n\nc.txt")[0] + "\n")
    shoal(made, "clean")
    assert names(made) == ["Makeflow", "notes.txt", "source.txt"]


def test_output_that_has_become_a_source_is_kept(made: Path) -> None:
    (made / "Makeflow").write_text("d.txt: c.txt\n\tcp c.txt d.txt\n")
    shoal(made, "run", "-q")
    shoal(made, "clean")
    assert (made / "c.txt").exists()
    assert not (made / "d.txt").exists()


def test_declared_directory_loses_only_what_its_task_put_there(tmp_path: Path) -> None:
    (tmp_path / "Makeflow").write_text("out:\n\tmkdir -p out/sub; echo 1 > out/one; echo 2 > out/sub/two\n")
    shoal(tmp_path, "run", "-q")
    wait_until(lambda: later_than(tmp_path / "out/one", tmp_path / "mine"), "the clock has moved on")
    said = shoal(tmp_path, "clean").stdout
    assert "removed 2 files" in said
    assert names(tmp_path) == ["Makeflow", "mine"]


def test_file_put_into_a_declared_directory_by_the_user_is_kept(tmp_path: Path) -> None:
    (tmp_path / "Makeflow").write_text("out:\n\tmkdir -p out; echo 1 > out/one\n")
    shoal(tmp_path, "run", "-q")
    wait_until(lambda: later_than(tmp_path / "out/one", tmp_path / "out/mine"), "the clock has moved on")
    assert "kept 'out/mine'" in shoal(tmp_path, "clean", "--force").stdout
    assert names(tmp_path) == ["Makeflow", "out", "out/mine"]


def later_than(made: Path, mine: Path) -> bool:
    """Writes a file until its time is clearly behind that of what the task made."""
    mine.write_text("mine\n")
    return mine.stat().st_ctime > made.stat().st_ctime + 0.2


def test_clean_is_refused_while_the_workflow_runs(tmp_path: Path) -> None:
    (tmp_path / "Makeflow").write_text("a:\n\ttouch a; exec sleep 300\n")
    run = start(tmp_path, "run")
    try:
        wait_until((tmp_path / "a").exists, "the task has started")
        assert "is being run by process" in shoal(tmp_path, "clean", expect=2).stderr
        assert (tmp_path / "a").exists()
    finally:
        run.terminate()
        run.wait(60)


def test_clean_before_any_run_has_nothing_to_do(tmp_path: Path) -> None:
    (tmp_path / "Makeflow").write_text(WORKFLOW)
    assert "nothing to clean" in shoal(tmp_path, "clean").stdout


SEVERAL = """
from shoal import file, rule, task
file("a", run="echo 1 > a")
file(["b", "b2"], run="echo 1 > b; echo 1 > b2")
file("c", needs=["a"], run="cp a c")
rule("{x}.up", needs="{x}", run="cp {x} {x}.up")
task("both", needs=["b", "c"])
task("all", needs=["both", "a.up"])
"""


@pytest.fixture
def several(tmp_path: Path) -> Path:
    (tmp_path / "flow.py").write_text(SEVERAL)
    (tmp_path / "source").write_text("mine\n")
    shoal(tmp_path, "run", "flow.py", "-q")
    return tmp_path


@pytest.mark.parametrize(
    ("target", "gone"), [("b", {"b", "b2"}), ("c", {"c"}), ("a.up", {"a.up"}), ("both", {"b", "b2", "c"})]
)
def test_clean_of_targets_removes_only_their_outputs(several: Path, target: str, gone: set[str]) -> None:
    before = set(names(several))
    said = shoal(several, "clean", "flow.py", target, "--dry-run").stdout
    assert said.startswith(f"would remove {len(gone)} file") and set(names(several)) == before
    assert shoal(several, "clean", "flow.py", target).stdout == said.replace("would remove", "removed")
    assert before - set(names(several)) == gone
    done = 1 + (target == "both")
    assert f"{4 - done} up to date" in shoal(several, "run", "flow.py").stdout, "other records stay"
    assert set(names(several)) == before


def test_clean_of_a_target_keeps_what_others_put_into_its_directory(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(
        "from shoal import file\n"
        "file('d', run='mkdir -p d; echo > d/one')\n"
        "file('d/two', needs='d', run='echo > d/two')\n"
    )
    shoal(tmp_path, "run", "flow.py", "-q")
    shoal(tmp_path, "clean", "flow.py", "d")
    assert names(tmp_path) == ["d", "d/two", "flow.py"]


@pytest.mark.parametrize("target", ["nothing", "source"])
def test_clean_of_what_no_task_makes_is_refused(several: Path, target: str) -> None:
    before = names(several)
    said = shoal(several, "clean", "flow.py", "b", target, expect=2).stderr
    assert said.count("\n") == 1 and repr(target) in said
    assert names(several) == before


def test_clean_finds_its_files_although_the_last_target_is_gone(several: Path) -> None:
    shoal(several, "run", "flow.py", "a.up", "-q")
    (several / "flow.py").write_text("from shoal import file\nfile('a', run='echo 1 > a')\n")
    shoal(several, "clean", "flow.py")
    assert names(several) == ["flow.py", "source"]
