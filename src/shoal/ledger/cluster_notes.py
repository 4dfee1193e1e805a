"""Notes beside the ledger of runs on a cluster: a submitted run with its plan, an abandoned run, a net with remote
tasks.

The note of a submitted run exists from before its first task can start until this machine has recorded the end of every
task. Meanwhile no other run of the workflow may start, and no command may remove its files. Results are recorded
against the plan as submitted, with the commands and file versions of that moment. So the next run notices a later edit.
"""

from __future__ import annotations

import os

import msgspec

from shoal.core import file_names
from shoal.errors import InputError
from shoal.ledger.workspace import Workspace, sync_directory, write_durably

ARRIVING = "arriving"
"""The folder in a workflow's own directory where files from the cluster arrive."""
GIVE_UP = "if that cluster is gone for good, 'shoal cancel --forget' gives the run up"


class SubmissionNote(msgspec.Struct):
    """A run that was submitted to a cluster."""

    cluster: str
    """Name of the cluster, or path of its access file."""
    run: str
    places: list[bytes]
    words: list[str]
    """Targets and values from the command line."""
    managed: bool = False
    files: list[str] = []
    returned: list[str] = []
    """Where the nodes have no shared file system: files of the run, and files to be copied back."""
    began: float = 0.0
    tasks: list[int] = []
    """Task numbers in the plan, in the order of `places`."""
    by_content: bool = False


_decode_note = file_names.Decoder(SubmissionNote).decode


def is_submitted(workspace: Workspace) -> bool:
    """Whether a run is on a cluster and not all of its results are recorded here."""
    return os.path.exists(workspace.submission_note)


def read_note(workspace: Workspace) -> SubmissionNote | None:
    """Returns the note of the submitted run, if there is one."""
    try:
        with open(workspace.submission_note, "rb") as file:
            return _decode_note(file.read())
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError):
        raise damaged(workspace.submission_note) from None


def cluster_refusal(workspace: Workspace) -> InputError:
    """The error for commands that are not possible while the workflow's run is on a cluster: a second run, removal of
    files."""
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
    """Path of the note that exists if the run was abandoned."""
    return os.path.join(workspace.given_up, run)


def note_given_up(workspace: Workspace, run: str, cluster: str) -> None:
    """Writes the note durably: it survives a power failure."""
    os.makedirs(workspace.given_up, exist_ok=True)
    write_durably(note_path(workspace, run), os.fsencode(cluster))
    sync_directory(workspace.directory)


def is_given_up(workspace: Workspace, run: str) -> bool:
    """Whether the run was abandoned, as seen by a machine that has not used the directory for some time. A network file
    system may cache the absence of the note until the directory is listed."""
    try:
        return run in os.listdir(workspace.given_up) if os.listdir(workspace.directory) else False
    except OSError:
        return False


def given_up_runs(workspace: Workspace, cluster: str) -> list[str]:
    """Abandoned runs of a cluster; `cluster` is the name or path with which they were submitted."""
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
    """Removes the note of an abandoned run that the cluster no longer has."""
    try:
        os.unlink(note_path(workspace, run))
        os.rmdir(workspace.given_up)
    except OSError:
        pass  # there are other notes, or this one is already removed


class NetClusterNote(msgspec.Struct, frozen=True):
    """A net whose tasks may run on a cluster."""

    cluster: str
    """Name of the cluster, or path of its access file."""
    client: str
    """The client's id at the agents."""
    agents: list[str]
    """Addresses of the agents that were present when the run started."""


def may_have_remote_tasks(workspace: Workspace) -> bool:
    return os.path.exists(workspace.net_note)


def read_net_note(workspace: Workspace) -> NetClusterNote | None:
    """Returns the note of the net, if there is one."""
    try:
        with open(workspace.net_note, "rb") as file:
            return msgspec.json.decode(file.read(), type=NetClusterNote)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError):
        raise InputError(
            f"the note of the net's run on a cluster, {workspace.net_note!r}, is damaged",
            remedy=f"end the tasks with 'shoal cluster stop', then {give_up_remedy(workspace)}",
        ) from None


def write_net_note(workspace: Workspace, note: NetClusterNote) -> None:
    write_durably(workspace.net_note, msgspec.json.encode(note))


def drop_net_note(workspace: Workspace) -> None:
    """Removes the note: no task of the net runs on a cluster any more, or the run was abandoned."""
    try:
        os.unlink(workspace.net_note)
    except FileNotFoundError:
        pass


def give_up_remedy(workspace: Workspace) -> str:
    """The remedy for users who cannot reach the cluster."""
    return f"give the run up with 'shoal cancel --forget {os.path.basename(workspace.workflow)}'"


def net_refusal(workspace: Workspace) -> InputError:
    """The error for commands that would leave running tasks of the net on the cluster."""
    try:
        note = read_net_note(workspace)
    except InputError as error:
        return error
    name = os.path.basename(workspace.workflow)
    return InputError(
        f"{name} is a net whose tasks may still run on the cluster {note.cluster if note else ''!r}",
        remedy=f"end them with 'shoal cancel {name}'; if that cluster is gone for good, {give_up_remedy(workspace)}",
    )
