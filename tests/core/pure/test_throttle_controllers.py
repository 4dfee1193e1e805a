"""Controllers of concurrency: what they say to a node that answers exactly, how they take turns, and why."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.policies.throttle.adaptive import TurnClaim, Turns
from shoal.core.policies.throttle.controller import Controller, ControllerState, ThrottleVerdict
from shoal.core.policies.throttle.hill_climber import Climber, ThroughputModel, room
from shoal.core.policies.throttle.readings import CPU, DISK, NETWORK, Endings, Figure, Period, Turnout
from shoal.core.policies.throttle.registry import controller
from shoal.errors import InputError

NOISE = 0.002


def done(running: float, knee: float, thrashing: float = 0.0) -> float:
    """Tasks' worth of work that gets done."""
    return running if running <= knee else knee * max(0.2, 1 - thrashing * (running / knee - 1))


def period(
    caps: dict[str, int],
    knee: float,
    use: float = 0.06,
    *,
    limit: int | None = None,
    seconds: float = 2.0,
    pressure: float = 0.0,
) -> Period:
    """A period without noise of tasks that all use the network."""
    effects = {name: done(cap, knee) for name, cap in caps.items()}
    turnout = {}
    for name, cap in caps.items():
        endings = Endings()
        took = seconds * cap / effects[name] if cap else seconds
        for _ in range(round(4.0 * cap / took)):
            endings.add(took)
        turnout[name] = Turnout(cap, cap, endings, endings.count, 1000, limit)
    figures = {CPU: Figure(error=NOISE), DISK: Figure(error=NOISE)}
    used = use * sum(effects.values())
    figures[NETWORK] = Figure(used, used, NOISE)
    return Period(4.0, 8, figures, turnout, pressure)


def start(names: list[str], limit: int | None = None) -> Period:
    return Period(0.0, 0, {}, {name: Turnout(0, 0, Endings(), 0, 1000, limit) for name in names})


def converse(
    chosen: Controller, knees: list[float], *, limit: int | None = None, use: float = 0.06
) -> list[ThrottleVerdict]:
    """One category against a node whose knee is this in each period."""
    verdicts = [chosen.decide(0.0, start(["fetch"], limit))["fetch"]]
    for at, knee in enumerate(knees, 1):
        cap = verdicts[-1].cap
        assert cap is not None
        verdicts.append(chosen.decide(4.0 * at, period({"fetch": cap}, knee, use, limit=limit))["fetch"])
    return verdicts


def caps_of(verdicts: list[ThrottleVerdict]) -> list[int]:
    return [verdict.cap or 0 for verdict in verdicts]


def test_slots_are_for_all_categories_together_in_the_order_they_came() -> None:
    turnout = {"a": Turnout(3, 3, Endings(), 0, 0), "b": Turnout(0, 0, Endings(), 0, 9)}
    verdicts = controller("slots=4", 2).decide(0.0, Period(4.0, 8, {}, turnout))
    assert (verdicts["a"].cap, verdicts["b"].cap) == (4, 1)


def test_the_contract_alone_caps_nothing() -> None:
    verdict = controller("contract", 2).decide(0.0, start(["a"]))["a"]
    assert verdict.cap is None
    assert verdict.state is ControllerState.FIXED


@pytest.mark.parametrize("name", ["slots", "slots=0", "slots=-1", "slots=x", "slots=9999999999", "fast", ""])
def test_a_throttle_that_does_not_exist_is_one_sentence(name: str) -> None:
    with pytest.raises(InputError, match="there is no throttle"):
        controller(name, 2)


def test_a_new_category_begins_on_a_part_of_the_processors() -> None:
    verdict = controller("adaptive", 16).decide(0.0, start(["fetch"]))["fetch"]
    assert (verdict.cap, verdict.state) == (4, ControllerState.PROFILING)


@pytest.mark.parametrize("knee", [3, 5, 8, 13, 40, 150])
def test_it_holds_a_little_beyond_the_knee(knee: int) -> None:
    verdicts = converse(controller("adaptive", 16), [knee] * 20, use=0.6 / knee)
    last = verdicts[-1]
    assert last.state is ControllerState.HOLDING
    assert last.dominant == NETWORK
    assert knee <= (last.cap or 0) <= knee + room(knee) + 1
    assert len(set(caps_of(verdicts[12:]))) == 1


def test_it_never_exceeds_the_contract() -> None:
    verdicts = converse(controller("adaptive", 16), [50.0] * 30, limit=7, use=0.01)
    assert max(caps_of(verdicts)) == 7
    assert verdicts[-1].reason == "7 of category 'fetch' run together; the contract admits no more"


def test_it_comes_down_when_the_contract_becomes_smaller() -> None:
    chosen = controller("adaptive", 16)
    converse(chosen, [20.0] * 20, use=0.03)
    assert chosen.decide(0.0, period({"fetch": 22}, 20.0, 0.03, limit=5))["fetch"].cap == 5


def test_it_follows_capacity_down_and_up_within_eight_periods() -> None:
    caps = caps_of(converse(controller("adaptive", 16), [10.0] * 20 + [5.0] * 20 + [10.0] * 20))
    assert all(5 <= cap <= 8 for cap in caps[28:40])
    assert all(10 <= cap <= 13 for cap in caps[48:60])


def test_tasks_whose_use_shows_nothing_are_judged_by_their_times() -> None:
    last = converse(controller("adaptive", 16), [10.0] * 25, use=0.0001)[-1]
    assert last.dominant is None
    assert 10 <= (last.cap or 0) <= 13
    assert "something outside the node is busy" in last.reason


def test_nothing_grows_while_tasks_wait_for_memory() -> None:
    chosen = controller("adaptive", 16)
    cap = chosen.decide(0.0, start(["fetch"]))["fetch"].cap or 0
    for at in range(6):
        cap = chosen.decide(4.0 * at, period({"fetch": cap}, 40.0, 0.01, pressure=0.4))["fetch"].cap or 0
    assert cap == 4


def test_a_known_category_starts_where_it_held_before() -> None:
    first = controller("adaptive", 16)
    held = converse(first, [10.0] * 20)[-1].cap
    profiles = first.profiles()
    assert profiles["fetch"].level == held
    again = converse(controller("adaptive", 16, profiles), [10.0] * 10)
    assert caps_of(again) == [held] * 11
    assert again[0].state is ControllerState.HOLDING


def test_a_known_category_follows_what_is_different_now() -> None:
    first = controller("adaptive", 16)
    converse(first, [10.0] * 20)
    less = caps_of(converse(controller("adaptive", 16, first.profiles()), [4.0] * 12))
    more = caps_of(converse(controller("adaptive", 16, first.profiles()), [20.0] * 16, use=0.06))
    assert 4 <= less[8] <= 7
    assert more[-1] >= 15


def test_a_category_known_by_its_times_alone_is_measured_at_once() -> None:
    first = controller("adaptive", 16)
    held = converse(first, [10.0] * 25, use=0.0001)[-1].cap
    again = converse(controller("adaptive", 16, first.profiles()), [5.0] * 10, use=0.0001)
    assert again[0].cap == held
    assert 5 <= (again[8].cap or 0) <= 8


def test_periods_in_which_another_number_ran_change_nothing() -> None:
    chosen = controller("adaptive", 16)
    chosen.decide(0.0, start(["fetch"]))
    usual = period({"fetch": 4}, 10.0)
    other = Turnout(4, 1.0, Endings(), 0, 0)
    caps = [chosen.decide(4.0 * at, Period(4.0, 8, usual.use, {"fetch": other}))["fetch"].cap for at in range(10)]
    assert caps == [4] * 10


def test_the_reason_names_what_was_tried_and_what_is_busy() -> None:
    verdict = converse(controller("adaptive", 16), [10.0] * 20)[-1]
    assert (
        verdict.reason == "12 of category 'fetch' run together; 16 were tried and brought nothing (the network is busy)"
    )


def test_a_number_beyond_the_knee_that_does_less_is_left() -> None:
    climber = Climber(4)
    levels = []
    for _ in range(40):
        effect = done(climber.level, 10, thrashing=0.3)
        climber.step(ThroughputModel(climber.level, effect, 0.02 * climber.level))
        levels.append(climber.level)
    assert sum(level == 10 for level in levels[15:]) >= 20


def test_weasel_reaches_the_knee_and_never_rests() -> None:
    caps = caps_of(converse(controller("weasel", 16), [10.0] * 60))
    assert all(8 <= cap <= 13 for cap in caps[30:])
    assert sum(a != b for a, b in pairwise(caps[30:])) > 20


def claim(name: str, dominant: str | None, level: int = 10, *, full: bool = True, waiting: bool = True) -> TurnClaim:
    return TurnClaim(name, level, dominant, {dominant: 0.05} if dominant else {}, full, waiting)


def test_different_dominant_resources_go_together() -> None:
    granted = Turns().grant([claim("a", CPU), claim("b", NETWORK), claim("c", None)])
    assert granted == {"a": (10, None), "b": (10, None), "c": (10, None)}


def test_the_same_dominant_resource_is_for_who_came_first() -> None:
    assert Turns().grant([claim("a", CPU), claim("b", CPU)]) == {"a": (10, None), "b": (0, "a")}


def test_the_same_resource_is_shared_while_there_is_enough_of_it() -> None:
    granted = Turns().grant([claim("a", CPU, 4, full=False), claim("b", CPU, 4, full=False)])
    assert granted == {"a": (4, None), "b": (4, None)}


def test_the_next_one_goes_when_the_first_has_nothing_to_start() -> None:
    turns = Turns()
    turns.grant([claim("a", CPU), claim("b", CPU)])
    assert turns.grant([claim("a", CPU, waiting=False), claim("b", CPU)])["b"] == (10, None)


def test_a_question_about_a_newcomer_alone_does_not_put_it_first() -> None:
    turns = Turns()
    turns.grant([claim("a", CPU)])
    turns.grant([claim("b", None)])
    assert turns.grant([claim("a", CPU), claim("b", CPU)])["b"] == (0, "a")


RESOURCES = st.sampled_from([CPU, DISK, NETWORK, None])


@given(st.lists(st.tuples(RESOURCES, st.integers(1, 40), st.booleans()), min_size=1, max_size=6), st.integers(1, 20))
def test_no_category_waits_forever(described: list[tuple[str | None, int, bool]], patience: int) -> None:
    turns = Turns(patience)
    claims = [claim(f"c{at}", name, level, full=full) for at, (name, level, full) in enumerate(described)]
    longest = (patience + 1) * len(claims)
    waited = dict.fromkeys((each.category for each in claims), 0)
    for _ in range(4 * longest):
        for category, (cap, ahead) in turns.grant(claims).items():
            assert (cap == 0) == (ahead is not None)
            waited[category] = 0 if cap else waited[category] + 1
            assert waited[category] <= longest


@given(st.lists(st.tuples(RESOURCES, st.integers(1, 40)), min_size=1, max_size=6))
def test_of_all_that_have_work_one_always_runs(described: list[tuple[str | None, int]]) -> None:
    turns = Turns(3)
    claims = [claim(f"c{at}", name, level) for at, (name, level) in enumerate(described)]
    for _ in range(30):
        assert any(cap for cap, _ in turns.grant(claims).values())


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 60), st.integers(0, 60), st.integers(1, 30)), max_size=40),
    st.integers(1, 64),
)
def test_whatever_is_sensed_the_cap_is_between_one_and_the_contract(
    sensed: list[tuple[float, float, int, int]], cores: int
) -> None:
    chosen = controller("adaptive", cores)
    cap = chosen.decide(0.0, start(["a"], 30))["a"].cap
    for used, running, ended, limit in sensed:
        endings = Endings()
        for at in range(ended):
            endings.add(0.01 + used * at)
        turnout = Turnout(cap or 0, running if ended % 3 else float(cap or 0), endings, ended, 5, limit)
        figures = {name: Figure(used, used, 0.01) for name in (CPU, DISK, NETWORK)}
        cap = chosen.decide(0.0, Period(4.0, 8, figures, {"a": turnout}))["a"].cap
        assert cap is not None
        assert 1 <= cap <= limit
