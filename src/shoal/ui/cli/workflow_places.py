"""Locates the workflow that a command refers to, and checks where an output file may be written."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from shoal.errors import InputError
from shoal.execution.workflow_loader import DEFAULT_NAMES, missing_workflow
from shoal.ledger.workspace import DIRECTORY, Workspace
from shoal.ui.cli.parser import is_recognised_workflow, split_words


def recorded_workflows(directory: str = ".") -> list[str]:
    """Names of the workflows that have been run in a directory."""
    parent = os.path.join(directory, DIRECTORY)
    try:
        found = sorted(os.listdir(parent))
    except OSError:
        return []
    return [name for name in found if os.path.isdir(os.path.join(parent, name))]


def choose_workflow(named: str | None) -> str:
    """Returns the named workflow, else the one with a default name here, else the only one that has been run here."""
    if named is not None:
        if not os.path.isfile(named) and not os.path.isdir(Workspace(named).directory):
            raise missing_workflow(named)
        return named
    recorded = recorded_workflows()
    for name in DEFAULT_NAMES:
        if os.path.isfile(name) or name in recorded:
            return name
    if len(recorded) == 1:
        return recorded[0]
    if recorded:
        raise InputError(f"several workflows have been run here: {', '.join(recorded)}", remedy="name one of them")
    raise InputError(
        f"there is no workflow here (looked for {', '.join(DEFAULT_NAMES)})",
        remedy="name the file, or go to its directory",
    )


def whole_workflow(words: Sequence[str], named: str | None) -> str | None:
    """The absolute path of the workflow if no task is named: the words are empty, or a workflow with parameters."""
    if not words:
        return os.path.abspath(choose_workflow(named))
    if named is None and is_recognised_workflow(words[0]) and all("=" in word for word in words[1:]):
        return os.path.abspath(choose_workflow(words[0]))
    return None


def task_and_workflow(words: Sequence[str], named: str | None, command: str) -> tuple[str, str, list[str]]:
    """Splits `TASK [FILE] [TARGET... NAME=VALUE...]` into the task, an absolute path, and the other words."""
    if not words:
        raise InputError("a task is missing", remedy=f"write it as 'shoal {command} TASK'")
    path, rest = split_words(words[1:], named)
    return words[0], os.path.abspath(choose_workflow(path)), rest


STANDARD_OUTPUT = "-"


def check_destination(path: str, option: str, workspace: Workspace, *, with_files: bool = True) -> None:
    """Refuses an output path where a file of the user would be lost; `with_files`: check the ledger's files, too.

    The ledger knows the files that tasks read and make by the names that runs used. Of a task with several outputs it
    knows only the first.
    """
    if not path:
        raise InputError(f"{option} is empty", remedy="name a file")
    if path == STANDARD_OUTPUT:
        return
    real = os.path.realpath(path)
    remedy = f"name another file with {option}"
    if real == os.path.realpath(workspace.workflow) or _is_same(path, workspace.workflow):
        raise InputError(f"{path!r} is the workflow itself, which would be lost", remedy=remedy)
    if DIRECTORY in real.split(os.sep):
        raise InputError(f"{path!r} lies in {DIRECTORY}, which is reserved for Shoal", remedy=remedy)
    if with_files and os.path.lexists(path) and _is_of_workflow(real, workspace):
        raise InputError(f"{path!r} is a file of the workflow, which would be lost", remedy=remedy)


def write_to(path: str, data: bytes, complaint: str) -> None:
    """Writes a file, or standard output; `complaint` is the start of the error message."""
    if path == STANDARD_OUTPUT:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    try:
        with open(path, "wb") as file:
            file.write(data)
    except OSError as error:
        raise InputError(f"{complaint}: {error.strerror}") from None


def _is_same(path: str, other: str) -> bool:
    try:
        return os.path.samefile(path, other)
    except OSError:
        return False


def _is_of_workflow(real: str, workspace: Workspace) -> bool:
    """Whether a ledger names the file as an input or output of tasks."""
    from shoal.ledger.file import LedgerReader
    from shoal.ledger.identity import place_of_text
    from shoal.ledger.records import SourcesSeen, TasksPlanned, decode

    names = {real, os.path.relpath(real, os.path.realpath(workspace.base))}
    places = [place_of_text(name) for name in names]
    for payload in LedgerReader(workspace.ledger).payloads():
        head = payload[:8]
        if b"\xa3end" in head:
            if any(place in payload for place in places):
                return True
        elif b"\xa3src" in head or b"\xa4plan" in head:
            record = decode(payload)
            if isinstance(record, (SourcesSeen, TasksPlanned)) and not names.isdisjoint(record.names):
                return True
    return False
