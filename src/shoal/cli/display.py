"""What the user sees of a run while it goes on: the choice among the displays, and the plain one."""

from __future__ import annotations

import argparse
import sys

from shoal.engine.attempt import EndedAttempt
from shoal.engine.local import LocalRun
from shoal.engine.session import Session
from shoal.engine.statistics import Statistics


class QuietDisplay:
    """Shows failures and errors, nothing else; the other displays add to it."""

    def begin(self, session: Session) -> None:
        """The plan is made and nothing has been started."""

    def tick(self, statistics: Statistics, now: float) -> None:
        """Called about ten times a second."""

    def attempt_over(self, name: str, attempt: EndedAttempt, verdict: str) -> None:
        if verdict == "failed":
            self.say(f"failed: {name}: {attempt.message}")

    def note(self, text: str) -> None:
        self.say(text)

    def end(self, run: LocalRun) -> None:
        """The run is over."""

    def say(self, text: str) -> None:
        print(f"shoal: {text}", file=sys.stderr, flush=True)


def choose_display(arguments: argparse.Namespace) -> QuietDisplay:
    return QuietDisplay()
