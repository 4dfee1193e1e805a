"""How a program finds the memory of a cluster: the question that it puts to any agent, and the answer."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from shoal.memory.protocol import Place
from shoal.wire.envelope import Codec


class MemoryAsked(msgspec.Struct, frozen=True, tag=True):
    """Where is the memory of this cluster?"""


class MemoryTold(msgspec.Struct, frozen=True, tag=True):
    """The nodes by number, and the token of their listeners."""

    nodes: dict[int, Place]
    token: bytes


class NotTold(msgspec.Struct, frozen=True, tag="Refused"):
    """The agent does not tell, and this is why."""

    why: str
    anew: bool = False


Asked: TypeAlias = MemoryAsked | MemoryTold | NotTold


def make_codec() -> Codec[Asked]:
    return Codec(Asked)
