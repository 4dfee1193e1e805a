"""A Makeflow as a drawing for Graphviz: ellipses for tasks, boxes for files.

Names are quoted, which the original forgets, so Graphviz accepts every drawing. Boxes are really drawn in proportion to
the files' sizes when that is asked for; the original divides by zero and draws them all alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shoal.frontend.makeflow.document import Makeflow, MakeflowRule
from shoal.frontend.makeflow.drawing import SizeOf, label_of, number_files, own_amount, tasks_backwards

NARROWEST, USUAL, WIDEST = 2.5, 5.0, 25.0


@dataclass(frozen=True, slots=True)
class DotOptions:
    """The options of `makeflow-viz` that begin with `--dot`; attributes are handed on to Graphviz as they are."""

    merge_similar: bool = False
    proportional: bool = False
    labels: bool = True
    details: bool = False
    task_numbers: bool = False
    graph_attributes: str | None = None
    node_attributes: str | None = None
    edge_attributes: str | None = None
    task_attributes: str | None = None
    file_attributes: str | None = None


def draw_dot(makeflow: Makeflow, options: DotOptions, size_of: SizeOf) -> Iterator[str]:
    """The pieces of the drawing's text; `size_of` is asked only for proportional boxes."""
    drawing = _DotDrawing(makeflow, options)
    yield "digraph {\n"
    for kind in ("graph", "node", "edge"):
        attributes = getattr(options, f"{kind}_attributes")
        if attributes is not None:
            yield f"{kind} [{attributes}]\n"
    yield drawing.opening("shape=ellipse,color = green,style = ", options.task_attributes, "fixedsize = false")
    yield from drawing.tasks()
    yield drawing.opening("shape=box,color=blue,style=", options.file_attributes, "fixedsize=false")
    yield from drawing.files(size_of)
    yield "\n"
    yield from drawing.edges()
    yield "}\n"


class _DotDrawing:
    """The numbers of tasks and files, and what is written of each."""

    def __init__(self, makeflow: Makeflow, options: DotOptions) -> None:
        self.makeflow = makeflow
        self.options = options
        self.file_numbers = number_files(makeflow)
        self.first_of_label: dict[str, int] = {}
        """For each label the task that stands for all tasks with it when similar ones are merged."""
        self.counts: dict[str, int] = {}
        for number, rule in tasks_backwards(makeflow):
            label = label_of(rule)
            self.first_of_label.setdefault(label, number)
            self.counts[label] = self.counts.get(label, 0) + 1

    def opening(self, look: str, attributes: str | None, usual: str) -> str:
        style = "unfilled" if self.options.labels else "filled"
        return f"\nnode [{look}{style},{usual if attributes is None else attributes}];\n"

    def drawn_as(self, number: int, rule: MakeflowRule) -> int:
        """The number of the ellipse that stands for a task."""
        return self.first_of_label[label_of(rule)] if self.options.merge_similar else number

    def tasks(self) -> Iterator[str]:
        for number, rule in tasks_backwards(self.makeflow):
            if self.drawn_as(number, rule) != number:
                continue
            if self.options.details:
                yield from self._details(number, rule)
            yield f'N{number} [label="{self._task_label(number, rule)}"];\n'
            if self.options.details:
                yield "}\n"

    def _task_label(self, number: int, rule: MakeflowRule) -> str:
        label = label_of(rule)
        count = self.counts[label]
        shown = "" if not self.options.labels else str(number) if self.options.task_numbers else quoted(label)
        return f"{shown} x{count}" if self.options.merge_similar and count > 1 else shown

    def _details(self, number: int, rule: MakeflowRule) -> Iterator[str]:
        """A frame around the task with what it asks for and with the files as the task sees them."""
        yield f"subgraph cluster_S{number} {{ \n\tstyle=unfilled;\n\tcolor=red\n"
        for name, shown in (
            ("cores", f"cores: {own_amount(rule, 'CORES')}.000"),
            ("gpus", f"gpus: {own_amount(rule, 'GPUS')}"),
            ("resMem", f"memory: {own_amount(rule, 'MEMORY')} MB"),
            ("workDirFtprnt", f"footprint: {own_amount(rule, 'DISK')} MB"),
        ):
            yield f'\t{name}{number} [style=filled, color=white, label="{shown}"]\n'
        yield f"\tcores{number} -> resMem{number} -> workDirFtprnt{number} [color=white]\n"
        for name in reversed(rule.inputs):
            inner = f"src_{number}_{self.file_numbers[name]}"
            yield f'\t{inner} [label="{quoted(name)}", style=unfilled, color=purple, shape=box];\n'
            yield f"\t{inner} -> N{number};\n"
        for name in reversed(rule.outputs):
            inner = f"tar_{number}_{self.file_numbers[name]}"
            yield f'\t{inner} [label="{quoted(name)}", style=dotted, color=purple, shape=box];\n'
            yield f"\tN{number} -> {inner};\n"

    def files(self, size_of: SizeOf) -> Iterator[str]:
        sizes: dict[str, int] = {}
        if self.options.proportional:
            sizes = {name: size for name in self.file_numbers if (size := size_of(name)) is not None}
        average = sum(sizes.values()) / len(sizes) if sizes else 0.0
        for name, number in self.file_numbers.items():
            label = f'F{number} [label = "{quoted(name) if self.options.labels else ""}'
            if not self.options.proportional:
                yield f'{label}"];\n'
            elif name not in sizes:
                yield f'{label}", fixedsize = false, style = unfilled, ];\n'
            else:
                width = USUAL * sizes[name] / average if average else USUAL
                width = min(max(width, NARROWEST), WIDEST)
                yield (
                    f'{label}\\nsize:{sizes[name] / 1024:.0f}kb", style=filled, fillcolor=skyblue1, '
                    f"fixedsize=true, width={width:f}, height=0.75];\n"
                )

    def edges(self) -> Iterator[str]:
        for number, rule in tasks_backwards(self.makeflow):
            task = self.drawn_as(number, rule)
            for name in reversed(rule.inputs):
                file = self.file_numbers[name]
                yield f"F{file} -> src_{task}_{file};\n" if self.options.details else f"F{file} -> N{task};\n"
            for name in reversed(rule.outputs):
                file = self.file_numbers[name]
                yield f"tar_{task}_{file} -> F{file};\n" if self.options.details else f"N{task} -> F{file};\n"


def quoted(text: str) -> str:
    """Text as it must stand between double quotes for Graphviz to show it as it is."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
