"""The options and limits of the monitor: those of `resource_monitor` that are supported, and `--plot`. Pure.

`python -m shoal.monitor` parses its command line here, because loading argparse takes longer than measuring a short
command; `shoal monitor` passes the same table to argparse, for help and suggestions.
"""

from __future__ import annotations

from math import isfinite

from shoal.compat.resource_monitor.summary import FIELDS, NO_LIMITS, number
from shoal.errors import InputError

CORES_GRACE = 0.25
"""Tolerance for cores: a short additional thread does not exceed the limit."""

_LIMITABLE = [name for name in FIELDS if name not in NO_LIMITS]


def parse_limits(text: str, file: str | None = None, line: int | None = None) -> dict[str, float]:
    """Parses `name: value, name: value`."""
    found: dict[str, float] = {}
    for part in text.split(","):
        name, colon, value = part.partition(":")
        if not colon:
            remedy = "write 'name: value', for example 'memory: 500'"
            raise InputError(f"{part.strip()!r} is not a limit", file=file, line=line, remedy=remedy)
        name = name.strip()
        found[name] = _limit(name, value.strip(), file, line)
    return found


def parse_limits_file(text: str, file: str) -> dict[str, float]:
    """Parses a summary (or any JSON object of numbers and `[number, unit]` pairs), or lines of `name: value`."""
    if text.lstrip().startswith("{"):
        return _from_json(text, file)
    found: dict[str, float] = {}
    for at, line in enumerate(text.splitlines(), 1):
        stripped = line.strip().rstrip(",")
        if stripped and not stripped.startswith("#"):
            found.update(parse_limits(stripped, file, at))
    return found


def _from_json(text: str, file: str) -> dict[str, float]:
    import json  # takes longer to load than the whole monitor, and is rarely needed

    try:
        data = json.loads(text)
    except ValueError as error:
        raise InputError(f"the file is not valid JSON: {error}", file=file) from None
    found: dict[str, float] = {}
    for name, value in data.items():
        amount = value[0] if isinstance(value, list) and value else value
        # The summary of an earlier run can be used as limits, and has additional fields.
        if name in NO_LIMITS or (name not in FIELDS and not _is_number(amount)):
            continue
        found[name] = _limit(name, str(amount), file, None)
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _limit(name: str, text: str, file: str | None, line: int | None) -> float:
    if name not in _LIMITABLE:
        known = ", ".join(_LIMITABLE)
        raise InputError(f"unknown limit {name!r}", file=file, line=line, remedy=f"use one of {known}")
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if value < 0 or not isfinite(value):
        remedy = f"write a non-negative number of {FIELDS[name][0]}"
        raise InputError(f"{text!r} is not a valid limit of {name}", file=file, line=line, remedy=remedy)
    return value


def exceeded(limits: dict[str, float], values: dict[str, float]) -> dict[str, float]:
    """Returns the limits that `values` exceed, in the order in which they were given."""
    over = {}
    for name, limit in limits.items():
        value = values.get(name, 0.0)
        allowed = limit + CORES_GRACE if name == "cores" else limit
        if value > 0 and value > allowed + 1e-9:
            over[name] = limit
    return over


def describe_exceeded(over: dict[str, float], values: dict[str, float], after: float) -> str:
    """Returns one sentence with the exceeded limits, the values and the time."""
    parts = []
    for name, limit in over.items():
        unit, decimals = FIELDS[name]
        least = min(max(decimals, 1), 3)
        shown = (number(values[name], places) for places in range(least, 9))
        value = next((text for text in shown if text != number(limit)), number(values[name]))
        parts.append(f"{name} {value} {unit} is over the limit of {number(limit)} {unit}")
    return f"{' and '.join(parts)}, {after:.1f} s after the start"


OPTIONS: tuple[tuple[str, str, str | None, str], ...] = (
    ("-i", "--interval", "SECONDS", "sample the processes at least this often (default: 1)"),
    ("-c", "--sh", "TEXT", "run TEXT with /bin/sh instead of a command after '--'"),
    ("-l", "--limits-file", "FILE", "read limits from FILE: a summary, or lines of 'name: value'"),
    ("-L", "--limits", "TEXT", "set limits: 'memory: 500, wall_time: 60'; may be repeated"),
    ("", "--measure-only", None, "report exceeded limits, but do not kill the command"),
    ("-f", "--child-in-foreground", None, "accepted for compatibility: the command always has the terminal"),
    ("-O", "--with-output-files", "NAME", "write NAME.summary and so on (default: resource-pid-PID)"),
    ("", "--with-time-series", None, "write one row per interval to NAME.series"),
    ("", "--with-inotify", None, "write the files that were seen open to NAME.files"),
    ("-V", "--verbatim-to-summary", "NAME:TEXT", "add a field to the summary; may be repeated"),
    ("", "--measure-dir", "DIR", "measure this directory instead of the current one; may be repeated"),
    ("", "--without-disk-footprint", None, "measure no directory"),
    ("", "--accurate-short-processes", None, "accepted for compatibility: always on"),
    ("", "--no-pprint", None, "write the summary on one line"),
    ("", "--plot", "FILE.svg", "draw memory and cores over time"),
    ("", "--from-series", "FILE", "run nothing, but plot this time series, also one of 'shoal run --series'"),
)
"""Short name, long name, name of the value (None: no value), help text."""

_IGNORED = ("--child-in-foreground", "--accurate-short-processes")
_LONG_OF = {short: long for short, long, _, _ in OPTIONS if short}
_VALUE_OF = {long: value for _, long, value, _ in OPTIONS}


class MonitorOptions:
    """The parsed options of one command line."""

    def __init__(self) -> None:
        self.interval = 1.0
        self.shell_text: str | None = None
        self.command: list[str] = []
        self.limits: dict[str, float] = {}
        self.limits_file: str | None = None
        self.measure_only = False
        self.template: str | None = None
        self.time_series = False
        self.opened_files = False
        self.verbatim: list[tuple[str, str]] = []
        self.directories: list[str] = []
        self.footprint = True
        self.pretty = True
        self.plot: str | None = None
        self.from_series: str | None = None

    def set(self, option: str, value: str) -> None:
        """Sets one option by its long name; the value of an option without value is ignored."""
        match option:
            case "--interval":
                self.interval = _seconds(value)
            case "--sh":
                self.shell_text = value
            case "--limits-file":
                self.limits_file = value
            case "--limits":
                self.limits.update(parse_limits(value))
            case "--measure-only":
                self.measure_only = True
            case "--with-output-files":
                self.template = value
            case "--with-time-series":
                self.time_series = True
            case "--with-inotify":
                self.opened_files = True
            case "--verbatim-to-summary":
                self.verbatim.append(_pair(value))
            case "--measure-dir":
                self.directories.append(value)
            case "--without-disk-footprint":
                self.footprint = False
            case "--no-pprint":
                self.pretty = False
            case "--plot":
                self.plot = value
            case "--from-series":
                self.from_series = value
            case _:
                assert option in _IGNORED

    def check(self) -> None:
        """Checks combinations of options, after all of them are set."""
        if self.from_series is not None:
            if self.plot is None or self.command or self.shell_text is not None:
                raise InputError("--from-series only plots", remedy="write --plot FILE.svg, and no command")
            return
        if self.shell_text is not None and self.command:
            raise InputError(f"--sh and the command {self.command[0]!r} exclude each other", remedy="leave one out")
        if self.shell_text is None and not self.command:
            raise InputError("the command to measure is missing", remedy="put it after '--'")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not (isfinite(seconds) and seconds >= 0.001):
        raise InputError(f"{text!r} is not a valid interval", remedy="write a number of seconds, at least 0.001")
    return seconds


def _pair(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise InputError(f"{text!r} is not a valid field of the summary", remedy="write 'name:text'")
    return name.strip(), value.strip()


def parse(words: list[str]) -> MonitorOptions:
    """Parses a command line; the first word that is not an option starts the command."""
    options = MonitorOptions()
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word == "--":
            break
        if not word.startswith("-") or word == "-":
            at -= 1
            break
        name, value = _split(word)
        wanted = _VALUE_OF[name]
        if wanted is None and value is not None:
            raise InputError(f"{name} takes no value", remedy=f"write {name} alone")
        if wanted is not None and value is None:
            if at == len(words):
                raise InputError(f"{name} needs a value", remedy=f"write {name} {wanted}")
            value = words[at]
            at += 1
        options.set(name, value or "")
    options.command = words[at:]
    options.check()
    return options


def _split(word: str) -> tuple[str, str | None]:
    """Returns the long name of an option and the value in the same word, if any."""
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        attached = value if equals else None
    else:
        name = _LONG_OF.get(word[:2], word[:2])
        attached = word[2:] or None
    if name not in _VALUE_OF:
        raise InputError(f"unknown option {name!r}", remedy="'shoal monitor --help' lists the options")
    return name, attached
