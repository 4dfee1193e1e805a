"""A run on a cluster, seen from the client that submits it: submit, follow the log, record results in the ledger.

The counterpart of `LocalRun`, with the same plan before and the same ledger, statistics and display after it. The run
continues on the cluster without this client. A client that attaches later reads the log from the beginning and records
what the ledger does not contain.
"""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Mapping, Sequence

import msgspec

from shoal.cluster.agent import node_throttle, run_description
from shoal.cluster.agent.messages import (
    CancelCommand,
    ClusterNodeFacts,
    ClusterReply,
    ClusterRequest,
    DoneReply,
    ForgetCommand,
    LogReply,
    LogRequest,
    RefusedReply,
    SubmissionPiece,
    SubmitCommand,
    WireMessage,
)
from shoal.cluster.agent.node_throttle import record_of
from shoal.cluster.agent.run_description import LogEntry, RunDescription, Seen, chunks, decode_entry, encode
from shoal.cluster.input_staging import OutputReturn, WorkspaceCalls, upload_inputs
from shoal.cluster.messaging.caller import Caller
from shoal.cluster.participants import LongAttempts, Participants
from shoal.cluster.selection import Selection, made_by, returned, select
from shoal.core.dependencies import DagFlow, TaskStatus
from shoal.core.policies.retry import AttemptOutcome
from shoal.core.scheduler_messages import Accept, GiveUp, Retry
from shoal.core.store.memory import MemoryStore
from shoal.core.store.packed_columns import ColumnsSummary, pack, summarize
from shoal.errors import InputError, RunError
from shoal.execution.attempt_recorder import AttemptRecorder, EndedAttempt
from shoal.execution.calls.graph_calls import Values
from shoal.execution.files.backups import Backups
from shoal.execution.files.files import Preparer
from shoal.execution.processes.output import OutputStream
from shoal.execution.processes.wakeup import USER_SIGNALS, Wakeup
from shoal.execution.requests import cancelled_summary, take_requests, why_stopped
from shoal.execution.run_options import PlannedRun, RunOptions
from shoal.ledger.cluster_notes import ARRIVING
from shoal.ledger.identity import place_of
from shoal.ledger.ownership import Listing, decode_listings, encode_listings
from shoal.ledger.records import OutputsCollected, TaskCourse, TaskEnded, Usage, decodable
from shoal.ledger.statistics import Statistics

PIECE_BYTES = 4 << 20
LEAST_PAUSE, LONGEST_PAUSE = 0.01, 0.25
"""Seconds between two requests for the log: short while there is news."""
PATIENCE = 120.0
"""Seconds without a reply after which the client stops following; the run itself continues."""
MOST_MISSED = 3
"""Maximum number of lost nodes that are reported one by one."""
LAST_WORDS_SECONDS = 0.3
QUIET_SECONDS = 30.0
"""Seconds for nodes to end running tasks; longer than a lease, so that lost nodes are no longer listed afterwards."""
MOST_TRIES = 10
LOST = (
    "the cluster no longer has this run: its store was started without its data, or the run was removed;"
    " what was done is in the ledger, and 'shoal run' goes on from there"
)
OUTCOMES = {outcome.value: outcome for outcome in AttemptOutcome}


class RestartRequiredError(InputError):
    """Pieces that were submitted before are missing on the cluster: submit again from the beginning."""


class LostRunError(RunError):
    """The cluster no longer has the run, although no client has ended it."""


class RemoteOptions(msgspec.Struct):
    """How a run on a cluster is submitted and followed."""

    options: RunOptions
    """Options that every run has."""
    cores: float
    """Cores of the whole cluster."""
    fail_fast: bool = False
    by_content: bool = False
    detach: bool = False
    """Submit and do not follow."""
    brought: bool = False
    """The run was submitted before."""
    selection: Selection | None = None
    """The tasks that were submitted, if it was."""
    began: float = 0.0
    known: dict[bytes, TaskEnded] = msgspec.field(default_factory=dict)
    """By key of the task, results that the ledger has already."""
    returned: set[str] | None = None
    """Files that the earlier submission wanted back."""
    targets: Sequence[int] = ()
    kept: Sequence[str] = ()
    """Tasks and files that are the targets of the run."""
    notes: set[str] = msgspec.field(default_factory=set)
    """Messages that were already shown: several nodes may send the same."""


class RemoteRun:
    """Submits a plan to a cluster and follows it to its end. `execute` may be called once."""

    def __init__(
        self, planned: PlannedRun, caller: Caller[WireMessage], about: RunDescription, options: RemoteOptions
    ) -> None:
        run, plan, versions, workspace = planned.identity, planned.plan, planned.versions, planned.workspace
        ledger, listener, history = planned.ledger, planned.listener, planned.history
        graph = plan.graph
        self.run, self.plan, self.graph, self.versions = run, plan, graph, versions
        self.listener, self.ledger, self.caller, self.workspace = listener, ledger, caller, workspace
        self._offset = time.time() - time.monotonic()
        self.options = options
        self.calls = WorkspaceCalls(graph, workspace)
        self._values = Values(graph, workspace, history)
        self.selection = options.selection or select(plan, versions, self.calls, managed=about.managed)
        self._return: OutputReturn | None = None
        self.returned: set[str] = set()
        """Downloads result files, where nodes share no file system with the client."""
        if about.managed:
            folder = os.path.join(workspace.directory, ARRIVING)
            self._return = OutputReturn(run, self.selection, folder, self._ask)
            back = options.returned
            if back is None:
                back = returned(graph, self.selection, options.targets, options.kept, self.calls)
            self.returned = back
        self.about = msgspec.structs.replace(about, tasks=len(self.selection.tasks))
        self.flow = DagFlow(graph, plan.wanted())
        self.flow.ready(plan.up_to_date())
        up_to_date = sum(graph.actions[task] is not None for task in plan.up_to_date())
        self.statistics = Statistics(len(plan.to_run()) + up_to_date, up_to_date, options.began, options.cores)
        self.recorder = AttemptRecorder(graph, versions, ledger, self.statistics, listener)
        self.output = OutputStream(workspace.output)
        self.preparer = Preparer(graph, versions)
        self.backups = Backups(workspace, plan, versions, history, options.options, listener.note)
        self._results: list[tuple[int, bool]] = []
        """By ended task, whether it succeeded; the records are not in the ledger yet."""
        self.stop_reason = ""
        self.stop_signal = 0
        self.detached = False
        self._next = 0
        self._participants = Participants(ledger)
        self._long_attempts = LongAttempts(lambda task: self.flow.status[task] < TaskStatus.DONE)
        self._next_look = 0.0
        self._silent_since: float | None = None
        self._lost_files: set[str] = set()
        self._is_behind = options.brought
        """Events from the time when no client followed the run are still being read."""
        self._was_over = False
        """The run was over before this client attached."""
        self._last_end = options.began
        self._is_lost = self._has_left = False
        """The cluster no longer has the run, or was told to forget it."""
        self.may_be_there = options.brought
        """The cluster may have the run, and not all of its log is known here."""

    @functools.cached_property
    def has_work(self) -> bool:
        """Whether a cluster is needed: a run of groups alone does not need one."""
        return any(task >= 0 and self.graph.actions[task] is not None for task in self.selection.tasks)

    def ended_at(self) -> float:
        return self.statistics.ended

    def clock(self) -> float:
        return time.monotonic() + self._offset

    # ---- submitting
    # ------------------------------------------------------------------------------------------------

    def submit(self) -> None:
        """Submits the run until the cluster has all of it: the agent that receives the pieces may end meanwhile."""
        for _ in range(MOST_TRIES):
            try:
                self._bring()
                return
            except RestartRequiredError:
                self.listener.note("the cluster has lost the submitted run; submitting it again")
        raise RunError("the cluster has repeatedly lost the submitted run")

    def _bring(self) -> None:
        if self.about.managed:
            upload_inputs(self.run, self.selection, self._ask)
        books = MemoryStore(self.selection.work, 0, shared_files=not self.about.managed)
        self._send("summary", encode(_shown(summarize(books))))
        for name, column in pack(books).items():
            self._send(name, column)
        for name, data in chunks(self.selection.task_specs(self.graph, self.calls, self._what_stays)):
            self._send(name, data)
        self.may_be_there = True  # also if no reply comes
        try:
            self._ask(SubmitCommand(self.run, encode(self.about)))
        except InputError:
            self.may_be_there = False
            raise

    def _what_stays(self, task: int) -> bytes:
        """Encodes, for nodes, what remains of earlier files under the names of the task's outputs."""
        outputs = self.backups.outputs_before(task) if self._return is None else []
        if not any(before.remains or before.others for before in outputs):
            return b""
        return encode([msgspec.structs.replace(before, units=[]) for before in outputs])

    def _make_room(self) -> None:
        """Moves earlier outputs to the backup; without a shared file system that happens when results come back."""
        if self._return is None:
            tasks = [task for task in self.selection.tasks if self.graph.actions[task] is not None]
            for task, why in self.backups.put_aside(tasks).items():
                raise InputError(f"{self.graph.names[task]!r} cannot be run: {why}")

    def _send(self, name: str, data: bytes) -> None:
        for at in range(0, len(data), PIECE_BYTES) if data else ():
            self._ask(SubmissionPiece(self.run, name, at, data[at : at + PIECE_BYTES]))

    def _ask(self, message: WireMessage) -> WireMessage:
        """Returns the reply to a request that may be sent twice; waits for an agent that is unreachable for a while."""
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
            if isinstance(answer, RefusedReply):
                if answer.anew:
                    raise RestartRequiredError(answer.why)
                raise InputError(f"the cluster refuses: {answer.why}")
            return answer

    def _leave_at_once(self) -> None:
        """The user interrupts the wait for a reply."""
        self.stop_signal = self.wakeup.signals.pop()
        raise RunError("the cluster does not reply; if it has the run, the run continues: 'shoal attach' follows it")

    # ---- following -----------------------------------------------------------------------------------------------

    def execute(self) -> None:
        """Follows the run until every task has ended, or the user interrupts."""
        self.wakeup = Wakeup(USER_SIGNALS)
        try:
            if not self.options.brought and self.has_work:
                self.calls.write(self.selection.tasks, self._values)
                self._make_room()
                self.submit()
            elif self.options.brought:
                self.backups.resume(self.selection.tasks)
            self.detached = self.options.detach and self.has_work
            pause = LEAST_PAUSE
            while self.has_work and not self.detached:
                news = self._follow()
                if news is None:
                    self._was_over = self._is_behind
                    break
                self._is_behind = self._is_behind and news > 0
                self._request_status()
                pause = LEAST_PAUSE if news else min(2 * pause, LONGEST_PAUSE)
                self.wakeup.wait(pause)
                if self.wakeup.signals:
                    self._on_signals()
                # Events from before this client attached are shown with their own times: the whole run may be over.
                self.listener.tick(self.statistics, self._last_end if self._is_behind else self.clock())
            if self._lost_files:
                self.stop_reason = self._lost_files_message()
            if not self.detached and self.has_work:
                self._forget_on_cluster()
                self.calls.clear()
                self.may_be_there, self._has_left = False, True
        finally:
            if self._return is not None:
                self._return.close()
            self.output.close()
            self.ledger.flush()
            self._close_backups()
            self.wakeup.close()
            self._close_statistics()

    def _close_backups(self) -> None:
        """Restores old outputs where there are no new ones, as soon as no task can write there any more."""
        self._settle()
        if self.may_be_there or self._is_lost:
            self.backups.leave()
            return
        if self._has_left and self.backups.has_any():
            self._await_end_of_tasks()
        self.backups.close()

    def _settle(self) -> None:
        """Results are recorded: deletes backups of successful tasks and restores those of failed ones."""
        for task, is_done in self._results:
            if is_done:
                self.backups.settle(task)
            else:
                self.backups.put_back(task)
        self._results.clear()

    def _await_end_of_tasks(self) -> None:
        """Waits until no node reports a share in the run: then all of its tasks have ended."""
        deadline = self.clock() + QUIET_SECONDS
        while self.clock() < deadline:
            try:
                told = self.caller.ask(ClusterRequest(), 1.0)
            except InputError:
                return  # the cluster has ended, and its tasks with it
            if not isinstance(told, ClusterReply) or not any(self._is_mine(told, number) for number in told.notes):
                return
            self.wakeup.wait(LONGEST_PAUSE)

    def _close_statistics(self) -> None:
        """Computes the offered resources until the end of the run, which may lie before this client attached."""
        totals = self.statistics
        totals.ended = max(totals.started, self._last_end if self._was_over else self.clock())
        totals.cores = self._participants.cores() or totals.cores
        totals.took_part = self._participants.all_cores()
        totals.offered = self._participants.core_seconds(totals.started, totals.ended)

    def _lost_files_message(self) -> str:
        names = sorted(self._lost_files)
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return f"a node was lost with {', '.join(names[:3])}{more} before they came back; run it again"

    def _request_status(self) -> None:
        """Requests the list and status of nodes, every second or less often."""
        if not self._is_behind and self.clock() >= self._next_look:
            self._note(self._ask(ClusterRequest()))

    def _note(self, told: WireMessage) -> dict[int, float]:
        """Records the status of nodes in the ledger; returns when each has last reported."""
        now = self.clock()
        if not isinstance(told, ClusterReply):
            return {}
        if told.nodes_answer:
            self.caller.learn(node.address for node in told.nodes.values())
        since = 0.0 if self.options.brought else self.statistics.started
        for name in self._participants.take(now, told.nodes, told.notes, since)[:MOST_MISSED]:
            self._report_lost_node(name)
        self._next_look = now + self._participants.pause
        self.statistics.cores = self._participants.cores() or self.statistics.cores
        self.statistics.took_part = self._participants.all_cores()
        mine = {told.nodes[number].name: note for number, note in told.notes.items() if self._is_mine(told, number)}
        self._count_running(list(mine.values()))
        self._record_long_attempts(now, mine)
        self.recorder.look(now)
        return {number: told.notes[number].up_seconds for number in told.nodes if number in told.notes}

    def _report_lost_node(self, node: str) -> None:
        self.listener.note(f"node {node} is lost; its unfinished tasks run elsewhere")

    def _is_mine(self, told: ClusterReply, number: int) -> bool:
        """Whether a node has a share in this run."""
        return number in told.nodes and told.notes[number].run == self.run

    def _record_long_attempts(self, now: float, notes: Mapping[str, ClusterNodeFacts]) -> None:
        """Records long attempts for readers of the ledger that look before they have ended."""
        begun, vanished = self._long_attempts.hear(
            now,
            [
                (self._participants.number(name, now), self.selection.tasks[task], attempt, seconds)
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

    def _count_running(self, notes: Sequence[ClusterNodeFacts]) -> None:
        """Counts the tasks that run on nodes with a share in this run, according to their last reports."""
        totals = self.statistics
        totals.running = sum(note.places for note in notes)
        for category in totals.categories.values():
            category.running = 0
        for note in notes:
            for name, count in note.doing:
                totals.category(name).running += count

    def _forget_on_cluster(self) -> None:
        """Asks the cluster to forget the run. Nodes then report how it ended; slow ones are not waited for."""
        if self._was_over:
            self._ask(ForgetCommand(self.run))
            return  # from now on, reports of nodes are not about this run
        before = self._note(self._ask(ClusterRequest()))
        self._ask(ForgetCommand(self.run))
        deadline = self.clock() + LAST_WORDS_SECONDS
        try:
            while any(
                before.get(node) == at for node, at in self._note(self.caller.ask(ClusterRequest(), 1.0)).items()
            ):
                if self.clock() > deadline:
                    return
                self.wakeup.wait(LEAST_PAUSE)
        except InputError:
            return  # the cluster has ended; everything that matters is known

    def _follow(self) -> int | None:
        """Reads the log; returns the number of new entries, or None when all are known."""
        told = self._ask(LogRequest(self.run, self._next))
        assert isinstance(told, LogReply)
        if told.state == "unknown":
            self.may_be_there, self._is_lost = False, True
            raise LostRunError(LOST)
        entries = [decode_entry(entry) for entry in told.entries]
        if self._return is not None:
            self._get_back(self._return, entries)
        for entry in entries:
            self._take(entry)
        self._next += len(told.entries)
        self.ledger.flush()
        self._settle()
        if not told.entries and (told.state == "ended" or not told.left):
            return None
        return len(told.entries)

    def _get_back(self, way: OutputReturn, entries: Sequence[LogEntry]) -> None:
        """Downloads wanted files as soon as they exist; notes for the ledger that the others stay on the nodes."""
        wanted: list[str] = []
        tasks: list[int] = []
        for entry in entries:
            task = self.selection.tasks[entry.task] if entry.verdict == "done" else -1
            if task >= 0 and self.flow.status[task] != TaskStatus.DONE and self._recorded(task, entry) is None:
                tasks.append(task)
                wanted += [name for name in made_by(self.graph, task, self.calls) if name in self.returned]
        if tasks:
            self.backups.put_aside(tasks)
        lost = way.get(wanted) if wanted else []
        self._lost_files.difference_update(wanted)
        self._lost_files.update(lost)

    def _note_absent(self, task: int, entry: LogEntry) -> None:
        """Records versions of files that stay on nodes: sizes and checksums, also if the run compares files by time. A
        later reader must see whether a file has changed since. Times would change whenever the file is made again for
        one of its readers."""
        numbers = entry.checksums or [round(entry.ended * 1e9)] * len(entry.made)  # older agents send no checksums
        for file, pair in zip(self.graph.outputs_of(task), zip(entry.made, numbers, strict=False), strict=False):
            if self.graph.file_names[file] not in self.returned:
                self._note_version(file, pair, False)

    def _no_answer(self, error: InputError) -> None:
        now = time.monotonic()
        if self._silent_since is None:
            self._silent_since = now
            self.listener.note(f"{error}; trying again")
        if now - self._silent_since > PATIENCE:
            raise RunError(f"no reply for {PATIENCE:g} s; the run continues on the cluster: 'shoal attach' follows it")

    def _take(self, entry: LogEntry) -> None:
        if entry.task < 0:
            self._take_run_entry(entry)
            return
        task = self.selection.tasks[entry.task]
        if entry.verdict == "done" and self.flow.status[task] == TaskStatus.DONE:
            return  # its output was lost with a node and had to be made again; the first result is already recorded
        if entry.course:
            self.ledger.add(TaskCourse(task, entry.attempt, entry.course))
        recorded = self._recorded(task, entry)
        attempt = self._ended_attempt(task, entry, recorded)
        self._last_end = max(self._last_end, entry.ended)
        verdict: Accept | Retry | GiveUp
        if entry.verdict == "done":
            if recorded is not None:
                self._take_as_recorded(task, recorded)
            elif self._return is not None:
                self._take_stock(task, entry)
            else:
                attempt.listing = self._take_as_seen(task, entry)
            verdict = Accept(task, entry.attempt)
            if self.flow.status[task] == TaskStatus.READY:
                self.flow.complete([task])
        elif entry.verdict == "retry":
            verdict = Retry(task, entry.attempt, attempt.outcome, 0.0)
        else:
            verdict = GiveUp(task, entry.attempt, attempt.outcome)
            self._lose([task])
        self.recorder.ended(attempt)
        self.recorder.enter([verdict])
        if (
            entry.verdict != "retry" and attempt.outcome is not AttemptOutcome.CANCELLED
        ):  # a cancelled task may still run
            self._results.append((task, entry.verdict == "done"))
        self._long_attempts.ended(task, entry.attempt)
        if self._return is not None and entry.verdict == "done":
            self._note_collected(task)

    def _take_run_entry(self, entry: LogEntry) -> None:
        """Takes a log entry that belongs to no task."""
        match entry.verdict:
            case "note" if entry.message not in self.options.notes:
                self.options.notes.add(entry.message)
                self.listener.note(entry.message)
            case node_throttle.SAID:
                self.ledger.add(record_of(entry))
                self.statistics.may_oversubscribe = True
            case run_description.JOINED:
                self._participants.joined(entry.started, entry.node, list(entry.resources))
            case run_description.LEFT:
                if self._participants.left(entry.ended, entry.node):
                    self._report_lost_node(entry.node)

    def _ended_attempt(self, task: int, entry: LogEntry, recorded: TaskEnded | None) -> EndedAttempt:
        if recorded is not None:
            at, size = recorded.output_at, recorded.output_size
        else:
            at, size = self.output.append(entry.output) if entry.output else (0, 0)
        return EndedAttempt(
            task,
            entry.attempt,
            OUTCOMES[entry.outcome],
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
            self._participants.number(entry.node, entry.ended),
            listing=recorded.listing if recorded is not None else entry.listing,
        )

    def _recorded(self, task: int, entry: LogEntry) -> TaskEnded | None:
        """Returns what an earlier client has recorded of this attempt, if it was the successful one."""
        found = self.options.known.get(place_of(self.graph, task)) if self.options.known else None
        is_it = found is not None and found.outcome == entry.outcome == "ok" and found.ended == entry.ended
        return found if is_it else None

    def _take_as_recorded(self, task: int, recorded: TaskEnded) -> None:
        for file, pair in zip(self.graph.outputs_of(task), recorded.outputs, strict=False):
            self._note_version(file, pair, os.path.isdir(self.graph.file_names[file]))

    def _take_as_seen(self, task: int, entry: LogEntry) -> bytes:
        """Takes file versions as the task left them, since other programs may have changed the files by now. Returns
        the listings for the ledger, which hold versions of the same kind."""
        listings = decode_listings(entry.listing) if self.options.by_content else {}
        for at, (file, seen) in enumerate(zip(self.graph.outputs_of(task), entry.seen, strict=False)):
            size, time_, is_folder = seen
            self._note_version(file, (size, time_), is_folder)
            if self.options.by_content:
                listing = self._take_by_content(file, seen, listings.get(at, {}))
                if listing:
                    listings[at] = listing
        return encode_listings(listings) if self.options.by_content else entry.listing

    def _take_by_content(self, file: int, seen: Seen, told: Listing) -> Listing:
        """Replaces times by content versions. Nodes report times, since reading all outputs would keep them from other
        work. A file that is unchanged since gets its checksum. One that has changed keeps its time: a checksum of the
        new content would be taken for that of the task's output. Returns the listing with the new versions."""
        signatures, versions = self.preparer.signatures, self.versions
        by_time = signatures.note_made(file, by_content=False)
        size, time_, is_folder = seen
        is_same = by_time is not None and (versions.sizes[file], versions.times[file]) == (size, time_)
        now = signatures.note_made(file, by_content=True) if is_same or (by_time and told) else None
        if now is None or not is_same:
            self._note_version(file, (size, time_), is_folder)
        if not by_time or not now:
            return told
        return {name: now.get(name, made) if by_time.get(name) == made else made for name, made in told.items()}

    def _note_version(self, file: int, pair: tuple[int, int], is_folder: bool) -> None:
        versions = self.versions
        versions.sizes[file], versions.times[file] = pair
        if is_folder:
            versions.folders.add(file)
        else:
            versions.folders.discard(file)

    def _take_stock(self, task: int, entry: LogEntry) -> None:
        self._note_absent(task, entry)
        for file in self.graph.outputs_of(task):
            if self.graph.file_names[file] in self.returned:
                self.preparer.signatures.note(file, self.options.by_content)

    def _note_collected(self, task: int) -> None:
        if any(name not in self.returned for name in self.graph.output_names(task)):
            self.ledger.add(OutputsCollected([place_of(self.graph, task)]))

    def _lose(self, tasks: Sequence[int]) -> None:
        doomed = self.flow.fail([task for task in tasks if self.flow.status[task] < TaskStatus.DONE])
        self.statistics.doomed += sum(self.graph.actions[task] is not None for task in doomed)
        if self.options.fail_fast and not self.stop_reason:
            self._stop(f"{self.graph.names[tasks[0]]!r} failed and --fail-fast was given")

    def _stop(self, reason: str) -> None:
        self.stop_reason = reason
        self.recorder.stopping = True
        self.listener.note(f"stopping: {reason}")
        answer = self._ask(CancelCommand(self.run, []))
        assert isinstance(answer, DoneReply)

    def _cancel(self, tasks: Sequence[int]) -> None:
        """Takes tasks that `shoal cancel` named. Their ends are not in the log, so they are recorded here."""
        number = {task: at for at, task in enumerate(self.selection.tasks)}
        open_ones = [task for task in tasks if self.flow.status[task] < TaskStatus.DONE and task in number]
        if not open_ones:
            return  # an empty list would mean all tasks
        self._ask(CancelCommand(self.run, [number[task] for task in open_ones]))
        self.listener.note(cancelled_summary(self.graph, open_ones))
        self.recorder.cancelled(open_ones)
        self._lose(open_ones)

    def _on_signals(self) -> None:
        signals, self.wakeup.signals = self.wakeup.signals, []
        for number in signals:
            if number == signal.SIGUSR1:
                self._cancel(take_requests(self.workspace, self.graph))
            elif number == signal.SIGHUP or self.stop_signal:
                self.detached = True
                self.listener.note("the run continues without this terminal; 'shoal attach' follows it again")
            elif number in (signal.SIGINT, signal.SIGTERM):
                self.stop_signal = number
                self._stop(why_stopped(self.workspace, number))


def _shown(summary: ColumnsSummary) -> ColumnsSummary:
    """Cleans names: nodes and clients show them to each other and to users, and open no file by them."""
    profiles = [msgspec.structs.replace(each, category=decodable(each.category)) for each in summary.profiles]
    return msgspec.structs.replace(summary, name=decodable(summary.name), profiles=profiles)
