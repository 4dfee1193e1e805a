"""The layout of the summary file: JSON, on one line or indented, fields in the order of `resource_monitor`. Pure.

The JSON is written by hand because loading Python's own writer takes longer than measuring a short command.
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


CORES_WINDOW = 180.0
"""Cores are CPU time per wall time over so many seconds; a shorter burst does not count as a need."""


class CommandUsage:
    """The figures of one command from its start on, with the moments of their peaks."""

    def __init__(self, start: float) -> None:
        self.start = start
        self.values: dict[str, float] = {"start": start}
        self.peak_times: dict[str, float] = {"start": 0.0}
        self._cores = CoresWindow(start, CORES_WINDOW, idle_before=True)

    def note(self, name: str, value: float, now: float) -> None:
        """Raises a figure, if it is higher than ever before."""
        if value > self.values.get(name, 0.0):
            self.values[name] = value
            self.peak_times[name] = now - self.start

    def take(self, look: TreeUsage, now: float) -> None:
        """Merges a look at the tree."""
        note = self.note
        note("end", now, now)
        note("wall_time", now - self.start, now)
        note("cpu_time", look.cpu, now)
        note("memory", max(look.resident, look.peak) / MEGABYTE, now)
        note("virtual_memory", look.virtual / MEGABYTE, now)
        note("swap_memory", look.swap / MEGABYTE, now)
        note("bytes_read", look.read / MEGABYTE, now)
        note("bytes_written", look.written / MEGABYTE, now)
        note("context_switches", look.switches, now)
        note("max_concurrent_processes", look.processes, now)
        self._cores.note(now, look.cpu)
        note("cores", self._cores.most, now)

    def finish(self, end: float) -> None:
        """Closes the account; `cores` is not below the average over the whole time."""
        wall = end - self.start
        self.note("end", end, end)
        self.note("wall_time", wall, end)
        average = self.values.get("cpu_time", 0.0) / wall if wall > 0 else 0.0
        self.note("cores_avg", average, end)
        self.note("cores", average, end)


_ESCAPES = {ord('"'): '\\"', ord("\\"): "\\\\", ord("\n"): "\\n", ord("\t"): "\\t", ord("\r"): "\\r"}
_ESCAPES |= {code: f"\\u{code:04x}" for code in range(32) if code not in _ESCAPES}

Json = str | list["Json"] | dict[str, "Json"]
"""What is to be written; a string stands for itself, that is, it is a number or already quoted."""


class CommandOutcome:
    """How the command ended, as the summary tells it."""

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
    """A JSON string; what is not text (a byte of a file name) is replaced."""
    return f'"{text.translate(_ESCAPES).encode("utf-8", "replace").decode()}"'


def summary(
    verbatim: list[tuple[str, str]],
    about: dict[str, str],
    files: dict[str, list[tuple[str, int]]],
    command: str,
    outcome: CommandOutcome,
    usage: CommandUsage,
) -> dict[str, Json]:
    """The whole summary, in order; `about` is what is known of host and program, `files` what was seen open."""
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
    """Lists and objects begin on a line of their own below their name."""
    if isinstance(value, str):
        return value
    return f"\n{' ' * (indent + 2)}{indented(value, indent + 2)}"


def _block(begin: str, parts: list[str], end: str, indent: int) -> str:
    if not parts:
        return begin + end
    return begin + "\n" + ",\n".join(parts) + f"\n{' ' * indent}{end}"
