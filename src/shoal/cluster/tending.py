"""One group of nodes in the hands of its factory: how its nodes stand, what the factory says, and that it is done.

`shoal.cluster.keeper` is the process that does this for all groups of a cluster, and asks how their nodes stand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import msgspec

from shoal.agent.messages import ClusterTold
from shoal.cluster.demand import Ability, Share, expected_ability, most_of
from shoal.cluster.factory import Action, Bounds, Cancel, Drain, Factory, Node, Queue, Submit
from shoal.cluster.groups import ask_to_end, strike_off
from shoal.cluster.home import Group
from shoal.cluster.ssh import SshStarter
from shoal.cluster.starters import Handle, Phase, Standing, Starter
from shoal.store.base import LEASE
from shoal.store.directory import NodeInfo
from shoal.wire.access import Access

FIND_SECONDS = 2 * LEASE
"""While tasks wait, nobody is idle before so long: what a lost node had is free only after its lease."""


class Tender:
    """Looks after one group; everything that must last is in the cluster's folder."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.factory: Factory | None = None
        self._standings: dict[Handle, Standing] = {}
        self._running_since: dict[str, float] = {}
        self._asked_at: dict[str, float] = {}
        self._joined: set[str] = set()
        """Names of nodes that have been heard of."""
        self._said = ""

    # ---- how things stand ----------------------------------------------------------------------------------------

    def notice(self, group: Group, found: ClusterTold) -> bool:
        """Who has joined, and what such nodes offer; whether somebody who was there is gone."""
        ours = {handle.name for handle in group.everybody}
        here = [node for node in found.nodes.values() if node.labels.get("node", "") in ours]
        names = {node.labels["node"] for node in here}
        if here:
            group.offers = most_of([node.resources for node in here])
        if names - self._joined and self.factory is not None:
            self.factory.node_joined()
        self._joined |= names
        return bool((self._joined & ours) - names)

    def learn(self, group: Group, standings: Mapping[Handle, Standing], now: float) -> None:
        """Whoever starts the nodes was asked how they stand: those that have ended are struck off."""
        self._standings = {handle: standings.get(handle, Standing(Phase.WAITING)) for handle in group.everybody}
        for handle, standing in self._standings.items():
            if standing.phase is Phase.RUNNING:
                self._running_since.setdefault(handle.name, now)
            elif standing.phase is Phase.ENDED:
                self._ended(handle, standing, now)
        strike_off(group, self._standings)

    def _ended(self, handle: Handle, standing: Standing, now: float) -> None:
        self._running_since.pop(handle.name, None)
        self._asked_at.pop(handle.name, None)
        if handle.name in self._joined:
            self._joined.discard(handle.name)
            self.say(f"node {handle.name}: {standing.reason or 'ended'}")
            return
        self.say(f"node {handle.name} has ended before it joined: {standing.reason}")
        if self.factory is not None:
            self.factory.start_failed(now)

    # ---- what follows --------------------------------------------------------------------------------------------

    def tend(
        self, group: Group, starter: Starter, access: Access, found: ClusterTold, share: Share, now: float
    ) -> tuple[bool, float]:
        """Does what the factory says; whether it did anything, and how many of the waiting tasks the group takes."""
        assert group.bounds is not None
        bounds = _fitted(group.bounds, starter, share)
        if self.factory is None:
            self.factory = Factory(bounds)
        self.factory.bounds = bounds
        nodes = self._nodes(group, found, now, share.queue)
        actions = self.factory.decide(now, share.queue, nodes)
        for action in actions:
            self._do(action, group, starter, access, found, share.queue, now)
        pause = self.factory.pause(now)
        if pause:
            self.say_once(re.sub(r" in [0-9]+ s", " later", pause))
        return bool(actions), self.factory.reach(now, share.queue, nodes)

    def _nodes(self, group: Group, found: ClusterTold, now: float, queue: Queue) -> list[Node]:
        numbers = {node.labels.get("node", ""): number for number, node in found.nodes.items()}
        nodes = []
        for handle in group.everybody:
            standing = self._standings.get(handle, Standing(Phase.WAITING))
            number = numbers.get(handle.name)
            phase, idle_since, ends_at, draining = standing.phase, None, standing.ends_at, handle in group.leaving
            if number is not None:
                phase = Phase.RUNNING  # its agent is surer of that than an answer from a while ago
                ends_at = found.nodes[number].ends_at or ends_at
                note = found.notes.get(number)
                if note is not None:
                    patience = FIND_SECONDS if queue.waiting else 0.0
                    idle_since = _since(note.idle_seconds, now, patience)
                    draining = draining or note.draining
            since, asked = self._running_since.get(handle.name), self._asked_at.setdefault(handle.name, now)
            nodes.append(Node(handle.name, phase, number is not None, since, idle_since, ends_at, draining, asked))
        return nodes

    def _do(
        self,
        action: Action,
        group: Group,
        starter: Starter,
        access: Access,
        found: ClusterTold,
        queue: Queue,
        now: float,
    ) -> None:
        if isinstance(action, Submit):
            self._submit(action.count, group, starter, queue, now)
            return
        (handle,) = [each for each in group.everybody if each.name == action.node]
        if isinstance(action, Drain) and _drain(access, handle, found.nodes):
            group.nodes.remove(handle)
            group.leaving.append(handle)
            self.say(f"node {handle.name} is idle and is let go")
        elif isinstance(action, Cancel):
            starter.stop([handle])
            self.say(f"node {handle.name} is not needed or was never heard of, and is taken back")

    def _submit(self, count: int, group: Group, starter: Starter, queue: Queue, now: float) -> None:
        begun = starter.start(count, group.everybody)
        group.nodes += begun.handles
        if begun.handles:
            asked = f"{len(begun.handles)} more asked for"
            self.say_once(f"{queue.running} tasks run and {queue.waiting} wait: {asked}", always=True)
        for problem in begun.problems:
            self.say_once(problem)
        if begun.problems and self.factory is not None:
            self.factory.start_failed(now)

    def say_once(self, words: str, *, always: bool = False) -> None:
        """Says it unless it is what was said last."""
        if words != self._said or always:
            self._said = words
            self.say(words)


def ability_of(group: Group) -> Ability:
    """What the next node of a group will have, as far as is known."""
    return expected_ability(group.kind, group.name, group.agent, group.options, group.labels, group.offers)


def _fitted(bounds: Bounds, starter: Starter, share: Share) -> Bounds:
    """With what a node of this group takes at a time, and no more nodes than there is room for."""
    room = starter.room if isinstance(starter, SshStarter) else bounds.maximum
    most = max(bounds.minimum, min(bounds.maximum, room))
    return msgspec.structs.replace(bounds, tasks_per_node=share.at_once, maximum=most)


def _drain(access: Access, handle: Handle, nodes: Mapping[int, NodeInfo]) -> bool:
    address = next((node.address for node in nodes.values() if node.labels.get("node") == handle.name), None)
    return address is not None and ask_to_end(access, address, at_once=False)


def _since(idle_seconds: float | None, now: float, patience: float) -> float | None:
    """Since when a node has been idle; not yet, if it has been so for no longer than work may take to find it."""
    return None if idle_seconds is None or idle_seconds < patience else now - idle_seconds
