"""Ranks: the longest way to a sink, counted in tasks that run something, or in seconds."""

from __future__ import annotations

from random import Random

from shoal.core.graph import ranks, upward_lengths
from shoal.sim.synthetic_graphs import chain
from support.graphs import graph_of


def test_a_sink_has_rank_zero_and_each_step_before_it_one_more() -> None:
    graph = graph_of("a:\nb: a\nc: b\nlone:")
    assert list(ranks(graph)) == [2, 1, 0, 0]


def test_the_longest_way_counts() -> None:
    graph = graph_of("a:\nshort: a\nlong1: a\nlong2: long1\nend: short long2")
    assert list(ranks(graph)) == [3, 1, 2, 1, 0]


def test_groups_add_nothing_to_a_rank() -> None:
    graph = graph_of("a:\n(group): a\nb: group\n(all): b")
    assert list(ranks(graph)) == [2, 1, 1, 0]


def test_upward_length_is_the_seconds_from_the_start_of_a_task_to_the_end_of_the_workflow() -> None:
    graph = graph_of("a:\nb: a\nc: a\nd: b c")
    assert list(upward_lengths(graph, [1.0, 10.0, 2.0, 4.0])) == [15.0, 14.0, 6.0, 4.0]


def test_a_long_chain_is_ranked_without_recursion() -> None:
    assert ranks(chain(Random(0), 20_000))[0] == 19_999
