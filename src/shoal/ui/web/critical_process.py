"""Computes the critical path of a run with very many tasks in a separate process.

The computation holds every dependency in memory several times. `python -m shoal.ui.web.critical_process FILE NUMBER`
reads the ledger, prints the path as JSON and exits, which frees that memory.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import msgspec

from shoal.ledger.workspace import Workspace
from shoal.ui.web.board import RefusedRequest
from shoal.ui.web.task_description import PYTHON, read_in_process

PATIENCE = 120.0
_one_at_a_time = threading.Lock()


def ask_path(workspace: Workspace, number: int) -> dict[str, Any]:
    """Returns the critical path of the run with this number."""
    command = [*PYTHON, "shoal.ui.web.critical_process", workspace.workflow, str(number)]
    with _one_at_a_time:
        found = read_in_process(command, workspace.base, PATIENCE)
    if "problem" in found:
        raise RefusedRequest(found["problem"], 503)
    return found


def path_of(workspace: Workspace, number: int) -> dict[str, Any]:
    """Reads the ledger and computes the path."""
    from shoal.ledger.bulk_reader import LedgerTail, read_into
    from shoal.ledger.views.timeline import shown_categories
    from shoal.ledger.views.waits import TaskWaits
    from shoal.ui.web.run_page import critical_data, places_of
    from shoal.ui.web.watch import WatchedRun

    view = WatchedRun()
    read_into(view, LedgerTail(workspace.ledger), last=number)
    found = critical_data(view, TaskWaits(view), places_of(view, shown_categories(view))) if view.links else None
    return found if found is not None else {"problem": "the ledger does not contain the dependencies of this run"}


def main() -> int:
    """Prints the critical path of one run."""
    sys.stdout.buffer.write(msgspec.json.encode(path_of(Workspace(sys.argv[1]), int(sys.argv[2]))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
