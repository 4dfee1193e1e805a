"""JX, the expression language of Makeflow: JSON with names, operators, functions and comprehensions.

`parse_jx` and `parse_json` read text, `evaluate` finds what it is worth, `to_json` prints that, `to_jx` prints the
expression itself, and `read_context` reads definitions given on a command line. Nothing here touches files: what
expressions may see of the world is handed in as an `Outside`. What a workflow document means is left to others.
"""

from __future__ import annotations

from shoal.formats.jx.evaluation import Setting, constant, evaluate, read_context
from shoal.formats.jx.nodes import Document
from shoal.formats.jx.parser import parse_jx
from shoal.formats.jx.printer import to_json, to_jx
from shoal.formats.jx.values import JxList, JxObject, Outside, Value

__all__ = [
    "Document",
    "JxList",
    "JxObject",
    "Outside",
    "Setting",
    "Value",
    "evaluate",
    "parse_json",
    "parse_jx",
    "read_context",
    "to_json",
    "to_jx",
]


def parse_json(text: bytes | str, source: str) -> Value:
    """Plain data, written as the original's `--json` takes it: comments, trailing commas and signs are fine.

    There, expressions are read as well and count for nothing; here they are errors.
    """
    return constant(parse_jx(text, source))
