"""The record of a simulated run of a cluster: every event at every node, with the commands it was answered with."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec

from shoal.core.peer_messages import Roster
from shoal.core.peer_scheduler import Event, MemberCommand


class ClusterTrace(msgspec.Struct):
    """Equal runs have equal digests, also in another process."""

    seed: int
    entries: list[tuple[float, int, Event, Sequence[MemberCommand]]] = []
    makespan: float = 0.0
    ends: dict[str, int] = {}
    """How many tasks ended how."""
    seen: dict[str, int] = {}
    """How often which fault struck, and what came of it."""
    next_random: float = 0.0
    """What the generator would have drawn next: equal only if the same number of draws was made."""

    def note(self, now: float, node: int, event: Event, commands: Sequence[MemberCommand]) -> None:
        self.entries.append((now, node, event, commands))

    def saw(self, what: str) -> None:
        self.seen[what] = self.seen.get(what, 0) + 1

    def lines(self) -> list[bytes]:
        """One line of JSON per event: the canonical form."""
        encode = msgspec.json.Encoder(enc_hook=_encode).encode
        return [encode(entry) for entry in self.entries]

    def digest(self) -> str:
        whole = sha256()
        for line in self.lines():
            whole.update(line)
            whole.update(b"\n")
        whole.update(repr((self.makespan, sorted(self.ends.items()), self.next_random)).encode())
        return whole.hexdigest()


def _encode(value: Any) -> Any:
    assert isinstance(value, Roster)
    return value.ids
