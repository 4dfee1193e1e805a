"""The factory of a cluster as a process: asks the cluster how much there is to do, and has nodes started and ended.

What to do is decided by `shoal.cluster.factory`; this finds out how things stand and acts through the starter. What is
started is kept in the cluster's folder, under its lock, so that a keeper which was killed is simply started anew.
"""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from shoal.agent.messages import ClusterTold, WireMessage, make_codec
from shoal.cluster.factory import Action, Bounds, Cancel, Drain, Factory, Node, Pace, Queue, Submit
from shoal.cluster.home import ClusterHome, Started
from shoal.cluster.manage import ask_to_end, starter_of, told
from shoal.cluster.ssh import SshStarter
from shoal.cluster.starters import Handle, NotAnsweringError, Phase, Standing, Starter
from shoal.errors import InputError
from shoal.model.resources import FRACTION
from shoal.store.base import LEASE
from shoal.store.directory import NodeInfo
from shoal.wire.access import read
from shoal.wire.caller import Caller

ROUND_SECONDS = 2.0
START_SECONDS = {"local": 2.0, "ssh": 5.0}
"""How long a node takes to come, where that is not up to a batch system."""
FIND_SECONDS = 2 * LEASE
"""While tasks wait, nobody is idle before so long: what a lost node had is free only after its lease."""
_CORES = re.compile(r"(?:--cores|--cpus-per-task)[= ]([0-9]+)|-c ?([0-9]+)")


def bounds_of(kind: str, minimum: int, maximum: int, idle_seconds: float) -> Bounds:
    """The bounds of a factory as the user gives them, with what follows from how nodes are started."""
    usual = Bounds()
    start = START_SECONDS.get(kind, usual.start_seconds)
    return Bounds(minimum, maximum, idle_seconds, start_seconds=start).checked()


class Keeper:
    """One factory at work; everything that must last is in the cluster's folder."""

    def __init__(self, home: ClusterHome, say: Callable[[str], None], now: Callable[[], float] = time.time) -> None:
        self.home, self.say, self.now = home, say, now
        self.factory: Factory | None = None
        self.pace = Pace()
        self._standings: dict[Handle, Standing] = {}
        self._running_since: dict[str, float] = {}
        self._joined: set[str] = set()
        """Names of nodes that have been heard of."""
        self._cores = 0.0
        """Of a node, as far as one has been seen."""
        self._said = ""

    def turn(self, caller: Caller[WireMessage]) -> bool:
        """One look at everything, and what follows from it; whether there is still something to look after."""
        try:
            found = told(caller)
        except InputError as error:
            self._say_once(f"the cluster does not answer: {error.message}")
            return self.home.read_started().head is not None
        with self.home.locked():
            started = self.home.read_started()
            if started.head is None or started.bounds is None:
                return False
            starter = starter_of(self.home, started)
            try:
                self._look(starter, started, found)
                self._act(starter, started, found)
            except NotAnsweringError as error:
                self._say_once(str(error))
            finally:
                self.home.write_started(started)
        return True

    # ---- how things stand ----------------------------------------------------------------------------------------

    def _look(self, starter: Starter, started: Started, found: ClusterTold) -> None:
        """Asks how the nodes stand if it is time, and strikes off those that have ended."""
        now = self.now()
        names = {node.labels.get("node", "") for node in found.nodes.values()}
        everybody = [*started.nodes, *started.leaving]
        if any(name not in names for name in self._joined if any(each.name == name for each in everybody)):
            self.pace.hurry(now)  # somebody is gone
        self._note_joined({handle.name for handle in everybody} & names)
        if started.kind != "local" and not self.pace.due(now):
            return
        before, self._standings = self._standings, starter.poll(everybody) if everybody else {}
        self.pace.polled(now, self._standings != before)
        for handle in everybody:
            standing = self._standings.get(handle, Standing(Phase.WAITING))
            if standing.phase is Phase.RUNNING:
                self._running_since.setdefault(handle.name, now)
            if standing.phase is Phase.ENDED:
                self._ended(handle, standing, now)
        started.nodes = [each for each in started.nodes if not self._has_ended(each)]
        started.leaving = [each for each in started.leaving if not self._has_ended(each)]

    def _has_ended(self, handle: Handle) -> bool:
        return self._standings.get(handle, Standing(Phase.WAITING)).phase is Phase.ENDED

    def _note_joined(self, names: set[str]) -> None:
        if names - self._joined and self.factory is not None:
            self.factory.node_joined()
        self._joined |= names

    def _ended(self, handle: Handle, standing: Standing, now: float) -> None:
        self._running_since.pop(handle.name, None)
        if handle.name in self._joined:
            self._joined.discard(handle.name)
            self.say(f"node {handle.name}: {standing.reason or 'ended'}")
            return
        self.say(f"node {handle.name} has ended before it joined: {standing.reason}")
        if self.factory is not None:
            self.factory.start_failed(now)

    # ---- what follows --------------------------------------------------------------------------------------------

    def _act(self, starter: Starter, started: Started, found: ClusterTold) -> None:
        now = self.now()
        assert started.bounds is not None
        bounds = self._fitted(started.bounds, starter, started, found.nodes)
        if self.factory is None:
            self.factory = Factory(bounds)
        self.factory.bounds = bounds
        queue = queue_of(found)
        nodes = self._nodes(started, found, now, queue)
        for action in self.factory.decide(now, queue, nodes):
            self._do(action, starter, started, found, queue)
        pause = self.factory.pause(now)
        if pause:
            self._say_once(re.sub(r" in [0-9]+ s", " later", pause))

    def _fitted(self, bounds: Bounds, starter: Starter, started: Started, nodes: Mapping[int, NodeInfo]) -> Bounds:
        """With what a node of this cluster takes at a time, and no more nodes than there is room for."""
        cores = [node.resources.get("cores") / FRACTION for node in nodes.values()]
        if cores:
            self._cores = max(1.0, sum(cores) / len(cores))
        elif not self._cores:
            self._cores = declared_cores([*started.agent, *started.options])
        room = starter.room if isinstance(starter, SshStarter) else bounds.maximum
        most = max(bounds.minimum, min(bounds.maximum, room))
        return msgspec.structs.replace(bounds, tasks_per_node=self._cores, maximum=most)

    def _nodes(self, started: Started, found: ClusterTold, now: float, queue: Queue) -> list[Node]:
        numbers = {node.labels.get("node", ""): number for number, node in found.nodes.items()}
        nodes = []
        for handle in (*started.nodes, *started.leaving):
            standing = self._standings.get(handle, Standing(Phase.WAITING))
            number = numbers.get(handle.name)
            phase, idle_since, ends_at, draining = standing.phase, None, standing.ends_at, handle in started.leaving
            if number is not None:
                phase = Phase.RUNNING  # its agent is surer of that than an answer from a while ago
                ends_at = found.nodes[number].ends_at or ends_at
                note = found.notes.get(number)
                if note is not None:
                    patience = FIND_SECONDS if queue.waiting else 0.0
                    idle_since = _since(note.idle_seconds, now, patience)
                    draining = draining or note.draining
            since = self._running_since.get(handle.name)
            nodes.append(Node(handle.name, phase, number is not None, since, idle_since, ends_at, draining))
        return nodes

    def _do(self, action: Action, starter: Starter, started: Started, found: ClusterTold, queue: Queue) -> None:
        self.pace.hurry(self.now())
        if isinstance(action, Submit):
            begun = starter.start(action.count, [*started.nodes, *started.leaving])
            started.nodes += begun.handles
            if begun.handles:
                asked = f"{len(begun.handles)} more asked for"
                self._say_once(f"{queue.running} tasks run and {queue.waiting} wait: {asked}", always=True)
            for problem in begun.problems:
                self._say_once(problem)
            if begun.problems and self.factory is not None:
                self.factory.start_failed(self.now())
            return
        (handle,) = [each for each in (*started.nodes, *started.leaving) if each.name == action.node]
        if isinstance(action, Drain) and self._drain(handle, found.nodes):
            started.nodes.remove(handle)
            started.leaving.append(handle)
            self.say(f"node {handle.name} is idle and is let go")
        elif isinstance(action, Cancel):
            starter.stop([handle])
            self.say(f"node {handle.name} is not needed or was never heard of, and is taken back")

    def _drain(self, handle: Handle, nodes: Mapping[int, NodeInfo]) -> bool:
        address = next((node.address for node in nodes.values() if node.labels.get("node") == handle.name), None)
        return address is not None and ask_to_end(read(self.home.access), address, at_once=False)

    def _say_once(self, words: str, *, always: bool = False) -> None:
        if words != self._said or always:
            self._said = words
            self.say(words)


def _since(idle_seconds: float | None, now: float, patience: float) -> float | None:
    """Since when a node has been idle; not yet, if it has been so for no longer than work may take to find it."""
    return None if idle_seconds is None or idle_seconds < patience else now - idle_seconds


def queue_of(found: ClusterTold) -> Queue:
    """What there is to do now: runs are served one after another, so it is that of the first one that has not ended."""
    ready = next((run.ready for run in found.runs if run.state != "ended"), 0)
    running = sum(note.running for number, note in found.notes.items() if number in found.nodes)
    return Queue(max(0, ready - running), running)


def declared_cores(words: Sequence[str]) -> float:
    """Cores of a node, as far as options of agents or of the batch system tell them before there is one."""
    for word in words:
        match = _CORES.fullmatch(word)
        if match:
            return max(1.0, float(match[1] or match[2]))
    return 1.0


def keep(home: ClusterHome) -> None:
    """The whole process: rounds, until it is told to end or there is no cluster any more."""
    enough = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: enough.set())  # not in the midst of a round: what was asked for must be noted
    keeper = Keeper(home, lambda words: print(time.strftime("%F %T"), words, flush=True))
    keeper.say("looks after the cluster")
    with Caller(read(home.access), make_codec()) as caller:
        while keeper.turn(caller) and not enough.wait(ROUND_SECONDS):
            pass
