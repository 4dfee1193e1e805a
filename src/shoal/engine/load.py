"""From a file the user names to a graph and its targets, whatever language the file is written in."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from shoal.errors import InputError
from shoal.model.graph import Graph, lookup_tasks

DEFAULT_NAMES = ("flow.py", "Flowfile.py", "Makeflow", "makeflow")


class Workflow(msgspec.Struct):
    """A graph, and the tasks that the user asked for."""

    path: str
    graph: Graph
    targets: list[int]
    target_names: list[str]
    """The words it was loaded with: targets, and for a rules file also `name=value` parameters."""


def find_workflow(path: str | None) -> str:
    """The file to run: the one named, or the first default name found here."""
    if path is not None:
        if not os.path.isfile(path):
            hint = "is a directory" if os.path.isdir(path) else "does not exist"
            raise InputError(f"the workflow file {path!r} {hint}", remedy="name a rules file (flow.py) or a Makeflow")
        return path
    for name in DEFAULT_NAMES:
        if os.path.isfile(name):
            return name
    raise InputError(
        f"there is no workflow here (looked for {', '.join(DEFAULT_NAMES)})", remedy="name the file: shoal run FILE"
    )


def load_workflow(path: str, words: Sequence[str]) -> Workflow:
    """Reads the workflow; `words` are targets and, for rules files, `name=value` parameters.

    The current directory must be the workflow's own: names in it are relative to that.
    """
    name = os.path.basename(path)
    if name.endswith(".py"):
        return _load_rules(path, words)
    return _load_makeflow(path, words)


def _load_rules(path: str, words: Sequence[str]) -> Workflow:
    from shoal.engine.rulesfile import load_rules

    parameters = dict(word.split("=", 1) for word in words if "=" in word)
    names = [word for word in words if "=" not in word]
    rules = load_rules(path, parameters)
    graph, targets = rules.graph(names, os.path.exists)
    return Workflow(path, graph, targets, list(words))


def _load_makeflow(path: str, words: Sequence[str]) -> Workflow:
    from shoal.frontend.makeflow import build_graph, parse_makeflow

    try:
        with open(path, "rb") as file:
            text = file.read()
    except OSError as error:
        raise InputError(f"cannot read the workflow: {error.strerror}", file=path) from None
    graph = build_graph(parse_makeflow(text, source=os.path.basename(path), environment=os.environ))
    if not words:
        return Workflow(path, graph, list(range(len(graph))), [])
    find = lookup_tasks(graph)
    targets = []
    for word in words:
        task = find(word)
        if task is None:
            raise unknown_target(word, graph)
        targets.append(task)
    return Workflow(path, graph, targets, list(words))


def unknown_target(word: str, graph: Graph) -> InputError:
    """Says that nothing is called so, and what comes close."""
    from difflib import get_close_matches

    known = graph.names if len(graph.names) < 50_000 else graph.names[:50_000]
    close = get_close_matches(word, known, n=3)
    remedy = f"did you mean {' or '.join(map(repr, close))}?" if close else "'shoal plan' lists what there is"
    return InputError(f"there is no task or file called {word!r}", file=graph.source, remedy=remedy)
