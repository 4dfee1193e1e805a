"""Properties of sizing: the chain is the cheapest one, buckets are what their definition says, sizes always suffice."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from shoal.core.policies.sizing.sizer import SIZER_MODES, Sizer, best_chain
from shoal.core.policies.sizing.work_queue import first_allocation
from shoal.sim.sizing_replay import BUCKETING_MODES, buckets_of

candidates = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 20)), min_size=1, max_size=9)
peaks = st.lists(st.integers(0, 4000), min_size=1, max_size=40)


def cost_of(chain: list[int], costs: list[float], seconds: list[float]) -> float:
    total, done = 0.0, -1
    for at in chain:
        total += costs[at] * sum(seconds[done + 1 :])
        done = at
    return total


@given(candidates)
def test_no_chain_is_cheaper_than_the_one_chosen(rows: list[tuple[int, int]]) -> None:
    costs = sorted(float(cost) for cost, _ in rows)
    seconds = [float(time) for _, time in rows]
    last = len(costs) - 1
    found = cost_of(best_chain(costs, seconds), costs, seconds)
    for mask in range(2**last):
        chain = [at for at in range(last) if mask >> at & 1] + [last]
        assert found <= cost_of(chain, costs, seconds) + 1e-9


@given(peaks, st.lists(st.integers(1, 100), min_size=40, max_size=40), st.integers(0, 5000))
def test_least_waste_is_the_minimum_over_all_buckets(values: list[int], times: list[int], top: int) -> None:
    found = first_allocation("min-waste", values, times[: len(values)], top, 250)
    ends = [math.ceil(value / 250) * 250 for value in values]

    def waste(size: int) -> float:
        return sum((size + (top if end > size else 0)) * time for end, time in zip(ends, times, strict=False))

    sizes = [end for end in sorted(set(ends)) if end >= 1]
    if not sizes:
        assert found == math.ceil(top / 250) * 250
        return
    least = min(waste(size) for size in sizes)
    allowed = [size for size in sizes if waste(size) <= least * (1 + 1e-9)]
    assert found in [math.ceil(min(size, top) / 250) * 250 for size in allowed]


@given(peaks, st.sampled_from(BUCKETING_MODES))
def test_buckets_ascend_end_at_the_largest_peak_and_share_everything(values: list[int], mode: str) -> None:
    buckets = buckets_of(mode, values)
    tops = [bucket.top for bucket in buckets]
    assert tops == sorted(tops)
    assert tops[-1] == max(values)
    assert all(top in values for top in tops)
    if mode != "det-greedy":
        assert math.isclose(sum(bucket.share for bucket in buckets), 1.0)


@given(peaks)
def test_a_greedy_bucket_is_not_worth_splitting(values: list[int]) -> None:
    """The definition of the cost of a split, over all points of each bucket that came out."""
    points = sorted(((value, -number) for number, value in enumerate(values, 1)))
    tops = [bucket.top for bucket in buckets_of("greedy", values)]
    if len(set(values)) < len(values):
        return
    start = 0
    for top in tops:
        end = next(at for at, point in enumerate(points) if point[0] == top) + 1
        part = [(value, -number) for value, number in points[start:end]]
        start = end
        costs = [split_cost(part, at) for at in range(len(part))]
        assert costs[-1] <= min(costs) + 1e-6


def split_cost(part: list[tuple[int, int]], at: int) -> float:
    total = sum(weight for _, weight in part)
    left, right = part[: at + 1], part[at + 1 :]
    p1 = sum(weight for _, weight in left) / total
    p2 = 1 - p1
    e1 = sum(value * weight for value, weight in left) / sum(weight for _, weight in left)
    e2 = sum(value * weight for value, weight in right) / sum(weight for _, weight in right) if right else 0.0
    size, top = part[at][0], part[-1][0]
    return p1**2 * (size - e1) + p1 * p2 * (top - e1) + p2 * p1 * (size + top - e2) + p2**2 * (top - e2)


@given(st.lists(st.floats(0, 5000), max_size=60), st.sampled_from(SIZER_MODES), st.integers(1, 6000))
def test_every_retry_gets_more_until_all_there_is(values: list[float], mode: str, top: int) -> None:
    sizer = Sizer(8192, mode, explicit_max=top)
    for value in values:
        tried: list[float] = []
        while not sizer.hopeless(tried):
            size = sizer.ask(tried)
            assert size <= top
            assert not tried or size > tried[-1]
            if value <= size:
                sizer.observe(value, 1.0, tried=tuple(tried))
                break
            sizer.observe(size, 1.0, size, tuple(tried))
            tried.append(size)
        assert len(tried) < 200
