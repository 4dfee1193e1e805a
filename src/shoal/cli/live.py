"""The display on a terminal: three lines, redrawn in place at most five times a second, failures above them."""

from __future__ import annotations

from collections import Counter

from shoal.cli.display import FULL_FAILURES, QuietDisplay
from shoal.cli.screen import Screen
from shoal.cli.text import clip, show_left, show_percent, show_rate, show_seconds
from shoal.engine.attempt import EndedAttempt
from shoal.engine.pace import Pace, time_left, work_left
from shoal.engine.session import Run, Session
from shoal.engine.statistics import Statistics

REDRAW_SECONDS = 0.2
_MOST_CATEGORIES = 6


class LiveDisplay(QuietDisplay):
    """A bar, the counts, and what is running."""

    def __init__(self, screen: Screen) -> None:
        super().__init__(screen)
        # Without colours the two parts of the bar must differ by themselves.
        self._blocks = "━━" if screen.coloured and screen.can_show("━") else "#-"
        self._dot = " · " if screen.can_show("·") else ", "
        self._planned: Counter[str] = Counter()
        self._pace: Pace | None = None
        self._next_draw = 0.0
        self._retries = 0

    def begin(self, session: Session) -> None:
        graph = session.plan.graph
        categories = [profile.category for profile in graph.profiles]
        self._planned = Counter(categories[graph.profile[task]] for task in session.plan.to_run())

    def attempt_over(self, name: str, attempt: EndedAttempt, verdict: str) -> None:
        if verdict == "retry" and self._retries < FULL_FAILURES:
            self._retries += 1
            self.screen.say(self.screen.paint(f"again: {name}: attempt {attempt.attempt}: {attempt.message}", "yellow"))
        super().attempt_over(name, attempt, verdict)

    def tick(self, statistics: Statistics, now: float) -> None:
        if self._pace is None:
            self._pace = Pace(statistics.started)
            self._next_draw = statistics.started + REDRAW_SECONDS  # what is over in no time needs no display
        if now < self._next_draw:
            return
        self._next_draw = now + REDRAW_SECONDS
        self._pace.update(now, statistics.done, statistics.running)
        self.screen.draw(self.lines(statistics, now, self._pace, self.screen.width() - 1))

    def end(self, session: Session, run: Run, status: int) -> None:
        self.screen.erase()

    def lines(self, statistics: Statistics, now: float, pace: Pace, width: int) -> list[str]:
        """The block as it stands at this moment, no line longer than `width`."""
        over, to_run = statistics.over(), statistics.to_run()
        left = self._time_left(statistics, pace)
        times = [f"{show_seconds(now - statistics.started)} so far"]
        if left is not None:
            times.append(show_left(left))
        counts = [f"{statistics.done:,} of {to_run:,} done"]
        if statistics.up_to_date:
            counts.append(f"{statistics.up_to_date:,} up to date")
        if statistics.failed:
            counts.append(f"{statistics.failed:,} failed")
        if statistics.doomed:
            counts.append(f"{statistics.doomed:,} cannot run")
        if statistics.retried:
            counts.append(f"{statistics.retried:,} tried again")
        if statistics.done:
            counts.append(show_rate(pace.rate))
        percent = show_percent(over, to_run)
        tail = clip(f" {percent:>5}{self._dot}{self._dot.join(times)}", width)
        bar = self._bar(over / max(1, to_run), min(60, width - len(tail)), bool(statistics.failed))
        return [
            bar + tail,
            clip(self._dot.join(counts), width),
            clip(self._running(statistics), width),
        ]

    def _bar(self, share: float, width: int, failed: bool) -> str:
        if width < 4:
            return ""
        full = min(width, int(share * width))
        done = self.screen.paint(self._blocks[0] * full, "red" if failed else "green")
        return done + self.screen.paint(self._blocks[1] * (width - full), "dim")

    def _running(self, statistics: Statistics) -> str:
        running = [(totals.running, name) for name, totals in statistics.categories.items() if totals.running]
        if not running:
            return "nothing running"
        running.sort(key=lambda pair: -pair[0])
        shown = [f"{name} {number:,}" for number, name in running[:_MOST_CATEGORIES]]
        if len(running) > _MOST_CATEGORIES:
            shown.append(f"{len(running) - _MOST_CATEGORIES} other categories")
        return f"{statistics.running:,} running: {', '.join(shown)}"

    def _time_left(self, statistics: Statistics, pace: Pace) -> float | None:
        tasks = statistics.to_run() - statistics.over()
        done: dict[str, tuple[int, float]] = {}
        left: dict[str, int] = {}
        for category, number in self._planned.items():
            totals = statistics.categories.get(category)
            ended = totals.done + totals.failed if totals else 0
            if totals and ended:
                done[category] = (ended, totals.seconds)
            left[category] = number - ended
        work = work_left(left, done)
        all_left = sum(left.values())
        if work is not None and all_left:
            work *= tasks / all_left  # those that cannot run any more are not counted by category
        return time_left(work, max(0.0, pace.busy - statistics.seconds), pace.width(), pace.rate, tasks)
