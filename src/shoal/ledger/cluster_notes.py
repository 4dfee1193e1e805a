"""A run that was brought to a cluster: the note of it beside the ledger, and its plan as it was brought.

Both stand there from before the first task can run until this machine knows how every task ended. As long as the note
stands, nothing else may run or remove what these tasks make. Results are recorded under the plan: with the commands and
the versions of files at that moment. So an edit that comes later is noticed by the next run.
"""

from __future__ import annotations

import os

import msgspec

from shoal.core import file_names
from shoal.errors import InputError
from shoal.ledger.workspace import Workspace, sync_directory, write_durably

ARRIVING = "arriving"
"""The folder in a workflow's own directory through which files come back."""
GIVE_UP = "if that cluster is gone for good, 'shoal cancel --forget' gives the run up"


class SubmissionNote(msgspec.Struct):
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


_decode_note = file_names.Decoder(SubmissionNote).decode


def is_brought(workspace: Workspace) -> bool:
    """Whether a run is on a cluster and not all of it is known here."""
    return os.path.exists(workspace.brought)


def read_note(workspace: Workspace) -> SubmissionNote | None:
    """What was brought and is not wholly known yet."""
    try:
        with open(workspace.brought, "rb") as file:
            return _decode_note(file.read())
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError):
        raise damaged(workspace.brought) from None


def cluster_refusal(workspace: Workspace) -> InputError:
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


def note_path(workspace: Workspace, run: str) -> str:
    """The note is there if the run was given up."""
    return os.path.join(workspace.given_up, run)


def note_given_up(workspace: Workspace, run: str, cluster: str) -> None:
    """Notes it for good, also if the machine loses its power right after."""
    os.makedirs(workspace.given_up, exist_ok=True)
    write_durably(note_path(workspace, run), os.fsencode(cluster))
    sync_directory(workspace.directory)


def is_given_up(workspace: Workspace, run: str) -> bool:
    """Whether the run was given up, as a machine knows it that has not used the directory for a while: a network file
    system may remember that the note was not there, until the directory is read."""
    try:
        return run in os.listdir(workspace.given_up) if os.listdir(workspace.directory) else False
    except OSError:
        return False


def given_up_runs(workspace: Workspace, cluster: str) -> list[str]:
    """Those of a cluster, by the word for it that was used when they were brought."""
    found = []
    try:
        names = sorted(os.listdir(workspace.given_up))
    except OSError:
        return []
    for name in names:
        try:
            with open(note_path(workspace, name), "rb") as file:
                if file.read() == os.fsencode(cluster) and not name.endswith(".new"):
                    found.append(name)
        except OSError:
            continue  # another command has just removed it
    return found


def drop_note(workspace: Workspace, run: str) -> None:
    """The cluster does not have the run any more."""
    try:
        os.unlink(note_path(workspace, run))
        os.rmdir(workspace.given_up)
    except OSError:
        pass  # there are others, or it is gone already


class NetClusterNote(msgspec.Struct, frozen=True):
    """Whose calls may run where."""

    cluster: str
    """Name, or path of the access file."""
    client: str
    """How the agents know the client."""
    agents: list[str]
    """Addresses of those that were there when the run began."""


def is_farmed(workspace: Workspace) -> bool:
    return os.path.exists(workspace.farmed)


def read_farmed(workspace: Workspace) -> NetClusterNote | None:
    """The note, if there is one."""
    try:
        with open(workspace.farmed, "rb") as file:
            return msgspec.json.decode(file.read(), type=NetClusterNote)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError):
        raise InputError(
            f"the note of the net's run on a cluster, {workspace.farmed!r}, is damaged",
            remedy=f"end the tasks with 'shoal cluster stop', then {way_out(workspace)}",
        ) from None


def write_farmed(workspace: Workspace, note: NetClusterNote) -> None:
    write_durably(workspace.farmed, msgspec.json.encode(note))


def drop_farmed(workspace: Workspace) -> None:
    """Nothing of the net runs on a cluster any more, or it is given up."""
    try:
        os.unlink(workspace.farmed)
    except FileNotFoundError:
        pass


def way_out(workspace: Workspace) -> str:
    """For whoever cannot reach the cluster."""
    return f"give the run up with 'shoal cancel --forget {os.path.basename(workspace.workflow)}'"


def net_refusal(workspace: Workspace) -> InputError:
    """For those who do not end what still runs."""
    try:
        note = read_farmed(workspace)
    except InputError as error:
        return error
    name = os.path.basename(workspace.workflow)
    return InputError(
        f"{name} is a net whose tasks may still run on the cluster {note.cluster if note else ''!r}",
        remedy=f"end them with 'shoal cancel {name}'; if that cluster is gone for good, {way_out(workspace)}",
    )
