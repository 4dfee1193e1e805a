"""What `shoal status` and its neighbours say of runs, and what they refuse to write over."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from shoal.ledger.statistics import read_live_counters
from shoal.ledger.workspace import Workspace
from support.command import shoal, start, wait_until

FLOW = """\
from shoal import rule, task
rule("upper.txt", needs="plain.txt", run="tr a-z A-Z < {needs} > {out}")
rule(["one.txt", "two.txt"], needs="upper.txt", run="cp {needs} one.txt; cp {needs} two.txt")
task("all", needs=["one.txt"])
"""
PRECIOUS = ("flow.py", "./flow.py", "linked.py", "hard.py", "plain.txt", "upper.txt", "one.txt", ".shoal/flow.py/new")


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A workflow that has been run."""
    (tmp_path / "flow.py").write_text(FLOW)
    (tmp_path / "plain.txt").write_text("some text\n")
    shoal(tmp_path, "run", "--quiet", "flow.py")
    (tmp_path / "linked.py").symlink_to("flow.py")
    (tmp_path / "hard.py").hardlink_to(tmp_path / "flow.py")
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ("report", "flow.py", "-o"),
        ("status", "flow.py", "--categories", "--plot"),
        ("status", "flow.py", "--throttle", "--plot"),
        ("graph", "flow.py", "-o"),
        ("plan", "flow.py", "--nodes", "1", "--plot"),
    ],
)
def test_nothing_is_written_over_a_workflow_or_its_files(made: Path, words: tuple[str, ...]) -> None:
    before = {path.name: path.read_bytes() for path in made.iterdir() if path.is_file()}
    for precious in PRECIOUS:
        said = shoal(made, *words, precious, expect=2)
        assert said.stderr.count("\n") == 1 and precious in said.stderr and words[-1] in said.stderr
        assert not said.stdout
    assert "is empty" in shoal(made, *words, "", expect=2).stderr
    assert {path.name: path.read_bytes() for path in made.iterdir() if path.is_file()} == before
    assert not (made / ".shoal/flow.py/new").exists()
    for _ in range(2):  # what it has written itself is no file of the workflow
        shoal(made, *words, "new.html")


def test_a_workflow_is_not_converted_onto_itself(made: Path) -> None:
    for same in ("flow.py", "linked.py", "hard.py"):
        assert "the workflow itself" in shoal(made, "convert", "flow.py", "--to", "json", "-o", same, expect=2).stderr
    assert (made / "flow.py").read_text() == FLOW
    assert "is empty" in shoal(made, "convert", "flow.py", "--to", "json", "-o", "", expect=2).stderr
    assert shoal(made, "convert", "flow.py", "--to", "json", "-o", "-").stdout.startswith("{")


def test_a_report_to_standard_output_is_the_page_and_nothing_else(made: Path) -> None:
    done = shoal(made, "report", "flow.py", "-o", "-")
    assert done.stdout.startswith("<!DOCTYPE html>") and done.stdout.rstrip().endswith("</html>")
    assert not (made / "-").exists()


SHORT = """\
import os
from shoal import rule, task


def call(task):
    os.system(f"sleep 0.05; touch {task.out}")


rule("c{n}.txt", run="sleep 0.05; touch {out}", category="command", retries=2)
rule("p{n}.txt", run=call, category="call", retries=2)
task("commands", needs=[f"c{n}.txt" for n in range(4000)])
task("calls", needs=[f"p{n}.txt" for n in range(4000)])
"""


def running_now(workspace: Workspace) -> int | None:
    """How many tasks a run says run here at this moment."""
    found = read_live_counters(workspace.directory, workspace.holder())
    return found.running if found is not None else None


@pytest.mark.parametrize(("target", "category"), [("commands", "command"), ("calls", "call")])
def test_short_tasks_count_as_running_while_they_run(tmp_path: Path, target: str, category: str) -> None:
    (tmp_path / "flow.py").write_text(SHORT)
    run = start(tmp_path, "run", "flow.py", target, "--jobs", "2")
    workspace = Workspace(str(tmp_path / "flow.py"))
    wait_until(lambda: running_now(workspace) == 2, "both cores are in use")
    seen: list[tuple[int, int]] = []

    def both() -> bool:
        data = json.loads(shoal(tmp_path, "status", "flow.py", "--json").stdout)
        tables = json.loads(shoal(tmp_path, "status", "flow.py", "--categories", "--json").stdout)
        seen.append((data["running"], next((row["running"] for row in tables if row["category"] == category), 0)))
        return (2, 2) in seen or run.poll() is not None

    wait_until(both, "status says that both run")
    assert (2, 2) in seen
    run.kill()
    run.wait()
    assert running_now(workspace) is None
    assert json.loads(shoal(tmp_path, "status", "flow.py", "--json").stdout)["running"] == 0


def status(directory: Path, *words: str) -> str:
    return shoal(directory, "status", "flow.py", *words).stdout


def test_a_damaged_ledger_is_told_of(made: Path) -> None:
    ledger = made / ".shoal/flow.py/ledger"
    data = ledger.read_bytes()
    at = data.rindex(b"\xa3end")
    ledger.write_bytes(data[:at] + b"xxxx" + data[at + 4 :])
    line = next(line for line in status(made).split("\n") if "damaged" in line)
    assert "bytes of the ledger are damaged; the next run repairs it" in line
    assert json.loads(status(made, "--json"))["damaged_bytes"] > 4
    ledger.write_bytes(b"garbage" * 100)
    assert "700 bytes of the ledger are damaged" in status(made)
    assert json.loads(status(made, "--json"))["damaged_bytes"] == 700
    assert "outputs of the other tasks count as unknown" in shoal(made, "run", "flow.py", "--quiet", expect=2).stderr
    shoal(made, "run", "flow.py", "--quiet", "--overwrite")
    assert "damaged" not in status(made) and json.loads(status(made, "--json"))["damaged_bytes"] == 0


def test_the_data_of_an_ended_run_is_whole(made: Path) -> None:
    data = json.loads(status(made, "--json"))
    assert data["utilisation"] > 0 and data["rate"] > 0 and data["seconds_left"] is None
    assert [data[name] for name in ("running", "waiting", "cannot_run", "cancelled", "not_run")] == [0] * 5
    (made / "flow.py").write_text(FLOW.replace("tr a-z", "false && tr a-z"))
    (made / "plain.txt").write_text("other text\n")
    shoal(made, "run", "flow.py", "--quiet", expect=1)
    data = json.loads(status(made, "--json"))
    assert (data["failed"], data["cannot_run"], data["not_run"]) == (1, 1, 1)


GATE = """\
from shoal import task
task("one", run="while ! test -e gate; do sleep 0.05; done")
task("two", run="while ! test -e gate; do sleep 0.05; done")
task("three", needs=["two"], run="true")
task("four", needs=["one"], run="true")
task("all", needs=["three", "four"])
"""


def gated(directory: Path) -> tuple[subprocess.Popen[bytes], Path]:
    """A run of which two tasks wait for a gate, and what it says."""
    (directory / "flow.py").write_text(GATE)
    said = directory / "said.txt"
    with open(said, "wb") as file:
        run = start(directory, "run", "flow.py", "all", "--jobs", "2", output=file)
    wait_until(lambda: running_now(Workspace(str(directory / "flow.py"))) == 2, "both tasks run")
    return run, said


def test_a_cancelled_task_leaves_a_trace(tmp_path: Path) -> None:
    run, said = gated(tmp_path)
    shoal(tmp_path, "cancel", "flow.py", "two")
    wait_until(lambda: "cancelled: two" in said.read_text(), "the run says so")
    words = "1 running, 1 not started, 1 cancelled, 1 cannot run"
    wait_until(lambda: words in status(tmp_path), "status says so")
    (tmp_path / "gate").touch()
    assert run.wait(60) == 1
    assert said.read_text().count("cancelled: two") == 1
    assert "not everything could be made: 2 tasks done, 1 cancelled, 1 not run" in said.read_text()
    told = status(tmp_path)
    assert "1 cancelled, 1 not run" in told and "(tasks were cancelled)" in told
    report = json.loads(shoal(tmp_path, "report", "flow.py", "--json").stdout)
    assert (report["progress"]["cancelled"], report["progress"]["cannot_run"]) == (1, 1)
    assert "2 tasks done, 1 cancelled, 1 not run" in report["summary"][0]
    data = json.loads(status(tmp_path, "--json"))
    assert (data["failed"], data["cancelled"], data["not_run"]) == (0, 1, 1)


def test_how_far_a_run_is_does_not_fall_when_it_ends(tmp_path: Path) -> None:
    """What failed, and what cannot run without it, brings nobody nearer to the result."""
    gate = "while ! test -e go; do sleep 0.05; done"
    (tmp_path / "flow.py").write_text(
        f'from shoal import task\ntask("last", run="{gate}", cores=0)\ntask("good", run="true", cores=0)\n'
        'bad = task("bad", run="exit 3", cores=0)\ntask("after", needs=[bad], run="true", cores=0)\n'
    )
    process = start(tmp_path, "run", "flow.py")
    wait_until(
        lambda: (
            "1 cannot run" in (said := shoal(tmp_path, "status", "flow.py", expect=None).stdout) and "1 done" in said
        ),
        "it waits",
    )
    assert "\n25 %: 1 done" in shoal(tmp_path, "status", "flow.py").stdout
    (tmp_path / "go").touch()
    process.wait(60)
    assert "\n50 %: 2 done" in shoal(tmp_path, "status", "flow.py").stdout


def test_the_cores_used_are_the_same_wherever_they_are_told(tmp_path: Path) -> None:
    """For a moment three tasks run on two cores, until the throttle knows them."""
    flow = 'from shoal import task\ntask("ok", run="true")\ntask("slow", run="sleep 1")\n'
    (tmp_path / "flow.py").write_text(flow + 'task("bad", run="exit 4", retries=1)\n')
    said = shoal(tmp_path, "run", "flow.py", "-j2", expect=1).stdout
    used = re.search(r"([0-9.]+) % of 2 cores used", said)
    assert used is not None, said
    assert 100 * json.loads(shoal(tmp_path, "status", "--json", "flow.py").stdout)["utilisation"] == pytest.approx(
        float(used[1]), abs=1
    )


def test_a_cancelled_run_says_that_it_was_cancelled(tmp_path: Path) -> None:
    run, said = gated(tmp_path)
    shoal(tmp_path, "cancel", "flow.py")
    assert run.wait(60) == 143
    assert "stopping: it was cancelled" in said.read_text() and "SIGTERM" not in said.read_text()
    assert "(it was cancelled)" in status(tmp_path)
    assert "0 failed, 4 not run" in status(tmp_path)


def test_the_data_of_a_report_goes_where_it_is_asked_for(made: Path) -> None:
    said = shoal(made, "report", "flow.py", "--json", "-o", "new.json")
    assert said.stdout.startswith("wrote new.json: ")
    assert (made / "new.json").read_text() == shoal(made, "report", "flow.py", "--json").stdout
    before = (made / "upper.txt").read_bytes()
    assert "a file of the workflow" in shoal(made, "report", "flow.py", "--json", "-o", "upper.txt", expect=2).stderr
    assert (made / "upper.txt").read_bytes() == before


def test_status_takes_the_number_of_the_last_run_and_no_other(made: Path) -> None:
    assert shoal(made, "status", "flow.py@1").stdout == status(made)
    said = shoal(made, "status", "flow.py@5", expect=2).stderr
    assert "there is no run 5 of 'flow.py'; its ledger has one run" in said
    shoal(made, "run", "flow.py", "--quiet", "--force")
    assert shoal(made, "status", "flow.py@2").stdout == status(made)
    said = shoal(made, "status", "flow.py@1", expect=2).stderr
    assert "the latest run only, and 'flow.py@1' is an earlier one" in said and "shoal report flow.py@1" in said


def test_report_and_why_tell_of_a_damaged_ledger_as_status_does(made: Path) -> None:
    ledger = made / ".shoal/flow.py/ledger"
    data = ledger.read_bytes()
    assert not shoal(made, "report", "flow.py").stderr
    at = data.rindex(b"\xa3end")
    ledger.write_bytes(data[:at] + b"xxxx" + data[at + 4 :])
    line = next(line for line in status(made).split("\n") if "damaged" in line)
    assert shoal(made, "report", "flow.py").stderr == f"shoal: {line}\n"
    for words in (("why", "flow.py"), ("why", "upper.txt", "flow.py")):
        assert shoal(made, *words).stdout.endswith(f"\n{line}\n")
    assert json.loads(shoal(made, "why", "flow.py", "--json").stdout)["damaged_bytes"] > 4
    ledger.write_bytes(b"garbage" * 100)
    for words in (("why", "flow.py"), ("report", "flow.py"), ("export", "flow.py")):
        assert "is damaged: nothing in it is readable" in shoal(made, *words, expect=2).stderr
    assert "700 bytes of the ledger are damaged" in shoal(made, "why", "upper.txt", "flow.py").stdout
