"""What the user sees of a run while it goes on: the choice among the displays, and those that print lines.

The live one, redrawn in place, is in `shoal.cli.live`; the summary at the end in `shoal.cli.summary`.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from shoal.cli.cells import printable, printable_lines
from shoal.cli.screen import Screen
from shoal.cli.text import last_words
from shoal.engine.attempt import EndedAttempt
from shoal.engine.pace import Pace, PlannedChain
from shoal.engine.session import Run, Session
from shoal.engine.statistics import Statistics
from shoal.model.quantities import count, show_cores, show_progress, show_rate, show_seconds, time_left

FULL_FAILURES = 20
NAMED_FAILURES = 200
PLAIN_SECONDS = 10.0


class Tracked:
    """The pace of a session's run; what is planned is counted when it is first asked for, not before the run starts."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._pace: Pace | None = None

    def pace(self, statistics: Statistics, now: float) -> Pace:
        """With the totals of this moment."""
        if self._pace is None:
            plan, graph = self._session.plan, self._session.plan.graph
            planned: Counter[str] = Counter()
            to_run = plan.to_run()
            for profile, number in Counter(map(graph.profile.__getitem__, to_run)).items():
                planned[graph.profiles[profile].category] += number
            chain = PlannedChain(graph, to_run, self._session.versions.done)
            self._pace = Pace(statistics.started, planned, lambda task: graph.profile_of(task).category, chain)
        self._pace.update(statistics, now)
        return self._pace


class QuietDisplay:
    """Shows failures and errors, nothing else; the other displays add to it."""

    tell_all = False
    """Whether `attempt_over` is to be called for attempts that succeeded, too."""

    def __init__(self, screen: Screen) -> None:
        self.screen = screen
        self._failures = 0

    def begin(self, session: Session) -> None:
        """The plan is made and nothing has been started."""

    def explain(self, name: str, reason: str) -> None:
        """A task will run for this reason."""
        self.screen.say(printable(f"{name}: {reason}"))

    def tick(self, statistics: Statistics, now: float) -> None:
        """Called about ten times a second."""

    def attempt_over(self, name: str, attempt: EndedAttempt, verdict: str) -> None:
        """A task failed: its name, the cause and its last words, as long as there are not too many of them."""
        if verdict != "failed":
            return
        self._failures += 1
        if self._failures > NAMED_FAILURES:
            return
        lines = [self.screen.paint(printable(f"failed: {name}: {attempt.message}"), "red")]
        if self._failures <= FULL_FAILURES:
            lines += [f"    | {printable(line)}" for line in last_words(attempt.tail, attempt.message)]
        if self._failures == NAMED_FAILURES:
            lines.append("shoal: further failures are only counted; 'shoal status' lists them")
        self.screen.say("\n".join(lines))

    def note(self, text: str) -> None:
        self.screen.say(printable_lines(f"shoal: {text}"))

    def end(self, session: Session, run: Run, status: int) -> None:
        """The run is over."""

    def shown_failures(self) -> int:
        """How many failures were shown with what they wrote, if standard output goes to the same place: there the
        summary need not repeat that."""
        return min(self._failures, FULL_FAILURES) if self.screen.is_same_as(sys.stdout) else 0


class TrackingDisplay(QuietDisplay):
    """Follows the pace of the run, and adds a line for each attempt that is made again, as long as there are not too
    many of them."""

    def __init__(self, screen: Screen) -> None:
        super().__init__(screen)
        self._retries = 0
        self._tracked: Tracked | None = None

    def begin(self, session: Session) -> None:
        self._tracked = Tracked(session)

    def attempt_over(self, name: str, attempt: EndedAttempt, verdict: str) -> None:
        if verdict == "retry" and self._retries < FULL_FAILURES:
            self._retries += 1
            what = printable(f"again: {name}: attempt {attempt.attempt}: {attempt.message}")
            self.screen.say(self.screen.paint(what, "yellow"))
        super().attempt_over(name, attempt, verdict)


class PlainDisplay(TrackingDisplay):
    """Adds a line when the run starts, then every ten seconds or ten per cent, but never two within a second."""

    def __init__(self, screen: Screen) -> None:
        super().__init__(screen)
        self._next_time = 0.0
        self._next_share = 0.1

    def begin(self, session: Session) -> None:
        super().begin(session)
        to_run = len(session.plan.to_run())
        if to_run:
            cores = session.total_cores()
            where = f" on {show_cores(cores)}" if cores else "; no node is there yet"
            self.screen.say(f"running {count(to_run, 'task')}{where}")

    def tick(self, statistics: Statistics, now: float) -> None:
        if self._tracked is None:
            return
        pace = self._tracked.pace(statistics, now)
        if not self._next_time:
            self._next_time = statistics.started + PLAIN_SECONDS
        done, to_run = statistics.done, statistics.to_run()
        much = done >= self._next_share * to_run and now >= self._next_time - PLAIN_SECONDS + 1.0
        if now < self._next_time and not much:
            return
        self._next_time = now + PLAIN_SECONDS
        self._next_share = (10 * done // max(1, to_run) + 1) / 10
        told = pace.progress(statistics, now)
        lost = ((told.failed, "failed"), (told.cancelled, "cancelled"), (told.cannot_run, "cannot run"))
        others = "".join(f", {number:,} {word}" for number, word in lost if number)
        left = f", {time_left(told.left, told.least, told.most)}" if told.left is not None else ""
        self.screen.say(
            f"{show_progress(done, to_run)}: {done:,} of {to_run:,} done{others}, {told.running:,} running, "
            f"{show_rate(told.rate)}, {show_seconds(told.elapsed)} so far{left}"
        )


def choose_display(arguments: argparse.Namespace) -> QuietDisplay:
    """The display that was asked for, or that fits where standard error goes."""
    if arguments.json:
        from shoal.cli.jsonlines import JsonDisplay

        return JsonDisplay(sys.stdout)
    screen = Screen(sys.stderr)
    if arguments.quiet:
        return QuietDisplay(screen)
    if arguments.plain or not screen.live:
        return PlainDisplay(screen)
    from shoal.cli.live import LiveDisplay

    return LiveDisplay(screen)
