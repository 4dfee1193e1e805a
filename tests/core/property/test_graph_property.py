"""Any graph: edges agree with each other, orders respect them, ranks are the longest paths, cycles are found."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.dependencies import DagFlow, TaskStatus
from shoal.core.graph import Graph, GraphBuilder, ancestors, ranks, topological_order, upward_lengths
from shoal.errors import InputError

Edges = list[tuple[int, int]]


@st.composite
def edge_lists(draw: st.DrawFn) -> tuple[int, Edges, list[bool]]:
    """A number of tasks, edges from a lower to a higher number, and which tasks run something."""
    size = draw(st.integers(1, 12))
    pairs = st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)).filter(lambda pair: pair[0] != pair[1])
    edges = draw(st.lists(pairs, min_size=size // 2, max_size=24)) if size > 1 else []
    runs = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    return size, [(min(pair), max(pair)) for pair in edges], runs


def build(size: int, edges: Edges, runs: Sequence[bool], order: Sequence[int]) -> Graph:
    """Tasks written in the given order; every other edge goes without a file if the writing order allows it."""
    builder = GraphBuilder()
    number = {task: at for at, task in enumerate(order)}
    for task in order:
        before = [one for one, other in edges if other == task]
        after = [number[one] for one in before[::2] if number[one] < number[task]]
        inputs = [f"f{one}" for one in before if number[one] not in after]
        builder.task(f"t{task}", "run" if runs[task] else None, inputs=inputs, outputs=[f"f{task}"], after=after)
    return builder.build()


@given(edge_lists(), st.randoms(use_true_random=False))
def test_edges_agree_and_a_topological_order_respects_them(case: tuple[int, Edges, list[bool]], random: object) -> None:
    size, edges, runs = case
    order = list(range(size))
    random.shuffle(order)  # type: ignore[attr-defined]  # Hypothesis hands out a random.Random
    graph = build(size, edges, runs, order)
    place = {task: at for at, task in enumerate(topological_order(graph))}
    assert len(place) == size
    for task in range(size):
        before = sorted(graph.predecessors_of(task))
        assert len(before) == graph.pending[task]
        assert before == sorted(one for one in range(size) for child in graph.successors_of(one) if child == task)
        assert {graph.names[one] for one in before} == {
            f"t{one}" for one, other in edges if graph.names[task] == f"t{other}"
        }
        assert all(place[one] < place[task] for one in before)


@given(edge_lists())
def test_ranks_are_longest_paths(case: tuple[int, Edges, list[bool]]) -> None:
    size, edges, runs = case
    graph = build(size, edges, runs, range(size))
    rank, length = ranks(graph), upward_lengths(graph, [float(task + 1) for task in range(size)])
    for task in reversed(range(size)):
        children = [other for one, other in edges if one == task]
        assert rank[task] == (max(rank[child] for child in children) + runs[task] if children else 0)
        assert length[task] == task + 1 + max((length[child] for child in children), default=0)


@given(edge_lists(), st.data())
def test_ancestors_are_closed_and_nothing_more(case: tuple[int, Edges, list[bool]], data: st.DataObject) -> None:
    size, edges, runs = case
    graph = build(size, edges, runs, range(size))
    targets = data.draw(st.sets(st.integers(0, size - 1)))
    expected = set(targets)
    for task in reversed(range(size)):
        if task in expected:
            expected |= {one for one, other in edges if other == task}
    assert {task for task, mark in enumerate(ancestors(graph, sorted(targets))) if mark} == expected


@given(edge_lists(), st.integers(0, 11))
def test_an_edge_backwards_is_found_and_every_step_of_the_cycle_shown_is_an_edge(
    case: tuple[int, Edges, list[bool]], pick: int
) -> None:
    size, edges, runs = case
    edges = [*edges, *([(one, one + 1) for one in range(size - 1)])]
    back = (pick % size, 0)
    with pytest.raises(InputError) as refusal:
        build(size, [*edges, back], runs, range(size))
    shown = [int(part.split("'")[1][1:]) for part in str(refusal.value).split("cycle: ")[1].split(";")[0].split(" -> ")]
    assert shown[0] == shown[-1]
    assert all(pair in [*edges, back] for pair in pairwise(shown))


@given(edge_lists(), st.data())
def test_a_flow_hands_out_every_task_once_and_only_when_all_it_needs_is_done(
    case: tuple[int, Edges, list[bool]], data: st.DataObject
) -> None:
    size, edges, runs = case
    flow = DagFlow(build(size, edges, runs, range(size)))
    open_tasks = flow.ready()
    handed_out = list(open_tasks)
    while open_tasks:
        batch = data.draw(st.lists(st.sampled_from(open_tasks), min_size=1, unique=True))
        failed = [task for task in batch if data.draw(st.integers(0, 4)) == 0]
        flow.fail(failed)
        fresh = flow.complete([task for task in batch if task not in failed])
        assert all(flow.status[one] == TaskStatus.DONE for task in fresh for one, other in edges if other == task)
        open_tasks = [task for task in open_tasks if task not in batch] + fresh
        handed_out += fresh
    assert len(handed_out) == len(set(handed_out))
    for task in range(size):
        bad = any(flow.status[one] in (TaskStatus.FAILED, TaskStatus.DOOMED) for one, other in edges if other == task)
        assert (flow.status[task] == TaskStatus.DOOMED) == bad
        assert flow.status[task] not in (TaskStatus.WAITING, TaskStatus.READY)
