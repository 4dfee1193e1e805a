"""`shoal jx`: evaluates a JX expression and prints its value as JSON, like `jx2json`."""

from __future__ import annotations

import argparse
import os
import sys

from shoal import __version__
from shoal.ui.cli.parser import CommandParser, SettingAction

SUMMARY = """Evaluates the JX expression in FILE, or on standard input, and prints its value as JSON."""
USAGE = "[FILE] [OPTION...]"
EXAMPLE = "shoal jx --define n=3 --pretty workflow.jx"


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("file", nargs="?", metavar="FILE", help="the expression; standard input if it is missing or -")
    parser.add_argument(
        "-a",
        "--args",
        "--jx-args",
        dest="settings",
        action=SettingAction,
        const="args",
        metavar="FILE",
        help="evaluate FILE, which contains an object, and define its keys as variables",
    )
    parser.add_argument(
        "-d",
        "--define",
        "--jx-define",
        dest="settings",
        action=SettingAction,
        const="define",
        metavar="NAME=EXPR",
        help="define one variable; later definitions may use earlier ones",
    )
    parser.add_argument(
        "-c",
        "--context",
        dest="settings",
        action=SettingAction,
        const="args",
        metavar="FILE",
        help="the same as --args",
    )
    parser.add_argument("-p", "--pretty", action="store_true", help="pretty-print the value, one item per line")
    parser.add_argument("-n", "--noeval", action="store_true", help="print the parsed expression without evaluating it")
    parser.add_argument("-v", "--version", action="store_true", help="print the version of Shoal and exit")


def execute(arguments: argparse.Namespace) -> int:
    from shoal.execution.workflow_loader import LocalFiles, read_file_or_input, read_settings
    from shoal.formats.jx import evaluate, parse_jx, to_json, to_jx

    if arguments.version:
        print(f"shoal {__version__}")
        return 0
    outside = LocalFiles()
    context = read_settings(arguments.settings or [], outside, first_counts=True)
    name = "standard input" if arguments.file in (None, "-") else arguments.file
    document = parse_jx(read_file_or_input(arguments.file), name)
    text = to_jx(document) if arguments.noeval else to_json(evaluate(document, context, outside), arguments.pretty)
    sys.stdout.flush()
    sys.stdout.buffer.write(os.fsencode(text) + b"\n")
    return 0
