"""The resource manager under random histories, and the bound on waiting times."""

from __future__ import annotations

import random
from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.resources.machine import machine
from shoal.resources.manager import ResourceManager
from shoal.resources.requests import ANYWHERE, Requirement, require
from shoal.resources.tickets import Ticket, TicketGranted, TicketState
from shoal.sim.resource_histories import ManagerHistory, check_manager

NODES, SOCKETS, CORES = 3, 2, 4
NARROW = [require("core"), require("core", count=2), require("core", count=3, nodes=ANYWHERE)]
WIDE = [require("node", nodes=2), require("socket", nodes=3), require("core", count=8, nodes=2), require("node")]


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32))
def test_no_history_breaks_an_invariant_or_leaves_a_ticket_waiting(seed: int) -> None:
    ManagerHistory(seed).play()


class Stream:
    """Others ask without end, and each release is of the ticket that has held longest."""

    def __init__(self, patience: int, asked: list[Requirement], dice: random.Random) -> None:
        machines = [machine(f"n{at}", sockets=SOCKETS, cores=CORES) for at in range(NODES)]
        self.steward = ResourceManager(machines, patience=patience)
        self.asked, self.dice = asked, dice
        self.holding: deque[int] = deque()
        while len(self.steward.waiting) < 4:
            self.ask(dice.choice(asked))

    def ask(self, wanted: Requirement) -> Ticket:
        ticket = self.steward.request("stream", wanted)
        if ticket.state is TicketState.GRANTED:
            self.holding.append(ticket.number)
        return ticket

    def step(self) -> None:
        """One release; there is always somebody else who waits."""
        for told in self.steward.release(self.holding.popleft()):
            if isinstance(told, TicketGranted):
                self.holding.append(told.ticket)
        while len(self.steward.waiting) < 5:
            self.ask(self.dice.choice(self.asked))

    def releases_until_served(self, wanted: Requirement) -> int:
        """After how many releases a ticket is granted; it must not be more than the proof allows."""
        ticket = self.ask(wanted)
        before = sum(number < ticket.number for number in self.steward.waiting)
        releases = 0
        while ticket.state is TicketState.WAITING:
            self.step()
            releases += 1
            if releases % 16 == 0:
                check_manager(self.steward)
            assert releases <= self.bound(before), f"waits for ever: {ticket.request}"
        return releases

    def bound(self, before: int) -> int:
        most = NODES * SOCKETS * CORES
        return (before + 1) * ((self.steward.patience + 1) * most + 1)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 12), st.sampled_from(WIDE))
def test_a_wide_request_is_served_under_an_endless_stream_of_narrow_ones(
    seed: int, patience: int, wide: Requirement
) -> None:
    Stream(patience, NARROW, random.Random(seed)).releases_until_served(wide)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 12), st.sampled_from(WIDE))
def test_where_each_release_serves_a_ticket_a_wide_request_waits_only_for_patience_and_its_holders(
    seed: int, patience: int, wide: Requirement
) -> None:
    stream = Stream(patience, [require("core")], random.Random(seed))
    before = len(stream.steward.waiting)
    releases = stream.releases_until_served(wide)
    assert releases <= (before + 1) * (patience + NODES * SOCKETS * CORES + 1)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 12), st.sampled_from(NARROW))
def test_a_narrow_request_is_served_under_an_endless_stream_of_wide_ones(
    seed: int, patience: int, narrow: Requirement
) -> None:
    Stream(patience, WIDE, random.Random(seed)).releases_until_served(narrow)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 12), st.sampled_from([*WIDE, *NARROW]))
def test_everybody_is_served_under_a_mixed_stream(seed: int, patience: int, wanted: Requirement) -> None:
    Stream(patience, [*WIDE, *NARROW], random.Random(seed)).releases_until_served(wanted)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=30))
def test_narrow_requests_leave_as_many_whole_sockets_as_can_be(counts: list[int]) -> None:
    """Requests of sizes that divide a socket, large ones first, never open a socket while another has room."""
    steward = ResourceManager([machine(f"n{at}", sockets=SOCKETS, cores=CORES) for at in range(8)])
    sizes = sorted((count if count != 3 else 4 for count in counts), reverse=True)
    held = 0
    for size in sizes:
        if held + size <= 8 * SOCKETS * CORES:
            steward.request("run", require("core", count=size))
            held += size
    assert steward.forest.top.free["socket"] == 8 * SOCKETS - -(-held // CORES)
    opened = -(-held // (SOCKETS * CORES))
    assert steward.forest.top.free["node"] == 8 - opened


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32))
def test_the_same_history_is_always_played_the_same_way(seed: int) -> None:
    first, second = ManagerHistory(seed).play(), ManagerHistory(seed).play()
    assert (first.grants, first.refusals, first.losses) == (second.grants, second.refusals, second.losses)
    assert first.dice.random() == second.dice.random()
