"""Shoal: many-task computing. `from shoal import rule, file, task` in a rules file; `shoal.Executor` in a program.

Public names are loaded when first used, so that `import shoal` and `shoal --help` stay quick.
"""

from __future__ import annotations

__version__ = "0.1.0"
