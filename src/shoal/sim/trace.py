"""The record of a simulated run: every event with the commands it was answered with, and what came of it all."""

from __future__ import annotations

from hashlib import sha256

import msgspec

from shoal.broker.messages import Command, Event

Entry = tuple[float, Event, list[Command]]


class Trace(msgspec.Struct):
    """Equal runs have equal digests, also in another process."""

    seed: int
    entries: list[Entry] = []
    makespan: float = 0.0
    """When the last attempt ended."""
    utilisation: float = 0.0
    """Share of the node's cores that was busy until then, whether or not the attempt succeeded."""
    ends: dict[str, int] = {}
    """How many tasks ended how."""
    next_random: float = 0.0
    """What the generator would have drawn next: equal only if the same number of draws was made."""

    def lines(self) -> list[bytes]:
        """One line of JSON per event: the canonical form."""
        encode = msgspec.json.Encoder().encode
        return [encode(entry) for entry in self.entries]

    def digest(self) -> str:
        whole = sha256()
        for line in self.lines():
            whole.update(line)
            whole.update(b"\n")
        whole.update(repr((self.makespan, self.next_random)).encode())
        return whole.hexdigest()
