"""Parcels on their way: each is repeated until it is acknowledged, and each is taken in only once."""

from __future__ import annotations

from math import inf

import msgspec

from shoal.broker.peers import Parcel, Ticket

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 8.0
"""Seconds before a parcel that nobody has acknowledged is sent again; doubling up to the longest."""


class Unsettled(msgspec.Struct):
    """A parcel that has been sent."""

    peer: int
    parcel: Parcel
    due: float
    pause: float


class Parcels:
    """Both directions of one broker."""

    def __init__(self) -> None:
        self.stolen = 0
        """Tasks that came because they were asked for."""
        self.pushed = 0
        """Tasks that came because what they read is here."""
        self.unsettled: dict[int, Unsettled] = {}
        self._last = 0
        self._seen: dict[int, set[int]] = {}
        """By peer: numbers of parcels that have arrived and may arrive again."""
        self._floor: dict[int, int] = {}
        """By peer: all parcels with lower numbers have arrived."""

    def wrap(
        self, now: float, peer: int, tickets: list[Ticket], load: int, round: int = 0, *, dealt: bool = False
    ) -> Parcel:
        """A parcel that will be repeated until it is settled."""
        self._last += 1
        oldest = next(iter(self.unsettled), self._last)
        parcel = Parcel(self._last, tickets, load, round, oldest, dealt)
        self.unsettled[self._last] = Unsettled(peer, parcel, now + FIRST_PAUSE, FIRST_PAUSE)
        return parcel

    def settle(self, number: int) -> None:
        self.unsettled.pop(number, None)

    def is_fresh(self, peer: int, parcel: Parcel) -> bool:
        """Whether it arrives for the first time; from then on it does not."""
        seen = self._seen.setdefault(peer, set())
        floor = self._floor.get(peer, 0)
        if parcel.number < floor or parcel.number in seen:
            return False
        if parcel.settled > floor:
            self._floor[peer] = parcel.settled
            self._seen[peer] = seen = {number for number in seen if number >= parcel.settled}
        seen.add(parcel.number)
        if parcel.round:
            self.stolen += len(parcel.tickets)
        elif not parcel.dealt:
            self.pushed += len(parcel.tickets)
        return True

    def due(self, now: float) -> list[tuple[int, Parcel]]:
        """What is to be sent again."""
        found = []
        for unsettled in self.unsettled.values():
            if unsettled.due <= now:
                unsettled.pause = min(2 * unsettled.pause, LONGEST_PAUSE)
                unsettled.due = now + unsettled.pause
                found.append((unsettled.peer, unsettled.parcel))
        return found

    def next_due(self) -> float:
        return min((unsettled.due for unsettled in self.unsettled.values()), default=inf)

    def forget_others(self, known: frozenset[int]) -> None:
        """Nobody but these will send or acknowledge anything any more."""
        self.unsettled = {number: kept for number, kept in self.unsettled.items() if kept.peer in known}
        self._seen = {peer: seen for peer, seen in self._seen.items() if peer in known}
        self._floor = {peer: floor for peer, floor in self._floor.items() if peer in known}
