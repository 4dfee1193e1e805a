"""WfFormat, the JSON format of WfCommons for workflow traces: reader, writer and schema (1.4 to 1.6).

`read_wfformat` returns a `WorkflowTrace`; `trace_graph` converts it to a graph. `shoal.execution.replay` replays
traces, `shoal.execution.conversion` exports runs of Shoal.
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
