"""The live page of a real run for tests: what is run, the server, its address, and requests as they are written."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from support.browser import PROGRAM, leave
from support.command import PATIENCE, SHOAL, environment, shoal, start, wait_until
from support.ledgers import run_ids

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
STEPS = """
from shoal import rule
rule("one", run="while ! test -e go1; do sleep 0.01; done; echo done > one", category="step")
rule("two", ["one"], run="while ! test -e go2; do sleep 0.01; done; echo done > two", category="step")
"""
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
def with_page(folder: Path, *words: str, **extra: str) -> Iterator[tuple[subprocess.Popen[str], Shown]]:
    """`shoal WORDS`, which prints the address of a page; ended with the block if it is not over by then."""
    process = subprocess.Popen(
        [*SHOAL, *words],
        cwd=folder,
        env=environment(extra),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        said = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/\S+/", said)
        assert found, said
        try:
            yield process, Shown(found[0])
        finally:
            leave(found[0])
    finally:
        process.terminate()
        process.wait(PATIENCE)
        process.stdout.close()


@contextmanager
def web(folder: Path, *words: str) -> Iterator[Shown]:
    """`shoal web` in a folder."""
    with with_page(folder, "web", *words) as (_, shown):
        yield shown


@contextmanager
def running(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], Shown]]:
    """`shoal run --web` in a folder."""
    with with_page(folder, "run", "--web", "--plain", *words) as found:
        yield found


@contextmanager
def followed(folder: Path, flow: str, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], Shown]]:
    """`shoal run` in a folder, and `shoal web` for it: a browser that is slow can still ask when the run is over."""
    process = start(folder, "run", flow, *words, "--quiet")
    wait_until(lambda: bool(run_ids(folder / flow)), "the run begins")
    with web(folder, flow) as shown:
        yield process, shown


def run_hostile(folder: Path) -> Path:
    """Runs the workflow whose names are markup; its last task fails."""
    (folder / "flow.py").write_text(FLOW)
    shoal(folder, "run", "flow.py", "all", "-j2", "--quiet", expect=1)
    return folder
