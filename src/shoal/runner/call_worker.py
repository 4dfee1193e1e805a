"""The runner's side of one worker: sends bundles, takes results, withdraws, ends and buries.

Theory of operation. A worker has at most one bundle at a time.

*Looking.* A worker announces results seldom, and not at all while a call runs. So the runner looks into the shared page
at `look_at`: when the call that is running has run for `STABLE`, then everything written before it is visible and
nothing is being written, and the results of short calls do not wait for a long one. Time-outs are found likewise: the
page says which call is running and since when.

*Withdrawing* takes back calls that were not begun. The runner sets their flags in the page and looks again after
`STABLE`. The worker notes that it begins a call before it reads that call's flag. So had it missed the flag, its note
would be visible by now; if there is no note, the worker will see the flag and skip the call.

*Ending.* Only SIGKILL to the worker's group ends a call. Nothing is settled until the process is dead, because until
then the call may still finish; then the page says which call it was that died.
"""

from __future__ import annotations

import marshal
import os
import signal
from collections.abc import Mapping, Sequence

from shoal.runner.call_bundle import Bundle, OutputFile
from shoal.runner.call_messages import CallRequest, CallResult, Outcome
from shoal.runner.call_page import DONE, FLAGS, FRAME, MAX_CALLS, RECORDS, RUNNING, STARTED, WINDOW, WRITTEN, Page
from shoal.runner.call_process import WorkerProcess

STABLE = 0.002
"""After this long, what one process wrote into shared memory is visible to the other."""
HOLD = 0.005
"""A result waits about this long behind a call that turns out to be long."""
START_LIMIT = 60.0
"""A new worker that has not begun its first call by then is given up."""


class CallWorker:
    """One worker process and the bundle it works on."""

    def __init__(self, process: WorkerProcess) -> None:
        self.process = process
        self.shipped: set[int] = set()
        """Functions the worker has been sent."""
        self.bundle: Bundle | None = None
        self.look_at: float | None = None
        """When `look` has something to do, by the monotonic clock."""
        self.ending: tuple[Outcome, int] | None = None
        """What the worker was killed for: the outcome of which slot."""
        self._page = Page(process.memory)
        self._output = OutputFile(process.output)
        self._forgotten: list[int] = []
        self._grown = False
        self._proven = False
        self._given_at = 0.0
        self._gave_up = False

    def forget(self, function: int) -> None:
        """Let the worker drop a function with its next bundle."""
        if function in self.shipped:
            self.shipped.discard(function)
            self._forgotten.append(function)

    def give(self, calls: Sequence[CallRequest], functions: Mapping[int, bytes], now: float) -> None:
        """Send an idle worker a bundle, with those functions it has not seen."""
        assert self.bundle is None and 0 < len(calls) <= MAX_CALLS, "a bundle of 1 to MAX_CALLS calls, one at a time"
        learned = {number: functions[number] for number in {call.function for call in calls} - self.shipped}
        self.shipped.update(learned)
        sizes = [(call.function, len(call.payload)) for call in calls]
        head = marshal.dumps((learned, self._forgotten, sizes))
        self._forgotten = []
        frame = b"".join([len(head).to_bytes(8, "little"), head, *[call.payload for call in calls]])
        page, words = self._page, self._page.words
        self._grown = page.store(RECORDS, frame) > WINDOW
        page.memory[FLAGS : FLAGS + len(calls)] = bytes(len(calls))
        words[RUNNING] = words[DONE] = 0
        words[WRITTEN] = RECORDS
        words[FRAME] = len(frame)
        self.bundle = bundle = Bundle(calls, page)
        self._given_at = now
        self.look_at = None if self._proven else now + START_LIMIT
        if bundle.shortest is not None:
            self._look_by(now + bundle.shortest)
        if len(calls) > 1:
            self._look_by(now + HOLD)
        try:
            os.write(self.process.bell, b".")
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has died: its death will be noticed, and the calls come back

    def listen(self) -> bool:
        """Empty the bell; false if the other end is closed."""
        try:
            return bool(os.read(self.process.bell, 4096))
        except BlockingIOError:
            return True
        except ConnectionResetError:
            return False

    def take(self, now: float) -> list[CallResult]:
        """The results that are there; the worker is idle again (`bundle` is None) when it has been through all."""
        bundle = self.bundle
        if bundle is None:
            return []
        done = bool(self._page.words[DONE])  # read first: once it is set, everything has been written
        results = bundle.take(self._output, done)
        if done:
            self._finish(bundle)
        elif len(bundle.unsettled) > 1:
            self._look_by(now + HOLD)
        return results

    def _finish(self, bundle: Bundle) -> None:
        if self._grown or bundle.overflowed():
            os.ftruncate(self.process.memory, WINDOW)
        self._output.reset()
        self._proven = True
        self.bundle = None
        self.look_at = None

    def look(self, now: float, patience: float | None) -> list[CallResult]:
        """Do what is due: unannounced results, withdrawals, time-outs, calls kept waiting longer than `patience`."""
        self.look_at = None
        bundle = self.bundle
        if bundle is None or self.ending:
            return []
        slot, started = self._running()
        age = now - started if slot >= 0 else 0.0
        if slot < 0 and not self._proven and now - self._given_at >= START_LIMIT:
            self._gave_up = True
            self.process.signal_group(signal.SIGKILL)
            return []
        results = bundle.take(self._output, False) if age >= STABLE else []
        if bundle.withdrawn and now - bundle.flagged_at >= STABLE:
            results += self._settle_withdrawn(bundle, slot, age)
        call = bundle.unsettled.get(slot)
        if call is not None and call.timeout is not None and age >= call.timeout:
            self.end("timeout", slot)
        if self.ending:
            return results
        if patience is not None and age >= patience and not bundle.withdrawn:
            self._withdraw(bundle, [later for later in bundle.unsettled if later > slot], now)
        self._plan_look(bundle, slot, started, now, patience)
        return results

    def cancel(self, slot: int, now: float) -> None:
        """End a call that runs, take back one that waits; its result follows."""
        bundle = self.bundle
        assert bundle is not None
        bundle.cancelled.add(slot)
        if slot == self._running()[0]:
            self.end("cancelled", slot)
        else:
            self._withdraw(bundle, [slot], now)

    def end(self, outcome: Outcome, slot: int) -> None:
        """Kill the worker's whole group because of one call; results follow when it is dead."""
        if self.ending is None:
            self.ending = (outcome, slot)
            self.look_at = None
            self.process.signal_group(signal.SIGKILL)

    def bury(self) -> list[CallResult]:
        """The process is dead: settle what it left, then reap it."""
        bundle = self.bundle
        if bundle is None:
            self.process.reap()
            return []
        results = bundle.take(self._output, True)
        slot, began = self._running()
        output = self._output.read_all()
        how = self.process.reap()
        text = f"the worker process {how} during the call"
        if slot < 0 and bundle.unsettled and not self._proven and not self.ending:
            # Somebody must be charged, or a set-up in which no worker starts would be tried for ever.
            slot = min(bundle.unsettled)
            how = f"took longer than {START_LIMIT:g} s" if self._gave_up else how
            text = f"the worker process {how} before it could begin a call: {_last_line(output)}"
        for unsettled in list(bundle.unsettled):
            if unsettled == slot:
                results.append(self._cut_short(bundle, slot, text, began, output))
            else:
                results.append(bundle.unbegun(unsettled))
        self.bundle = None
        return results

    def _cut_short(self, bundle: Bundle, slot: int, text: str, began: float, output: bytes) -> CallResult:
        if self.ending is None:
            return bundle.cut_short(slot, "crashed", text, began, output)
        outcome, culprit = self.ending
        if slot != culprit:
            # The culprit finished after all, and this one was begun and killed in its place.
            return bundle.cut_short(slot, "lost", "", began, output)
        if outcome == "timeout":
            text = f"the call was ended after {bundle.unsettled[slot].timeout:g} s, the time it was allowed"
        else:
            text = "the call was cancelled while it ran"
        return bundle.cut_short(slot, outcome, text, began, output)

    def _running(self) -> tuple[int, float]:
        """The slot that was begun last, -1 if none was, and when."""
        words = self._page.words
        while True:
            running = words[RUNNING]
            started = self._page.times[STARTED]
            if words[RUNNING] == running:
                return running - 1, started if running else 0.0

    def _withdraw(self, bundle: Bundle, slots: Sequence[int], now: float) -> None:
        if not slots:
            return
        for slot in slots:
            self._page.memory[FLAGS + slot] = 1
        bundle.withdrawn.extend(slots)
        bundle.flagged_at = now
        self._look_by(now + STABLE)

    def _settle_withdrawn(self, bundle: Bundle, running: int, age: float) -> list[CallResult]:
        results = []
        open_questions = []
        for slot in bundle.withdrawn:
            if slot not in bundle.unsettled:
                continue
            if slot > running:
                results.append(bundle.unbegun(slot))
            elif slot == running and slot in bundle.cancelled:
                # Begun just before it was flagged; if it is not merely being skipped, it has to be ended.
                if age >= STABLE:
                    self.end("cancelled", slot)
                else:
                    open_questions.append(slot)
        bundle.withdrawn = open_questions
        return results

    def _plan_look(self, bundle: Bundle, slot: int, started: float, now: float, patience: float | None) -> None:
        call = bundle.unsettled.get(slot)
        if slot < 0 and not self._proven:
            self._look_by(self._given_at + START_LIMIT)
        if call is not None and call.timeout is not None:
            self._look_by(started + call.timeout)
        if bundle.withdrawn:
            self._look_by(now + STABLE)
        if len(bundle.unsettled) <= (call is not None):
            return
        if bundle.shortest is not None:
            self._look_by(now + max(bundle.shortest, HOLD))
        if slot < 0 or now - started < HOLD:
            self._look_by(now + HOLD)
        elif patience is not None and not bundle.withdrawn:
            self._look_by(max(started + patience, now + STABLE))

    def _look_by(self, when: float) -> None:
        if self.look_at is None or when < self.look_at:
            self.look_at = when


def _last_line(output: bytes) -> str:
    return output.decode(errors="replace").rstrip().rpartition("\n")[2] or "no output"
