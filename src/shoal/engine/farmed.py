"""A net whose tasks run on a cluster: the note of it beside the ledger.

The tasks of a net are calls of its client. When the client is killed, the nodes run for a while what they have been
given, and nobody can follow it. The note stands from before the first task is handed out until the client knows that
none of them runs any more. As long as it stands, nobody else may run what the file says.
"""

from __future__ import annotations

import os

import msgspec

from shoal.engine.workspace import Workspace, write_durably
from shoal.errors import InputError


class Farmed(msgspec.Struct, frozen=True):
    """Whose calls may run where."""

    cluster: str
    """Name, or path of the access file."""
    client: str
    """How the agents know the client."""
    agents: list[str]
    """Addresses of those that were there when the run began."""


def is_farmed(workspace: Workspace) -> bool:
    return os.path.exists(workspace.farmed)


def read_farmed(workspace: Workspace) -> Farmed | None:
    """The note, if there is one."""
    try:
        with open(workspace.farmed, "rb") as file:
            return msgspec.json.decode(file.read(), type=Farmed)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError):
        raise InputError(
            f"the note of the net's run on a cluster, {workspace.farmed!r}, is damaged",
            remedy=f"end the tasks with 'shoal cluster stop', then {way_out(workspace)}",
        ) from None


def write_farmed(workspace: Workspace, note: Farmed) -> None:
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


def refusal(workspace: Workspace) -> InputError:
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
