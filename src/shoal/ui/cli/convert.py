"""`shoal convert`: converts a workflow from one workflow language to another."""

from __future__ import annotations

import argparse
import os

from shoal.ui.cli.parser import CommandParser, add_settings

SUMMARY = """Converts a workflow to another language: makeflow, json (as 'makeflow --json' reads it), wfformat (with
the measurements of its latest run) or rules (Python). The language of FILE is detected from its content. A feature that
the new language lacks is an error that names the task; docs/json.md lists what is left out."""
USAGE = "FILE [NAME=VALUE...] --to makeflow|json|wfformat|rules [-o OUT]"
EXAMPLE = "shoal convert Makeflow --to json -o workflow.json"
FORMATS = ("makeflow", "json", "wfformat", "rules")


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the workflow")
    parser.add_argument("words", nargs="*", metavar="WORD", help="name=value parameters; targets of a rules file")
    parser.add_argument("--to", choices=FORMATS, required=True, help="the language to write")
    parser.add_argument("-o", "--output", metavar="OUT", help="the file to write (default: standard output)")
    add_settings(parser)


def execute(arguments: argparse.Namespace) -> int:
    from shoal.execution.conversion import convert
    from shoal.execution.workflow_loader import find_workflow
    from shoal.ledger.workspace import Workspace
    from shoal.ui.cli.workflow_places import STANDARD_OUTPUT, check_destination, write_to

    path = find_workflow(arguments.file)
    target = STANDARD_OUTPUT if arguments.output is None else arguments.output
    check_destination(target, "-o", Workspace(path), with_files=False)
    if target != STANDARD_OUTPUT:
        target = os.path.abspath(target)
    data = convert(path, arguments.words, arguments.to, jx=arguments.jx_settings)
    write_to(target, data, f"cannot write {arguments.output!r}")
    return 0
