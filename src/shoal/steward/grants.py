"""What a ticket was granted, as plain data that can be sent to the machines it is on."""

from __future__ import annotations

import msgspec

from shoal.steward.forest import units_of
from shoal.steward.line import Ticket
from shoal.steward.placing import Share


class Place(msgspec.Struct, frozen=True):
    """What a grant has on one machine for one requirement."""

    node: str
    requirement: int
    """Its position in the request."""
    choice: int
    """Which of the requirement's choices was selected: which implementation is to be run."""
    units: tuple[str, ...]
    """Paths of what is held."""
    kinds: tuple[str, ...]
    """The class of each of these."""
    cpus: tuple[int, ...] = ()
    """Processors in it, by the system's numbers."""
    devices: tuple[str, ...] = ()
    """GPUs in it, as `CUDA_VISIBLE_DEVICES` calls them."""
    memory: int = 0
    banks: tuple[tuple[str, int], ...] = ()
    """Of which units that memory is, and how much of each."""


class Grant(msgspec.Struct, frozen=True):
    """Everything a ticket holds, requirement by requirement."""

    ticket: int
    run: str
    places: tuple[Place, ...]

    def on(self, node: str) -> list[Place]:
        return [place for place in self.places if place.node == node]

    def nodes(self) -> list[str]:
        """The machines, each once, in the order of the requirements."""
        return list(dict.fromkeys(place.node for place in self.places))


def grant_of(ticket: Ticket) -> Grant:
    return Grant(ticket.number, ticket.run, tuple(_place_of(share) for share in ticket.shares))


def _place_of(share: Share) -> Place:
    units = [unit for holding in share.holdings for unit in units_of(holding)]
    inside = [part for unit in units for part in unit.walk()]
    return Place(
        share.root.name,
        share.requirement,
        share.choice,
        tuple(unit.path() for unit in units),
        tuple(unit.kind for unit in units),
        tuple(sorted(part.cpu for part in inside if part.cpu is not None)),
        tuple(part.device for part in inside if part.device is not None),
        sum(size for _, size in share.memory),
        tuple((bank.path(), size) for bank, size in share.memory),
    )
