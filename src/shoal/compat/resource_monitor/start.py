"""The command line that starts the monitor, and its exit statuses. Imports no other module of Shoal."""

from __future__ import annotations

import os
import sys

OK = 0
COMMAND_FAILED = 1
OVER_LIMIT = 2
OVER_WALL_TIME = 3
MONITOR_FAILED = 4

EXHAUSTED = (OVER_LIMIT, OVER_WALL_TIME)
"""Exit statuses of a command that was killed because it exceeded its limits."""

_BOOT = """\
import os, sys
sys.path.insert(0, sys.argv.pop(1))
from shoal.compat.resource_monitor.run import main
os._exit(main(sys.argv[1:]))"""
"""Ends with `os._exit`: Python's cleanup takes milliseconds, and no output is buffered."""


def quick_start() -> list[str]:
    """Returns the command line of the monitor, which the options follow. It starts in two thirds of the time that
    `python -m shoal.monitor` takes, because it loads neither `site` nor the modules behind `-m`."""
    home = os.path.abspath(__file__)
    for _ in range(4):  # the directory that contains the package `shoal`
        home = os.path.dirname(home)
    return [sys.executable, "-S", "-E", "-c", _BOOT, home]
