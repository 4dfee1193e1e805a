"""The live page over real runs: who is let in, what a real browser draws, and how soon it shows what happens."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from support.browser import PROGRAM, Browser, browser
from support.command import PATIENCE, SHOAL, environment, shoal, wait_until

HOSTILE = "</script><img src=x onerror=window.caught=1>"
FLOW = """
from shoal import rule, task
HOSTILE = "HOSTILE"
for i in range(6):
    rule(f"part{i}", run=f"sleep 0.0{i}; echo '{HOSTILE}' {i} | tee part{i}", category="part")
rule("whole", [f"part{i}" for i in range(6)], run="cat part* > whole", category=HOSTILE)
rule(HOSTILE.replace("/", ""), ["whole"], run=f"echo '{HOSTILE}'; exit 3 # {HOSTILE}", retries=1)
task("all", needs=[HOSTILE.replace("/", "")])
""".replace('"HOSTILE"', repr(HOSTILE))
NET = """
from shoal import Net, take
net = Net("mill")
grain, flour = net.place("grain", [1, 2, 3]), net.place("flour")


@net.task(x=take(grain), put=flour)
def grind(x):
    return x
"""
STEPS = """
from shoal import rule
rule("one", run="while ! test -e go1; do sleep 0.01; done; echo done > one", category="step")
rule("two", ["one"], run="while ! test -e go2; do sleep 0.01; done; echo done > two", category="step")
"""
SECTIONS = [
    *("Progress", "Utilisation", "Who ran what when", "Graph", "Categories", "Nodes", "Critical path", "Failures"),
    *("Tasks", "Data and environment"),
]
needs_browser = pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium")


class Shown:
    """A server that was started, and its address."""

    def __init__(self, address: str) -> None:
        self.address = address
        parts = urlsplit(address)
        self.port = parts.port
        self.token = parts.path.strip("/")

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes, http.client.HTTPMessage]:
        """One request, exactly as it is written here."""
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            line.request(method, path, headers={name.replace("_", "-"): text for name, text in headers.items()})
            answer = line.getresponse()
            return answer.status, answer.read(), answer.headers
        finally:
            line.close()

    def data(self, path: str) -> Any:
        status, body, _ = self.ask(f"/{self.token}/api/v1/{path}")
        assert status == 200, body
        return json.loads(body)


@contextmanager
def web(folder: Path, *words: str) -> Iterator[Shown]:
    """`shoal web` in a folder, until the end of the block."""
    process = subprocess.Popen(
        [*SHOAL, "web", *words],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        said = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/\S+/", said)
        assert found, said
        yield Shown(found[0])
    finally:
        process.terminate()
        process.wait(PATIENCE)
        process.stdout.close()


@contextmanager
def running(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], Shown]]:
    """`shoal run --web` in a folder; ended with the block if it is not over by then."""
    process = subprocess.Popen(
        [*SHOAL, "run", "--web", "--plain", *words],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        found = re.search(r"live page: (http://127\.0\.0\.1:\d+/\S+/)", process.stderr.readline())
        assert found
        yield process, Shown(found[1])
    finally:
        process.kill()
        process.wait(PATIENCE)
        process.stderr.close()


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workflow that was run; its last task fails."""
    folder = tmp_path_factory.mktemp("web")
    (folder / "flow.py").write_text(FLOW)
    shoal(folder, "run", "flow.py", "all", "-j2", "--quiet", expect=1)
    return folder


@pytest.fixture(scope="module")
def shown(ran: Path) -> Iterator[Shown]:
    with web(ran, "flow.py") as found:
        yield found


@pytest.fixture(scope="module")
def one_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture
def page(one_browser: Browser) -> Iterator[Browser]:
    """The browser with an empty page, and nothing held against it."""
    one_browser.open("about:blank")
    one_browser.requests.clear()
    one_browser.complaints.clear()
    yield one_browser


# ---- who is let in ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/api/v1/run", "/metrics", "/assets/live.js", "/x/", "/api/v1/events", "//"])
def test_without_the_token_nothing_is_served(shown: Shown, path: str) -> None:
    status, body, headers = shown.ask(path)
    assert status == 403
    assert b"flow.py" not in body and b"<script" not in body
    assert "default-src 'none'" in headers["Content-Security-Policy"]


def test_a_token_that_is_nearly_right_is_wrong(shown: Shown) -> None:
    for token in (shown.token[:-1], shown.token + "x", shown.token.swapcase(), "é", "%00"):
        assert shown.ask(f"/{token.encode().hex() if token == 'é' else token}/")[0] == 403
    assert shown.ask("/metrics", Authorization=f"Bearer {shown.token[:-1]}")[0] == 403


def test_a_page_from_elsewhere_cannot_come_in_under_its_own_name(shown: Shown) -> None:
    path = f"/{shown.token}/"
    assert shown.ask(path, Host="evil.example")[0] == 403
    assert shown.ask(path, Host=f"127.0.0.1.evil.example:{shown.port}")[0] == 403
    assert shown.ask(path, Host="localhost:4711")[0] == 200, "as through a tunnel"


def test_programs_may_send_the_token_in_a_header(shown: Shown) -> None:
    status, body, headers = shown.ask("/metrics", Authorization=f"Bearer {shown.token}")
    assert status == 200 and body.endswith(b"# EOF\n")
    assert headers["Content-Type"].startswith("application/openmetrics-text")
    assert json.loads(shown.ask("/api/v1/", Authorization=f"Bearer {shown.token}")[1])["version"] == 1


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(shown: Shown, method: str) -> None:
    assert shown.ask(f"/{shown.token}/api/v1/run", method)[0] == 501


@pytest.mark.parametrize("path", ["assets/../server.py", "assets/report.js", "../", "etc/passwd", "api/v2/run"])
def test_there_is_no_way_to_other_files(shown: Shown, path: str) -> None:
    assert shown.ask(f"/{shown.token}/{path}")[0] == 404


def test_only_the_loopback_address_listens(shown: Shown) -> None:
    listening = f"{shown.port:04X}"
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    assert [line[1] for line in lines if line[1].endswith(f":{listening}") and line[3] == "0A"] == [
        f"0100007F:{listening}"
    ]
    assert listening not in {
        line.split()[1].rsplit(":", 1)[1] for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]
    }


# ---- what is told ----------------------------------------------------------------------------------------------------


def test_a_task_is_told_with_command_files_output_and_reason(shown: Shown) -> None:
    tasks = {row["name"]: row["task"] for row in shown.data("tasks")["tasks"]}
    number = tasks["whole"]
    told = shown.data(f"tasks/{number}/workflow")
    assert (told["command"], told["outputs"], told["problem"]) == ("cat part* > whole", ["whole"], None)
    assert "part3" in told["inputs"] and "is up to date" in told["why"]
    status, body, headers = shown.ask(f"/{shown.token}/api/v1/tasks/{tasks['part3']}/output")
    assert (status, body.decode()) == (200, f"{HOSTILE} 3\n")
    assert headers["Content-Type"].startswith("text/plain") and headers["X-Content-Type-Options"] == "nosniff"


def test_the_critical_path_can_be_had_from_a_process_of_its_own(shown: Shown) -> None:
    apart, within = shown.data("critical"), shown.data("run")["parts"]["critical"]
    assert apart == within and within["steps"][-2]["name"] == "whole"


def test_a_workflow_that_cannot_be_loaded_any_more_is_said_to_be_so(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text("from shoal import rule\nrule('a', run='touch a')\n")
    shoal(tmp_path, "run", "flow.py", "a", "--quiet")
    (tmp_path / "flow.py").write_text("this is no Python")
    with web(tmp_path) as told:
        assert "flow.py" in told.data("tasks/0/workflow")["problem"]
        assert told.data("run")["parts"]["progress"]["done"] == 1


def test_an_earlier_run_can_be_shown(ran: Path, shown: Shown) -> None:
    with web(ran, "flow.py@1") as first:
        assert first.data("run")["parts"]["run"]["id"] == shown.data("run")["parts"]["run"]["id"]
    assert "there is no run 9" in shoal(ran, "web", "flow.py@9", expect=2).stderr
    assert "does not exist" in shoal(ran, "web", "absent.py", expect=2).stderr
    assert "cannot be used" in shoal(ran, "web", "--port", str(shown.port), expect=2).stderr
    assert "at most 65535" in shoal(ran, "web", "--port", "70000", expect=2).stderr


def test_events_tell_of_a_run_as_it_goes_on_and_of_its_end(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(STEPS)
    heard: list[tuple[float, dict[str, Any]]] = []
    with running(tmp_path, "flow.py", "two") as (process, told):
        line = http.client.HTTPConnection("127.0.0.1", told.port, timeout=PATIENCE)
        line.request("GET", f"/{told.token}/api/v1/events")
        answer = line.getresponse()

        def listen() -> None:
            for row in answer:
                if row.startswith(b"data: {"):
                    heard.append((time.time(), json.loads(row[6:])))

        listener = threading.Thread(target=listen)
        listener.start()

        def done() -> int:
            return max((parts["progress"]["done"] for _, parts in heard if parts.get("progress")), default=-1)

        wait_until(lambda: any(parts.get("running") for _, parts in heard), "the first task runs")
        (tmp_path / "go1").touch()
        wait_until(lambda: done() == 1, "the first task is done")
        (tmp_path / "go2").touch()
        assert process.wait(PATIENCE) == 0
        listener.join(PATIENCE)
        line.close()
    assert not listener.is_alive(), "the server beside the run ends with it"
    outcomes = [parts["run"]["outcome"] for _, parts in heard if parts.get("run")]
    assert outcomes[-1] == "ok" and done() == 2


def test_the_server_beside_a_run_that_is_killed_tells_so_and_goes(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(STEPS)
    with running(tmp_path, "flow.py", "two") as (process, told):
        wait_until(lambda: bool(told.data("run")["parts"].get("running")), "the first task runs")
        line = http.client.HTTPConnection("127.0.0.1", told.port, timeout=PATIENCE)
        line.request("GET", f"/{told.token}/api/v1/events")
        answer = line.getresponse()
        process.kill()
        rows = [row for row in answer if row.startswith((b"data: {", b"event: "))]
        line.close()
    assert rows[-2] == b"event: over\n"
    outcomes = [parts["run"]["outcome"] for row in rows[:-2] if (parts := json.loads(row[6:])).get("run")]
    assert outcomes[-1] == "killed"


# ---- in a browser ----------------------------------------------------------------------------------------------------


@needs_browser
def test_every_section_is_drawn_and_hostile_names_do_nothing(shown: Shown, page: Browser) -> None:
    page.size(1280)
    page.open(shown.address)
    page.wait_for(
        "document.querySelector('#gantt canvas').getContext('2d') && document.querySelector('#tasks tbody tr') && 1"
    )
    heads = page.evaluate("[...document.querySelectorAll('section:not(.hidden) h2')].map((head) => head.textContent)")
    assert heads == SECTIONS
    drawn = page.wait_for(
        "document.querySelectorAll('main svg').length >= 5 && document.querySelectorAll('main svg').length"
    )
    assert drawn >= 5
    page.wait_for(
        "(() => { const c = document.querySelector('#gantt canvas'), pen = c.getContext('2d'); "
        "return pen.getImageData(0, 0, c.width, c.height).data.some((v) => v > 0); })()"
    )
    page.evaluate(
        "[...document.querySelectorAll('#tasks .link')].find((link) => link.textContent.startsWith('<')).click()"
    )
    page.wait_for("document.querySelector('#task-command') !== null")
    page.wait_for("document.querySelector('dialog pre:not(#task-command)').textContent.includes('onerror')")
    assert HOSTILE in page.evaluate("document.querySelector('dialog').textContent")
    assert page.evaluate("[document.images.length, window.caught, document.querySelectorAll('b[onclick]').length]") == [
        0,
        None,
        0,
    ]
    assert page.complaints == []
    elsewhere = [address for address in page.requests if not address.startswith((shown.address, "data:,"))]
    assert elsewhere == []


@needs_browser
@pytest.mark.parametrize(("wide", "dark"), [(1280, False), (400, True)])
def test_the_page_fits_the_window_in_light_and_dark(shown: Shown, page: Browser, wide: int, dark: bool) -> None:
    page.size(wide, dark=dark)
    page.open(shown.address)
    page.wait_for("document.querySelectorAll('section:not(.hidden)').length >= 10")
    assert page.evaluate("document.documentElement.scrollWidth") <= wide
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(18, 23, 29)") == dark


@needs_browser
def test_the_page_can_be_used_with_the_keyboard_and_heard(shown: Shown, page: Browser) -> None:
    page.size(1280)
    page.open(shown.address)
    page.wait_for(
        "document.querySelector('#tasks tbody tr') !== null && document.querySelector('#utilisation svg') !== null"
    )
    assert "The run is over: 7 tasks done, 1 failed." in page.evaluate(
        "document.querySelector('#heard[aria-live]').textContent"
    )
    unnamed = page.evaluate(
        "[...document.querySelectorAll('button, input, select, canvas, svg[role=img]')].filter((one) => "
        "!(one.textContent.trim() || one.getAttribute('aria-label'))).map((one) => one.outerHTML)"
    )
    assert unnamed == []
    page.evaluate("document.querySelector('#gantt canvas').focus()")
    for key in ("+", "ArrowRight"):
        page.call("Input.dispatchKeyEvent", type="keyDown", key=key)
        page.call("Input.dispatchKeyEvent", type="keyUp", key=key)
    page.wait_for("document.querySelector('#gantt .heard').textContent.includes(' to ')")
    page.evaluate("document.querySelector('#utilisation svg').focus()")
    page.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight")
    page.wait_for("document.querySelector('#utilisation .heard').textContent.includes('after')")
    page.evaluate("document.querySelector('#utilisation details').open = true")
    page.wait_for("document.querySelectorAll('#utilisation details tbody tr').length > 5")
    page.evaluate("document.querySelector('#tasks .link').click()")
    page.wait_for("document.querySelector('dialog').open")
    page.call("Input.dispatchKeyEvent", type="keyDown", key="Escape", windowsVirtualKeyCode=27)
    page.wait_for("!document.querySelector('dialog').open")
    assert page.complaints == []


@needs_browser
def test_cores_can_be_shown_red_on_green(shown: Shown, page: Browser) -> None:
    page.open(shown.address)
    page.wait_for("document.querySelector('#utilisation path') !== null")
    page.evaluate(
        "[...document.querySelectorAll('#utilisation button')]"
        ".find((one) => one.textContent.includes('red on green')).click()"
    )
    page.wait_for("document.querySelector('#utilisation path[fill=\"#c8372d\"]') !== null")
    assert page.evaluate("document.querySelector('#utilisation path').getAttribute('fill')") == "#3f9d57"


@needs_browser
def test_a_net_is_drawn_with_its_marking(tmp_path: Path, page: Browser) -> None:
    (tmp_path / "mill.py").write_text(NET)
    shoal(tmp_path, "run", "mill.py", "--quiet", expect=None)
    with web(tmp_path, "mill.py") as told:
        assert told.data("run")["parts"]["net"]["tokens"] == {"grain": 0, "flour": 3}
        page.open(told.address)
        page.wait_for("document.querySelectorAll('#net svg g').length === 3")
        words = page.evaluate("document.querySelector('#net svg').textContent")
        assert "flour3 tokens" in words and "grind0 running, 3 done" in words
        assert page.evaluate("document.querySelectorAll('#net svg path.edge').length") == 2
        assert page.evaluate("document.querySelector('#graph').className") == "hidden"
        assert page.complaints == []


@needs_browser
def test_what_happens_is_on_the_page_within_a_second(tmp_path: Path, page: Browser) -> None:
    (tmp_path / "flow.py").write_text(STEPS)
    with running(tmp_path, "flow.py", "two") as (process, told):
        page.open(told.address)
        shown_done = "document.querySelector('#tile-done b').textContent"
        page.wait_for(f"{shown_done} === '0' && document.querySelector('#tile-running b').textContent === '1'")
        delays = []
        for number, go in (("1", "go1"), ("2", "go2")):
            (tmp_path / go).touch()
            page.wait_for(f"{shown_done} === '{number}'")
            made = (tmp_path / {"1": "one", "2": "two"}[number]).stat().st_mtime
            delays.append(time.time() - made)
        assert process.wait(PATIENCE) == 0
        page.wait_for("document.querySelector('h1 .chip').textContent === 'all done'")
        page.wait_for("document.querySelector('.status').textContent.includes('The run is over')")
    assert max(delays) < 1.0 + LOADED, delays


LOADED = 1.0 if os.environ.get("PYTEST_XDIST_WORKER") else 0.0
"""Beside other tests everything takes longer; the promise is for a machine that has time."""
