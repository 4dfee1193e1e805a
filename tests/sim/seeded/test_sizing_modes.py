"""Our sizing in simulation, beside Work Queue's and beside hindsight, on every family of traces."""

from __future__ import annotations

import argparse
import json
from functools import cache
from pathlib import Path

import pytest

from shoal.errors import InputError
from shoal.sim.sizing_replay import (
    ALL_MODES,
    FAMILIES,
    FAMILY_NODE,
    WORK_QUEUE_MODES,
    ReplayOutcome,
    ReplaySetting,
    SizingTrace,
    as_csv,
    check,
    generate,
    read_trace,
)
from shoal.ui.cli import sizing as command
from shoal.ui.cli.parser import CommandParser

SEEDS = (1, 2)
TASKS = 1500
WORKERS = 10
WORK_QUEUE = ("wq-max", "wq-min-waste", "wq-max-throughput")


@cache
def outcome(family: str, seed: int, mode: str) -> ReplayOutcome:
    return ReplaySetting(generate(family, TASKS, seed), FAMILY_NODE, WORKERS).run(mode)


def throughput(family: str, mode: str) -> float:
    return sum(outcome(family, seed, mode).throughput for seed in SEEDS) / len(SEEDS)


@pytest.mark.parametrize("family", FAMILIES)
def test_throughput_is_at_least_that_of_work_queue(family: str) -> None:
    for seed in SEEDS:
        ours = outcome(family, seed, "max-throughput").throughput
        for mode in WORK_QUEUE:
            assert ours >= outcome(family, seed, mode).throughput, (mode, seed)


@pytest.mark.parametrize("family", FAMILIES)
def test_least_waste_wastes_no_more_than_work_queue(family: str) -> None:
    for seed in SEEDS:
        assert outcome(family, seed, "min-waste").waste <= outcome(family, seed, "wq-min-waste").waste


def test_the_long_tail_gains_much_over_no_retries() -> None:
    assert throughput("cms", "max-throughput") >= 1.4 * throughput("cms", "no-retry")


@pytest.mark.parametrize("hindsight", ["best-single", "best-chain"])
def test_throughput_is_on_average_nine_tenths_of_hindsight(hindsight: str) -> None:
    seed = SEEDS[0]  # looking back at one trace takes seconds
    outcomes = [(outcome(family, seed, "max-throughput"), outcome(family, seed, hindsight)) for family in FAMILIES]
    shares = [ours.throughput / theirs.throughput for ours, theirs in outcomes]
    assert sum(shares) / len(shares) >= 0.9


@pytest.mark.parametrize("mode", ALL_MODES)
def test_every_mode_ends_all_tasks_and_the_same_seed_gives_the_same_outcome(mode: str) -> None:
    setting = ReplaySetting(generate("bimodal", 200, 7), FAMILY_NODE, 3)
    first, second = setting.run(mode), setting.run(mode)
    assert first == second
    assert first.used == pytest.approx(
        sum(peak * time for peak, time in zip(setting.trace.peaks, setting.trace.times, strict=True))
    )
    assert first.allocated >= first.used * (1 - 1e-9)


def test_perfect_sizes_waste_nothing_and_no_mode_beats_the_whole_capacity() -> None:
    trace = generate("normal", 300, 1)
    setting = ReplaySetting(trace, FAMILY_NODE, 4)
    perfect = setting.run("perfect")
    assert perfect.retries == 0 and perfect.waste == pytest.approx(0, abs=1e-9)
    assert perfect.used <= perfect.makespan * FAMILY_NODE * 4


def test_categories_are_sized_apart() -> None:
    small, large = [100.0] * 200, [3000.0] * 200
    peaks = [peak for pair in zip(small, large, strict=True) for peak in pair]
    mixed = SizingTrace(peaks, [10.0] * 400, ["small", "large"] * 200)
    together = SizingTrace(peaks, [10.0] * 400)
    assert ReplaySetting(mixed, 8000, 4).run("max-throughput").retries < 30
    assert ReplaySetting(together, 8000, 4).run("max-throughput").retries > 100


def test_a_task_larger_than_the_node_is_refused() -> None:
    with pytest.raises(InputError, match="task 2 peaks at 900"):
        check(SizingTrace([10.0, 900.0], [1.0, 1.0]), 800)


def test_a_written_trace_reads_back() -> None:
    trace = generate("cms", 50, 3)
    (again,) = read_trace(as_csv(trace), "x").values()
    assert again.peaks == pytest.approx(trace.peaks, abs=0.06)
    assert again.times == pytest.approx(trace.times, abs=0.006)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "empty"),
        (["peak,time"], "no tasks"),
        (["peak,seconds", "1,2"], "no column 'time'"),
        (["peak,time", "1"], "1 values for 2 columns"),
        (["peak,time", "much,2"], "peak must be a number, not 'much'"),
        (["peak,time", "-4,2"], "peak must be a positive number"),
        (["peak,time", "4,nan"], "time must be a positive number"),
    ],
)
def test_a_bad_trace_is_one_clear_sentence(lines: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_trace(lines, "trace.csv")


def parsed(*words: str) -> argparse.Namespace:
    parser = CommandParser("sizing", command.SUMMARY, command.USAGE, command.EXAMPLE)
    command.add_arguments(parser)
    arguments = parser.parse(words)
    assert arguments is not None
    return arguments


def test_the_command_replays_every_mode_and_each_resource(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = generate("bimodal", 60, 1)
    rows = [
        f"{peak},{time},a,memory\n{peak / 2000},{time},a,cores"
        for peak, time in zip(trace.peaks, trace.times, strict=True)
    ]
    path = tmp_path / "trace.csv"
    path.write_text("peak,time,category,resource\n" + "\n".join(rows) + "\n")
    assert command.execute(parsed(str(path), "--node", "memory=8192", "--node", "cores=4", "--json")) == 0
    said = json.loads(capsys.readouterr().out)
    assert [result["resource"] for result in said["resources"]] == ["memory", "cores"]
    assert [result["node"] for result in said["resources"]] == [8192, 4]
    assert list(said["resources"][0]["modes"]) == list(ALL_MODES)
    assert set(WORK_QUEUE_MODES) < set(ALL_MODES)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--generate", "nomal"], "did you mean 'normal'"),
        (["--mode", "best"], "there is no mode 'best'"),
        ([], "the trace is missing"),
        (["missing.csv"], "cannot be read"),
    ],
)
def test_bad_words_are_refused_in_one_sentence(words: list[str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        command.execute(parsed(*words))
    assert message in str(caught.value)


def test_the_node_must_hold_every_task(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("peak,time\n500,1\n")
    for size, message in (("400", "a node has only 400"), ("x", "must be a number"), ("disk=5", "no resource 'disk'")):
        with pytest.raises(InputError, match=message):
            command.execute(parsed(str(path), "--node", size))
