"""Which workflow a reading command is about, and where what was recorded of it lies."""

from __future__ import annotations

import os
from collections.abc import Sequence

from shoal.cli.parser import has_marks_of_workflow, split_words
from shoal.engine.load import DEFAULT_NAMES, missing_workflow
from shoal.engine.workspace import DIRECTORY, Workspace
from shoal.errors import InputError


def recorded_workflows(directory: str = ".") -> list[str]:
    """Names of the workflows of a directory that have been run there."""
    parent = os.path.join(directory, DIRECTORY)
    try:
        found = sorted(os.listdir(parent))
    except OSError:
        return []
    return [name for name in found if os.path.isdir(os.path.join(parent, name))]


def choose_workflow(named: str | None) -> str:
    """The workflow named, or the one under a default name here, or the only one that has been run here."""
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
    """An absolute path if no task was named but only a workflow with values for it, or nothing at all."""
    if not words:
        return os.path.abspath(choose_workflow(named))
    if named is None and has_marks_of_workflow(words[0]) and all("=" in word for word in words[1:]):
        return os.path.abspath(choose_workflow(words[0]))
    return None


def task_and_workflow(words: Sequence[str], named: str | None, command: str) -> tuple[str, str, list[str]]:
    """From `TASK [FILE] [TARGET... NAME=VALUE...]`: the task, an absolute path, and the other words."""
    if not words:
        raise InputError("no task was named", remedy=f"write it as 'shoal {command} TASK'")
    path, rest = split_words(words[1:], named)
    return words[0], os.path.abspath(choose_workflow(path)), rest
