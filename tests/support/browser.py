"""A real Chromium without a window, driven through the DevTools protocol over two pipes, without a further library."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.command import PATIENCE, environment

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
# The protocol is spoken over the descriptors 3 and 4.
_START = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(word), fcntl.F_DUPFD, 10) for word in sys.argv[1:3]]
os.dup2(ends[0], 3)
os.dup2(ends[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


_OPEN: list[Browser] = []


def leave(address: str) -> None:
    """Turns away whoever looks at a page whose server is about to end: a browser complains of servers that are gone."""
    for one in _OPEN:
        if one.address.startswith(address):
            one.open("about:blank")


class Browser:
    """One page of a browser."""

    def __init__(self, process: subprocess.Popen[bytes], send: int, receive: int) -> None:
        self._process, self._send, self._receive = process, send, receive
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self.address = "about:blank"
        self.requests: list[str] = []
        """Addresses of everything that the page has asked for."""
        self.complaints: list[str] = []
        """Errors and warnings of the console, and dialogs that somebody opened."""
        self.traced: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Sends one command and waits for its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while True:
            for found in self._messages(deadline):
                if found.get("id") == self._number:
                    assert "error" not in found, f"{method}: {found['error']}"
                    answer: dict[str, Any] = found["result"]
                    return answer

    def _messages(self, deadline: float) -> Iterator[dict[str, Any]]:
        """What has come, at least one message; events are noted on the way."""
        if b"\0" not in self._rest:
            ready, _, _ = select.select([self._receive], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            piece = os.read(self._receive, 1 << 20)
            assert piece, "the browser is gone"
            self._rest += piece
        while b"\0" in self._rest:
            line, self._rest = self._rest.split(b"\0", 1)
            message: dict[str, Any] = json.loads(line)
            self._note(message)
            yield message

    def _note(self, message: dict[str, Any]) -> None:
        told = message.get("params", {})
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(told["request"]["url"])
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(told["exceptionDetails"])[:2000])
            case "Runtime.consoleAPICalled" if told["type"] in ("error", "warning", "assert"):
                self.complaints.append(json.dumps(told["args"])[:2000])
            case "Log.entryAdded" if told["entry"]["level"] in ("error", "warning"):
                self.complaints.append(json.dumps(told["entry"])[:2000])
            case "Tracing.dataCollected":
                self.traced += told["value"]
            case "Page.javascriptDialogOpening":
                self.complaints.append(f"a dialog: {told['message']}")

    def open(self, address: str) -> None:
        self.address = address
        self.call("Page.navigate", url=address)
        self.wait_for("document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, f"{expression}: {found['exceptionDetails']}"
        return found["result"].get("value")

    def wait_for(self, expression: str, patience: float = PATIENCE) -> Any:
        """Waits until an expression is true, and returns its value."""
        deadline = time.monotonic() + patience
        while not (value := self.evaluate(f"(() => {{ try {{ return {expression} }} catch {{ return null }} }})()")):
            assert time.monotonic() < deadline, f"waited {patience} s in vain for {expression}; {self.complaints}"
            time.sleep(0.02)  # polls a condition with a deadline; not a fixed wait
        return value

    def trace(self, expression: str) -> list[dict[str, Any]]:
        """What the browser's own tracing has of frames, while an expression (a promise) is worked on."""
        categories = "disabled-by-default-devtools.timeline.frame,devtools.timeline"
        self.call("Tracing.start", categories=categories, transferMode="ReportEvents")
        self.traced.clear()
        self.evaluate(expression)
        self.call("Tracing.end")
        deadline = time.monotonic() + PATIENCE
        while not any(found.get("method") == "Tracing.tracingComplete" for found in self._messages(deadline)):
            pass
        return self.traced

    def size(self, wide: int, high: int = 900, dark: bool = False) -> None:
        """How large the window is, and whether the user prefers dark colours."""
        self.call("Emulation.setDeviceMetricsOverride", width=wide, height=high, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path: Path) -> None:
        """The whole page as it looks."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        path.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser with a profile and a temporary directory of its own, that ends with the block.

    Chromium is killed and leaves its socket, whose path must be short: the profile's may be too long for it.
    """
    with tempfile.TemporaryDirectory(prefix="shoal-browser-", ignore_cleanup_errors=True) as temporary:
        yield from _browser(folder, temporary)


def _browser(folder: Path, temporary: str) -> Iterator[Browser]:
    assert PROGRAM is not None
    to_it, send = os.pipe()
    receive, from_it = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", _START, str(to_it), str(from_it), PROGRAM, *OPTIONS, f"--user-data-dir={folder}"],
        pass_fds=[to_it, from_it],
        env=environment({"TMPDIR": temporary}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_it)
    os.close(from_it)
    try:
        found = Browser(process, send, receive)
        _OPEN.append(found)
        try:
            yield found
        finally:
            _OPEN.remove(found)
    finally:
        os.close(send)
        os.close(receive)
        process.kill()
        process.wait()
