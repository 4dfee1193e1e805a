"""What Shoal promises about the user's files before anything runs: the rules of docs/files.md on unknown files, on
`adopt` and `clean`, and on the stand-in for makeflow."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from support.command import PATIENCE, shoal, start, wait_until

RULES = """
from shoal import file, rule
rule("data/{x}.txt", run="echo made > data/{x}.txt; echo {x} >> log")
file("sum", needs=["data/a.txt", "data/b.txt"], run="cat data/*.txt > sum; echo sum >> log")
"""
MAKEFLOW = """data/a.txt:
\techo made > data/a.txt; echo a >> log

data/b.txt:
\techo made > data/b.txt; echo b >> log

sum: data/a.txt data/b.txt
\tcat data/a.txt data/b.txt > sum; echo sum >> log
"""
SENTENCE = "exists, but was not made by this workflow"
REMEDY = "'shoal adopt' accepts it as made, 'shoal run --overwrite' makes it again"


def tree(directory: Path) -> dict[str, tuple[int, int, str]]:
    """Every file that is not Shoal's own: inode, time and content."""
    found = {}
    for path in sorted(directory.rglob("*")):
        if ".shoal" not in path.parts and path.is_file():
            status = path.stat()
            found[str(path.relative_to(directory))] = status.st_ino, status.st_mtime_ns, path.read_text()
    return found


def ran(directory: Path) -> list[str]:
    """The tasks that have run since the last question."""
    log = directory / "log"
    names = log.read_text().split() if log.exists() else []
    log.unlink(missing_ok=True)
    return sorted(names)


@pytest.fixture(params=["flow.py", "Makeflow"])
def flow(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    name: str = request.param
    (tmp_path / name).write_text(RULES if name == "flow.py" else MAKEFLOW)
    (tmp_path / "data").mkdir()
    return name


def refused(directory: Path, *words: str) -> str:
    """What is said of a run that must not begin; nothing may have changed."""
    before = tree(directory)
    said = shoal(directory, "run", *words, expect=2).stderr
    assert tree(directory) == before
    assert said.endswith(f"{REMEDY}\n")
    return said


def test_file_made_by_hand_stops_the_run(tmp_path: Path, flow: str) -> None:
    (tmp_path / "data" / "a.txt").write_text("by hand\n")
    said = refused(tmp_path, flow)
    line = 3 if flow == "flow.py" else 1
    assert said == f"shoal: {flow}:{line}: 'data/a.txt' {SENTENCE}; {REMEDY}\n"
    assert REMEDY in shoal(tmp_path, "plan", flow).stdout
    assert f"'data/a.txt' {SENTENCE}" in shoal(tmp_path, "why", "data/a.txt", flow).stdout
    told = json.loads(shoal(tmp_path, "plan", flow, "--json").stdout)
    assert told["unknown"] == ["data/a.txt"]
    assert [task["unknown"] for task in told["tasks"] if task["name"] == "data/a.txt"] == [["data/a.txt"]]
    refused(tmp_path, flow, "--force")
    refused(tmp_path, flow, "sum")
    shoal(tmp_path, "run", flow, "data/b.txt")
    assert ran(tmp_path) == ["b"]


def test_file_that_appears_behind_a_task_that_runs_stops_the_run(tmp_path: Path, flow: str) -> None:
    (tmp_path / "sum").write_text("by hand\n")
    assert f"'sum' {SENTENCE}" in refused(tmp_path, flow)


def test_several_unknown_files_are_named(tmp_path: Path, flow: str) -> None:
    for name in ("sum", "data/a.txt", "data/b.txt"):
        (tmp_path / name).write_text("by hand\n")
    said = refused(tmp_path, flow)
    assert all(repr(name) in said for name in ("sum", "data/a.txt", "data/b.txt"))
    assert "3 outputs exist, but were not made by this workflow" in shoal(tmp_path, "plan", flow).stdout


def test_lost_records_stop_the_run(tmp_path: Path, flow: str) -> None:
    shoal(tmp_path, "run", flow)
    assert ran(tmp_path) == ["a", "b", "sum"]
    shutil.rmtree(tmp_path / ".shoal")
    refused(tmp_path, flow)
    assert ran(tmp_path) == []


def test_what_is_up_to_date_is_not_touched(tmp_path: Path, flow: str) -> None:
    shoal(tmp_path, "run", flow)
    before = tree(tmp_path)
    for words in (["run", flow], ["plan", flow], ["run", flow, "--overwrite"], ["adopt", flow]):
        shoal(tmp_path, *words)
        assert tree(tmp_path) == before


def test_overwrite_makes_unknown_files_again(tmp_path: Path, flow: str) -> None:
    (tmp_path / "data" / "a.txt").write_text("by hand\n")
    assert REMEDY not in shoal(tmp_path, "run", flow, "--dry-run", "--overwrite").stdout
    shoal(tmp_path, "run", flow, "--overwrite")
    assert (tmp_path / "data" / "a.txt").read_text() == "made\n"
    shoal(tmp_path, "run", flow, "--force")
    assert ran(tmp_path) == ["a", "a", "b", "b", "sum", "sum"]


def test_link_that_leads_nowhere_is_unknown(tmp_path: Path, flow: str) -> None:
    (tmp_path / "data" / "a.txt").symlink_to("elsewhere")
    assert f"'data/a.txt' {SENTENCE}" in refused(tmp_path, flow)
    assert os.readlink(tmp_path / "data" / "a.txt") == "elsewhere"


DIRECTORIES = """
from shoal import file
file("out", run="mkdir -p out/sub; echo new > out/sub/new; echo out >> log")
file("out/one", needs="out", run="echo one > out/one; echo one >> log")
file("sum", needs=["out", "out/one"], run="cat out/one out/sub/new > sum")
"""


def test_empty_directory_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(DIRECTORIES)
    (tmp_path / "out" / "sub").mkdir(parents=True)
    shoal(tmp_path, "run", "flow.py")
    assert ran(tmp_path) == ["one", "out"]


def test_own_file_in_a_directory_without_records_stops_the_run(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(DIRECTORIES)
    (tmp_path / "out" / "sub").mkdir(parents=True)
    (tmp_path / "out" / "sub" / "mine").write_text("mine\n")
    assert f"'out' {SENTENCE}" in refused(tmp_path, "flow.py")


def test_outputs_of_a_task_that_is_divided_stay_its_own(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text("from shoal import file\nfile(['a', 'b'], run='echo 1 > a; echo 1 > b')\n")
    shoal(tmp_path, "run", "flow.py", "a", "b")
    apart = "".join(f"file('{name}', run='echo 2 > {name}')\n" for name in "ab")
    (tmp_path / "flow.py").write_text(f"from shoal import file\n{apart}")
    shoal(tmp_path, "run", "flow.py", "a")
    assert (tmp_path / "a").read_text() == "2\n"
    (tmp_path / "b").write_text("by hand\n")
    assert f"'b' {SENTENCE}" in refused(tmp_path, "flow.py", "b")
    (tmp_path / "b").unlink()
    shoal(tmp_path, "run", "flow.py", "b")
    (tmp_path / "flow.py").write_text("from shoal import file\nfile(['a', 'b'], run='echo 3 > a; echo 3 > b')\n")
    shoal(tmp_path, "run", "flow.py", "a")
    assert (tmp_path / "b").read_text() == "3\n"


def test_edited_command_keeps_its_record(tmp_path: Path, flow: str) -> None:
    shoal(tmp_path, "run", flow)
    text = (tmp_path / flow).read_text()
    (tmp_path / flow).write_text(text.replace("echo made", "echo edited"))
    shoal(tmp_path, "run", flow)
    assert (tmp_path / "sum").read_text() == "edited\nedited\n"


def kept(directory: Path, *words: str, check: str = "time") -> None:
    """Adopts, and nothing but Shoal's records is another afterwards."""
    before = tree(directory)
    shoal(directory, "adopt", *words, "--check", check)
    assert tree(directory) == before


@pytest.mark.parametrize("check", ["time", "content"])
def test_adopt_takes_what_is_there(tmp_path: Path, flow: str, check: str) -> None:
    for name in ("data/a.txt", "data/b.txt", "sum"):
        (tmp_path / name).write_text(f"{name} by hand\n")
    assert "would take 3 tasks as done" in shoal(tmp_path, "adopt", flow, "--dry-run").stdout
    refused(tmp_path, flow)
    kept(tmp_path, flow, check=check)
    assert shoal(tmp_path, "run", flow).stdout.startswith("nothing to do: 3 tasks are up to date")
    assert "took 0 tasks as done; 3 tasks done already" in shoal(tmp_path, "adopt", flow).stdout
    (tmp_path / "data" / "a.txt").write_text("edited\n")
    shoal(tmp_path, "run", flow)
    assert ran(tmp_path) == ["a", "sum"]
    (tmp_path / "data" / "a.txt").write_text("edited again\n")
    assert "took 2 tasks" in shoal(tmp_path, "adopt", flow).stdout
    shoal(tmp_path, "run", flow)
    assert ran(tmp_path) == []


def test_adopt_takes_only_what_targets_need(tmp_path: Path, flow: str) -> None:
    for name in ("data/a.txt", "data/b.txt"):
        (tmp_path / name).write_text("by hand\n")
    kept(tmp_path, flow, "data/a.txt")
    assert "'data/b.txt'" in refused(tmp_path, flow)
    kept(tmp_path, flow, "data/b.txt")
    shoal(tmp_path, "run", flow)
    assert ran(tmp_path) == ["sum"]


def test_adopt_says_what_is_missing(tmp_path: Path) -> None:
    text = "from shoal import file, task\nfile('a', needs='source', run='true')\nfile('b', needs='a', run='true')\n"
    text += "file('c', run='echo > c')\ntask('last', run='echo last >> log', needs='c')\nfile('d', run='true')\n"
    (tmp_path / "flow.py").write_text(text + "task('all', needs=['b', 'last', 'd'])\n")
    for name in "acd":
        (tmp_path / name).write_text("by hand\n")
    said = shoal(tmp_path, "adopt", "flow.py", expect=2)
    assert said.stdout == "took 2 tasks as done\n  c\n  d\n"
    assert said.stderr.splitlines() == [
        "flow.py:2: cannot adopt 'a': its input 'source' does not exist",
        "flow.py:3: cannot adopt 'b': 'a', which it needs, is not done",
        "flow.py:5: cannot adopt 'last': it has no output file that would show whether it is done",
    ]
    shoal(tmp_path, "run", "flow.py", "last", "d")
    assert ran(tmp_path) == ["last"]


FUNCTIONS = """
from shoal import file
@file("a")
def a(t):
    open(t.out, "w").write("made\\n")
    return 7
@file("b", needs="a")
def b(t):
    open(t.out, "w").write("made\\n")
@file("c", needs="b")
def c(t):
    open(t.out, "w").write(f"{t.needs[0].value}\\n")
"""


def test_adopt_does_not_invent_what_functions_returned(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(FUNCTIONS)
    for name in "ab":
        (tmp_path / name).write_text("by hand\n")
    said = shoal(tmp_path, "adopt", "flow.py", "c", expect=2).stderr
    assert "cannot adopt 'b': its return value is not recorded, and 'c' reads values" in said
    helper = "def read(need):\n    return need.value\n"
    (tmp_path / "flow.py").write_text(FUNCTIONS.replace("t.needs[0].value", "read(t.needs[0])") + helper)
    shoal(tmp_path, "adopt", "flow.py", "b")
    said = shoal(tmp_path, "run", "flow.py", "c", expect=1).stderr
    assert "the return value of 'b' is unknown: its files were recorded by 'shoal adopt'" in said
    (tmp_path / "b").unlink()
    shoal(tmp_path, "run", "flow.py", "c")
    assert (tmp_path / "c").read_text() == "None\n"


def test_value_on_record_outlives_an_adoption(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(FUNCTIONS)
    shoal(tmp_path, "run", "flow.py", "c")
    os.utime(tmp_path / "b", (1, 1))
    shoal(tmp_path, "adopt", "flow.py", "c")
    (tmp_path / "c").unlink()
    assert "1 task done" in shoal(tmp_path, "run", "flow.py", "c").stdout
    assert (tmp_path / "c").read_text() == "None\n"


def test_adoption_survives_a_damaged_ledger(tmp_path: Path, flow: str) -> None:
    for name in ("data/a.txt", "data/b.txt", "sum"):
        (tmp_path / name).write_text("by hand\n")
    kept(tmp_path, flow)
    ledger = tmp_path / ".shoal" / flow / "ledger"
    ledger.write_bytes(ledger.read_bytes() + b"damage")
    assert "nothing to do" in shoal(tmp_path, "run", flow).stdout
    assert (ledger.parent / "ledger.damaged").exists()
    assert "nothing to do" in shoal(tmp_path, "run", flow).stdout


REMADE = "out: source\n\tcat source > out; test ! -e wait || { touch begun; sleep 300; }; echo end >> out\n\n"
REMADE += "copy: out\n\tcp out copy\n"


def test_killed_rule_of_the_stand_in_is_not_done(tmp_path: Path) -> None:
    (tmp_path / "Makeflow").write_text(REMADE)
    (tmp_path / "source").write_text("source\n")
    shoal(tmp_path, "makeflow")
    (tmp_path / "out").unlink()
    (tmp_path / "wait").touch()
    run = start(tmp_path, "makeflow")
    wait_until((tmp_path / "begun").exists, "the rule is half-way")
    run.kill()
    run.wait(PATIENCE)
    (tmp_path / "wait").unlink()
    assert (tmp_path / "out").read_text() == "source\n"
    shoal(tmp_path, "makeflow")
    assert (tmp_path / "out").read_text() == (tmp_path / "copy").read_text() == "source\nend\n"
    assert "nothing left to do" in shoal(tmp_path, "makeflow").stdout


def test_file_written_after_a_failure_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text("from shoal import file\nfile('out', run='echo half > out; false')\n")
    shoal(tmp_path, "run", "flow.py", expect=1)
    shoal(tmp_path, "run", "flow.py", expect=1)
    (tmp_path / "out").write_text("by hand\n")
    assert f"'out' {SENTENCE}" in refused(tmp_path, "flow.py")


def test_half_made_output_of_a_killed_run_is_not_unknown(tmp_path: Path) -> None:
    run = "test ! -e wait || { echo half > out; sleep 300; }; echo whole > out"
    (tmp_path / "flow.py").write_text(f"from shoal import file\nfile('out', run='{run}')\nfile('other', run='false')\n")
    (tmp_path / "wait").touch()
    killed = start(tmp_path, "run", "flow.py", "out")
    wait_until((tmp_path / "out").exists, "the task is half-way")
    killed.kill()
    killed.wait(PATIENCE)
    (tmp_path / "wait").unlink()
    (tmp_path / "other").write_text("by hand\n")
    assert SENTENCE not in shoal(tmp_path, "plan", "flow.py", "out").stdout
    assert f"'other' {SENTENCE}" in shoal(tmp_path, "plan", "flow.py", "other").stdout
    shoal(tmp_path, "run", "flow.py", "out")
    assert (tmp_path / "out").read_text() == "whole\n"


def test_results_that_damage_has_cost_are_unknown(tmp_path: Path, flow: str) -> None:
    shoal(tmp_path, "run", flow)
    ledger = tmp_path / ".shoal" / flow / "ledger"
    data = ledger.read_bytes()
    at = data.index(b"\xa3end")
    ledger.write_bytes(data[:at] + b"xxxx" + data[at + 4 :])
    said = shoal(tmp_path, "run", flow, expect=2).stderr
    assert "outputs of the other tasks count as unknown" in said and SENTENCE in said
    ran(tmp_path)
    shoal(tmp_path, "adopt", flow)
    shoal(tmp_path, "run", flow)
    assert ran(tmp_path) == []


IN_A_DIRECTORY = """
from shoal import file
file("out", run="mkdir -p out/sub; echo 1 > out/one; echo 2 > out/sub/two; ln -s one out/link")
file("out/other", needs="out", run="echo > out/other")
"""


def left(directory: Path) -> list[str]:
    """Everything but the workflow and Shoal's own directory, directories with a slash."""
    paths = (path for path in directory.rglob("*") if ".shoal" not in path.parts and path.name != "flow.py")
    return sorted(f"{path.relative_to(directory)}{'/' if path.is_dir() else ''}" for path in paths)


def test_clean_keeps_a_hand_made_file_in_an_output_directory(tmp_path: Path) -> None:
    """Also one that was written a moment before the task ran, and one with the time of what the task made."""
    (tmp_path / "flow.py").write_text(IN_A_DIRECTORY)
    (tmp_path / "out").mkdir()
    shoal(tmp_path, "run", "flow.py")
    (tmp_path / "out" / "mine").write_text("mine\n")
    moment = (tmp_path / "out" / "one").stat().st_mtime_ns
    os.utime(tmp_path / "out" / "mine", ns=(moment, moment))
    (tmp_path / "out" / "sub" / "two").write_text("edited\n")
    said = shoal(tmp_path, "clean", "flow.py", "--dry-run").stdout
    assert "would remove 3 files" in said
    said = shoal(tmp_path, "clean", "flow.py").stdout
    assert "kept 'out/mine': it was not made by the task that makes its directory" in said
    assert "kept 'out/sub/two': it has changed since it was made" in said
    assert left(tmp_path) == ["out/", "out/mine", "out/sub/", "out/sub/two"]


def test_forced_clean_never_takes_what_no_task_makes(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(IN_A_DIRECTORY)
    shoal(tmp_path, "run", "flow.py")
    (tmp_path / "out" / "mine").write_text("mine\n")
    (tmp_path / "out" / "sub" / "two").write_text("edited\n")
    (tmp_path / "out" / "other").write_text("edited\n")
    shoal(tmp_path, "clean", "flow.py", "--force")
    assert left(tmp_path) == ["out/", "out/mine"]


def test_clean_keeps_unknown_files_unless_forced(tmp_path: Path, flow: str) -> None:
    shoal(tmp_path, "run", flow, "data/b.txt")
    for name in ("data/a.txt", "sum"):
        (tmp_path / name).write_text("by hand\n")
    said = shoal(tmp_path, "clean", flow, "sum").stdout
    assert "kept 'sum': it is an output, but no finished task is recorded for it" in said
    shoal(tmp_path, "clean", flow)
    assert sorted(tree(tmp_path)) == sorted([flow, "data/a.txt", "log", "sum"])
    shoal(tmp_path, "run", flow, "--overwrite")
    (tmp_path / "sum").write_text("edited\n")
    shoal(tmp_path, "clean", flow, "--force")
    assert sorted(tree(tmp_path)) == sorted([flow, "log"])


def test_clean_keeps_what_was_replaced(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text("from shoal import file\nfile('out', run='echo made > out')\n")
    shoal(tmp_path, "run", "flow.py")
    (tmp_path / "out").write_text("by hand\n")
    shoal(tmp_path, "run", "flow.py")
    replaced = tmp_path / ".shoal" / "flow.py" / "replaced" / "out"
    for words in (["clean", "flow.py"], ["run", "flow.py"], ["clean", "flow.py", "--force"]):
        shoal(tmp_path, *words)
        assert replaced.read_text() == "by hand\n"
    assert "kept files that runs replaced, in .shoal/flow.py/replaced" in shoal(tmp_path, "clean", "flow.py").stdout
    assert [path.name for path in replaced.parent.parent.iterdir()] == ["replaced"]


def test_clean_removes_what_was_half_made(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text("from shoal import file\nfile('out', run='echo half > out; false')\n")
    shoal(tmp_path, "run", "flow.py", expect=1)
    assert (tmp_path / ".shoal" / "flow.py" / "partial" / "out").read_text() == "half\n"
    shoal(tmp_path, "clean", "flow.py")
    assert left(tmp_path) == [] and not (tmp_path / ".shoal").exists()


KILLED = """
from shoal import file
HANG = "sleep 600"
file("o", run=f"echo half > o.tmp; touch begun; {HANG}; mv o.tmp o")
file("d", run=f"mkdir d; echo half > d/made; touch begun2; {HANG}")
MAKE = "test -e again || { echo old > old; exit 0; }"
file("old", needs="source", run=f"{MAKE}; echo half > old; touch begun3; {HANG}")
"""


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A run was killed, its tasks are gone, and the user has written files since."""
    (tmp_path / "flow.py").write_text(KILLED)
    (tmp_path / "source").write_text("1")
    shoal(tmp_path, "run", "flow.py", "old")
    for name in ("source", "again"):
        (tmp_path / name).write_text("22")
    run = start(tmp_path, "run", "flow.py", "--jobs", "3")
    wait_until(lambda: all((tmp_path / name).exists() for name in ("begun", "begun2", "begun3")), "all have begun")
    run.kill()
    run.wait()
    partial = tmp_path / ".shoal" / "flow.py" / "partial"
    partial.mkdir(exist_ok=True)
    (partial / "earlier").write_text("of an attempt that failed\n")
    (tmp_path / "o").write_text("by hand\n")
    (tmp_path / "d" / "notes.txt").write_text("by hand\n")
    return tmp_path


def test_clean_keeps_what_was_written_after_a_kill(killed: Path) -> None:
    said = shoal(killed, "clean", "flow.py").stdout
    kept = killed / ".shoal" / "flow.py" / "interrupted"
    assert "kept the file at 'o' after a run was killed, as '.shoal/flow.py/interrupted/o'" in said
    assert (kept / "o").read_text() == (kept / "d" / "notes.txt").read_text() == "by hand\n"
    assert sorted(path.name for path in kept.iterdir()) == ["d", "o", "old"]
    assert [path.name for path in kept.parent.iterdir()] == ["interrupted"]
    assert not (killed / "o").exists() and not (killed / "d").exists() and not (killed / "old").exists()
    shoal(killed, "clean", "flow.py")
    assert not (killed / ".shoal").exists(), "the user has been told of it"


def test_dry_run_of_clean_says_what_clean_does_after_a_kill(killed: Path) -> None:
    def records() -> list[str]:
        own = killed / ".shoal" / "flow.py"
        assert (own / "attempts").exists()
        kinds = ("aside", "partial", "interrupted", "replaced")
        return sorted(str(path) for kind in kinds for path in (own / kind).rglob("*"))

    before = tree(killed), records()
    foreseen = shoal(killed, "clean", "flow.py", "--dry-run").stdout
    assert (tree(killed), records()) == before
    said = shoal(killed, "clean", "flow.py").stdout.splitlines(keepends=True)
    assert foreseen.startswith("a run was killed: would restore 1 output\nwould remove 1 file (4 B)")
    done = "".join(said[[line.startswith("removed") for line in said].index(True) :])
    told = foreseen.partition("\n")[2].replace("would remove", "removed").replace("would keep", "kept")
    assert told == done
    assert "  old\n" in done


def test_clean_removes_what_was_half_made_on_another_file_system(tmp_path: Path, flow: str) -> None:
    shoal(tmp_path, "run", flow)
    for kind in ("partial", "interrupted", "interrupted.1"):
        (tmp_path / "data" / f".a.txt.shoal-{kind}").write_text("half\n")
    shoal(tmp_path, "clean", flow)
    assert not (tmp_path / "data").exists()


def test_clean_finds_all_outputs_of_a_task_that_left_the_workflow(tmp_path: Path) -> None:
    text = "from shoal import file\nfile(['a', 'b'], run='echo > a; echo > b')\n"
    (tmp_path / "flow.py").write_text(text + "file('out', run='mkdir -p out; echo > out/one')\n")
    shoal(tmp_path, "run", "flow.py")
    (tmp_path / "flow.py").write_text("from shoal import file\nfile('c', run='echo > c')\n")
    shoal(tmp_path, "clean", "flow.py")
    assert left(tmp_path) == []


def test_adopted_directory_is_cleaned_by_its_list(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(IN_A_DIRECTORY)
    shoal(tmp_path, "run", "flow.py", "out")
    (tmp_path / "out" / "mine").write_text("mine\n")
    os.utime(tmp_path / "out" / "one", (1, 1))
    shoal(tmp_path, "adopt", "flow.py", "out")
    assert "nothing to do" in shoal(tmp_path, "run", "flow.py", "out").stdout
    shoal(tmp_path, "clean", "flow.py")
    assert left(tmp_path) == ["out/", "out/mine"]
