"""`shoal convert` as a user calls it: what it writes runs to the same files, here and in the original program."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from support.command import PATIENCE, environment, shoal

MAKEFLOW = """\
export GREETING
GREETING=hello  world
.SIZE letters.txt 10
letters.txt "with blank.txt": raw.txt
\tfold -w1 < raw.txt > letters.txt; echo "\\$GREETING #1 \\\\ '\\$HOME'" > "with blank.txt"
.MAKEFLOW CATEGORY count
.MAKEFLOW MEMORY 50
.MAKEFLOW MODE MIN_WASTE
counts.txt: letters.txt
CORES=2
\tsort letters.txt | uniq -c > counts.txt && printf '%s\\\\n' "{out} \\$CATEGORY \\$CORES" >> counts.txt
last: counts.txt with\\ blank.txt
\tLOCAL cat counts.txt with\\\\ blank.txt > last
"""
MADE = ("letters.txt", "with blank.txt", "counts.txt", "last")
needs_original = pytest.mark.skipif(shutil.which("makeflow") is None, reason="Debian's makeflow is not installed")


def workflow(directory: Path) -> None:
    (directory / "raw.txt").write_text("some words\n")
    (directory / "Makeflow").write_text(MAKEFLOW)


def made(directory: Path) -> dict[str, str]:
    """The content of what the workflow made, which is removed."""
    found = {name: (directory / name).read_text() for name in MADE}
    for name in MADE:
        (directory / name).unlink()
    return found


def original(directory: Path, *words: str) -> None:
    done = subprocess.run(
        ["makeflow", *words],
        cwd=directory,
        env=environment({"OMPI_MCA_ess_singleton_isolated": "1"}),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("language", "name"), [("makeflow", "w.mf"), ("json", "w.json"), ("rules", "flow.py")])
def test_a_converted_workflow_makes_the_same_files(tmp_path: Path, language: str, name: str) -> None:
    workflow(tmp_path)
    shoal(tmp_path, "run", "Makeflow", "--quiet", "--jobs", "2")
    expected = made(tmp_path)
    assert expected["last"].endswith("{out} count 2\nhello  world #1 \\ '" + os.environ["HOME"] + "'\n")
    shoal(tmp_path, "convert", "Makeflow", "--to", language, "-o", name)
    shoal(tmp_path, "run", "-w", name, "--quiet", "--jobs", "2")
    assert made(tmp_path) == expected


@needs_original
@pytest.mark.parametrize(("language", "options"), [("makeflow", []), ("json", ["--json"])])
def test_the_original_runs_what_was_converted(tmp_path: Path, language: str, options: list[str]) -> None:
    workflow(tmp_path)
    original(tmp_path, "Makeflow")
    expected = made(tmp_path)
    shoal(tmp_path, "convert", "Makeflow", "--to", language, "-o", "converted")
    original(tmp_path, *options, "converted")
    assert made(tmp_path) == expected


TRICKY_NAMES = [
    "a b",
    '"q"',
    "$d",
    "#h",
    "\\bs",
    "c:d",
    "e->f",
    "g=h",
    "@i",
    "'s",
    "--x",
    "-",
    "j-->k",
    ".MAKEFLOW",
    "tab\tx",
]
TRICKY_COMMANDS = [
    "echo  two   blanks ",
    " begins and ends ",
    'echo "  quoted" \'  quoted\' "$HOME \'x\' \\" " # no comment',
    "printf 'a\\n%s' \"\\$A\\\\\" $(date) ${A} $$ \\",
    "echo 'two\nlines' \"two\nlines\"",
    "a'b\"c",
    "echo {} {{out}} > x->y: z=1 @ .SIZE",
]


@needs_original
@pytest.mark.parametrize(("language", "options"), [("makeflow", []), ("json", ["--json"])])
def test_the_original_reads_the_same_names_and_commands(tmp_path: Path, language: str, options: list[str]) -> None:
    rules = [{"command": command, "outputs": [f"o{number}"]} for number, command in enumerate(TRICKY_COMMANDS)]
    rules.append({"command": "true", "inputs": TRICKY_NAMES, "outputs": [f"{name}.out" for name in TRICKY_NAMES]})
    (tmp_path / "w.json").write_text(json.dumps({"rules": rules}))
    shoal(tmp_path, "convert", "w.json", "--to", language, "-o", "converted")
    done = subprocess.run(
        ["makeflow_viz", "-D", "json", *options, "converted"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    # The original's own printer writes \\' where JSON has no such thing.
    seen = json.loads(done.stdout.replace("\\'", "'"))["rules"]
    assert [rule["command"] for rule in seen] == [*TRICKY_COMMANDS, "true"]
    assert sorted(seen[-1]["inputs"]) == sorted(TRICKY_NAMES)
    assert sorted(seen[-1]["outputs"]) == sorted(f"{name}.out" for name in TRICKY_NAMES)


def test_a_jx_workflow_is_evaluated_with_what_the_command_line_defines(tmp_path: Path) -> None:
    (tmp_path / "w.jx").write_text(
        '{"define": {"N": 1}, "rules": [{"command": T+i, "outputs": ["o"+i]} for i in range(N)]}'
    )
    (tmp_path / "args.json").write_text('{"T": "touch o"}')
    done = shoal(tmp_path, "convert", "w.jx", "--to", "json", "--jx-args", "args.json", "--jx-define", "N=2")
    assert json.loads(done.stdout)["rules"] == [
        {"command": "touch o0", "outputs": ["o0"]},
        {"command": "touch o1", "outputs": ["o1"]},
    ]
    done = shoal(tmp_path, "convert", "w.jx", "N=1", 'T="touch o"', "--to", "makeflow")
    assert done.stdout.endswith("\no0:\n\ttouch o0\n")


def test_a_sub_workflow_is_given_its_arguments(tmp_path: Path) -> None:
    (tmp_path / "child.jx").write_text('{"rules": [{"command": "echo "+WORD+" > c", "outputs": ["c"]}]}')
    rule = {"workflow": "child.jx", "args": {"WORD": "it's"[:2] + " me"}, "outputs": ["c"]}
    (tmp_path / "parent.json").write_text(json.dumps({"rules": [rule]}))
    shoal(tmp_path, "run", "parent.json", "--quiet")
    assert (tmp_path / "c").read_text() == "it me\n"


def test_a_rules_file_becomes_a_makeflow(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(
        "from shoal import rule, task\n"
        "rule('{x}.out', needs='{x}.in', run='cp {needs} {out}', memory='2G', env={'A': 'b'})\n"
        "task('all', needs=['1.out', '2.out'])\n"
    )
    for name in ("1.in", "2.in"):
        (tmp_path / name).write_text(name)
    shoal(tmp_path, "convert", "flow.py", "--to", "makeflow", "-o", "Makeflow")
    shoal(tmp_path, "run", "Makeflow", "--quiet")
    assert (tmp_path / "2.out").read_text() == "2.in"
    assert "MEMORY=2048" in (tmp_path / "Makeflow").read_text()


def test_what_the_format_cannot_express_is_an_error_that_names_the_task(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text("from shoal import task\n\n\n@task\ndef greet():\n    pass\n")
    done = shoal(tmp_path, "convert", "flow.py", "--to", "json", expect=2)
    assert done.stdout == ""
    assert "flow.py:4: the task 'greet' calls a Python function" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["Makeflow", "--to", "xml"], "--to cannot be 'xml'"),
        (["Makeflow"], "--to"),
        (["absent", "--to", "json"], "the workflow file 'absent' does not exist"),
        (["Makeflow", "o", "--to", "json"], "the whole workflow is converted"),
        (["broken.json", "--to", "makeflow"], "broken.json:1:12: rules[0] has neither a command nor a workflow"),
        (["Makeflow", "--to", "json", "-o", "no/such/directory"], "cannot write 'no/such/directory'"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path: Path, words: list[str], said: str) -> None:
    (tmp_path / "Makeflow").write_text("o:\n\ttouch o\n")
    (tmp_path / "broken.json").write_text('{"rules": [{}]}')
    done = shoal(tmp_path, "convert", *words, expect=2)
    assert said in done.stderr
    assert done.stdout == ""
