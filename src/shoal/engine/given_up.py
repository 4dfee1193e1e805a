"""Runs that were given up while their cluster could not be reached: a note of each in the workflow's own directory.

The cluster may come back with such a run in its store. Agents that share the workflow's files look for the note before
they start a task or move anything, because by then a later run may have made the same files. The note stays until the
cluster does not have the run any more; `shoal clean` leaves it there.
"""

from __future__ import annotations

import os

from shoal.engine.workspace import Workspace, sync_directory, write_durably


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
