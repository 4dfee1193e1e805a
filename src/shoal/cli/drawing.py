"""A graph as boxes and arrows, one box per task or per category, and its text for graphviz. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from shoal.model.graph import Graph
from shoal.model.task import Call

_PALETTE = ("#cfe3f5", "#d8efd3", "#fbe3c0", "#f3d3d9", "#e2d8f0", "#d3ecec", "#efe9c4", "#e3e3e3")


class Box(msgspec.Struct):
    """A task, or all tasks of a category."""

    name: str
    category: str
    tasks: int = 1
    inputs: list[str] = []
    outputs: list[str] = []
    action: str = ""


class Drawing(msgspec.Struct):
    """Boxes, and arrows between them as pairs of positions with how many dependencies each stands for."""

    source: str
    boxes: list[Box]
    arrows: dict[tuple[int, int], int]


def by_task(graph: Graph, wanted: Sequence[int]) -> Drawing:
    """One box per wanted task; all that a wanted task needs must be wanted, too."""
    position = {task: at for at, task in enumerate(wanted)}
    boxes = []
    arrows: Counter[tuple[int, int]] = Counter()
    for task in wanted:
        action = graph.actions[task]
        shown = f"{action.function.__name__}()" if isinstance(action, Call) else action or ""
        boxes.append(
            Box(
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
    return Drawing(graph.source, boxes, dict(arrows))


def by_category(graph: Graph, wanted: Sequence[int]) -> Drawing:
    """One box per category, in the order in which they appear."""
    position: dict[str, int] = {}
    boxes: list[Box] = []
    for task in wanted:
        category = graph.profile_of(task).category
        if category not in position:
            position[category] = len(boxes)
            boxes.append(Box(category, category, 0))
        boxes[position[category]].tasks += 1
    arrows: Counter[tuple[int, int]] = Counter()
    for task in wanted:
        end = position[graph.profile_of(task).category]
        for other in graph.predecessors_of(task):
            arrows[position[graph.profile_of(other).category], end] += 1
    return Drawing(graph.source, boxes, dict(arrows))


def to_dot(drawing: Drawing) -> str:
    """The drawing in graphviz's language, coloured by category."""
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


def as_data(drawing: Drawing) -> dict[str, Any]:
    """The drawing for programs: every box with the positions of those it needs."""
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
