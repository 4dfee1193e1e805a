"""`--clean`: removes what the workflow makes, as the original does: by the names in the file, not by who made them."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time

from shoal.compat.makeflow.command_wrapping import MakeflowSettings, sandboxes
from shoal.compat.makeflow.hooks import failed_directory, remove_file
from shoal.compat.makeflow.log import check_log, standing_files
from shoal.compat.makeflow.workflow import is_script, kept_files, language_options, workflow_of, workspace_of
from shoal.core.graph import NO_TASK, Graph
from shoal.execution.removal import forget
from shoal.execution.workflow_loader import output_files
from shoal.formats.makeflow import Makeflow
from shoal.ledger.file import LedgerWriter
from shoal.ledger.identity import place_of
from shoal.ledger.records import OutputsCollected
from shoal.ledger.workspace import LockHolder, Workspace

KINDS = ("all", "intermediates", "outputs", "cache")


def clean(settings: MakeflowSettings, document: Makeflow, language: str, kind: str) -> int:
    """Removes files of one kind; with `all` also logs and records."""
    graph = workflow_of(settings, document, language).graph
    check_log(settings.log)
    workspace = workspace_of(settings)
    print("cleaning filesystem...", flush=True)
    if kind == "cache":
        print("nothing left to do.")
        return 0
    known = os.path.isdir(workspace.directory)
    if known:
        workspace.acquire(LockHolder(os.getpid(), os.uname().nodename, "", time.time()))
    try:
        status = _clean_children(settings, document, language, kind) if kind == "all" else 0
        gone = _remove_targets(document, graph, kind, settings)
        if kind == "all":
            _forget(settings, workspace, graph, document)
        elif kind == "intermediates" and known and gone:
            _record(workspace, graph, gone)
    finally:
        workspace.release()
    print("nothing left to do.")
    return status


def _remove_targets(document: Makeflow, graph: Graph, kind: str, settings: MakeflowSettings) -> list[int]:
    """Removes made files of this kind; returns the numbers of those that were there."""
    outputs = frozenset(output_files(document, graph))
    kept = kept_files(document, graph) if kind == "intermediates" else frozenset(document.inputs) - outputs
    gone = []
    for file, maker in enumerate(graph.producer):
        name = graph.file_names[file]
        if maker == NO_TASK or name in kept or (kind == "outputs" and name not in outputs):
            continue
        if os.path.lexists(name) and remove_file(name):
            print(f"deleted {name}")
            gone.append(file)
    if kind == "all":
        further = [name.replace("%%", str(rule)) for rule in range(len(graph)) for name in settings.wrapper_outputs]
        named = frozenset(graph.file_names)
        for name in dict.fromkeys([*further, *standing_files(settings.log)]):
            if name not in named and remove_file(name):
                print(f"deleted {name}")
    return gone


def _clean_children(settings: MakeflowSettings, document: Makeflow, language: str, kind: str) -> int:
    """Sub-workflows clean up after themselves."""
    status = 0
    for number, rule in enumerate(document.rules):
        if rule.workflow and os.path.exists(rule.workflow):
            print(f"cleaning sub-workflow {rule.workflow}", flush=True)
            log = settings.log_of_child(number, rule.workflow)
            words = [sys.executable, "-m", "shoal", "makeflow", "-T", "local", rule.workflow, "-l", log]
            words += [f"--clean={kind}", *shlex.split(" ".join(language_options(rule, language)))]
            status |= subprocess.run(words, check=False).returncode
            print(f"done cleaning sub-workflow {rule.workflow}")
    return 1 if status else 0


def _forget(settings: MakeflowSettings, workspace: Workspace, graph: Graph, document: Makeflow) -> None:
    for rule in range(len(graph)):
        if os.path.isdir(failed_directory(rule)):
            remove_file(failed_directory(rule))
            print(f"deleted {failed_directory(rule)}")
    for name in sandboxes("*"):
        remove_file(name)
    logs = [settings.log, settings.dagfile + ".batchlog"]
    if is_script(settings.dagfile + ".sh"):
        logs.append(settings.dagfile + ".sh")
    logs += [
        settings.log_of_child(number, rule.workflow) for number, rule in enumerate(document.rules) if rule.workflow
    ]
    for name in logs:
        remove_file(name)
    forget(workspace)


def _record(workspace: Workspace, graph: Graph, gone: list[int]) -> None:
    """What was removed here is no reason for the next run to make it again, unless something needs it."""
    ledger = LedgerWriter(workspace.ledger, workspace.ballast)
    try:
        ledger.add(OutputsCollected(list(dict.fromkeys(place_of(graph, graph.producer[file]) for file in gone))))
    finally:
        ledger.close()
