"""An agent's place in the directory of its cluster: its number, the incarnation that proves it, and who else is there.

Whenever it joins, it makes up an incarnation. A directory that has lost its data and counts from the beginning again
may give the agent's number to another one: the incarnation then tells the two apart, and the agent joins anew. It asks
for a number above all that it has heard of, so that what was recorded elsewhere about a number is not taken for another
node's. Pure but for the random incarnation: the directory does all input and output.
"""

from __future__ import annotations

import secrets

import msgspec

from shoal.store.base import NOBODY
from shoal.store.directory import Beat, Directory, NodeInfo


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
