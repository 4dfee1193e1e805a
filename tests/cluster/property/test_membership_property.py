"""Agents that renew leases, die and join while the directory loses its data: live agents are listed once, by number."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.cluster.agent.agent import Membership
from shoal.core.resources import Resources
from shoal.core.store.directory import MemoryDirectory, NodeInfo

AGENTS = 4
LEASE = 10.0

_steps = st.lists(
    st.one_of(
        st.tuples(st.just("beat"), st.integers(0, AGENTS - 1)),
        st.tuples(st.just("die"), st.integers(0, AGENTS - 1)),
        st.tuples(st.just("rename"), st.integers(0, AGENTS - 1)),
        st.tuples(st.just("lose everything"), st.just(0)),
        st.tuples(st.just("wait"), st.integers(1, 12)),
    ),
    max_size=40,
)


class World:
    """Some agents around a directory; one that has died comes back as a new process at its next beat."""

    def __init__(self) -> None:
        self.now = 0.0
        self.directory = MemoryDirectory(lease=LEASE)
        self.serial = 0
        self.agents: dict[int, Membership] = {}

    def beat(self, agent: int) -> None:
        member = self.agents.get(agent)
        if member is None:
            self.serial += 1
            info = NodeInfo(f"tcp://{self.serial}:1", str(self.serial), Resources(), {}, None, "", "1")
            member = self.agents[agent] = Membership(info)
        beat = member.renew(self.directory, b"", self.now)
        if not beat.alive:
            member.join(self.directory, self.now)
        member.see(self.directory.nodes())
        for number in self.directory.expired(self.now):
            if number != member.number:
                self.directory.remove(number)

    def do(self, kind: str, which: int) -> None:
        if kind == "beat":
            self.beat(which)
        elif kind == "die":
            self.agents.pop(which, None)
        elif kind == "rename" and which in self.agents:
            self.directory.remove(self.agents[which].number)
        elif kind == "lose everything":
            self.directory = MemoryDirectory(lease=LEASE)
        elif kind == "wait":
            self.now += which


@settings(max_examples=300, deadline=None)
@given(steps=_steps)
def test_whoever_lives_is_listed_once_under_its_own_number(steps: list[tuple[str, int]]) -> None:
    world = World()
    for kind, which in steps:
        world.do(kind, which)
    living = sorted(world.agents)
    for _ in range(3):  # those that are gone are noticed when their leases are over, and the others have renewed theirs
        world.now += LEASE / 2 + 1
        for agent in living:
            world.beat(agent)
    believed = {world.agents[agent].number: world.agents[agent].info.name for agent in living}
    assert len(believed) == len(living), "two agents take the same number for theirs"
    if living:
        assert {number: info.name for number, info in world.directory.nodes().items()} == believed


@settings(max_examples=300, deadline=None)
@given(steps=_steps)
def test_an_agent_never_gets_a_number_that_it_knows_from_before(steps: list[tuple[str, int]]) -> None:
    world = World()
    seen: dict[int, set[int]] = {}
    for kind, which in steps:
        if kind == "die":
            seen.pop(which, None)
        before = world.agents[which].number if kind == "beat" and which in world.agents else None
        world.do(kind, which)
        if kind == "beat":
            number = world.agents[which].number
            assert number == before or number not in seen.get(which, set())
            seen.setdefault(which, set()).update(world.agents[which].nodes)
