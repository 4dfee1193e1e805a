"""Gets the peers onto this machine: Debian packages when root, PyPI packages each in an environment of its own.

What is there already is left alone. A peer that cannot be had is not an error: its row says why.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from contest import say

INSTALL_SECONDS = 900
DEBIAN_PACKAGES = {
    "cc": "gcc",
    "make": "make",
    "ninja": "ninja-build",
    "xargs": "findutils",
    "parallel": "parallel",
    "makeflow": "coop-computing-tools",
    "work_queue_worker": "coop-computing-tools",
}
WORK_QUEUE_HEADER = Path("/usr/include/cctools/work_queue.h")
WORK_QUEUE_LIBRARIES = ["-lwork_queue", "-ldttools", "-lm", "-lz"]
TASKVINE_MISSING = "not installable here: neither Debian nor PyPI has it (conda only)"


@dataclass
class Workshop:
    """Where the peers live, and why some do not."""

    root: Path
    bench: Path = Path(__file__).parent
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def python(self) -> str:
        """The interpreter that has the project installed."""
        return sys.executable

    def program(self, name: str) -> str:
        return shutil.which(name) or name

    def missing(self, name: str) -> str:
        """Why a program is not there; installs its Debian package first if that is possible."""
        if shutil.which(name):
            return ""
        if name not in self.reasons:
            self.reasons[name] = install_debian(DEBIAN_PACKAGES[name]) or ""
        if not shutil.which(name) and not self.reasons[name]:
            self.reasons[name] = f"package {DEBIAN_PACKAGES[name]} holds no {name}"
        return self.reasons[name]

    def environment(self, *packages: str) -> tuple[Path, str]:
        """The interpreter of the environment that holds these PyPI packages, and why it cannot be had."""
        directory = self.root / packages[-1]
        python = directory / "bin" / "python"
        done = directory / "installed"
        if not done.exists() and packages[-1] not in self.reasons:
            say(f"installing {' '.join(packages)} from PyPI …")
            commands = [
                [sys.executable, "-m", "venv", "--clear", str(directory)],
                [str(python), "-m", "pip", "install", "--quiet", *packages],
            ]
            self.reasons[packages[-1]] = run_all(commands)
            if not self.reasons[packages[-1]]:
                done.touch()
        return python, self.reasons.get(packages[-1], "")

    def compiled(self, source: str, *libraries: str) -> tuple[Path, str]:
        """A C program of ours, compiled anew when its source is younger."""
        path = self.bench / source
        program = self.root / path.stem
        reason = self.missing("cc")
        if not reason and (not program.exists() or program.stat().st_mtime < path.stat().st_mtime):
            self.root.mkdir(exist_ok=True)
            reason = run_all([["cc", "-O2", "-Wall", "-Wextra", "-o", str(program), str(path), *libraries]])
        return program, reason

    def isolated(self, command: list[str]) -> list[str]:
        """The command in a network that has only loopback, for peers that listen on every interface."""
        return [str(self.compiled("peers/loopback.c")[0]), *command]

    def work_queue_manager(self) -> tuple[Path, str]:
        """Debian's package has no Python binding, so the manager is a small C program."""
        reason = self.missing("work_queue_worker")
        if not reason and not WORK_QUEUE_HEADER.exists():
            reason = install_debian("coop-computing-tools-dev")
        if reason:
            return Path(), reason
        return self.compiled("peers/wq_manager.c", *WORK_QUEUE_LIBRARIES)


def install_debian(package: str) -> str:
    """Why the package could not be installed; empty if it was."""
    if os.geteuid() or not shutil.which("apt-get"):
        return f"not installed (apt install {package})"
    say(f"installing {package} with apt-get …")
    return run_all(
        [["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", "--no-install-recommends", package]],
        {"DEBIAN_FRONTEND": "noninteractive"},
    )


def run_all(commands: list[list[str]], environment: dict[str, str] | None = None) -> str:
    """Runs commands until one fails; returns a line about that one."""
    for command in commands:
        try:
            done = subprocess.run(
                command,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=INSTALL_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return f"{Path(command[0]).name}: not done after {INSTALL_SECONDS} s"
        if done.returncode:
            lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
            errors = [line for line in lines if line.startswith(("ERROR", "E:"))] or lines[-1:]
            return f"could not be installed: {errors[0] if errors else Path(command[0]).name}"
    return ""
