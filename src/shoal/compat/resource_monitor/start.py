"""How others start the monitor, and what its exit status means. Imports nothing of the rest."""

from __future__ import annotations

import os
import sys

OK = 0
COMMAND_FAILED = 1
OVER_LIMIT = 2
OVER_WALL_TIME = 3
MONITOR_FAILED = 4

EXHAUSTED = (OVER_LIMIT, OVER_WALL_TIME)
"""The command was ended, because it needed more than it may have."""

_BOOT = """\
import os, sys
sys.path.insert(0, sys.argv.pop(1))
from shoal.compat.resource_monitor.run import main
os._exit(main(sys.argv[1:]))"""
"""Leaves without tidying up, which takes Python milliseconds: nothing here is buffered."""


def quick_start() -> list[str]:
    """The words that start the monitor as `python -m shoal.monitor` does, in two thirds of the time.

    Neither `site` nor the machinery behind `-m` is loaded; the options of the monitor follow these words.
    """
    home = os.path.abspath(__file__)
    for _ in range(4):  # what holds the package `shoal`
        home = os.path.dirname(home)
    return [sys.executable, "-S", "-E", "-c", _BOOT, home]
