"""`shoal simulate` on clusters, `shoal plan --nodes`, and predictions held against what then happened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.core.policies.stealing import POLICIES
from support.command import shoal
from support.ledgers import accepted
from support.wftraces import SHAPES, TraceMaker

_REST = ["from", "shared", "hits", "steals", "node", "hours"]
SIZED = "CATEGORY={}\nCORES=1\nMEMORY=32\nDISK=32\n"
"""Tasks that declare what they need run on all cores from the beginning."""


def simulated(directory: Path, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shoal(directory, "simulate", *words, "--json").stdout)
    return found


def planned(directory: Path, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shoal(directory, "plan", *words, "--json").stdout)
    return found


def waiting(tasks: int, seconds: float, category: str = "wait") -> str:
    """Independent tasks that do nothing for some time."""
    rules = [f"{category}{i}:\n\tsleep {seconds}; touch {category}{i}\n" for i in range(tasks)]
    return SIZED.format(category) + "\n".join(rules)


def durations(workflow: Path) -> list[float]:
    """How long each task took in the runs so far."""
    return [record.ended - record.started for record in accepted(workflow)]


def write_trace(directory: Path, maker: TraceMaker) -> str:
    (directory / "trace.json").write_bytes(maker.text())
    return "trace.json"


def test_no_policy_is_faster_than_the_lower_bound(tmp_path: Path) -> None:
    found = simulated(tmp_path, "fan-in:tasks=300", "--nodes", "4", "--policy", ",".join(POLICIES))
    assert [run["policy"] for run in found["runs"]] == list(POLICIES)
    for run in found["runs"]:
        assert found["lower_bound"] <= run["makespan"] * 1.000001
        assert 0 < run["utilisation"] <= 1
        assert run["hits"] <= run["reads"]
        assert run["node_hours"] == pytest.approx(4 * run["makespan"] / 3600)
    assert found["durations"] == {"from": "workload", "known": 0, "like_category": 0, "declared": 300, "guessed": 0}


def test_a_simulation_is_shown_to_people_and_leaves_nothing_behind(tmp_path: Path) -> None:
    lines = shoal(
        tmp_path, "simulate", "pipeline:tasks=100", "--nodes", "3", "--policy", "flds,mlb"
    ).stdout.splitlines()
    assert lines[0] == "pipeline:tasks=100: 100 tasks on 3 nodes of 2 cores, order lifo+hrf"
    assert lines[1] == "durations: 100 declared by the workload"
    assert lines[2].startswith("lower bound: ")
    assert lines[3].split() == ["policy", "makespan", "utilisation", "moved", *_REST]
    assert [line.split()[0] for line in lines[4:]] == ["flds", "mlb"]
    assert list(tmp_path.iterdir()) == []


def test_the_same_seed_gives_the_same_run(tmp_path: Path) -> None:
    words = ("stacking:tasks=60", "--nodes", "3", "--submission", "one", "--seed", "7")
    assert simulated(tmp_path, *words) == simulated(tmp_path, *words)


def test_one_node_of_a_cluster_takes_as_long_as_this_machine_would(tmp_path: Path) -> None:
    name = write_trace(tmp_path, SHAPES["mosaic"]())
    alone = simulated(tmp_path, name, "--jobs", "4")
    cluster = simulated(tmp_path, name, "--nodes", "1", "--cores", "4")
    assert cluster["runs"][0]["makespan"] == pytest.approx(alone["makespan"], rel=0.02)
    assert cluster["runs"][0]["moved"] == 0
    assert cluster["lower_bound"] <= alone["makespan"] * 1.000001


def test_a_slower_network_makes_it_longer_and_faster_cores_shorter(tmp_path: Path) -> None:
    words = ("fan-out:tasks=200", "--nodes", "4")
    usual = simulated(tmp_path, *words)["runs"][0]["makespan"]
    assert simulated(tmp_path, *words, "--bandwidth", "50Mb/s")["runs"][0]["makespan"] > 1.5 * usual
    assert simulated(tmp_path, *words, "--speed", "4")["runs"][0]["makespan"] < 0.9 * usual
    shared = simulated(tmp_path, *words, "--shared-files", "--shared-rate", "10MB/s")["runs"][0]
    assert shared["makespan"] > 1.5 * usual
    assert shared["moved"] == 0
    assert shared["from_shared"] > 0


def test_a_run_tells_what_it_would_take_on_more_nodes(tmp_path: Path) -> None:
    (tmp_path / "flow.makeflow").write_text(waiting(8, 0.05))
    before = simulated(tmp_path, "flow.makeflow", "--nodes", "4", "--cores", "1")
    assert before["durations"] == {"from": "guess", "known": 0, "like_category": 0, "declared": 0, "guessed": 8}
    assert before["runs"][0]["makespan"] == pytest.approx(2.0, rel=0.01)
    shoal(tmp_path, "run", "flow.makeflow", "--quiet")
    took = durations(tmp_path / "flow.makeflow")
    for source in ("flow.makeflow", ".shoal/flow.makeflow", ".shoal/flow.makeflow/ledger"):
        after = simulated(tmp_path, source, "--nodes", "4", "--cores", "1")
        assert after["durations"]["known"] == 8
        assert sum(took) / 4 <= after["runs"][0]["makespan"] * 1.001 <= sum(took) + 1.0
    other_place = tmp_path / "elsewhere"
    other_place.mkdir()
    assert simulated(other_place, "../.shoal/flow.makeflow", "--nodes", "4")["durations"]["known"] == 8


def test_a_task_without_measurement_takes_its_time_limit(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text('from shoal import rule\nrule("a", run="touch a", timeout=7)\n')
    found = simulated(tmp_path, "flow.py", "a", "--jobs", "1")
    assert found["durations"]["declared"] == 1
    assert found["makespan"] == 7.0


def test_a_prediction_from_a_run_of_half_the_size_comes_true(tmp_path: Path) -> None:
    """The machine may be busy with other things, and more so in one of the two runs: then it is tried again."""
    shares: list[float] = []
    while not shares or (not 0.5 < shares[-1] < 1.5 and len(shares) < 5):
        directory = tmp_path / str(len(shares))
        directory.mkdir()
        shares.append(predicted_share(directory))
    assert 0.5 < shares[-1] < 1.5, shares


def predicted_share(tmp_path: Path) -> float:
    """What is predicted of a run, as a share of what it then took."""
    (tmp_path / "half.makeflow").write_text(waiting(6, 0.25))
    (tmp_path / "full.makeflow").write_text(waiting(12, 0.25))
    shoal(tmp_path, "run", "half.makeflow", "--jobs", "2", "--quiet")
    found = simulated(tmp_path, "full.makeflow", "--like", "half.makeflow", "--jobs", "2")
    assert found["durations"] == {"from": "like", "known": 0, "like_category": 12, "declared": 0, "guessed": 0}
    assert found["overheads"]["per_task"] >= 0
    shoal(tmp_path, "run", "full.makeflow", "--jobs", "2", "--quiet", "--overwrite")
    took = json.loads(shoal(tmp_path, "status", "full.makeflow", "--json").stdout)["took"]
    assert found["makespan"] >= 1.5
    return float(found["makespan"] / took)


def test_durations_of_another_workflow_are_taken_by_category(tmp_path: Path) -> None:
    (tmp_path / "old.makeflow").write_text(waiting(4, 0.05, "short"))
    (tmp_path / "new.makeflow").write_text(waiting(3, 9, "short") + "\n" + waiting(2, 9, "unknown"))
    shoal(tmp_path, "run", "old.makeflow", "--quiet")
    found = simulated(tmp_path, "new.makeflow", "--like", "old.makeflow", "--jobs", "1")
    assert (found["durations"]["like_category"], found["durations"]["guessed"]) == (3, 2)
    took = durations(tmp_path / "old.makeflow")
    assert 2.0 + 3 * min(took) < found["makespan"] * 1.001 < 3.5 + 3 * max(took)
    said = shoal(tmp_path, "simulate", "new.makeflow", "--like", "old.makeflow", "--nodes", "2").stdout
    assert "durations: 3 like the category in old.makeflow, 2 guessed (1 s)" in said


def test_a_plan_has_a_row_per_size_and_policy_a_plot_and_a_recommendation(tmp_path: Path) -> None:
    name = write_trace(tmp_path, SHAPES["fork-joins"]())
    words = ("plan", name, "--nodes", "1..8", "--cores", "1", "--policy", "flds,mdl", "--plot", "out.svg")
    lines = shoal(tmp_path, *words).stdout.splitlines()
    rows = [line.split()[:2] for line in lines if line.startswith("  ")][1:]
    assert rows == [[nodes, policy] for nodes in ("1", "2", "4", "8") for policy in ("flds", "mdl")]
    assert any(line.startswith("take ") for line in lines)
    assert "error bars: none, the variation of durations between runs is unknown" in lines
    assert (tmp_path / "out.svg").read_text().startswith("<svg ")
    assert not (tmp_path / ".shoal").exists()
    found = planned(tmp_path, *words[1:-2])
    spans = {run["nodes"]: run["makespan"] for run in found["runs"] if run["policy"] == "flds"}
    assert spans[1] > spans[4]
    assert found["advice"]["fastest"]["makespan"] == min(run["makespan"] for run in found["runs"])


def test_error_bars_come_from_how_much_earlier_runs_differed(tmp_path: Path) -> None:
    (tmp_path / "flow.makeflow").write_text(waiting(4, 0.02))
    shoal(tmp_path, "run", "flow.makeflow", "--quiet")
    once = planned(tmp_path, "flow.makeflow", "--nodes", "1,2")
    assert all(run["shortest"] is None and not run["samples"] for run in once["runs"])
    shoal(tmp_path, "run", "flow.makeflow", "--quiet", "--force")
    twice = planned(tmp_path, "flow.makeflow", "--nodes", "1,2")
    assert all(run["shortest"] <= run["makespan"] <= run["longest"] for run in twice["runs"])
    assert any(run["shortest"] < run["longest"] for run in twice["runs"])


def test_a_forecast_from_guesses_says_that_it_is_only_relative(tmp_path: Path) -> None:
    (tmp_path / "flow.makeflow").write_text(waiting(4, 1))
    said = shoal(tmp_path, "plan", "flow.makeflow", "--nodes", "1,2").stdout
    assert "durations: 4 guessed (1 s)" in said
    assert "most durations are estimates: use the times for comparison only" in said


def test_a_plan_without_nodes_is_still_what_would_run(tmp_path: Path) -> None:
    (tmp_path / "flow.makeflow").write_text(waiting(2, 1))
    assert shoal(tmp_path, "plan", "flow.makeflow").stdout.startswith("2 tasks would run, 0 up to date")


def test_a_finished_run_is_shown_beside_what_was_predicted_of_it(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(
        "print('noise')\nfrom shoal import rule\n"
        "for n in range(4):\n    rule(f'f{n}', run=f'sleep 0.1; touch f{n}', memory='32M', disk='32M')\n"
    )
    wanted = ("f0", "f1", "f2", "f3")
    shoal(tmp_path, "run", "flow.py", *wanted, "--quiet")
    assert "predicted" not in shoal(tmp_path, "status", "flow.py").stdout  # nothing was known before that run
    (tmp_path / "f1").unlink()
    (tmp_path / "f2").unlink()
    shoal(tmp_path, "run", "flow.py", *wanted, "--jobs", "1", "--quiet")
    said = shoal(tmp_path, "status", "flow.py").stdout
    assert "predicted " in said.splitlines()[-1]
    assert "noise" not in said
    found = json.loads(shoal(tmp_path, "status", "flow.py", "--json").stdout)
    took = sorted(durations(tmp_path / "flow.py")[:4])
    assert sum(took[:2]) <= found["predicted"] * 1.001 < sum(took[2:]) + 1.5  # two of the four ran, one by one
    assert found["took"] >= 0.2
    (tmp_path / "flow.py").write_text("raise SystemExit\n")
    assert json.loads(shoal(tmp_path, "status", "flow.py", "--json").stdout)["predicted"] is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("bag", "--nodes", "0"), "--nodes must be at least 1, not 0"),
        (("bag", "--nodes", "-3"), "--nodes must be at least 1, not -3"),
        (("bag", "--nodes", "many"), "--nodes must be a whole number, not 'many'"),
        (("bag", "--nodes", "1000000"), "--nodes must be at most 100,000, not 1,000,000"),
        (("bag", "--cores", "0"), "--cores must be at least 1, not 0"),
        (("bag", "--cores", "1000000"), "--cores must be at most 10,000, not 1,000,000"),
        (("bag", "--policy", "best"), "there is no policy 'best'; choose one of flds, "),
        (("bag", "--policy", ""), "there is no policy ''"),
        (("bag", "--order", "best"), "--order cannot be 'best'; use one of fifo, "),
        (("bag", "--submission", "two"), "--submission cannot be 'two'; use one of all, one"),
        (("bag", "--speed", "0"), "--speed must be a number above 0, not '0'"),
        (("bag", "--bandwidth", "fast"), "--bandwidth 'fast' is not a rate; write it as 10Gb/s or 125MB/s"),
        (("bag", "--latency", "late"), "--latency 'late' is not a time"),
        (("bag", "--jobs", "4"), "--jobs applies to one node; give the cores of each node with --cores"),
        (("bag", "--like", "other"), "--like applies to workflow files"),
        (("bag", "target"), "'bag' is a workload and has no target 'target'"),
        (("bug:tasks=4",), "there is neither a workload nor a workflow file 'bug:tasks=4'; did you mean 'bag'?"),
        (("bag:tusks=4",), "the workload bag has no parameter 'tusks'"),
        (("bag:tasks=none",), "tasks of the workload bag must be a whole number, not 'none'"),
        (("nothing.makeflow", "--nodes", "2"), "the workflow file 'nothing.makeflow' does not exist"),
        ((".shoal/gone/ledger",), "'.shoal/gone/ledger' is not the ledger of a run"),
        (("flow.makeflow", "--like", "no.py"), "the workflow file 'no.py' does not exist"),
        (("flow.makeflow", "--like", "flow.makeflow"), "'flow.makeflow' has not been run yet"),
        (("untimed.json",), "untimed.json: the trace has no task durations; use the trace of a real run"),
        (("untimed.json", "--nodes", "2"), "the trace has no task durations"),
        (("wide.json", "--nodes", "2", "--cores", "2"), "asks for cores 16, but the node has 2; simulate a larger one"),
    ],
)  # fmt: skip
def test_what_cannot_be_simulated_is_refused_in_one_sentence(
    tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    (tmp_path / "flow.makeflow").write_text(waiting(2, 1))
    untimed, wide = TraceMaker("untimed", "Makeflow"), TraceMaker("wide", "Makeflow")
    untimed.add("one", ["in"], ["out"], 1.0)
    document = json.loads(untimed.text())
    document["workflow"].pop("execution")
    (tmp_path / "untimed.json").write_text(json.dumps(document))
    wide.add("wide", ["in"], ["out"], 1.0, coreCount=16)
    (tmp_path / "wide.json").write_bytes(wide.text())
    said = shoal(tmp_path, "simulate", *words, expect=2).stderr
    assert message in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--nodes", "0"), "a cluster needs at least one node, not 0"),
        (("--nodes", "8..1"), "is a descending range; write 1..8"),
        (("--nodes", "1..8:1x"), "never ends; the factor must be at least 2"),
        (("--nodes", "some"), "--nodes 'some' is not a list or range of node numbers; write 1..64"),
        (("--nodes", "1..5000:1"), "has more than 200 sizes"),
        (("--nodes", "2", "--policy", "best"), "there is no policy 'best'"),
        (("--nodes", "2", "--cores", "-1"), "--cores must be at least 1, not -1"),
        (("--nodes", "2", "--jobs", "2"), "--jobs applies to one node"),
        (("--nodes", "2", "--force"), "--force cannot be combined with --nodes"),
        (("--nodes", "2", "--plot", "nowhere/out.svg"), "cannot write the plot 'nowhere/out.svg'"),
        (("--plot", "out.svg"), "--plot needs --nodes"),
        (("--cores", "3"), "--cores needs --nodes"),
        (("--like", "other"), "--like needs --nodes"),
    ],
)  # fmt: skip
def test_what_cannot_be_planned_is_refused_in_one_sentence(
    tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    (tmp_path / "flow.makeflow").write_text(waiting(2, 1))
    said = shoal(tmp_path, "plan", "flow.makeflow", *words, expect=2).stderr
    assert message in said
    assert len(said.splitlines()) == 1
