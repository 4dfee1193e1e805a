"""`shoal makeflow-analyze`: checks and describes a Makeflow without running it, as the original program does."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from shoal import __version__
from shoal.errors import InputError
from shoal.formats.source_text import show
from shoal.ui.cli.parser import CommandParser, add_settings

if TYPE_CHECKING:
    from shoal.formats.makeflow.document import Makeflow

SUMMARY = """Checks a Makeflow (or a workflow in JSON or JX) and describes it, without running anything. Without an
option it is only parsed. The default file is ./Makeflow."""
USAGE = "[OPTION...] [FILE]"
EXAMPLE = "shoal makeflow-analyze -k example.makeflow"
DEFAULT_FILE = "./Makeflow"


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("file", nargs="*", metavar="FILE", help=f"the workflow (default: {DEFAULT_FILE})")
    parser.add_argument("-k", "--syntax-check", action="store_true", help="check the syntax, and the rules for cycles")
    for letter, name, what in (
        ("-i", "--analyze-exec", "print the number of tasks, the depth and the widths"),
        ("-I", "--show-input", "print the files that no rule makes"),
        ("-O", "--show-output", "print the files that rules make"),
    ):
        parser.add_argument(letter, name, dest="show", action="store_const", const=name, help=what)
    parser.add_argument("-b", "--bundle-dir", metavar="DIR", help="write a copy of the workflow and its files to DIR")
    parser.add_argument("-v", "--version", action="store_true", help="print the version")
    add_language(parser)


def add_language(parser: CommandParser) -> None:
    """Adds the options that select the language of the workflow."""
    parser.add_argument("--json", action="store_true", help="the workflow is written in JSON")
    parser.add_argument("--jx", action="store_true", help="the workflow is written in JX")
    add_settings(parser)
    parser.add_argument("-d", "--debug", metavar="SYSTEM", help=argparse.SUPPRESS)


def execute(arguments: argparse.Namespace) -> int:
    if arguments.version:
        print_version("makeflow-analyze")
        return 0
    path = named_file(arguments.file)
    makeflow = read_document(path, arguments)
    try:
        return _analyze(makeflow, path, arguments)
    except InputError as error:
        raise with_line_shown(error, path) from None


def _analyze(makeflow: Makeflow, path: str, arguments: argparse.Namespace) -> int:
    from shoal.formats.makeflow.analysis import check_rules, find_makers, input_files, measure, output_files

    if arguments.syntax_check:
        check_rules(makeflow)
        print(f"{path}: Syntax OK.")
    elif arguments.bundle_dir is not None:
        _write_bundle(makeflow, path, arguments.bundle_dir)
    elif arguments.show == "--analyze-exec":
        extent = measure(makeflow)
        print(f"num_of_tasks\t{extent.tasks}")
        print(f"depth\t{extent.depth}")
        print(f"width_uniform_task\t{extent.uniform_width}")
        print(f"width_guaranteed_max\t{extent.guaranteed_width}")
    elif arguments.show == "--show-input":
        print_lines(input_files(makeflow))
    elif arguments.show == "--show-output":
        print_lines(output_files(makeflow))
    else:
        find_makers(makeflow)
    return 0


def print_lines(lines: Iterable[str]) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)


def print_version(command: str) -> None:
    print(f"shoal {command} version {__version__}")


def named_file(words: Sequence[str]) -> str:
    """Returns the workflow named on the command line, or the default file if it exists."""
    if len(words) > 1:
        raise InputError(f"only one workflow file is accepted, not {words[0]!r} and {words[1]!r}")
    if words:
        return words[0]
    if not os.access(DEFAULT_FILE, os.R_OK):
        raise InputError(f'no workflow is named and "{DEFAULT_FILE}" is not there', remedy="name the file")
    return DEFAULT_FILE


def read_document(path: str, arguments: argparse.Namespace) -> Makeflow:
    """Reads the workflow in the language that the options select."""
    import gc

    from shoal.execution.workflow_loader import Language, load_document

    # This short process keeps nearly all objects it creates; garbage collection would take longer than the parsing.
    gc.disable()
    uses_jx = arguments.jx or arguments.jx_settings
    language: Language = "jx" if uses_jx else "json" if arguments.json else "makeflow"
    return load_document(path, language=language, jx=arguments.jx_settings)


def with_line_shown(error: InputError, path: str) -> InputError:
    """Adds the offending source line to the error, with a caret below the first name that the error mentions."""
    if error.line is None or error.text is not None:
        return error
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            line = next(islice(file, error.line - 1, None), "").rstrip("\r\n")
    except OSError:
        return error
    quoted = re.search(r"'([^']+)'", error.message)
    column = line.find(quoted[1]) + 1 if quoted else 0
    return InputError(
        error.message, file=error.file, line=error.line, column=max(column, 1), remedy=error.remedy, text=show(line)
    )


def _write_bundle(makeflow: Makeflow, path: str, directory: str) -> None:
    """Writes the workflow with its files into a directory, and prints the new name of each file."""
    import shutil

    from shoal.formats.makeflow.analysis import bundle_names, input_files, rename_files
    from shoal.formats.makeflow.writer import write_makeflow

    names, inputs = bundle_names(makeflow), frozenset(input_files(makeflow))
    os.makedirs(directory, exist_ok=True)
    for here, there in names.items():
        target = os.path.join(directory, there)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.isdir(here):
            try:
                shutil.copytree(here, target, dirs_exist_ok=True)
            except RecursionError:
                raise InputError(f"{here!r} is nested too deeply to be copied") from None
        elif os.path.isfile(here):
            shutil.copy2(here, target)
    text = write_makeflow(rename_files(makeflow, names))
    with open(os.path.join(directory, os.path.basename(path)), "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    print_lines(f"{here}\t{there}" for here, there in names.items() if here in inputs)
