"""Where a command writes what it was asked for: never over a workflow, nor over what its tasks read or make."""

from __future__ import annotations

import os
import sys

from shoal.engine.workspace import DIRECTORY, Workspace
from shoal.errors import InputError

STANDARD_OUTPUT = "-"


def check_destination(path: str, option: str, workspace: Workspace, *, with_files: bool = True) -> None:
    """Refuses a place where something is that nobody wants to lose; `with_files`: look for it in the ledger, too.

    What tasks read and make is known from the ledger by the names that runs gave it. Of a task that makes several files
    that is only the first.
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
        raise InputError(f"{path!r} lies in {DIRECTORY}, which Shoal keeps for itself", remedy=remedy)
    if with_files and os.path.lexists(path) and _is_of_workflow(real, workspace):
        raise InputError(f"{path!r} is a file of the workflow, which would be lost", remedy=remedy)


def write_to(path: str, data: bytes, complaint: str) -> None:
    """Writes a file, or to standard output; `complaint` is said if that cannot be."""
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
    """Whether a ledger names the file as one that tasks read or make."""
    from shoal.ledger.file import LedgerReader
    from shoal.ledger.records import SourcesSeen, TasksPlanned, decode
    from shoal.plan.identity import place_of_text

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
