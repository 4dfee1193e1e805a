"""`shoal graph`: writes the task graph of a workflow for Graphviz, browsers or programs."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shoal.errors import InputError, RunError
from shoal.ui.cli.parser import CommandParser, add_workflow, split_words

if TYPE_CHECKING:
    from shoal.core.graph import Graph
    from shoal.petri import Net


SUMMARY = """Draws the tasks that the targets need. The formats are dot (for Graphviz), svg (through Graphviz's 'dot')
and json. For large graphs use --by category: one box for all tasks of a category. A net is drawn with its places and
transitions."""
USAGE = "[FILE] [TARGET... NAME=VALUE...] [OPTION...]"
EXAMPLE = "shoal graph flow.py all --format svg --output flow.svg"
LARGE = 2000


def add_arguments(parser: CommandParser) -> None:
    add_workflow(parser)
    parser.add_argument("--format", choices=("dot", "svg", "json"), default="dot", help="what to write (default: dot)")
    parser.add_argument("--by", choices=("task", "category"), default="task", help="one box per task, or per category")
    parser.add_argument("-o", "--output", metavar="OUT", help="the file to write (default: standard output)")


def execute(arguments: argparse.Namespace) -> int:
    import json

    from shoal.core.graph import ancestors
    from shoal.execution.rules_loader import NetFoundError
    from shoal.execution.session import enter, load
    from shoal.execution.workflow_loader import find_workflow
    from shoal.ledger.workspace import Workspace
    from shoal.ui.cli.workflow_places import STANDARD_OUTPUT, check_destination, write_to

    named, words = split_words(arguments.words, arguments.workflow)
    path = find_workflow(named)
    target = STANDARD_OUTPUT if arguments.output is None else arguments.output
    check_destination(target, "-o", Workspace(path))
    if target != STANDARD_OUTPUT:
        target = os.path.abspath(target)
    try:
        workflow = load(enter(path), words)
    except NetFoundError as found:
        write_to(target, _drawn_net(found.net, arguments), f"cannot write {arguments.output!r}")
        return 0
    graph = workflow.graph
    marks = ancestors(graph, workflow.targets)
    wanted = [task for task in range(len(graph)) if marks[task]]
    if len(wanted) > LARGE and arguments.by == "task" and arguments.format != "json":
        print(f"shoal: {len(wanted):,} tasks give a large drawing; try --by category", file=sys.stderr)
    drawing = by_category(graph, wanted) if arguments.by == "category" else by_task(graph, wanted)
    if arguments.format == "json":
        data = json.dumps(as_data(drawing)).encode() + b"\n"
    else:
        data = to_dot(drawing).encode("utf-8", "replace")
        if arguments.format == "svg":
            data = _render(data)
    write_to(target, data, f"cannot write {arguments.output!r}")
    return 0


def _drawn_net(net: Net, arguments: argparse.Namespace) -> bytes:
    """Draws places and transitions with the initial tokens."""
    import msgspec

    if arguments.by == "category":
        raise InputError(f"--by does not apply to the net {net.name!r}", remedy="leave out --by")
    if arguments.format == "json":
        return msgspec.json.encode(net.describe()) + b"\n"
    drawn = net.dot().encode("utf-8", "replace")
    return _render(drawn) if arguments.format == "svg" else drawn


def _render(dot: bytes) -> bytes:
    import subprocess

    try:
        done = subprocess.run(["dot", "-Tsvg"], input=dot, capture_output=True, check=False)
    except FileNotFoundError:
        raise InputError(
            "svg needs the program 'dot' of graphviz, which is not installed",
            remedy="install graphviz, or use --format dot",
        ) from None
    if done.returncode:
        complaint = done.stderr.decode("utf-8", "replace").strip() or f"exit status {done.returncode}"
        raise RunError(f"graphviz could not draw the graph: {complaint}")
    return done.stdout


_PALETTE = ("#cfe3f5", "#d8efd3", "#fbe3c0", "#f3d3d9", "#e2d8f0", "#d3ecec", "#efe9c4", "#e3e3e3")


@dataclass(slots=True)  # not a msgspec struct, because '--help' must not load msgspec
class GraphBox:
    """A task, or all tasks of a category."""

    name: str
    category: str
    tasks: int = 1
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    action: str = ""


@dataclass(slots=True)
class GraphDrawing:
    """Boxes, and arrows between them: pairs of box positions with the number of dependencies each stands for."""

    source: str
    boxes: list[GraphBox]
    arrows: dict[tuple[int, int], int]


def by_task(graph: Graph, wanted: Sequence[int]) -> GraphDrawing:
    """One box per wanted task. All dependencies of a wanted task must be wanted, too."""
    from shoal.core.task import Call

    position = {task: at for at, task in enumerate(wanted)}
    boxes = []
    arrows: Counter[tuple[int, int]] = Counter()
    for task in wanted:
        action = graph.actions[task]
        shown = f"{action.function.__name__}()" if isinstance(action, Call) else action or ""
        boxes.append(
            GraphBox(
                graph.names[task],
                graph.profile_of(task).category,
                1,
                graph.input_names(task),
                graph.output_names(task),
                shown,
            )
        )
        for other in graph.predecessors_of(task):
            arrows[position[other], position[task]] += 1
    return GraphDrawing(graph.source, boxes, dict(arrows))


def by_category(graph: Graph, wanted: Sequence[int]) -> GraphDrawing:
    """One box per category, in order of first appearance."""
    position: dict[str, int] = {}
    boxes: list[GraphBox] = []
    for task in wanted:
        category = graph.profile_of(task).category
        if category not in position:
            position[category] = len(boxes)
            boxes.append(GraphBox(category, category, 0))
        boxes[position[category]].tasks += 1
    arrows: Counter[tuple[int, int]] = Counter()
    for task in wanted:
        end = position[graph.profile_of(task).category]
        for other in graph.predecessors_of(task):
            arrows[position[graph.profile_of(other).category], end] += 1
    return GraphDrawing(graph.source, boxes, dict(arrows))


def to_dot(drawing: GraphDrawing) -> str:
    """The drawing in Graphviz's language, coloured by category."""
    colours: dict[str, str] = {}
    lines = [
        f"digraph {_quoted(drawing.source)} {{",
        "  rankdir=LR;",
        '  node [shape=box, style="rounded,filled", fontname="Helvetica", fontsize=10];',
    ]
    for number, box in enumerate(drawing.boxes):
        colour = colours.setdefault(box.category, _PALETTE[len(colours) % len(_PALETTE)])
        label = box.name if box.tasks == 1 else f"{box.name}\n{box.tasks:,} tasks"
        lines.append(f"  t{number} [label={_quoted(label)}, fillcolor={_quoted(colour)}];")
    for (begin, end), times in drawing.arrows.items():
        collapsed = drawing.boxes[begin].tasks > 1 or drawing.boxes[end].tasks > 1
        label = f" [label={_quoted(f'{times:,}')}]" if collapsed else ""
        lines.append(f"  t{begin} -> t{end}{label};")
    return "\n".join([*lines, "}", ""])


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def as_data(drawing: GraphDrawing) -> dict[str, Any]:
    """The drawing as data: every box with the positions of its dependencies."""
    needs: list[list[int]] = [[] for _ in drawing.boxes]
    for begin, end in drawing.arrows:
        needs[end].append(begin)
    return {
        "workflow": drawing.source,
        "tasks": [
            {
                "name": box.name,
                "category": box.category,
                "tasks": box.tasks,
                "needs": [drawing.boxes[other].name for other in needs[number]],
                "inputs": box.inputs,
                "outputs": box.outputs,
                "action": box.action,
            }
            for number, box in enumerate(drawing.boxes)
        ],
    }
