"""`shoal makeflow-viz`: draws a Makeflow in the formats of the original program."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from shoal.errors import InputError
from shoal.ui.cli.makeflow_analyze import (
    DEFAULT_FILE,
    add_language,
    named_file,
    print_version,
    read_document,
    with_line_shown,
)
from shoal.ui.cli.parser import CommandParser

if TYPE_CHECKING:
    from shoal.formats.makeflow.document import Makeflow
    from shoal.formats.makeflow.drawings import Colour

SUMMARY = """Draws a Makeflow (or a workflow in JSON or JX) on standard output. The formats are dot (for Graphviz),
json, cyto (for Cytoscape; also writes ./style.xml), ppm (a picture) and dax (for Pegasus; writes FILE.dax, FILE.rc and
FILE.tc here). The default file is ./Makeflow."""
USAGE = "[OPTION...] [FILE]"
EXAMPLE = "shoal makeflow-viz -D dot example.makeflow | dot -T svg > example.svg"
FORMATS = ("dot", "ppm", "cyto", "dax", "json")


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("file", nargs="*", metavar="FILE", help=f"the workflow (default: {DEFAULT_FILE})")
    parser.add_argument(
        "-D",
        "--display",
        "--display-mode",
        dest="format",
        type=str.lower,
        choices=FORMATS,
        default="dot",
        metavar="FORMAT",
        help=f"one of {', '.join(FORMATS)} (default: dot)",
    )
    parser.add_argument("--export-as-dax", dest="format", action="store_const", const="dax", help=argparse.SUPPRESS)
    parser.add_argument("-v", "--version", action="store_true", help="print the version")
    _add_dot_options(parser)
    _add_ppm_options(parser)
    add_language(parser)


class _ImplyFormat(argparse.Action):
    """Stores the option's value or constant, and selects the format to which the option belongs."""

    def __init__(self, option_strings: list[str], dest: str, implied: str, **keywords: object) -> None:
        super().__init__(option_strings, dest, **keywords)  # type: ignore[arg-type]  # argparse's own keywords, passed on
        self.implied = implied

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        namespace.format = self.implied
        setattr(namespace, self.dest, self.const if self.nargs == 0 else (option_string, values))


def _add_dot_options(parser: CommandParser) -> None:
    for name, what in (
        ("--dot-merge-similar", "draw tasks of the same program as one"),
        ("--dot-proportional", "draw files in proportion to their sizes"),
    ):
        parser.add_argument(name, action=_ImplyFormat, implied="dot", nargs=0, const=True, default=False, help=what)
    parser.add_argument("--dot-labels", action="store_true", default=True, help=argparse.SUPPRESS)
    parser.add_argument("--dot-no-labels", dest="dot_labels", action="store_false", help="draw shapes without text")
    parser.add_argument("--dot-details", action="store_true", help="draw requested and measured resources of tasks")
    parser.add_argument("--dot-no-details", dest="dot_details", action="store_false", help=argparse.SUPPRESS)
    parser.add_argument("--dot-task-id", action="store_true", help="label tasks with their numbers")
    for kind in ("graph", "node", "edge", "task", "file"):
        parser.add_argument(f"--dot-{kind}-attr", metavar="ATTR", help=f"Graphviz attributes of every {kind}")


def _add_ppm_options(parser: CommandParser) -> None:
    for name, metavar, what in (
        ("--ppm-highlight-row", "ROW", "highlight a level"),
        ("--ppm-highlight-file", "NAME", "highlight the task that makes a file"),
        ("--ppm-highlight-exe", "PROGRAM", "highlight the tasks that run a program"),
    ):
        parser.add_argument(name, dest="ppm", action=_ImplyFormat, implied="ppm", metavar=metavar, help=what)
    parser.add_argument(
        "--ppm-show-levels",
        dest="ppm",
        action=_ImplyFormat,
        implied="ppm",
        nargs=0,
        const=("--ppm-show-levels", ""),
        help="colour each level differently",
    )


def execute(arguments: argparse.Namespace) -> int:
    if arguments.version:
        print_version("makeflow-viz")
        return 0
    path = named_file(arguments.file)
    makeflow = read_document(path, arguments)
    try:
        _draw(makeflow, path, arguments)
    except InputError as error:
        raise with_line_shown(error, path) from None
    return 0


def _draw(makeflow: Makeflow, path: str, arguments: argparse.Namespace) -> None:
    from shoal.formats.makeflow.analysis import find_makers

    find_makers(makeflow)
    if arguments.format == "json":
        from shoal.formats.makeflow.drawings import draw_json

        sys.stdout.writelines(draw_json(makeflow))
    elif arguments.format == "cyto":
        _draw_cytoscape(makeflow)
    elif arguments.format == "dax":
        _write_dax(makeflow, os.path.basename(path))
    elif arguments.format == "ppm":
        from shoal.formats.makeflow.drawings import draw_ppm

        sys.stdout.flush()
        sys.stdout.buffer.writelines(draw_ppm(makeflow, _colour(arguments.ppm)))
    else:
        _draw_dot(makeflow, arguments)


def _draw_dot(makeflow: Makeflow, arguments: argparse.Namespace) -> None:
    from shoal.formats.makeflow.drawings import DotOptions, draw_dot

    options = DotOptions(
        merge_similar=arguments.dot_merge_similar,
        proportional=arguments.dot_proportional,
        labels=arguments.dot_labels,
        details=arguments.dot_details,
        task_numbers=arguments.dot_task_id,
        graph_attributes=arguments.dot_graph_attr,
        node_attributes=arguments.dot_node_attr,
        edge_attributes=arguments.dot_edge_attr,
        task_attributes=arguments.dot_task_attr,
        file_attributes=arguments.dot_file_attr,
    )
    sys.stdout.writelines(draw_dot(makeflow, options, _size_of))


def _size_of(name: str) -> int | None:
    try:
        return os.stat(name).st_size
    except OSError:
        return None


def _colour(option: tuple[str, str] | None) -> Colour:
    from shoal.formats.makeflow import drawings

    name, value = option or ("", "")
    if name == "--ppm-highlight-row":
        try:
            return drawings.highlighting_row(int(value))
        except ValueError:
            raise InputError(f"{name} needs a level number, not {value!r}") from None
    if name == "--ppm-highlight-file":
        return drawings.highlighting_file(value)
    if name == "--ppm-highlight-exe":
        return drawings.highlighting_program(value)
    return drawings.by_level if name else drawings.plain


def _draw_cytoscape(makeflow: Makeflow) -> None:
    import time

    from shoal.formats.makeflow.drawings import CYTOSCAPE_STYLE, draw_cytoscape

    sys.stdout.writelines(draw_cytoscape(makeflow, time.strftime("%Y-%m-%d %H:%M:%S")))
    _write_text("style.xml", [CYTOSCAPE_STYLE])


def _write_dax(makeflow: Makeflow, name: str) -> None:
    import getpass
    import shutil
    import time

    from shoal.formats.makeflow.drawings import write_dax, write_programs, write_replicas

    def place_of(program: str) -> tuple[str, bool]:
        found = shutil.which(program)
        return (found, True) if found else (os.path.abspath(program), False)

    machine = os.uname()
    system = f'    arch "{machine.machine}"\n    os "{machine.sysname}"\n'
    _write_text(f"{name}.dax", list(write_dax(makeflow, name, time.strftime("%Y-%m-%d %H:%M:%S"), getpass.getuser())))
    _write_text(f"{name}.rc", write_replicas(makeflow, os.path.realpath))
    _write_text(f"{name}.tc", write_programs(makeflow, place_of, system))
    print("To plan your workflow try:")
    print(f"\tpegasus-plan -Dpegasus.catalog.replica.file={name}.rc \\")
    print(f"\t             -Dpegasus.catalog.transformation.file={name}.tc \\")
    print(f"\t             -d {name}.dax\n")


def _write_text(path: str, pieces: Iterable[str]) -> None:
    with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.writelines(pieces)
