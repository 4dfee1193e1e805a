"""A run that was brought to a cluster: the note of it beside the ledger, and its plan as it was brought.

Both stand there from before the first task can run until this machine knows how every task ended. As long as the note
stands, nothing else may run or remove what these tasks make. Results are recorded under the plan: with the commands and
the versions of files at that moment. So an edit that comes later is noticed by the next run.
"""

from __future__ import annotations

import os

import msgspec

from shoal.engine.workspace import Workspace
from shoal.errors import InputError
from shoal.model import texts

ARRIVING = "arriving"
"""The folder in a workflow's own directory through which files come back."""
GIVE_UP = "if that cluster is gone for good, 'shoal cancel --forget' gives the run up"


class Note(msgspec.Struct):
    """What was brought where."""

    cluster: str
    """Name, or path of the access file."""
    run: str
    places: list[bytes]
    words: list[str]
    """Targets and values, as they were given."""
    managed: bool = False
    files: list[str] = []
    returned: list[str] = []
    """Where nodes share no files: those of the run, and those that come back."""
    began: float = 0.0
    tasks: list[int] = []
    """Numbers of what was brought in the plan, in the order of `places`."""
    by_content: bool = False


_decode_note = texts.Decoder(Note).decode


def is_brought(workspace: Workspace) -> bool:
    """Whether a run is on a cluster and not all of it is known here."""
    return os.path.exists(workspace.brought)


def read_note(workspace: Workspace) -> Note | None:
    """What was brought and is not wholly known yet."""
    try:
        with open(workspace.brought, "rb") as file:
            return _decode_note(file.read())
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError):
        raise damaged(workspace.brought) from None


def refusal(workspace: Workspace) -> InputError:
    """Says that a workflow is on a cluster: it is not run a second time, and nothing of it is removed."""
    try:
        note = read_note(workspace)
    except InputError as error:
        return error
    return InputError(
        f"{os.path.basename(workspace.workflow)} is being run on the cluster {note.cluster if note else ''!r}",
        remedy=f"follow it with 'shoal attach', or end it with 'shoal cancel' and attach then; {GIVE_UP}",
    )


def damaged(path: str) -> InputError:
    return InputError(
        f"the note of the run on a cluster, {path!r}, is damaged",
        remedy="end the run with 'shoal cluster stop', then give it up with 'shoal cancel --forget'",
    )
