"""The critical path of a run with very many tasks, worked out by a process of its own.

That needs every single dependency in memory, several times over. `python -m shoal.web.distant FILE NUMBER` reads the
ledger, prints the path as JSON and is gone, with its memory.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import msgspec

from shoal.engine.workspace import Workspace
from shoal.web.described import PYTHON, follow_apart
from shoal.web.source import Refused

PATIENCE = 120.0
_one_at_a_time = threading.Lock()


def ask_path(workspace: Workspace, number: int) -> dict[str, Any]:
    """The path of the run of this number."""
    command = [*PYTHON, "shoal.web.distant", workspace.workflow, str(number)]
    with _one_at_a_time:
        found = follow_apart(command, workspace.base, PATIENCE)
    if "problem" in found:
        raise Refused(found["problem"], 503)
    return found


def path_of(workspace: Workspace, number: int) -> dict[str, Any]:
    """Reads the ledger and follows the path."""
    from shoal.report.reading import LedgerTail, read_into
    from shoal.view.graph import Needs
    from shoal.view.timeline import shown_categories
    from shoal.web.parts import critical_data, places_of
    from shoal.web.watch import WatchedRun

    view = WatchedRun()
    read_into(view, LedgerTail(workspace.ledger), last=number)
    found = critical_data(view, Needs(view), places_of(view, shown_categories(view))) if view.links else None
    return found if found is not None else {"problem": "the ledger does not contain the dependencies of this run"}


def main() -> int:
    """Prints the path of one run."""
    sys.stdout.buffer.write(msgspec.json.encode(path_of(Workspace(sys.argv[1]), int(sys.argv[2]))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
