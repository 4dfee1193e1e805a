"""What a task uses: learned beside others, kept, shared; and how much n tasks get done."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.policies.throttle.hill_climber import ThroughputBase, ThroughputModel, from_times, from_use, together
from shoal.core.policies.throttle.readings import CPU, DISK, NETWORK, Endings, Figure
from shoal.core.policies.throttle.usage_model import UsageModel, UsageProfile, merged


def seen(cpu: float = 0.0, disk: float = 0.0, network: float = 0.0, error: float = 0.003) -> dict[str, Figure]:
    return {CPU: Figure(cpu, cpu, error), DISK: Figure(disk, disk, error), NETWORK: Figure(network, network, error)}


def times(seconds: float, count: int = 40) -> Endings:
    endings = Endings()
    for at in range(count):
        endings.add(seconds * (0.9 if at % 2 else 1.1))
    return endings


def test_one_category_alone_is_known_after_one_period() -> None:
    model = UsageModel()
    model.add({"a": 4.0}, seen(cpu=0.25, network=0.02))
    profile = model.profile("a")
    assert profile.use[CPU] == pytest.approx(0.0625, rel=0.01)
    assert profile.dominant == CPU


def test_categories_that_always_ran_together_are_not_known_apart() -> None:
    model = UsageModel()
    model.add({"a": 4.0, "b": 4.0}, seen(cpu=0.4))
    model.add({"a": 8.0, "b": 8.0}, seen(cpu=0.8))
    assert model.profile("a").dominant is None


def test_a_new_category_is_known_beside_another_that_goes_on() -> None:
    model = UsageModel()
    model.add({"a": 10.0}, seen(cpu=0.5))
    model.add({"a": 10.0, "b": 2.0}, seen(cpu=0.52, disk=0.2))
    assert model.profile("a").dominant == CPU
    assert model.profile("b").dominant == DISK
    assert model.use(DISK, "b") == pytest.approx(0.1, rel=0.02)


def test_a_resource_that_was_short_teaches_nothing() -> None:
    model = UsageModel()
    model.add({"a": 4.0}, seen(cpu=0.24))
    model.add({"a": 40.0}, seen(cpu=1.0), contended=[CPU])
    assert model.use(CPU, "a") == pytest.approx(0.06, rel=0.01)


def test_a_task_that_uses_next_to_nothing_has_no_dominant_resource() -> None:
    model = UsageModel()
    model.add({"a": 16.0}, seen(cpu=0.02, network=0.01))
    assert model.profile("a").dominant is None


def test_a_use_that_is_no_larger_than_its_error_is_not_dominant() -> None:
    model = UsageModel()
    model.add({"a": 1.0}, seen(cpu=0.02, error=0.02))
    assert model.profile("a").dominant is None


@given(
    st.lists(st.floats(0.01, 0.2), min_size=1, max_size=4),
    st.lists(st.lists(st.integers(0, 20), min_size=4, max_size=4), min_size=1, max_size=10),
)
def test_uses_are_found_again_wherever_they_are_said_to_be_known(uses: list[float], counts: list[list[int]]) -> None:
    model = UsageModel()
    names = [f"c{at}" for at in range(len(uses))]
    for row in counts:
        running = {name: float(count) for name, count in zip(names, row, strict=False)}
        model.add(running, seen(network=sum(use * count for use, count in zip(uses, row, strict=False))))
    for name, use in zip(names, uses, strict=True):
        if model.error(NETWORK, name) < 0.1 * use:
            assert model.use(NETWORK, name) == pytest.approx(use, rel=0.1)


def test_a_profile_is_the_same_after_it_was_kept() -> None:
    profile = UsageProfile({CPU: 0.06, NETWORK: 0.01}, {CPU: 0.001, NETWORK: 0.001}, 2.5, 0.03, 12)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(profile), type=UsageProfile) == profile
    assert msgspec.json.decode(msgspec.json.encode(profile), type=UsageProfile) == profile


def test_merged_profiles_lean_to_the_better_known_one() -> None:
    sure = UsageProfile({CPU: 0.06}, {CPU: 0.001}, 2.0, 0.02, 10)
    unsure = UsageProfile({CPU: 0.12}, {CPU: 0.01}, 3.0, 0.5, 14)
    both = merged(sure, unsure)
    assert both.use[CPU] == pytest.approx(0.0606, abs=0.001)
    assert (both.seconds, both.level) == (2.0, 14)
    assert merged(unsure, sure).use[CPU] == pytest.approx(both.use[CPU])


def test_what_was_known_serves_until_something_else_is_seen() -> None:
    model = UsageModel()
    model.know("a", UsageProfile({NETWORK: 0.06}, {NETWORK: 0.001}))
    assert model.profile("a").dominant == NETWORK
    for _ in range(5):
        model.add({"a": 8.0}, seen(network=0.24))
    assert model.use(NETWORK, "a") == pytest.approx(0.03, rel=0.05)


def test_a_corrected_base_changes_what_one_task_uses() -> None:
    model = UsageModel()
    model.add({"a": 4.0}, seen(network=0.2))
    model.rescale("a", 1.2)
    assert model.use(NETWORK, "a") == pytest.approx(0.06, rel=0.01)


def test_use_says_how_much_gets_done() -> None:
    effect = from_use(16, 0.6, 0.003, 0.06, 0.0005)
    assert effect is not None
    assert effect.value == pytest.approx(10.0)
    assert effect.share == pytest.approx(10 / 16)


def test_times_say_how_much_gets_done() -> None:
    effect = from_times(12, times(3.0), times(2.0))
    assert effect is not None
    assert effect.value == pytest.approx(8.0)


def test_few_endings_say_nothing() -> None:
    assert from_times(12, times(3.0, 4), times(2.0)) is None
    assert from_times(12, times(3.0), times(2.0, 4)) is None


def test_where_use_and_times_disagree_the_slower_times_are_right() -> None:
    busy, slow = ThroughputModel(16, 10.0, 0.1), ThroughputModel(16, 6.0, 0.2)
    assert together(busy, slow) == slow


def test_times_that_are_not_sure_do_not_overrule_use() -> None:
    found = together(ThroughputModel(16, 10.0, 0.1), ThroughputModel(16, 6.0, 2.0))
    assert found is not None
    assert found.value == pytest.approx(10.0, abs=0.1)


def test_one_witness_is_enough_and_none_is_none() -> None:
    use = ThroughputModel(16, 10.0, 0.1)
    assert together(use, None) == use
    assert together(None, use) == use
    assert together(None, None) is None


def test_a_faster_base_makes_the_same_times_slower() -> None:
    base = ThroughputBase()
    base.learn(times(2.0))
    base.rescale(1.25)
    effect = from_times(10, times(2.0), base.endings)
    assert effect is not None
    assert effect.value == pytest.approx(8.0)
    assert base.endings.log_spread == pytest.approx(times(2.0).log_spread)
