"""The classic Makeflow language: text in, a parsed `Makeflow` out, and from that a graph.

`parse_makeflow` reads the whole language and touches no file; `build_graph` turns the result into tasks for this
machine. Sub-workflows are kept by name only: opening them is the caller's business. JX and JSON are other languages
with another front end.
"""

from shoal.formats.makeflow.document import AllocationMode, Makeflow, MakeflowCategory, MakeflowRule
from shoal.formats.makeflow.graphs import build_graph, subworkflow_command
from shoal.formats.makeflow.parser import parse_makeflow

__all__ = [
    "AllocationMode",
    "Makeflow",
    "MakeflowCategory",
    "MakeflowRule",
    "build_graph",
    "parse_makeflow",
    "subworkflow_command",
]
