"""What the page says of runs with unusual figures: nearly all done, no number of tasks, very many categories or
nodes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal.core.quantities import show_progress, show_share
from shoal.ledger.records import NetBegun, NetMarked, NodeSeen, Record, encode
from shoal.ledger.workspace import LockHolder, Workspace
from shoal.ui.web.charts import MOST_CATEGORIES
from support.browser import Browser, browser
from support.command import shoal
from support.views import BEGAN, ended, linked, over, planned, started
from support.web import needs_browser, web

HEARD = "document.querySelector('#heard').textContent"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found
        assert found.complaints == []


def recorded(folder: Path, *records: Record) -> Workspace:
    """A workflow whose ledger has these records."""
    (folder / "flow.py").write_text("")
    workspace = Workspace(str(folder / "flow.py"))
    workspace.make()
    Path(workspace.ledger).write_bytes(b"".join(map(encode, records)))
    return workspace


@contextmanager
def going_on(folder: Path, *records: Record) -> Iterator[Workspace]:
    """A run that we hold the lock of, as if we ran it."""
    workspace = recorded(folder, *records)
    workspace.acquire(LockHolder(os.getpid(), "here", "abc", BEGAN))
    try:
        yield workspace
    finally:
        workspace.release()


@needs_browser
def test_a_run_of_which_a_little_is_left_is_not_all_done(tmp_path: Path, page: Browser) -> None:
    done = [ended(task, task, task + 1.0) for task in range(999)]
    with going_on(tmp_path, started(1000), planned(["a"] * 1000), *done), web(tmp_path, "flow.py") as told:
        status = shoal(tmp_path, "status", "flow.py").stdout
        assert re.search(r"\b99 %: 999 done", status)
        page.open(told.address)
        page.wait_for("document.querySelector('#progress').className === '' && document.title.includes('%')")
        assert page.evaluate("document.title") == "99 % · flow.py"
        assert page.evaluate(HEARD).startswith("99 % of 1,000 tasks are done")
        said = page.evaluate("[0.994, 0.9999, 1, 0.98, 0.004, 0].map(Plots.percent)")
        assert said == [show_share(share) for share in (0.994, 0.9999, 1.0, 0.98, 0.004, 0.0)]
        pairs = [[29, 100], [999, 1000], [0, 0]]
        said = page.evaluate(f"{pairs}.map((two) => Plots.shareOf(...two))")
        assert said == [show_progress(part, whole) for part, whole in pairs] == ["29 %", "99 %", "100 %"]


@needs_browser
def test_of_a_net_that_goes_on_nobody_hears_that_all_of_it_is_over(tmp_path: Path, page: Browser) -> None:
    net: list[Record] = [
        started(0),
        NetBegun("mill", "digest", None),
        NetMarked(BEGAN + 1.0, {"grain": 2}, {"grind": 1}, {"grind": 1}, []),
        planned(["grind"]),
        ended(0, 0.0, 1.0),
    ]
    with going_on(tmp_path, *net):
        (tmp_path / "flow.py").write_text(
            "from shoal import Net, take\nnet = Net('mill')\ngrain = net.place('grain', [1])\n"
            "@net.task(x=take(grain))\ndef grind(x):\n    return None\n"
        )
        with web(tmp_path, "flow.py") as told:
            page.open(told.address)
            assert page.wait_for(HEARD) == "1 task done so far"
            page.wait_for("document.querySelector('#net svg')?.textContent.includes('grain')")


@needs_browser
def test_a_report_of_a_run_of_which_nothing_ended_says_so(tmp_path: Path, page: Browser) -> None:
    """And not that the ledger is that of an early version."""
    told: list[tuple[Record, str]] = [
        (linked({0: [-1]}), "No task has finished"),
        (ended(0, 0.0, 1.0), "The ledger has no dependencies"),
    ]
    for record, sentence in told:
        recorded(tmp_path, started(1), planned(["a"]), record)
        shoal(tmp_path, "report", "flow.py", "-o", "drawn.html")
        page.open((tmp_path / "drawn.html").as_uri())
        assert sentence in page.wait_for("document.querySelector('#path').innerText")


@needs_browser
@pytest.mark.parametrize("other", [[], [planned(["a"]), ended(0, 0.0, 3.0), over(4.0)]])
def test_a_run_that_was_killed_at_once_is_compared_in_words(tmp_path: Path, page: Browser, other: list[Record]) -> None:
    recorded(tmp_path, started(1), started(1), *other)
    shoal(tmp_path, "report", "--compare", "flow.py@1", "flow.py@2", "-o", "both.html")
    page.open((tmp_path / "both.html").as_uri())
    words = page.wait_for("document.querySelector('#compared').innerText")
    assert ("did not complete" if other else "Neither run completed") in words
    assert not re.search("NaN|∞|Infinity", words)


@needs_browser
def test_page_and_report_count_all_nodes_and_show_the_first(tmp_path: Path, page: Browser) -> None:
    many = 1001
    nodes = [NodeSeen(BEGAN, 1 + at, f"n{at}", [("cores", 10_000)]) for at in range(many)]
    ends = [ended(at, 0.0, 1.0, node=1 + at) for at in range(many)]
    recorded(tmp_path, started(many), planned(["a"] * many), *nodes, *ends, over(3.0))
    head = "document.querySelector('#head').textContent"
    with web(tmp_path, "flow.py") as told:
        page.open(told.address)
        page.wait_for("document.querySelectorAll('#nodes .node').length === 400")
        assert "on 1,001 nodes, 1,001 cores" in page.evaluate(head)
        assert "The first 400 of 1,001 nodes." in page.evaluate("document.querySelector('#nodes').innerText")
    shoal(tmp_path, "report", "flow.py", "-o", "many.html")
    page.open((tmp_path / "many.html").as_uri())
    assert "on 1,001 nodes" in page.wait_for(head)
    assert "The first 400 of 1,001 nodes." in page.evaluate("document.querySelector('#gantt').innerText")
    assert "1,001 tasks done on 1,001 nodes" in page.evaluate("document.querySelector('#summary').innerText")


@needs_browser
def test_a_category_that_is_not_in_the_graph_can_be_listed(tmp_path: Path, page: Browser) -> None:
    """The graph has those that were planned first, the table those that took most."""
    many = MOST_CATEGORIES + 3
    ends = [ended(task, 0.0, 1.0 + task / many) for task in range(many)]
    recorded(tmp_path, started(many), planned([f"c{task}" for task in range(many)]), *ends, over(3.0))
    with web(tmp_path, "flow.py") as told:
        page.open(told.address)
        page.wait_for(f"document.querySelector('#tasks [role=status]').textContent === '{many} tasks'")
        first = page.wait_for("document.querySelector('#categories tbody .link').textContent")
        assert first == f"c{many - 1}"
        page.evaluate("document.querySelector('#categories tbody .link').click()")
        page.wait_for("document.querySelector('#tasks [role=status]').textContent === '1 task'")
        assert page.evaluate("document.querySelector('#tasks select[aria-label=\"all categories\"]').value") == first
