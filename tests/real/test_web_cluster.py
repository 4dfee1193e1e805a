"""Clusters in the live page: the nodes of a run that goes on, and a cluster by itself, in a real browser."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shoal.ledger.records import NodeTold
from support.browser import PROGRAM, Browser, browser
from support.clusters import NAME, LocalCluster, cluster_with_books, local_cluster
from support.command import PATIENCE, SHOAL, wait_until
from support.ledgers import records

# Parts wait, so that queues stand still while they are looked at; whoever gets the ticket goes on, or all together.
FLOW = """
from shoal import rule
WAIT = "until mv FOLDER/ticket FOLDER/used 2> /dev/null || test -e FOLDER/go; do sleep 0.02; done"
for i in range(12):
    rule(f"part{i}", "source", run=f"{WAIT}; cp source part{i}", category="part")
rule("whole", [f"part{i}" for i in range(12)], run="cat part* > whole", category="join")
"""
NODES = "[...document.querySelectorAll('#nodes .node')]"
CARDS = (
    NODES
    + """.map((node) => {
  const told = (name) => node.querySelector(name).textContent;
  const lines = [...node.querySelectorAll('.line:not(.hidden)')];
  const word = (line, name) => line.querySelector(name).textContent;
  const pairs = lines.map((line) => [word(line, '.what'), word(line, '.value')]);
  return { name: told('h3'), state: told('.chip'), about: told('.about'), trouble: told('.trouble'),
    moved: told('.moved'), lines: Object.fromEntries(pairs) };
})"""
)
QUEUED = f"{CARDS}.flatMap((card) => ['wait', 'local', 'shared'].map((queue) => Number(card.lines[queue])))"
LOADED = 1.0 if os.environ.get("PYTEST_XDIST_WORKER") else 0.0
"""Seconds more, where other tests run at the same time."""
needs_browser = pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium")


def get(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=PATIENCE) as answer:
        found: bytes = answer.read()
        return found


def refused(address: str) -> tuple[int, bytes]:
    """The status and the words with which something is not given."""
    try:
        return 200, get(address)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def parts_of(address: str, path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(get(f"{address}api/v1/{path}"))["parts"]
    return found


@contextmanager
def shown(cluster: LocalCluster, where: Path, *words: str) -> Iterator[str]:
    """The address that a command prints, which is ended with the block."""
    process = subprocess.Popen(
        [*SHOAL, *words],
        cwd=where,
        env=cluster.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        found = re.search(r"http://127\.0\.0\.1:\d+/\S+/", process.stdout.readline())
        assert found
        yield found[0]
    finally:
        process.terminate()
        process.wait(PATIENCE)
        process.stdout.close()


def prepared(folder: Path) -> Path:
    folder.mkdir()
    (folder / "source").write_bytes(bytes(50_000))
    (folder / "flow.py").write_text(FLOW.replace("FOLDER", str(folder)))
    return folder


def queued_in(flow: Path) -> int:
    """Tasks in the queues of all nodes, by what each said last."""
    last = {record.node: record for record in records(flow) if isinstance(record, NodeTold)}
    return sum(told.wait + told.local + told.shared for told in last.values())


def card(page: Browser, name: str) -> dict[str, Any]:
    return next(each for each in page.evaluate(CARDS) if each["name"] == name)


def wait_for_cards(page: Browser, condition: str) -> None:
    """Says what the cards of the nodes say, should it be in vain."""
    try:
        page.wait_for(condition)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{page.evaluate(CARDS)}\n{page.evaluate('document.body.innerText')}") from None


def check_quiet(page: Browser) -> None:
    """Nothing was complained of, and nothing was asked of anybody else."""
    assert page.complaints == []
    assert all(address.startswith(("http://127.0.0.1:", "data:", "about:")) for address in page.requests)


def check_what_runs(page: Browser, address: str, nodes: list[str]) -> None:
    """Tasks that have run for a while are told by name, node and in the chart, although none has ended."""
    page.wait_for("document.querySelectorAll('#progress tbody tr').length === 2")
    running = parts_of(address, "run")["running"]
    assert sorted(row["node"] for row in running) == nodes
    rows = [f"{name} · 1" for name in nodes]
    # What took long to work out is kept for a while.
    wait_until(lambda: sorted(json.loads(get(f"{address}api/v1/gantt"))["rows"]) == rows, "the chart has both")
    chart = json.loads(get(f"{address}api/v1/gantt"))
    assert chart["kind"] == "bars"
    assert sorted(chart["name"]) == sorted(row["name"] for row in running) and min(chart["length"]) >= 1.0
    one = json.loads(get(f"{address}api/v1/tasks/{running[0]['task']}"))
    assert (one["state"], one["running"]["node"]) == ("running", running[0]["node"])
    page.wait_for("document.querySelectorAll('#graph .state-running').length === 2")
    page.wait_for(
        "(document.querySelector('#tasks').scrollIntoView(), "
        "document.querySelectorAll('#tasks .state.running').length === 2)"
    )


@needs_browser
@pytest.mark.parametrize("books", ["head", "redis"])
def test_the_nodes_of_a_run_show_their_queues_live(books: str, tmp_path: Path) -> None:
    with cluster_with_books(books, tmp_path) as cluster:
        cluster.await_nodes(2)
        flow = prepared(tmp_path / "w")
        with shown(cluster, flow, "web", "--cluster", NAME) as address:
            store = parts_of(address, "cluster")["store"]
            assert (store["kind"], store["problem"]) == (books, "") and "@" not in store["where"]
        words = ("run", "--web", "--plain", "--cluster", NAME, "--files", "managed", "flow.py", "whole")
        with shown(cluster, flow, *words) as address, browser(tmp_path / "profile") as page:
            page.size(1280)
            page.open(address)
            wait_for_cards(page, f"{NODES}.length === 2 && {CARDS}.every((card) => card.about === '1 running')")
            # Both run one each: ten are queued, of which the thief has taken some.
            page.wait_for(f"{QUEUED}.reduce((sum, queued) => sum + queued, 0) === 10")
            parts = parts_of(address, "run")
            standing = {row["name"]: row for row in parts["standing.0"]}
            cards = {each["name"]: each for each in page.evaluate(CARDS)}
            assert sorted(cards) == sorted(standing)
            for name, told in standing.items():
                assert told["running"] == 1 and told["cores_held"] == 1
                for queue in ("wait", "local", "shared"):
                    assert cards[name]["lines"][queue] == str(told[queue])
                assert ("stolen" in cards[name]["moved"]) == (told["stolen"] > 0)
            assert parts["progress"]["running"] == 2
            check_what_runs(page, address, sorted(standing))
            assert sum(row["stolen"] + row["pushed"] for row in standing.values()) > 0
            queues = re.findall(
                r'shoal_node_queued_tasks\{node="[^"]+",queue="\w+"\} (\d+)', get(f"{address}metrics").decode()
            )
            assert len(queues) == 6 and sum(map(int, queues)) == 10
            (flow / "ticket").touch()
            wait_until(lambda: queued_in(flow / "flow.py") == 9, "the ledger says that there is one less")
            since = time.monotonic()
            page.wait_for(f"{QUEUED}.reduce((sum, queued) => sum + queued, 0) === 9")
            assert time.monotonic() - since < 1.0 + LOADED
            (flow / "go").touch()
            page.wait_for("document.querySelector('h1').textContent.includes('all done')")
            check_quiet(page)
        wait_until(lambda: (flow / "whole").exists(), "the run is over")
        data = json.loads(cluster.shoal("report", "flow.py", "--json", where=flow))
    # Twelve parts read the source and one task reads all parts: every reading was a fetch or a hit.
    assert data["data"]["hits"] + data["data"]["fetched_files"] == 24
    assert data["data"]["fetched"] >= 2 * 50_000


@needs_browser
def test_a_cluster_without_a_run_is_shown_and_an_agent_that_is_killed(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "c", 2) as cluster:
        cluster.await_nodes(2)
        flow = prepared(tmp_path / "w")
        agents = cluster.agents()
        with shown(cluster, flow, "web", "--cluster", NAME) as address, browser(tmp_path / "profile") as page:
            page.open(address)
            page.wait_for(f"{CARDS}.length === 2 && {CARDS}.every((card) => card.state === 'idle')")
            assert "Nothing is run here now" in page.evaluate("document.getElementById('runs').innerText")
            page.wait_for(
                "document.getElementById('store').innerText.includes('The head of the cluster keeps its books')"
            )
            parts = parts_of(address, "cluster")
            assert (parts["cluster"]["nodes"], parts["runs"], parts["troubles"]) == (2, [], [])
            names = {row["number"]: row["name"] for row in parts["nodes.0"]}
            assert {each["name"] for each in page.evaluate(CARDS)} == set(names.values())
            cluster.shoal("run", "--cluster", NAME, "flow.py", "whole", "--detach", "--quiet", where=flow)
            page.wait_for(
                f"{CARDS}.every((card) => card.state === 'busy' && card.about.startsWith('1 running: 1 part'))"
            )
            page.wait_for("document.getElementById('runs').innerText.includes('flow.py')")
            (run,) = parts_of(address, "cluster")["runs"]
            assert (run["name"], run["state"], run["tasks"], run["over"], run["nodes"]) == (
                "flow.py",
                "active",
                13,
                0,
                2,
            )
            assert b'shoal_cluster_nodes{state="busy"} 2' in get(f"{address}metrics")
            killed = min(agents)
            os.kill(agents[killed], signal.SIGKILL)
            page.wait_for("document.getElementById('trouble').innerText.includes('has said nothing for')")
            assert card(page, names[killed])["state"] == "silent"
            assert card(page, names[1 - killed])["state"] == "busy"
            page.wait_for(f"{CARDS}.some((card) => card.state === 'lost')")
            page.wait_for(
                f"document.getElementById('trouble').innerText.includes('is missing (process {agents[killed]})')"
            )
            (flow / "go").touch()
            page.wait_for("document.getElementById('runs').innerText.includes('13')")
            check_quiet(page)
        cluster.shoal("attach", "flow.py", "--quiet", where=flow)
    assert (flow / "whole").stat().st_size == 12 * 50_000


def test_the_page_of_a_cluster_is_for_those_who_have_the_token_and_says_when_nobody_answers(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "c", 1) as cluster:
        cluster.shoal("cluster", "access", NAME, "--role", "viewer", "-o", "viewer.json")
        with shown(cluster, tmp_path / "c", "web", "--cluster", "./viewer.json") as address:
            port = address.split("/")[2]
            for path in ("", "api/v1/cluster", "metrics"):
                assert refused(f"http://{port}/{path}")[0] == 403
            parts = parts_of(address, "cluster")
            assert (parts["cluster"]["nodes"], parts["groups"][0]["name"], parts["store"]["kind"]) == (1, "main", "")
            status, words = refused(f"{address}api/v1/run")
            assert status == 404 and b"page of a cluster" in words
            cluster.shoal("cluster", "stop", NAME)
            wait_until(lambda: not parts_of(address, "cluster")["cluster"]["live"], "the page says that nobody answers")
            assert "nobody answers" in parts_of(address, "cluster")["troubles"][0]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--cluster", "nosuch"], "there is no cluster 'nosuch' here"),
        (["--cluster", "a b"], "'a b' cannot be the name of a cluster"),
        (["--cluster", "./none.json"], "there is no access file here"),
        (["flow.py", "--cluster", "lab"], "a run and a cluster cannot be shown on one page"),
    ],
)
def test_a_cluster_that_cannot_be_shown_is_refused_in_one_sentence(
    words: list[str], sentence: str, tmp_path: Path
) -> None:
    said = LocalCluster(tmp_path).shoal("web", *words, expect=2)
    assert sentence in said and len(said.strip().splitlines()) == 1
