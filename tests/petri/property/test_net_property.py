"""Properties of every net: no token is lost or made up, results appear whole, and a run can be cut anywhere."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.dependencies import DagFlow
from shoal.core.graph import Graph, GraphBuilder
from shoal.petri import Net, NetFlow, Place, count, each, net_of_graph, read, take
from shoal.petri.net import task_number
from shoal.petri.records import NetState, Record
from support.nets import Driver, back_off, knapsack, newton, stream, tree, word_count

EXAMPLES = settings(max_examples=60, deadline=None)


@st.composite
def nets(draw: st.DrawFn) -> Net:
    """A net that moves tokens about: every transition gives as many tokens as it takes, each worn a little more.

    A token is (name, moves left, colour); one without moves left is taken by nobody, so each net comes to an end.
    """
    net = Net("random")
    size = draw(st.integers(2, 4))
    tokens = [
        [(f"{place}.{number}", draw(st.integers(0, 4)), draw(st.integers(0, 2))) for number in range(draw(_few))]
        for place in range(size)
    ]
    places = [net.place(f"p{number}", tokens[number]) for number in range(size)]
    for number in range(draw(st.integers(1, 4))):
        _add_transition(draw, net, places, number)
    return net


_few = st.integers(0, 4)


def _fresh(token: Any) -> bool:
    return bool(token[1] > 0)


def _colour(token: Any) -> int:
    return int(token[2])


def _add_transition(draw: st.DrawFn, net: Net, places: list[Place], number: int) -> None:
    pick = st.sampled_from(places)
    one, two, first, second = draw(pick), draw(pick), draw(pick), draw(pick)
    shape = draw(st.sampled_from(["single", "plain pair", "keyed", "guarded", "read", "count"]))
    ports: dict[str, Any] = {"x": take(one)}
    guards: list[Any] = [lambda x: _fresh(x)]
    if shape in ("plain pair", "keyed", "guarded"):
        key = _colour if shape == "keyed" else None
        ports = {"x": take(one, key=key), "y": take(two, key=key)}
        guards.append(lambda y: _fresh(y))
    if shape == "guarded":
        guards.append(lambda x, y: _colour(x) <= _colour(y))
    if shape == "read":
        ports["r"] = read(two)
        guards.append(lambda x, r: _colour(x) != _colour(r))
    if shape == "count":
        ports["n"] = count(two)
        guards.append(lambda x, n: (n + _colour(x)) % 3 != 0)
    make = net.task if draw(st.booleans()) else net.step

    def move(x: Any, **others: Any) -> dict[Place, Any]:
        moved: dict[Place, Any] = {first: (x[0], x[1] - 1, x[2])}
        if "y" in others:
            other = others["y"]
            worn = (other[0], other[1] - 1, other[2])
            if first is second:
                return {first: each([moved[first], worn])}
            moved[second] = worn
        return moved

    make(**ports, when=guards, priority=draw(st.integers(0, 1)), name=f"t{number}")(move)


def names_of(state: NetState) -> Counter[str]:
    """The tokens that lie on places."""
    return Counter(value[0] for tokens in state.marking.values() for _, value, _ in tokens)


def held(flow: NetFlow) -> Counter[str]:
    """The tokens that tasks under way have taken."""
    found: Counter[str] = Counter()
    for flight in flow.state().flights:
        ports = flow.net.transitions[flight.transition].ports
        found.update(value[0] for port, value in zip(ports, flight.values, strict=True) if port.kind == "take")
    return found


@EXAMPLES
@given(nets(), st.integers(0, 5), st.one_of(st.none(), st.integers(0, 3)))
def test_no_token_is_lost_or_made_up(net: Net, order: int, seed: int | None) -> None:
    flow = NetFlow(net, seed)
    everything = names_of(flow.state())
    driver = Driver(flow, order)
    chance = Random(order)
    while driver.finish_one() or flow.is_busy:
        assert names_of(flow.state()) + held(flow) == everything
        if driver.running and chance.random() < 0.2:
            flow.fail(driver.running.pop().id, "by chance")
            assert names_of(flow.state()) + held(flow) == everything
    assert not flow.in_flight() and names_of(flow.state()) == everything
    assert not flow.state().set_aside


RETURNED = st.dictionaries(
    st.sampled_from(["p", "q", "r", "nowhere"]),
    st.one_of(st.integers(), st.just("text"), st.lists(st.one_of(st.integers(), st.just("text")), max_size=3)),
)


@EXAMPLES
@given(RETURNED, st.booleans())
def test_a_result_appears_whole_or_not_at_all(returned: dict[str, Any], as_step: bool) -> None:
    """Integers and lists of them, as tokens each, are right for `p`, `q` and `r`; everything else is not."""
    net = Net("atomic")
    begin = net.place("begin", ["token"])
    outs = {name: net.place(name, type=int) for name in "pqr"}
    result = {
        outs.get(name, name): each(value) if isinstance(value, list) else value for name, value in returned.items()
    }
    tokens = {name: value if isinstance(value, list) else [value] for name, value in returned.items()}
    right = "nowhere" not in returned and all(isinstance(t, int) for values in tokens.values() for t in values)
    make = net.step if as_step else net.task
    make(name="only", x=take(begin))(lambda x: result)
    flow = Driver(NetFlow(net)).run()
    for name in outs:
        assert flow.tokens(name) == (tokens.get(name, []) if right else [])
    assert flow.tokens(begin) == ([] if right else ["token"])
    assert len(flow.problems()) == (0 if right else 1)


@EXAMPLES
@given(nets(), st.integers(0, 5))
def test_nothing_that_could_fire_is_left_at_the_end(net: Net, order: int) -> None:
    """The engine's indexes against a search of everything."""
    flow = Driver(NetFlow(net), order).run()
    marking = {name: [value for _, value, _ in tokens] for name, tokens in flow.state().marking.items()}
    for spec in net.transitions.values():
        assert not _could_fire(spec, marking)


def _could_fire(spec: Any, marking: dict[str, list[Any]]) -> bool:
    """Whether some choice of different tokens satisfies every guard."""

    def fill(at: int, chosen: list[tuple[str, int]], values: list[Any]) -> bool:
        if at == len(spec.ports):
            keys = {port.key(value) for port, value in zip(spec.ports, values, strict=True) if port.key is not None}
            return len(keys) <= 1 and all(g.function(*[values[p] for p in g.ports]) for g in spec.guards)
        port = spec.ports[at]
        tokens = marking[port.place.name]
        if port.kind == "count":
            return fill(at + 1, chosen, [*values, len(tokens)])
        return any(
            fill(at + 1, [*chosen, (port.place.name, number)], [*values, token])
            for number, token in enumerate(tokens)
            if (port.place.name, number) not in chosen
        )

    return fill(0, [], [])


@EXAMPLES
@given(nets(), st.integers(0, 5), st.integers(0, 3))
def test_the_same_seed_and_order_give_the_same_run(net: Net, order: int, seed: int) -> None:
    one, two = Driver(NetFlow(net, seed), order), Driver(NetFlow(net, seed), order)
    one.run()
    two.run()
    assert one.log == two.log and one.flow.state() == two.flow.state()


@EXAMPLES
@given(nets(), st.integers(0, 5), st.one_of(st.none(), st.integers(0, 3)), st.data())
def test_a_run_cut_after_any_record_has_the_same_marking_and_end(
    net: Net, order: int, seed: int | None, data: st.DataObject
) -> None:
    records: list[Record] = []
    flow = NetFlow(net, seed, records.append)
    driver = Driver(flow, order)
    checkpoints = [(0, flow.state())]
    while driver.finish_one() or flow.is_busy:
        checkpoints.append((len(records), flow.state()))
    at, state = data.draw(st.sampled_from(checkpoints))
    cut = data.draw(st.integers(at, len(records)))
    from_beginning = NetFlow.resume(net, records=records[:cut], seed=seed)
    from_checkpoint = NetFlow.resume(net, state, records[at:cut])
    if cut > at:  # otherwise the checkpoint may have seen steps that no record tells of yet
        assert from_checkpoint.state() == from_beginning.state()
    for resumed in (from_beginning, from_checkpoint):
        for item in records[cut:]:
            resumed.apply(item)
        assert resumed.next() is None or resumed.in_flight()
        assert resumed.state().marking == flow.state().marking


@EXAMPLES
@given(st.lists(st.integers(0, 9), max_size=20), st.integers(1, 4), st.integers(0, 5), st.data())
def test_a_stream_cut_anywhere_gives_the_same_squares(
    numbers: list[int], credits: int, order: int, data: st.DataObject
) -> None:
    net = stream(credits)
    records: list[Record] = []
    driver = Driver(NetFlow(net, record=records.append), order)
    for number in numbers:
        driver.flow.put("arrived", number)
        driver.finish_one()
    driver.flow.close()
    driver.run()
    cut = data.draw(st.integers(0, len(records)))
    resumed = NetFlow.resume(net, records=records[:cut])
    told = sum(len(record.values) for record in records[:cut] if hasattr(record, "values"))
    for number in numbers[told:]:
        resumed.put("arrived", number)
    resumed.close()
    Driver(resumed, order + 1).run()
    assert sorted(resumed.tokens("done")) == sorted(number * number for number in numbers)
    assert resumed.is_finished and len(resumed.tokens("window")) == credits


def outcome(flow: NetFlow) -> object:
    """What does not depend on the order in which tasks end."""
    ignored = ("todo", "found") if flow.result is not None else ()
    places = {name: sorted(map(repr, flow.tokens(name))) for name in flow.net.places if name not in ignored}
    return flow.result, places, flow.problems()


CONFLUENT = [
    tree(lambda n: [2 * n, 2 * n + 1] if n < 6 else []),
    word_count(3, "a rose is a rose is a rose"),
    knapsack([4, 3, 5, 6], [2, 1, 3, 4], 6, target=1000),
    back_off(failures=2, tries=5),
    newton(2.0, 1.0),
]


@EXAMPLES
@given(st.sampled_from(CONFLUENT), st.integers(0, 5), st.integers(0, 5), st.data())
def test_a_run_killed_after_any_record_and_gone_on_with_in_another_order_has_the_same_outcome(
    net: Net, order: int, other_order: int, data: st.DataObject
) -> None:
    records: list[Record] = []
    first = Driver(NetFlow(net, record=records.append), order).run()
    cut = data.draw(st.integers(0, len(records)))
    resumed = Driver(NetFlow.resume(net, records=records[:cut]), other_order).run()
    assert outcome(resumed) == outcome(first) and resumed.is_finished


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    builder = GraphBuilder("random")
    for task in range(draw(st.integers(1, 12))):
        needs = draw(st.lists(st.integers(0, task - 1), max_size=3)) if task else []
        action = None if draw(st.integers(0, 4)) == 0 else f"do {task}"
        builder.task(f"t{task}", action, inputs=[f"f{need}" for need in needs], outputs=[f"f{task}"])
    return builder.build()


@EXAMPLES
@given(graphs(), st.randoms(use_true_random=False), st.booleans())
def test_a_graph_and_its_net_have_the_same_tasks_ready_at_every_moment(
    graph: Graph, chance: Random, failing: bool
) -> None:
    dag, flow = DagFlow(graph), NetFlow(net_of_graph(graph))
    ready = list(dag.ready())
    running: dict[int, int] = {}
    while True:
        while (task := flow.next()) is not None:
            running[task_number(flow.extract(task).transition)] = task
        assert sorted(running) == sorted(ready)
        if not ready:
            break
        chosen = ready.pop(chance.randrange(len(ready)))
        if failing and chance.random() < 0.2:
            dag.fail([chosen])
            flow.fail(running.pop(chosen), "by chance")
        else:
            ready += dag.complete([chosen])
            flow.inject(running.pop(chosen), None)
    assert flow.is_finished
