"""What the server of a page does about strangers, odd questions, work that fails and programs that do not end."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

import pytest

from shoal.cluster.messaging.access import make_access, write
from shoal.ledger.records import Record, encode
from shoal.ledger.workspace import Workspace
from shoal.ui.notebook.watch import start as notebook_start
from shoal.ui.web import task_description
from shoal.ui.web.api import Api
from shoal.ui.web.board import Board, GuardedWork
from shoal.ui.web.cluster_watch import ClusterRefresher, ClusterWatch
from shoal.ui.web.companion import MOST_CONNECTIONS, address_of, listen
from shoal.ui.web.server import PageServer, of_run, serve_until
from support.browser import browser
from support.command import PATIENCE, environment, shoal, wait_until
from support.views import ended, planned, started
from support.web import Shown, needs_browser, with_page

TOKEN = "t" * 32


def workspace_in(folder: Path) -> Workspace:
    (folder / "flow.py").write_text("")
    workspace = Workspace(str(folder / "flow.py"))
    workspace.make()
    return workspace


def fill(workspace: Workspace) -> None:
    """One task of two is done."""
    records: list[Record] = [started(2), planned(["a", "a"]), ended(0, 1.0, 2.0)]
    Path(workspace.ledger).write_bytes(b"".join(map(encode, records)))


class Served(Shown):
    """A server of this process."""

    def __init__(self, address: str, server: PageServer) -> None:
        super().__init__(address)
        self.server = server


@contextmanager
def served(workspace: Workspace, number: int | None = None) -> Iterator[Served]:
    """A server in this process, until the end of the block."""
    listening, over = listen(0), threading.Event()
    server = PageServer(listening, TOKEN, of_run(workspace, number))
    thread = threading.Thread(target=serve_until, args=(server, over))
    thread.start()
    try:
        yield Served(address_of(listening, TOKEN), server)
    finally:
        over.set()
        thread.join(PATIENCE)


def connected(shown: Shown) -> socket.socket:
    return socket.create_connection(("127.0.0.1", shown.port), timeout=PATIENCE)


def wait_for_event(events: IO[bytes], words: bytes) -> None:
    """Reads a stream of events until a line has these words; fails if the stream ends before, or nothing new comes."""
    deadline = time.monotonic() + PATIENCE
    while words not in (line := events.readline()):
        assert line, "the stream has ended"
        assert time.monotonic() < deadline, "only signs of life came"


def parts_of(board: Board) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(board.since(0)[1])
    return found


# ---- strangers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "status"),
    [("http://[bad/", 403), (f"http://[bad/{TOKEN}/", 403), ("//[", 403), ("/%ff%00/", 403), (f"/{TOKEN}/", 200)],
)
def test_an_address_that_is_none_is_refused_without_a_traceback(
    tmp_path: Path, path: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(workspace_in(tmp_path)) as shown, connected(shown) as line:
        line.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
        assert int(line.makefile("rb").readline().split()[1]) == status
    assert capsys.readouterr().err == ""


def test_strangers_keep_nobody_out_and_those_who_are_known_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.ui.web.server.UNAUTHORISED_SECONDS", 10 * PATIENCE)  # so that none goes by itself
    with served(workspace_in(tmp_path)) as shown, connected(shown) as stream:
        stream.sendall(f"GET /{TOKEN}/api/v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        events = stream.makefile("rb")
        assert events.readline().split()[1] == b"200"
        strangers = [connected(shown) for _ in range(MOST_CONNECTIONS + 5)]
        for _ in range(3):
            assert shown.ask(f"/{TOKEN}/")[0] == 200
        assert not select.select(strangers[-1:], [], [], 0.0)[0], "the last one is still there"
        for stranger in strangers:
            stranger.close()
        fill(Workspace(str(tmp_path / "flow.py")))
        wait_for_event(events, b'"done":1')


def test_strangers_are_told_to_go(tmp_path: Path) -> None:
    with served(workspace_in(tmp_path)) as shown, ExitStack() as open_lines:
        for stranger in [open_lines.enter_context(connected(shown)) for _ in range(5)]:
            assert stranger.recv(1) == b"", "or it is a time-out of ours"


# ---- work that fails -------------------------------------------------------------------------------------------------


def test_a_page_whose_ledger_cannot_be_read_says_so_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workspace = workspace_in(tmp_path)
    Path(workspace.ledger).mkdir()
    api = Api(workspace)
    api.board.watch(1)
    api.refresher.wake()
    try:
        wait_until(lambda: "failed.ledger" in parts_of(api.board), "the failure is told")
        assert "Is a directory" in parts_of(api.board)["failed.ledger"]
        Path(workspace.ledger).rmdir()
        fill(workspace)
        wait_until(lambda: parts_of(api.board).get("progress", {}).get("done") == 1, "the thread goes on")
        wait_until(lambda: "failed.ledger" not in parts_of(api.board), "the failure is over")
    finally:
        api.refresher.stop()
        api.refresher.join(PATIENCE)
    assert api.board.closed and capsys.readouterr().err == ""


def test_who_asks_for_what_cannot_be_read_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workspace = workspace_in(tmp_path)
    Path(workspace.ledger).mkdir()
    with served(workspace) as shown:
        status, body, _ = shown.ask(f"/{TOKEN}/api/v1/run")
        assert status == 503 and "Is a directory" in json.loads(body)["error"]
    assert capsys.readouterr().err == ""


@needs_browser
def test_a_browser_shows_that_the_page_cannot_be_brought_up_to_date(tmp_path: Path) -> None:
    workspace = workspace_in(tmp_path)
    Path(workspace.ledger).mkdir()
    said = "document.querySelector('.status').textContent"
    with served(workspace) as shown, browser(tmp_path / "browser") as one:
        one.open(shown.address)
        one.wait_for(f"{said}.includes('cannot be updated')")
        Path(workspace.ledger).rmdir()
        fill(workspace)
        one.wait_for(f"Frame.parts.progress.done === 1 && !{said}.includes('cannot be updated')")
        assert not one.complaints


class Stumbling(ClusterWatch):
    """Looks of one kind fail as nobody has foreseen, until it is mended."""

    kind = "agents"
    stumbled = 0
    is_mended = False

    def poll(self) -> None:
        self._stumble("agents")

    def poll_starters(self) -> None:
        self._stumble("starts")

    def _stumble(self, kind: str) -> None:
        if kind == self.kind and not self.is_mended:
            self.stumbled += 1
            raise KeyError("unforeseen")


@pytest.mark.parametrize("kind", ["agents", "starts"])
def test_the_page_of_a_cluster_tells_of_a_defect_and_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: str
) -> None:
    access = str(tmp_path / "access")
    write(make_access("lab").at(["tcp://127.0.0.1:1"]), access)
    watch, board = Stumbling(access), Board()
    watch.kind = kind
    board.watch(1)
    refresher = ClusterRefresher(watch, board)
    refresher.wake()
    refresher.start()
    try:
        wait_until(lambda: f"failed.{kind}" in parts_of(board), "the failure is told")
        assert "internal error in Shoal: KeyError: 'unforeseen'" in parts_of(board)[f"failed.{kind}"]
        wait_until(lambda: watch.stumbled >= 2, "it has failed again")
        watch.is_mended = True
        wait_until(lambda: f"failed.{kind}" not in parts_of(board) and "cluster" in parts_of(board), "it goes on")
    finally:
        refresher.stop()
        refresher.join(PATIENCE)
    assert capfd.readouterr().err.count("Traceback") == 1


def test_a_failure_is_on_the_board_until_the_work_succeeds() -> None:
    board = Board()
    attempts = GuardedWork(board, "it")

    def refuse() -> None:
        raise OSError(28, "No space left on device")

    assert attempts.do(lambda: None) and parts_of(board) == {}
    assert not attempts.do(refuse)
    assert "No space left" in parts_of(board)["failed.it"]
    assert attempts.do(lambda: None) and parts_of(board) == {}


# ---- the workflow ----------------------------------------------------------------------------------------------------


def ended_soon(script: str, folder: Path) -> float:
    """How long it takes to give up a program that does not end."""
    process = task_description._start(["sh", "-c", script], str(folder))
    wait_until(lambda: (folder / "pid").exists() and (folder / "pid").read_text().endswith("\n"), "it runs")
    began = time.monotonic()
    assert task_description._answer(process, 0.2) == ("", "the workflow was not loaded within 0.2 s")
    assert process.returncode == -signal.SIGKILL
    return time.monotonic() - began


def is_running(pid: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def test_what_a_rules_file_has_started_is_ended_with_it(tmp_path: Path) -> None:
    ended_soon("sleep 300 & echo $! > pid; wait", tmp_path)
    child = int((tmp_path / "pid").read_text())
    wait_until(lambda: not is_running(child), "its child is ended")


def test_what_has_left_and_holds_the_pipes_is_not_waited_for(tmp_path: Path) -> None:
    try:
        script = "setsid sh -c 'echo $$ > pid; exec sleep 300' & wait"
        assert ended_soon(script, tmp_path) < PATIENCE
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_of_an_earlier_run_nothing_is_said_that_is_true_of_the_last(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text("from shoal import rule\nrule('a', run='test -e go && echo > a')\n")
    shoal(tmp_path, "run", "flow.py", "a", "--quiet", expect=1)
    (tmp_path / "go").touch()
    shoal(tmp_path, "run", "flow.py", "a", "--quiet")
    workspace = Workspace(str(tmp_path / "flow.py"))
    with served(workspace, 1) as first:
        assert first.data("tasks/0")["state"] == "failed"
        for path in ("why", "tasks/0/why"):
            status, body, _ = first.ask(f"/{TOKEN}/api/v1/{path}")
            assert status == 400 and "for the latest run only" in json.loads(body)["error"]
        told = first.data("tasks/0/workflow")
        assert told["why"] is None and "for the latest run only" in told["problem"]
        assert told["command"] == "test -e go && echo > a"
    with served(workspace) as last:
        assert last.data("tasks/0/workflow")["why"] and "problem" not in last.data("tasks/0/why")


HANGING = """
import os, time
from shoal import rule
rule("a", run="echo > a")
if os.path.exists("hang"):
    open(f"loading.{os.getpid()}", "w").close()
    time.sleep(600)
"""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_what_loads_a_workflow_ends_with_the_server(tmp_path: Path, how: signal.Signals) -> None:
    (tmp_path / "flow.py").write_text(HANGING)
    shoal(tmp_path, "run", "flow.py", "a", "--quiet")
    (tmp_path / "hang").touch()

    def loading() -> list[int]:
        return [int(path.suffix[1:]) for path in tmp_path.glob("loading.*")]

    with with_page(tmp_path, "web", "flow.py") as (process, shown), connected(shown) as line:
        path = f"/{shown.token}/api/v1/tasks/0/workflow"
        line.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        wait_until(lambda: len(loading()) == 2, "it is described, and asked why")
        assert all(map(is_running, loading()))
        process.send_signal(how)
        process.wait(PATIENCE)
    try:
        wait_until(lambda: not any(map(is_running, loading())), "both have ended")
    finally:
        for pid in filter(is_running, loading()):
            os.kill(pid, signal.SIGKILL)


def test_a_module_beside_the_workflow_does_not_get_in_the_way_of_ours(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("WORD = 'hello'\n")
    rules = "from mine import WORD\nfrom shoal import rule\nrule('a', run=f'echo {WORD} > a')\n"
    (tmp_path / "flow.py").write_text(rules + "rule('b', ['a'], run='cat a > b')\n")
    shoal(tmp_path, "run", "flow.py", "b", "--quiet")
    (tmp_path / "struct.py").write_text("raise SystemExit('this is not the struct of Python')\n")
    with served(Workspace(str(tmp_path / "flow.py"))) as shown:
        told = shown.data("tasks/0/workflow")
        assert (told["command"], told["problem"]) == ("echo hello > a", None) and told["why"]
        assert shown.data("why")["text"] and shown.data("critical")["tasks"] == 2
    begun = notebook_start(tmp_path / "flow.py", "a", "--force")
    assert begun.wait(PATIENCE) and begun.state == "ok"
    words = [sys.executable, "-P", "-m", "shoal", "run", "flow.py", "a", "--force", "--web", "--plain"]
    (tmp_path / "flow.py").write_text(
        "from shoal import rule\nrule('a', run='while ! test -e go; do sleep 0.01; done')\n"
    )
    run = subprocess.Popen(words, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    try:
        assert run.stderr is not None
        found = re.search(rb"http://\S+", run.stderr.readline())
        assert found
        told_now = Shown(found[0].decode())
        wait_until(lambda: bool((told_now.data("run")["parts"].get("run") or {}).get("live")), "the run is shown")
    finally:
        (tmp_path / "go").touch()
        run.communicate(timeout=PATIENCE)


@pytest.mark.parametrize("path", ["why", "critical"])
def test_what_cannot_be_found_out_is_no_answer(tmp_path: Path, path: str) -> None:
    with served(workspace_in(tmp_path)) as shown:
        status, body, _ = shown.ask(f"/{TOKEN}/api/v1/{path}")
    assert status == 503 and json.loads(body)["error"] and "problem" not in json.loads(body)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_token_is_not_among_the_arguments_of_a_browser(tmp_path: Path, how: signal.Signals) -> None:
    fill(workspace_in(tmp_path))
    (tmp_path / "browser").write_text('#!/bin/sh\necho "$@" > "$0.new"; mv "$0.new" "$0.told"; exec sleep 600\n')
    (tmp_path / "browser").chmod(0o700)
    told = tmp_path / "browser.told"
    extra = {"BROWSER": f"{tmp_path}/browser", "TMPDIR": str(tmp_path)}
    with with_page(tmp_path, "web", "flow.py", "--open", **extra) as (process, shown):
        wait_until(told.exists, "the browser is started")
        assert shown.ask(f"/{shown.token}/")[0] == 200, "it is served while the browser is there"
        assert shown.token not in told.read_text()
        page = Path(unquote(urlsplit(told.read_text().strip()).path))
        assert f"url={shown.address}" in page.read_text()
        assert (page.stat().st_mode & 0o777, page.parent.stat().st_mode & 0o777) == (0o600, 0o700)
        children = Path(f"/proc/{process.pid}/task").glob("*/children")
        browsers = [int(word) for each in children for word in each.read_text().split()]
        try:
            process.send_signal(how)
            process.wait(PATIENCE)
        finally:
            for pid in browsers:
                os.kill(pid, signal.SIGKILL)
        assert not page.parent.exists()
