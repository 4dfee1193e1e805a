"""Writes a Makeflow as a drawing or for other programs: Graphviz dot, JSON, PPM, Cytoscape (XGMML), Pegasus DAX.

The output has the same names, numbers and order as that of the original program: tasks and the files of each task from
the last to the first, and all files in the order of the original's hash table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from shoal.errors import InputError
from shoal.formats.makeflow.analysis import find_levels, find_makers, input_files, listing_order, parents_of
from shoal.formats.makeflow.document import DEFAULT_CATEGORY, Makeflow, MakeflowRule, leading_number

SizeOf = Callable[[str], int | None]
"""Returns the size of a file in bytes, or None if it does not exist."""


def label_of(rule: MakeflowRule) -> str:
    """Returns the first word of the command, or the name of the sub-workflow."""
    words = (rule.workflow or rule.command).split(maxsplit=1)
    return words[0] if words else ""


def own_amount(rule: MakeflowRule, variable: str) -> int:
    """Returns the amount of a resource that the rule itself declares; -1 if none."""
    return amount_of(dict(rule.variables), variable)


def amount_of(variables: dict[str, str], variable: str) -> int:
    """Returns the integer part of the number that a resource variable starts with; -1 if there is none."""
    number = leading_number(variables.get(variable, ""))
    return -1 if number is None else int(number[0])


def tasks_backwards(makeflow: Makeflow) -> Iterator[tuple[int, MakeflowRule]]:
    """Yields the tasks with their numbers, last one first."""
    for number in range(len(makeflow.rules) - 1, -1, -1):
        yield number, makeflow.rules[number]


def number_files(makeflow: Makeflow) -> dict[str, int]:
    """Returns the numbers of all files that tasks use, in the order of the original's listings."""
    numbers: dict[str, int] = {}
    for _, rule in tasks_backwards(makeflow):
        for names in (rule.inputs, rule.outputs):
            for name in reversed(names):
                numbers.setdefault(name, len(numbers))
    return {name: numbers[name] for name in listing_order(numbers)}


def escape_xml(text: str) -> str:
    """Escapes a text for an XML attribute or element; characters that XML does not allow become question marks."""
    for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("\n", "&#10;")):
        text = text.replace(character, entity)
    return "".join(each if each >= " " or each == "\t" else "?" for each in text)


NARROWEST, USUAL, WIDEST = 2.5, 5.0, 25.0


@dataclass(frozen=True, slots=True)
class DotOptions:
    """The `--dot...` options of `makeflow-viz`; attributes are passed to Graphviz unchanged."""

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
    """Yields the text of the Graphviz drawing in pieces; `size_of` is only used for proportional boxes."""
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
    """The numbers of tasks and files, and the lines of each."""

    def __init__(self, makeflow: Makeflow, options: DotOptions) -> None:
        self.makeflow = makeflow
        self.options = options
        self.file_numbers = number_files(makeflow)
        self.first_of_label: dict[str, int] = {}
        """By label: the task that represents all tasks with this label if similar tasks are merged."""
        self.counts: dict[str, int] = {}
        for number, rule in tasks_backwards(makeflow):
            label = label_of(rule)
            self.first_of_label.setdefault(label, number)
            self.counts[label] = self.counts.get(label, 0) + 1

    def opening(self, look: str, attributes: str | None, usual: str) -> str:
        style = "unfilled" if self.options.labels else "filled"
        return f"\nnode [{look}{style},{usual if attributes is None else attributes}];\n"

    def drawn_as(self, number: int, rule: MakeflowRule) -> int:
        """Returns the number of the node that represents a task."""
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
        """Yields a box around the task with its resources and with its files under their remote names."""
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
    """Escapes a text for double quotes in Graphviz."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


Value = None | bool | int | float | str | list["Value"] | dict[str, "Value"]

_RESOURCES = (
    ("gpus", "GPUS", 0),
    ("mpi-processes", "MPI_PROCESSES", 1),
    ("wall-time", "WALL_TIME", 1),
    ("memory", "MEMORY", 1),
    ("disk", "DISK", 1),
    ("cores", "CORES", 1),
)
"""Name in JSON, name of the variable, and the smallest amount that is written."""


def draw_json(makeflow: Makeflow) -> Iterator[str]:
    """Yields the JSON text in pieces."""
    names = backwards(makeflow.categories)
    yield from printed(
        {
            "default_category": makeflow.default_category,
            "categories": {name: _category(makeflow.variables.table(name)) for name in names},
            "rules": [_rule(rule) for rule in makeflow.rules],
        }
    )


def backwards(names: Iterable[str]) -> list[str]:
    """Returns names in the order in which the original prints those of an object: its hash table reversed."""
    return listing_order(names)[::-1]


def _category(variables: dict[str, str]) -> dict[str, Value]:
    described: dict[str, Value] = {}
    _describe(described, variables)
    return described


def _describe(described: dict[str, Value], variables: dict[str, str]) -> None:
    """Adds variables and resources, if there are any."""
    if variables:
        described["environment"] = {name: variables[name] for name in backwards(variables)}
    amounts = ((name, amount_of(variables, variable), least) for name, variable, least in _RESOURCES)
    resources: dict[str, Value] = {name: amount for name, amount, least in amounts if amount >= least}
    if resources:
        described["resources"] = resources


def _rule(rule: MakeflowRule) -> dict[str, Value]:
    described: dict[str, Value] = {}
    if rule.workflow:
        if rule.arguments:
            described["args"] = json.loads(rule.arguments)
        described["workflow"] = rule.workflow
    else:
        described["command"] = rule.command
    if rule.local:
        described["local_job"] = True
    remote = dict(rule.renames)
    described["inputs"] = [_file(name, remote) for name in rule.inputs]
    described["outputs"] = [_file(name, remote) for name in rule.outputs]
    _describe(described, dict(rule.variables))
    if rule.category != DEFAULT_CATEGORY:
        described["category"] = rule.category
    if rule.allocation not in ("", "first"):
        described["allocation"] = rule.allocation
    return described


def _file(name: str, remote: dict[str, str]) -> Value:
    return {"dag_name": name, "task_name": remote[name]} if name in remote else name


def printed(value: Value, level: int = 0) -> Iterator[str]:
    """Yields the value as JSON with objects and arrays on separate lines, indented by `level`."""
    margin = " " * level
    if isinstance(value, dict):
        yield f"\n{margin}{{"
        separator = "\n"
        for name, member in value.items():
            yield f"{separator}{margin}  {json.dumps(name, ensure_ascii=False)}:"
            yield from printed(member, level + 4)
            separator = ",\n"
        yield f"\n{margin}}}"
    elif isinstance(value, list):
        yield f"\n{margin}["
        separator = "\n"
        for item in value:
            yield f"{separator}{margin}  "
            yield from printed(item, level + 2)
            separator = ",\n"
        yield f"\n{margin}]"
    else:
        yield json.dumps(value, ensure_ascii=False)


WIDTH, HEIGHT, SMALLEST = 1200, 800, 5
WHITE, BLACK, CYAN, MAGENTA = b"\1\1\1", b"\0\0\0", b"\0\1\1", b"\1\0\1"

Colour = Callable[[MakeflowRule, int], bytes]
"""Returns the colour of a task on a level."""


def plain(rule: MakeflowRule, level: int) -> bytes:
    return BLACK


def by_level(rule: MakeflowRule, level: int) -> bytes:
    """Colours levels alternately red, green and blue."""
    return bytes(int(level % 3 == channel) for channel in range(3))


def highlighting_row(row: int) -> Colour:
    return lambda rule, level: CYAN if level == row else BLACK


def highlighting_file(name: str) -> Colour:
    return lambda rule, level: MAGENTA if name in rule.outputs else BLACK


def highlighting_program(program: str) -> Colour:
    return lambda rule, level: CYAN if label_of(rule) == program else BLACK


def draw_ppm(makeflow: Makeflow, colour: Colour) -> Iterator[bytes]:
    """Yields a PPM image: the header, then one piece per row of cells."""
    if not makeflow.rules:
        raise InputError("this workflow has no rules to draw", file=makeflow.source)
    level_of = find_levels(makeflow, find_makers(makeflow))
    levels: list[list[MakeflowRule]] = [[] for _ in range(max(level_of) + 1)]
    for number in map(int, listing_order(map(str, range(len(level_of))))):
        levels[level_of[number]].append(makeflow.rules[number])
    cell = max(WIDTH // max(map(len, levels)), SMALLEST)
    in_row = WIDTH // cell
    rows_of_level = [(cell * len(rules) - 1) // WIDTH + 1 for rules in levels]
    height = max(HEIGHT // sum(rows_of_level), SMALLEST)
    yield f"P6\n{in_row * cell} {height * sum(rows_of_level)}\n1\n".encode()
    for level, rules in enumerate(levels):
        for row in range(rows_of_level[level]):
            shown = rules[: min(len(rules) - row * in_row, in_row)]
            blank = (in_row - len(shown)) * cell
            cells = b"".join(colour(rule, level) * cell for rule in shown)
            yield (WHITE * (blank // 2) + cells + WHITE * (blank - blank // 2)) * height


_XGMML_NAMES = (
    'xmlns:xlink="http://www.w3.org/1999/xlink" xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" '
    'xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:cy="http://www.cytoscape.org/" '
    'xmlns="http://www.cs.rpi.edu/XGMML"'
)
_DAX = "http://pegasus.isi.edu/schema/DAX"
_DAX_NAMES = (
    f'xmlns="{_DAX}" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" '
    f'xsi:schemaLocation="{_DAX} http://pegasus.isi.edu/schema/dax-3.4.xsd" version="3.4"'
)
CYTOSCAPE_STYLE = """\
<?xml version="1.0" encoding="UTF-8" standalone="yes"?>
<vizmap documentVersion="3.0" id="VizMap-makeflow">
    <visualStyle name="makeflow">
        <network>
            <visualProperty name="NETWORK_BACKGROUND_PAINT" default="#FFFFFF"/>
        </network>
        <node>
            <visualProperty name="NODE_LABEL">
                <passthroughMapping attributeType="string" attributeName="name"/>
            </visualProperty>
            <visualProperty name="NODE_SHAPE" default="RECTANGLE">
                <discreteMapping attributeType="boolean" attributeName="process">
                    <discreteMappingEntry value="ELLIPSE" attributeValue="true"/>
                </discreteMapping>
            </visualProperty>
        </node>
        <edge>
            <visualProperty name="EDGE_TARGET_ARROW_SHAPE" default="DELTA"/>
        </edge>
    </visualStyle>
</vizmap>
"""


def _attribute(name: str, value: str, kind: str) -> str:
    return f'\t\t<att name="{name}" value="{value}" type="{kind}"/>\n'


def draw_cytoscape(makeflow: Makeflow, date: str) -> Iterator[str]:
    """Yields the network as XGMML: tasks, then files, then edges."""
    yield '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
    yield f'<graph id="1" label="{escape_xml(makeflow.source)}" directed="1" cy:documentVersion="3.0" {_XGMML_NAMES}>\n'
    yield '\t<att name="networkMetadata">\n\t\t<rdf:RDF>\n'
    yield f'\t\t\t<rdf:Description rdf:about="{escape_xml(makeflow.source)}">\n'
    yield "\t\t\t\t<dc:type>Makeflow Structure</dc:type>\n"
    yield f"\t\t\t\t<dc:date>{date}</dc:date>\n"
    yield "\t\t\t\t<dc:title>Makeflow Visualization</dc:title>\n"
    yield "\t\t\t\t<dc:format>Cytoscape-XGMML</dc:format>\n"
    yield "\t\t\t</rdf:Description>\n\t\t</rdf:RDF>\n\t</att>\n"
    file_numbers = number_files(makeflow)
    for number, rule in tasks_backwards(makeflow):
        yield from _xgmml_node(f"N{number}", label_of(rule), process=1)
    for name, number in file_numbers.items():
        yield from _xgmml_node(f"F{number}", name, process=0)
    for number, rule in tasks_backwards(makeflow):
        for name in reversed(rule.inputs):
            yield from _xgmml_edge(f"F{file_numbers[name]}", f"N{number}")
        for name in reversed(rule.outputs):
            yield from _xgmml_edge(f"N{number}", f"F{file_numbers[name]}")
    yield "</graph>\n"


def _xgmml_node(identity: str, name: str, process: int) -> Iterator[str]:
    label = escape_xml(name)
    yield f'\t<node id="{identity}" label="{label}">\n'
    yield _attribute("shared name", label, "string") + _attribute("name", label, "string")
    yield _attribute("process", str(process), "boolean") + "\t</node>\n"


def _xgmml_edge(start: str, end: str) -> Iterator[str]:
    name = f"{start}-{end}"
    yield f'\t<edge id="{name}" label="{name}" source="{start}" target="{end}" cy:directed="1">\n'
    yield _attribute("shared name", name, "string") + _attribute("shared interaction", "", "string")
    yield _attribute("name", name, "string") + _attribute("selected", "0", "boolean")
    yield _attribute("interaction", "", "string") + _attribute("weight", "8", "integer") + "\t</edge>\n"


def write_dax(makeflow: Makeflow, name: str, date: str, user: str) -> Iterator[str]:
    """Yields the abstract workflow of Pegasus: jobs with their files, then the dependencies."""
    yield '<?xml version="1.0" encoding="UTF-8"?>\n'
    yield f"<!-- generated: {date} -->\n<!-- generated by: {escape_xml(user)} -->\n<!-- generator: Makeflow -->\n"
    yield f'<adag {_DAX_NAMES} name="{escape_xml(name)}">\n'
    for number, rule in enumerate(makeflow.rules):
        yield from _dax_job(makeflow, number, rule)
    makers = find_makers(makeflow)
    for number, rule in enumerate(makeflow.rules):
        parents = sorted(set(parents_of(rule, makers)))
        if parents:
            yield f'\t<child ref="ID{number:07}">\n'
            for parent in parents:
                yield f'\t\t<parent ref="ID{parent:07}" />\n'
            yield "\t</child>\n"
    yield "</adag>\n"


def _dax_job(makeflow: Makeflow, number: int, rule: MakeflowRule) -> Iterator[str]:
    command = rule.workflow or rule.command
    if command.count(">") > 1:
        raise InputError(
            f"a DAX job can have only one redirection: {command!r}",
            file=makeflow.source,
            line=rule.line or None,
            remedy="put the command into a script",
        )
    before, _, redirection = command.partition(">")
    arguments = before.partition(" ")[2].strip(" ") if ">" in command else before.partition(" ")[2]
    yield f'\t<job id="ID{number:07}" name="{escape_xml(program_of(rule))}">\n'
    yield f"\t\t<argument>{escape_xml(arguments)}</argument>\n"
    if ">" in command:
        yield f'\t\t<stdout name="{escape_xml(redirection.strip(" "))}" link="output" />\n'
    for name in reversed(rule.inputs):
        yield f'\t\t<uses name="{escape_xml(name)}" link="input" />\n'
    for name in reversed(rule.outputs):
        yield f'\t\t<uses name="{escape_xml(name)}" link="output" register="false" transfer="true" />\n'
    yield "\t</job>\n"


def program_of(rule: MakeflowRule) -> str:
    """Returns the base name of the first word of the command."""
    return (rule.workflow or rule.command).partition(" ")[0].rpartition("/")[2]


def write_replicas(makeflow: Makeflow, absolute: Callable[[str], str]) -> Iterator[str]:
    """Yields the replica catalogue of Pegasus: the locations of the files that no task makes."""
    for name in input_files(makeflow):
        yield f'{name.rpartition("/")[2]}\tfile://{absolute(name)}\tpool="local"\n'


def write_programs(makeflow: Makeflow, place_of: Callable[[str], tuple[str, bool]], system: str) -> Iterator[str]:
    """Yields the transformation catalogue of Pegasus; `place_of` returns a program's path and whether it is
    installed."""
    for program in dict.fromkeys(map(program_of, makeflow.rules)):
        place, installed = place_of(program)
        yield f'tr {program} {{\n  site local {{\n    pfn "{place}"\n{system}'
        yield f'    type "{"INSTALLED" if installed else "STAGEABLE"}"\n  }}\n}}\n\n'
