"""The board follows a run to its end, whoever has read the ledger first."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.ledger.records import Record, TaskStarted, encode
from shoal.ledger.statistics import LiveCountersWriter, Statistics
from shoal.ledger.workspace import LockHolder, Workspace
from shoal.ui.cli.report import data_of
from shoal.ui.web.api import metrics
from shoal.ui.web.board import Board, Refresher
from shoal.ui.web.run_page import quick_parts, slow_parts
from shoal.ui.web.watch import Watch
from support.command import wait_until
from support.views import BEGAN, ended, over, planned, started

HEAD: list[Record] = [started(2), planned(["a", "a"]), TaskStarted(0, 1, BEGAN, 7, 0.0, 0)]


@pytest.fixture
def going(tmp_path: Path) -> Iterator[Workspace]:
    """A workflow whose run goes on, held by this process."""
    (tmp_path / "flow.py").write_text("")
    workspace = Workspace(str(tmp_path / "flow.py"))
    workspace.make()
    workspace.acquire(LockHolder(os.getpid(), "here", "abc", BEGAN))
    add(workspace, *HEAD)
    yield workspace
    workspace.release()


def add(workspace: Workspace, *records: Record) -> None:
    with open(workspace.ledger, "ab") as file:
        file.write(b"".join(map(encode, records)))


def told(board: Board) -> tuple[str, int, int]:
    """The outcome, and how many tasks are done by the quick parts and by the slow ones."""
    parts: dict[str, Any] = json.loads(board.since(0)[1])
    return parts["run"]["outcome"], parts["progress"]["done"], sum(row["done"] for row in parts["categories.0"])


def ends_well(refresher: Refresher, board: Board) -> bool:
    refresher.bring_up_to_date()
    return told(board) == ("ok", 2, 2)


def end(workspace: Workspace) -> None:
    add(workspace, ended(0, 0.0, 1.0), ended(1, 1.0, 2.0), over(2.0))
    workspace.release()


def test_what_somebody_else_has_read_is_told_all_the_same(going: Workspace) -> None:
    watch, board = Watch(going), Board()
    refresher = Refresher(watch, board)
    refresher.bring_up_to_date()
    assert told(board) == ("running", 0, 0)
    end(going)
    watch.refresh()  # as every question to the server does
    wait_until(lambda: ends_well(refresher, board), "the end is told")


def test_tasks_that_are_too_short_for_the_ledger_run_all_the_same(going: Workspace) -> None:
    statistics = Statistics(2, 0, BEGAN, 2.0)
    statistics.running = 2
    LiveCountersWriter(going.directory).publish(statistics)
    watch = Watch(going)
    watch.refresh()
    told = quick_parts(watch)["progress"]
    assert (told["running"], told["waiting"]) == (2, 0)
    assert 'shoal_tasks{state="running"} 2' in metrics(watch)
    (node,) = slow_parts(watch)["nodes.0"]
    assert (node["running"], node["cores_held"]) == (2, 2.0)
    reported = data_of(going.workflow)
    assert reported["progress"]["running"] == 2 and "2 running and 0 not started" in reported["summary"][0]
    going.release()
    watch.refresh()
    assert quick_parts(watch)["progress"]["running"] == 0


def test_how_many_tasks_run_is_told_also_of_very_many_categories(going: Workspace) -> None:
    statistics = Statistics(2, 0, BEGAN, 2.0)
    statistics.running = 2
    for name in ("a" * 40_000, "b" * 40_000):
        statistics.category(name).running = 1
    LiveCountersWriter(going.directory).publish(statistics)
    watch = Watch(going)
    watch.refresh()
    assert quick_parts(watch)["progress"]["running"] == 2


def test_the_last_round_tells_everything(going: Workspace) -> None:
    watch, board = Watch(going), Board()
    refresher = Refresher(watch, board)
    board.watch(1)
    refresher.start()
    wait_until(lambda: board.since(0)[0] > 0 and b"categories.0" in board.since(0)[1], "the beginning is told")
    end(going)
    with watch.lock:
        watch.refresh()
    refresher.stop()
    refresher.join(30.0)
    assert told(board) == ("ok", 2, 2)


def test_a_run_that_is_asked_for_by_its_number_is_live_while_it_goes_on(going: Workspace) -> None:
    watch, board = Watch(going, 1), Board()
    refresher = Refresher(watch, board)
    refresher.bring_up_to_date()
    assert told(board) == ("running", 0, 0)
    end(going)
    assert watch.has_grown()
    wait_until(lambda: ends_well(refresher, board), "the end is told")
    add(going, started(1), planned(["a"]))
    watch.refresh()
    assert watch.view.runs == 1 and watch.outcome() == "ok" and not watch.has_grown()


def test_what_a_later_run_says_is_not_of_one_that_was_killed(going: Workspace) -> None:
    going.release()
    add(going, started(2), planned(["b", "b"]))
    watch = Watch(going, 1)
    watch.refresh()
    add(going, ended(0, 0.0, 1.0), ended(1, 0.0, 1.0), over(1.0))
    watch.refresh()
    assert watch.outcome() == "killed" and watch.view.categories == ["a"] and not len(watch.view.attempts)
