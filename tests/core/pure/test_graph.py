"""Building a graph: edges, refusals in one sentence, and walks that do not recurse."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from shoal.core.graph import GraphBuilder, ancestors, find_cycle, lookup_tasks, topological_order
from shoal.core.resources import Resources
from shoal.core.task import Call, Profile, category_of_command
from shoal.errors import InputError
from shoal.sim.synthetic_graphs import SHAPES, several_lanes
from support.graphs import graph_of, names

DIAMOND = """
a:
b: a
c: a
d: b c
"""


def test_files_connect_tasks_whatever_the_order_they_are_written_in() -> None:
    graph = graph_of("late: early raw\nearly: raw")
    assert list(graph.predecessors_of(0)) == [1]
    assert list(graph.successors_of(1)) == [0]
    assert list(graph.pending) == [1, 0]
    assert graph.input_names(0) == ["early", "raw"]
    assert graph.output_names(1) == ["early"]


def test_a_task_that_reads_two_files_of_one_producer_is_released_by_it_at_once() -> None:
    builder = GraphBuilder()
    builder.task("both", "make", outputs=["x", "y"])
    builder.task("reader", "read", inputs=["x", "y"])
    graph = builder.build()
    assert list(graph.pending) == [0, 2]
    assert list(graph.successors_of(0)) == [1, 1]


def test_order_without_a_file_is_an_edge_too() -> None:
    builder = GraphBuilder()
    first = builder.task("first", "one")
    builder.task("second", "two", after=[first])
    graph = builder.build()
    assert list(graph.predecessors_of(1)) == [0]
    assert list(graph.after_of(1)) == [0]


def test_two_producers_of_one_file_are_refused_with_both_names() -> None:
    builder = GraphBuilder("flow.py")
    builder.task("one", "make", outputs=["x"], line=3)
    with pytest.raises(InputError) as refusal:
        builder.task("two", "make", outputs=["x"], line=7)
    assert str(refusal.value).startswith("flow.py:7: two tasks make 'x': 'one' (line 3) and 'two'")


def test_an_output_named_twice_by_one_task_counts_once() -> None:
    builder = GraphBuilder()
    builder.task("twice", "make", outputs=["x", "x"])
    assert builder.build().output_names(0) == ["x"]


def test_a_cycle_is_refused_and_shown_in_the_order_of_the_data() -> None:
    with pytest.raises(InputError) as refusal:
        graph_of("start:\na: start c\nb: a\nc: b\nend: c")
    text = str(refusal.value)
    shown = text.split("cycle: ")[1].split(";")[0].split(" -> ")
    tasks = [part.split("'")[1] for part in shown]
    assert tasks[0] == tasks[-1]
    assert sorted(tasks[1:]) == ["a", "b", "c"]
    assert {one + two for one, two in pairwise(tasks)} == {"ab", "bc", "ca"}


def test_a_task_that_reads_its_own_output_is_a_cycle() -> None:
    with pytest.raises(InputError, match=r"'a' \(line 1\) -> 'a'"):
        graph_of("a: a")


def test_a_graph_without_a_cycle_has_none() -> None:
    assert find_cycle(graph_of(DIAMOND)) == []


def test_ancestors_are_what_the_targets_need_and_nothing_else() -> None:
    graph = graph_of("a:\nb: a\nc: a\nd: c")
    assert list(ancestors(graph, [3, 3])) == [1, 0, 1, 1]


def test_users_find_tasks_by_name_by_file_and_by_number() -> None:
    builder = GraphBuilder()
    builder.task("named", "make", outputs=["file"])
    find = lookup_tasks(builder.build())
    assert [find("named"), find("file"), find("0"), find("1"), find("other")] == [0, 0, 0, None, None]


def test_tasks_of_one_kind_share_a_profile_and_categories_come_from_the_command() -> None:
    builder = GraphBuilder()
    builder.task("", "/usr/bin/sort a", outputs=["a"])
    builder.task("", "sort b", outputs=["b"])
    builder.task("", "A=1 uniq b", outputs=["c"])
    builder.task("", Call(print), outputs=["d"])
    builder.task("", None, inputs=["d"])
    builder.task("", "sort", outputs=["e"], profile=Profile("mine"))
    graph = builder.build()
    assert [graph.profile_of(task).category for task in range(6)] == ["sort", "sort", "uniq", "print", "group", "mine"]
    assert graph.profile[0] == graph.profile[1]
    assert graph.names == ["a", "b", "c", "d", "4", "e"]


@pytest.mark.parametrize(
    ("command", "category"),
    [
        ("(cd x; ls)", "cd"),
        ("X=/a/b Y=1 ./run.sh", "run.sh"),
        ("/a/b=c/tool x", "tool"),
        ("", "command"),
        ("ls;", "ls"),
    ],
)
def test_a_category_is_the_executables_name(command: str, category: str) -> None:
    assert category_of_command(command) == category


def test_a_chain_of_twenty_thousand_tasks_needs_no_recursion() -> None:
    graph = SHAPES["chain"](Random(0), 20_000, None)
    assert list(topological_order(graph)) == list(range(20_000))
    assert sum(ancestors(graph, [19_999])) == 20_000


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_generated_graphs_are_the_same_for_the_same_seed_and_about_as_large_as_asked(shape: str) -> None:
    profiles = several_lanes(Random(5), Resources.parse({"cores": 4, "memory": "8G"}))
    one, other = (SHAPES[shape](Random(9), 40, profiles) for _ in range(2))
    assert (one.names, list(one.successors), list(one.profile)) == (
        other.names,
        list(other.successors),
        list(other.profile),
    )
    runs = sum(action is not None for action in one.actions)
    assert 10 <= runs <= 60
    assert names(one, list(topological_order(one))[:1]) == one.names[:1]


def test_profiles_of_several_lanes_differ_and_fit_on_the_node() -> None:
    node = Resources.parse({"cores": 4, "memory": "8G", "gpus": 1})
    requests = {profile.resources for profile in several_lanes(Random(1), node).values()}
    assert len(requests) > 3
    assert all(not request.lacking_in(node) for request in requests)
    assert all(request.get("cores") for request in requests)
