"""What the user sees of a run while it goes on: the choice among the displays, and those that print lines.

The live one, redrawn in place, is in `shoal.ui.cli.display`; the summary at the end in `shoal.ui.cli.summary`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, TextIO

from shoal.core.quantities import count, show_cores, show_progress, show_rate, show_seconds, show_share, time_left
from shoal.execution.attempt_recorder import EndedAttempt
from shoal.execution.session import RunDriver, Session
from shoal.ledger.statistics import PlannedChain, RunPace, Statistics
from shoal.ledger.views.failures import Causes
from shoal.ledger.views.pace import CategoryPace, Progress
from shoal.ui.cli.plan import count_up_to_date
from shoal.ui.cli.screen import Screen
from shoal.ui.cli.text import cells, cut, joined, last_words, padded, printable, printable_lines

FULL_FAILURES = 20
NAMED_FAILURES = 200
PLAIN_SECONDS = 10.0


class Tracked:
    """The pace of a session's run; what is planned is counted when it is first asked for, not before the run starts."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._pace: RunPace | None = None

    def pace(self, statistics: Statistics, now: float) -> RunPace:
        """With the totals of this moment."""
        if self._pace is None:
            plan, graph = self._session.plan, self._session.plan.graph
            planned: Counter[str] = Counter()
            to_run = plan.to_run()
            for profile, number in Counter(map(graph.profile.__getitem__, to_run)).items():
                planned[graph.profiles[profile].category] += number
            chain = PlannedChain(graph, to_run, self._session.versions.done)
            self._pace = RunPace(statistics.started, planned, lambda task: graph.profile_of(task).category, chain)
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

    def end(self, session: Session, run: RunDriver, status: int) -> None:
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
        return JsonDisplay(sys.stdout)
    screen = Screen(sys.stderr)
    if arguments.quiet:
        return QuietDisplay(screen)
    if arguments.plain or not screen.live:
        return PlainDisplay(screen)

    return LiveDisplay(screen)


class JsonDisplay(QuietDisplay):
    """Writes `run_started`, `task_planned` (with --explain), `task_ended`, `note` and `run_ended`."""

    tell_all = True

    def __init__(self, stream: TextIO) -> None:
        super().__init__(Screen(stream))
        self._pending: list[str] = []

    def begin(self, session: Session) -> None:
        plan = session.plan
        self._emit(
            "run_started",
            time=time.time(),
            run=session.identity,
            workflow=session.workspace.workflow,
            to_run=len(plan.to_run()),
            up_to_date=count_up_to_date(plan),
        )

    def explain(self, name: str, reason: str) -> None:
        self._emit("task_planned", name=name, reason=reason)

    def attempt_over(self, name: str, attempt: EndedAttempt, verdict: str) -> None:
        self._emit(
            "task_ended",
            time=attempt.ended,
            name=name,
            attempt=attempt.attempt,
            verdict=verdict,
            outcome=attempt.outcome.value,
            status=attempt.status,
            seconds=round(attempt.ended - attempt.started, 6),
            cpu=round(attempt.user + attempt.system, 6),
            memory_bytes=attempt.max_rss,
            message=attempt.message,
        )

    def note(self, text: str) -> None:
        self._emit("note", text=text)

    def tick(self, statistics: Statistics, now: float) -> None:
        self._flush()

    def end(self, session: Session, run: RunDriver, status: int) -> None:
        totals = run.statistics
        self._emit(
            "run_ended",
            time=totals.ended,
            status=status,
            stopped=run.stop_reason,
            done=totals.done,
            up_to_date=totals.up_to_date,
            failed=totals.failed,
            not_run=totals.to_run() - totals.done - totals.failed,
            seconds=round(totals.ended - totals.started, 6),
            work=round(totals.work, 6),
            cpu=round(totals.cpu, 6),
            utilisation=round(totals.utilisation(), 4),
        )
        self._flush()

    def _emit(self, event: str, **fields: Any) -> None:
        self._pending.append(json.dumps({"event": event, **fields}))  # escapes names that are not UTF-8, too

    def _flush(self) -> None:
        """Many tasks may end between two ticks; they are written together."""
        if self._pending:
            self.screen.say("\n".join(self._pending))
            self._pending.clear()


REDRAW_SECONDS = 0.2
MOST_CATEGORIES = 5
_SHORTEST_BAR, _LONGEST_BAR, _CATEGORY_BAR = 4, 40, 12
_NARROW = 16
"""Cells; with fewer there is no room for names."""


class LiveDisplay(TrackingDisplay):
    """A bar with the time left, the counts, categories, and what holds the run back or went wrong."""

    def __init__(self, screen: Screen) -> None:
        super().__init__(screen)
        # Without colours the two parts of the bar must differ by themselves.
        self._blocks = "━━" if screen.coloured and screen.can_show("━") else "#-"
        self._dot = " · " if screen.can_show("·") else ", "
        self._next_draw = 0.0
        self._causes = Causes()

    def attempt_over(self, name: str, attempt: EndedAttempt, verdict: str) -> None:
        if verdict == "failed":
            self._causes.add(attempt.message)
        super().attempt_over(name, attempt, verdict)

    def tick(self, statistics: Statistics, now: float) -> None:
        if self._tracked is None:
            return
        pace = self._tracked.pace(statistics, now)
        if not self._next_draw:
            self._next_draw = statistics.started + REDRAW_SECONDS  # what is over in no time needs no display
        if now < self._next_draw:
            return
        self._next_draw = now + REDRAW_SECONDS
        width, height = self.screen.size()
        told = pace.progress(statistics, now)
        self.screen.draw(self.lines(statistics, told, pace.tallies(statistics), width - 1)[: max(1, height - 1)])

    def end(self, session: Session, run: RunDriver, status: int) -> None:
        self.screen.erase()

    def lines(
        self, statistics: Statistics, told: Progress, tallies: Mapping[str, CategoryPace], width: int
    ) -> list[str]:
        """The block as it stands at this moment, no line wider than `width`."""
        found = [self._progress(told, width), joined(self._counts(statistics, told), width, self._dot)]
        found += self._categories(tallies, width)
        if note := statistics.throttle_note(tallies):
            found.append(cut(printable(f"throttle: {note}"), width))
        if self._causes:
            found.append(self.screen.paint(cut(self._by_cause(), width), "red"))
        return found

    def _progress(self, told: Progress, width: int) -> str:
        words = [f" {show_progress(told.done, told.to_run):>5}"]
        if told.left is not None:
            words.append(time_left(told.left, told.least, told.most))
        words.append(f"{show_seconds(told.elapsed)} so far")
        room = max(width - _SHORTEST_BAR, min(width, cells(words[0])))  # the bar says more than the last of the words
        tail = joined(words, room, self._dot)
        share = told.done / max(1, told.to_run)
        return self._bar(share, min(_LONGEST_BAR, width - cells(tail)), bool(told.failed)) + tail

    def _bar(self, share: float, width: int, failed: bool) -> str:
        if width < _SHORTEST_BAR:
            return ""
        full = min(width, int(share * width))
        done = self.screen.paint(self._blocks[0] * full, "red" if failed else "green")
        return done + self.screen.paint(self._blocks[1] * (width - full), "dim")

    @staticmethod
    def _counts(statistics: Statistics, told: Progress) -> list[str]:
        """The most important first: what does not fit is left out from the end."""
        found = [f"{told.done:,} of {told.to_run:,} done", f"{told.running:,} running"]
        if told.failed:
            found.append(f"{told.failed:,} failed")
        if told.cancelled:
            found.append(f"{told.cancelled:,} cancelled")
        if told.cannot_run:
            found.append(f"{told.cannot_run:,} cannot run")
        if told.waiting:
            found.append(f"{told.waiting:,} not started")
        if told.done:
            found.append(show_rate(told.rate))
        if told.utilisation is not None:
            cores = show_cores(statistics.cores)
            found.append(f"{show_share(told.utilisation)} of {cores}")
        if statistics.retried:
            found.append(f"{statistics.retried:,} tried again")
        if told.up_to_date:
            found.append(f"{told.up_to_date:,} up to date")
        return found

    def _categories(self, tallies: Mapping[str, CategoryPace], width: int) -> list[str]:
        """Those that are under way, with bars; one that is the only one says nothing new."""
        if len(tallies) < 2 or width < _NARROW:
            return []
        running = sorted(((-tally.running, name) for name, tally in tallies.items() if tally.running))
        begun = sorted((name for name, tally in tallies.items() if tally.left() and tally.done and not tally.running))
        names = [name for _, name in running] + begun
        shown = names[:MOST_CATEGORIES]
        room = min(24, max(8, width // 3), max((cells(printable(name)) for name in shown), default=0))
        found = [self._category(name, tallies[name], room, width) for name in shown]
        others = len(names) - len(shown)
        return [*found, cut(f"and {others} other categories under way", width)] if others else found

    def _category(self, name: str, tally: CategoryPace, room: int, width: int) -> str:
        words = [f"{tally.done + tally.failed:,} of {tally.planned:,}"]
        if tally.running:
            words.append(f"{tally.running:,} running")
        if tally.failed:
            words.append(f"{tally.failed:,} failed")
        if tally.done:
            words.append(f"{show_seconds(tally.mean(0.0))} each")
        bar = min(_CATEGORY_BAR, width // 6, width - room - 2 - cells(words[0]))
        drawn = self._bar((tally.done + tally.failed) / max(1, tally.planned), bar, bool(tally.failed))
        drawn += " " * bool(drawn)
        taken = room + 1 + (bar + 1 if drawn else 0)
        return f"{padded(printable(name), room)} {drawn}{joined(words, width - taken, self._dot)}"

    def _by_cause(self) -> str:
        """`failed: exit status 3 (12), ended by signal 9 (2)`."""
        told = [f"{printable(cause)} ({number:,})" for cause, number in self._causes.most_common(3)]
        return f"failed: {', '.join(told)}"
