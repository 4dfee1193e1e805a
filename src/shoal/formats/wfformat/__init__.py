"""WfFormat, the JSON in which WfCommons records runs of workflows: reading, writing, the schema's rules (1.4 to 1.6).

A file becomes a `WorkflowTrace`; `trace_graph` makes tasks of it. Running what a trace tells of is left to
`shoal.execution.replay`, exporting a run of Shoal to `shoal.execution.conversion`.
"""

from shoal.formats.wfformat.reader import is_wfformat, read_wfformat
from shoal.formats.wfformat.schema import DEFAULT_VERSION, VERSIONS, Problem, schema_problems
from shoal.formats.wfformat.trace import (
    Author,
    Execution,
    TraceFile,
    TraceMachine,
    TraceRuntimeSystem,
    TraceTask,
    WorkflowTrace,
    trace_graph,
)
from shoal.formats.wfformat.writer import cores_of, describe_graph, write_wfformat

__all__ = [
    "DEFAULT_VERSION",
    "VERSIONS",
    "Author",
    "Execution",
    "Problem",
    "TraceFile",
    "TraceMachine",
    "TraceRuntimeSystem",
    "TraceTask",
    "WorkflowTrace",
    "cores_of",
    "describe_graph",
    "is_wfformat",
    "read_wfformat",
    "schema_problems",
    "trace_graph",
    "write_wfformat",
]
