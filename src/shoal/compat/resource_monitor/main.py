"""The monitor as a program: turns what goes wrong into one sentence and the exit status that says so."""

from __future__ import annotations

import os

from shoal.compat.resource_monitor.options import MonitorOptions, parse
from shoal.compat.resource_monitor.run import measure
from shoal.compat.resource_monitor.start import MONITOR_FAILED
from shoal.errors import InputError


def main(words: list[str]) -> int:
    """Reads a command line, measures the command, and returns the exit status."""
    try:
        options = parse(words)
    except InputError as error:
        return complain(str(error))
    return attempt(options)


def attempt(options: MonitorOptions) -> int:
    """Measures; what the monitor itself cannot do becomes a sentence."""
    try:
        return measure(options)
    except InputError as error:
        return complain(str(error))
    except KeyboardInterrupt:
        return complain("interrupted before the command was started")
    except OSError as error:
        where = f"{error.filename!r}: " if error.filename is not None else ""
        return complain(f"{where}{error.strerror or error}")


def complain(sentence: str) -> int:
    try:
        os.write(2, f"shoal monitor: {sentence}\n".encode("utf-8", "surrogateescape"))
    except OSError:
        pass  # nobody is there to read it; the exit status says it, too
    return MONITOR_FAILED
