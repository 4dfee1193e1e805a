"""The graph of a Makeflow as `makeflow` runs it (limits count jobs), its sub-workflows, and the dry-run script."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from itertools import islice
from urllib.parse import quote as percent_encoded

from shoal import __version__
from shoal.compat.makeflow.command_wrapping import MakeflowSettings, double_quoted
from shoal.core.graph import Graph, topological_order
from shoal.core.resources import FRACTION
from shoal.execution.files.files import relative_here
from shoal.execution.workflow_loader import Workflow, output_files
from shoal.formats.makeflow import Makeflow, MakeflowRule, build_graph
from shoal.formats.makeflow.document import leading_number
from shoal.formats.makeflow.graphs import quote, resources_of, subworkflow_definitions
from shoal.ledger.workspace import Workspace

_LIMITS = ("CORES", "MEMORY", "DISK", "GPUS", "WALL_TIME")
_PASSED_ON = ("cores", "memory", "disk")


def workflow_of(settings: MakeflowSettings, document: Makeflow, language: str) -> Workflow:
    """Returns the workflow with all rules as targets."""
    nest = nested_command(settings, document, language)
    graph = build_graph(document, nest=nest, retries=settings.retries, by_jobs=True, relative=relative_here())
    kept = frozenset(output_files(document, graph))
    return Workflow(settings.dagfile, graph, list(range(len(graph))), [], kept=kept)


def nested_command(settings: MakeflowSettings, document: Makeflow, language: str) -> Callable[[int, MakeflowRule], str]:
    """Returns a function that gives the command for the sub-workflow of a rule: `shoal makeflow` with its own log."""

    def command(number: int, rule: MakeflowRule) -> str:
        words = ["shoal", "makeflow", "-T", "local", quote(rule.workflow)]
        words += ["-l", quote(settings.log_of_child(number, rule.workflow))]
        words += language_options(rule, language)
        words += [f"--local-{name}={amount}" for name, amount in limits_of(document, rule) if name in _PASSED_ON]
        return " ".join(words)

    return command


def limits_of(document: Makeflow, rule: MakeflowRule) -> list[tuple[str, int]]:
    """Returns the limits that a rule declares, in whole cores, megabytes and seconds."""
    own = dict(rule.variables)
    values = {name: own.get(name) or document.variables.latest(rule.category, name) or "" for name in _LIMITS}
    declared = resources_of(values, "jobs")
    wall_time = leading_number(values["WALL_TIME"])
    found = [
        ("cores", math.ceil(declared.get("cores") / FRACTION)),
        ("memory", math.ceil(declared.get("memory") / 2**20)),
        ("disk", math.ceil(declared.get("disk") / 2**20)),
        ("gpus", math.ceil(declared.get("gpus") / FRACTION)),
        ("wall_time", 0 if wall_time is None else math.ceil(wall_time[0])),
    ]
    return [(name, amount) for name, amount in found if amount > 0]


def language_options(rule: MakeflowRule, language: str) -> list[str]:
    """Returns the shell words for the language of a sub-workflow. JSON is read as JX, so it can have definitions."""
    if language == "makeflow":
        return []
    words = ["--jx"]
    for definition in subworkflow_definitions(rule):
        words += ["--jx-define", quote(definition)]
    return words


def workspace_of(settings: MakeflowSettings) -> Workspace:
    """Returns the workspace of a run. It depends on the log, because in the original another log is another run."""
    base = os.getcwd()
    name = os.path.relpath(settings.dagfile)
    if os.path.abspath(settings.log) != os.path.abspath(settings.dagfile + ".makeflowlog"):
        name += "@" + os.path.relpath(settings.log)
    return Workspace(settings.dagfile, base, percent_encoded(os.fsencode(name), safe="@+,= "))


def kept_files(document: Makeflow, graph: Graph) -> frozenset[str]:
    """Returns the files that are inputs or outputs of the whole workflow."""
    return frozenset((*document.inputs, *output_files(document, graph)))


_MARK = "# written by shoal"


def script_of(graph: Graph, commands: list[str]) -> str:
    """Returns the text of the dry-run script; `commands` are the command lines by rule."""
    lines = ["#!/bin/sh", "set -x", "set -e", "", f"{_MARK} {__version__}", ""]
    for rule in topological_order(graph):
        for name in graph.input_names(rule):
            lines.append(f"test -e {double_quoted(name)}")
        variables = [double_quoted(f"{name}={value}") for name, value in graph.profile_of(rule).environment]
        lines.append(" ".join(["env", *variables, "sh", "-c", double_quoted(commands[rule])]))
        for name in graph.output_names(rule):
            lines.append(f"test -e {double_quoted(name)}")
    return "\n".join(lines) + "\n"


def write_script(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    os.chmod(path, 0o755)


def is_script(path: str) -> bool:
    """Whether `write_script` wrote the file: a script of the user can have the same name."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return any(line.startswith(_MARK) for line in islice(file, 10))
    except OSError:
        return False
