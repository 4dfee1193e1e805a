"""What only the workflow knows about a task: command, files, and the explanation of its state.

The workflow is loaded in separate processes that end with the reply: a rules file is a program, and a large graph needs
memory that the server should not keep. `python -m shoal.ui.web.task_description FILE TASK [WORD...]` is one of them,
the command `shoal why` the other. If the server ends first, the kernel kills them: see `Lifeline`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from functools import cache
from typing import Any

import msgspec

from shoal.errors import ShoalError
from shoal.execution.calls.worker_client import Lifeline
from shoal.ledger.workspace import Workspace
from shoal.ui.web.board import RefusedRequest

PYTHON = [sys.executable, "-P", "-m"]
"""Starts a module of Shoal; -P prevents that a file in the working directory, such as queue.py, shadows a module."""
PATIENCE = 30.0
_ENDING_SECONDS = 2.0
"""How long to wait for a killed process."""
NO_REASON = "'why' is available for the latest run only"
_MOST_FILES = 200
_one_at_a_time = threading.Lock()


def ask_workflow(workspace: Workspace, name: str, words: list[str], *, is_last: bool) -> dict[str, Any]:
    """Command, inputs, outputs, and for the latest run the explanation; `problem` has the error message, if any."""
    with _one_at_a_time:
        described = _start([*PYTHON, "shoal.ui.web.task_description", workspace.workflow, name, *words], workspace.base)
        why_command = [*PYTHON, "shoal", "why", "-w", workspace.workflow, "--", name]
        reason = _start(why_command, workspace.base) if is_last else None
        output, problem = _answer(described)
        why, no_why = _answer(reason) if reason is not None else ("", NO_REASON)
    found: dict[str, Any] = {"why": why.strip() or None, "problem": problem or (None if why else no_why)}
    try:
        found |= msgspec.json.decode(output, type=dict[str, Any])
    except msgspec.MsgspecError:
        found["problem"] = problem or "the workflow could not be loaded"
    return found


def ask_why(workspace: Workspace, name: str | None) -> dict[str, Any]:
    """Explains a task, or without a name the whole run."""
    command = [*PYTHON, "shoal", "why", "--json", "-w", workspace.workflow]
    return load_in_process([*command, "--", name] if name is not None else command, workspace.base)


def ask_net(workspace: Workspace) -> dict[str, Any]:
    """Places, transitions and arcs of a net."""
    return load_in_process([*PYTHON, "shoal", "graph", workspace.workflow, "--format", "json"], workspace.base)


def load_in_process(command: list[str], directory: str) -> dict[str, Any]:
    """Runs a program that loads the workflow and returns its JSON output; raises `RefusedRequest` if it fails."""
    with _one_at_a_time:
        output, problem = _answer(_start(command, directory))
    return _decoded(output, problem)


def read_in_process(command: list[str], directory: str, patience: float) -> dict[str, Any]:
    """The same for a program that needs only the ledger, and more time."""
    return _decoded(*_answer(_start(command, directory), patience, "no answer was found"))


def _decoded(output: str, problem: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(output, type=dict[str, Any])
    except msgspec.MsgspecError:
        raise RefusedRequest(problem or "no answer was found", 503) from None


@cache
def _lifeline() -> Lifeline:
    return Lifeline()


def _start(command: list[str], directory: str) -> subprocess.Popen[bytes]:
    branch, pipe = _lifeline().branch(), subprocess.PIPE
    try:
        process = subprocess.Popen(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
            pass_fds=[branch],
        )
        Lifeline.arm(branch, process.pid)
        return process
    finally:
        os.close(branch)


def _answer(
    process: subprocess.Popen[bytes], patience: float = PATIENCE, late: str = "the workflow was not loaded"
) -> tuple[str, str]:
    """Its output, and its error message in one line."""
    try:
        out, err = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        _end(process)
        return "", f"{late} within {patience:g} s"
    if process.returncode == 0:
        return out.decode("utf-8", "replace"), ""
    lines = err.decode("utf-8", "replace").strip().splitlines() or ["the workflow could not be loaded"]
    complaints = [line.removeprefix("shoal: ") for line in lines if line.startswith("shoal: ")]
    return "", (complaints or lines[-1:])[0]


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills the process with its children. Children that have left its group may hold the pipes and are not awaited."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # it is the leader of its own session
    with suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=_ENDING_SECONDS)
        return
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_ENDING_SECONDS)


def describe(path: str, name: str, words: list[str]) -> dict[str, Any]:
    """Describes one task as its workflow defines it."""
    from shoal.core.graph import lookup_tasks
    from shoal.core.resources import show_amount
    from shoal.core.task import Call
    from shoal.execution.session import enter, load

    graph = load(enter(path), words).graph
    task = lookup_tasks(graph)(name)
    if task is None:
        return {"problem": f"the workflow no longer has a task {name!r}"}
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
    sys.stdout = sys.stderr  # output of the rules file must not mix with the JSON
    try:
        out.write(msgspec.json.encode(describe(path, name, words)))
    except ShoalError as error:
        print(f"shoal: {error}", file=sys.stderr)
        return 2
    out.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
