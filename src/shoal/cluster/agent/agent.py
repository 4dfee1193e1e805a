"""The agent (`shoal agent`): one node of a cluster, which joins, sends heartbeats, runs its share of a run and replies.

One loop in one thread serves messages, the launcher of the current share, signals, and a heartbeat every second. Runs
are served one after another, in the order of submission. An agent that could not reach the store in time is declared
lost. It then kills what it runs and joins as a new node: what it did in between does not count, since other nodes may
have repeated it.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from shoal.cluster.agent.call_server import CallServer
from shoal.cluster.agent.explain_source import whole_share, why_in_share
from shoal.cluster.agent.heartbeat import Heartbeats, ahead, skew_sentence
from shoal.cluster.agent.heartbeat import idle_sentence as sentence_of_idleness
from shoal.cluster.agent.messages import (
    AgentClock,
    ClusterNodeFacts,
    PeersChangedEvent,
    PeerSchedulerMessage,
    PieceReceivedReply,
    RunsChangedEvent,
    TasksUnwantedEvent,
    WireMessage,
    read_note,
)
from shoal.cluster.agent.node_cache import NodeCache
from shoal.cluster.agent.request_handler import RequestHandler, memory_places
from shoal.cluster.agent.run_description import LogEntry, TaskSpecs, decode_about, encode
from shoal.cluster.agent.run_share import RunShare, StoredRun
from shoal.cluster.agent.run_store import ClusterStores
from shoal.cluster.agent.task_setup import GivenUpError, why_ended
from shoal.cluster.home import remove_spool
from shoal.cluster.messaging.caller import VersionError
from shoal.cluster.messaging.messenger import VARIABLE, FaultInjector, Messenger
from shoal.core.explain.answer import Answer, RunAnswer
from shoal.core.policies.retry import NOTICE
from shoal.core.store.directory import Beat, Directory, NodeInfo, RunInfo
from shoal.core.store.interface import NOBODY, GoneError, UnknownRunError
from shoal.data.memory.client import VARIABLE as MEMORY
from shoal.data.memory.protocol import MemoryNode
from shoal.data.memory.server import MemoryServer
from shoal.errors import RunError, ShoalError
from shoal.execution.process_limits import OUT_OF_DESCRIPTORS, limit
from shoal.execution.processes.wakeup import Interrupted, Wakeup, signals_raise


class Membership:
    """The node number of this agent in the cluster."""

    def __init__(self, info: NodeInfo) -> None:
        self.info = info
        self.number = NOBODY
        self.former: list[int] = []
        """Earlier numbers of this agent; the stores of runs may still contain them."""
        self.nodes: dict[int, NodeInfo] = {}
        """All nodes, as the directory listed them last."""
        self._greatest = NOBODY

    def join(self, directory: Directory, now: float = 0.0) -> None:
        """Joins as a new node."""
        self.leave()
        self.info = msgspec.structs.replace(self.info, incarnation=secrets.token_hex(8))
        self.number = directory.join(self.info, now, self._greatest)
        self._greatest = max(self._greatest, self.number)

    def renew(self, directory: Directory, note: bytes, now: float = 0.0) -> Beat:
        """Renews the lease. If the beat is not alive, the agent must join anew, and its former work does not count."""
        return directory.renew(self.number, now, note, self.info.incarnation)

    def see(self, nodes: dict[int, NodeInfo]) -> dict[int, NodeInfo]:
        """Takes the current list of nodes; returns the nodes that have left."""
        gone = {number: node for number, node in self.nodes.items() if number not in nodes}
        self.nodes = nodes
        self._greatest = max(self._greatest, *nodes, NOBODY)
        return gone

    def leave(self) -> None:
        """Leaves the cluster; the agent is not a node until it joins again."""
        if self.number != NOBODY:
            self.former.append(self.number)
        self.number = NOBODY

    def give_up(self, directory: Directory) -> None:
        """Removes the node from the directory, unless its number belongs to another node by now."""
        if self.number != NOBODY:
            directory.remove(self.number, self.info.incarnation)


BEAT_SECONDS = 1.0
GIVE_BACK_SECONDS = 5.0
"""Seconds before the end of its time at which a node that drains returns unfinished tasks."""
HAND_OVER_SECONDS = 1.0
"""Seconds, after the last running task, in which peers may steal queued tasks before they are returned to the store."""
MOST_EARLY = 64
"""Maximum number of messages kept for a run whose share is not open yet; further ones are dropped, and sent again."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Agent:
    """One node of a cluster, from joining to leaving."""

    def __init__(
        self,
        messenger: Messenger[WireMessage],
        stores: ClusterStores,
        info: NodeInfo,
        spool: str,
        node_cache: NodeCache,
        memory: MemoryServer | None = None,
    ) -> None:
        self.messenger, self.stores, self.spool, self.node_cache = messenger, stores, spool, node_cache
        self.membership = Membership(info)
        self.memory = memory
        """The service of this node's shared memory; tasks find its socket in their environment."""
        if memory is not None:
            os.environ[MEMORY] = memory.socket_path
        if VARIABLE in os.environ:
            self.messenger = FaultInjector(messenger, os.environ[VARIABLE])  # type: ignore[assignment]
        self.clock = AgentClock()
        self.request_handler = RequestHandler(self, messenger, stores, node_cache, keeps_sources=False)
        self.call_server = self.request_handler.call_server = CallServer(info.capacity(), spool, messenger.answer)
        self.share: RunShare | None = None
        self._telling = Heartbeats(self.clock)
        self._early: deque[PeerSchedulerMessage] = deque(maxlen=MOST_EARLY)
        """Messages about a run whose share is not open yet."""
        self._declined: set[tuple[int, str]] = set()
        """Own node numbers with runs in which this node does not take part."""
        self.leaving = False
        self.at_once = False
        self._versions = (-1, -1)
        self._problem: ShoalError | None = None
        self._is_run_on = False
        self._next_beat = 0.0
        self._ahead = 0.0
        """Seconds by which the local clock differs; 0 if the difference is negligible."""
        self._done_since: float | None = None
        """Since when an agent that leaves has had no running task."""

    @property
    def info(self) -> NodeInfo:
        return self.membership.info

    @property
    def number(self) -> int:
        return self.membership.number

    @property
    def nodes(self) -> dict[int, NodeInfo]:
        return self.membership.nodes

    # ---- the loop ------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Runs the loop until the agent is stopped."""
        if not self._begins():
            self._end()
            return
        self.wakeup = Wakeup(SIGNALS)
        self.call_server.attend(self.wakeup)
        for descriptor in (*self.messenger.fds(), self.node_cache.fetcher.fd()):
            self.wakeup.add(descriptor)
        try:
            while not self._has_left():
                try:
                    self._turn()
                except VersionError:
                    raise
                except GivenUpError:
                    self._drop_given_up()
                except ShoalError as error:
                    self._recover(error)
                except OSError as error:
                    if error.errno not in OUT_OF_DESCRIPTORS:
                        raise
                    self._recover(RunError(f"cannot open more files (limit: {limit()}): {error}"))
        finally:
            self._part()
            self._end()
            self.wakeup.close()

    def _begins(self) -> bool:
        """Joins the cluster, with retries; False if a signal ends the agent first."""
        try:
            with signals_raise(SIGNALS):
                self.membership.join(self.stores.directory)
        except Interrupted:
            return False
        except BaseException:
            self._end()
            raise
        self._telling.joined()
        return True

    def _end(self) -> None:
        """Releases everything that the agent uses on this machine."""
        self.call_server.close()
        if self.memory is not None:
            # while signals are still blocked: an interrupt here would leave shared memory segments behind
            self.memory.close()
        self.node_cache.close()
        remove_spool(self.spool)
        self.messenger.close(linger=0.5)

    def _recover(self, error: ShoalError) -> None:
        """Handles an error of the store: the run is over and forgotten, or the store was unreachable for too long.

        In the latter case the agent gives up all its work and joins as another node: the others may have declared it
        lost, and a new number makes sure that none of its former results counts.
        """
        share, self.share = self.share, None
        if share is not None:
            self.wakeup.discard(share.launcher.descriptor)
            self._telling.share_ends(share)
            share.close()
        self._versions = (-1, -1)
        self._next_beat = self.clock() + BEAT_SECONDS
        try:
            if share is not None and all(each.run != share.run for each in self.stores.directory.runs()):
                return
            self._say(str(error))
            if share is not None and not isinstance(error, GoneError):
                share.store.lose(self.number)
            # Only after that: while the node is listed, its lease expires and another agent recovers its tasks.
            self.membership.give_up(self.stores.directory)
        except ShoalError:
            pass  # the agent joins as another node once the store replies again
        self.membership.leave()

    def _say(self, sentence: str) -> None:
        print(f"shoal agent: {sentence}", file=sys.stderr, flush=True)

    def _part(self) -> None:
        """Returns remaining tasks to the store and removes the node."""
        share = self.share
        self._close_share()
        try:
            if share is not None:
                self._give_back(share)
            self.membership.give_up(self.stores.directory)
        except ShoalError:
            pass  # an agent that notices the expired lease does it

    def _give_back(self, share: RunShare) -> None:
        """Returns all tasks of the share to the store and notifies the other agents."""
        cut_short = sorted(share.scheduler.broker.running)
        ends_at = self.info.ends_at
        if cut_short and ends_at is not None and self.clock() > ends_at - 2 * GIVE_BACK_SECONDS:
            why = f"the time of {self.info.name} was over before {len(cut_short)} of its tasks were: they are run again"
            share.store.note(encode(LogEntry(-1, 0, "note", "", self.info.name, message=why)))
        share.note_gone(self.info.name)
        share.store.lose(self.number)
        for number, node in self.nodes.items():
            if number != self.number:
                self.messenger.send(node.address, PeersChangedEvent(share.run))
        self.messenger.flush()

    def _turn(self) -> None:
        readable = self.wakeup.wait(self._patience())
        if self.wakeup.signals:
            self._on_signals()
        self.request_handler.serve(self.clock())
        self._raise_problem()
        self.call_server.turn(readable)
        if self.share is None or self.share.task_files is None:
            self.node_cache.fetcher.finished()  # files that were fetched in advance for an earlier share
        share = self.share
        if share is not None:
            share.turn(share.launcher.descriptor in readable)
            if self.share is share and not share.store.seen_left:
                self._finish(share)
        if self.clock() >= self._next_beat:
            self._beat()
        self.messenger.flush()

    def _raise_problem(self) -> None:
        """Raises an error of the share that occurred while a message was handled, which the request handler reports to
        the sender only."""
        problem, self._problem = self._problem, None
        if problem is not None:
            raise problem

    def _patience(self) -> float:
        until_beat = min(self._next_beat - self.clock(), self.call_server.patience())
        return max(0.0, min(until_beat, self.share.patience()) if self.share is not None else until_beat)

    def _on_signals(self) -> None:
        signals, self.wakeup.signals = self.wakeup.signals, []
        for _ in signals:
            self.leave(at_once=self.leaving)

    def leave(self, *, at_once: bool) -> None:
        """Starts no further task and ends when none runs; with `at_once`, kills running tasks."""
        self.leaving, self.at_once = True, at_once
        self.call_server.leave()
        if self.share is not None and not at_once:
            self.share.drain()

    def _has_left(self) -> bool:
        if not self.leaving:
            return False
        share, now = self.share, self.clock()
        if self.at_once or (share is None and not self.call_server.busy()):
            return True
        if self.info.ends_at is not None and now > self.info.ends_at - GIVE_BACK_SECONDS:
            return True
        if share is None or share.running() or self.call_server.busy():
            self._done_since = None
            return False
        self._done_since = self._done_since or now
        is_empty = not share.scheduler.broker.state and not share.scheduler.parcels.unsettled
        return is_empty or len(self.nodes) < 2 or now - self._done_since > HAND_OVER_SECONDS

    # ---- membership
    # ------------------------------------------------------------------------------------------------

    def _join(self) -> None:
        self.membership.join(self.stores.directory)
        self._telling.joined()
        self._versions = (-1, -1)
        self._beat()

    def _beat(self) -> None:
        """Renews the lease and reads which nodes and runs the cluster has."""
        self._next_beat = self.clock() + BEAT_SECONDS
        if self.share is not None:
            self.share.task_setup.refuse_given_up()
        if self.number == NOBODY:
            self._join()
            return
        directory = self.stores.directory
        ends_at = self.info.ends_at
        if ends_at is not None and not self.leaving and self.clock() > ends_at - NOTICE:
            self.leave(at_once=False)  # whether or not the batch system sends a signal
        before = time.time()
        beat = self.membership.renew(directory, encode(self._doing()))
        self._compare_clocks(before, time.time(), beat.clock)
        if not beat.alive:
            self._say(f"the lease of this node (number {self.number}) has expired: it joins again")
            self._close_share()
            self._join()
            return
        if beat.nodes_version != self._versions[0]:
            self._look_at_nodes()
        if beat.runs_version != self._versions[1]:
            self._look_at_runs()
        versions = (beat.nodes_version, beat.runs_version)
        if self.memory is not None and (versions != self._versions or not self._all_memory_known()):
            self._update_memory(self.memory)
        self._versions = versions
        # by now this node has a share in the current run, so the lost nodes' tasks find their way here
        if not self.leaving:
            self._recover_lost(directory.expired())
        if self.share is not None and not self.share.store.left:
            self._finish(self.share)
        if self.share is not None and not self.leaving:
            self._check_idleness(self.share)

    def _check_idleness(self, share: RunShare) -> None:
        """No core may idle for long while a peer queues tasks that it could run: requests tasks again, and reports the
        case."""
        directory = self.stores.directory
        beside = share.beside(
            self.clock(), lambda: {number: read_note(note) for number, note in directory.notes().items()}
        )
        if beside is None:
            return
        self._versions = (-1, -1)  # the next heartbeat reads nodes and runs again
        if not beside.lasts:
            return
        if not share.store.renew(self.number):
            self._say(f"the run counts this node (number {self.number}) as lost: it joins again")
            self._close_share()
            self.membership.give_up(directory)
            self._join()
            return
        is_new, why = not share.idle.told, sentence_of_idleness(self.info.name, self.nodes[beside.peer].name, beside)
        share.idle.told = why
        self._say(why)
        if is_new:
            share.store.note(encode(LogEntry(-1, 0, "note", "", self.info.name, message=why)))

    def _all_memory_known(self) -> bool:
        assert self.memory is not None
        return self.memory.service.nodes.keys() >= self.nodes.keys()

    def _update_memory(self, memory: MemoryServer) -> None:
        """Informs the memory service of the other nodes' memory and of the runs that keep allocations."""
        places = memory_places(self.stores.directory)
        places[self.number] = MemoryNode(self.info.name, memory.address, memory.encrypted)
        memory.tell(self.number, places, [each.run for each in self.stores.directory.runs() if each.state != "ended"])

    def _compare_clocks(self, before: float, after: float, theirs: float) -> None:
        found = ahead(before, after, theirs)
        if found and not self._ahead:
            self._say(skew_sentence(self.info.name, found))
        self._ahead = found

    def _doing(self) -> ClusterNodeFacts:
        """Returns the node's status for viewers and for the factory."""
        memory = self.memory
        return self._telling.note(
            self.share,
            calls=self.call_server.at_work(),
            draining=self.leaving,
            ahead=self._ahead,
            fetched=self.node_cache.fetcher.bytes_fetched,
            memory=memory.address if memory is not None else "",
            memory_plain=memory is not None and not memory.encrypted,
        )

    def _recover_lost(self, lost: Sequence[int]) -> None:
        """Requeues the tasks of lost nodes, then removes the nodes. If this agent dies in between, another one repeats
        both."""
        for number in lost:
            if number == self.number or (self.share is None and self._is_run_on):
                continue  # without a share in the run, leave that to the others
            if self.share is not None:
                if number in self.nodes:
                    self.share.note_gone(self.nodes[number].name)
                self.share.lose(number)
            self.stores.directory.remove(number)

    def _look_at_nodes(self) -> None:
        for number, node in self.membership.see(self.stores.directory.nodes()).items():
            self.messenger.forget(node.address)
            if self.share is not None:  # it has left or was recovered by another agent, so it owns no task
                self.share.lose(number)
        if self.share is not None and self.number in self.nodes:
            self.share.peers_changed(self.nodes)

    # ---- runs ----------------------------------------------------------------------------------------------------

    def _look_at_runs(self) -> None:
        runs = self.stores.directory.runs()
        current = next((each for each in runs if each.state != "ended" and not self._ends_given_up(each)), None)
        self._is_run_on = current is not None
        if self.share is not None and (current is None or current.run != self.share.run):
            self._close_share()
        if current is not None and self.share is None and not self.leaving:
            self._open_share(current)
        self.node_cache.keep_only([each.run for each in runs])

    def _ends_given_up(self, run: RunInfo) -> bool:
        """Ends the run if its user has given it up, so that the next one is served."""
        why = why_ended(run.run, decode_about(run.about))
        if why:
            self._say(why)
            self.request_handler.end_given_up(run.run, self.info.name, why)
        return bool(why)

    def _drop_given_up(self) -> None:
        """Kills what still runs here of a run that was given up. The next heartbeat ends the run for all nodes."""
        self._close_share()
        self._versions = (-1, -1)
        self._next_beat = 0.0

    def _open_share(self, run: RunInfo) -> None:
        if self.number not in self.nodes:
            self.membership.see(self.stores.directory.nodes())
        if (self.number, run.run) in self._declined or self.number not in self.nodes:
            return  # in the latter case the next heartbeat tells the agent to join anew
        try:
            store, work = self.stores.attach(run.run)
        except (UnknownRunError, GoneError):
            self._say(f"the store has lost run {run.run}; the run is removed so that later runs are served")
            self.stores.directory.forget(run.run)
            return
        about = decode_about(run.about)
        if not about.managed and not os.path.isdir(about.base):
            why = f"{about.base!r} does not exist on {self.info.name}, so the node does not take part"
            store.note(encode(LogEntry(-1, 0, "note", "", self.info.name, message=why)))
            self._declined.add((self.number, run.run))
            store.lose(self.number)  # tasks that peers have sent to this number are theirs again
            return
        self.node_cache.origin_address = about.origin
        self.share = RunShare(
            StoredRun(run.run, about, work, store, TaskSpecs(store.get_piece)),
            self.number,
            self.nodes,
            self.spool,
            self.messenger,
            self.clock,
            self.wakeup,
            self.node_cache if about.managed else None,
        )
        self.wakeup.add(self.share.launcher.descriptor)
        if self._ahead:
            why = skew_sentence(self.info.name, self._ahead)
            store.note(encode(LogEntry(-1, 0, "note", "", self.info.name, message=why)))
        self.stores.directory.begin(run.run)
        self.share.begin()
        for number in self.membership.former:
            # tasks of that earlier number have no owner, and no other agent may have noticed
            if number not in self.nodes:
                self.share.lose(number)
        early = [said for said in self._early if said.run == run.run]
        self._early.clear()
        for said in early:
            self.hear(said)

    def _close_share(self) -> None:
        if self.share is not None:
            self.wakeup.discard(self.share.launcher.descriptor)
            self._telling.share_ends(self.share)
            self.share.close()
            self.share = None

    def _finish(self, share: RunShare) -> None:
        """The run has no tasks left: ends it, so that the next one is served."""
        self.stores.directory.end(share.run, "done")
        self._close_share()
        self._look_at_runs()

    # ---- callbacks of the request handler
    # --------------------------------------------------------------------------

    def hear(self, message: WireMessage) -> WireMessage | None:
        """Takes a message of another agent about the current run."""
        with self._share_at_work():
            self._hear(message)
        return None

    @contextmanager
    def _share_at_work(self) -> Iterator[None]:
        """Handles errors while a message changes the share, which may leave it half changed.

        Errors of the store are for `_recover`. Any other error is a defect of Shoal and must be reported.
        """
        try:
            yield
        except ShoalError as error:
            self._problem = error
        except (LookupError, TypeError, ValueError) as error:
            self._say(f"internal error while handling a message: {type(error).__name__}: {error}")
            raise

    def _hear(self, message: WireMessage) -> None:
        share = self.share
        match message:
            case PeerSchedulerMessage(run, sender) if share is not None and share.run == run and sender in self.nodes:
                share.hear(message)
            case PeerSchedulerMessage() if share is None or share.run != message.run:
                self._early.append(message)
            case PieceReceivedReply(run, tickets) if share is not None and share.run == run:
                share.promised(tickets)
            case PeersChangedEvent(run) if share is not None and share.run == run:
                share.look_around()
            case RunsChangedEvent():
                self._next_beat = 0.0
            case TasksUnwantedEvent(run, tasks) if share is not None and share.run == run:
                share.cancel(tasks)

    def runs_changed(self) -> None:
        """Tells all agents to read the list of runs."""
        self._next_beat = 0.0
        for number, node in self.nodes.items():
            if number != self.number:
                self.messenger.send(node.address, RunsChangedEvent())

    def unwanted(self, run: str, tasks: list[int]) -> None:
        """Tells the agents that may have the cancelled tasks."""
        for number, node in self.nodes.items():
            if number != self.number:
                self.messenger.send(node.address, TasksUnwantedEvent(run, tasks))
        if self.share is not None and self.share.run == run:
            with self._share_at_work():
                self.share.cancel(tasks)

    def explain(self, run: str, task: int) -> Answer | None:
        """Returns the scheduler's explanation of a task, if this node has it."""
        share = self.share
        if share is None or share.run != run or not share.has(task):
            return None
        answer = why_in_share(share, task)
        answer.node = self.info.name
        return answer

    def explain_run(self, run: str) -> RunAnswer | None:
        share = self.share
        return whole_share(share, self.info.name) if share is not None and share.run == run else None

    def running_of(self, run: str) -> int:
        return self.share.running() if self.share is not None and self.share.run == run else 0
