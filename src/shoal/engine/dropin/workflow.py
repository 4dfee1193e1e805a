"""The graph of a Makeflow as the original runs it: in the current directory, with its own way of counting jobs."""

from __future__ import annotations

import os
from collections.abc import Callable
from urllib.parse import quote as percent_encoded

from shoal.engine.dropin.settings import Settings
from shoal.engine.load import Workflow
from shoal.engine.workspace import Workspace
from shoal.frontend.makeflow import Makeflow, MakeflowRule, build_graph
from shoal.frontend.makeflow.build import quote, subworkflow_definitions
from shoal.model.graph import NO_TASK, Graph

_PASSED_ON = (("CORES", "--local-cores"), ("MEMORY", "--local-memory"), ("DISK", "--local-disk"))


def workflow_of(settings: Settings, document: Makeflow, language: str) -> Workflow:
    """All rules are wanted."""
    nest = nested_command(settings, document, language)
    graph = build_graph(document, nest=nest, retries=settings.retries, by_jobs=True)
    return Workflow(settings.dagfile, graph, list(range(len(graph))), [])


def nested_command(settings: Settings, document: Makeflow, language: str) -> Callable[[int, MakeflowRule], str]:
    """How the sub-workflow of a rule is run: by this same program, with a log of its own."""

    def command(number: int, rule: MakeflowRule) -> str:
        words = ["shoal", "makeflow", "-T", "local", quote(rule.workflow)]
        words += ["-l", quote(settings.log_of_child(number, rule.workflow))]
        words += language_options(rule, language)
        own = dict(rule.variables)
        for name, option in _PASSED_ON:
            value = own.get(name) or document.variables.latest(rule.category, name)
            if value:
                words.append(f"{option}={quote(value)}")
        return " ".join(words)

    return command


def language_options(rule: MakeflowRule, language: str) -> list[str]:
    """How a sub-workflow is to be read, in words for the shell; JSON is JX, too, and may get definitions."""
    if language == "makeflow":
        return []
    words = ["--jx"]
    for definition in subworkflow_definitions(rule):
        words += ["--jx-define", quote(definition)]
    return words


def workspace_of(settings: Settings) -> Workspace:
    """The state of a run belongs to its log: another log is another run."""
    base = os.getcwd()
    name = os.path.relpath(settings.dagfile)
    if os.path.abspath(settings.log) != os.path.abspath(settings.dagfile + ".makeflowlog"):
        name += "@" + os.path.relpath(settings.log)
    return Workspace(settings.dagfile, base, percent_encoded(name, safe="@+,= "))


def kept_files(document: Makeflow, graph: Graph) -> frozenset[str]:
    """Files that are inputs or outputs of the whole workflow."""
    return frozenset((*document.inputs, *output_files(document, graph)))


def output_files(document: Makeflow, graph: Graph) -> list[str]:
    """What the file declares as its outputs; else everything that is made and not read."""
    if document.outputs:
        return list(document.outputs)
    read = bytearray(len(graph.file_names))
    for file in graph.inputs:
        read[file] = 1
    return [graph.file_names[file] for file, maker in enumerate(graph.producer) if maker != NO_TASK and not read[file]]
