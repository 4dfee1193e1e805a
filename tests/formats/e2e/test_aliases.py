"""One file under several names, because other paths or symbolic links to directories lead to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command import shoal

ONE = 'from shoal import file, rule\nfile("out", needs="source", run="cat source > out")\n'
MAKEFLOW = "out: source\n\tcat source > out\n"
RULE = 'from shoal import rule\nrule("{x}.o", needs="{x}.c", run="cat {needs} > {out}")\n'


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "project"
    (directory / "real").mkdir(parents=True)
    (directory / "sub").mkdir()
    (directory / "here").symlink_to(".")
    (directory / "ln").symlink_to("real")
    (directory / "source").write_text("one\n")
    return directory


def write(project: Path, text: str, name: str = "flow.py") -> None:
    (project / name).write_text(text)


def refusal(project: Path, *words: str) -> str:
    """Its one sentence, without the line of the file that it may show."""
    sentence, *shown = shoal(project, "run", *words, expect=2).stderr.splitlines()
    assert all(line.startswith("    ") for line in shown)
    return sentence


# ---- targets -------------------------------------------------------------------------------------------------------

WAYS = ["../project/out", "here/out", "sub/../out", "none/../out", "here/here/./out", "../project/here/out"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("flow", ["flow.py", "Makeflow"])
def test_target_is_made_whatever_path_leads_to_it(project: Path, flow: str, way: str) -> None:
    write(project, ONE if flow == "flow.py" else MAKEFLOW, flow)
    for text in ("one\n", "two, and longer\n"):  # what is there already must not pass for a source
        (project / "source").write_text(text)
        assert "1 task done" in shoal(project, "run", flow, way).stdout
        assert (project / "out").read_text() == text
    assert "up to date" in shoal(project, "run", flow, way).stdout


@pytest.mark.parametrize("way", ["../project/a.o", "here/a.o", "sub/../a.o"])
def test_target_of_a_rule_is_made_under_its_own_name(project: Path, way: str) -> None:
    write(project, RULE)
    for text in ("1", "22"):
        write(project, text, "a.c")
        assert "1 task done" in shoal(project, "run", "flow.py", way).stdout
        assert (project / "a.o").read_text() == text
    assert "'a.o' is up to date" in shoal(project, "why", "a.o", "flow.py").stdout


def test_target_under_the_real_name_of_an_output_behind_a_link_is_made(project: Path) -> None:
    write(project, 'from shoal import file\nfile("ln/x", needs="source", run="cat source > ln/x")\n')
    (project / "real/x").write_text("old")
    assert "exists, but was not made by this workflow" in shoal(project, "run", "flow.py", "real/x", expect=2).stderr
    (project / "real/x").unlink()
    for way in ("real/x", "ln/x", "../project/real/x"):
        (project / "source").write_text(way)
        assert "1 task done" in shoal(project, "run", "flow.py", way).stdout


@pytest.mark.parametrize("way", ["../other/out", "../project/none", "here/none", "ln/../out2"])
def test_path_that_leads_to_nothing_is_refused(project: Path, way: str) -> None:
    write(project, ONE)
    assert f"nothing makes the target {way!r}" in refusal(project, "flow.py", way)


def test_clean_of_a_target_by_another_path_removes_it_only(project: Path) -> None:
    write(project, ONE + 'file("other", run="touch other")\n')
    shoal(project, "run", "flow.py")
    shoal(project, "clean", "flow.py", "../project/out")
    assert not (project / "out").exists()
    assert (project / "other").exists()


# ---- names in the file ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("out", "need"),
    [
        ("real/x", "ln/x"),
        ("ln/x", "real/x"),
        ("real/x", "here/real/x"),
        ("ln/x", "here/real/x"),
        ("real/d/x", "ln/d/x"),
    ],
)
@pytest.mark.parametrize("target", [[], ["b"]])
def test_need_under_another_name_than_the_output_is_refused(
    project: Path, out: str, need: str, target: list[str]
) -> None:
    """Also if only the one that needs it is to run, and if the file is there."""
    write(
        project,
        "from shoal import file\n"
        f'file("{out}", needs="source", run="touch {out}")\n'
        f'file("b", needs="{need}", run="cat {need} > b")\n',
    )
    real = "real/d/x" if "/d/" in out else "real/x"
    for _ in range(2):
        said = refusal(project, "flow.py", *target)
        assert said.startswith("shoal: flow.py:")
        assert f"{out!r}" in said and f"{need!r}" in said and "are the same file" in said
        assert f"write {real!r}" in said
        assert not (project / "b").exists()
        (project / real).parent.mkdir(exist_ok=True)
        (project / real).touch()


def test_two_outputs_that_are_one_file_are_refused(project: Path) -> None:
    write(project, 'from shoal import file\nfile("real/x", run="touch {out}")\nfile("ln/x", run="touch {out}")\n')
    assert "'ln/x' and 'real/x' are the same file" in refusal(project, "flow.py")
    assert "are the same file" in refusal(project, "flow.py", "ln/x")
    write(project, RULE + 'from shoal import task\ntask("all", needs=["real/a.o", "ln/a.o"])\n')
    write(project, "1", "real/a.c")
    said = refusal(project, "flow.py")
    assert "'ln/a.o' and 'real/a.o' are the same file, and a task makes it; write 'real/a.o'" in said


def test_need_that_a_rule_makes_under_its_real_name_is_refused(project: Path) -> None:
    text = 'from shoal import file, rule\nrule("real/{x}.o", needs="source", run="cp source {out}")\n'
    write(project, text + 'file("b", needs="ln/a.o", run="cat ln/a.o > b")\n')
    assert "'ln/a.o' and 'real/a.o' are the same file" in refusal(project, "flow.py")


def test_need_in_a_directory_that_a_task_makes_is_refused_behind_a_link(project: Path) -> None:
    write(
        project,
        'from shoal import file\nfile("real", run="mkdir real; touch real/x")\n'
        'file("b", needs="ln/x", run="cat ln/x > b")\n',
    )
    assert "part of 'real', which a task makes as a whole" in refusal(project, "flow.py")


def test_sources_and_outputs_behind_links_are_legal(project: Path) -> None:
    write(
        project,
        'from shoal import file\nfile("b", needs=["ln/x", "real/x", "here/source"], run="cat {needs} > b")\n'
        'file("ln/y", needs="b", run="cp b ln/y")\nfile("c", needs="ln/y", run="cp ln/y c")\n'
        'file("here/e", needs="../outside", run="cat {needs} > {out}")\n',
    )
    (project / "real/x").write_text("x\n")
    (project.parent / "outside").write_text("o\n")
    assert "4 tasks done" in shoal(project, "run", "flow.py").stdout
    assert (project / "c").read_text() == "x\nx\none\n"
    assert "up to date" in shoal(project, "run", "flow.py").stdout


def test_pattern_that_no_file_name_can_match_is_refused(project: Path) -> None:
    write(project, "from shoal import file, files\nfile('b', needs=files('a\\0*'), run='true')\n")
    said = refusal(project, "flow.py")
    assert said.startswith("shoal: flow.py:2: ") and "holds a NUL character" in said
