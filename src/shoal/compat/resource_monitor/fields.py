"""What is measured: names, units and order as users of `resource_monitor` know them. Pure.

Inside the monitor every quantity is a float in the unit of this table; rounding happens only when it is printed.
"""

from __future__ import annotations

from math import ceil

MEGABYTE = 1 << 20

FIELDS: dict[str, tuple[str, int]] = {
    "start": ("s", 6),
    "end": ("s", 6),
    "wall_time": ("s", 6),
    "cpu_time": ("s", 6),
    "memory": ("MB", 0),
    "virtual_memory": ("MB", 0),
    "swap_memory": ("MB", 0),
    "disk": ("MB", 0),
    "bytes_read": ("MB", 0),
    "bytes_written": ("MB", 0),
    "bytes_received": ("MB", 0),
    "bytes_sent": ("MB", 0),
    "bandwidth": ("Mbps", 3),
    "gpus": ("gpus", 0),
    "cores": ("cores", 3),
    "cores_avg": ("cores", 3),
    "machine_cpus": ("cores", 0),
    "machine_load": ("procs", 0),
    "context_switches": ("switches", 0),
    "max_concurrent_processes": ("procs", 0),
    "total_processes": ("procs", 0),
    "total_files": ("files", 0),
    "fs_nodes": ("nodes", 0),
    "workers": ("workers", 0),
}
"""Unit and decimals of each field, in the order of the summary."""

ROUNDED_UP = ("memory", "virtual_memory", "swap_memory", "disk")
"""What somebody may reserve on account of the figure; the others are cut off."""

NO_LIMITS = ("start", "end", "machine_cpus", "machine_load")
"""Fields that say something about the machine or the calendar, so that a limit on them makes no sense."""

WITHOUT_PEAK_TIME = ("total_processes", "fs_nodes", "workers")


def number(value: float, decimals: int = 6) -> str:
    """A number as JSON, without needless digits."""
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def printed(name: str, value: float) -> str:
    """The value of a field as it stands in the summary."""
    decimals = FIELDS[name][1]
    if decimals:
        return number(value, decimals)
    # A hair of floating point above a whole number is not another unit.
    return str(ceil(value - 1e-9) if name in ROUNDED_UP else int(value + 1e-9))
