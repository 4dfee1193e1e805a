"""Traces on the command line: plan, replay, resume, export; and what `shoal simulate` says of any workflow."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import InputError
from shoal.execution.conversion import export_wfformat
from shoal.execution.replay import bytes_to_write, refuse_small_disk
from shoal.execution.replay_tasks import replay_task
from shoal.execution.session import look
from shoal.formats.wfformat import WorkflowTrace, read_wfformat, schema_problems
from support.command import environment, shoal
from support.ledgers import accepted
from support.wftraces import SHAPES, VERSIONS, TraceMaker, split_search_join

ROOT = Path(__file__).resolve().parents[3]
SMALL = ("time=0.001", "data=0.01")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory that is the current one; exporting enters the workflow's directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(directory: Path, maker: TraceMaker, version: str = "1.5") -> str:
    (directory / "trace.json").write_bytes(maker.text(version))
    return "trace.json"


def exported(directory: Path, name: str, version: str = "1.5") -> WorkflowTrace:
    text = export_wfformat(str(directory / name), [], version)
    assert list(schema_problems(json.loads(text))) == []
    return read_wfformat(text, name)


def planned(directory: Path, name: str, *words: str) -> int:
    """How many tasks a run would run."""
    return len(look(str(directory / name), words, None).plan.to_run())


def forecast(directory: Path, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shoal(directory, "simulate", *words, "--json").stdout)
    return found


def test_a_replay_makes_every_file_in_its_recorded_size_times_the_scale(here: Path) -> None:
    maker = split_search_join(4)
    name = write(here, maker)
    shoal(here, "run", name, *SMALL, "--quiet")
    sizes = {path.name: path.stat().st_size for path in (here / "trace.replay").iterdir()}
    assert sizes == {file: max(1, round(size * 0.01)) if size else 0 for file, size in maker.sizes.items()}


def test_a_replay_resumes_and_another_scale_replays_again(here: Path) -> None:
    maker = split_search_join(4)
    name = write(here, maker)
    everything = len(maker.tasks) + 1
    assert planned(here, name, *SMALL) == everything
    shoal(here, "run", name, *SMALL, "--quiet")
    assert planned(here, name, *SMALL) == 0
    (here / "trace.replay" / "query.2.sam").unlink()
    assert planned(here, name, *SMALL) == 3  # its maker, and the two tasks that read what that makes
    assert planned(here, name, "time=0.002", "data=0.01") >= everything - 2


def test_ids_that_look_like_paths_stay_inside_the_replays_directory(here: Path) -> None:
    maker = TraceMaker("evil", "Pegasus")
    ids = ["../outside", "/etc/passwd", "..", ".", "a:b/c d", "x" * 400, "%2E%2E"]
    maker.add("make", ["https://example.org/in put"], ids, 0.0)
    workflow = here / "inner"
    workflow.mkdir()
    name = write(workflow, maker)
    shoal(workflow, "run", name, *SMALL, "--quiet")
    assert sorted(path.name for path in here.iterdir()) == ["inner"]
    assert sorted(path.name for path in workflow.iterdir()) == [".shoal", "trace.json", "trace.replay"]
    assert len(list((workflow / "trace.replay").iterdir())) == len(ids) + 1


def test_a_target_can_be_named_by_the_id_of_a_task_or_file(here: Path) -> None:
    name = write(here, split_search_join(4))
    assert planned(here, name, "split_ID000001", *SMALL) == 2
    assert planned(here, name, "query.1.sam", *SMALL) == 4
    done = shoal(here, "plan", name, "query.77", expect=2)
    assert "there is no task or file called 'query.77'" in done.stderr


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("speed=2", "there is no parameter 'speed'; a replay has the parameters time, data, memory, cores"),
        ("time=fast", "time=fast is not a valid factor"),
        ("data=-1", "data=-1 is not a valid factor"),
    ],
)
def test_a_parameter_that_means_nothing_is_refused(here: Path, word: str, message: str) -> None:
    name = write(here, split_search_join(2))
    for command in ("run", "simulate"):
        assert message in shoal(here, command, name, word, expect=2).stderr


def test_a_broken_trace_is_refused_in_one_sentence(here: Path) -> None:
    (here / "trace.json").write_bytes(split_search_join(2).text().replace(b'"sizeInBytes": ', b'"sizeInBytes": -'))
    for command in ("run", "plan", "simulate"):
        done = shoal(here, command, "trace.json", expect=2)
        assert "trace.json: 'sizeInBytes' must be at least 0" in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_a_replayed_task_takes_its_time_and_burns_its_share(here: Path) -> None:
    (here / "in").write_bytes(b"x" * 1000)
    began, cpu = time.monotonic(), time.process_time()
    replay_task(("in",), (("out", 700_001),), 0.2, 0.1, 2, 0)
    assert time.monotonic() - began >= 0.2
    assert time.process_time() - cpu >= 0.08
    assert (here / "out").stat().st_size == 700_001
    with pytest.raises(FileNotFoundError):
        replay_task(("missing",), (), 0.0, 0.0, 1, 0)


def test_a_replayed_task_holds_the_recorded_memory(here: Path) -> None:
    maker = TraceMaker("memory", "Makeflow")
    maker.add("hold", ["in"], ["out"], 0.05, memoryInBytes=90_000_000, avgCPU=10.0)
    name = write(here, maker)
    shoal(here, "run", name, "data=0.001", "memory=1", "--quiet")
    run = exported(here, name).tasks[0].execution
    assert run is not None
    assert 80_000_000 <= (run.memory or 0) <= 140_000_000
    assert run.seconds >= 0.05


def test_a_replay_that_does_not_fit_on_the_disk_can_be_refused(here: Path) -> None:
    maker = split_search_join(2)
    maker.sizes["query.0.sam"] = 1 << 60
    name = write(here, maker)
    plan = look(name, [], None).plan
    assert bytes_to_write(plan) == sum(maker.sizes.values())
    with pytest.raises(InputError, match=r"the replay would write .* are free here; .*data=0.001"):
        refuse_small_disk(plan)
    refuse_small_disk(look(name, ["data=0.0"], None).plan)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_replayed_trace_is_exported_with_what_was_measured(here: Path, version: str) -> None:
    name = write(here, split_search_join(3), version)
    recorded = exported(here, name, version)
    shoal(here, "run", name, *SMALL, "--quiet")
    measured = exported(here, name, version)
    assert [task.id for task in measured.tasks] == [task.id for task in recorded.tasks]
    assert [task.parents for task in measured.tasks] == [task.parents for task in recorded.tasks]
    assert measured.system is not None
    assert measured.system.name == "Shoal"
    took = [record.ended - record.started for record in accepted(here / name)]
    for task in measured.tasks:
        assert task.execution and min(abs(task.execution.seconds - seconds) for seconds in took) < 0.01
    assert [file.size for file in measured.files] == [
        max(1, round(file.size * 0.01)) if file.size else 0 for file in recorded.files
    ]


def test_a_run_of_a_makeflow_is_exported_with_times_sizes_and_failures(here: Path) -> None:
    (here / "Makeflow").write_text(
        "CATEGORY=copy\nCORES=2\na: src\n\tcat src > a\nCATEGORY=other\nb: a\n\tfalse\nc: b\n\ttouch c\n"
        "d: a\n\t/bin/cp a d\n"
    )
    (here / "src").write_text("hello\n")
    never = exported(here, "Makeflow")
    assert [task.execution for task in never.tasks] == [None] * 4
    shoal(here, "run", "Makeflow", "--quiet", "--jobs", "2", expect=1)
    trace = exported(here, "Makeflow")
    assert {file.id: file.size for file in trace.files} == {"src": 6, "a": 6, "b": 0, "c": 0, "d": 6}
    assert [task.command_line for task in trace.tasks] == ["cat src > a", "false", "touch c", "/bin/cp a d"]
    assert [task.category for task in trace.tasks] == ["copy", "other", "other", "other"]
    runs = [task.execution for task in trace.tasks]
    assert runs[2] is None
    assert [run.exit_status for run in runs if run] == [0, 1, 0]
    assert [run.cores for run in runs if run] == [2, 1, 1]
    assert sum(run.seconds for run in runs if run) <= 2 * (trace.makespan or 0)
    assert [machine.cores for machine in trace.machines] == [2]


def test_an_export_can_be_replayed_in_its_turn(here: Path) -> None:
    (here / "Makeflow").write_text("a: src\n\tcat src > a\nb: a\n\tcp a b\n")
    (here / "src").write_text("hello\n")
    shoal(here, "run", "Makeflow", "--quiet")
    (here / "copy.json").write_bytes(export_wfformat(str(here / "Makeflow"), []))
    shoal(here, "run", "--workflow", "copy.json", "--quiet")
    assert (here / "copy.replay" / "b").stat().st_size == 6


def test_a_forecast_says_where_its_durations_come_from(here: Path) -> None:
    name = write(here, split_search_join(4))
    recorded = forecast(here, name, "--jobs", "2")
    assert recorded["durations"] == {"from": "trace", "known": 8, "like_category": 0, "declared": 0, "guessed": 0}
    assert recorded["lower_bound"] <= recorded["makespan"]
    scaled = forecast(here, name, "time=0.5", "--jobs", "2")
    assert scaled["makespan"] == pytest.approx(recorded["makespan"] / 2)
    (here / "Makeflow").write_text("a:\n\ttouch a\nb: a\n\ttouch b\nc: b\n\tcp b c\n")
    guessed = forecast(here, "--workflow", "Makeflow", "--jobs", "2")
    assert guessed["durations"]["guessed"] == 3
    assert guessed["makespan"] == 3.0
    shoal(here, "run", "--workflow", "Makeflow", "--quiet")
    measured = forecast(here, "--workflow", "Makeflow", "--jobs", "2")
    assert measured["durations"] == {"from": "ledger", "known": 3, "like_category": 0, "declared": 0, "guessed": 0}
    took = sum(record.ended - record.started for record in accepted(here / "Makeflow"))
    assert measured["critical_path"] == pytest.approx(took, rel=0.01, abs=0.01)
    assert measured["makespan"] >= measured["critical_path"] * 0.99


def test_more_cores_make_a_forecast_shorter_until_the_critical_path(here: Path) -> None:
    name = write(here, SHAPES["fork-joins"]())
    spans = [forecast(here, name, "--jobs", jobs)["makespan"] for jobs in ("1", "4", "1000")]
    assert spans[0] > spans[1] > spans[2]
    wide = forecast(here, name, "--jobs", "1000", "--order", "critical")
    assert wide["makespan"] == pytest.approx(wide["critical_path"])
    assert wide["order"] == "critical"


def test_a_forecast_is_shown_to_people(here: Path) -> None:
    name = write(here, SHAPES["mosaic"]())
    said = shoal(here, "simulate", name, "--jobs", "2").stdout
    assert said.startswith("trace.json: 21 tasks on 2 cores, order ")
    assert "durations: 21 recorded in the trace" in said
    assert "predicted makespan: " in said
    assert "  project " in said
    assert not (here / ".shoal").exists()


def test_a_task_that_is_larger_than_the_simulated_node_is_refused(here: Path) -> None:
    maker = TraceMaker("large", "Makeflow")
    maker.add("wide", ["in"], ["out"], 1.0, coreCount=16)
    name = write(here, maker)
    done = shoal(here, "simulate", name, "--jobs", "2", expect=2)
    assert "'wide_ID000001' asks for cores 16, but the node has 2; simulate a larger one with --jobs N" in done.stderr
    assert forecast(here, name, "--jobs", "16")["makespan"] == 1.0
    shoal(here, "run", name, *SMALL, "cores=1", "--jobs", "1", "--quiet")


def test_the_check_of_a_directory_of_traces_accepts_ours_and_reports_a_bad_one(tmp_path: Path) -> None:
    for number, shape in enumerate(SHAPES):
        (tmp_path / f"{shape}.json").write_bytes(SHAPES[shape]().text(VERSIONS[number % 3]))
    command = [sys.executable, str(ROOT / "tools" / "check-wfinstances"), str(tmp_path)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("exported and valid") == len(SHAPES)
    for path in tmp_path.iterdir():
        path.unlink()
    (tmp_path / "bad.json").write_bytes(split_search_join(2).text().replace(b'"tasks"', b'"tusks"'))
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert done.returncode == 1
    assert "FAILED  bad.json: " in done.stdout
