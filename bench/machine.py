"""What the numbers were measured on: cores, kernel, interpreter and the versions of the peers. No paths, no names."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

VERSION_SECONDS = 30
TOOLS = {
    "GNU make": ["make", "--version"],
    "ninja": ["ninja", "--version"],
    "xargs": ["xargs", "--version"],
    "GNU parallel": ["parallel", "--version"],
    "makeflow, Work Queue": ["makeflow", "--version"],
    "cc": ["cc", "--version"],
}
PACKAGES = ("hyperqueue", "distributed", "ray", "parsl", "executorlib")
VERSION_SCRIPT = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"


def describe(environments: Path) -> dict[str, object]:
    """A flat description, fit for JSON; peers that are not there are left out."""
    return {
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "system": platform.freedesktop_os_release().get("PRETTY_NAME", ""),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "load_at_start": round(os.getloadavg()[0], 2),
        "peers": versions(environments),
    }


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def versions(environments: Path) -> dict[str, str]:
    found = {}
    for name, command in TOOLS.items():
        if shutil.which(command[0]):
            found[name] = first_line(command)
    for package in PACKAGES:
        python = environments / package / "bin" / "python"
        if python.exists():
            found[package] = first_line([str(python), "-c", VERSION_SCRIPT, package])
    return {name: version for name, version in found.items() if version}


def first_line(command: list[str]) -> str:
    environment = {**os.environ, "LC_ALL": "C", "OMPI_MCA_ess_singleton_isolated": "1"}
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=VERSION_SECONDS
        )
    except subprocess.TimeoutExpired:
        return ""
    lines = done.stdout.strip().splitlines()
    return lines[0] if lines else ""
