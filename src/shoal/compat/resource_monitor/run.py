"""Runs and measures one command: the monitor's loop, which samples, forwards signals and enforces limits.

`CommandUsage` merges the samples; `exceeded` compares them with the limits. The loop waits for signals with a deadline
(`sigtimedwait`): SIGCHLD reports the end of a child; the next sample and the wall-time limit are deadlines. Samples are
frequent at first and become rarer, up to the interval, so that a command of milliseconds is measured as well as one of
days.

The command stays in the process group of the monitor: killing the group kills both, and signals of the terminal reach
the command directly.
"""

from __future__ import annotations

import os
import signal
import time

from shoal import __version__
from shoal.compat.resource_monitor.options import MonitorOptions, describe_exceeded, exceeded, parse, parse_limits_file
from shoal.compat.resource_monitor.process_tree import SHELL, OpenedFiles, Tree, find_program, program_type, start
from shoal.compat.resource_monitor.series import SeriesRow, read_series
from shoal.compat.resource_monitor.start import COMMAND_FAILED, MONITOR_FAILED, OK, OVER_LIMIT, OVER_WALL_TIME
from shoal.compat.resource_monitor.summary import MEGABYTE, CommandOutcome, CommandUsage, indented, on_one_line, summary
from shoal.errors import InputError
from shoal.execution.processes.footprint import Footprint
from shoal.execution.processes.process_table import become_subreaper
from shoal.execution.processes.sampler import TreeUsage
from shoal.execution.processes.time_series import header

FORWARDED = ("SIGINT", "SIGQUIT", "SIGTERM", "SIGABRT", "SIGALRM", "SIGHUP", "SIGUSR1", "SIGUSR2")
_ENDING = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
_REPEAT_SECONDS = 1.0
"""A second request to terminate within this time kills the command instead of forwarding the signal."""
_FROM_TERMINAL = 128
_FIRST_LOOK = 0.002
_BACKOFF = 0.25
"""The next sample is taken after this fraction of the time since the start: the fraction of a process's lifetime that
may not be measured."""
_LOOK_WITH_LIMITS = 0.1
_WALK_SHARE = 0.05
_LAST_WALK = 1.0
_ENFORCED_STATUS = 143


class Measurement:
    """One measurement: options, limits, process tree and results."""

    def __init__(self, options: MonitorOptions, limits: dict[str, float], template: str) -> None:
        self.options = options
        self.limits = limits
        self.tree = Tree()
        self.over: dict[str, float] = {}
        self.rows: list[SeriesRow] = []
        self.opened = OpenedFiles() if options.opened_files else None
        directories = options.directories or ["."]
        self.footprint = Footprint(directories) if options.footprint else None
        self._walks_often = "disk" in limits or "total_files" in limits
        self._series = -1
        if options.time_series:
            self._series = create(f"{template}.series")
            write(self._series, header(options.footprint))
        self._root = 0
        self._moment = time.monotonic()
        self._begun = self._last_row = time.time()
        self._last_cpu = self._rate = 0.0
        self._last_request = 0.0
        self.usage = CommandUsage(self._begun)
        self._note_machine()

    def _note_machine(self) -> None:
        now = self._begun
        self.usage.update_peak("machine_cpus", os.cpu_count() or 1, now)
        self.usage.update_peak("gpus", self.limits.get("gpus", 0.0), now)

    def now(self) -> float:
        """Returns seconds since 1970 from a monotonic clock."""
        return self._begun + time.monotonic() - self._moment

    def run(self, path: str, words: list[str]) -> CommandOutcome:
        """Starts the command and measures it until it ends."""
        waited = [number for number in map(_named, FORWARDED) if signal.getsignal(number) is not signal.SIG_IGN]
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [*waited, signal.SIGCHLD])
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it were ignored, the kernel would reap the children
        become_subreaper()
        self.tree.prepare()
        self._moment = time.monotonic()
        command = start(path, words, mask)
        self._root = command.pid
        self.tree.begin(command)
        self.usage.add_sample(self.tree.look_at_command(), self.now())
        self._watch([*waited, signal.SIGCHLD])
        return self._outcome()

    def _watch(self, waited: list[signal.Signals]) -> None:
        begun = self._begun
        deadline = begun + self.limits.get("wall_time", float("inf"))
        next_look = begun + _FIRST_LOOK
        next_row = begun if self._series >= 0 or self.options.plot is not None else begun + self.options.interval
        rarest = min(self.options.interval, _LOOK_WITH_LIMITS) if self.limits else self.options.interval
        while not self.tree.reap():
            now = self.now()
            if now >= next_look or now >= deadline:
                full = now >= next_row
                self._look(now, full)
                if full:
                    next_row = now + self.options.interval
                if self.over and not self.options.measure_only:
                    self.tree.end()
                    break
                now = self.now()
                next_look = min(now + min(max(_FIRST_LOOK, (now - begun) * _BACKOFF), rarest), max(now, next_row))
                if now >= deadline:
                    deadline = float("inf")
            received = signal.sigtimedwait(waited, max(0.0, min(next_look, deadline) - now))
            if received is not None and received.si_signo != signal.SIGCHLD:
                self._forward(received)
        self._last_look()

    def _look(self, now: float, full: bool) -> None:
        """Samples the processes; a full sample also measures the directories and writes a row."""
        usage = self.usage
        look = self.tree.look(usage.values.get("memory", 0.0) * MEGABYTE)
        if self.opened is not None:
            self.opened.look(self.tree.processes())
        usage.add_sample(look, now)
        usage.update_peak("total_processes", self.tree.total, now)
        if full or self._walks_often:
            self._walk(now, self.options.interval * _WALK_SHARE)
        if full:
            self._add_row(now, look)
        self._check(now)

    def _walk(self, now: float, seconds: float, *, afresh: bool = False) -> None:
        if self.footprint is not None:
            self.footprint.look(seconds, afresh=afresh)
            self.usage.update_peak("disk", self.footprint.bytes / MEGABYTE, now)
            self.usage.update_peak("total_files", self.footprint.files, now)

    def _add_row(self, now: float, look: TreeUsage) -> None:
        load = os.getloadavg()[0]
        self.usage.update_peak("machine_load", int(load), now)
        if self._series < 0 and self.options.plot is None:
            return
        if now - self._last_row > self.options.interval / 2:  # the last row may come too soon for a meaningful rate
            self._rate = max(0.0, look.cpu - self._last_cpu) / (now - self._last_row)
            self._last_row, self._last_cpu = now, look.cpu
        footprint = (self.footprint.files, self.footprint.bytes) if self.footprint else None
        row = SeriesRow(now, look, self._rate, load, footprint)
        if self.options.plot is not None:
            self.rows.append(row)
        if self._series >= 0:
            write(self._series, row.text(self.options.footprint))

    def _last_look(self) -> None:
        """Takes the last sample: usage of the ended processes, and of those still running in the background."""
        end = self.now()
        look = self.tree.look(self.usage.values.get("memory", 0.0) * MEGABYTE)
        self.usage.add_sample(look, end)
        self.usage.update_peak("total_processes", self.tree.total, end)
        self._walk(end, _LAST_WALK, afresh=True)
        self._add_row(end, look)
        self._check(end)
        if "memory" not in self.usage.values:  # it ended between two samples: a bound is better than nothing
            self.usage.update_peak("memory", self.tree.root_peak_below / MEGABYTE, end)
        self.usage.update_peak("max_concurrent_processes", 1, end)
        self.usage.finish(end)

    def _check(self, now: float) -> None:
        if not self.over and self.limits:
            self.over = exceeded(self.limits, self.usage.values)
            if self.over:
                write(2, f"shoal monitor: {describe_exceeded(self.over, self.usage.values, now - self._begun)}\n")

    def _forward(self, received: signal.struct_siginfo) -> None:
        number = signal.Signals(received.si_signo)
        now = self.now()
        if number in _ENDING:
            if now - self._last_request < _REPEAT_SECONDS:
                self.tree.end()
                return
            self._last_request = now
        if received.si_code != _FROM_TERMINAL:  # the terminal sends signals to the whole process group
            try:
                os.kill(self._root, number)
            except ProcessLookupError:
                pass  # it has just ended, and will be reaped soon

    def _outcome(self) -> CommandOutcome:
        status = self.tree.status or 0
        if self.over and not self.options.measure_only:
            return CommandOutcome(_ENFORCED_STATUS, over=self.over)
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            return CommandOutcome(128 - code, signal=-code, over=self.over)
        return CommandOutcome(code, over=self.over)


def measure(options: MonitorOptions) -> int:
    """Runs and measures the command, writes the requested files, and returns the exit status."""
    if options.from_series is not None:
        return _draw_series(options.from_series, options.plot or "")
    if options.shell_text is not None:
        path, words, shown = SHELL, [SHELL, "-c", options.shell_text], options.shell_text
    else:
        path, words = find_program(options.command[0]), options.command
        shown = " ".join(map(_shell_word, words))
    for directory in options.directories:
        if not os.path.isdir(directory):
            raise InputError(f"the directory {directory!r} to measure does not exist")
    limits = {**_limits_of_file(options.limits_file), **options.limits}
    template = options.template or f"resource-pid-{os.getpid()}"
    target = create(f"{template}.summary")
    monitor = Measurement(options, limits, template)
    outcome = monitor.run(path, words)
    about = {
        "executable_type": program_type(path),
        "monitor_version": f"shoal {__version__}",
        "host": os.uname().nodename,
    }
    files = monitor.opened.listed() if monitor.opened is not None else {}
    data = summary(options.verbatim, about, files, shown, outcome, monitor.usage)
    write(target, (indented(data) if options.pretty else on_one_line(data)) + "\n")
    if monitor.opened is not None:
        write(create(f"{template}.files"), monitor.opened.table())
    if options.plot is not None:
        from shoal.compat.resource_monitor.plot import draw

        write(create(options.plot), draw(monitor.rows, shown, monitor.limits))
    return _exit_status(outcome, options)


def _exit_status(outcome: CommandOutcome, options: MonitorOptions) -> int:
    if outcome.over and not options.measure_only:
        return OVER_WALL_TIME if "wall_time" in outcome.over else OVER_LIMIT
    return COMMAND_FAILED if outcome.status else OK


def _draw_series(file: str, target: str) -> int:
    from shoal.compat.resource_monitor.plot import draw

    points, title = read_series(_text_of(file, "the series"), file)
    write(create(target), draw(points, title or file, {}))
    return OK


def _limits_of_file(file: str | None) -> dict[str, float]:
    return parse_limits_file(_text_of(file, "limits"), file) if file is not None else {}


def _text_of(file: str, what: str) -> str:
    try:
        with open(file, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError as error:
        raise InputError(f"cannot read {what}: {error.strerror}", file=file) from None


def create(path: str) -> int:
    """Opens a file for writing; creates its directories."""
    parent = os.path.dirname(path)
    try:
        if parent:
            os.makedirs(parent, exist_ok=True)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise InputError(f"cannot write {path!r}: {error.strerror}") from None


def write(descriptor: int, text: str) -> None:
    """Writes a whole text. Errors are ignored: a full disk must not affect the command."""
    data = text.encode("utf-8", "replace")
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        pass


def _shell_word(word: str) -> str:
    """Quotes a word for the shell if necessary."""
    if word and all(letter.isalnum() or letter in "@%+=:,./-_" for letter in word):
        return word
    return "'" + word.replace("'", "'\"'\"'") + "'"


def _named(name: str) -> signal.Signals:
    return signal.Signals[name]


def main(words: list[str]) -> int:
    """Parses a command line, measures the command, and returns the exit status."""
    try:
        options = parse(words)
    except InputError as error:
        return report_error(str(error))
    return attempt(options)


def attempt(options: MonitorOptions) -> int:
    """Measures the command; errors of the monitor itself become a message."""
    try:
        return measure(options)
    except InputError as error:
        return report_error(str(error))
    except KeyboardInterrupt:
        return report_error("interrupted before the command was started")
    except OSError as error:
        where = f"{error.filename!r}: " if error.filename is not None else ""
        return report_error(f"{where}{error.strerror or error}")


def report_error(sentence: str) -> int:
    try:
        os.write(2, f"shoal monitor: {sentence}\n".encode("utf-8", "surrogateescape"))
    except OSError:
        pass  # standard error is closed; the exit status reports the failure, too
    return MONITOR_FAILED
