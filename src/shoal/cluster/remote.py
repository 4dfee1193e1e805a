"""A run on a cluster, seen from the machine that brought it: submit, follow the log, keep the books.

The counterpart of `LocalRun`: same plan before it, same ledger, statistics and display after it. What happens on the
cluster goes on without us; whoever comes back reads the log from the beginning and writes what the ledger has not got.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence

import msgspec

from shoal.agent.about import About, Entry, chunks, decode_entry, encode
from shoal.agent.limiting import SAID, record_of
from shoal.agent.messages import (
    Bring,
    Cancel,
    ClusterAsked,
    ClusterTold,
    Done,
    Entries,
    Follow,
    Forget,
    NodeNote,
    Piece,
    Refused,
    WireMessage,
)
from shoal.broker.messages import Accept, GiveUp, Retry
from shoal.cluster.callfiles import WorkspaceCalls
from shoal.cluster.lasting import Lasting
from shoal.cluster.luggage import ARRIVING, Return, bring_sources
from shoal.cluster.roll import Roll
from shoal.cluster.selection import Selection, made_by, returned, select
from shoal.engine.attempt import EndedAttempt
from shoal.engine.books import Books, Listener
from shoal.engine.files import Preparer, signature
from shoal.engine.requests import take_requests, told_cancelled, why_stopped
from shoal.engine.statistics import Statistics
from shoal.engine.values import Values
from shoal.engine.workspace import Workspace
from shoal.errors import InputError, RunError
from shoal.flow.dag import DagFlow, Status
from shoal.ledger.file import LedgerWriter
from shoal.ledger.records import OutputsCollected, TaskCourse, Usage
from shoal.plan.decide import Past, Plan
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
MOST_MISSED = 3
"""Nodes that are told of when several go at once."""
LAST_WORDS_SECONDS = 0.3
MOST_TRIES = 10
OUTCOMES = {outcome.value: outcome for outcome in Outcome}


class AnewError(InputError):
    """What was brought is not there any more."""


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
    returned: set[str] | None = None
    """Files that were to come back, if it is there already."""
    targets: Sequence[int] = ()
    kept: Sequence[str] = ()
    """Tasks and files that the run is for."""
    notes: set[str] = msgspec.field(default_factory=set)
    """What the user has been told already: several nodes may say the same."""


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
        past: Past,
    ) -> None:
        graph = plan.graph
        self.run, self.plan, self.graph, self.versions = run, plan, graph, versions
        self.listener, self.ledger, self.caller, self.workspace = listener, ledger, caller, workspace
        self._offset = time.time() - time.monotonic()
        self.options = options
        self.calls = WorkspaceCalls(graph, workspace)
        self._values = Values(graph, workspace, past)
        self.selection = options.selection or select(plan, versions, self.calls, managed=about.managed)
        self._return: Return | None = None
        self.returned: set[str] = set()
        """Files that come back from nodes that share none with us."""
        if about.managed:
            folder = os.path.join(workspace.directory, ARRIVING)
            self._return = Return(run, self.selection, folder, self._ask)
            back = options.returned
            if back is None:
                back = returned(graph, self.selection, options.targets, options.kept, self.calls)
            self.returned = back
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
        self._roll = Roll(ledger)
        self._lasting = Lasting(lambda task: self.flow.status[task] < Status.DONE)
        self._next_look = 0.0
        self._silent_since: float | None = None
        self._lost_files: set[str] = set()

    def clock(self) -> float:
        return time.monotonic() + self._offset

    # ---- bringing ------------------------------------------------------------------------------------------------

    def submit(self) -> None:
        """Sends the work, and what its tasks do, until it is there wholly: who takes it may be ended meanwhile."""
        for _ in range(MOST_TRIES):
            try:
                self._bring()
                return
            except AnewError:
                self.listener.note("the cluster has lost what was brought; bringing it again")
        raise RunError("the cluster loses again and again what is brought to it")

    def _bring(self) -> None:
        if self.about.managed:
            bring_sources(self.run, self.selection, self._ask)
        books = MemoryStore(self.selection.work, 0, shared_files=not self.about.managed)
        self._send("summary", encode(summarize(books)))
        for name, column in pack(books).items():
            self._send(name, column)
        for name, data in chunks(self.selection.deeds(self.graph, self.versions, self.calls)):
            self._send(name, data)
        self._ask(Bring(self.run, encode(self.about)))

    def _send(self, name: str, data: bytes) -> None:
        for at in range(0, len(data), PIECE_BYTES) if data else ():
            self._ask(Piece(self.run, name, at, data[at : at + PIECE_BYTES]))

    def _ask(self, message: WireMessage) -> WireMessage:
        """The answer to something that may be asked twice; whoever is away for a while is waited for."""
        while True:
            try:
                answer = self.caller.ask(message)
            except InputError as error:
                self._no_answer(error)
                self.wakeup.wait(LONGEST_PAUSE)
                if self.wakeup.signals:
                    self._leave_at_once()
                continue
            self._silent_since = None
            if isinstance(answer, Refused):
                if answer.anew:
                    raise AnewError(answer.why)
                raise InputError(f"the cluster refuses: {answer.why}")
            return answer

    def _leave_at_once(self) -> None:
        """The user does not want to wait for somebody who does not answer."""
        self.stop_signal = self.wakeup.signals.pop()
        raise RunError("nobody answers; the run, if it is there, goes on: 'shoal attach' follows it")

    # ---- following -----------------------------------------------------------------------------------------------

    def execute(self) -> None:
        """Until every task is over, or the user has seen enough."""
        self.wakeup = Wakeup(USER_SIGNALS)
        try:
            if not self.options.brought and self.selection.tasks:
                self.calls.write(self.selection.tasks, self._values)
                self.submit()
            self.detached = self.options.detach
            pause = LEAST_PAUSE
            while self.selection.tasks and not self.detached:
                self._call_the_roll()
                news = self._follow()
                if news is None:
                    break
                pause = LEAST_PAUSE if news else min(2 * pause, LONGEST_PAUSE)
                self.wakeup.wait(pause)
                if self.wakeup.signals:
                    self._on_signals()
                self.listener.tick(self.statistics, self.clock())
            if self._lost_files:
                self.stop_reason = self._say_lost()
            if not self.detached and self.selection.tasks:
                self._take_leave()
                self.calls.clear()
        finally:
            self.wakeup.close()
            if self._return is not None:
                self._return.close()
            self.output.close()
            self.ledger.flush()
            self.statistics.ended = self.clock()

    def _say_lost(self) -> str:
        names = sorted(self._lost_files)
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return f"a node was lost with {', '.join(names[:3])}{more} before they came back; run it again"

    def _call_the_roll(self) -> None:
        """Which nodes are there and how they are doing, every second or few."""
        if self.clock() >= self._next_look:
            self._note(self._ask(ClusterAsked()))

    def _note(self, told: WireMessage) -> dict[int, float]:
        """What the cluster says of its nodes, for the ledger; returns when each has said something last."""
        now = self.clock()
        if not isinstance(told, ClusterTold):
            return {}
        for name in self._roll.take(now, told.nodes, told.notes)[:MOST_MISSED]:
            self.listener.note(f"node {name} is gone; others do what it had not done")
        self._next_look = now + self._roll.pause
        mine = {told.nodes[number].name: note for number, note in told.notes.items() if self._is_mine(told, number)}
        self._count_running(list(mine.values()))
        self._note_lasting(now, mine)
        return {number: told.notes[number].up_seconds for number in told.nodes if number in told.notes}

    def _is_mine(self, told: ClusterTold, number: int) -> bool:
        """Whether a node has a share in this run."""
        return number in told.nodes and told.notes[number].run == self.run

    def _note_lasting(self, now: float, notes: Mapping[str, NodeNote]) -> None:
        """What nodes have been at for a while, for whoever looks at the ledger before it has ended."""
        begun, vanished = self._lasting.hear(
            now,
            [
                (self._roll.number(name, now), self.selection.tasks[task], attempt, seconds)
                for name, note in notes.items()
                for task, attempt, seconds in note.lasting
                if 0 <= task < len(self.selection.tasks) and self.selection.tasks[task] >= 0
            ],
        )
        for record in begun:
            self.ledger.add(record)
            self.statistics.going[record.task] = record
        if vanished is not None:
            self.ledger.add(vanished)
            for task in vanished.tasks:
                self.statistics.going.pop(task, None)

    def _count_running(self, notes: Sequence[NodeNote]) -> None:
        """What runs on the nodes that have a share in this run, as they said last."""
        totals = self.statistics
        totals.running = sum(note.places for note in notes)
        for category in totals.categories.values():
            category.running = 0
        for note in notes:
            for name, count in note.doing:
                totals.category(name).running += count

    def _take_leave(self) -> None:
        """The cluster forgets the run. Its nodes hear that and say how it ended; the slow ones are not waited for."""
        before = self._note(self._ask(ClusterAsked()))
        self._ask(Forget(self.run))
        deadline = self.clock() + LAST_WORDS_SECONDS
        try:
            while any(before.get(node) == at for node, at in self._note(self.caller.ask(ClusterAsked(), 1.0)).items()):
                if self.clock() > deadline:
                    return
                self.wakeup.wait(LEAST_PAUSE)
        except InputError:
            return  # the cluster has gone; all is known that matters

    def _follow(self) -> int | None:
        """How much news there was; None when all is known."""
        told = self._ask(Follow(self.run, self._next))
        assert isinstance(told, Entries)
        if told.state == "unknown":
            raise RunError(f"the cluster does not know the run {self.run} any more")
        entries = [decode_entry(entry) for entry in told.entries]
        if self._return is not None:
            self._get_back(self._return, entries)
        for entry in entries:
            self._take(entry)
        self._next += len(told.entries)
        self.ledger.flush()
        if not told.entries and (told.state == "ended" or not told.left):
            return None
        return len(told.entries)

    def _get_back(self, way: Return, entries: Sequence[Entry]) -> None:
        """Files that are wanted here come as soon as they are made; of the others the books know that they are gone."""
        wanted: list[str] = []
        for entry in entries:
            task = self.selection.tasks[entry.task] if entry.verdict == "done" else -1
            if task >= 0 and self.flow.status[task] != Status.DONE:
                wanted += [name for name in made_by(self.graph, task, self.calls) if name in self.returned]
        lost = way.get(wanted) if wanted else []
        self._lost_files.difference_update(wanted)
        self._lost_files.update(lost)

    def _note_absent(self, task: int, entry: Entry) -> None:
        """Sizes of what stays away, so that the ledger has them."""
        for file, size in zip(self.graph.outputs_of(task), entry.made, strict=False):
            if self.graph.file_names[file] not in self.returned:
                self.versions.sizes[file], self.versions.times[file] = size, 0

    def _no_answer(self, error: InputError) -> None:
        now = time.monotonic()
        if self._silent_since is None:
            self._silent_since = now
            self.listener.note(f"{error}; trying again")
        if now - self._silent_since > PATIENCE:
            raise RunError(f"nobody has answered for {PATIENCE:g} s; the run goes on there: 'shoal attach' follows it")

    def _take(self, entry: Entry) -> None:
        if entry.verdict == "note":
            if entry.message not in self.options.notes:
                self.options.notes.add(entry.message)
                self.listener.note(entry.message)
            return
        if entry.verdict == SAID:
            self.ledger.add(record_of(entry))
            return
        task = self.selection.tasks[entry.task]
        if task < 0:
            return
        if entry.verdict == "retry" and (place_of(self.graph, task), entry.ended) in self.options.known:
            self._lasting.ended(task, entry.attempt)
            return
        if entry.verdict == "done" and self.flow.status[task] == Status.DONE:
            return  # what it made was lost with a node and had to be made again; we know of it
        outcome = OUTCOMES[entry.outcome]
        if entry.course:
            self.ledger.add(TaskCourse(task, entry.attempt, entry.course))
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
            self._roll.number(entry.node, entry.ended),
        )
        verdict: Accept | Retry | GiveUp
        if entry.verdict == "done":
            if self._return is not None:
                self._take_stock(task, entry)
            else:
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
        self._lasting.ended(task, entry.attempt)
        if self._return is not None and entry.verdict == "done":
            self._note_collected(task)

    def _take_stock(self, task: int, entry: Entry) -> None:
        self._note_absent(task, entry)
        for file in self.graph.outputs_of(task):
            if self.graph.file_names[file] in self.returned:
                found = signature(self.graph.file_names[file], self.options.by_content)
                if found is not None:
                    self.versions.sizes[file], self.versions.times[file] = found

    def _note_collected(self, task: int) -> None:
        if any(name not in self.returned for name in self.graph.output_names(task)):
            self.ledger.add(OutputsCollected([place_of(self.graph, task)]))

    def _lose(self, tasks: Sequence[int]) -> None:
        doomed = self.flow.fail([task for task in tasks if self.flow.status[task] < Status.DONE])
        self.statistics.doomed += sum(self.graph.actions[task] is not None for task in doomed)
        if self.options.fail_fast and not self.stop_reason:
            self._stop(f"{self.graph.names[tasks[0]]!r} failed and --fail-fast was given")

    def _stop(self, reason: str) -> None:
        self.stop_reason = reason
        self.books.stopping = True
        self.listener.note(f"stopping: {reason}")
        answer = self._ask(Cancel(self.run, []))
        assert isinstance(answer, Done)

    def _cancel(self, tasks: Sequence[int]) -> None:
        """Tasks that `shoal cancel` named. What ends there because of that is not in the log: we know it already."""
        number = {task: at for at, task in enumerate(self.selection.tasks)}
        open_ones = [task for task in tasks if self.flow.status[task] < Status.DONE and task in number]
        if not open_ones:
            return  # none named would mean all
        self._ask(Cancel(self.run, [number[task] for task in open_ones]))
        self.listener.note(told_cancelled(self.graph, open_ones))
        self.books.cancelled(open_ones)
        self._lose(open_ones)

    def _on_signals(self) -> None:
        signals, self.wakeup.signals = self.wakeup.signals, []
        for number in signals:
            if number == signal.SIGUSR1:
                self._cancel(take_requests(self.workspace, self.graph))
            elif number == signal.SIGHUP or self.stop_signal:
                self.detached = True
                self.listener.note("the run goes on without this terminal; 'shoal attach' follows it again")
            elif number in (signal.SIGINT, signal.SIGTERM):
                self.stop_signal = number
                self._stop(why_stopped(self.workspace, number))
