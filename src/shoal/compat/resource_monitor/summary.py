"""The layout of the summary file: JSON, on one line or indented, fields in the order of `resource_monitor`. Pure.

The JSON is written by hand because loading Python's own writer takes longer than measuring a short command.
"""

from __future__ import annotations

from shoal.compat.resource_monitor.fields import FIELDS, WITHOUT_PEAK_TIME, number, printed
from shoal.compat.resource_monitor.usage import CommandUsage

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
