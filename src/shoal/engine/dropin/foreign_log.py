"""Going on from a log that the original program left: what it says was done is taken over into our own records.

That log knows rules by their number only, so a rule counts as done only if the log speaks of as many rules as there
are, names the same files as its outputs, these are there, and nothing it reads is newer than its completion.
"""

from __future__ import annotations

import os
import re

from shoal.engine.dropin.log import FileState, RuleState, on_one_line
from shoal.engine.files import look_at_files
from shoal.engine.workspace import Workspace
from shoal.ledger.file import LedgerReader, LedgerWriter
from shoal.ledger.records import TaskEnded, decode
from shoal.model.graph import Graph, topological_order
from shoal.plan.identity import Versions, content_of, place_of

_FILE = re.compile(r"# FILE \d+ (.*) (\d+) \d+$")
_RULE = re.compile(r"(\d+) (\d+) (\d+) \S+ \d+ \d+ \d+ \d+ \d+ (\d+)$")
_SLACK = 1.0
"""The original counts in whole seconds."""


def take_over(log: str, graph: Graph, workspace: Workspace) -> int:
    """Writes results for the rules that are done by the log, if we have none of our own; returns how many."""
    if not os.path.exists(log) or _has_results(workspace):
        return 0
    done = _completed(log, graph)
    if not done:
        return 0
    versions = Versions(graph)
    look_at_files(graph, bytearray(b"\1" * len(graph)), versions, by_content=False, check_sources=False)
    ledger = LedgerWriter(workspace.ledger, workspace.ballast)
    taken = 0
    try:
        for rule in topological_order(graph):
            moment = done.get(rule)
            if moment is not None and _holds(graph, rule, versions, moment):
                ledger.add(_result(graph, rule, versions, moment))
                taken += 1
    finally:
        ledger.close()
    return taken


def _has_results(workspace: Workspace) -> bool:
    return any(isinstance(decode(payload), TaskEnded) for payload in LedgerReader(workspace.ledger).payloads())


def _completed(log: str, graph: Graph) -> dict[int, float]:
    """When each rule was completed, of those whose files have the names they have here."""
    done: dict[int, float] = {}
    made: set[str] = set()
    with open(log, encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            if record := _FILE.match(line):
                if int(record[2]) == FileState.EXISTS:
                    made.add(record[1])
            elif record := _RULE.match(line):
                moment, rule, state, total = map(int, record.groups())
                if total != len(graph) or rule >= total:
                    return {}  # it speaks of another workflow
                done.pop(rule, None)
                if state == RuleState.COMPLETE and made.issuperset(map(on_one_line, graph.output_names(rule))):
                    done[rule] = moment / 1e6
    return done


def _holds(graph: Graph, rule: int, versions: Versions, moment: float) -> bool:
    inputs, outputs = graph.inputs_of(rule), graph.outputs_of(rule)
    newest = max((versions.times[file] / 1e9 for file in inputs if file not in versions.folders), default=0.0)
    return newest <= moment + _SLACK and all(versions.sizes[file] >= 0 for file in (*inputs, *outputs))


def _result(graph: Graph, rule: int, versions: Versions, moment: float) -> TaskEnded:
    versions.done[rule] = moment
    outputs = [(versions.sizes[file], versions.times[file]) for file in graph.outputs_of(rule)]
    identity = (place_of(graph, rule), content_of(graph, rule), versions.digest_of_inputs(rule))
    nothing = (0.0, 0.0, 0, 0, 0, "")
    ended = (moment, moment, *nothing)
    return TaskEnded(rule, 1, "ok", True, 0, *ended, *identity, outputs, None, check=versions.check)
