"""The monitor's arithmetic and layouts: samples merged into figures; figures written as summary, series and plot."""

from __future__ import annotations

import json
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as some

from shoal.compat.resource_monitor.plot import draw
from shoal.compat.resource_monitor.series import SeriesRow
from shoal.compat.resource_monitor.summary import (
    CORES_WINDOW,
    FIELDS,
    MEGABYTE,
    CommandOutcome,
    CommandUsage,
    indented,
    on_one_line,
    printed,
    quoted,
    summary,
)
from shoal.execution.processes.sampler import ReapedTime, TreeProcess, look_at
from shoal.execution.processes.time_series import COLUMNS, FOOTPRINT, header


def process(pid: int, parent: int = 1, *, cpu: float = 0.0, megabytes: float = 1, peak: float = 0) -> TreeProcess:
    memory = (int(megabytes * 3 * MEGABYTE), int(megabytes * MEGABYTE))
    made = TreeProcess(pid, parent, pid, b"S", 0, *memory, cpu)
    made.peak = int(max(megabytes, peak) * MEGABYTE)
    return made


def ended(cpu: float = 0.0, megabytes: float = 0) -> ReapedTime:
    made = ReapedTime()
    made.user = cpu
    made.peak = int(megabytes * MEGABYTE)
    return made


def test_the_memory_of_a_tree_is_the_sum_of_its_processes_at_one_moment() -> None:
    usage = CommandUsage(100.0)
    usage.add_sample(look_at([process(10, megabytes=20), process(11, 10, megabytes=5)], ReapedTime()), 101.0)
    usage.add_sample(look_at([process(10, megabytes=22)], ReapedTime()), 102.0)
    assert usage.values["memory"] == 25
    assert usage.peak_times["memory"] == 1.0
    assert usage.values["virtual_memory"] == 75
    assert usage.values["max_concurrent_processes"] == 2


def test_a_peak_between_two_looks_is_known_from_the_process_or_its_end() -> None:
    usage = CommandUsage(0.0)
    usage.add_sample(look_at([process(10, megabytes=2, peak=50)], ReapedTime()), 1.0)
    assert usage.values["memory"] == 50
    usage.add_sample(look_at([], ended(megabytes=90)), 2.0)
    assert usage.values["memory"] == 90


def test_a_child_that_still_has_the_memory_of_its_parent_counts_once() -> None:
    look = look_at([process(10, megabytes=200), process(11, 10, megabytes=200)], ReapedTime())
    assert look.resident == 200 * MEGABYTE
    assert look.processes == 2


def test_cpu_time_is_that_of_the_living_and_the_dead() -> None:
    usage = CommandUsage(0.0)
    usage.add_sample(look_at([process(10, cpu=1.5), process(11, cpu=0.25)], ended(cpu=2.0)), 1.0)
    assert usage.values["cpu_time"] == 3.75


def test_cores_are_those_of_a_window_but_not_below_the_average() -> None:
    usage = CommandUsage(0.0)
    for second in range(0, 1001, 10):
        usage.add_sample(look_at([process(10, cpu=4.0 * min(max(second - 400, 0), 200))], ReapedTime()), float(second))
    assert usage.values["cores"] == 4.0
    assert 400 + CORES_WINDOW <= usage.peak_times["cores"] <= 600
    short = CommandUsage(0.0)
    short.add_sample(look_at([], ended(cpu=3.0)), 2.0)
    assert short.values["cores"] == 3.0 / CORES_WINDOW
    short.finish(2.0)
    assert short.values["cores"] == short.values["cores_avg"] == 1.5


def test_memory_and_disk_are_rounded_up_and_traffic_is_cut_off() -> None:
    assert [printed("memory", value) for value in (0, 0.01, 1, 1.2)] == ["0", "1", "1", "2"]
    assert [printed("bytes_read", value) for value in (0, 0.99, 1, 8.6)] == ["0", "0", "1", "8"]
    assert [printed("cores", value) for value in (0, 0.0004, 0.5, 2)] == ["0", "0", "0.5", "2"]
    assert printed("start", 1794794032.117846) == "1794794032.117846"


def measured() -> CommandUsage:
    usage = CommandUsage(1000.0)
    usage.add_sample(look_at([process(10, cpu=0.5, megabytes=7.5)], ReapedTime()), 1001.0)
    usage.finish(1002.0)
    return usage


def test_a_summary_has_every_field_in_order_with_its_unit() -> None:
    outcome = CommandOutcome(143, over={"memory": 5.0})
    data = summary([("category", "a")], {"host": "h"}, {}, "x 'y'", outcome, measured())
    read = json.loads(on_one_line(data))
    assert list(read) == [
        *("category", "host", "command", "exit_status", "exit_type", "limits_exceeded"),
        *FIELDS,
        "peak_times",
    ]
    assert read["memory"] == [8, "MB"]
    assert read["wall_time"] == [2, "s"]
    assert read["limits_exceeded"] == {"memory": [5, "MB"]}
    assert read["peak_times"]["memory"] == [1, "s"]
    assert json.loads(indented(data)) == read


def test_a_signal_is_reported_with_the_exit_status() -> None:
    read = json.loads(on_one_line(summary([], {}, {}, "x", CommandOutcome(137, signal=9), measured())))
    assert (read["exit_status"], read["exit_type"], read["signal"]) == (137, "signal", 9)


def test_the_indented_layout_has_lists_below_their_names() -> None:
    assert indented({"a": quoted("b"), "c": ["1", quoted("s")], "d": {}}) == (
        '{\n  "a":"b",\n  "c":\n    [\n      1,\n      "s"\n    ],\n  "d":\n    {}\n}'
    )


@given(some.text())
def test_any_text_is_quoted_so_that_json_reads_it_back(text: str) -> None:
    assert json.loads(quoted(text)) == text.encode("utf-8", "replace").decode()


def rows() -> list[SeriesRow]:
    looks = [look_at([process(10, cpu=second / 2, megabytes=second)], ReapedTime()) for second in range(4)]
    return [SeriesRow(50.0 + at, look, 0.5, 1.2, (3, 5 * MEGABYTE)) for at, look in enumerate(looks)]


def test_a_row_of_the_series_has_as_many_words_as_the_header_has_names() -> None:
    for with_footprint in (True, False):
        names = header(with_footprint).splitlines()[-1].removeprefix("#").split()
        assert names == [*COLUMNS, *(FOOTPRINT if with_footprint else ())]
        words = rows()[3].text(with_footprint).split()
        assert len(words) == len(names)
        values = dict(zip(names, words, strict=True))
        assert (values["memory"], values["cpu_time"], values["machine_load"]) == ("3", "1.500000", "1")


def test_a_plot_is_a_drawing_with_a_line_for_memory_one_for_cores_and_one_for_the_limit() -> None:
    root = ElementTree.fromstring(draw(rows(), "a < b & c", {"memory": 2.0}))
    name = "{http://www.w3.org/2000/svg}"
    memory, cores = (line.attrib["points"].split() for line in root.iter(f"{name}polyline"))
    assert len(memory) == len(cores) == 4
    heights = [float(point.split(",")[1]) for point in memory]
    assert heights == sorted(heights, reverse=True) and heights[0] > heights[3]
    assert [line for line in root.iter(f"{name}line") if "stroke-dasharray" in line.attrib]
    assert next(root.iter(f"{name}text")).text == "a < b & c"


def test_a_plot_without_rows_is_still_a_drawing() -> None:
    ElementTree.fromstring(draw([], "", {}))
