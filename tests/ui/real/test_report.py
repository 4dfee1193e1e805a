"""`shoal report` over real runs: what the ledger says of nodes and needs, the page, and what a browser makes of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from shoal.cluster.agent.messages import ClusterNodeFacts
from shoal.cluster.participants import Participants
from shoal.core.resources import Resources
from shoal.core.store.directory import NodeInfo
from shoal.execution.run_selection import count_runs
from shoal.ledger.bulk_reader import LedgerTail, read_into
from shoal.ledger.file import LedgerReader, LedgerWriter
from shoal.ledger.records import (
    NodeLeft,
    NodeSeen,
    NodeTold,
    Record,
    TaskEnded,
    TasksLinked,
    TaskStarted,
    decode,
    encode,
)
from shoal.ledger.views.run import RunView
from shoal.ledger.views.waits import TaskWaits
from shoal.ledger.workspace import Workspace
from shoal.ui.web.api import metrics
from shoal.ui.web.watch import Watch
from support.browser import PROGRAM, browser
from support.clusters import NAME, local_cluster
from support.command import shoal, start, wait_until
from support.ledgers import ledger_path, records
from support.views import BEGAN, ended, over, planned, started

HOSTILE = "</script><b onclick=alert(1)>é"
FLOW = """
from shoal import rule, task
for i in range(6):
    rule(f"part{i}", run=f"sleep 0.0{i}; echo {i} > part{i}", category="part")
rule("whole", [f"part{i}" for i in range(6)], run="cat part* > whole", category=HOSTILE)
rule("bad", ["whole"], run="echo no >&2; exit 3", retries=1)
task("all", needs=["bad"])
""".replace("HOSTILE", repr(HOSTILE))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workflow that was run twice; its last task fails each time."""
    folder = tmp_path_factory.mktemp("ran")
    (folder / "flow.py").write_text(FLOW)
    shoal(folder, "run", "flow.py", "all", "-j2", "--quiet", expect=1)
    shoal(folder, "run", "flow.py", "all", "-j2", "--quiet", expect=1)
    return folder


def test_the_ledger_says_what_tasks_need_and_where_they_ran(ran: Path) -> None:
    flow = ran / "flow.py"
    assert {record.node for record in records(flow) if isinstance(record, TaskEnded)} == {0}
    assert any(isinstance(record, TasksLinked) for record in records(flow))
    view = RunView()
    read_into(view, LedgerTail(str(ledger_path(flow))), last=1)
    needs = TaskWaits(view)
    numbers = {view.names.of(int(task)): row for row, task in enumerate(needs.tasks)}
    parents = needs.parents[needs.children == numbers["whole"]]
    assert sorted(view.names.of(int(needs.tasks[row])) for row in parents) == [f"part{i}" for i in range(6)]
    assert numbers["bad"] in needs.children


def test_a_page_is_written_and_says_what_happened(ran: Path) -> None:
    said = shoal(ran, "report", "flow.py@1", "-o", "first.html").stdout
    assert said.startswith("wrote first.html: 7 tasks done, 1 failed on one machine in")
    text = (ran / "first.html").read_text()
    assert "7 tasks done, 1 failed" in text
    assert "exit status 3" in text
    assert re.findall(r'(?:src|href)="(?!#)[^"]*"', text) == [], "nothing is asked for from elsewhere"
    assert "<b onclick" not in text


def test_the_last_run_is_meant_unless_another_is_named(ran: Path) -> None:
    data = json.loads(shoal(ran, "report", "--json").stdout)
    assert (data["run"]["number"], data["progress"]["done"], data["progress"]["failed"]) == (2, 0, 1)
    assert data["progress"]["up_to_date"] == 7
    earlier = json.loads(shoal(ran, "report", "flow.py@-1", "--json").stdout)
    assert (earlier["run"]["number"], earlier["progress"]["done"]) == (1, 7)
    assert earlier["critical"]["steps"][-1]["name"] == "bad"
    assert earlier["failures"][0]["attempts"] == 2
    assert count_runs(str(ledger_path(ran / "flow.py"))) == 2


def test_two_runs_are_compared(ran: Path) -> None:
    said = shoal(ran, "report", "--compare", "flow.py@1", "flow.py", "-o", "both.html").stdout.splitlines()
    assert said[0] == "wrote both.html" and said[1].startswith("  flow.py@1: 7 tasks done, 1 failed")
    assert said[2].startswith("  flow.py: 0 tasks done") and all("did not finish (failed)" in line for line in said[1:])
    assert "a comparison of runs" in (ran / "both.html").read_text()
    data = json.loads(shoal(ran, "report", "--compare", "flow.py@1", "flow.py@2", "--json").stdout)
    assert [run["run"]["number"] for run in data["runs"]] == [1, 2]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("absent.py",), "the workflow file 'absent.py' does not exist"),
        (("flow.py@x",), "'x' in 'flow.py@x' is not a run number; the first run is @1"),
        (("--compare", "flow.py@1"), "--compare needs 2 runs; write it as '--compare RUN RUN'"),
        (("flow.py@9",), "there is no run 9 of 'flow.py'; its ledger has 2 runs"),
        (("flow.py", "--compare", "flow.py", "flow.py@1"), "--compare takes both runs as its values"),
        (("flow.py", "-o", "nowhere/x.html"), "the report 'nowhere/x.html' cannot be written"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(ran: Path, words: tuple[str, ...], sentence: str) -> None:
    assert sentence in shoal(ran, "report", *words, expect=2).stderr


def test_of_a_killed_run_report_page_and_status_say_the_same(tmp_path: Path) -> None:
    flow = tmp_path / "flow.py"
    flow.write_text(
        "from shoal import rule, task\n"
        "parts = [rule(f'p{i}', run=f'sleep {300 if i else 0}; echo > p{i}') for i in range(4)]\n"
        "task('all', needs=[f'p{i}' for i in range(4)])\n"
    )
    process = start(tmp_path, "run", "flow.py", "all", "-j2", "--quiet")
    wait_until(lambda: ledger_path(flow).exists() and stands(flow) == (1, 2), "one task is done and two go on")
    going = json.loads(shoal(tmp_path, "report", "flow.py", "--json").stdout)
    assert going["progress"]["running"] == 2 and "2 running and 1 not started" in going["summary"][0]
    assert "did not finish" not in shoal(tmp_path, "report", "flow.py").stdout
    process.kill()
    process.wait()
    assert shoal(tmp_path, "report", "flow.py").stdout.endswith("It did not finish (killed).\n")
    told = json.loads(shoal(tmp_path, "report", "flow.py", "--json").stdout)
    assert "1 task done, 3 not run" in told["summary"][0]
    assert (told["progress"]["running"], told["progress"]["left"]) == (0, 0.0)
    assert told["progress"]["utilisation"] == pytest.approx(told["figures"]["utilisation"], abs=0.01)
    assert "3 not run" in shoal(tmp_path, "status", "flow.py").stdout
    watch = Watch(Workspace(str(flow)))
    watch.refresh()
    assert 'shoal_tasks{state="not run"} 3\n' in metrics(watch)


def stands(flow: Path) -> tuple[int, int]:
    """Tasks that have ended, and those that go on."""
    over = {record.task for record in records(flow) if isinstance(record, TaskEnded)}
    begun = {record.task for record in records(flow) if isinstance(record, TaskStarted)}
    return len(over), len(begun - over)


def test_a_ledger_is_followed_as_it_grows_and_read_anew_when_it_was_replaced(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    writer = LedgerWriter(str(path), str(tmp_path / "ballast"))
    view, tail = RunView(), LedgerTail(str(path))
    for record in (started(2), planned(["a", "a"]), TaskStarted(0, 1, 1000.5, 1, 0.0, 0)):
        writer.add(record)
    writer.flush()
    assert not tail.was_replaced()
    read_into(view, tail)
    assert list(view.running) == [0]
    writer.add(ended(0, 0.5, 1.0))
    writer.flush()
    with open(path, "ab") as file:
        file.write(encode(over(2.0))[:7])  # a record that is only half there yet
    read_into(view, tail)
    assert (len(view.attempts), view.running, view.end) == (1, {}, None)
    with open(path, "ab") as file:
        file.write(encode(over(2.0))[7:])
    read_into(view, tail)
    assert view.end is not None
    writer.close()
    path.rename(tmp_path / "old")
    path.write_bytes(encode(started(5)))
    assert tail.was_replaced()
    view = RunView()
    read_into(view, tail)
    assert view.start is not None and view.start.to_run == 5


def test_damage_costs_a_report_only_the_records_that_it_touches(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    told: list[Record] = [started(3), planned(["a"] * 3), *(ended(task, task, task + 1.0) for task in range(3))]
    whole = [encode(record) for record in told]
    path.write_bytes(b"".join([*whole[:3], b"\xf5SHL rubbish", *whole[3:], whole[4][:20]]))
    view = RunView()
    read_into(view, LedgerTail(str(path)))
    assert view.attempts.task.tolist() == [0, 1, 2]


def test_nodes_that_come_go_and_fetch_are_noted_once_each(tmp_path: Path) -> None:
    def node(name: str) -> NodeInfo:
        return NodeInfo("", name, Resources((("cores", 20_000),)), {}, None, "", "")

    path = tmp_path / "ledger"
    writer = LedgerWriter(str(path), str(tmp_path / "ballast"))
    roll = Participants(writer)
    roll.take(1.0, {4: node("a"), 5: node("b")}, {4: ClusterNodeFacts(fetched=100)})
    assert (roll.number("a", 2.0), roll.number("c", 2.0), roll.number("", 2.0)) == (1, 3, 0)
    roll.take(6.0, {4: node("a")}, {4: ClusterNodeFacts(fetched=170)})
    roll.take(11.0, {4: node("a"), 9: node("b")}, {4: ClusterNodeFacts(fetched=170)})
    writer.close()
    told = [decode(payload) for payload in LedgerReader(str(path)).payloads()]
    cores = [("cores", 20_000)]
    assert told == [
        NodeSeen(1.0, 1, "a", cores),
        NodeSeen(1.0, 2, "b", cores),
        NodeSeen(2.0, 3, "c", []),
        NodeTold(6.0, 1, 70),
        NodeLeft(6.0, 2),
        NodeLeft(6.0, 3),
        NodeSeen(11.0, 2, "b", cores),
    ]


def test_a_node_that_is_gone_with_work_is_told(tmp_path: Path) -> None:
    nodes = {at: NodeInfo("", name, Resources(()), {}, None, "", "") for at, name in enumerate(("busy", "idle", "new"))}
    writer = LedgerWriter(str(tmp_path / "ledger"), str(tmp_path / "ballast"))
    roll = Participants(writer)
    notes = {
        0: ClusterNodeFacts(run="r", running=2, places=2, up_seconds=1.0),
        1: ClusterNodeFacts(run="r", up_seconds=1.0),
    }
    assert roll.take(1.0, nodes, notes) == []
    assert roll.take(2.0, {}, {}) == ["busy"]
    assert roll.take(3.0, {}, {}) == []
    writer.close()


def test_what_nodes_have_offered_is_the_same_for_the_run_and_its_readers(tmp_path: Path) -> None:
    """The log of a run that was attached to says of each node when it joined: never all at the same moment."""
    path = tmp_path / "ledger"
    writer = LedgerWriter(str(path), str(tmp_path / "ballast"))
    writer.add(started(1))
    roll = Participants(writer)
    roll.joined(BEGAN + 1.0, "a", [("cores", 10_000)])
    roll.joined(BEGAN + 1.5, "b", [("cores", 20_000)])
    roll.left(BEGAN + 2.5, "b")
    writer.close()
    view = RunView()
    read_into(view, LedgerTail(str(path)))
    assert roll.core_seconds(BEGAN, BEGAN + 4.0) == 1 * 4.0 + 2 * 1.0
    assert sum(cores * (end - begin) for _, cores, begin, end in view.presence(BEGAN + 4.0)) == 1 * 4.0 + 2 * 1.0


def test_a_run_on_a_cluster_records_the_node_of_every_task(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    flow = tmp_path / "w" / "flow.py"
    flow.write_text(FLOW)
    with local_cluster(tmp_path / "c", 2) as cluster:
        cluster.await_nodes(2)
        cluster.shoal("run", "--cluster", NAME, "whole", "--plain", where=flow.parent)
        data = json.loads(cluster.shoal("report", "flow.py", "--json", where=flow.parent))
    seen = {record.node: record for record in records(flow) if isinstance(record, NodeSeen)}
    assert sorted(seen) == [1, 2]
    assert all(dict(record.resources)["cores"] >= 10_000 for record in seen.values())
    assert {record.node for record in records(flow) if isinstance(record, TaskEnded)} <= {1, 2}
    assert data["run"]["cluster"] and sum(node["tasks"] for node in data["nodes"]) == 7
    assert data["figures"]["utilisation"] > 0


def test_a_run_with_nothing_to_do_is_reported_only_by_its_number(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(FLOW)
    for _ in range(2):
        shoal(tmp_path, "run", "flow.py", "whole", "-j2", "--quiet")
    last, second = (json.loads(shoal(tmp_path, "report", word, "--json").stdout) for word in ("flow.py", "flow.py@2"))
    assert (last["run"]["number"], last["progress"]["done"]) == (1, 7)
    assert (second["run"]["number"], second["progress"]["done"], second["progress"]["up_to_date"]) == (2, 0, 7)


@pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium")
def test_a_browser_draws_every_section_and_runs_nothing_of_what_names_contain(ran: Path) -> None:
    shoal(ran, "report", "flow.py@1", "-o", "drawn.html")
    with browser(ran / "browser") as page:
        page.open((ran / "drawn.html").as_uri())
        page.wait_for("document.querySelectorAll('svg').length >= 4 && !!document.querySelector('canvas')")
        heads = page.evaluate("[...document.querySelectorAll('h2')].map((head) => head.textContent)")
        marked = page.evaluate("document.querySelectorAll('[onclick]').length")
        text = page.evaluate("document.body.innerText")
        asked, complaints = page.requests, page.complaints
    assert heads == [
        *("Summary", "Utilisation", "Task timeline", "Categories", "Critical path", "Predicted and actual"),
        *("Data", "Failures", "Environment"),
    ]
    assert marked == 0 and text.count(HOSTILE) >= 2
    assert complaints == [] and all(address.startswith(("file:", "data:", "about:")) for address in asked), asked
