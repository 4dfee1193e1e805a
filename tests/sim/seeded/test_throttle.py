"""The simulated node behaves as specified, and the controllers reach their target scores on it at a small scale."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from shoal.core.policies.throttle.controller import Controller
from shoal.core.policies.throttle.registry import controller
from shoal.sim.throttle_measurement import (
    Best,
    BestLimits,
    ThrottleSimulation,
    best_static,
    score,
    sharing,
    static_work,
)
from shoal.sim.throttled_node import (
    CORES,
    FluidNode,
    Supply,
    TaskKind,
    TaskPhase,
    ThrottleScenario,
    further,
    plain,
    scenarios,
    shared,
)

BEST: dict[str, list[tuple[int, ...]]] = {
    "CPU-bound": [(16,)],
    "network plateau at 60 %": [(10,)],
    "thrashing beyond the knee": [(10,)],
    "tiny tasks of 0.6 %": [(103,)],
    "bursty, duty 0.5": [(12,)],
    "capacity 60-30-60 %": [(10,), (5,), (10,)],
    "two categories together": [(16, 11)],
    "three categories together": [(14, 11, 10)],
    "heavy-tailed times": [(10,)],
}
"""The best fixed numbers, as the sweep of `experiments/throttle.py` finds them."""
SEEDS = (1, 2, 3)


def adaptive() -> Controller:
    return controller("adaptive", CORES)


def named(name: str) -> ThrottleScenario:
    return next(one for one in (*scenarios(), *further()) if one.name == name)


def yardstick_of(scenario: ThrottleScenario) -> BestLimits:
    bests = []
    stretches = [scenario.supplies, *(supplies for _, supplies in scenario.changes)]
    for caps, supplies in zip(BEST[scenario.name], stretches, strict=True):
        trial = msgspec.structs.replace(scenario, supplies=supplies, changes=(), periods=40)
        bests.append(Best(caps, caps, static_work(trial, caps, SEEDS[:2])))
    return BestLimits(bests)


def node(kind: TaskKind, count: int, **supplies: Supply) -> FluidNode:
    made = FluidNode((kind,), supplies, Random(1))
    for _ in range(count):
        made.start(0)
    return made


def test_tasks_below_the_knee_go_at_full_speed() -> None:
    made = node(plain("a", spread=0.0, cpu=0.1), 8, cpu=Supply())
    assert made.advance(10.0)[0].seconds == pytest.approx(2.0)


def test_tasks_beyond_the_knee_share_what_there_is() -> None:
    made = node(plain("a", spread=0.0, cpu=0.1), 20, cpu=Supply())
    assert made.advance(10.0)[0].seconds == pytest.approx(4.0)
    assert made.work[0] == pytest.approx(40.0)
    assert made.used[0]["cpu"] == pytest.approx(4.0)


def test_thrashing_takes_of_what_there_is() -> None:
    made = node(plain("a", spread=0.0, cpu=0.1), 20, cpu=Supply(1.0, 0.5))
    assert made.advance(10.0)[0].seconds == pytest.approx(8.0)
    assert made.used[0]["cpu"] == pytest.approx(0.5 * 8)


def test_thrashing_may_look_like_work() -> None:
    made = node(plain("a", spread=0.0, cpu=0.1), 20, cpu=Supply(1.0, 0.5, honest=False))
    made.advance(10.0)
    assert made.used[0]["cpu"] == pytest.approx(1.0 * 8)


def test_a_task_is_as_fast_as_its_scarcest_resource() -> None:
    made = node(plain("a", spread=0.0, cpu=0.05, disk=0.2), 10, cpu=Supply(), disk=Supply())
    assert made.advance(10.0)[0].seconds == pytest.approx(4.0)


def test_bursts_use_a_resource_for_their_share_of_the_time() -> None:
    kind = TaskKind("a", (TaskPhase(0.5, {"cpu": 0.2}), TaskPhase(0.5, {})), 2.0, 0.0, rounds=4)
    made = node(kind, 1, cpu=Supply())
    assert made.advance(10.0)[0].seconds == pytest.approx(2.0)
    assert made.used[0]["cpu"] == pytest.approx(0.2)


def test_more_capacity_holds_from_its_moment_on() -> None:
    made = node(plain("a", spread=0.0, cpu=0.1), 20, cpu=Supply())
    assert made.advance(2.0) == []
    made.supply({"cpu": Supply(2.0)})
    assert made.advance(10.0)[0].seconds == pytest.approx(3.0)


def test_heavy_tails_have_the_mean_they_should_have() -> None:
    kind = plain("a", tail=2.5, cpu=0.1)
    random = Random(5)
    drawn = [kind.draw(random) for _ in range(20_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(kind.seconds, rel=0.05)
    assert max(drawn) > 8 * kind.seconds


def test_the_same_seed_gives_the_same_run() -> None:
    scenario = msgspec.structs.replace(named("heavy-tailed times"), periods=25)
    one, other, third = (ThrottleSimulation(scenario, adaptive, seed).execute() for seed in (7, 7, 8))
    assert one == other
    assert one != third


def test_the_sweep_finds_the_knee() -> None:
    scenario = named("thrashing beyond the knee")
    best = best_static(scenario, scenario.supplies, most=24)
    assert best.caps == (10,)
    assert best.work == pytest.approx(10.0, rel=0.01)


@pytest.mark.parametrize("name", BEST)
def test_adaptive_reaches_its_bars(name: str) -> None:
    scenario = named(name)
    stick = yardstick_of(scenario)
    for seed in SEEDS:
        found = score(scenario, adaptive, seed, stick)
        assert found.work >= 0.95, (seed, found)
        assert found.changes <= 0.10, (seed, found)
        assert found.followed is None or 0 <= found.followed <= 8, (seed, found)


def test_adaptive_beats_weasel_where_one_task_is_lost_in_the_noise() -> None:
    scenario = named("tiny tasks of 0.6 %")
    stick = yardstick_of(scenario)
    ours = score(scenario, adaptive, 1, stick)
    theirs = score(scenario, lambda: controller("weasel", CORES), 1, stick)
    assert ours.work > 2 * theirs.work


def test_the_contract_is_never_exceeded() -> None:
    steps = ThrottleSimulation(named("contract below the knee"), adaptive, 1).execute()
    assert max(step.caps[0] for step in steps) == 6


def test_a_latency_bound_category_is_not_held_to_the_processors() -> None:
    scenario = ThrottleScenario(
        "waiting", (plain("wait", cpu=0.0005),), {"cpu": Supply()}, periods=30, limits={"wait": 64}
    )
    assert ThrottleSimulation(scenario, adaptive, 1).execute()[-1].caps == [64]


@pytest.mark.parametrize("seen", [False, True])
def test_two_runs_that_share_a_server_get_fair_shares_of_it(seen: bool) -> None:
    found = [sharing(shared(seen, later=12, periods=132), adaptive, seed) for seed in SEEDS]
    assert 0.4 <= sum(one.first for one in found) / len(found) <= 0.6
    assert all(one.latency < 2.0 for one in found)
    assert all(one.used > 0.9 for one in found)


def test_categories_with_the_same_dominant_resource_take_turns_and_all_get_done() -> None:
    kinds = (plain("one", cpu=1 / CORES), plain("two", cpu=1 / CORES), plain("three", cpu=1 / CORES))
    scenario = ThrottleScenario("same", kinds, {"cpu": Supply()}, periods=140)
    steps = ThrottleSimulation(scenario, adaptive, 1).execute()
    totals = [sum(step.work[kind] for step in steps) for kind in range(3)]
    assert min(totals) > 0.15 * sum(totals)
    assert sum(totals) / len(steps) > 0.85 * CORES


def test_who_has_little_to_do_is_done_soon() -> None:
    kinds = (plain("many", cpu=1 / CORES), plain("few", cpu=1 / CORES))
    scenario = ThrottleScenario("few", kinds, {"cpu": Supply()}, periods=60, amounts={"few": 30})
    steps = ThrottleSimulation(scenario, adaptive, 2).execute()
    assert sum(step.completed[1] for step in steps[:40]) == 30
