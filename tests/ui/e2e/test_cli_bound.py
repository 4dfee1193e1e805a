"""`shoal bound`: what it says of workloads, traces and workflow files, and of what cannot be asked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shoal.sim.matrix_bound import DEFAULT_READING, READINGS, SHAPES
from shoal.sim.workloads import matrix
from shoal.ui.cli import bound as command
from support.command import shoal
from support.wftraces import TraceMaker

GIGABYTE_PER_SECOND = "1000000000"


def found(directory: Path, *words: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(shoal(directory, "bound", *words, "--json").stdout)
    return result


def trace() -> TraceMaker:
    """One task of 2 s, three of 1 s behind it, one of 4 s on its own that asks for two cores."""
    maker = TraceMaker("small", "Makeflow")
    maker.add("first", ["in"], ["a"], 2.0)
    for number in range(3):
        maker.add("next", ["a"], [f"b{number}"], 1.0)
    maker.add("wide", ["in"], ["c"], 4.0, coreCount=2)
    return maker


def test_a_workload_is_shown_with_what_decides_and_what_was_used(tmp_path: Path) -> None:
    lines = shoal(tmp_path, "bound", "fan-out", "--cores", "20", "--seed", "4").stdout.splitlines()
    assert lines[0] == "fan-out: 20,000 tasks on 20 cores"
    assert lines[1] == (
        "lengths up to 100 ms, outputs up to 10 MB, seed 4, degree 10; in the paper's programme 10 Gb/s between nodes"
    )
    names = [line[:25].strip() for line in lines[3:]]
    assert names[:3] == ["lower bound", "work over cores", "critical path"]
    assert names[3].startswith("work from depth")
    assert names[4] == "paper, position"
    assert len([line for line in lines if line.endswith("decides")]) == 1
    assert list(tmp_path.iterdir()) == []


def test_all_readings_stand_side_by_side(tmp_path: Path) -> None:
    assert list(found(tmp_path, "pipeline", "--reading", "all")["paper"]) == list(READINGS)


def test_nodes_and_cores_multiply(tmp_path: Path) -> None:
    one = found(tmp_path, "bag", "--tasks", "5000", "--cores", "8")
    four = found(tmp_path, "bag", "--tasks", "5000", "--nodes", "4", "--cores", "2")
    assert (four["cores"], four["nodes"]) == (8, 4)
    assert four["lower_bound"] == one["lower_bound"]


def test_a_trace_is_bounded_with_its_durations_cores_and_targets(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_bytes(trace().text("1.5"))
    all_of_it = found(tmp_path, "trace.json", "--cores", "2", "--bandwidth", GIGABYTE_PER_SECOND)
    assert all_of_it["tasks"] == 5
    assert all_of_it["used"] == "durations: 5 recorded in the trace"
    assert all_of_it["lower_bound"]["over_cores"] == pytest.approx((2 + 3 + 8) / 2)
    assert all_of_it["lower_bound"]["decides"] == "work"
    half = found(tmp_path, "trace.json", "--cores", "2", "time=0.5")
    assert half["lower_bound"]["seconds"] == pytest.approx(all_of_it["lower_bound"]["seconds"] / 2)
    part = found(tmp_path, "trace.json", "--cores", "2", "b0", "b1")
    assert part["tasks"] == 3
    assert part["lower_bound"]["seconds"] == pytest.approx(3.0)


def test_a_workflow_file_that_never_ran_is_bounded_with_guesses_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "Makeflow").write_text("b: a\n\tcp a b\nc: b\n\tcp b c\na:\n\techo > a\n")
    said = found(tmp_path, "--cores", "4")
    assert said["used"] == "durations: 3 guessed (1 s)"
    assert (said["lower_bound"]["seconds"], said["lower_bound"]["decides"]) == (3.0, "path")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("pipelin",), "there is neither a workload nor a workflow file 'pipelin'; did you mean 'pipeline'?"),
        (("none.json",), "there is neither a workload nor a workflow file 'none.json'; workloads are bag, pipeline"),
        (("bag", "--cores", "0"), "--cores must be at least 1, not 0"),
        (("bag", "--nodes", "-1"), "--nodes must be at least 1, not -1"),
        (("bag", "--tasks", "0"), "--tasks must be at least 1, not 0"),
        (("bag", "--tasks", "many"), "--tasks must be a whole number, not 'many'"),
        (("bag", "--reading", "exact"), "--reading cannot be 'exact'; use one of position, per-level"),
        (("bag", "--bandwidth", "0"), "--bandwidth must be greater than 0"),
        (("bag", "--bandwidth", "fast"), "--bandwidth 'fast' is not a size"),
        (("bag", "other"), "'bag' is a workload and has no target 'other'"),
        (("fan-in", "--degree", "1"), "--degree must be at least 2, not 1"),
        (("fan-in", "--degree", "5000"), "--degree must be at most 1000, not 5000"),
        (("trace.json", "--tasks", "5"), "--tasks applies to synthetic workloads only"),
        (("trace.json", "--cores", "1"), "'wide_ID000005' asks for 2 cores, but a node has 1; give nodes more"),
    ],
)
def test_what_cannot_be_asked_is_one_sentence(tmp_path: Path, words: tuple[str, ...], sentence: str) -> None:
    (tmp_path / "trace.json").write_bytes(trace().text("1.5"))
    done = shoal(tmp_path, "bound", *words, expect=2)
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_trace_without_durations_is_refused(tmp_path: Path) -> None:
    document = json.loads(trace().text("1.5"))
    del document["workflow"]["execution"]
    (tmp_path / "trace.json").write_text(json.dumps(document))
    done = shoal(tmp_path, "bound", "trace.json", expect=2)
    assert done.stderr == "shoal: trace.json: the trace has no task durations; use the trace of a real run\n"


def test_numpy_is_loaded_only_when_a_bound_is_asked_for() -> None:
    script = "import sys; from shoal.ui.cli.main import main; main(['bound', '--help']); print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("False\n")


def test_the_command_knows_the_names_of_what_it_offers() -> None:
    """It has them itself, so that its help need not load what they stand for."""
    assert tuple(SHAPES) == command.WORKLOADS
    assert tuple(READINGS) == command.READINGS
    assert command.READINGS[0] == DEFAULT_READING
    assert command.DEGREE == matrix.DEGREE
