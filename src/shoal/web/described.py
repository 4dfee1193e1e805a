"""What the ledger does not have about a task, from the workflow: its command, its files, and why it is where it is.

The workflow is loaded in processes of their own, which end with the answer: a rules file is a program, and a large
graph needs memory that the server must not. `python -m shoal.web.described FILE TASK [WORD...]` is the first of them,
the command `shoal why` the other.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

import msgspec

from shoal.engine.workspace import Workspace
from shoal.errors import ShoalError

PATIENCE = 30.0
_MOST_FILES = 200
_one_at_a_time = threading.Lock()


def ask_workflow(workspace: Workspace, name: str, words: list[str]) -> dict[str, Any]:
    """Command, inputs, outputs and the reason; `problem` says what went wrong in place of them."""
    here = [sys.executable, "-m"]
    with _one_at_a_time:
        described = _start([*here, "shoal.web.described", workspace.workflow, name, *words], workspace.base)
        reason = _start([*here, "shoal", "why", "-w", workspace.workflow, "--", name], workspace.base)
        told, problem = _answer(described)
        why, no_why = _answer(reason)
    found: dict[str, Any] = {"why": why.strip() or None, "problem": problem or (None if why else no_why)}
    try:
        found |= msgspec.json.decode(told, type=dict[str, Any])
    except msgspec.MsgspecError:
        found["problem"] = problem or "the workflow could not be loaded"
    return found


def ask_net(workspace: Workspace) -> dict[str, Any]:
    """Places, transitions and arcs of a net."""
    with _one_at_a_time:
        command = [sys.executable, "-m", "shoal", "graph", workspace.workflow, "--format", "json"]
        told, problem = _answer(_start(command, workspace.base))
    try:
        return msgspec.json.decode(told, type=dict[str, Any])
    except msgspec.MsgspecError:
        return {"problem": problem or "the net could not be loaded"}


def _start(command: list[str], directory: str) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=directory, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True
    )


def _answer(process: subprocess.Popen[bytes]) -> tuple[str, str]:
    """What it said, and in one line what it complained of."""
    try:
        out, err = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return "", f"the workflow was not loaded within {PATIENCE:g} s"
    if process.returncode == 0:
        return out.decode("utf-8", "replace"), ""
    lines = err.decode("utf-8", "replace").strip().splitlines() or ["the workflow could not be loaded"]
    told = [line.removeprefix("shoal: ") for line in lines if line.startswith("shoal: ")]
    return "", (told or lines[-1:])[0]


def describe(path: str, name: str, words: list[str]) -> dict[str, Any]:
    """One task of a workflow, as the workflow says it."""
    from shoal.engine.session import enter, load
    from shoal.model.graph import lookup_tasks
    from shoal.model.resources import show_amount
    from shoal.model.task import Call

    graph = load(enter(path), words).graph
    task = lookup_tasks(graph)(name)
    if task is None:
        return {"problem": f"the workflow has no task {name!r} any more"}
    action, profile = graph.actions[task], graph.profile_of(task)
    function = getattr(action.function, "__qualname__", "a function") if isinstance(action, Call) else None
    return {
        "command": action if isinstance(action, str) else None,
        "function": function,
        "file": os.path.basename(graph.source),
        "line": graph.lines[task] or None,
        "inputs": graph.input_names(task)[:_MOST_FILES],
        "outputs": graph.output_names(task)[:_MOST_FILES],
        "asks": [[key, show_amount(key, amount)] for key, amount in profile.resources.amounts],
        "retries": profile.retries,
        "timeout": profile.timeout,
    }


def main() -> int:
    """Prints the description of one task as JSON."""
    path, name, *words = sys.argv[1:]
    out = sys.stdout.buffer
    sys.stdout = sys.stderr  # what a rules file prints must not get between
    try:
        out.write(msgspec.json.encode(describe(path, name, words)))
    except ShoalError as error:
        print(f"shoal: {error}", file=sys.stderr)
        return 2
    out.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
