"""The longest chain of random plans, against all chains one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.ledger.views.pace import CategoryPace, Chain, Longest, longest_of, steps_of_longest
from support.views import linked


@st.composite
def plans(draw: st.DrawFn) -> tuple[list[list[int]], list[bool]]:
    """What each of a few tasks needs, all of them earlier ones, and whether it runs something."""
    size = draw(st.integers(1, 8))
    needs = [draw(st.lists(st.integers(0, task - 1), max_size=3)) if task else [] for task in range(size)]
    return needs, [draw(st.booleans()) for _ in range(size)]


def chains_to(needs: list[list[int]], task: int) -> list[list[int]]:
    return [[*before, task] for need in needs[task] for before in chains_to(needs, need)] or [[task]]


def longest_chains(needs: list[list[int]], runs: list[bool]) -> list[list[int]]:
    """All of them, without what runs nothing."""
    found = [[one for one in chain if runs[one]] for task in range(len(needs)) for chain in chains_to(needs, task)]
    most = max(map(len, found))
    return [chain for chain in found if len(chain) == most]


def steps_by_hand(needs: list[list[int]], runs: list[bool]) -> list[int]:
    found = [0] * len(needs)
    for chain in longest_chains(needs, runs):
        for place, task in enumerate(chain, 1):
            found[task] = place
    return found


@given(plan=plans())
def test_steps_are_those_of_all_longest_chains(plan: tuple[list[list[int]], list[bool]]) -> None:
    needs, runs = plan
    pairs = [(need, task) for task, row in enumerate(needs) for need in row]
    assert steps_of_longest([a for a, _ in pairs], [b for _, b in pairs], runs) == steps_by_hand(needs, runs)


@given(plan=plans(), done=st.sets(st.integers(0, 7)), going=st.dictionaries(st.integers(0, 7), st.floats(0, 9)))
def test_what_is_left_of_it(plan: tuple[list[list[int]], list[bool]], done: set[int], going: dict[int, float]) -> None:
    needs, runs = plan
    categories = {task: f"c{task % 3}" for task, own in enumerate(runs) if own}
    tallies = {f"c{number}": CategoryPace(10, 1, 0, 0, number + 1.0, (number + 1.0) ** 2) for number in range(3)}
    longest = longest_of([linked(dict(enumerate(needs)))], categories)
    longest.look(done.__contains__, 100.0)
    left = {task: step for task, step in enumerate(steps_by_hand(needs, runs)) if step and task not in done}
    told = longest.chain(tallies, going)
    if not left:
        assert told is None
        return
    expected = dict.fromkeys(tallies, 0.0)
    for task, step in left.items():
        expected[categories[task]] += 1 / list(left.values()).count(step)
    assert told is not None
    shares = {name: share for tally, share in told.tasks for name, one in tallies.items() if one is tally}
    assert shares == pytest.approx({name: share for name, share in expected.items() if share})
    first = [task for task, step in left.items() if step == min(left.values())]
    assert told.begun == min(min(going.get(task, 0.0), tallies[categories[task]].seconds) for task in first)


def test_of_many_tasks_it_is_looked_less_often() -> None:
    tally = CategoryPace(30_000, 1, 0, 0, 1.0, 1.0)
    longest = Longest([1] * 30_000, lambda task: "a")
    asked: list[int] = []

    def is_over(task: int) -> bool:
        asked.append(task)
        return task > 0

    for moment in (100.0, 100.5, 102.9):
        longest.look(lambda task: asked.append(task), moment)
    assert len(asked) == 30_000
    longest.look(is_over, 103.1)
    longest.look(is_over, 104.2)
    assert len(asked) == 60_001
    assert longest.chain({"a": tally}, {}) == Chain([(tally, 1.0)], 0.0)
