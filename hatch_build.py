"""Compiles the launcher when the package is built. Without a compiler the package works with the one in Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = Path("src/shoal/execution/processes/native")


class CompileLauncher(BuildHookInterface):  # type: ignore[type-arg]  # hatchling's own generic parameter is of no use here
    """Leaves the executable beside its source."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
        if not sys.platform.startswith("linux") or compiler is None:
            return
        target = Path(self.root) / NATIVE / "launcher"
        sources = sorted(map(str, (Path(self.root) / NATIVE).glob("*.c")))
        words = [compiler, "-O2", "-std=gnu11", "-pthread", "-o", str(target), *sources]
        # Static if that can be done: without shared libraries its own memory hides even less of a task's.
        for options in (["-static"], []):
            done = subprocess.run([*words, *options], capture_output=True, text=True)
            if not done.returncode:
                break
        else:
            self.app.display_warning(f"the launcher could not be compiled, the one in Python is used: {done.stderr}")
            target.unlink(missing_ok=True)
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["artifacts"].append(str(NATIVE / "launcher"))
