"""A run on a cluster, seen from the machine that brought it: submit, follow the log, keep the books.

The counterpart of `LocalRun`: same plan before it, same ledger, statistics and display after it. What happens on the
cluster goes on without us; whoever comes back reads the log from the beginning and writes what the ledger has not got.
"""

from __future__ import annotations

import signal
import time
from array import array
from collections.abc import Iterator, Sequence

import msgspec

from shoal.agent.about import About, Deed, Entry, chunks, decode_entry, encode
from shoal.agent.messages import Bring, Cancel, Done, Entries, Follow, Forget, Piece, Refused, WireMessage
from shoal.broker.messages import Accept, GiveUp, Retry
from shoal.engine.attempt import EndedAttempt
from shoal.engine.books import Books, Listener
from shoal.engine.files import Preparer
from shoal.engine.statistics import Statistics
from shoal.engine.workspace import Workspace
from shoal.errors import InputError, RunError
from shoal.flow.dag import DagFlow, Status
from shoal.ledger.file import LedgerWriter
from shoal.ledger.records import Usage
from shoal.model.graph import Graph
from shoal.model.rank import ranks
from shoal.model.resources import Resources
from shoal.model.task import Profile
from shoal.model.work import Work
from shoal.plan.decide import Plan
from shoal.plan.identity import Versions, place_of
from shoal.policy.retry import Outcome
from shoal.runner.output import OutputStream
from shoal.runner.wakeup import USER_SIGNALS, Wakeup
from shoal.store.columns import pack, summarize
from shoal.store.memory import MemoryStore
from shoal.wire.caller import Caller

PIECE_BYTES = 4 << 20
LEAST_PAUSE, LONGEST_PAUSE = 0.01, 0.25
"""Seconds between two questions: short while there is news."""
PATIENCE = 120.0
"""Seconds for which nobody may answer before we give up following; the run itself goes on."""
OUTCOMES = {outcome.value: outcome for outcome in Outcome}


class Selection(msgspec.Struct):
    """The tasks of a plan that are to be run, numbered from 0."""

    tasks: list[int]
    work: Work

    def deeds(self, graph: Graph, versions: Versions) -> Iterator[Deed]:
        """What each of them does."""
        names, sizes = graph.file_names, versions.sizes
        for task in self.tasks:
            files = graph.outputs_of(task)
            action = graph.actions[task]
            stale = any(sizes[file] >= 0 for file in files)
            command = action if isinstance(action, str) else ""
            yield Deed(command, tuple(names[file] for file in files), stale)


def select(plan: Plan) -> Selection:
    """The work that is left of a plan. Groups and such ask for nothing, and nobody runs them."""
    graph = plan.graph
    wanted = plan.wanted()
    done = set(plan.up_to_date())
    tasks = [task for task in range(len(graph)) if wanted[task] and task not in done]
    number = array("i", [-1]) * len(graph)
    for at, task in enumerate(tasks):
        number[task] = at
        if graph.actions[task] is not None and not isinstance(graph.actions[task], str):
            raise InputError(
                f"{graph.names[task]!r} is a Python function, which cannot run on a cluster yet",
                file=graph.source,
                line=graph.lines[task] or None,
                remedy="give it as a command, or run without --cluster",
            )
    child_start, children = array("i", [0]), array("i")
    waits_for = array("i", bytes(4 * len(tasks)))
    for task in tasks:
        for child in graph.successors[graph.successor_start[task] : graph.successor_start[task + 1]]:
            if number[child] >= 0:
                children.append(number[child])
                waits_for[number[child]] += 1
        child_start.append(len(children))
    nothing = len(graph.profiles)
    order = ranks(graph)
    work = Work(
        name=graph.source,
        seconds=array("d", bytes(8 * len(tasks))),
        category=array("i", [nothing if graph.actions[task] is None else graph.profile[task] for task in tasks]),
        profiles=[*graph.profiles, Profile("", Resources())],
        waits_for=waits_for,
        child_start=child_start,
        children=children,
        rank=array("i", [order[task] for task in tasks]),
    )
    return Selection(tasks, work)


class RemoteOptions(msgspec.Struct):
    """How a run on a cluster is brought and followed."""

    cores: float
    """Of the whole cluster."""
    fail_fast: bool = False
    by_content: bool = False
    detach: bool = False
    """Bring it and leave."""
    brought: bool = False
    """It is there already."""
    selection: Selection | None = None
    """The tasks that were brought, if it is."""
    known: frozenset[tuple[bytes, float]] = frozenset()
    """Place and end of attempts that the ledger has already."""


class RemoteRun:
    """Brings a plan to a cluster and follows it to its end. `execute` may be called once."""

    def __init__(
        self,
        run: str,
        plan: Plan,
        versions: Versions,
        workspace: Workspace,
        ledger: LedgerWriter,
        listener: Listener,
        caller: Caller[WireMessage],
        about: About,
        options: RemoteOptions,
    ) -> None:
        graph = plan.graph
        self.run, self.plan, self.graph, self.versions = run, plan, graph, versions
        self.listener, self.ledger, self.caller = listener, ledger, caller
        self._offset = time.time() - time.monotonic()
        self.options = options
        self.selection = options.selection or select(plan)
        self.about = msgspec.structs.replace(about, tasks=len(self.selection.tasks))
        self.flow = DagFlow(graph, plan.wanted())
        self.flow.ready(plan.up_to_date())
        up_to_date = sum(graph.actions[task] is not None for task in plan.up_to_date())
        self.statistics = Statistics(len(plan.to_run()) + up_to_date, up_to_date, self.clock(), options.cores)
        self.books = Books(graph, versions, ledger, self.statistics, listener)
        self.output = OutputStream(workspace.output)
        self.preparer = Preparer(graph, versions)
        self.stop_reason = ""
        self.stop_signal = 0
        self.detached = False
        self._next = 0
        self._silent_since: float | None = None

    def clock(self) -> float:
        return time.monotonic() + self._offset

    # ---- bringing ------------------------------------------------------------------------------------------------

    def submit(self) -> None:
        """Sends the work, and what its tasks do. If it was brought before, that is noticed there."""
        books = MemoryStore(self.selection.work, 0, shared_files=True)
        self._send("summary", encode(summarize(books)))
        for name, column in pack(books).items():
            self._send(name, column)
        for name, data in chunks(self.selection.deeds(self.graph, self.versions)):
            self._send(name, data)
        self._ask(Bring(self.run, encode(self.about)))

    def _send(self, name: str, data: bytes) -> None:
        for at in range(0, len(data), PIECE_BYTES) if data else ():
            self._ask(Piece(self.run, name, at, data[at : at + PIECE_BYTES]))

    def _ask(self, message: WireMessage) -> WireMessage:
        answer = self.caller.ask(message)
        if isinstance(answer, Refused):
            raise InputError(f"the cluster refuses: {answer.why}")
        return answer

    # ---- following -----------------------------------------------------------------------------------------------

    def execute(self) -> None:
        """Until every task is over, or the user has seen enough."""
        self.wakeup = Wakeup(USER_SIGNALS)
        try:
            if not self.options.brought and self.selection.tasks:
                self.submit()
            self.detached = self.options.detach
            pause = LEAST_PAUSE
            while self.selection.tasks and not self.detached:
                news = self._follow()
                if news is None:
                    break
                pause = LEAST_PAUSE if news else min(2 * pause, LONGEST_PAUSE)
                self.wakeup.wait(pause)
                if self.wakeup.signals:
                    self._on_signals()
                self.listener.tick(self.statistics, self.clock())
            if not self.detached and self.selection.tasks:
                self._ask(Forget(self.run))
        finally:
            self.wakeup.close()
            self.output.close()
            self.ledger.flush()
            self.statistics.ended = self.clock()

    def _follow(self) -> int | None:
        """How much news there was; None when all is known."""
        try:
            told = self._ask(Follow(self.run, self._next))
        except InputError as error:
            return self._no_answer(error)
        self._silent_since = None
        assert isinstance(told, Entries)
        if told.state == "unknown":
            raise RunError(f"the cluster does not know the run {self.run} any more")
        for entry in told.entries:
            self._take(decode_entry(entry))
        self._next += len(told.entries)
        self.ledger.flush()
        self.statistics.running = told.running
        if not told.entries and (told.state == "ended" or not told.left):
            return None
        return len(told.entries)

    def _no_answer(self, error: InputError) -> int:
        now = time.monotonic()
        if self._silent_since is None:
            self._silent_since = now
            self.listener.note(f"{error}; trying again")
        if now - self._silent_since > PATIENCE:
            raise RunError(f"nobody has answered for {PATIENCE:g} s; the run goes on there: 'shoal attach' follows it")
        return 0

    def _take(self, entry: Entry) -> None:
        if entry.verdict == "note":
            self.listener.note(entry.message)
            return
        task = self.selection.tasks[entry.task]
        if task < 0 or (self.options.known and (place_of(self.graph, task), entry.ended) in self.options.known):
            return
        outcome = OUTCOMES[entry.outcome]
        at, size = self.output.append(entry.output) if entry.output else (0, 0)
        attempt = EndedAttempt(
            task,
            entry.attempt,
            outcome,
            entry.status,
            entry.started,
            entry.ended,
            entry.user,
            entry.system,
            entry.max_rss,
            at,
            size,
            entry.message,
            entry.output[-8192:],
            None,
            Usage(*entry.usage),
            entry.memory_limit,
        )
        verdict: Accept | Retry | GiveUp
        if entry.verdict == "done":
            self.preparer.take_stock(task, self.options.by_content)
            verdict = Accept(task, entry.attempt)
            if self.flow.status[task] == Status.READY:
                self.flow.complete([task])
        elif entry.verdict == "retry":
            verdict = Retry(task, entry.attempt, outcome, 0.0)
        else:
            verdict = GiveUp(task, entry.attempt, outcome)
            self._lose([task])
        self.books.ended(attempt)
        self.books.enter([verdict])

    def _lose(self, tasks: Sequence[int]) -> None:
        doomed = self.flow.fail([task for task in tasks if self.flow.status[task] < Status.DONE])
        self.statistics.doomed += sum(self.graph.actions[task] is not None for task in doomed)
        if self.options.fail_fast and not self.stop_reason:
            self._stop(f"{self.graph.names[tasks[0]]!r} failed and --fail-fast was given")

    def _stop(self, reason: str) -> None:
        self.stop_reason = reason
        self.listener.note(f"stopping: {reason}")
        answer = self._ask(Cancel(self.run, []))
        assert isinstance(answer, Done)

    def _on_signals(self) -> None:
        signals, self.wakeup.signals = self.wakeup.signals, []
        for number in signals:
            if number == signal.SIGHUP or self.stop_signal:
                self.detached = True
                self.listener.note("the run goes on without this terminal; 'shoal attach' follows it again")
            elif number in (signal.SIGINT, signal.SIGTERM):
                self.stop_signal = number
                self._stop(f"received {signal.Signals(number).name}")
