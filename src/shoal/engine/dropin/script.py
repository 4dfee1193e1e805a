"""`-T dryrun`: a shell script that does what the run would do, in an order in which it can be done."""

from __future__ import annotations

import os
from itertools import islice

from shoal import __version__
from shoal.engine.dropin.dress import double_quoted
from shoal.model.graph import Graph, topological_order

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
