"""`shoal export` over real runs of every kind of workflow, and what is told of those that went wrong."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from urllib.parse import unquote

import pytest
from rocrate.rocrate import ROCrate  # type: ignore[import-untyped]  # it has no types

from shoal.ledger.file import LedgerWriter
from shoal.ledger.records import RunEnded, TasksPlanned, TaskStarted
from shoal.ui.cli.main import main
from shoal.ui.report.crate import MOST_TASKS
from support.clusters import NAME, local_cluster
from support.command import SHOAL, shoal, start, wait_until
from support.crates import Crate, check_crate, several, types
from support.ledgers import accepted, ledger_path, records, run_ids
from support.views import ended, over, started

SUPPORT = Path(__file__).resolve().parents[2] / "support"
NETS = Path(__file__).resolve().parents[3] / "examples" / "nets"
VALIDATOR = Path(sys.prefix) / "validator" / "bin" / "python"
"""Of the environment that 'make test' makes for the validator."""
"""An interpreter that has `roc-validator`."""
HOSTILE = ["a b", "a%20b", "q\"uo'te", "ünï☃", "x#y", "50%", "a?b&c=d:e", "<tag>", "new\nline", "http:", "[b]|^`\\"]
FLOW = """
from shoal import param, rule, task

HOSTILE = NAMES
SIZE = param("size", "1")


def make(t):
    with open(t.out, "w") as file:
        file.write(SIZE)


for number, name in enumerate(HOSTILE):
    rule(f"out/{name}", ["in.dat"], run=make, category=f"kind {number % 3} #%é/..")
rule("../above", ["in.dat"], run="cat in.dat > ../above", env={"COLOUR": "b l#ue"})
rule("whole", [f"out/{name}" for name in HOSTILE] + ["../above"], run="cat in.dat > whole", category="join")
rule("bad", ["whole"], run="echo no >&2; exit 3", retries=1)
rule("late", ["bad"], run="touch late")
task("all", needs=["late"])
""".replace("NAMES", repr(HOSTILE))
Export = Callable[..., Crate]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workflow with hostile names that was run twice; one of its tasks fails each time."""
    folder = tmp_path_factory.mktemp("ran") / "w"
    folder.mkdir()
    (folder / "flow.py").write_text(FLOW)
    (folder / "in.dat").write_text("hello\n")
    shoal(folder, "run", "flow.py", "all", "size=7", "-j2", "--quiet", expect=1)
    shoal(folder, "run", "flow.py", "all", "size=7", "-j2", "--quiet", expect=1)
    return folder


@pytest.fixture
def export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Export:
    """Exports a run and reads the crate; what was said is its `said`."""

    def exported(run: Path | str, *words: str, name: str = "crate") -> Crate:
        status = main(["export", str(run), "-o", str(tmp_path / name), *words])
        said = capsys.readouterr()
        assert status == 0, said.err
        crate = Crate(tmp_path / name)
        crate.document["said"] = said.out + said.err
        return crate

    return exported


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The sentence with which a command line is refused."""
    capsys.readouterr()
    assert main(["export", *words]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    return said


def test_a_run_with_hostile_names_is_a_valid_crate(ran: Path, export: Export) -> None:
    crate = export(f"{ran / 'flow.py'}@1")
    check_crate(crate)
    for number, name in enumerate(HOSTILE):
        action = crate.task(f"out/{name}")
        assert [one["name"] for one in crate.refer(action, "instrument")] == [f"kind {number % 3} #%é/.."]
        (result,) = crate.refer(action, "result")
        assert result["localPath"] == f"out/{name}"
        assert unquote(result["@id"]) == f"#data/out/{name}"
        assert (result["contentSize"], result["sha256"]) == ("1", hashlib.sha256(b"7").hexdigest())
    assert crate.named("File", "../above")["@id"] == f"#outside{ran.parent}/above"


def test_a_failed_task_and_its_run_say_why(ran: Path, export: Export) -> None:
    crate = export(ran / "flow.py@1")
    bad = crate.task("bad")
    assert (bad["error"], bad["description"]) == ("exit status 3", "echo no >&2; exit 3")
    assert crate.used(bad)["attempts"] == 2
    assert "result" not in bad and [one["name"] for one in crate.refer(bad, "object")] == ["whole"]
    assert crate.run["error"] == "1 task failed and 1 did not run."
    assert [one for one in crate.of_type("CreateAction") if one["name"] == "late"] == []
    assert crate.used(crate.task("whole"))["attempts"] == 1


def test_values_of_variables_are_told_only_if_asked_for(ran: Path, export: Export, tmp_path: Path) -> None:
    crate = export(ran / "flow.py@1", name="names")
    check_crate(crate)
    (variable,) = crate.refer(crate.task("../above"), "environment")
    assert variable["name"] == "COLOUR" and "value" not in variable
    metadata = (tmp_path / "names" / "ro-crate-metadata.json").read_text()
    assert "l#ue" not in metadata and "l%23ue" not in metadata


def test_parameters_and_variables_are_told(ran: Path, export: Export) -> None:
    crate = export(ran / "flow.py@1", "--env-values")
    values = [one for one in crate.refer(crate.run, "object") if one["@type"] == "PropertyValue"]
    assert [(one["name"], one["value"]) for one in values] == [("size", "7")]
    (variable,) = [one for one in crate.refer(crate.task("../above"), "environment") if one["name"] == "COLOUR"]
    assert variable["value"] == "b l#ue"


def test_only_what_ran_in_that_run_is_told(ran: Path, export: Export) -> None:
    crate = export(ran / "flow.py")
    check_crate(crate)
    assert [one["name"] for one in crate.of_type("CreateAction") if one["@id"] != "#run"] == ["bad"]


@pytest.mark.parametrize("name", ["crate", "crate.zip"])
def test_all_data_is_in_the_crate_under_names_of_its_own(ran: Path, export: Export, name: str) -> None:
    crate = export(f"{ran / 'flow.py'}@1", "--data", "all", name=name)
    check_crate(crate)
    inside = {f"data/out/{name}" for name in HOSTILE} | {f"outside{ran.parent}/above", "data/in.dat", "data/whole"}
    assert crate.files == inside | {"flow.py", "ro-crate-metadata.json"}
    assert str(len(inside)) + " copied" in crate.document["said"]


def test_another_library_reads_the_crate(ran: Path, export: Export, tmp_path: Path) -> None:
    export(f"{ran / 'flow.py'}@1", "--data", "all")
    read = ROCrate(tmp_path / "crate")
    assert read.mainEntity["name"] == "flow.py"
    assert {entity["name"] for entity in read.data_entities} >= {f"out/{name}" for name in HOSTILE}
    assert len(read.get_by_type("CreateAction")) == len(HOSTILE) + 4
    assert all(action.get("instrument")["name"] for action in read.get_by_type("CreateAction"))


def test_a_run_is_named_by_number_or_identity(ran: Path, export: Export) -> None:
    first, second = run_ids(ran / "flow.py")
    for word, identity in (("1", first), ("-1", first), (first, first), (second, second)):
        crate = export(ran / "flow.py", "--run", word, name=f"c{word}")
        assert crate.run["name"] == f"Run {identity} of flow.py"


def test_who_and_what_may_be_said(ran: Path, export: Export) -> None:
    who = "Ada Lovelace <https://orcid.org/0000-0002-1825-0097>"
    crate = export(ran / "flow.py", "--author", who, "--license", "CC-BY-4.0", "--name", "N", "--description", "D")
    check_crate(crate)
    assert (crate.root["name"], crate.root["description"]) == ("N", "D")
    assert crate.root["license"] == {"@id": "https://spdx.org/licenses/CC-BY-4.0"}
    assert crate.entities["https://orcid.org/0000-0002-1825-0097"]["name"] == "Ada Lovelace"
    crate = export(ran / "flow.py", "--author", "Björn <3", "--license", "ask me first", name="other")
    check_crate(crate)
    assert crate.entities["#licence"]["description"] == "ask me first"


@pytest.mark.parametrize("text", ["MIT", "0BSD", "GPL-2.0+", "Apache-2.0", "bzip2-1.0.6", "Unlicense"])
def test_a_word_in_the_form_of_an_spdx_identifier_is_one(ran: Path, export: Export, text: str) -> None:
    assert export(ran / "flow.py", "--license", text).root["license"] == {"@id": f"https://spdx.org/licenses/{text}"}


@pytest.mark.parametrize("text", ["proprietary", "Proprietary", "mine", "LicenseRef-ours", "-", "GPL-"])
def test_any_other_word_is_the_terms_of_use(ran: Path, export: Export, text: str) -> None:
    crate = export(ran / "flow.py", f"--license={text}")
    check_crate(crate)
    assert crate.root["license"] == {"@id": "#licence"} and crate.entities["#licence"]["description"] == text


@pytest.mark.parametrize("text", ["none", "NONE", " None ", "NOASSERTION"])
def test_no_licence_may_be_said_in_words(ran: Path, export: Export, text: str) -> None:
    crate = export(ran / "flow.py", "--license", text)
    assert crate.entities["#licence"]["name"] == "No licence"


LANGUAGES = {
    "Makeflow": ("one: in\n\tcat in > one\ntwo three: one\n\tcp one two; cp one three\n", [], "Makeflow"),
    "flow.json": (
        '{"rules": [{"command": "cat in > one", "inputs": ["in"], "outputs": ["one"]},'
        ' {"command": "cp one two; cp one three", "inputs": ["one"], "outputs": ["two", "three"]}]}',
        [],
        "Makeflow as JSON or JX",
    ),
    "flow.jx": (
        '{"rules": [{"command": format("cat in > %s", name), "inputs": ["in"], "outputs": [name]},'
        ' {"command": "cp one two; cp one three", "inputs": [name], "outputs": ["two", "three"]}]}',
        ['name="one"'],
        "Makeflow as JSON or JX",
    ),
}


@pytest.mark.parametrize("name", LANGUAGES)
def test_other_languages_are_told_of_alike(tmp_path: Path, export: Export, name: str) -> None:
    text, words, language = LANGUAGES[name]
    (tmp_path / name).write_text(text)
    (tmp_path / "in").write_text("x")
    shoal(tmp_path, "run", name, *words, "--quiet")
    crate = export(tmp_path / name, "--data", "outputs")
    check_crate(crate)
    assert [one["name"] for one in crate.of_type("ComputerLanguage")] == [language]
    assert [one["name"] for one in crate.refer(crate.run, "object") if one["@type"] == "File"] == ["in"]
    assert [one["name"] for one in crate.refer(crate.run, "result")] == ["two", "three"]
    assert crate.files == {name, "ro-crate-metadata.json", "data/two", "data/three"}
    assert crate.named("File", "one")["@id"] == "#data/one"
    assert [step["position"] for step in crate.of_type("HowToStep")] == ["0", "1"]


def test_a_replayed_trace_and_a_directory_are_told(tmp_path: Path, export: Export) -> None:
    tasks = [{"name": "split", "id": "split_1", "parents": [], "children": [], "outputFiles": ["part"]}]
    took = [{"id": "split_1", "runtimeInSeconds": 5}]
    part = [{"id": "part", "sizeInBytes": 1000}]
    workflow = {"specification": {"tasks": tasks, "files": part}}
    execution = {"makespanInSeconds": 5, "executedAt": "2024-05-01T12:00:00Z", "tasks": took}
    trace = {"name": "tiny", "schemaVersion": "1.5", "workflow": workflow | {"execution": execution}}
    (tmp_path / "tiny.json").write_text(json.dumps(trace))
    shoal(tmp_path, "run", "tiny.json", "time=0.001", "data=0.01", "--quiet")
    crate = export(tmp_path / "tiny.json", "--data", "all")
    check_crate(crate)
    assert [one["name"] for one in crate.of_type("ComputerLanguage")] == ["WfFormat"]
    assert crate.named("File", "tiny.replay/part")["contentSize"] == "10"
    (tmp_path / "Makeflow").write_text("tree:\n\tmkdir -p tree/sub; echo 1 > tree/sub/leaf\n")
    shoal(tmp_path, "run", "Makeflow", "--quiet")
    for name in ("d", "d.zip"):
        crate = export(tmp_path / "Makeflow", "--data", "outputs", name=name)
        check_crate(crate)
        assert "data/tree/sub/leaf" in crate.files and types(crate.entities["data/tree/"]) == {"Dataset"}


def test_a_net_is_told_of_without_files(tmp_path: Path, export: Export) -> None:
    shutil.copy(NETS / "newton.py", tmp_path)
    shoal(tmp_path, "run", "newton.py", "squares=2", "--quiet")
    crate = export(tmp_path / "newton.py")
    check_crate(crate)
    assert [one["name"] for one in crate.of_type("ComputerLanguage")] == ["Shoal net (Python)"]
    assert len(crate.of_type("CreateAction")) > 1


def test_on_a_cluster_tasks_ran_somewhere(tmp_path: Path, export: Export) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "Makeflow").write_text("".join(f"o{n}:\n\techo {n} > o{n}\n" for n in range(6)))
    with local_cluster(tmp_path / "c", 2) as cluster:
        cluster.await_nodes(2)
        cluster.shoal("run", "--cluster", NAME, "--plain", where=tmp_path / "w")
    crate = export(tmp_path / "w" / "Makeflow", "--data", "all")
    check_crate(crate)
    assert len(crate.of_type("Place")) == 2
    assert all(crate.refer(one, "location") for one in crate.of_type("CreateAction") if one["@id"] != "#run")


def test_a_killed_run_is_a_failed_one_and_a_live_one_is_refused(
    tmp_path: Path, export: Export, capsys: pytest.CaptureFixture[str]
) -> None:
    flow = tmp_path / "Makeflow"
    flow.write_text("one:\n\techo 1 > one\ntwo: one\n\tsleep 300; touch two\n")
    process = start(tmp_path, "run", "Makeflow", "--quiet")
    wait_until(lambda: ledger_path(flow).exists() and goes_on(flow), "the second task is known to go on")
    assert "is running; wait for it" in refused(capsys, str(flow), "-o", str(tmp_path / "x"))
    process.kill()
    process.wait()
    crate = export(flow)
    check_crate(crate)
    assert crate.run["error"] == "The run was killed."
    assert crate.task("one")["actionStatus"].endswith("CompletedActionStatus")
    assert "result" not in crate.run
    assert crate.task("two")["error"] == "It was running when the run was killed."
    assert "1 task done, 1 not finished;" in crate.document["said"]
    assert "endTime" not in crate.task("two")


def goes_on(flow: Path) -> bool:
    return any(isinstance(record, TaskStarted) for record in records(flow))


def test_a_run_that_was_left_to_a_cluster_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flow = tmp_path / "Makeflow"
    flow.write_text("one:\n\techo 1 > one\n")
    ledger_path(flow).parent.mkdir(parents=True)
    ledger = LedgerWriter(str(ledger_path(flow)), str(tmp_path / "ballast"))
    ledger.add(started(1))
    ledger.add(over(1.0, "detached"))
    ledger.close()
    assert "fetch them with 'shoal attach Makeflow'" in refused(capsys, str(flow), "-o", str(tmp_path / "x"))


def test_a_cancelled_run_is_a_failed_one(tmp_path: Path, export: Export) -> None:
    flow = tmp_path / "Makeflow"
    flow.write_text("one:\n\techo 1 > one\ntwo: one\n\tsleep 300; touch two\n")
    process = start(tmp_path, "run", "Makeflow", "--quiet")
    wait_until(lambda: ledger_path(flow).exists() and len(accepted(flow)) == 1, "the first task is done")
    shoal(tmp_path, "cancel", "Makeflow")
    process.wait(timeout=60)
    crate = export(flow)
    check_crate(crate)
    assert crate.run["actionStatus"].endswith("FailedActionStatus")
    assert crate.task("two")["error"].startswith("It was cancelled")
    assert "1 task done, 1 not finished;" in crate.document["said"]
    assert "0 tasks failed and 1 did not finish" in crate.run["error"]


def test_a_cancelled_task_has_not_failed(tmp_path: Path, export: Export) -> None:
    flow = tmp_path / "Makeflow"
    flow.write_text("one:\n\techo 1 > one\ntwo: one\n\tsleep 300; touch two\nthree: two\n\ttouch three\n")
    process = start(tmp_path, "run", "Makeflow", "--quiet")
    wait_until(lambda: ledger_path(flow).exists() and len(accepted(flow)) == 1, "the first task is done")
    shoal(tmp_path, "cancel", "Makeflow", "two")
    process.wait(timeout=60)
    crate = export(flow)
    check_crate(crate)
    assert crate.task("two")["error"].startswith("It was cancelled")
    assert "1 task done, 1 cancelled;" in crate.document["said"]
    assert "1 task done, 1 cancelled, 1 not run" in shoal(tmp_path, "report", "Makeflow").stdout
    assert crate.run["error"] == "0 tasks failed, 1 was cancelled and 1 did not run."


def test_what_changed_since_is_not_told_as_if_it_had_been_so(tmp_path: Path, export: Export) -> None:
    flow = tmp_path / "Makeflow"
    flow.write_text("one: in\n\tcat in > one\ntwo: in\n\tcat in > two\nthree: in\n\tcat in > three\nbad:\n\tfalse\n")
    (tmp_path / "in").write_text("x")
    shoal(tmp_path, "run", "Makeflow", "--quiet", expect=1)
    (tmp_path / "one").write_text("longer than before")
    (tmp_path / "two").unlink()
    flow.write_text(flow.read_text().replace("cat in > three", "tac in > three").replace("false", "touch bad"))
    crate = export(flow, "--data", "all")
    check_crate(crate)
    assert "changed since the run, so neither checked nor copied: 1 file" in crate.document["said"]
    assert "changed since the run, so described without files: 2 tasks" in crate.document["said"]
    assert crate.task("bad")["description"] == "no longer known"
    assert crate.named("File", "one")["contentSize"] == "1" and "sha256" not in crate.named("File", "one")
    assert crate.named("File", "two")["description"] == "It no longer exists."
    assert "result" not in crate.task("three")
    assert crate.files == {"Makeflow", "ro-crate-metadata.json", "data/in"}


@pytest.mark.parametrize("check", ["time", "content"])
def test_a_file_that_was_overwritten_at_once_and_at_equal_size_is_not_the_result(
    tmp_path: Path, export: Export, check: str
) -> None:
    flow = tmp_path / "Makeflow"
    again = "echo 9 > two; touch -d @1000000000 two"
    flow.write_text(f"one: in\n\tcat in > one\ntwo:\n\techo 2 > two\nlate: one two\n\t{again}; cat one > late\n")
    (tmp_path / "in").write_text("1\n")
    shoal(tmp_path, "run", "Makeflow", "--check", check, "-j1", "--quiet")
    (tmp_path / "in").write_text("7\n")
    (tmp_path / "one").write_text("8\n")
    crate = export(flow, "--data", "all")
    check_crate(crate)
    for name in ("in", "one", "two"):
        told = crate.named("File", name)
        assert (told["@id"], told["contentSize"]) == (f"#data/{name}", "2")
        assert "sha256" not in told and told["description"].startswith("It was changed since the run")
    assert crate.named("File", "late")["sha256"] == hashlib.sha256(b"1\n").hexdigest()
    assert "neither checked nor copied: 3 files" in crate.document["said"]


def test_a_touched_file_is_the_same_to_a_run_that_looked_at_contents(tmp_path: Path, export: Export) -> None:
    (tmp_path / "Makeflow").write_text("one: in\n\tcat in > one\n")
    (tmp_path / "in").write_text("1\n")
    shoal(tmp_path, "run", "Makeflow", "--check", "content", "--quiet")
    os.utime(tmp_path / "one", (2e9, 2e9))
    assert export(tmp_path / "Makeflow", "--data", "all").files >= {"data/in", "data/one"}


def test_files_of_an_earlier_run_are_held_against_what_that_one_left(tmp_path: Path, export: Export) -> None:
    flow = tmp_path / "flow.py"
    flow.write_text(
        "from shoal import rule, task\n"
        "for name in 'abc':\n"
        "    rule(name, [], run=f'echo {name} > {name}')\n"
        "rule('d', ['a'], run='cat a > d')\n"
        "task('all', needs=['a', 'b', 'c', 'd'])\n"
    )
    shoal(tmp_path, "run", "flow.py", "a", "b", "c", "--quiet")
    shoal(tmp_path, "run", "flow.py", "all", "--quiet")
    made = os.stat(tmp_path / "b").st_mtime
    (tmp_path / "b").write_text("x\n")
    os.utime(tmp_path / "b", (made - 5, made - 5))
    crate = export(flow, "--data", "outputs")
    check_crate(crate)
    assert crate.files == {"flow.py", "ro-crate-metadata.json", "data/a", "data/c", "data/d"}
    assert crate.named("File", "b")["contentSize"] == "2" and "sha256" not in crate.named("File", "b")


def test_the_result_of_a_group_is_what_it_lists(tmp_path: Path, export: Export) -> None:
    (tmp_path / "flow.py").write_text(
        "from shoal import rule, task\n"
        "rule('a.txt', [], run='echo a > a.txt')\n"
        "rule('b.txt', ['a.txt', 'mid'], run='cat a.txt > b.txt')\n"
        "rule('mid', [], run='touch mid')\n"
        "rule('side', [], run='touch side')\n"
        "rule('other', ['b.txt'], run='touch other')\n"
        "task('part', needs=['side'])\n"
        "task('all', needs=['a.txt', 'b.txt', 'part'])\n"
    )
    shoal(tmp_path, "run", "flow.py", "all", "--quiet")
    crate = export(tmp_path / "flow.py", "--data", "outputs")
    check_crate(crate)
    assert {one["name"] for one in crate.refer(crate.run, "result")} == {"a.txt", "b.txt", "side"}
    assert crate.files == {"flow.py", "ro-crate-metadata.json", "data/a.txt", "data/b.txt", "data/side"}


@pytest.mark.parametrize("name", ["crate", "crate.zip"])
@pytest.mark.filterwarnings("error")
def test_a_file_in_a_directory_that_is_copied_as_well_is_there_once(tmp_path: Path, export: Export, name: str) -> None:
    (tmp_path / "Makeflow").write_text(
        "d:\n\tmkdir -p d/sub; touch d/f1 d/sub/f3\nd/f2: d\n\techo 2 > d/f2\nd/sub: d/f2\n\ttouch d/sub/f4\n"
    )
    shoal(tmp_path, "run", "Makeflow", "-j1", "--quiet")
    crate = export(tmp_path / "Makeflow", "--data", "all", name=name)
    check_crate(crate)
    inside = {"data/d/f1", "data/d/f2", "data/d/sub/f3", "data/d/sub/f4"}
    assert crate.files == inside | {"Makeflow", "ro-crate-metadata.json"}
    if name.endswith(".zip"):
        with zipfile.ZipFile(tmp_path / name) as archive:
            assert len(archive.namelist()) == len(set(archive.namelist()))
    assert crate.entities["data/d/f2"]["sha256"] == hashlib.sha256(b"2\n").hexdigest()


def test_a_directory_in_which_a_file_was_changed_after_the_run_is_not_copied(tmp_path: Path, export: Export) -> None:
    (tmp_path / "Makeflow").write_text("d:\n\tmkdir d; echo 1 > d/f\n")
    shoal(tmp_path, "run", "Makeflow", "--quiet")
    with open(tmp_path / "d" / "f", "w") as file:
        file.write("2\n")
    crate = export(tmp_path / "Makeflow", "--data", "outputs")
    assert crate.files == {"Makeflow", "ro-crate-metadata.json"}
    assert crate.entities["#data/d/"]["description"].startswith("It was changed since the run")


def test_a_crate_is_not_written_into_what_it_copies(
    tmp_path: Path, export: Export, capsys: pytest.CaptureFixture[str]
) -> None:
    flow = tmp_path / "Makeflow"
    flow.write_text("d:\n\tmkdir d; echo 1 > d/f\nout.zip:\n\techo 1 > out.zip\n")
    shoal(tmp_path, "run", "Makeflow", "--quiet")
    (tmp_path / "link").symlink_to("d")
    words = [str(flow), "--data", "outputs", "-o"]
    for inside in ("d/crate", "d/x.zip", "link/crate"):
        assert "which is copied into it; choose a path outside of it with -o" in refused(
            capsys, *words, str(tmp_path / inside)
        )
    assert "is a file of the workflow" in refused(capsys, *words, str(tmp_path / "out.zip"))
    assert os.listdir(tmp_path / "d") == ["f"] and (tmp_path / "out.zip").read_text() == "1\n"
    assert export(flow, "--data", "none", name="d/crate").files == {"Makeflow", "ro-crate-metadata.json"}


@pytest.mark.parametrize("name", ["big.zip", "big"])
def test_a_crate_that_cannot_be_written_to_its_end_leaves_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / "Makeflow").write_text("one:\n\thead -c 300000 /dev/urandom > one\n")
    shoal(tmp_path, "run", "Makeflow", "--quiet")
    before = sorted(os.listdir(tmp_path))
    command = [*SHOAL, "export", "Makeflow", "--data", "outputs", "-o", name]
    done = subprocess.run(
        ["sh", "-c", 'ulimit -f 1; exec "$@"', "sh", *command], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "File too large" in done.stderr, done.stderr
    assert name in done.stderr
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("option", ["--name", "--description", "--author", "--license"])
def test_text_that_is_no_utf_8_is_refused_in_a_sentence(
    ran: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    said = refused(capsys, str(ran / "flow.py"), option, "caf\udce9", "-o", str(tmp_path / "x"))
    assert f"{option} is not UTF-8" in said
    assert os.listdir(tmp_path) == []


def test_one_file_under_two_names_is_told_of_once(tmp_path: Path, export: Export) -> None:
    flow = tmp_path / "flow.py"
    flow.write_text(
        "from shoal import rule\n"
        "rule('one', ['flow.py', 'in'], run='cat in > one')\n"
        f"rule('two', ['{tmp_path}/in', '{tmp_path}/flow.py'], run='cat in > two')\n"
        "rule('ro-crate-metadata.json', ['one', 'two'], run='cat one two > ro-crate-metadata.json')\n"
    )
    (tmp_path / "in").write_text("x")
    shoal(tmp_path, "run", "flow.py", "ro-crate-metadata.json", "--quiet")
    crate = export(flow, "--data", "all")
    check_crate(crate)
    read = [{one["@id"] for one in crate.refer(crate.task(name), "object")} for name in ("one", "two")]
    assert read == [{"flow.py", "data/in"}] * 2
    assert "data/ro-crate-metadata.json" in crate.files


def test_files_need_not_be_read(tmp_path: Path, export: Export) -> None:
    (tmp_path / "Makeflow").write_text("one:\n\techo 1 > one\n")
    shoal(tmp_path, "run", "Makeflow", "--quiet")
    told = export(tmp_path / "Makeflow", "--no-checksums").named("File", "one")
    assert told["contentSize"] == "2" and "sha256" not in told


def test_nothing_to_do_is_a_run_of_the_workflow_alone(tmp_path: Path, export: Export) -> None:
    (tmp_path / "Makeflow").write_text("one:\n\techo 1 > one\n")
    shoal(tmp_path, "run", "Makeflow", "--quiet")
    ledger = LedgerWriter(str(ledger_path(tmp_path / "Makeflow")), str(tmp_path / "ballast"))
    ledger.add(started(0, total=1))
    ledger.add(RunEnded(1001.0, "ok", 0, 0, 0))
    ledger.close()
    check_crate(export(f"{tmp_path / 'Makeflow'}@2"), ("process", "workflow"))
    check_crate(export(tmp_path / "Makeflow", name="before"))


def test_many_tasks_are_told_of_by_category_unless_all_are_wanted(
    tmp_path: Path, export: Export, capsys: pytest.CaptureFixture[str]
) -> None:
    flow, count = tmp_path / "flow.py", MOST_TASKS + 1
    flow.write_text("raise SystemExit('it is not there any more')\n")
    ledger_path(flow).parent.mkdir(parents=True)
    ledger = LedgerWriter(str(ledger_path(flow)), str(tmp_path / "ballast"))
    ledger.add(started(count))
    numbers = list(range(count))
    ledger.add(TasksPlanned(numbers, [f"t{n}" for n in numbers], ["even" if n % 2 == 0 else "odd" for n in numbers]))
    for number in numbers:
        bad = number == 3
        ledger.add(ended(number, number, number + 1.0, "failed" if bad else "ok", message="exit status 9" * bad))
    ledger.add(over(count, "failed"))
    ledger.close()
    crate = export(flow)
    check_crate(crate)
    assert "20,000 tasks done, 1 failed, described by category" in crate.document["said"]
    odd = crate.task("10,000 tasks of odd")
    assert odd["error"] == "1 task of 10,000 failed; most often: exit status 9"
    assert crate.used(odd) == {"processor time": 10_000, "attempts": 10_000, "tasks": 10_000, "failed tasks": 1}
    assert "--all-tasks" in refused(capsys, str(flow), "--data", "all", "-o", str(tmp_path / "x"))
    crate = export(flow, "--all-tasks", name="all")
    assert len(several(crate.root["mentions"])) == count + 1


def test_bad_input_is_one_sentence_and_leaves_nothing(
    ran: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flow, output = str(ran / "flow.py"), str(tmp_path / "x")
    assert "no run 7" in refused(capsys, f"{flow}@7", "-o", output)
    assert "no run 'abc'" in refused(capsys, flow, "--run", "abc", "-o", output)
    assert "already names a run" in refused(capsys, f"{flow}@1", "--run", "1", "-o", output)
    assert "--data cannot be 'some'" in refused(capsys, flow, "--data", "some")
    assert "--license is empty" in refused(capsys, flow, "--license", " ", "-o", output)
    assert "does not exist" in refused(capsys, str(tmp_path / "nothing.py"), "-o", output)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert "is not empty" in refused(capsys, flow, "-o", str(tmp_path / "full"))
    assert "cannot be written" in refused(capsys, flow, "-o", str(tmp_path / "no" / "where"))
    assert sorted(os.listdir(tmp_path)) == ["full"]


def test_a_workflow_that_is_gone_is_asked_for(ran: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(ran / ".shoal", tmp_path / ".shoal")
    assert "no longer exists; restore it" in refused(capsys, str(tmp_path / "flow.py"))


@pytest.mark.skipif(not VALIDATOR.exists(), reason="'make test' has not installed roc-validator")
def test_the_validator_of_the_community_agrees(ran: Path, export: Export, tmp_path: Path) -> None:
    export(f"{ran / 'flow.py'}@1", name="told")
    export(f"{ran / 'flow.py'}@1", "--data", "all", name="copied.zip")
    shutil.copytree(tmp_path / "told", tmp_path / "wrong")
    metadata = tmp_path / "wrong" / "ro-crate-metadata.json"
    metadata.write_text(metadata.read_text().replace('"HowToStep"', '"Thing"'))
    said = validated("REQUIRED", tmp_path / "told", tmp_path / "copied.zip")
    assert said[-1].endswith(" checks, 0 wrong"), said
    assert any("HowToStep" in line for line in validated("REQUIRED", tmp_path / "wrong"))


def validated(severity: str, *crates: Path) -> list[str]:
    context = str(files("rocrate") / "data" / "ro-crate.jsonld")
    command = [str(VALIDATOR), str(SUPPORT / "crate_validator.py"), context, severity, *map(str, crates)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300).stdout.splitlines()
