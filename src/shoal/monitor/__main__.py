"""Lets `python -m shoal.monitor [OPTION...] -- COMMAND...` measure one command."""

from __future__ import annotations

import sys

from shoal.monitor.main import main

sys.exit(main(sys.argv[1:]))
