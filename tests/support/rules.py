"""A rules file as text in a test: executed without a disk, then asked for its graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatch
from textwrap import dedent

import pytest

from shoal.core.graph import Graph
from shoal.errors import InputError
from shoal.formats.rules import api
from shoal.formats.rules.api import Rules
from shoal.formats.rules.definitions import UserCodeErrors

SOURCE = "flow.py"


def rules_of(text: str, parameters: Mapping[str, str] | None = None, existing: Iterable[str] = ()) -> Rules:
    """The registry after the text was executed with everything of `api` imported; line 1 is the first line of text."""
    there = sorted(existing)
    text = dedent(text).strip("\n")
    rules = Rules(SOURCE, parameters, glob=lambda pattern: [name for name in there if fnmatch(name, pattern)])
    rules.texts[SOURCE] = text
    names: dict[str, object] = {name: getattr(api, name) for name in api.__all__}
    names["__name__"] = "shoal_rules"
    with api.collecting(rules), UserCodeErrors(rules.texts):
        exec(compile(text, SOURCE, "exec", dont_inherit=True), names)
    return rules


def graph_of(
    text: str, *targets: str, existing: Iterable[str] = (), parameters: Mapping[str, str] | None = None
) -> tuple[Graph, list[int]]:
    existing = list(existing)
    return rules_of(text, parameters, existing).graph(targets, dict.fromkeys(existing).__contains__)


def tasks_of(text: str, *targets: str, existing: Iterable[str] = ()) -> dict[str, object]:
    """From the names of the tasks in the graph to their actions, in the graph's order."""
    graph, _ = graph_of(text, *targets, existing=existing)
    return dict(zip(graph.names, graph.actions, strict=True))


def needs_of(graph: Graph, name: str) -> list[str]:
    """The names a task waits for: its input files, then the tasks it comes after."""
    task = graph.names.index(name)
    return graph.input_names(task) + [graph.names[other] for other in graph.after_of(task)]


def refusal(text: str, *targets: str, existing: Sequence[str] = ()) -> InputError:
    """The error that the text and targets give."""
    with pytest.raises(InputError) as caught:
        graph_of(text, *targets, existing=existing)
    return caught.value
