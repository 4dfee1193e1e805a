"""The server of the live page over real runs: who is let in, and what is told of a run as it goes on and afterwards."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.command import PATIENCE, shoal, wait_until
from support.openmetrics import samples
from support.web import HOSTILE, STEPS, Shown, run_hostile, running, web


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workflow that was run; its last task fails."""
    return run_hostile(tmp_path_factory.mktemp("web"))


@pytest.fixture(scope="module")
def shown(ran: Path) -> Iterator[Shown]:
    with web(ran, "flow.py") as found:
        yield found


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
    assert status == 200 and samples(body.decode())["shoal_tasks"][("state", "done"),] == 7
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
    assert "there is no run 0" in shoal(ran, "web", "flow.py@0", expect=2).stderr
    assert "does not exist" in shoal(ran, "web", "absent.py", expect=2).stderr
    assert "cannot be used" in shoal(ran, "web", "--port", str(shown.port), expect=2).stderr
    assert "at most 65535" in shoal(ran, "web", "--port", "70000", expect=2).stderr


def test_of_a_run_that_is_refused_there_is_no_page(ran: Path) -> None:
    refused = shoal(ran, "run", "--web", "--plain", "flow.py", "no-such-target", expect=2)
    assert "nothing makes the target 'no-such-target'" in refused.stderr
    assert "http" not in refused.stderr + refused.stdout


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


def test_a_run_that_goes_on_is_shown_without_those_before_it(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(STEPS)
    (tmp_path / "go1").touch()
    shoal(tmp_path, "run", "flow.py", "one", "--quiet")
    with running(tmp_path, "flow.py", "two") as (_, told):
        wait_until(lambda: bool(told.data("run")["parts"].get("running")), "the second task runs")
        parts = told.data("run")["parts"]
        assert (parts["run"]["number"], parts["run"]["live"]) == (2, True)
        assert [task["name"] for task in parts["running"]] == ["two"] and parts["progress"]["attempts"] == 0


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
