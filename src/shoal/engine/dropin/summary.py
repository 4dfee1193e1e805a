"""The summary that `-f FILE` asks for."""

from __future__ import annotations

import os
import time

from shoal.engine.dropin.log import MakeflowLog, RuleState
from shoal.engine.dropin.settings import Settings
from shoal.model.graph import Graph


def summary_of(
    settings: Settings, graph: Graph, log: MakeflowLog, ending: str, seconds: float, outputs: list[str]
) -> str:
    """The text; `ending` is completed, failed or aborted."""
    total = len(graph)
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    lines = [
        settings.command_line,
        f"Workflow {ending}:\t {time.ctime()}",
        f"Total runtime:\t\t {hours}:{minutes:02}:{rest:02}",
        f"Workflow file:\t\t {settings.dagfile}",
        f"Number of tasks:\t {total}",
        f"Completed tasks:\t {log.count(RuleState.COMPLETE)}/{total}",
    ]
    if aborted := log.count(RuleState.ABORTED):
        lines.append(f"Aborted tasks:\t\t {aborted}/{total}")
    if waiting := log.count(RuleState.WAITING):
        lines.append(f"Tasks not run:\t\t {waiting}/{total}")
    failed = log.rules_in(RuleState.FAILED)
    if failed:
        lines.append(f"Failed tasks:\t\t {len(failed)}/{total}")
        lines += [f"\t{graph.actions[rule]}" for rule in failed]
    made = [name for name in outputs if os.path.exists(name)]
    if made:
        lines.append("Output files:")
        lines += [f"\t{name}\t{os.path.getsize(name):.1f}" for name in made]
    return "\n".join(lines) + "\n"
