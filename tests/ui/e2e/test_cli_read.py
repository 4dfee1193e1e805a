"""The commands that look at a run, while it goes on and afterwards: plan, status, why, output, cancel, graph."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.command import shoal, start, wait_until

CHAIN = (
    "a.txt:\n\techo made a; echo a > a.txt\n\n"
    "b.txt: a.txt\n\tcat a.txt > b.txt\n\n"
    "c.txt side.txt: b.txt\n\techo made c; echo c > c.txt; touch side.txt\n"
)
GATED = (
    "fast.txt:\n\techo > fast.txt\n\n"
    "slow.txt: fast.txt\n\techo so far; cat gate > slow.txt\n\n"
    "other.txt: fast.txt\n\tcat gate2 > other.txt\n\n"
    "idle.txt: fast.txt\n\techo > idle.txt\n\n"
    "last.txt: slow.txt other.txt\n\tcat slow.txt other.txt > last.txt\n"
)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A workflow that has been run."""
    (tmp_path / "Makeflow").write_text(CHAIN)
    shoal(tmp_path, "run", "--quiet")
    return tmp_path


@contextmanager
def running(directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A run in which two tasks wait for somebody to open a gate, so both of its cores are busy."""
    (directory / "Makeflow").write_text(GATED)
    for gate in ("gate", "gate2"):
        os.mkfifo(directory / gate)
    run = start(directory, "run", "--jobs", "2", "--order", "fifo")
    try:
        wait_until(lambda: len(live(directory).get("running_tasks", [])) == 2, "two tasks are running")
        yield run
    finally:
        if run.poll() is None:
            run.kill()
        run.wait()


def live(directory: Path) -> dict[str, list[dict[str, object]]]:
    if not (directory / ".shoal").exists():
        return {}
    done = shoal(directory, "status", "--json", expect=None)
    found: dict[str, list[dict[str, object]]] = json.loads(done.stdout or "{}")
    return found


def open_gates(directory: Path) -> None:
    for gate in ("gate", "gate2"):
        with open(directory / gate, "w") as file:
            file.write("through\n")


def test_plan_counts_reasons_and_names_each_task(made: Path) -> None:
    assert shoal(made, "plan").stdout == "nothing to do: 3 tasks are up to date\n"
    (made / "b.txt").unlink()
    said = shoal(made, "plan").stdout
    assert "2 tasks would run, 1 up to date" in said
    assert "b.txt: its output 'b.txt' is missing" in said
    assert "c.txt: it depends on 'b.txt', which runs" in said
    assert not (made / "b.txt").exists()


def test_plan_as_json_gives_every_reason(made: Path) -> None:
    (made / "Makeflow").write_text(CHAIN.replace("cat a.txt", "cat ./a.txt"))
    plan = json.loads(shoal(made, "plan", "--json").stdout)
    assert [(task["name"], task["reason"]) for task in plan["tasks"]] == [
        ("b.txt", "changed"),
        ("c.txt", "needs_another"),
    ]


def test_status_shows_a_run_that_goes_on(tmp_path: Path) -> None:
    with running(tmp_path) as run:
        said = shoal(tmp_path, "status").stdout
        assert "Makeflow: running for" in said
        assert f"by process {run.pid}" in said
        assert "1 done, 0 up to date, 0 failed, 2 running, 2 not started" in said
        assert "slow.txt (echo, process" in said
        open_gates(tmp_path)
        assert run.wait(60) == 0
    assert "(everything was made), 5 of 5 tasks done" in shoal(tmp_path, "status").stdout


def test_status_watched_ends_with_the_run(tmp_path: Path) -> None:
    with running(tmp_path):
        watch = start(tmp_path, "status", "--watch")
        open_gates(tmp_path)
        assert watch.wait(60) == 0


def test_status_tells_a_killed_run_from_one_that_ended(tmp_path: Path) -> None:
    with running(tmp_path) as run:
        run.send_signal(signal.SIGKILL)
        run.wait()
    said = shoal(tmp_path, "status").stdout
    assert "killed" in said
    assert "'shoal run' continues it" in said


def test_status_lists_failures(tmp_path: Path) -> None:
    (tmp_path / "Makeflow").write_text("bad:\n\texit 3\n")
    shoal(tmp_path, "run", "-q", expect=1)
    said = shoal(tmp_path, "status").stdout
    assert "(with failures)" in said
    assert "  bad: exit status 3" in said


def test_status_lists_several_workflows(made: Path) -> None:
    (made / "other.mf").write_text("x:\n\ttouch x\n")
    shoal(made, "run", "other.mf", "-q")
    said = shoal(made, "status").stdout.splitlines()
    assert said[0].startswith("Makeflow: ended")
    assert said[1].startswith("other.mf: ended")
    assert "1 of 1 task done" in shoal(made, "status", "other.mf").stdout


def test_status_without_a_run_is_a_sentence(tmp_path: Path) -> None:
    assert "no workflow has been run" in shoal(tmp_path, "status", expect=2).stderr
    (tmp_path / "Makeflow").write_text(CHAIN)
    assert "has not been run yet" in shoal(tmp_path, "status", "Makeflow", expect=2).stderr


def test_why_tells_where_each_task_of_a_live_run_stands(tmp_path: Path) -> None:
    with running(tmp_path):
        assert "'fast.txt' was done at" in shoal(tmp_path, "why", "fast.txt").stdout
        assert "'slow.txt' has been running since" in shoal(tmp_path, "why", "slow.txt").stdout
        last = shoal(tmp_path, "why", "last.txt").stdout
        assert "'last.txt' waits for 2 unfinished tasks" in last
        idle = shoal(tmp_path, "why", "idle.txt").stdout
        assert "'idle.txt' is queued and waits for cores: it declares none (1 is assumed), and 0 of 2 are" in idle
        assert "held by 'slow.txt' (1" in idle
        whole = shoal(tmp_path, "why").stdout
        assert whole.startswith("2 running, 1 ready, 1 waiting for dependencies.")
        told = json.loads(shoal(tmp_path, "why", "idle.txt", "--json").stdout)
        assert (told["cause"], told["shortage"]["resource"], told["ahead"]) == ("resources", "cores", 0)
        assert told["names"][str(told["shortage"]["holders"][0]["task"])] == "slow.txt"
        assert json.loads(shoal(tmp_path, "why", "--json").stdout)["running"] == 2


def test_why_tells_what_the_next_run_would_do(made: Path) -> None:
    assert "'b.txt' is up to date: done at" in shoal(made, "why", "b.txt").stdout
    assert "'c.txt' is up to date" in shoal(made, "why", "side.txt").stdout
    assert "'a.txt' is up to date" in shoal(made, "why", "0").stdout
    (made / "a.txt").unlink()
    said = shoal(made, "why", "c.txt").stdout
    assert "'c.txt' would run because it depends on 'b.txt', which runs." in said
    assert "The chain begins with 'a.txt', which runs because its output 'a.txt' is missing." in said
    wrong = shoal(made, "why", "b.tx", expect=2).stderr
    assert "did you mean 'b.txt'" in wrong


def test_output_prints_what_the_last_attempt_wrote(made: Path) -> None:
    assert shoal(made, "output", "a.txt").stdout == "made a\n"
    assert shoal(made, "output", "side.txt").stdout == "made c\n"
    assert shoal(made, "output", "2").stdout == "made c\n"
    silent = shoal(made, "output", "b.txt")
    assert silent.stdout == ""
    assert "'b.txt' wrote nothing" in silent.stderr
    (made / "Makeflow").write_text(CHAIN + "\nnew.txt:\n\ttouch new.txt\n")
    assert "no attempt of 'new.txt' is recorded" in shoal(made, "output", "new.txt", expect=1).stderr


@pytest.mark.parametrize("word", ["directory", "nothing"])
def test_output_refuses_a_word_that_is_neither_workflow_nor_target(made: Path, word: str) -> None:
    (made / "directory").mkdir()
    said = f"there is no task or file called {word!r}"
    assert said in shoal(made, "output", "a.txt", word, expect=2).stderr
    assert said in shoal(made, "output", "a.txt", "Makeflow", word, expect=2).stderr


def test_an_empty_word_is_no_workflow(made: Path) -> None:
    assert "there is no task or file called ''" in shoal(made, "why", "", expect=2).stderr


@pytest.mark.parametrize(
    ("place", "said"), [("", "-o is empty"), ("-", "-o is standard output, and a crate cannot be written there")]
)
def test_a_crate_wants_a_place(made: Path, place: str, said: str) -> None:
    there = sorted(made.iterdir())
    assert said in shoal(made, "export", "-o", place, expect=2).stderr
    assert sorted(made.iterdir()) == there


def test_output_of_each_attempt_can_be_had(tmp_path: Path) -> None:
    flow = (
        'from shoal import task\ntask("flaky", run="echo try; test -e seen && exit 0; touch seen; exit 1", retries=1)\n'
    )
    (tmp_path / "flow.py").write_text(flow)
    shoal(tmp_path, "run", "flaky", "-q")
    assert shoal(tmp_path, "output", "flaky", "--attempt", "1").stdout == "try\n"
    everything = shoal(tmp_path, "output", "flaky", "--all").stdout
    assert everything.count("try\n") == 2
    assert "attempt 1," in everything
    assert "exit status 1" in everything
    said = shoal(tmp_path, "output", "flaky", "--attempt", "3", expect=1).stderr
    assert said == "shoal: attempt 3 of 'flaky' is not recorded; there are attempts 1 and 2\n"


def test_output_of_a_running_task_is_what_it_wrote_so_far(tmp_path: Path) -> None:
    with running(tmp_path):
        wait_until(lambda: shoal(tmp_path, "output", "slow.txt").stdout == "so far\n", "the task has written")


def test_cancel_stops_the_run(tmp_path: Path) -> None:
    with running(tmp_path) as run:
        assert f"asked process {run.pid} to stop" in shoal(tmp_path, "cancel").stdout
        assert run.wait(60) == 143
    assert "is not being run" in shoal(tmp_path, "cancel", expect=2).stderr


def test_cancel_of_a_task_leaves_the_others_alone(tmp_path: Path) -> None:
    with running(tmp_path) as run:
        assert "no task or file called 'slwo.txt'" in shoal(tmp_path, "cancel", "slwo.txt", expect=2).stderr
        assert "to cancel 1 task" in shoal(tmp_path, "cancel", "slow.txt").stdout
        wait_until((tmp_path / "idle.txt").exists, "the freed core is used")
        with open(tmp_path / "gate2", "w") as file:
            file.write("through\n")
        assert run.wait(60) == 1
    assert (tmp_path / "other.txt").exists()
    assert not (tmp_path / "last.txt").exists()


def test_graph_as_dot_and_json_has_tasks_and_what_they_need(made: Path) -> None:
    dot = shoal(made, "graph").stdout
    assert dot.startswith('digraph "Makeflow" {')
    assert "t0 -> t1;" in dot
    tasks = json.loads(shoal(made, "graph", "--format", "json").stdout)["tasks"]
    assert [(task["name"], task["needs"]) for task in tasks] == [
        ("a.txt", []),
        ("b.txt", ["a.txt"]),
        ("c.txt", ["b.txt"]),
    ]
    assert "c.txt" not in shoal(made, "graph", "b.txt").stdout


def test_graph_by_category_has_one_box_for_all_of_a_kind(tmp_path: Path) -> None:
    (tmp_path / "Makeflow").write_text(
        "".join(f"o{n}:\n\ttouch o{n}\n\n" for n in range(9)) + "all: o1 o2\n\tcat o1 o2 > all\n"
    )
    dot = shoal(tmp_path, "graph", "--by", "category").stdout
    assert 'label="touch\\n9 tasks"' in dot
    assert 't0 -> t1 [label="2"];' in dot


def test_graph_as_svg_needs_graphviz_and_says_so(made: Path) -> None:
    if shutil.which("dot") is None:
        assert "which is not installed" in shoal(made, "graph", "--format", "svg", expect=2).stderr
    else:
        shoal(made, "graph", "--format", "svg", "-o", "graph.svg")
        assert "<svg" in (made / "graph.svg").read_text()
    assert "cannot write 'no/such/file'" in shoal(made, "graph", "-o", "no/such/file", expect=2).stderr
