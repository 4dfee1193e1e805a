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
QUEUES = {"wait": "waiting", "local": "local", "shared": "shared"}
"""Names of queues in data, and their labels on the page."""
QUEUED = f"{CARDS}.flatMap((card) => ['waiting', 'local', 'shared'].map((queue) => Number(card.lines[queue])))"
TRIES = 8
TRIPS = 10
"""What is promised within a second takes so many ways between processes: where a way takes long, because the machine
has no time, more than a second is allowed."""
WATCH = f"""(() => {{
  window.seen = new Set();
  const note = () => {{
    for (const card of {CARDS}) window.seen.add(card.name + " " + card.state);
    window.seen.add(document.getElementById("trouble").innerText);
  }};
  new MutationObserver(note).observe(document.body, {{ subtree: true, childList: true, characterData: true }});
  note();
}})()"""
"""Notes what the page shows only for a while, so that whoever asks late still learns of it."""
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


def runs_told(address: str) -> list[tuple[str, str, int, int, int]]:
    """Name, state, tasks, those that are over, and nodes of every run that the page of a cluster shows."""
    rows = parts_of(address, "cluster")["runs"]
    return [(row["name"], row["state"], row["tasks"], row["over"], row["nodes"]) for row in rows]


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


def check_quiet(page: Browser, *, server_goes: bool = False) -> None:
    """Nothing was complained of, but maybe that a server beside a run has gone, and nothing was asked of others."""
    assert [line for line in page.complaints if not (server_goes and "ERR_" in line)] == []
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
            wait_until(lambda: parts_of(address, "cluster")["store"]["problem"] == "", "the books answer")
            store = parts_of(address, "cluster")["store"]
            assert store["kind"] == books and "@" not in store["where"]
        words = ("run", "--web", "--plain", "--cluster", NAME, "--files", "managed", "flow.py", "whole")
        with shown(cluster, flow, *words) as address, browser(tmp_path / "profile") as page:
            page.size(1280)
            page.open(address)
            wait_for_cards(page, f"{NODES}.length === 2 && {CARDS}.every((card) => card.about === '1 running')")
            # Both run one each: ten are queued, of which the thief has taken some.
            page.wait_for(f"{QUEUED}.reduce((sum, queued) => sum + queued, 0) === 10")
            standing: dict[str, Any] = {}

            def is_shown_as_told() -> bool:
                """Tasks may still go from one to the other, and the page is told of that a moment later."""
                parts = parts_of(address, "run")
                standing.update({row["name"]: row for row in parts["standing.0"]})
                cards = {each["name"]: each for each in page.evaluate(CARDS)}
                assert sorted(cards) == sorted(standing)
                return parts["progress"]["running"] == 2 and all(
                    (told["running"], told["cores_held"]) == (1, 1)
                    and all(cards[name]["lines"][label] == str(told[queue]) for queue, label in QUEUES.items())
                    and ("stolen" in cards[name]["moved"]) == (told["stolen"] > 0)
                    for name, told in standing.items()
                )

            wait_until(is_shown_as_told, "the page shows what is told")
            check_what_runs(page, address, sorted(standing))
            assert sum(row["stolen"] + row["pushed"] for row in standing.values()) > 0
            queues = re.compile(r'shoal_node_queued_tasks\{node="[^"]+",queue="\w+"\} (\d+)')

            def is_measured() -> bool:
                found = queues.findall(get(f"{address}metrics").decode())
                return len(found) == 6 and sum(map(int, found)) == 10

            wait_until(is_measured, "the metrics say the same")
            delays: list[float] = []
            """Each as a part of what is allowed."""
            while len(delays) < TRIES and min(delays, default=9.0) >= 1.0:
                left = 9 - len(delays)
                (flow / "ticket").touch()
                wait_until(lambda left=left: queued_in(flow / "flow.py") == left, "the ledger says: one less")  # type: ignore[misc]
                since = time.monotonic()
                page.wait_for(f"{QUEUED}.reduce((sum, queued) => sum + queued, 0) === {left}")
                seen = time.monotonic()
                get(f"{address}api/v1/run")
                delays.append((seen - since) / (1.0 + TRIPS * (time.monotonic() - seen)))
            assert min(delays) < 1.0, delays
            (flow / "go").touch()
            page.wait_for("document.querySelector('h1').textContent.includes('completed')")
            check_quiet(page, server_goes=True)
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
            page.wait_for("document.getElementById('runs').innerText.includes('No runs at the moment')")
            page.wait_for("document.getElementById('store').innerText.includes('The head process of the cluster')")
            wait_until(lambda: parts_of(address, "cluster")["troubles"] == [], "nothing is wrong")
            parts = parts_of(address, "cluster")
            assert (parts["cluster"]["nodes"], parts["runs"]) == (2, [])
            names = {row["number"]: row["name"] for row in parts["nodes.0"]}
            assert {each["name"] for each in page.evaluate(CARDS)} == set(names.values())
            cluster.shoal("run", "--cluster", NAME, "flow.py", "whole", "--detach", "--quiet", where=flow)
            page.wait_for(
                f"{CARDS}.every((card) => card.state === 'busy' && card.about.startsWith('1 running: 1 part'))"
            )
            page.wait_for("document.getElementById('runs').innerText.includes('flow.py')")
            told = ("flow.py", "active", 13, 0, 2)
            wait_until(lambda: runs_told(address) == [told], "the run is told of")
            wait_until(lambda: b'shoal_cluster_nodes{state="busy"} 2' in get(f"{address}metrics"), "both are busy")
            page.evaluate(WATCH)
            killed = min(agents)
            os.kill(agents[killed], signal.SIGKILL)
            page.wait_for("[...seen].some((words) => words.includes('no heartbeat for'))")
            page.wait_for(f"seen.has({json.dumps(names[killed] + ' silent')})")
            wait_until(lambda: card(page, names[1 - killed])["state"] == "busy", "the other one goes on")
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
        cluster.await_nodes(1)
        cluster.shoal("cluster", "access", NAME, "--role", "viewer", "-o", "viewer.json")
        with shown(cluster, tmp_path / "c", "web", "--cluster", "./viewer.json") as address:
            port = address.split("/")[2]
            for path in ("", "api/v1/cluster", "metrics"):
                assert refused(f"http://{port}/{path}")[0] == 403
            wait_until(lambda: parts_of(address, "cluster")["cluster"]["nodes"] == 1, "its node is shown")
            parts = parts_of(address, "cluster")
            assert (parts["groups"][0]["name"], parts["store"]["kind"]) == ("main", "")
            status, words = refused(f"{address}api/v1/run")
            assert status == 404 and b"this server shows a cluster" in words
            cluster.shoal("cluster", "stop", NAME)
            wait_until(lambda: not parts_of(address, "cluster")["cluster"]["live"], "the page names the problem")
            assert "no reply from" in parts_of(address, "cluster")["troubles"][0]


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
