"""Whoever tells of a run tells the same: status, top, page, report, metrics and what follows from the ledger itself.

    python -m pytest tests/ui/property/test_numbers_agree.py -n 0 --hypothesis-profile many

tries many more ledgers than the suite does.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.policies.retry import AttemptOutcome
from shoal.core.quantities import show_progress
from shoal.core.resources import FRACTION, Resources
from shoal.core.scheduler_messages import Accept, Retry
from shoal.core.task import Profile
from shoal.execution.attempt_recorder import AttemptRecorder, EndedAttempt
from shoal.ledger.file import LedgerWriter
from shoal.ledger.identity import Versions
from shoal.ledger.records import (
    DETACHED,
    NetMarked,
    NodeLeft,
    NodeTold,
    Record,
    RunEnded,
    RunStarted,
    TaskEnded,
    TasksCancelled,
    TasksLinked,
    TasksPlanned,
    TaskStarted,
    TasksVanished,
    ThrottleDecided,
    numbers,
)
from shoal.ledger.statistics import LiveCountersWriter, Statistics
from shoal.ledger.status import RunStatus
from shoal.ledger.views.run import RunView
from shoal.ledger.workspace import LockHolder, Workspace
from shoal.ui.cli.main import dispatch
from shoal.ui.cli.report import data_of
from shoal.ui.report.data import run_data
from shoal.ui.top.model import TopModel
from shoal.ui.top.tables import TopView, table_of
from shoal.ui.top.view import Window, lines
from shoal.ui.web.api import metrics
from shoal.ui.web.run_page import quick_parts, slow_parts
from shoal.ui.web.tasks import list_tasks
from shoal.ui.web.watch import Watch
from support.graphs import graph_of
from support.histories import History, Part, history

WORKFLOW = "flow.py"
EXAMPLES = settings().max_examples // 2
"""Each is a whole ledger, read by everybody."""
Data = dict[str, Any]


class Counted(msgspec.Struct):
    """What the records of one run say, counted one by one."""

    start: RunStarted
    end: RunEnded | None = None
    names: dict[int, str] = {}
    category: dict[int, str] = {}
    final: dict[int, TaskEnded] = {}
    attempts: list[TaskEnded] = []
    running: dict[int, TaskStarted] = {}
    cancelled: set[int] = set()
    lost: set[int] = set()
    needs: dict[int, list[int]] = {}
    nodes: dict[int, int] = {}
    mark: NetMarked | None = None

    def take(self, record: Record) -> None:
        match record:
            case TasksPlanned():
                self.names |= zip(record.first, record.names, strict=True)
                self.category |= zip(record.first, record.categories, strict=True)
            case TasksLinked():
                needed = iter(numbers(record.needs))
                for task, count in zip(numbers(record.tasks), numbers(record.counts), strict=True):
                    self.needs[task] = [next(needed) for _ in range(count)]
            case TaskStarted():
                self.running[record.task] = record
            case TasksVanished():
                for task in record.tasks:
                    self.running.pop(task, None)
            case TasksCancelled():
                self.cancelled.update(record.tasks)
                self.lost.update(record.tasks)
            case TaskEnded():
                self.attempts.append(record)
                if record.task in self.running and self.running[record.task].attempt <= record.attempt:
                    del self.running[record.task]
                if record.final:
                    self.final[record.task] = record
                    if record.outcome != "ok":
                        self.lost.add(record.task)
            case NodeTold():
                self.nodes[record.node] = record.running or 0
            case NodeLeft():
                self.nodes.pop(record.node, None)
            case NetMarked():
                self.mark = record
            case RunEnded():
                self.end = record

    def count(self, live: bool, said: int) -> dict[str, int]:
        """Every task of the run in one state."""
        found = {"done": self.ended("ok"), "failed": len(self.final) - self.ended("ok")}
        over = set(self.final)
        cancelled = {task for task in self.cancelled if task in self.names and task not in over}
        if self.end is None:
            cancelled -= set(self.running)
        over |= cancelled
        lost = set(self.lost)
        while more := {task for task, needed in self.needs.items() if task not in lost and lost.intersection(needed)}:
            lost |= more
        cannot = {task for task in lost - self.lost if task in self.names and task not in over}
        over |= cannot
        running = max(len(self.running), said, sum(self.nodes.values())) if live else 0
        total = self.to_run
        found |= {"cancelled": len(cancelled), "cannot_run": len(cannot)}
        left = total - len(over)
        return found | {"running": min(left, running) if total else running, "waiting": max(0, left - running)}

    @property
    def to_run(self) -> int:
        """A ledger that was mended has results of earlier runs in it."""
        return max(self.start.to_run, len(self.final)) if self.start.total else 0

    def ended(self, outcome: str) -> int:
        return sum(record.outcome == outcome for record in self.final.values())


def counted(parts: list[Part]) -> list[Counted]:
    found = []
    for part in parts:
        one = Counted(part.start)
        for record in part.records:
            one.take(record)
        found.append(one)
    return found


def shown(runs: list[Counted]) -> int:
    """Which run everybody shows: the last that had something to do, or that goes on with one that did not end."""
    at = 0
    for number, run in enumerate(runs[1:], 1):
        before = runs[at]
        is_idle = run.start.total > 0 and run.start.to_run == 0
        was_over = before.end is not None and before.end.outcome != DETACHED and before.start.run != run.start.run
        if not (is_idle and was_over):
            at = number
    return at


@contextmanager
def written(told: History) -> Iterator[Workspace]:
    """The ledger, written by the real writer; who writes it still holds the lock, and says what runs."""
    there = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        workspace = Workspace(os.path.join(folder, WORKFLOW))
        workspace.make()
        writer = LedgerWriter(workspace.ledger, workspace.ballast)
        for record in told.records():
            writer.add(record)
        writer.flush()
        writer.close()
        last = told.parts[-1]
        if last.goes_on:
            workspace.acquire(LockHolder(os.getpid(), "here", last.start.run, last.start.time))
            if last.said is not None:
                say(workspace, last)
        try:
            with patch("time.time", return_value=told.now):
                yield workspace
        finally:
            workspace.release()
            os.chdir(there)


def say(workspace: Workspace, part: Part) -> None:
    assert part.said is not None
    said = Statistics(part.start.total, 0, 0.0, 1.0)
    said.running, _, said.is_oversubscribed = part.said
    for name, count in part.said[1].items():
        said.category(name).running = count
    LiveCountersWriter(workspace.directory).publish(said)


def output_of(*words: str) -> str:
    with redirect_stdout(io.StringIO()) as stream:
        assert dispatch([*words]) == 0
    return stream.getvalue()


def read(text: str, words: dict[str, str]) -> dict[str, int]:
    """Counts in a sentence, by the words behind them."""
    found = {}
    for key, word in words.items():
        match = re.search(rf"([\d,]+) {word}\b", text)
        found[key] = int(match[1].replace(",", "")) if match else 0
    return found


PERCENT = re.compile(r"([\d.,]+|nan|inf) %")
SHARES = ("share", "utilisation", "use", "done_share", "memory_waste", "waste", "memory_used", "hits_share")
SIGNED = {"caps", "row", "place", "cap", "at", "near"}


def check_numbers(data: Any, where: str = "") -> None:
    """No number is nothing, infinite or below nothing, and no share is more than all of it."""
    if isinstance(data, dict):
        for key, value in data.items():
            check_numbers(value, f"{where}.{key}")
    elif isinstance(data, list):
        for value in data:
            check_numbers(value, where)
    elif isinstance(data, float | int):
        name = where.rpartition(".")[2]
        assert math.isfinite(data), where
        assert data >= -1e-9 or name in SIGNED, (where, data)
        if name in SHARES:
            assert data <= 1 + 1e-6, (where, data)


def check_text(text: str) -> None:
    for share in PERCENT.findall(text):
        assert 0 <= float(share.replace(",", "")) <= 100, text
    assert not re.search(r"\bnan\b|\binf\b|(^|[\s(])-\d", text), text


def check(told: History) -> None:
    runs = counted(told.parts)
    at = shown(runs)
    run, part = runs[at], told.parts[at]
    live = part.goes_on
    said = part.said[0] if live and part.said is not None else 0
    is_net = any(one.mark is not None for one in runs)
    if is_net and run.mark is not None and live:
        said = run.mark.running_now()
    with written(told) as workspace:
        status = json.loads(output_of("status", "--json", WORKFLOW))
        watch = Watch(workspace, skip_idle=True)
        watch.refresh()
        quick, slow = quick_parts(watch), slow_parts(watch)
        report = data_of(WORKFLOW)
        exposition = metrics(watch)
        model = TopModel(watch, -1)
        parts = model._compute()
        top = lines(parts, table_of("n", parts), TopView(), Window(400, 60, lambda text, colour: text))
        text = output_of("status", WORKFLOW)
        listed = list_tasks(watch, state="", category="", search="", after=-1, limit=200)["tasks"]
        rows = json.loads(output_of("status", "--json", "--categories", WORKFLOW))
        nodes = json.loads(output_of("status", "--json", "--nodes", WORKFLOW))
        tasks = json.loads(output_of("status", "--json", "--tasks", WORKFLOW))
        tables = [output_of("status", f"--{name}", WORKFLOW) for name in ("categories", "nodes", "tasks", "throttle")]
    page = quick["progress"]
    for data in (status, rows, nodes, tasks, quick, slow, report):
        check_numbers(data)
    for words in (text, *top, *report["summary"], *report["advice"], *tables):
        check_text(words)
    assert quick["run"]["id"] == report["run"]["id"] == status["run"] == run.start.run
    if is_net:
        check_net(run, status, quick, page, report["progress"], live)
        return
    count = run.count(live, said)
    check_counts(count, run, live, status, page, report["progress"])
    check_text_counts(count, run, live, text, "\n".join(top), report["summary"][0], exposition)
    check_tasks(count, live, listed, tasks, bool(run.names))
    check_categories(run, live, count, rows, report["categories"], slow)
    check_nodes(run, nodes, report["nodes"])
    check_times(run, told.now, live, status, page, report, quick)


def check_net(run: Counted, status: Data, quick: Data, page: Data, report: Data, live: bool) -> None:
    done = run.mark.done if run.mark is not None else {}
    assert status["done"] == quick["net"]["done"] == done
    assert status["running"] == quick["net"]["running"] == (run.mark.running if live and run.mark else {})
    for told in (page, report):
        assert (told["done"], told["failed"]) == (run.ended("ok"), len(run.final) - run.ended("ok"))
    assert page["running"] == report["running"]


def check_counts(count: Data, run: Counted, live: bool, status: Data, page: Data, report: Data) -> None:
    total = run.to_run
    assert sum(count.values()) == total
    for told in (page, report):
        assert {name: told[name] for name in count} == count
    assert {name: status[name] for name in count if name != "waiting"} == {
        name: number for name, number in count.items() if name != "waiting"
    }
    assert status["waiting"] == (count["waiting"] if live else 0)
    assert status["not_run"] == (0 if live else count["waiting"] + count["cannot_run"])
    for told in (status, page, report):
        assert (told["to_run"], told["up_to_date"]) == (total, max(0, run.start.total - total))
    if run.end is not None:
        assert (run.end.done, run.end.failed) == (count["done"], count["failed"])


WORDS = {name: name.replace("_", " ") for name in ("done", "failed", "running", "cancelled", "cannot_run")}
WORDS["waiting"] = "not started"


def check_text_counts(
    count: Data, run: Counted, live: bool, status: str, top: str, summary: str, exposition: str
) -> None:
    total = run.to_run
    share = show_progress(count["done"], total)
    left = {"not_run": "not run"} if not live else {}
    wanted = count | (
        {"not_run": count["waiting"] + count["cannot_run"], "waiting": 0, "cannot_run": 0} if left else {}
    )
    told = re.search(rf"^{share}: (.*)$", status, re.MULTILINE)
    assert told is not None, status
    assert read(told[1], WORDS | left) == wanted
    assert f" {share}" in top.split("\n")[1]
    assert read(top.split("\n")[2], {"failed": "failed", "cancelled": "cancelled", **left}) == {
        name: wanted[name] for name in ("failed", "cancelled", *left)
    }
    assert f"{count['done']:,} of {total:,} done" in top
    assert read(summary, {"failed": "failed", "cancelled": "cancelled", **left}) == {
        name: wanted[name] for name in ("failed", "cancelled", *left)
    }
    states = dict(re.findall(r'shoal_tasks\{state="([^"]*)"\} (\d+)', exposition))
    for name, number in wanted.items():
        assert int(states.get(WORDS.get(name, "not run"), 0)) == number, (name, exposition)


def check_tasks(count: Data, live: bool, listed: list[Data], tasks: list[Data], planned: bool) -> None:
    """Single tasks, by state; which of those run that are short nobody says."""
    page, status = (Counter(row["state"] for row in rows) for rows in (listed, tasks))
    assert page == status
    for name in ("done", "failed", "cancelled"):
        assert page[name] == count[name]
    if live:
        assert page["cannot run"] == count["cannot_run"]
        assert page["running"] <= count["running"]
        assert page["not started"] + page["running"] == count["waiting"] + count["running"]
    elif planned:
        assert page["not run"] == count["waiting"] + count["cannot_run"]


def check_categories(run: Counted, live: bool, count: Data, rows: list[Data], report: list[Data], slow: Data) -> None:
    page = [row for name, part in slow.items() if name.startswith("categories.") for row in part]
    assert [row["name"] for row in page] == [row["name"] for row in report]
    by_name = {row["category"]: row for row in rows}
    for row, other in zip(report, page, strict=True):
        mine = [record for record in run.attempts if run.category.get(record.task, "unknown") == row["name"]]
        tasks = [task for task, name in run.category.items() if name == row["name"]]
        ends = [end for task, end in run.final.items() if run.category.get(task, "unknown") == row["name"]]
        for told in (row, other, by_name[row["name"]]):
            assert told["done"] == sum(record.outcome == "ok" for record in ends)
            assert told["failed"] == sum(record.outcome != "ok" for record in ends)
            assert told["retries"] == sum(not each.final and each.outcome != "cancelled" for each in mine)
        assert row["planned"] == other["planned"] == len(tasks)
        for told in (row, other):
            assert told["seconds"] == pytest.approx(sum(each.ended - each.started for each in mine), rel=1e-3, abs=1e-3)
    sums = {name: sum(row[name] for row in rows) for name in ("done", "failed", "running", "waiting")}
    assert (sums["done"], sums["failed"]) == (count["done"], count["failed"])
    assert sums["running"] <= count["running"]  # of short tasks on other nodes nobody says what they are
    assert sums["running"] + sums["waiting"] == (count["running"] + count["waiting"] if live else 0)


def check_nodes(run: Counted, status: list[Data], report: list[Data]) -> None:
    assert sum(row["completed"] for row in status) == sum(row["tasks"] for row in report) == run.ended("ok")
    cores = {row["host"]: row["cores"] for row in status}
    known = {row["name"]: row["cores"] for row in report if row["name"] in cores}
    assert known == cores
    assert len(known) == len(report) or not run.names  # a ledger that was mended knows no nodes any more
    good = sum(record.outcome == "ok" and record.final for record in run.attempts)
    assert sum(row["failed"] for row in report) == len(run.attempts) - good


def check_times(run: Counted, now: float, live: bool, status: Data, page: Data, report: Data, quick: Data) -> None:
    elapsed = page["elapsed"]
    assert elapsed == pytest.approx(report["progress"]["elapsed"], rel=1e-3, abs=1e-3)
    last = max((record.ended for record in run.attempts), default=run.start.time)
    if run.end is not None:
        assert status["took"] == pytest.approx(elapsed, rel=1e-3, abs=1e-2)
        assert elapsed >= (max(last, run.end.time) - run.start.time) * (1 - 1e-3) - 1e-2
    shares = [page["utilisation"], report["progress"]["utilisation"]]
    if live or run.end is not None:
        shares.append(status["utilisation"])
    if None not in shares:
        assert shares == pytest.approx([shares[0]] * len(shares), rel=2e-3, abs=2e-3), shares
        assert report["figures"]["utilisation"] == pytest.approx(shares[0], rel=1e-2, abs=1e-2), shares
    else:
        assert shares == [None] * len(shares)
    assert quick["run"]["cores"] == pytest.approx(report["run"]["cores"])
    assert report["progress"]["rate"] >= 0
    if live:
        assert status["rate"] == pytest.approx(page["rate"], rel=1e-2, abs=2e-3)


NAP = Profile("nap", Resources.parse({"cores": 1}))


@settings(max_examples=4 * EXAMPLES)
@given(st.randoms(use_true_random=False), st.integers(1, 60), st.integers(1, 4), st.sampled_from([0.001, 0.3, 40.0]))
def test_a_run_and_its_ledger_agree_on_the_cores_used(random: Random, tasks: int, cores: int, seconds: float) -> None:
    """Also where a task begins a moment before the one before it is known to have ended, or just then."""
    began = 1.7e9 + random.random()
    throttle = ThrottleDecided(began, "", "nap", 9, 2, 5, "growing", "cores", 0.5, 2.0, "so")
    totals, free = Statistics(tasks, 0, began, float(cores)), [began] * random.randint(1, 2 * cores)
    totals.throttled(throttle)
    graph = graph_of("\n".join(f"t{task}:" for task in range(tasks)), NAP)
    kept: list[Record] = []
    ledger = SimpleNamespace(path="/nowhere/ledger", add=kept.append)
    listener = SimpleNamespace(attempt_over=lambda *_: None)
    books = AttemptRecorder(graph, Versions(graph), ledger, totals, listener)  # type: ignore[arg-type]
    for task in range(tasks):
        place = random.randrange(len(free))
        begin, end = free[place], free[place] + seconds * random.choice((0.5, 1.0, 2.0))
        free[place] = end - random.choice((0.0, 0.0, 1e-6, 0.1 * seconds))
        books.ended(EndedAttempt(task, 1, AttemptOutcome.OK, 0, begin, end, 0.1 * seconds * random.random()))
        totals.update_oversubscription(end, lambda _: 1.0)  # what is said on the way changes nothing
        books.enter([Accept(task, 1)] if random.random() < 0.9 else [Retry(task, 1, AttemptOutcome.FAILED, 0.0)])
    totals.ended = max(record.ended for record in kept if isinstance(record, TaskEnded))
    node = [("cores", cores * FRACTION)]
    start = RunStarted("r", began, 1, 1, "b", "h", "v", [], node, tasks, tasks)
    names = TasksPlanned(list(range(tasks)), [f"t{task}" for task in range(tasks)], ["nap"] * tasks)
    state, at_once, bit_by_bit = RunStatus(), RunView(), RunView()
    for record in (start, names, throttle, *kept, RunEnded(totals.ended, "ok", tasks, 0, 0)):
        state.take(record)
        at_once.take(record)
        bit_by_bit.take(record)
        bit_by_bit.settle()
        bit_by_bit.is_oversubscribed()
    at_once.settle()
    assert at_once.is_oversubscribed() == bit_by_bit.is_oversubscribed() == totals.share_cores()
    told = state.progress(totals.ended).utilisation
    shown = run_data(at_once, workflow=WORKFLOW, now=None)["progress"]["utilisation"]
    assert [told, shown] == pytest.approx([totals.utilisation()] * 2, abs=2e-3)


@settings(max_examples=EXAMPLES)
@given(st.randoms(use_true_random=False), st.integers(0, 10), st.integers(1, 3))
def test_everybody_says_the_same(random: Random, size: int, runs: int) -> None:
    check(history(random, size, runs))
