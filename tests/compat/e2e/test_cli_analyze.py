"""`shoal makeflow-analyze` and `shoal makeflow-viz` as a user runs them: output, files and exit status."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from support.command import shoal

FLOW = "b: a\n\tcat a > b\nc: b /etc/hostname\n\tcat b /etc/hostname > c\n"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "w.mf").write_text(FLOW)
    (tmp_path / "a").write_text("hello\n")
    return tmp_path


def test_a_sound_file_is_called_so(directory: Path) -> None:
    assert shoal(directory, "makeflow-analyze", "-k", "w.mf").stdout == "w.mf: Syntax OK.\n"


def test_the_analysis_prints_four_numbers(directory: Path) -> None:
    shown = shoal(directory, "makeflow-analyze", "-i", "w.mf").stdout
    assert shown == "num_of_tasks\t2\ndepth\t2\nwidth_uniform_task\t1\nwidth_guaranteed_max\t1\n"


def test_without_an_option_nothing_is_printed(directory: Path) -> None:
    assert shoal(directory, "makeflow-analyze", "w.mf").stdout == ""


def test_the_last_of_several_listings_counts(directory: Path) -> None:
    assert sorted(shoal(directory, "makeflow-analyze", "-I", "-O", "w.mf").stdout.split()) == ["b", "c"]


def test_the_usual_file_is_found_and_its_absence_is_an_error(directory: Path) -> None:
    assert "./Makeflow" in shoal(directory, "makeflow-analyze", "-k", expect=1).stderr
    (directory / "Makeflow").write_text(FLOW)
    assert shoal(directory, "makeflow-analyze", "-k").stdout == "./Makeflow: Syntax OK.\n"


@pytest.mark.parametrize(
    ("text", "place", "below"),
    [
        ("a:\n\tx\nb a: c\n\ty\n", "w.mf:3:3:", "b a: c\n      ^"),
        ("a: b\n\tx\nb: a\n\tx\n", "w.mf:", "^"),
        (".MAKEFLOW CORES many\n", "w.mf:1:17:", ".MAKEFLOW CORES many\n                    ^"),
        ("a: b\n\techo $NOT_SET_AT_ALL\n", "w.mf:2:7:", "^"),
        ("# x\ry\na:\n\tx\na: c\n\ty\n", "w.mf:4:1:", "a: c\n    ^"),
    ],
)
def test_an_error_shows_its_line_and_a_caret(tmp_path: Path, text: str, place: str, below: str) -> None:
    (tmp_path / "w.mf").write_text(text)
    said = shoal(tmp_path, "makeflow-analyze", "-k", "w.mf", expect=1).stderr
    assert place in said
    assert below in said


def test_a_bundle_can_be_carried_away_and_run(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    shown = shoal(directory, "makeflow-analyze", "-b", "bundle", "w.mf").stdout
    assert sorted(shown.splitlines()) == ["/etc/hostname\thostname", "a\ta"]
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "bundle"
    shutil.move(directory / "bundle", elsewhere)
    (elsewhere / "hostname").write_text("bundled\n")
    shoal(elsewhere, "run", "w.mf")
    assert (elsewhere / "c").read_text() == "hello\nbundled\n"


def test_a_bundle_writes_nothing_outside_its_directory(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (tmp_path / "a").write_text("above\n")
    (here / "a").write_text("here\n")
    (tmp_path / "sub.mf").write_text("c:\n\techo c > c\n")
    (here / "w.mf").write_text("b: a ../a\n\tcat a ../a > b\nc:\n\tMAKEFLOW ../sub.mf\n")
    assert "../a\ta1" in shoal(here, "makeflow-analyze", "-b", "bundle", "w.mf").stdout
    assert {path.name for path in here.iterdir()} == {"a", "w.mf", "bundle"}
    assert (here / "a").read_text() == "here\n"
    shoal(here / "bundle", "makeflow", "w.mf")
    assert (here / "bundle" / "b").read_text() == "here\nabove\n"


def test_workflows_in_json_and_jx_are_described_as_well(tmp_path: Path) -> None:
    (tmp_path / "w.json").write_text('{"rules": [{"command": "x", "inputs": ["a"], "outputs": ["b"]}]}')
    (tmp_path / "w.jx").write_text('{"rules": [{"command": "x", "outputs": ["o" + i]} for i in range(N)]}')
    assert shoal(tmp_path, "makeflow-analyze", "--json", "-I", "w.json").stdout == "a\n"
    shown = shoal(tmp_path, "makeflow-analyze", "--jx-define", "N=3", "-i", "w.jx").stdout
    assert shown.startswith("num_of_tasks\t3\n")


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_graphviz_accepts_drawings_of_awkward_names(tmp_path: Path) -> None:
    (tmp_path / "w.mf").write_text("'a\"b' \"c\\\\d\": 'e f'\n\techo '\"'\n")
    for options in ([], ["--dot-details"], ["--dot-proportional"], ["--dot-file-attr", "color=red"]):
        drawn = shoal(tmp_path, "makeflow-viz", *options, "w.mf").stdout
        done = subprocess.run(["dot", "-Tplain"], input=drawn, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("\nnode ") >= 4


def test_formats_that_write_files_write_them_here(directory: Path) -> None:
    assert "<graph" in shoal(directory, "makeflow-viz", "-D", "cyto", "w.mf").stdout
    assert "vizmap" in (directory / "style.xml").read_text()
    assert "pegasus-plan" in shoal(directory, "makeflow-viz", "-D", "dax", "w.mf").stdout
    assert '<job id="ID0000001" name="cat">' in (directory / "w.mf.dax").read_text()
    assert "file:///etc/hostname" in (directory / "w.mf.rc").read_text()
    assert "tr cat {" in (directory / "w.mf.tc").read_text()


def test_an_unknown_format_is_one_sentence(directory: Path) -> None:
    assert "one of dot, ppm, cyto, dax, json" in shoal(directory, "makeflow-viz", "-D", "svg", "w.mf", expect=1).stderr


def test_options_of_one_format_choose_it(directory: Path) -> None:
    assert shoal(directory, "makeflow-viz", "-D", "json", "--dot-merge-similar", "w.mf").stdout.startswith("digraph")
