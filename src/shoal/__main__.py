"""Lets `python -m shoal` do what the `shoal` command does."""

from __future__ import annotations

import sys

from shoal.ui.cli.main import main

sys.exit(main())
