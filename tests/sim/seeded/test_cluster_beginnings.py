"""How runs begin on a simulated cluster: first messages get lost, shares are opened late, and no core stays idle."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from shoal.core.peer_messages import LoadReply, PeersChanged
from shoal.core.peer_scheduler import PeerScheduler
from shoal.core.steal_rounds import StealRounds
from shoal.sim.cluster.fault_schedule import ClusterSeedFailedError
from shoal.sim.cluster.oracle import Idleness
from shoal.sim.cluster.run_starts import RunStartSimulation, draw_beginning, run_beginning_seed

SEEDS = 200
"""`python -m shoal.sim --beginnings --seeds 0..2000` runs more of them."""
CHUNK = 25


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_beginning_leaves_a_core_idle_beside_work(first: int) -> None:
    for seed in range(first, first + CHUNK):
        run_beginning_seed(seed)


def test_the_seeds_meet_everything_that_can_go_wrong_at_a_beginning() -> None:
    seen: Counter[str] = Counter()
    longest = 0.0
    for seed in range(30):
        run = RunStartSimulation(draw_beginning(seed))
        seen.update(run.play().seen)
        longest = max(longest, run.oracle.idleness.longest)
    assert seen.keys() >= {"first messages lost", "unknown nodes", "late nodes", "stalls", "deaths", "came back"}
    assert longest > 0.2, "the bound is so far away that nothing could ever break it"


def forget_the_timer(self: PeerScheduler, now: float, event: Any, commands: list[Any]) -> None:
    """As it was: after a wake-up only what changes is asked for."""
    self.broker.take_in(now, event, commands)


def take_no_late_answer(self: StealRounds, now: float, peer: int, told: LoadReply, commands: list[Any]) -> None:
    """As it was: a peer whose answers come late is asked what it has, again and again, and never for it."""
    if told.round == self._round and self._outstanding:
        self._outstanding -= 1
        if told.load:
            self._answers.append((told.load, peer))
        if not self._outstanding:
            self.next_victim(now, commands)
    elif told.load:
        self.promising = peer


def keep_the_roster(self: PeerScheduler, now: float, event: PeersChanged, commands: list[Any]) -> None:
    """Whoever comes later is never heard."""


def ask_only_the_first(
    self: StealRounds, now: float, commands: list[Any], before: Any = StealRounds.next_victim
) -> None:
    """Gives up for good after some rounds that were in vain."""
    before(self, now, commands)
    if not self.is_open and self._round > 12:
        self.next_try = now + 1e6


DEFECTS: dict[str, tuple[type, str, Callable[..., None], str, int]] = {
    "timer": (PeerScheduler, "_on_time", forget_the_timer, "wakes at inf", 2),
    "late answers": (StealRounds, "on_load_reply", take_no_late_answer, "has been idle", 0),
    "roster": (PeerScheduler, "_on_peers", keep_the_roster, "has been idle", 1),
    "gives up": (StealRounds, "next_victim", ask_only_the_first, "has been idle", 1),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_the_oracle_detects_a_faulty_thief(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seed is one that showed it; when scenarios are drawn otherwise, one of the others does."""
    kind, method, defect, told, seed = DEFECTS[name]
    monkeypatch.setattr(kind, method, defect)
    with pytest.raises(ClusterSeedFailedError, match=told):
        for other in (seed, *range(300)):
            run_beginning_seed(other)


def test_a_lost_timer_is_also_seen_by_what_comes_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PeerScheduler, "_on_time", forget_the_timer)
    monkeypatch.setattr(Idleness, "_expect_alarm", lambda *given: None)
    with pytest.raises(ClusterSeedFailedError, match="has been idle"):
        for seed in (99, *range(500)):
            run_beginning_seed(seed)


def test_one_command_plays_beginnings() -> None:
    command = [sys.executable, "-m", "shoal.sim", "--beginnings", "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "RunStart(first=" in done.stdout
    assert run_beginning_seed(7).digest() in done.stdout
