"""Progress displays of `shoal run` (quiet, plain lines, JSON, live block) and the summary at the end of a run."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from shoal.core.quantities import (
    count,
    show_bytes,
    show_cores,
    show_progress,
    show_rate,
    show_seconds,
    show_share,
    time_left,
)
from shoal.execution.attempt_recorder import EndedAttempt
from shoal.execution.session import RunDriver, Session
from shoal.ledger.statistics import CategoryTotals, PlannedChain, RunPace, Statistics
from shoal.ledger.views.failures import Causes
from shoal.ledger.views.pace import CategoryPace, Progress
from shoal.ui.cli.plan_text import count_up_to_date
from shoal.ui.cli.screen import Screen
from shoal.ui.cli.text import cells, cut, joined, last_words, padded, printable, printable_lines, table

FULL_FAILURES = 20
NAMED_FAILURES = 200
PLAIN_SECONDS = 10.0


class Tracked:
    """The pace of a session's run. Planned tasks are counted at the first call, to start the run without delay."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._pace: RunPace | None = None

    def pace(self, statistics: Statistics, now: float) -> RunPace:
        """Updates the pace with the current totals."""
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
    """Shows failures and errors only. The other displays extend it."""

    report_all = False
    """Whether `attempt_over` is also called for attempts that succeeded."""

    def __init__(self, screen: Screen) -> None:
        self.screen = screen
        self._failures = 0

    def begin(self, session: Session) -> None:
        """Called when the plan is made and nothing has been started."""

    def explain(self, name: str, reason: str) -> None:
        """Reports why a task will run."""
        self.screen.say(printable(f"{name}: {reason}"))

    def tick(self, statistics: Statistics, now: float) -> None:
        """Called about ten times a second."""

    def attempt_over(self, name: str, attempt: EndedAttempt, verdict: str) -> None:
        """Reports a failed task: name, cause and last lines of output, up to a maximum number of failures."""
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
        """Called when the run is over."""

    def shown_failures(self) -> int:
        """Number of failures already shown with their output, if standard output goes to the same place: the summary
        then does not repeat them."""
        return min(self._failures, FULL_FAILURES) if self.screen.is_same_as(sys.stdout) else 0


class TrackingDisplay(QuietDisplay):
    """Tracks the pace of the run, and prints a line for each retried attempt, up to a maximum."""

    def __init__(self, screen: Screen) -> None:
        super().__init__(screen)
        self._retries = 0
        self._tracked: Tracked | None = None

    def begin(self, session: Session) -> None:
        self._tracked = Tracked(session)

    def attempt_over(self, name: str, attempt: EndedAttempt, verdict: str) -> None:
        if verdict == "retry" and self._retries < FULL_FAILURES:
            self._retries += 1
            what = printable(f"retrying {name}: attempt {attempt.attempt}: {attempt.message}")
            self.screen.say(self.screen.paint(what, "yellow"))
        super().attempt_over(name, attempt, verdict)


class PlainDisplay(TrackingDisplay):
    """Prints a line at the start, then one every ten seconds or ten per cent, but at most one per second."""

    def __init__(self, screen: Screen) -> None:
        super().__init__(screen)
        self._next_time = 0.0
        self._next_share = 0.1

    def begin(self, session: Session) -> None:
        super().begin(session)
        to_run = len(session.plan.to_run())
        if to_run:
            cores = session.total_cores()
            where = f" on {show_cores(cores)}" if cores else "; no node has joined yet"
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
        progress = pace.progress(statistics, now)
        lost = ((progress.failed, "failed"), (progress.cancelled, "cancelled"), (progress.cannot_run, "cannot run"))
        others = "".join(f", {number:,} {word}" for number, word in lost if number)
        left = f", {time_left(progress.left, progress.least, progress.most)}" if progress.left is not None else ""
        self.screen.say(
            f"{show_progress(done, to_run)}: {done:,} of {to_run:,} done{others}, {progress.running:,} running, "
            f"{show_rate(progress.rate)}, {show_seconds(progress.elapsed)} so far{left}"
        )


def choose_display(arguments: argparse.Namespace) -> QuietDisplay:
    """Returns the display selected by the options, or the one that suits standard error."""
    if arguments.json:
        return JsonDisplay(sys.stdout)
    screen = Screen(sys.stderr)
    if arguments.quiet:
        return QuietDisplay(screen)
    if arguments.plain or not screen.live:
        return PlainDisplay(screen)

    return LiveDisplay(screen)


class JsonDisplay(QuietDisplay):
    """Writes `run_started`, `task_planned` (with --explain), `task_ended`, `note` and `run_ended` as JSON lines."""

    report_all = True

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
        import json

        self._pending.append(json.dumps({"event": event, **fields}))  # escapes names that are not UTF-8, too

    def _flush(self) -> None:
        """Writes the pending events together, because many tasks may end between two ticks."""
        if self._pending:
            self.screen.say("\n".join(self._pending))
            self._pending.clear()


REDRAW_SECONDS = 0.2
MOST_CATEGORIES = 5
_SHORTEST_BAR, _LONGEST_BAR, _CATEGORY_BAR = 4, 40, 12
_NARROW = 16
"""Width in cells below which there is no room for names."""


class LiveDisplay(TrackingDisplay):
    """A progress bar with the time left, the counts, categories, the current limit and the causes of failures."""

    def __init__(self, screen: Screen) -> None:
        super().__init__(screen)
        # Without colours, the two parts of the bar need different characters.
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
            self._next_draw = statistics.started + REDRAW_SECONDS  # a very short run needs no display
        if now < self._next_draw:
            return
        self._next_draw = now + REDRAW_SECONDS
        width, height = self.screen.size()
        progress = pace.progress(statistics, now)
        self.screen.draw(self.lines(statistics, progress, pace.tallies(statistics), width - 1)[: max(1, height - 1)])

    def end(self, session: Session, run: RunDriver, status: int) -> None:
        self.screen.erase()

    def lines(
        self, statistics: Statistics, progress: Progress, tallies: Mapping[str, CategoryPace], width: int
    ) -> list[str]:
        """The current block; no line is wider than `width`."""
        found = [self._progress(progress, width), joined(self._counts(statistics, progress), width, self._dot)]
        found += self._categories(tallies, width)
        if note := statistics.throttle_note(tallies):
            found.append(cut(printable(f"throttle: {note}"), width))
        if self._causes:
            found.append(self.screen.paint(cut(self._by_cause(), width), "red"))
        return found

    def _progress(self, progress: Progress, width: int) -> str:
        words = [f" {show_progress(progress.done, progress.to_run):>5}"]
        if progress.left is not None:
            words.append(time_left(progress.left, progress.least, progress.most))
        words.append(f"{show_seconds(progress.elapsed)} so far")
        room = max(width - _SHORTEST_BAR, min(width, cells(words[0])))  # the bar is more useful than the last words
        tail = joined(words, room, self._dot)
        share = progress.done / max(1, progress.to_run)
        return self._bar(share, min(_LONGEST_BAR, width - cells(tail)), bool(progress.failed)) + tail

    def _bar(self, share: float, width: int, failed: bool) -> str:
        if width < _SHORTEST_BAR:
            return ""
        full = min(width, int(share * width))
        done = self.screen.paint(self._blocks[0] * full, "red" if failed else "green")
        return done + self.screen.paint(self._blocks[1] * (width - full), "dim")

    @staticmethod
    def _counts(statistics: Statistics, progress: Progress) -> list[str]:
        """The most important first: what does not fit is cut off at the end."""
        found = [f"{progress.done:,} of {progress.to_run:,} done", f"{progress.running:,} running"]
        if progress.failed:
            found.append(f"{progress.failed:,} failed")
        if progress.cancelled:
            found.append(f"{progress.cancelled:,} cancelled")
        if progress.cannot_run:
            found.append(f"{progress.cannot_run:,} cannot run")
        if progress.waiting:
            found.append(f"{progress.waiting:,} not started")
        if progress.done:
            found.append(show_rate(progress.rate))
        if progress.utilisation is not None:
            cores = show_cores(statistics.cores)
            found.append(f"{show_share(progress.utilisation)} of {cores}")
        if statistics.retried:
            found.append(f"{statistics.retried:,} retried")
        if progress.up_to_date:
            found.append(f"{progress.up_to_date:,} up to date")
        return found

    def _categories(self, tallies: Mapping[str, CategoryPace], width: int) -> list[str]:
        """Active categories with bars. A single category would add nothing."""
        if len(tallies) < 2 or width < _NARROW:
            return []
        running = sorted(((-tally.running, name) for name, tally in tallies.items() if tally.running))
        begun = sorted((name for name, tally in tallies.items() if tally.left() and tally.done and not tally.running))
        names = [name for _, name in running] + begun
        shown = names[:MOST_CATEGORIES]
        room = min(24, max(8, width // 3), max((cells(printable(name)) for name in shown), default=0))
        found = [self._category(name, tallies[name], room, width) for name in shown]
        others = len(names) - len(shown)
        return [*found, cut(f"and {others} other active categories", width)] if others else found

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
        causes = [f"{printable(cause)} ({number:,})" for cause, number in self._causes.most_common(3)]
        return f"failed: {', '.join(causes)}"


SUMMARY_CATEGORIES = 8
MOST_SLOW = 4
MOST_FAILURES = 5
_WORTH_A_TABLE = 4


def summarise(
    totals: Statistics,
    names: Sequence[str],
    stopped: str,
    workflow: Sequence[str],
    words: Sequence[str],
    shown: int = 0,
) -> str:
    """The whole text. `names` are the task names by number; `workflow` and `words` are the user's words and relevant
    options. The first `shown` failures were already shown with their output during the run."""
    if not totals.to_run():
        return nothing_to_do(totals.up_to_date)
    lines = [headline(totals, stopped), _cost(totals)]
    if totals.done >= _WORTH_A_TABLE:
        lines += category_table(totals.categories)
        slowest = sorted(totals.slowest, reverse=True)[:MOST_SLOW]
        lines.append("slowest: " + ", ".join(f"{names[task]} {show_seconds(seconds)}" for seconds, task in slowest))
    if totals.failed:
        lines += _failures(totals, shown)
    if totals.done < totals.to_run():
        lines += _how_to_go_on(totals, workflow, words)
    return "\n".join(map(printable, lines))


def nothing_to_do(up_to_date: int) -> str:
    if not up_to_date:
        return "nothing to do: there is no task that runs anything"
    return f"nothing to do: {count(up_to_date, 'task')} {'is' if up_to_date == 1 else 'are'} up to date"


def headline(totals: Statistics, stopped: str) -> str:
    """The outcome with the counts."""
    counts = [f"{count(totals.done, 'task')} done"]
    if totals.up_to_date:
        counts.append(f"{totals.up_to_date:,} up to date")
    if totals.failed:
        counts.append(f"{totals.failed:,} failed")
    left = totals.to_run() - totals.done - totals.failed
    if totals.cancelled and not stopped:
        counts.append(f"{totals.cancelled:,} cancelled")
        left -= totals.cancelled
    if left:
        counts.append(f"{left:,} not run")
    if totals.retried:
        counts.append(f"{totals.retried:,} retried")
    if totals.done == totals.to_run():
        how = "all done"
    else:
        how = f"stopped ({stopped})" if stopped else "not everything could be made"
    return f"{how}: {', '.join(counts)}"


def _cost(totals: Statistics) -> str:
    wall = totals.ended - totals.started
    return (
        f"{show_seconds(wall)} wall time, {show_seconds(totals.seconds)} of task time "
        f"({show_seconds(totals.cpu)} cpu), {show_share(totals.utilisation())} of {show_cores(totals.cores)} used"
    )


def category_table(categories: dict[str, CategoryTotals]) -> list[str]:
    """Categories with the most run time, each with count, mean of the successful attempts, longest attempt and peak
    memory."""
    used = [(name, totals) for name, totals in categories.items() if totals.done or totals.failed]
    ranked = sorted(used, key=lambda item: -item[1].seconds)
    rows = [("category", "tasks", "failed", "mean", "longest", "most memory")]
    for name, totals in ranked[:SUMMARY_CATEGORIES]:
        rows.append(
            (
                name,
                f"{totals.done:,}",
                f"{totals.failed:,}",
                show_seconds(totals.good / totals.done) if totals.done else "-",
                show_seconds(totals.longest),
                show_bytes(totals.most_memory) if totals.most_memory else "-",
            )
        )
    if not any(totals.failed for totals in categories.values()):
        rows = [(name, done, *rest) for name, done, _, *rest in rows]  # type: ignore[misc]  # a column less
    lines = table(rows)
    if len(ranked) > SUMMARY_CATEGORIES:
        lines.append(f"  and {len(ranked) - SUMMARY_CATEGORIES} more categories")
    return lines


def _failures(totals: Statistics, shown: int) -> list[str]:
    lines = [f"failed ({totals.failed:,}):"]
    for number, failure in enumerate(totals.failures[:MOST_FAILURES]):
        attempts = f" (attempt {failure.attempt})" if failure.attempt > 1 else ""
        lines.append(f"  {failure.name}{attempts}: {failure.message}")
        if number >= shown:
            lines += [f"    | {line}" for line in last_words(failure.tail, failure.message)]
    more = totals.failed - min(len(totals.failures), MOST_FAILURES)
    if more:
        lines.append(f"  and {more:,} more; 'shoal status' lists them")
    return lines


def _how_to_go_on(totals: Statistics, workflow: Sequence[str], words: Sequence[str]) -> list[str]:
    lines = [f"to continue with the remaining tasks: {shlex.join(['shoal', 'run', *workflow, *words])}"]
    if totals.failures:
        name = totals.failures[0].name
        dashes = ["--"] if name.startswith("-") else []
        lines.append(f"output of {name}: {shlex.join(['shoal', 'output', *dashes, name, *workflow])}")
    return lines
