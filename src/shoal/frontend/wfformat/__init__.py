"""WfFormat, the JSON in which WfCommons records runs of workflows: reading, writing, the schema's rules (1.4 to 1.6).

A file becomes a `Trace`; `trace_graph` makes tasks of it. Running what a trace tells of is left to
`shoal.engine.replay`, exporting a run of Shoal to `shoal.engine.export`.
"""

from shoal.frontend.wfformat.describe import cores_of, describe_graph
from shoal.frontend.wfformat.graph import trace_graph
from shoal.frontend.wfformat.read import is_wfformat, read_wfformat
from shoal.frontend.wfformat.schema import DEFAULT_VERSION, VERSIONS, Problem, schema_problems
from shoal.frontend.wfformat.trace import Author, Execution, Machine, RuntimeSystem, Trace, TraceFile, TraceTask
from shoal.frontend.wfformat.write import write_wfformat

__all__ = [
    "DEFAULT_VERSION",
    "VERSIONS",
    "Author",
    "Execution",
    "Machine",
    "Problem",
    "RuntimeSystem",
    "Trace",
    "TraceFile",
    "TraceTask",
    "cores_of",
    "describe_graph",
    "is_wfformat",
    "read_wfformat",
    "schema_problems",
    "trace_graph",
    "write_wfformat",
]
