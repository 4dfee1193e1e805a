"""The measured usage of a command, and the summary file: JSON with the fields and order of `resource_monitor`. Pure.

The JSON is written without Python's `json` module, because loading it takes longer than measuring a short command.
"""

from __future__ import annotations

from math import ceil

from shoal.execution.processes.sampler import CoresWindow, TreeUsage

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
"""Fields that are rounded up, because users reserve resources by them; other fields are rounded down."""

NO_LIMITS = ("start", "end", "machine_cpus", "machine_load")
"""Fields about the machine or the date, which cannot have limits."""

WITHOUT_PEAK_TIME = ("total_processes", "fs_nodes", "workers")


def number(value: float, decimals: int = 6) -> str:
    """Formats a number for JSON, without trailing zeros."""
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def printed(name: str, value: float) -> str:
    """Formats the value of a field for the summary."""
    decimals = FIELDS[name][1]
    if decimals:
        return number(value, decimals)
    # Rounding errors just above a whole number must not add a unit.
    return str(ceil(value - 1e-9) if name in ROUNDED_UP else int(value + 1e-9))


CORES_WINDOW = 180.0
"""Seconds over which cores are measured as CPU time per wall time; a shorter burst does not count as needed cores."""


class CommandUsage:
    """The usage of one command since its start: the peak of each field, with its time."""

    def __init__(self, start: float) -> None:
        self.start = start
        self.values: dict[str, float] = {"start": start}
        self.peak_times: dict[str, float] = {"start": 0.0}
        self._cores = CoresWindow(start, CORES_WINDOW, idle_before=True)

    def update_peak(self, name: str, value: float, now: float) -> None:
        """Updates a field if the value is higher than its peak so far."""
        if value > self.values.get(name, 0.0):
            self.values[name] = value
            self.peak_times[name] = now - self.start

    def add_sample(self, look: TreeUsage, now: float) -> None:
        """Merges a sample of the process tree."""
        update = self.update_peak
        update("end", now, now)
        update("wall_time", now - self.start, now)
        update("cpu_time", look.cpu, now)
        update("memory", max(look.resident, look.peak) / MEGABYTE, now)
        update("virtual_memory", look.virtual / MEGABYTE, now)
        update("swap_memory", look.swap / MEGABYTE, now)
        update("bytes_read", look.read / MEGABYTE, now)
        update("bytes_written", look.written / MEGABYTE, now)
        update("context_switches", look.switches, now)
        update("max_concurrent_processes", look.processes, now)
        self._cores.note(now, look.cpu)
        update("cores", self._cores.most, now)

    def finish(self, end: float) -> None:
        """Sets the final values; `cores` is at least the average over the whole time."""
        wall = end - self.start
        self.update_peak("end", end, end)
        self.update_peak("wall_time", wall, end)
        average = self.values.get("cpu_time", 0.0) / wall if wall > 0 else 0.0
        self.update_peak("cores_avg", average, end)
        self.update_peak("cores", average, end)


_ESCAPES = {ord('"'): '\\"', ord("\\"): "\\\\", ord("\n"): "\\n", ord("\t"): "\\t", ord("\r"): "\\r"}
_ESCAPES |= {code: f"\\u{code:04x}" for code in range(32) if code not in _ESCAPES}

Json = str | list["Json"] | dict[str, "Json"]
"""A JSON value to be written; strings are written unchanged, so they are numbers or already quoted."""


class CommandOutcome:
    """How the command ended: exit status, signal or exceeded limits."""

    def __init__(self, status: int, *, signal: int | None = None, over: dict[str, float] | None = None) -> None:
        self.status = status
        self.signal = signal
        self.over = over or {}

    @property
    def kind(self) -> str:
        if self.over:
            return "limits"
        return "normal" if self.signal is None else "signal"


def quoted(text: str) -> str:
    """Returns a JSON string; bytes of file names that are not UTF-8 are replaced."""
    return f'"{text.translate(_ESCAPES).encode("utf-8", "replace").decode()}"'


def summary(
    verbatim: list[tuple[str, str]],
    about: dict[str, str],
    files: dict[str, list[tuple[str, int]]],
    command: str,
    outcome: CommandOutcome,
    usage: CommandUsage,
) -> dict[str, Json]:
    """Returns the summary with its fields in order; `about` describes host and program, `files` are the open files."""
    data: dict[str, Json] = {name: quoted(value) for name, value in verbatim}
    data |= {name: quoted(value) for name, value in about.items()}
    for name, seen in files.items():
        data[name] = [[quoted(path), str(size)] for path, size in seen]
    data["command"] = quoted(command)
    data["exit_status"] = str(outcome.status)
    data["exit_type"] = quoted(outcome.kind)
    if outcome.signal is not None and not outcome.over:
        data["signal"] = str(outcome.signal)
    if outcome.over:
        data["limits_exceeded"] = {
            name: [number(limit), quoted(FIELDS[name][0])] for name, limit in outcome.over.items()
        }
    for name, (unit, _) in FIELDS.items():
        data[name] = [printed(name, usage.values.get(name, 0.0)), quoted(unit)]
    data["peak_times"] = {
        name: [number(usage.peak_times[name], 3), quoted("s")]
        for name in reversed(FIELDS)
        if name in usage.peak_times and name not in WITHOUT_PEAK_TIME
    }
    return data


def on_one_line(data: Json) -> str:
    if isinstance(data, dict):
        return "{" + ",".join(f"{quoted(name)}:{on_one_line(value)}" for name, value in data.items()) + "}"
    if isinstance(data, list):
        return "[" + ",".join(map(on_one_line, data)) + "]"
    return data


def indented(data: Json, indent: int = 0) -> str:
    inner = " " * (indent + 2)
    if isinstance(data, dict):
        parts = [f"{inner}{quoted(name)}:{_below(value, indent + 2)}" for name, value in data.items()]
        return _block("{", parts, "}", indent)
    if isinstance(data, list):
        return _block("[", [inner + indented(value, indent + 2) for value in data], "]", indent)
    return data


def _below(value: Json, indent: int) -> str:
    """Returns a value after its name; lists and objects start on the next line."""
    if isinstance(value, str):
        return value
    return f"\n{' ' * (indent + 2)}{indented(value, indent + 2)}"


def _block(begin: str, parts: list[str], end: str, indent: int) -> str:
    if not parts:
        return begin + end
    return begin + "\n" + ",\n".join(parts) + f"\n{' ' * indent}{end}"
