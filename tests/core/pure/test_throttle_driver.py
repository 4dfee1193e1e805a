"""The throttle from the driver's side: its inputs, when it decides, and its verdicts."""

from __future__ import annotations

from shoal.core.policies.throttle.controller import ControllerState
from shoal.core.policies.throttle.readings import NodeSample
from shoal.core.policies.throttle.registry import Throttle, controller


def look(throttle: Throttle, now: float, network: float, **running: int) -> float:
    """Half a second goes by."""
    throttle.sample(now + 0.5, NodeSample(network=network, running=running))
    return now + 0.5


def test_a_category_has_a_cap_as_soon_as_it_is_there() -> None:
    throttle = Throttle(controller("adaptive", 8))
    assert throttle.cap("a") is None
    assert throttle.decide(0.0, {"a": 10})["a"].state is ControllerState.PROFILING
    assert throttle.cap("a") == 2


def test_a_category_that_comes_in_the_middle_of_a_period_does_not_end_it() -> None:
    throttle = Throttle(controller("adaptive", 8))
    throttle.decide(0.0, {"a": 100})
    now = 0.0
    for _ in range(5):
        now = look(throttle, now, 0.12, a=2)
    assert sorted(throttle.decide(now, {"a": 98, "b": 7})) == ["a", "b"]
    assert throttle.cap("b") == 2
    assert throttle.cap("a") == 2
    for _ in range(3):
        now = look(throttle, now, 0.12, a=2)
    assert throttle.due(now)
    assert throttle.decide(now, {"a": 98})["a"].cap == 4


def test_a_category_that_is_gone_has_no_verdict_any_more() -> None:
    throttle = Throttle(controller("adaptive", 8))
    throttle.decide(0.0, {"a": 1, "b": 5})
    now = 0.0
    for _ in range(8):
        now = look(throttle, now, 0.1, b=2)
    assert list(throttle.decide(now, {"b": 5})) == ["b"]


def test_it_knows_when_the_contract_admits_less_than_it_would() -> None:
    throttle = Throttle(controller("adaptive", 8))
    now, caps = 0.0, []
    for _ in range(6):
        verdicts = throttle.decide(now, {"a": 100}, {"a": 3})
        caps.append(verdicts["a"].cap)
        for _ in range(8):
            now = look(throttle, now, 0.03 * 3, a=min(3, caps[-1] or 0))
    assert max(cap or 0 for cap in caps) == 3


def test_less_than_the_cap_because_of_the_contract_lowers_the_cap() -> None:
    throttle = Throttle(controller("adaptive", 32))
    now = 0.0
    for _ in range(5):
        throttle.decide(now, {"a": 100})
        for _ in range(8):
            now = look(throttle, now, 0.05, a=5)
    assert throttle.cap("a") == 5


def test_profiles_of_one_run_serve_the_next() -> None:
    first = Throttle(controller("adaptive", 8))
    now = 0.0
    for _ in range(3):
        first.decide(now, {"a": 100})
        for _ in range(8):
            now = look(first, now, 0.05 * (first.cap("a") or 0), a=first.cap("a") or 0)
    profiles = first.profiles()
    assert profiles["a"].dominant == "network"
    assert abs(profiles["a"].use["network"] - 0.05) < 0.005
