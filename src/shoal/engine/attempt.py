"""An attempt that has ended, as the engine holds it until the broker has said what becomes of it; who attends it."""

from __future__ import annotations

from typing import Protocol

import msgspec

from shoal.ledger.records import TaskEnded, Usage
from shoal.policy.retry import Outcome


class EndedAttempt(msgspec.Struct):
    """Everything the ledger wants to know of an attempt, whichever runner it ran in."""

    task: int
    attempt: int
    outcome: Outcome
    status: int
    started: float
    ended: float
    user: float = 0.0
    system: float = 0.0
    max_rss: int = 0
    output_at: int = 0
    output_size: int = 0
    message: str = ""
    tail: bytes = b""
    value: bytes | None = None
    usage: Usage = Usage()
    memory_limit: int = 0
    node: int = 0
    """Where it ran; 0 is this machine."""
    listing: bytes = b""
    """What it made in directories: see `shoal.plan.ownership`."""

    def note_files(self, size: int, count: int) -> None:
        """It made so many bytes in so many files."""
        used = self.usage
        if size > used.disk or count > used.files:
            self.usage = msgspec.structs.replace(used, disk=max(size, used.disk), files=max(count, used.files))

    def record(
        self, final: bool, place: bytes, content: bytes, inputs: bytes, outputs: list[tuple[int, int]], check: int
    ) -> TaskEnded:
        return TaskEnded(
            self.task,
            self.attempt,
            self.outcome.value,
            final,
            self.status,
            self.started,
            self.ended,
            self.user,
            self.system,
            self.max_rss,
            self.output_at,
            self.output_size,
            self.message,
            place,
            content,
            inputs,
            outputs,
            self.value,
            self.usage,
            self.memory_limit,
            self.node,
            check,
            self.listing,
        )


class Attendant(Protocol):
    """Whoever stands in for another program and does around every attempt what that program does."""

    def dress(self, task: int, command: str) -> str:
        """The command line that is started in place of the task's own."""

    def started(self, task: int, attempt: int) -> None:
        """An attempt is about to be handed to the launcher."""

    def ended(self, attempt: EndedAttempt) -> None:
        """An attempt ended, and nobody has heard of it yet; its outcome may still be changed."""

    def collect(self) -> list[bytes]:
        """Removes files that nothing needs any more; returns the places of the tasks that made them."""
