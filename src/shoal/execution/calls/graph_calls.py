"""Runs the Python calls of a workflow's graph: from a task to a request for a worker, and back to an ended attempt."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from shoal.core.graph import NO_TASK, Graph
from shoal.core.policies.retry import AttemptOutcome
from shoal.core.task import Call
from shoal.execution.attempt_recorder import EndedAttempt
from shoal.execution.processes.output import TAIL_BYTES, OutputStream
from shoal.execution.processes.wakeup import Wakeup
from shoal.ledger.identity import place_of
from shoal.ledger.up_to_date import PastResults
from shoal.ledger.workspace import Workspace

if TYPE_CHECKING:
    from shoal.execution.calls.messages import CallResult
    from shoal.execution.calls.worker_pool import WorkerPool


INLINE_BYTES = 1 << 16


class Values:
    """Return values of the tasks of one run, including those of earlier runs."""

    def __init__(self, graph: Graph, workspace: Workspace, past: PastResults) -> None:
        self.graph = graph
        self.workspace = workspace
        self.past = past
        self._held: dict[int, bytes] = {}

    def keep(self, task: int, value: bytes) -> bytes | None:
        """Stores a value for successors and later runs; returns the bytes to record in the ledger."""
        if self.graph.successor_start[task] != self.graph.successor_start[task + 1]:
            self._held[task] = value
        if len(value) <= INLINE_BYTES:
            return value
        os.makedirs(self.workspace.values, exist_ok=True)
        path = self._path(task)
        with open(path + ".new", "wb") as file:
            file.write(value)
        os.replace(path + ".new", path)
        return None

    def get(self, task: int) -> bytes | None:
        """Returns the value of a task that is done; None if it has none."""
        value = self._held.get(task)
        if value is not None:
            return value
        result = self.past.result(place_of(self.graph, task))
        if result is not None and result.value is not None:
            value = result.value
        else:
            try:
                with open(self._path(task), "rb") as file:
                    value = file.read()
            except OSError:
                return None
        self._held[task] = value
        return value

    def _path(self, task: int) -> str:
        return os.path.join(self.workspace.values, place_of(self.graph, task).hex())


class GraphCalls:
    """Starts calls in a `WorkerPool`, which is created at the first call."""

    def __init__(
        self, run: str, graph: Graph, values: Values, output: OutputStream, clock: Callable[[], float]
    ) -> None:
        self.run = run
        self.graph = graph
        self.values = values
        self.output = output
        self.clock = clock
        self.pool: WorkerPool | None = None
        self._wakeup: Wakeup | None = None

    def attach(self, wakeup: Wakeup) -> None:
        self._wakeup = wakeup

    def start(self, calls: Sequence[tuple[int, int]]) -> list[tuple[int, int, str]]:
        """Starts (task, attempt) pairs one after another in one worker; returns those that cannot be sent, with the
        reason."""
        from shoal.execution.calls.messages import CallRequest

        pool = self._make_pool()
        requests: list[CallRequest] = []
        refused: list[tuple[int, int, str]] = []
        for task, attempt in calls:
            action = self.graph.actions[task]
            assert isinstance(action, Call)
            try:
                number, payload = pool.register(action.function), self._payload(task, action)
            except Exception as error:  # pickling the user's own objects may raise anything
                reason = f"{type(error).__name__}: {error}"
                refused.append((task, attempt, f"its function cannot be sent to a worker process ({reason})"))
                continue
            timeout = self.graph.profile_of(task).timeout
            requests.append(CallRequest(task, attempt, number, payload, timeout))
        if requests:
            pool.start(requests)
        return refused

    def _payload(self, task: int, action: Call) -> bytes:
        from shoal.execution.calls.protocol import placed_payload

        if action.wants_task:
            return self._task_payload(task, action)
        profile = self.graph.profile_of(task)
        place = dict(profile.environment), profile.directory or ""
        return placed_payload(action.arguments, dict(action.keywords), *place)

    def _task_payload(self, task: int, action: Call) -> bytes:
        from shoal.execution.calls.protocol import task_payload

        needs, profile = self._needs(task), self.graph.profile_of(task)
        return task_payload(
            self.graph.names[task],
            self.graph.output_names(task),
            [name for name, _ in needs],
            values={name: value for name, value in needs if value is not None},
            named=dict(action.named),
            wildcards=dict(action.wildcards),
            environment=dict(profile.environment),
            directory=profile.directory or "",
        )

    def _needs(self, task: int) -> list[tuple[str, bytes | None]]:
        """Returns the names of the task's needs, with the value of the task that made each."""
        graph = self.graph
        needs: list[tuple[str, bytes | None]] = []
        for file in graph.inputs_of(task):
            maker = graph.producer[file]
            value = self.values.get(maker) if maker != NO_TASK and isinstance(graph.actions[maker], Call) else None
            needs.append((graph.file_names[file], value))
        for other in graph.after_of(task):
            value = self.values.get(other) if isinstance(graph.actions[other], Call) else None
            needs.append((graph.names[other], value))
        return needs

    def _make_pool(self) -> WorkerPool:
        if self.pool is None:
            from shoal.execution.calls.worker_pool import WorkerPool

            assert self._wakeup is not None
            self.pool = WorkerPool(
                directory=os.getcwd(),
                environment=os.environ,
                sys_path=sys.path,
                run_id=self.run,
                on_open=self._wakeup.add,
                on_close=self._wakeup.discard,
            )
        return self.pool

    def collect(self, descriptor: int) -> list[EndedAttempt]:
        assert self.pool is not None
        return self._attempts(self.pool.collect(descriptor))

    def next_deadline(self) -> float | None:
        """Returns when `enforce` is due, by the monotonic clock."""
        return self.pool.next_deadline() if self.pool is not None else None

    def enforce(self) -> list[EndedAttempt]:
        return self._attempts(self.pool.enforce(time.monotonic())) if self.pool is not None else []

    def kill(self, task: int, attempt: int) -> None:
        """Kills a call; its end is reported like any other."""
        if self.pool is not None:
            self.pool.kill(task, attempt)

    def close(self) -> None:
        if self.pool is not None:
            self.pool.close(0.5)

    def _attempts(self, results: Iterable[CallResult]) -> list[EndedAttempt]:
        return [self._attempt(result) for result in results]

    def _attempt(self, result: CallResult) -> EndedAttempt:
        outcome = result.verdict()
        at, size, tail = 0, 0, result.output[-TAIL_BYTES:]
        text = result.output
        if result.error_text and outcome not in (AttemptOutcome.LOST, AttemptOutcome.UNBEGUN):
            text += result.error_text.rstrip().encode("utf-8", "replace") + b"\n"
            tail = text[-TAIL_BYTES:]
        if text:
            at, size = self.output.append(text)
        now = self.clock()
        message = result.error_text.strip().rsplit("\n", 1)[-1] if outcome is not AttemptOutcome.OK else ""
        return EndedAttempt(
            result.task,
            result.attempt,
            outcome,
            0 if outcome is AttemptOutcome.OK else 1,
            result.started or now,
            result.ended or now,
            result.cpu_user,
            result.cpu_system,
            result.max_rss_bytes,
            at,
            size,
            message,
            tail,
            self.values.keep(result.task, result.value) if outcome is AttemptOutcome.OK else None,
        )
