"""The graph of a Makeflow as the original runs it: in the current directory, with its own way of counting jobs."""

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
    """All rules are wanted."""
    nest = nested_command(settings, document, language)
    graph = build_graph(document, nest=nest, retries=settings.retries, by_jobs=True, relative=relative_here())
    kept = frozenset(output_files(document, graph))
    return Workflow(settings.dagfile, graph, list(range(len(graph))), [], kept=kept)


def nested_command(settings: MakeflowSettings, document: Makeflow, language: str) -> Callable[[int, MakeflowRule], str]:
    """How the sub-workflow of a rule is run: by this same program, with a log of its own."""

    def command(number: int, rule: MakeflowRule) -> str:
        words = ["shoal", "makeflow", "-T", "local", quote(rule.workflow)]
        words += ["-l", quote(settings.log_of_child(number, rule.workflow))]
        words += language_options(rule, language)
        words += [f"--local-{name}={amount}" for name, amount in limits_of(document, rule) if name in _PASSED_ON]
        return " ".join(words)

    return command


def limits_of(document: Makeflow, rule: MakeflowRule) -> list[tuple[str, int]]:
    """What a rule declares that it needs at most, in whole cores, megabytes and seconds."""
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
    """How a sub-workflow is to be read, in words for the shell; JSON is JX, too, and may get definitions."""
    if language == "makeflow":
        return []
    words = ["--jx"]
    for definition in subworkflow_definitions(rule):
        words += ["--jx-define", quote(definition)]
    return words


def workspace_of(settings: MakeflowSettings) -> Workspace:
    """The state of a run belongs to its log: another log is another run."""
    base = os.getcwd()
    name = os.path.relpath(settings.dagfile)
    if os.path.abspath(settings.log) != os.path.abspath(settings.dagfile + ".makeflowlog"):
        name += "@" + os.path.relpath(settings.log)
    return Workspace(settings.dagfile, base, percent_encoded(os.fsencode(name), safe="@+,= "))


def kept_files(document: Makeflow, graph: Graph) -> frozenset[str]:
    """Files that are inputs or outputs of the whole workflow."""
    return frozenset((*document.inputs, *output_files(document, graph)))


_MARK = "# written by shoal"


def script_of(graph: Graph, dressed: list[str]) -> str:
    """The text of the script; `dressed` are the command lines by rule."""
    lines = ["#!/bin/sh", "set -x", "set -e", "", f"{_MARK} {__version__}", ""]
    for rule in topological_order(graph):
        for name in graph.input_names(rule):
            lines.append(f"test -e {double_quoted(name)}")
        variables = [double_quoted(f"{name}={value}") for name, value in graph.profile_of(rule).environment]
        lines.append(" ".join(["env", *variables, "sh", "-c", double_quoted(dressed[rule])]))
        for name in graph.output_names(rule):
            lines.append(f"test -e {double_quoted(name)}")
    return "\n".join(lines) + "\n"


def write_script(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    os.chmod(path, 0o755)


def is_script(path: str) -> bool:
    """Whether the file is one that `write_script` wrote, and not a script of the user's with the same name."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return any(line.startswith(_MARK) for line in islice(file, 10))
    except OSError:
        return False
