"""JX, the expression language of Makeflow: JSON with names, operators, functions and comprehensions.

`parse_jx` and `parse_json` read text, `evaluate` computes the value, `to_json` prints a value, `to_jx` prints an
expression, and `read_context` reads definitions from a command line. Nothing here touches files: expressions reach
files and URLs only through an `ExternalAccess`. `shoal.formats.makeflow.json_form` interprets the value as a workflow.
"""

from __future__ import annotations

from shoal.formats.jx.evaluation import Setting, constant, evaluate, read_context
from shoal.formats.jx.nodes import Document
from shoal.formats.jx.parser import parse_jx
from shoal.formats.jx.printer import to_json, to_jx
from shoal.formats.jx.values import ExternalAccess, JxList, JxObject, Value

__all__ = [
    "Document",
    "ExternalAccess",
    "JxList",
    "JxObject",
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
    """Reads plain data in the form that `makeflow --json` accepts, with comments, trailing commas and signs.

    The original reads expressions, too, and ignores them; here they are errors.
    """
    return constant(parse_jx(text, source))
