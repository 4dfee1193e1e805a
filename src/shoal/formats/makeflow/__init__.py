"""The Makeflow language: parser, document, graph, writers and drawings.

`parse_makeflow` parses a Makeflow without touching any other file; `build_graph` turns the resulting `Makeflow`
document into a graph of tasks. Sub-workflows are kept by name only; the caller opens them. `json_form` reads and writes
the same document as JSON or JX.
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
