"""Python calls as programs of their own: what they say when they fail."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Lock

from shoal.execution.calls.call_main import pack_call
from shoal.execution.calls.protocol import plain_payload


def said_by(call: Callable[[], object], folder: Path) -> str:
    """What a failed call writes to its standard error."""
    (folder / "call").write_bytes(pack_call(call, plain_payload((), {}), {}, sys.path))
    words = [sys.executable, "-m", "shoal.execution.calls.call_main", "call", "value"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert not (folder / "value").exists()
    return done.stderr


def test_a_result_that_cannot_be_sent_back_is_reported_in_one_sentence(tmp_path: Path) -> None:
    assert said_by(lambda: Lock(), tmp_path) == (
        "shoal.execution.calls.pickling.UnpicklableResultError: the call returned a _thread.lock,"
        " which cannot be sent back"
        " (TypeError: cannot pickle '_thread.lock' object)\n"
    )


def test_a_failed_call_shows_only_frames_of_the_user(tmp_path: Path) -> None:
    said = said_by(lambda: 1 / 0, tmp_path)
    assert "ZeroDivisionError" in said
    assert "runner/apart.py" not in said
