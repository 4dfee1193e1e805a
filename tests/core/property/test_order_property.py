"""Every order against a reference: random pushes, pops from any lanes, removals, and changes of durations."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.policies.order import ORDERS, TaskColumns
from support.orders import NaiveQueue

TASKS = 24
LANES = 3

columns = st.builds(
    TaskColumns,
    lane=st.lists(st.integers(0, LANES - 1), min_size=TASKS, max_size=TASKS),
    rank=st.lists(st.integers(0, 3), min_size=TASKS, max_size=TASKS),
    input_bytes=st.lists(st.integers(0, 3), min_size=TASKS, max_size=TASKS),
    upward_length=st.lists(st.sampled_from([0.0, 0.5, 2.0]), min_size=TASKS, max_size=TASKS),
)
step = st.one_of(
    st.tuples(st.just("push"), st.integers(0, TASKS - 1)),
    st.tuples(st.just("pop"), st.integers(1, 2**LANES - 1)),
    st.tuples(st.just("remove"), st.integers(0, TASKS - 1)),
    st.tuples(st.just("learn"), st.integers(0, TASKS - 1)),
    st.tuples(st.just("serve"), st.integers(1, 6)),
)


@pytest.mark.parametrize("order", sorted(ORDERS))
@settings(max_examples=60, deadline=None)
@given(known=columns, steps=st.lists(step, min_size=20, max_size=60), cores=st.integers(1, 4), seed=st.integers(0, 9))
def test_an_order_takes_what_its_rule_says(
    order: str, known: TaskColumns, steps: list[tuple[str, int]], cores: int, seed: int
) -> None:
    queue = ORDERS[order](known, cores, Random(seed))
    plain = NaiveQueue(order, known, cores, Random(seed))
    for task in range(0, TASKS, 2):  # so that there is something to choose from
        queue.push(task)
        plain.push(task)
    for kind, value in steps:
        if kind == "push" and value not in plain.queued:
            queue.push(value)
            plain.push(value)
        elif kind == "remove" and value in plain.queued:
            queue.remove(value)
            plain.remove(value)
        elif kind == "learn":
            queue.learn(value, 0.25 * (1 + value % 4))
            plain.learn(value, 0.25 * (1 + value % 4))
        elif kind == "serve":
            queue.serve(value)
            plain.cores = value
        elif kind == "pop":
            lanes = [lane for lane in queue.lanes() if value >> lane & 1]
            if lanes:
                assert queue.pop(lanes) == plain.pop(lanes)
        assert queue.waiting() == plain.queued
        assert len(queue) == len(plain.queued)
        assert {lane: queue.queued_in(lane) for lane in queue.lanes()} == {
            known.lane[task]: sum(known.lane[other] == known.lane[task] for other in plain.queued)
            for task in plain.queued
        }
