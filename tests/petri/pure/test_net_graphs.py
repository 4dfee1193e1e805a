"""Static graphs as nets, and nets as drawings."""

from __future__ import annotations

import msgspec

from shoal.petri import Net, NetFlow, count, net_of_graph, read, take
from shoal.petri.net import task_number
from support.graphs import graph_of
from support.nets import Driver, stream

DIAMOND = """
a:
b: a
c: a
(group): b c
d: group
e: group a
"""


def test_a_graph_as_a_net_runs_each_task_after_those_it_needs() -> None:
    graph = graph_of(DIAMOND)
    net = net_of_graph(graph)
    for seed in range(5):
        driver = Driver(NetFlow(net), seed)
        flow = driver.run()
        order = [name.partition(" ")[2] for name, _ in driver.log]
        assert sorted(order) == ["a", "b", "c", "d", "e"]
        assert order[0] == "a" and set(order[1:3]) == {"b", "c"}
        assert flow.is_finished and all(not tokens for tokens in flow.state().marking.values())


def test_what_depends_on_a_failed_task_does_not_run_and_the_rest_does() -> None:
    graph = graph_of("a:\nb: a\nc:\nd: c")
    flow = NetFlow(net_of_graph(graph))
    first, second = flow.next(), flow.next()
    assert first is not None and second is not None
    flow.fail(first, "no")
    flow.inject(second, None)
    third = flow.next()
    assert third is not None and task_number(flow.extract(third).transition) == 3
    flow.inject(third, None)
    assert flow.next() is None and flow.is_finished and flow.problems() == ["no"]


def test_action_and_profile_of_a_task_are_kept() -> None:
    graph = graph_of("a:")
    (transition,) = net_of_graph(graph).transitions.values()
    assert transition.action == "make a" and transition.profile is graph.profile_of(0)


def example() -> Net:
    net = Net("draw")
    todo, best, errors = net.place("todo", [1, 2], type=int), net.place("best"), net.place("errors")

    @net.task(x=take(todo), b=read(best), n=count(todo), when=lambda n: n < 9, on_error=errors, category="search")
    def expand(x: int, b: int, n: int) -> object:
        return {best: x}

    return net


def test_a_description_has_places_transitions_and_arcs() -> None:
    shown = example().describe()
    place = shown.places[0]
    assert (place.name, place.tokens, place.type) == ("todo", 2, "int")
    (transition,) = shown.transitions
    assert (transition.name, transition.kind, transition.guards, transition.category) == ("expand", "task", 1, "search")
    assert [(arc.kind, arc.place) for arc in shown.arcs] == [
        ("take", "todo"),
        ("read", "best"),
        ("count", "todo"),
        ("on_error", "errors"),
        ("put", "best"),
    ]
    assert msgspec.json.decode(msgspec.json.encode(shown), type=type(shown)) == shown


def test_a_drawing_shows_tokens_and_the_direction_of_arcs() -> None:
    text = example().dot()
    assert text.startswith('digraph "draw" {') and text.endswith("}\n")
    assert '"place todo" [shape=ellipse, label="todo\\n2"];' in text
    assert '"place todo" -> "transition expand";' in text
    assert '"transition expand" -> "place errors" [color=red' in text
    assert 'label="todo\\n7"' in example().dot({"todo": 7})


def test_a_window_is_drawn_as_taken_and_given_back() -> None:
    arcs = [(arc.kind, arc.place) for arc in stream(2).describe().arcs]
    assert ("take", "window") in arcs and ("put", "window") in arcs
