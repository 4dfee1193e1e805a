"""`shoal run --throttle`: how many real tasks run together, and what is said of it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from shoal.execution.learned_sizes import read_kept
from shoal.ledger.records import ThrottleDecided
from shoal.ledger.workspace import Workspace
from support.command import SHOAL, environment, shoal, wait_until
from support.ledgers import final_records, ledger_path, records


def write_sleepers(directory: Path, count: int, seconds: float, categories: tuple[str, ...] = ("wait",)) -> Path:
    lines = ["from shoal import rule"]
    for number in range(count):
        category = categories[number % len(categories)]
        lines.append(f'rule("o{number}", run="sleep {seconds} && touch o{number}", category="{category}")')
    lines.append(f'rule("all", needs={[f"o{number}" for number in range(count)]!r}, run="touch all")')
    flow = directory / "flow.py"
    flow.write_text("\n".join(lines) + "\n")
    return flow


def wait_for_others(flow: Path, number: int) -> None:
    """No task ends before so many have begun, however slow the machine is."""
    wait = f"mktemp begun.XXXXXX; while [ $(ls | grep -c begun) -lt {number} ]; do sleep 0.02; done; sleep "
    flow.write_text(flow.read_text().replace('run="sleep ', f'run="{wait}'))


def most_together(flow: Path) -> int:
    """Of the tasks that were recorded, how many ran at one moment at most."""
    moments = sorted(
        moment
        for record in final_records(flow)
        for moment in ((record.ended, -1), (record.started, 1))
        if record.outcome == "ok"
    )
    running = most = 0
    for _, change in moments:
        running += change
        most = max(most, running)
    return most


def decided(flow: Path) -> list[ThrottleDecided]:
    return [record for record in records(flow) if isinstance(record, ThrottleDecided)]


def test_tasks_that_wait_run_in_greater_numbers_than_there_are_cores(tmp_path: Path) -> None:
    flow = write_sleepers(tmp_path, 60, 0.25)
    shoal(tmp_path, "run", "flow.py", "all", "-j1", "--throttle", "adaptive", "--quiet", "--paranoid")
    assert most_together(flow) > 1
    told = [record for record in decided(flow) if record.category == "wait"]
    assert told[0].cap == 1 and max(record.cap for record in told) > 1
    assert read_kept(Workspace(str(flow))).throttle["wait"].seconds > 0.2
    table = shoal(tmp_path, "status", "--throttle", "--plot", "plot.svg").stdout
    assert "CATEGORY" in table and "growing" in table
    drawn = ElementTree.parse(tmp_path / "plot.svg").getroot()
    assert len(drawn.findall("{http://www.w3.org/2000/svg}polyline")) >= 2
    history = json.loads(shoal(tmp_path, "status", "--throttle", "--json").stdout)
    assert [row["cap"] for row in history] == [record.cap for record in decided(flow)]


def test_slots_are_exact_over_all_categories(tmp_path: Path) -> None:
    flow = write_sleepers(tmp_path, 30, 0.2, ("one", "two", "three"))
    wait_for_others(flow, 3)
    shoal(tmp_path, "run", "flow.py", "all", "--throttle", "slots=3", "--quiet", "--paranoid")
    assert most_together(flow) == 3


def test_a_number_of_cores_is_a_number_of_tasks_unless_a_throttle_is_enabled(tmp_path: Path) -> None:
    flow = write_sleepers(tmp_path, 6, 0.1)
    wait_for_others(flow, 2)
    shoal(tmp_path, "run", "flow.py", "all", "-j2", "--quiet")
    assert most_together(flow) == 2 and not decided(flow)


def test_what_is_declared_is_never_exceeded(tmp_path: Path) -> None:
    flow = write_sleepers(tmp_path, 24, 0.1)
    flow.write_text(flow.read_text().replace('category="wait"', 'category="wait", cores=1'))
    shoal(tmp_path, "run", "flow.py", "all", "-j2", "--throttle", "slots=20", "--quiet")
    assert most_together(flow) <= 2


def test_why_and_status_name_the_throttle_that_holds_a_task_back(tmp_path: Path) -> None:
    flow = write_sleepers(tmp_path, 4, 300.0)
    words = [*SHOAL, "run", "flow.py", "all", "-j1", "--throttle", "adaptive", "--quiet"]
    run = subprocess.Popen(words, cwd=tmp_path, env=environment(), stdin=subprocess.DEVNULL)
    try:
        wait_until(
            lambda: ledger_path(flow).exists() and '"running": 1' in shoal(tmp_path, "status", "--json").stdout,
            "a task runs",
        )
        said = "".join(shoal(tmp_path, "why", f"o{number}").stdout for number in range(4))
        assert "held back by the throttle while 1 of its category runs: 1 of category 'wait' runs at a time" in said
        shown = "throttle:\n  wait: 1 run, 1 may (profiling)"
        wait_until(lambda: shown in shoal(tmp_path, "status").stdout, "status says so")
        assert json.loads(shoal(tmp_path, "status", "--json").stdout)["throttle"][0]["state"] == "profiling"
    finally:
        run.terminate()
        run.wait(60)


def test_a_throttle_that_is_none_is_refused_in_one_sentence(tmp_path: Path) -> None:
    write_sleepers(tmp_path, 1, 0.0)
    said = shoal(tmp_path, "run", "flow.py", "--throttle", "fast", expect=2).stderr
    assert said == "shoal: there is no throttle 'fast'; write adaptive, weasel, contract or slots=N\n"


def test_tasks_that_only_wait_hold_their_cores_unless_more_run_than_there_are(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(
        'from shoal import task\nfor i in range(4):\n    task(f"t{i}", run="sleep 0.3")\n'
        'task("all", needs=[f"t{i}" for i in range(4)])\n'
    )
    words = ("run", "flow.py", "all", "--jobs", "2", "--throttle", "adaptive", "--json")
    lines = shoal(tmp_path, *words).stdout.splitlines()
    (last,) = [told for told in map(json.loads, lines) if "utilisation" in told]
    report = json.loads(shoal(tmp_path, "report", "flow.py", "--json").stdout)
    assert last["utilisation"] == pytest.approx(report["figures"]["utilisation"], abs=0.1)
    assert last["utilisation"] == pytest.approx(last["work"] / (2 * last["seconds"]), abs=0.1)
