"""What the steward tells: what became of tickets while it was told something else."""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class Granted(msgspec.Struct, frozen=True, tag=True):
    """A ticket holds what it asked for; `Steward.grant` says what."""

    ticket: int
    run: str


class Refused(msgspec.Struct, frozen=True, tag=True):
    """A ticket ends because what it asks for is no longer there and no machines are to come."""

    ticket: int
    run: str
    why: str


class Ended(msgspec.Struct, frozen=True, tag=True):
    """A waiting ticket of an interrupted run."""

    ticket: int
    run: str


class Lost(msgspec.Struct, frozen=True, tag=True):
    """What a ticket held, wholly or within something, and is no longer there; the rest it holds until its release."""

    ticket: int
    run: str
    units: tuple[str, ...]
    memory: int = 0


Happening: TypeAlias = Granted | Refused | Ended | Lost
