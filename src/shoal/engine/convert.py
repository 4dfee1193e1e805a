"""Workflows from one language to another: reads the file, and has the right printer write it.

Between Makeflow, JSON and JX the document itself is written anew, so that nothing that both can say is lost; any other
pair of languages meets in the graph.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

from shoal.engine.load import Language, language_of, load_workflow, read_document, read_text
from shoal.engine.session import enter
from shoal.errors import InputError
from shoal.frontend.jx import Setting
from shoal.frontend.makeflow import Makeflow, build_graph
from shoal.frontend.makeflow.build import quote
from shoal.model.graph import Graph

Target = Literal["makeflow", "json", "wfformat", "rules"]


def convert(
    path: str,
    words: Sequence[str],
    target: Target,
    *,
    jx: Sequence[Setting] = (),
) -> bytes:
    """The workflow at `path`, written as `target`; enters its directory. `words` are parameters and targets."""
    if target == "wfformat":
        return _to_wfformat(path, words, jx)
    jx = [(kind, os.path.abspath(text) if kind == "args" else text) for kind, text in jx]
    name = os.path.basename(enter(path).workflow)
    text = read_text(name)
    language = language_of(name, text)
    if language not in ("rules", "wfformat"):
        return _from_document(_document(name, text, language, words, jx), target)
    if jx:
        raise InputError("--jx-args and --jx-define are for JX workflows", file=path, remedy="leave them out")
    return _from_graph(_graph(name, text, language, words), target)


def _to_wfformat(path: str, words: Sequence[str], jx: Sequence[Setting]) -> bytes:
    from shoal.engine.export import export_wfformat

    if any(kind == "args" for kind, _ in jx):
        raise InputError("--jx-args cannot be used with --to wfformat", remedy="convert to json first")
    return export_wfformat(path, [*(text for _, text in jx), *words])


def _document(name: str, text: bytes, language: Language, words: Sequence[str], jx: Sequence[Setting]) -> Makeflow:
    if language == "makeflow" and jx:
        language = "jx"
    unused = next((word for word in words if language != "jx" or "=" not in word), None)
    if unused is not None:
        raise InputError(
            f"the whole workflow is converted, so {unused!r} means nothing here",
            remedy="give NAME=EXPRESSION for JX only",
        )
    defined: list[Setting] = [("define", word) for word in words]
    return read_document(name, text, language, [*jx, *defined])


def _graph(name: str, text: bytes, language: Language, words: Sequence[str]) -> Graph:
    if language == "wfformat":
        from shoal.frontend.wfformat import read_wfformat, trace_graph

        return trace_graph(read_wfformat(text, name), name)
    return load_workflow(name, words).graph


def _from_document(document: Makeflow, target: Target) -> bytes:
    if target == "makeflow":
        from shoal.frontend.makeflow.write_makeflow import write_makeflow

        return _encoded(write_makeflow(document))
    if target == "json":
        from shoal.frontend.makeflow.write_json import write_json

        return _encoded(write_json(document))
    return _from_graph(build_graph(document), target)


def _from_graph(graph: Graph, target: Target) -> bytes:
    if target == "rules":
        from shoal.frontend.rules.write import write_rules

        return _encoded(write_rules(graph))
    from shoal.frontend.makeflow.from_graph import document_of

    return _from_document(with_directories(document_of(graph)), target)


def with_directories(document: Makeflow) -> Makeflow:
    """Other programs do not make the directories that outputs lie in, so the commands do it themselves."""
    for rule in document.rules:
        parents = dict.fromkeys(os.path.dirname(name) for name in rule.outputs)
        parents.pop("", None)
        if parents and rule.command:
            rule.command = f"mkdir -p {' '.join(map(quote, parents))} && {rule.command}"
    return document


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
