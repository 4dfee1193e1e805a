"""The tasks of a run for a crate: each one by its last attempt, or all of a category taken together."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from shoal.crate.facts import TaskFacts
from shoal.crate.files import Listing
from shoal.crate.graphed import Ran
from shoal.crate.steps import positions
from shoal.model.quantities import count
from shoal.view.columns import Array, Ints
from shoal.view.fold import UNKNOWN
from shoal.view.run import RunView

KILLED = "It was running when the run was killed."
CANCELLED = "It was cancelled."
_CANCELLED = "cancelled"
"""The outcome of attempts that somebody ended, task by task or with the whole run."""


class Counts(msgspec.Struct, frozen=True):
    """How the tasks of a run stand at its end, as its report and `shoal status` count them."""

    done: int
    failed: int
    cancelled: int
    """Also of those that had not begun."""
    unfinished: int
    """Those that had begun and are none of these: they ran when the run was killed or stopped, or were to be tried
    again."""

    def __str__(self) -> str:
        words = [f"{count(self.done, 'task')} done"]
        others = (self.failed, "failed"), (self.cancelled, _CANCELLED), (self.unfinished, "not finished")
        return ", ".join([*words, *(f"{number:,} {how}" for number, how in others if number)])


class LastAttempts:
    """Rows of the attempts that count, and the steps that they belong to."""

    def __init__(self, view: RunView) -> None:
        self.view = view
        rows = view.attempts
        unfinished = sorted(set(view.running)) if view.end is None else []
        highest = max([int(rows.task.max(initial=-1)), *unfinished])
        self._row: Ints = np.full(highest + 1, -1, np.int64)
        self._row[rows.task] = np.arange(len(rows))  # of several attempts the last one stays
        self._row[unfinished] = -1  # the last attempt of these has not ended
        self._count: Ints = np.bincount(rows.task, minlength=highest + 1)
        """How often each task was started."""
        self._count[unfinished] += 1
        self._unfinished = dict.fromkeys(unfinished)
        started = self._row >= 0
        started[unfinished] = True
        self.numbers: list[int] = np.flatnonzero(started).tolist()
        codes = view.category_of(np.array(self.numbers, np.int64))
        self._used: list[int] = sorted(set(codes.tolist()))
        self.steps = [view.categories[code] if code >= 0 else UNKNOWN for code in self._used]
        """Names of the categories that have started anything."""
        place = {code: number for number, code in enumerate(self._used)}
        self.step_of: list[int] = [place[code] for code in codes.tolist()]
        self._node = {node: position for position, node in enumerate(view.nodes)}

    def positions(self) -> list[int] | None:
        """Of the steps in the order of execution. A task that only groups others is like a step of its own here."""
        view, size = self.view, len(self.view.categories)
        pairs = [np.zeros((0, 2), np.int64)]
        for link in view.links:
            needing = np.repeat(np.frombuffer(link.tasks, "<i4"), np.frombuffer(link.counts, "<i4"))
            both = np.column_stack((np.frombuffer(link.needs, "<i4"), needing)).astype(np.int64)
            both = both[both[:, 0] >= 0]
            codes = view.category_of(both.ravel()).reshape(both.shape)
            pairs.append(np.unique(np.where(codes >= 0, codes, size + both), axis=0))
        nodes, flat = np.unique(np.concatenate(pairs), return_inverse=True)
        needs = [(needed, needing) for needed, needing in flat.reshape(-1, 2).tolist()]
        found = positions(len(nodes), needs)
        if found is None:
            return None
        place = {int(node): found[number] for number, node in enumerate(nodes)}
        return [place.get(code, 0) for code in self._used]

    def planned(self, count: int) -> bytes:
        """For each of the first `count` tasks whether it was to run, did it or not."""
        return (self.view.category_of(np.arange(count)) >= 0).tobytes()

    def counts(self) -> Counts:
        view, rows = self.view, self.view.attempts
        last = self._row[self._row >= 0]
        done, failed = int((rows.outcome[last] == 0).sum()), int(self._has_failed(last).sum())
        begun = sum(task in view.unwanted and task not in self._unfinished for task in self.numbers)
        return Counts(done, failed, view.cancelled(), len(self.numbers) - done - failed - begun)

    def _has_failed(self, rows: Ints) -> Array:
        """Of rows of last attempts, whether their tasks failed: an attempt that was cancelled did not."""
        attempts = self.view.attempts
        found: Array = (attempts.outcome[rows] != 0) & attempts.final[rows] & ~self._was_cancelled(rows)
        return found

    def _was_cancelled(self, rows: Ints) -> Array:
        attempts = self.view.attempts
        codes = [code for code, name in enumerate(attempts.outcomes) if name == _CANCELLED]
        return np.isin(attempts.outcome[rows], codes)

    def each(self, ran: Ran | None, listing: Listing | None) -> Iterator[TaskFacts]:
        """One by one, in the order of their numbers."""
        for task, step in zip(self.numbers, self.step_of, strict=True):
            name = self.view.names.of(task)
            if ran is None or listing is None:
                yield TaskFacts(task, name, step, f"task {name}", *self._measured(task))
                continue
            yield TaskFacts(
                task,
                name,
                step,
                ran.command(task),
                *self._measured(task),
                inputs=listing.identifiers(ran.inputs_of(task)),
                outputs=listing.identifiers(ran.outputs_of(task)),
                environment=ran.environment(task),
            )

    def _measured(self, task: int) -> tuple[float, float, str, int, float, int, int]:
        """From `started` to `node`, as in `TaskFacts`."""
        row, rows = int(self._row[task]), self.view.attempts
        if task in self._unfinished:
            return self.view.running[task].time, 0.0, KILLED, int(self._count[task]), 0.0, 0, -1
        outcome = int(rows.outcome[row])
        error = (rows.messages[int(rows.message[row])] or rows.outcomes[outcome]) if outcome else ""
        if rows.outcomes[outcome] == _CANCELLED:
            error = CANCELLED if error == _CANCELLED else f"{CANCELLED[:-1]}: {error}"
        return (
            float(rows.started[row]),
            float(rows.ended[row]),
            error,
            int(self._count[task]),
            float(rows.cpu[row]),
            int(rows.memory[row]),
            self._node.get(int(rows.node[row]), -1),
        )

    def together(self, ran: Ran | None) -> Iterator[TaskFacts]:
        """Those of a category as if they were one, in the order of the steps."""
        numbers, steps = np.array(self.numbers, np.int64), np.array(self.step_of, np.int64)
        for step, category in enumerate(self.steps):
            tasks = numbers[steps == step]
            yield self._sum(step, category, tasks, ran)

    def _sum(self, step: int, category: str, tasks: Ints, ran: Ran | None) -> TaskFacts:
        rows = self.view.attempts
        at = self._row[tasks]
        at = at[at >= 0]
        bad = at[self._has_failed(at)]
        under_way = [self.view.running[task].time for task in tasks.tolist() if task in self._unfinished]
        error = self._why_not_all(len(tasks), at, bad, len(under_way))
        example = int(tasks[0])
        command = ran.command(example) if ran is not None else f"task {self.view.names.of(example)}"
        return TaskFacts(
            step,
            f"{count(len(tasks), 'task')} of {category}",
            step,
            f"for example: {command}",
            min([float(rows.started[at].min(initial=np.inf)), *under_way]),
            float(rows.ended[at].max()) if len(at) else 0.0,
            error,
            int(self._count[tasks].sum()),
            float(rows.cpu[at].sum()),
            int(rows.memory[at].max()) if len(at) else 0,
            tasks=len(tasks),
            failed=len(bad),
        )

    def _why_not_all(self, tasks: int, last: Ints, failed: Ints, killed: int) -> str:
        """Of tasks of a category, what became of those that were not done; empty if all were."""
        rows, words = self.view.attempts, []
        if len(failed):
            most = rows.messages[int(np.bincount(rows.message[failed]).argmax())]
            words.append(f"{count(len(failed), 'task')} of {tasks:,} failed; most often: {most}")
        cancelled = int(self._was_cancelled(last).sum())
        others = int((rows.outcome[last] != 0).sum()) - len(failed) - cancelled
        for number, how in (
            (cancelled, "cancelled"),
            (killed, "running when the run was killed"),
            (others, "to be tried again when the run ended"),
        ):
            if number:
                words.append(f"{count(number, 'task')} of {tasks:,} {'was' if number == 1 else 'were'} {how}")
        return "; ".join(words)
