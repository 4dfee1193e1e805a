"""The calls a worker was sent together, and how records in the shared page become their results.

Each call of a bundle is settled exactly once: by the record that the worker wrote, by withdrawal before it was begun,
or by the worker's death. Deciding when to do the latter two is up to `shoal.runner.call_worker`.
"""

from __future__ import annotations

import marshal
import os
import time
from collections.abc import Sequence

from shoal.runner.call_errors import CallCancelledError, CallCrashedError, CallError, CallTimeoutError, pickled
from shoal.runner.call_messages import CallRequest, CallResult, Outcome
from shoal.runner.call_page import FINISHED, RECORD, RECORDS, SKIPPED, WINDOW, WRITTEN, Page

OUTPUT_LIMIT_BYTES = 16 * 1024 * 1024
"""Of longer output of one call only the two ends are kept, half of this each."""

_ERRORS: dict[Outcome, type[CallError]] = {
    "crashed": CallCrashedError,
    "timeout": CallTimeoutError,
    "cancelled": CallCancelledError,
}


class OutputFile:
    """The file into which a worker's standard output and standard error go, read stretch by stretch."""

    __slots__ = ("_file", "position")

    def __init__(self, file: int) -> None:
        self._file = file
        self.position = 0
        """Everything before this offset has been read."""

    def read_to(self, end: int) -> bytes:
        """What was written since the last time, up to the offset `end`."""
        start, self.position = self.position, max(end, self.position)
        if end - start <= OUTPUT_LIMIT_BYTES:
            return os.pread(self._file, end - start, start) if end > start else b""
        half = OUTPUT_LIMIT_BYTES // 2
        gap = f"\n[... {end - start - 2 * half} bytes of output left out ...]\n".encode()
        return os.pread(self._file, half, start) + gap + os.pread(self._file, half, end - half)

    def read_all(self) -> bytes:
        """Everything that has not been read."""
        return self.read_to(os.fstat(self._file).st_size)

    def reset(self) -> None:
        """Give the space back, unless something has arrived that nobody has read: that goes to the next call."""
        if self.position and os.fstat(self._file).st_size == self.position:
            os.ftruncate(self._file, 0)
            self.position = 0


class Bundle:
    """Calls that were sent to a worker together; `unsettled` are those without a result."""

    __slots__ = ("_held", "_page", "_position", "cancelled", "flagged_at", "shortest", "unsettled", "withdrawn")

    def __init__(self, calls: Sequence[CallRequest], page: Page) -> None:
        self.unsettled = dict(enumerate(calls))
        self.cancelled: set[int] = set()
        self.withdrawn: list[int] = []
        """Slots that were flagged at `flagged_at`, of which it is not known yet whether they were begun before."""
        self.flagged_at = 0.0
        self.shortest = min((call.timeout for call in calls if call.timeout is not None), default=None)
        """The shortest time-out of all calls."""
        self._page = page
        self._position = RECORDS
        self._held: list[CallResult] = []

    def take(self, output: OutputFile, done: bool) -> list[CallResult]:
        """The results that have been completed since the last time; `done` if the worker is through.

        The last results are held back until it is, a moment later: whoever gets them will want to use the worker.
        """
        results = self._held + self._read(output)
        self._held = []
        if not self.unsettled and not done:
            self._held, results = results, []
        return results

    def _read(self, output: OutputFile) -> list[CallResult]:
        written = self._page.words[WRITTEN]
        start, position = self._position, 0
        if start >= written:
            return []
        records = self._page.fetch(start, written - start)
        epoch = time.time() - time.monotonic()
        results = []
        while position < len(records):
            slot, code, began, ended, user, system, peak, printed, size = RECORD.unpack_from(records, position)
            position += RECORD.size + size
            call = self.unsettled.get(slot)
            if call is None:
                continue
            if code == SKIPPED:
                results.append(self.unbegun(slot))
                continue
            del self.unsettled[slot]
            body = bytes(records[position - size : position])
            outcome: Outcome = "ok"
            error, text = None, ""
            if code != FINISHED:
                outcome = "error"
                error, text = marshal.loads(body)
                body = b""
            results.append(
                CallResult(
                    call.task,
                    call.attempt,
                    outcome,
                    body,
                    error,
                    text,
                    epoch + began,
                    epoch + ended,
                    user,
                    system,
                    peak,
                    b"" if printed == output.position else output.read_to(printed),
                )
            )
        self._position = written
        return results

    def overflowed(self) -> bool:
        """Whether records went beyond the mapped window, so that the file has grown."""
        return self._page.words[WRITTEN] > WINDOW

    def unbegun(self, slot: int) -> CallResult:
        """Settle a call that was not begun and will not be."""
        call = self.unsettled.pop(slot)
        if slot in self.cancelled:
            text = "the call was cancelled before it began"
            return ended_call(call, "cancelled", text, 0.0, 0.0, b"")
        return ended_call(call, "lost", "", 0.0, 0.0, b"")

    def cut_short(self, slot: int, outcome: Outcome, text: str, began: float, output: bytes) -> CallResult:
        """Settle the call that was running when its worker died; `began` is by the monotonic clock."""
        now = time.time()
        started = now - (time.monotonic() - began) if began else now
        return ended_call(self.unsettled.pop(slot), outcome, text, started, now, output)


def ended_call(
    call: CallRequest, outcome: Outcome, text: str, started: float, ended: float, output: bytes
) -> CallResult:
    """The result of a call that has none of its own."""
    error = pickled(_ERRORS[outcome](text)) if outcome in _ERRORS else None
    return CallResult(call.task, call.attempt, outcome, b"", error, text, started, ended, 0.0, 0.0, 0, output)
