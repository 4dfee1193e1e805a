"""`shoal agent`: one node of a cluster. Joins, says that it lives, does its share of the run that is on, and answers.

One loop and one thread: the post, the launcher of the current share, signals, and a beat every second. Runs are served
one after another, in the order in which they were brought. An agent that was declared lost, because it did not get
through to the books in time, ends what it runs and joins anew as another node: nothing it did in between counts.
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
from shoal.cluster.agent.fault_injection import VARIABLE, FaultInjector
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
from shoal.cluster.messaging.messenger import Messenger
from shoal.core.explain.answer import Answer, RunAnswer
from shoal.core.policies.retry import NOTICE
from shoal.core.store.directory import Beat, Directory, NodeInfo, RunInfo
from shoal.core.store.interface import NOBODY, GoneError, UnknownRunError
from shoal.data.memory.client import VARIABLE as MEMORY
from shoal.data.memory.protocol import MemoryNode
from shoal.data.memory.server import MemoryServer
from shoal.errors import RunError, ShoalError
from shoal.execution.descriptors import OUT_OF_DESCRIPTORS, limit
from shoal.execution.processes.wakeup import Interrupted, Wakeup, signals_raise


class Membership:
    """Which node of the cluster this agent is."""

    def __init__(self, info: NodeInfo) -> None:
        self.info = info
        self.number = NOBODY
        self.former: list[int] = []
        """Numbers that it had before, and with which it may still be in the books of a run."""
        self.nodes: dict[int, NodeInfo] = {}
        """All nodes, as the directory listed them last."""
        self._greatest = NOBODY

    def join(self, directory: Directory, now: float = 0.0) -> None:
        """Becomes a new node, whatever it was before."""
        self.leave()
        self.info = msgspec.structs.replace(self.info, incarnation=secrets.token_hex(8))
        self.number = directory.join(self.info, now, self._greatest)
        self._greatest = max(self._greatest, self.number)

    def renew(self, directory: Directory, note: bytes, now: float = 0.0) -> Beat:
        """Says that it lives; not alive: it must join anew, and nothing that it had counts any more."""
        return directory.renew(self.number, now, note, self.info.incarnation)

    def see(self, nodes: dict[int, NodeInfo]) -> dict[int, NodeInfo]:
        """The directory lists these nodes now; returns those that are gone."""
        gone = {number: node for number, node in self.nodes.items() if number not in nodes}
        self.nodes = nodes
        self._greatest = max(self._greatest, *nodes, NOBODY)
        return gone

    def leave(self) -> None:
        """It is no node any more, until it joins again."""
        if self.number != NOBODY:
            self.former.append(self.number)
        self.number = NOBODY

    def give_up(self, directory: Directory) -> None:
        """Strikes it off; nothing happens if its number is that of another one by now."""
        if self.number != NOBODY:
            directory.remove(self.number, self.info.incarnation)


BEAT_SECONDS = 1.0
GIVE_BACK_SECONDS = 5.0
"""So long before its time is over, a node that was told to end gives back what it could not finish."""
HAND_OVER_SECONDS = 1.0
"""For how long others may take what waits here, once nothing runs any more, before it is given back."""
MOST_EARLY = 64
"""Messages that are kept until we have a share in the run that they are about; those beyond are sent again."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Agent:
    """One node, from joining to leaving."""

    def __init__(
        self,
        post: Messenger[WireMessage],
        books: ClusterStores,
        info: NodeInfo,
        spool: str,
        depot: NodeCache,
        memory: MemoryServer | None = None,
    ) -> None:
        self.post, self.books, self.spool, self.depot = post, books, spool, depot
        self.membership = Membership(info)
        self.memory = memory
        """The service of this node's shared memory; tasks find its door in their environment."""
        if memory is not None:
            os.environ[MEMORY] = memory.door
        if VARIABLE in os.environ:
            self.post = FaultInjector(post, os.environ[VARIABLE])  # type: ignore[assignment]
        self.clock = AgentClock()
        self.desk = RequestHandler(self, post, books, depot, keeps_sources=False)
        self.farm = self.desk.farm = CallServer(info.capacity(), spool, post.answer)
        self.share: RunShare | None = None
        self._telling = Heartbeats(self.clock)
        self._early: deque[PeerSchedulerMessage] = deque(maxlen=MOST_EARLY)
        """What others said of a run in which we have no share yet."""
        self._declined: set[tuple[int, str]] = set()
        """Our numbers, and runs in which we take no part."""
        self.leaving = False
        self.at_once = False
        self._versions = (-1, -1)
        self._problem: ShoalError | None = None
        self._is_run_on = False
        self._next_beat = 0.0
        self._ahead = 0.0
        """Seconds by which our clock is wrong; 0 as long as that is not worth a word."""
        self._done_since: float | None = None
        """Since when an agent that leaves has had nothing running."""

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
        """Until somebody says that it is enough."""
        if not self._begins():
            self._end()
            return
        self.wakeup = Wakeup(SIGNALS)
        self.farm.attend(self.wakeup)
        for descriptor in (*self.post.fds(), self.depot.fetcher.fd()):
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
                    self._recover(RunError(f"no more files can be opened (limit: {limit()}): {error}"))
        finally:
            self._part()
            self._end()
            self.wakeup.close()

    def _begins(self) -> bool:
        """Joins the cluster, however long that takes; False: a signal has come meanwhile, and it is to end."""
        try:
            with signals_raise(SIGNALS):
                self.membership.join(self.books.directory)
        except Interrupted:
            return False
        except BaseException:
            self._end()
            raise
        self._telling.joined()
        return True

    def _end(self) -> None:
        """Gives back what it has on this machine."""
        self.farm.close()
        if self.memory is not None:
            self.memory.close()  # while signals are still held off: what it has in shared memory would stay
        self.depot.close()
        remove_spool(self.spool)
        self.post.close(linger=0.5)

    def _recover(self, error: ShoalError) -> None:
        """The books did not do what we asked: the run is over and forgotten, or they were away for too long.

        In the latter case whatever we have is given up, and we begin anew as another node: nobody need wonder what of
        it still counts.
        """
        share, self.share = self.share, None
        if share is not None:
            self.wakeup.discard(share.launcher.descriptor)
            self._telling.share_ends(share)
            share.close()
        self._versions = (-1, -1)
        self._next_beat = self.clock() + BEAT_SECONDS
        try:
            if share is not None and all(each.run != share.run for each in self.books.directory.runs()):
                return
            self._say(str(error))
            if share is not None and not isinstance(error, GoneError):
                share.store.lose(self.number)
            # Only after that: as long as it is listed, its lease ends and somebody else buries it.
            self.membership.give_up(self.books.directory)
        except ShoalError:
            pass  # we go on as another node as soon as the books are there again
        self.membership.leave()

    def _say(self, sentence: str) -> None:
        print(f"shoal agent: {sentence}", file=sys.stderr, flush=True)

    def _part(self) -> None:
        """Leaves what we still have to the others, and is struck off."""
        share = self.share
        self._close_share()
        try:
            if share is not None:
                self._give_back(share)
            self.membership.give_up(self.books.directory)
        except ShoalError:
            pass  # whoever notices that we are gone does it

    def _give_back(self, share: RunShare) -> None:
        """What we have is nobody's from now on, and somebody is told to look for it."""
        cut_short = sorted(share.member.broker.running)
        ends_at = self.info.ends_at
        if cut_short and ends_at is not None and self.clock() > ends_at - 2 * GIVE_BACK_SECONDS:
            why = f"the time of {self.info.name} was over before {len(cut_short)} of its tasks were: they are run again"
            share.store.note(encode(LogEntry(-1, 0, "note", "", self.info.name, message=why)))
        share.note_gone(self.info.name)
        share.store.lose(self.number)
        for number, node in self.nodes.items():
            if number != self.number:
                self.post.send(node.address, PeersChangedEvent(share.run))
        self.post.flush()

    def _turn(self) -> None:
        readable = self.wakeup.wait(self._patience())
        if self.wakeup.signals:
            self._on_signals()
        self.desk.serve(self.clock())
        self._raise_problem()
        self.farm.turn(readable)
        if self.share is None or self.share.goods is None:
            self.depot.fetcher.finished()  # nobody waits for what was fetched ahead for an earlier share
        share = self.share
        if share is not None:
            share.turn(share.launcher.descriptor in readable)
            if self.share is share and not share.store.seen_left:
                self._finish(share)
        if self.clock() >= self._next_beat:
            self._beat()
        self.post.flush()

    def _raise_problem(self) -> None:
        """What went wrong with our share while a message was taken, which the desk would only tell to its sender."""
        problem, self._problem = self._problem, None
        if problem is not None:
            raise problem

    def _patience(self) -> float:
        until_beat = min(self._next_beat - self.clock(), self.farm.patience())
        return max(0.0, min(until_beat, self.share.patience()) if self.share is not None else until_beat)

    def _on_signals(self) -> None:
        signals, self.wakeup.signals = self.wakeup.signals, []
        for _ in signals:
            self.leave(at_once=self.leaving)

    def leave(self, *, at_once: bool) -> None:
        """Starts nothing more and ends when nothing runs; at once: whatever still runs."""
        self.leaving, self.at_once = True, at_once
        self.farm.leave()
        if self.share is not None and not at_once:
            self.share.drain()

    def _has_left(self) -> bool:
        if not self.leaving:
            return False
        share, now = self.share, self.clock()
        if self.at_once or (share is None and not self.farm.busy()):
            return True
        if self.info.ends_at is not None and now > self.info.ends_at - GIVE_BACK_SECONDS:
            return True
        if share is None or share.running() or self.farm.busy():
            self._done_since = None
            return False
        self._done_since = self._done_since or now
        is_empty = not share.member.broker.state and not share.member.parcels.unsettled
        return is_empty or len(self.nodes) < 2 or now - self._done_since > HAND_OVER_SECONDS

    # ---- being there ---------------------------------------------------------------------------------------------

    def _join(self) -> None:
        self.membership.join(self.books.directory)
        self._telling.joined()
        self._versions = (-1, -1)
        self._beat()

    def _beat(self) -> None:
        """Says that we live, and looks at who else does and what is being run."""
        self._next_beat = self.clock() + BEAT_SECONDS
        if self.share is not None:
            self.share.chores.refuse_given_up()
        if self.number == NOBODY:
            self._join()
            return
        directory = self.books.directory
        ends_at = self.info.ends_at
        if ends_at is not None and not self.leaving and self.clock() > ends_at - NOTICE:
            self.leave(at_once=False)  # whether or not the batch system tells us
        before = time.time()
        beat = self.membership.renew(directory, encode(self._doing()))
        self._compare_clocks(before, time.time(), beat.clock)
        if not beat.alive:
            self._say(f"the cluster has lost sight of this node (number {self.number}): it joins anew")
            self._close_share()
            self._join()
            return
        if beat.nodes_version != self._versions[0]:
            self._look_at_nodes()
        if beat.runs_version != self._versions[1]:
            self._look_at_runs()
        versions = (beat.nodes_version, beat.runs_version)
        if self.memory is not None and (versions != self._versions or not self._all_memory_known()):
            self._tell_memory(self.memory)
        self._versions = versions
        if not self.leaving:  # by now we have a share in whatever is being run, so what they had finds its way to us
            self._bury(directory.expired())
        if self.share is not None and not self.share.store.left:
            self._finish(self.share)
        if self.share is not None and not self.leaving:
            self._mind_idleness(self.share)

    def _mind_idleness(self, share: RunShare) -> None:
        """No core may be idle for long beside tasks of a peer that it could run: looks anew, and tells of it."""
        directory = self.books.directory
        beside = share.beside(
            self.clock(), lambda: {number: read_note(note) for number, note in directory.notes().items()}
        )
        if beside is None:
            return
        self._versions = (-1, -1)  # with the next beat it looks anew who is there, and what is being run
        if not beside.lasts:
            return
        if not share.store.renew(self.number):
            self._say(f"the run counts this node (number {self.number}) as lost: it joins anew")
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

    def _tell_memory(self, memory: MemoryServer) -> None:
        """Who else has shared memory, and which runs keep what is in it."""
        places = memory_places(self.books.directory)
        places[self.number] = MemoryNode(self.info.name, memory.address, memory.encrypted)
        memory.tell(self.number, places, [each.run for each in self.books.directory.runs() if each.state != "ended"])

    def _compare_clocks(self, before: float, after: float, theirs: float) -> None:
        found = ahead(before, after, theirs)
        if found and not self._ahead:
            self._say(skew_sentence(self.info.name, found))
        self._ahead = found

    def _doing(self) -> ClusterNodeFacts:
        """How this node is doing, for those who look and for whoever decides how many nodes there are."""
        memory = self.memory
        return self._telling.note(
            self.share,
            calls=self.farm.at_work(),
            draining=self.leaving,
            ahead=self._ahead,
            fetched=self.depot.fetcher.bytes_fetched,
            memory=memory.address if memory is not None else "",
            memory_plain=memory is not None and not memory.encrypted,
        )

    def _bury(self, lost: Sequence[int]) -> None:
        """First what they had is placed anew, then they are struck off: whoever dies in between, another does it."""
        for number in lost:
            if number == self.number or (self.share is None and self._is_run_on):
                continue  # who has no share in the run leaves that to others
            if self.share is not None:
                if number in self.nodes:
                    self.share.note_gone(self.nodes[number].name)
                self.share.lose(number)
            self.books.directory.remove(number)

    def _look_at_nodes(self) -> None:
        for number, node in self.membership.see(self.books.directory.nodes()).items():
            self.post.forget(node.address)
            if self.share is not None:  # it has left, or somebody has buried it: it has nothing any more
                self.share.lose(number)
        if self.share is not None and self.number in self.nodes:
            self.share.peers_changed(self.nodes)

    # ---- runs ----------------------------------------------------------------------------------------------------

    def _look_at_runs(self) -> None:
        runs = self.books.directory.runs()
        current = next((each for each in runs if each.state != "ended" and not self._ends_given_up(each)), None)
        self._is_run_on = current is not None
        if self.share is not None and (current is None or current.run != self.share.run):
            self._close_share()
        if current is not None and self.share is None and not self.leaving:
            self._open_share(current)
        self.depot.keep_only([each.run for each in runs])

    def _ends_given_up(self, run: RunInfo) -> bool:
        """Ends the run if its user has given it up, so that the next one can have its turn."""
        why = why_ended(run.run, decode_about(run.about))
        if why:
            self._say(why)
            self.desk.end_given_up(run.run, self.info.name, why)
        return bool(why)

    def _drop_given_up(self) -> None:
        """Ends what still runs here of a run that was given up. The next beat ends the run for everybody."""
        self._close_share()
        self._versions = (-1, -1)
        self._next_beat = 0.0

    def _open_share(self, run: RunInfo) -> None:
        if self.number not in self.nodes:
            self.membership.see(self.books.directory.nodes())
        if (self.number, run.run) in self._declined or self.number not in self.nodes:
            return  # in the latter case the next beat says that we are to join anew
        try:
            store, work = self.books.attach(run.run)
        except (UnknownRunError, GoneError):
            self._say(f"the books of run {run.run} are lost; it is taken off the list, so that later runs are served")
            self.books.directory.forget(run.run)
            return
        about = decode_about(run.about)
        if not about.managed and not os.path.isdir(about.base):
            why = f"{about.base!r} is not there on {self.info.name}, so it does not take part"
            store.note(encode(LogEntry(-1, 0, "note", "", self.info.name, message=why)))
            self._declined.add((self.number, run.run))
            store.lose(self.number)  # what others send here is theirs again
            return
        self.depot.origin_address = about.origin
        self.share = RunShare(
            StoredRun(run.run, about, work, store, TaskSpecs(store.get_piece)),
            self.number,
            self.nodes,
            self.spool,
            self.post,
            self.clock,
            self.wakeup,
            self.depot if about.managed else None,
        )
        self.wakeup.add(self.share.launcher.descriptor)
        if self._ahead:
            why = skew_sentence(self.info.name, self._ahead)
            store.note(encode(LogEntry(-1, 0, "note", "", self.info.name, message=why)))
        self.books.directory.begin(run.run)
        self.share.begin()
        for number in self.membership.former:
            if number not in self.nodes:  # what we had as that node is nobody's, and nobody else may have noticed
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
        """Nothing is left to do: the next run can have its turn."""
        self.books.directory.end(share.run, "done")
        self._close_share()
        self._look_at_runs()

    # ---- what the desk asks --------------------------------------------------------------------------------------

    def hear(self, message: WireMessage) -> WireMessage | None:
        """What other agents say about the run that is on."""
        with self._share_at_work():
            self._hear(message)
        return None

    @contextmanager
    def _share_at_work(self) -> Iterator[None]:
        """Whatever goes wrong meanwhile leaves our share with half of what it should have done.

        A store that does not answer is for `_recover`; anything else is a defect of ours, and must not be silent.
        """
        try:
            yield
        except ShoalError as error:
            self._problem = error
        except (LookupError, TypeError, ValueError) as error:
            self._say(f"a message could not be taken, by a defect of Shoal: {type(error).__name__}: {error}")
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
        """Everybody has a look at once."""
        self._next_beat = 0.0
        for number, node in self.nodes.items():
            if number != self.number:
                self.post.send(node.address, RunsChangedEvent())

    def unwanted(self, run: str, tasks: list[int]) -> None:
        """Tells all who may have them."""
        for number, node in self.nodes.items():
            if number != self.number:
                self.post.send(node.address, TasksUnwantedEvent(run, tasks))
        if self.share is not None and self.share.run == run:
            with self._share_at_work():
                self.share.cancel(tasks)

    def explain(self, run: str, task: int) -> Answer | None:
        """What our broker says of a task, if it has it."""
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
