"""The factories of a cluster as one process: asks the cluster how much there is to do, and has nodes started and ended.

What to do is decided by `shoal.cluster.factory` for each group, and done by `shoal.cluster.tending`; this finds out how
things stand, with one question to the cluster and one to each batch system for all groups. What is started is kept in
the cluster's folder, under its lock, so that a keeper which was killed is simply started anew.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Mapping

from shoal.agent.books import books_of
from shoal.agent.messages import ClusterTold, WireMessage, make_codec
from shoal.cluster.backlog import ROUND_SECONDS, Backlog
from shoal.cluster.demand import Ability, Demand, Pot, Share, ability_of_node
from shoal.cluster.factory import Bounds, Pace
from shoal.cluster.groups import forget_closed, standings_of, starter_of, told
from shoal.cluster.home import ClusterHome, Group, Started
from shoal.cluster.starters import Handle, LocalHandle, NotAnsweringError, Standing
from shoal.cluster.tending import Tender, ability_of
from shoal.errors import InputError
from shoal.runner.wakeup import heeded
from shoal.wire.access import Access, read
from shoal.wire.caller import Caller

START_SECONDS = {"local": 2.0, "ssh": 5.0}
"""How long a node takes to come, where that is not up to a batch system."""


def bounds_of(kind: str, minimum: int, maximum: int, idle_seconds: float) -> Bounds:
    """The bounds of a factory as the user gives them, with what follows from how nodes are started."""
    usual = Bounds()
    start = START_SECONDS.get(kind, usual.start_seconds)
    return Bounds(minimum, maximum, idle_seconds, start_seconds=start).checked()


class Keeper:
    """The factories of one cluster at work."""

    def __init__(
        self, home: ClusterHome, backlog: Backlog, say: Callable[[str], None], now: Callable[[], float] = time.time
    ) -> None:
        self.home, self.backlog, self.say, self.now = home, backlog, say, now
        self.pace = Pace()
        self._tenders: dict[str, Tender] = {}
        self._last: dict[Handle, Standing] = {}
        self._complained = ""

    def turn(self, caller: Caller[WireMessage]) -> bool:
        """One look at everything, and what follows from it; whether there is still something to look after."""
        try:
            found = told(caller)
        except InputError as error:
            self._complain(f"the cluster does not answer: {error.message}")
            return self.home.read_started().head is not None
        self._complained = ""
        demands = self.backlog.demands(found)
        with self.home.locked():
            started = self.home.read_started()
            if started.head is None:
                return False
            if not started.has_bounds:
                started.factory = None  # under the lock: who sets bounds now starts another one
                self.home.write_started(started)
                return False
            try:
                silent = self._look(started, found)
                self._act(started, found, demands, silent)
            finally:
                self.home.write_started(started)
        return True

    def _complain(self, words: str) -> None:
        if words != self._complained:
            self._complained = words
            self.say(words)

    def _tender(self, group: Group) -> Tender:
        def say(words: str) -> None:
            self.say(f"group {group.name}: {words}")

        return self._tenders.setdefault(group.name, Tender(say))

    def _look(self, started: Started, found: ClusterTold) -> dict[str, str]:
        """Asks how the nodes stand if it is time; by group, why nobody can tell."""
        now = self.now()
        looked_after = [group for group in started.groups if group.bounds is not None or group.closing]
        for group in looked_after:
            if self._tender(group).notice(group, found) and group.kind != "local":
                self.pace.hurry(now)  # somebody is gone
        elsewhere = self.pace.due(now)
        asked = [group for group in looked_after if group.kind == "local" or elsewhere]
        standings, silent = standings_of(self.home, asked)
        if elsewhere:
            seen: dict[Handle, Standing] = {
                handle: each for handle, each in standings.items() if not isinstance(handle, LocalHandle)
            }
            self.pace.polled(now, seen != self._last)
            self._last = seen
        for group in asked:
            if group.name in silent:
                self._tender(group).say_once(silent[group.name])
            else:
                self._tender(group).learn(group, standings, now)
        forget_closed(started)
        return silent

    def _act(self, started: Started, found: ClusterTold, demands: list[Demand], silent: Mapping[str, str]) -> None:
        """Nodes without a factory take first what they can; then each group counts what those before it leave."""
        access = read(self.home.access)
        groups = [group for group in started.groups if group.bounds is not None]
        abilities = [ability_of(group) for group in groups]
        running = running_on(found)
        pot = Pot(demands, running.values(), abilities)
        kept = {number for group in groups for number in present_of(group, found)}
        for number, (ability, count) in running.items():
            if number not in kept and not found.notes[number].draining:
                pot.take(ability, max(0.0, pot.share(ability, count).at_once - count))
        for group, ability in zip(groups, abilities, strict=True):
            if group.name not in silent:
                count = sum(running[number][1] for number in present_of(group, found) if number in running)
                pot.take(ability, self._tend(group, access, found, pot.share(ability, count)))

    def _tend(self, group: Group, access: Access, found: ClusterTold, share: Share) -> float:
        """Has a group tended; how many of the waiting tasks it takes."""
        tender, now = self._tender(group), self.now()
        try:
            acted, taken = tender.tend(group, starter_of(self.home, group), access, found, share, now)
        except NotAnsweringError as error:
            tender.say_once(str(error))
            return 0.0
        if acted:
            self.pace.hurry(now)
        return taken


def running_on(found: ClusterTold) -> dict[int, tuple[Ability, int]]:
    """By node, what it has and how many tasks it runs; those that have said nothing yet are left out."""
    return {
        number: (ability_of_node(node.resources, node.labels), found.notes[number].running)
        for number, node in found.nodes.items()
        if number in found.notes
    }


def present_of(group: Group, found: ClusterTold) -> list[int]:
    """The numbers of the nodes of a group that are there."""
    names = {handle.name for handle in group.everybody}
    return [number for number, node in found.nodes.items() if node.labels.get("node", "") in names]


def keep(home: ClusterHome) -> None:
    """The whole process: rounds, until it is told to end or there is no factory any more."""
    enough = threading.Event()
    for number in heeded((signal.SIGTERM, signal.SIGINT, signal.SIGHUP)):
        signal.signal(number, lambda *_: enough.set())  # not in the midst of a round: what was asked for must be noted
    access = read(home.access)

    def say(words: str) -> None:
        print(time.strftime("%F %T"), words, flush=True)

    keeper = Keeper(home, Backlog(lambda: books_of(access), time.monotonic), say)
    say("looks after the cluster")
    with Caller(access, make_codec()) as caller:
        while keeper.turn(caller) and not enough.wait(ROUND_SECONDS):
            pass
