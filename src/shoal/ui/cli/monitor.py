"""`shoal monitor`: runs one command, measures it, and ends it if it exceeds its limits."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from shoal.ui.cli.parser import CommandParser

SUMMARY = """Runs one command, measures its whole process tree, and writes a summary as JSON. A command that exceeds a
limit is killed. The options and the names in the summary are those of resource_monitor. The exit status is 0 if the
command succeeded, 1 if it failed, 2 if it exceeded a limit, 3 if that was its wall time, and 4 if the monitor itself
failed."""
USAGE = "[OPTION...] -- COMMAND..."
EXAMPLE = "shoal monitor -L 'memory: 4096' -O compute --with-time-series -- ./compute data"


class MonitorParser(CommandParser):
    """Passes everything after `--` to the command, including options such as --help."""

    def parse(self, words: Sequence[str]) -> argparse.Namespace | None:
        at = words.index("--") if "--" in words else len(words)
        arguments = super().parse(words[:at])
        if arguments is not None:
            arguments.command += words[at + 1 :]
        return arguments


def add_arguments(parser: CommandParser) -> None:
    from shoal.compat.resource_monitor.options import OPTIONS

    parser.__class__ = MonitorParser
    parser.add_argument("command", nargs="*", metavar="COMMAND", help="the command and its arguments, after '--'")
    for short, long, value, text in OPTIONS:
        names = [short, long] if short else [long]
        if value is None:
            parser.add_argument(*names, action="store_true", help=text)
        else:
            parser.add_argument(*names, action="append", metavar=value, default=[], help=text)


def execute(arguments: argparse.Namespace) -> int:
    """Replaces this process by a small monitor: the memory of a large one would distort the measurement."""
    import os

    from shoal.compat.resource_monitor.options import OPTIONS
    from shoal.compat.resource_monitor.start import quick_start

    words = quick_start()
    for _, long, value, _ in OPTIONS:
        given = getattr(arguments, long[2:].replace("-", "_"))
        if value is None:
            words += [long] if given else []
        else:
            words += [f"{long}={text}" for text in given]
    os.execv(words[0], [*words, "--", *arguments.command])
