"""The display on a terminal: a few lines, redrawn in place at most five times a second, failures above them.

What they say comes from the same model as the page and `shoal top`: see `shoal.view.pace`.
"""

from __future__ import annotations

from collections.abc import Mapping

from shoal.cli.cells import cells, cut, joined, padded, printable
from shoal.cli.display import TrackingDisplay
from shoal.cli.screen import Screen
from shoal.engine.attempt import EndedAttempt
from shoal.engine.session import Run, Session
from shoal.engine.statistics import Statistics
from shoal.model.quantities import show_cores, show_progress, show_rate, show_seconds, show_share, time_left
from shoal.view.causes import Causes
from shoal.view.pace import Progress, Tally

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

    def end(self, session: Session, run: Run, status: int) -> None:
        self.screen.erase()

    def lines(self, statistics: Statistics, told: Progress, tallies: Mapping[str, Tally], width: int) -> list[str]:
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

    def _categories(self, tallies: Mapping[str, Tally], width: int) -> list[str]:
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

    def _category(self, name: str, tally: Tally, room: int, width: int) -> str:
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
