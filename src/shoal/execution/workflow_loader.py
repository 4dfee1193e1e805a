"""Loads a workflow file of any language: detects the language, returns the graph and the targets."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from shoal.core.file_names import plain_name, real_name
from shoal.core.graph import NO_TASK, Graph, files_for, lookup_tasks
from shoal.errors import InputError
from shoal.execution.files.files import real_directories, relative_here
from shoal.ledger.up_to_date import Plan

if TYPE_CHECKING:
    from shoal.formats.jx import ExternalAccess, Setting, Value
    from shoal.formats.makeflow import Makeflow


Language = Literal["makeflow", "json", "jx", "wfformat", "rules"]
_FIRST_WORD = re.compile(rb"(?:\xef\xbb\xbf)?(?:[ \t\r\n]+|#[^\n]*\n)*(.?)")
DEFAULT_NAMES = ("flow.py", "Flowfile.py", "Makeflow", "makeflow")


class Workflow(msgspec.Struct):
    """A graph, and the tasks that the user requested."""

    path: str
    graph: Graph
    targets: list[int]
    target_names: list[str]
    """The words it was loaded with: targets, and for a rules file also `name=value` parameters."""
    check: Callable[[Plan], None] | None = None
    """Raises `InputError` for a plan that cannot be carried out on this machine."""
    notes: tuple[str, ...] = ()
    """Notes on the file for the user, shown before it runs."""
    kept: frozenset[str] = frozenset()
    """Files that the language declares as final results."""

    def wanted_files(self) -> frozenset[str]:
        """Returns the files that must exist at the end, even if an earlier run removed them as garbage or left them on
        nodes: `kept`, or all that the targets make or collect."""
        return self.kept or frozenset(self.graph.file_names[file] for file in files_for(self.graph, self.targets))


def find_workflow(path: str | None) -> str:
    """Returns the file to run: the one named, or the first default name found here."""
    if path is not None:
        if not os.path.isfile(path):
            raise missing_workflow(path)
        return path
    for name in DEFAULT_NAMES:
        if os.path.isfile(name):
            return name
    raise InputError(
        f"there is no workflow here (looked for {', '.join(DEFAULT_NAMES)})", remedy="name the file: shoal run FILE"
    )


def missing_workflow(path: str) -> InputError:
    """Returns the error for a missing workflow file; all commands use the same words."""
    hint = "is a directory" if os.path.isdir(path) else "does not exist"
    return InputError(f"the workflow file {path!r} {hint}", remedy="name a rules file (flow.py) or a Makeflow")


def load_workflow(path: str, words: Sequence[str]) -> Workflow:
    """Reads the workflow; `words` are targets and, for rules files, `name=value` parameters.

    The current directory must be the workflow's own: names in it are relative to that.
    """
    if path.endswith(".py"):
        return _load_rules(path, words)
    text = read_text(path)
    language = language_of(path, text)
    if language == "wfformat":
        from shoal.execution.replay import load_trace_workflow

        return load_trace_workflow(path, text, words)
    defines = [word for word in words if "=" in word] if language == "jx" else []
    names = [word for word in words if word not in defines]
    document = read_document(path, text, language, [("define", word) for word in defines])
    return _workflow_of(path, document, names, list(words))


def language_of(path: str, text: bytes) -> Language:
    """Returns the language of a workflow file, detected from its content."""
    if path.endswith(".py"):
        return "rules"
    if path.endswith(".jx"):
        return "jx"
    first = _FIRST_WORD.match(text)
    if first is None or first[1] != b"{":
        return "makeflow"
    from shoal.formats.wfformat import is_wfformat

    return "wfformat" if is_wfformat(text) else "jx"


def load_document(
    path: str,
    *,
    language: Language,
    jx: Sequence[Setting] = (),
) -> Makeflow:
    """Reads a file in one of Makeflow's own languages; `jx` are settings in command-line order."""
    return read_document(path, read_text(path), language, jx)


def read_document(path: str, text: bytes, language: Language, jx: Sequence[Setting] = ()) -> Makeflow:
    """Like `load_document`, for a text that is already in memory."""
    if language == "makeflow":
        from shoal.formats.makeflow import parse_makeflow

        return parse_makeflow(text, source=path, environment=os.environ)
    from shoal.formats.makeflow.json_form import read_json_workflow, read_jx_workflow

    if language == "json":
        from shoal.formats.jx import parse_json
        from shoal.formats.source_text import SourceText

        return read_json_workflow(parse_json(text, path), SourceText(path, text), os.environ)

    outside = LocalFiles()
    context = read_settings(jx, outside)
    return read_jx_workflow(text, path, environment=os.environ, context=context, outside=outside)


def targets_among(path: str, words: Sequence[str]) -> list[str]:
    """Returns those of a workflow's words that are targets, not parameters."""
    if path.endswith(".py"):
        return [word for word in words if "=" not in word]
    language = language_of(path, read_text(path))
    return [word for word in words if "=" not in word or language == "makeflow"]


def _load_rules(path: str, words: Sequence[str]) -> Workflow:
    from shoal.execution.rules_loader import load_rules

    parameters = dict(word.split("=", 1) for word in words if "=" in word)
    names = [word for word in words if "=" not in word]
    rules = load_rules(path, parameters)
    graph, targets = rules.graph(names, os.path.exists, real_directories())
    return Workflow(path, graph, targets, list(words))


def read_text(path: str) -> bytes:
    """Returns the content of a workflow file."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise InputError(f"cannot read the workflow: {error.strerror}", file=path) from None


def _workflow_of(path: str, document: Makeflow, names: Sequence[str], words: list[str]) -> Workflow:
    from shoal.formats.makeflow import build_graph

    relative, real = relative_here(), real_directories()
    graph = build_graph(document, relative=relative)
    kept = set(output_files(document, graph))
    if not names:
        return Workflow(path, graph, list(range(len(graph))), words, notes=tuple(document.notes), kept=frozenset(kept))
    find = lookup_tasks(graph, relative)
    targets = []
    for name in names:
        known = plain_name(name, relative)
        task = find(name)
        if task is None:  # another path may lead to the same file
            known = real_name(known, real)
            task = find(known)
        if task is None:
            raise unknown_target(name, graph)
        kept.add(known)
        targets.append(task)
    return Workflow(path, graph, targets, words, notes=tuple(document.notes), kept=frozenset(kept))


def output_files(document: Makeflow, graph: Graph) -> list[str]:
    """Returns the declared outputs of the file; without a declaration, all files that are made and not read."""
    if document.outputs:
        return [plain_name(name) for name in document.outputs]
    read = bytearray(len(graph.file_names))
    for file in graph.inputs:
        read[file] = 1
    return [graph.file_names[file] for file, maker in enumerate(graph.producer) if maker != NO_TASK and not read[file]]


def unknown_target(word: str, graph: Graph) -> InputError:
    """Returns the error for an unknown name, with similar names."""
    from difflib import get_close_matches

    known = graph.names if len(graph.names) < 50_000 else graph.names[:50_000]
    close = get_close_matches(word, known, n=3)
    remedy = f"did you mean {' or '.join(map(repr, close))}?" if close else "'shoal plan' lists the tasks"
    return InputError(f"there is no task or file called {word!r}", file=graph.source, remedy=remedy)


FETCH_SECONDS = 30.0
LARGEST_FETCH_BYTES = 1 << 28


class LocalFiles:
    """The file system and the network, seen from the working directory."""

    def listdir(self, path: str) -> Sequence[str]:
        return os.listdir(path)

    def fetch(self, place: str) -> bytes:
        if re.search("https?://", place):
            return _download(place)
        with open(place, "rb") as stream:
            return _limited(stream.read(LARGEST_FETCH_BYTES + 1))


def read_settings(
    settings: Sequence[Setting], outside: ExternalAccess | None = None, *, first_counts: bool = False
) -> dict[str, Value]:
    """Returns the names that the settings define, in command-line order."""
    from shoal.formats.jx import read_context

    return read_context(settings, read_file, outside, first_counts=first_counts)


def read_file(path: str) -> bytes:
    """Returns the content of a file that the user named."""
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError as error:
        raise InputError(f"cannot read the file: {error.strerror or error}", file=path) from None


def read_file_or_input(path: str | None) -> bytes:
    """Returns the content of a file, or of standard input for None and `-`."""
    return sys.stdin.buffer.read() if path in (None, "-") else read_file(str(path))


def _download(url: str) -> bytes:
    from http.client import HTTPException
    from urllib.request import urlopen

    try:
        with urlopen(url, timeout=FETCH_SECONDS) as answer:
            return _limited(answer.read(LARGEST_FETCH_BYTES + 1))
    except (ValueError, HTTPException) as error:
        raise OSError(str(error)) from None


def _limited(content: bytes) -> bytes:
    if len(content) > LARGEST_FETCH_BYTES:
        raise OSError(f"is larger than {LARGEST_FETCH_BYTES >> 20} MiB")
    return content
