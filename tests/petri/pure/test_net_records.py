"""A flow can be stopped at any moment and goes on as if nothing had happened: from its state, or from its records."""

from __future__ import annotations

import pickle

import msgspec
import pytest

from shoal.errors import InputError
from shoal.petri import Net, NetFlow, take
from shoal.petri.records import Fired, Put, Record
from support.nets import Driver, aggregate_sum, counter, stream, tree


def test_a_state_survives_pickling_and_is_gone_on_from() -> None:
    net = tree(lambda n: [2 * n, 2 * n + 1] if n < 20 else [])
    first = Driver(NetFlow(net), workers=4)
    for _ in range(7):
        first.finish_one()
    first.fill()
    state = pickle.loads(pickle.dumps(first.flow.state()))
    second = Driver(NetFlow.resume(net, state), workers=4)
    assert second.flow.state() == state
    assert second.run().result == sum(range(1, 40))


def test_tasks_under_way_are_handed_out_again_first_and_under_their_numbers() -> None:
    net = stream(2)
    flow = NetFlow(net)
    flow.put("arrived", 1, 2, 3)
    tasks = [flow.next(), flow.next()]
    assert flow.extract(1).attempt == 1
    later = NetFlow.resume(net, flow.state())
    assert [later.next(), later.next(), later.next()] == [*tasks, None]
    assert later.extract(1).attempt == 2 and later.extract(2).attempt == 1
    assert later.extract(1).arguments == {"x": 1}


def test_steps_leave_no_record_and_tasks_leave_small_ones() -> None:
    records: list[Record] = []
    Driver(NetFlow(counter(5000), record=records.append)).run()
    assert records == []
    Driver(NetFlow(tree(lambda n: [n + 1] if n < 3 else []), record=records.append), workers=1).run()
    assert [type(record).__name__ for record in records] == ["Fired", "Extracted", "Injected"] * 5
    assert len(msgspec.msgpack.encode(records[0])) < 60


def test_a_bound_that_is_reached_is_recorded_so_that_it_can_be_repeated() -> None:
    records: list[Record] = []
    net = aggregate_sum(100)
    flow = NetFlow(net, record=records.append)
    assert flow.next(limit=30) is None and flow.is_busy
    assert flow.next(limit=30) is None
    assert [type(record).__name__ for record in records] == ["Stepped", "Stepped"]
    again = NetFlow.resume(net, records=records)
    assert again.state() == flow.state()


def test_records_repeat_a_run_with_a_seed() -> None:
    net = tree(lambda n: [2 * n, 2 * n + 1] if n < 20 else [])
    records: list[Record] = []
    driver = Driver(NetFlow(net, seed=5, record=records.append), seed=3)
    driver.run()
    again = NetFlow.resume(net, records=records, seed=5)
    assert again.next() is None  # steps behind the last record are fired anew
    assert again.state() == driver.flow.state()
    assert again.result == driver.flow.result


def test_records_that_another_net_wrote_are_refused() -> None:
    net, other = stream(1), Net("stream", keep_open=True)
    records: list[Record] = []
    flow = NetFlow(net, record=records.append)
    flow.put("arrived", 1)
    flow.next()
    other.foreach(other.place("arrived"), lambda x: x, name="cube")
    with pytest.raises(InputError, match="does not reproduce"):
        NetFlow.resume(other, records=records)
    with pytest.raises(InputError, match="Fired at look 0 of steps and 3 of tasks"):
        NetFlow.resume(net, records=[Fired(task=1, transition="square", steps=0, tasks=3)])


def test_a_state_of_another_net_is_refused() -> None:
    state = NetFlow(counter(3)).state()
    with pytest.raises(InputError, match="belongs to net 'counter', not to 'aggregate sum'"):
        NetFlow.resume(aggregate_sum(3), state)
    smaller = Net("counter")
    with pytest.raises(InputError, match="place 'number', which is not in net 'counter'"):
        NetFlow.resume(smaller, state)
    smaller.place("number")
    with pytest.raises(InputError, match="transition 'up', which is not in net 'counter'"):
        NetFlow.resume(smaller, state)


def test_failures_bars_and_what_was_set_aside_are_part_of_the_state() -> None:
    net = Net("n")
    a, bad = net.place("a", [1, 2]), net.place("bad", [0])
    net.task(name="work", x=take(a))(lambda x: None)
    net.step(name="divide", x=take(bad))(lambda x: 1 // x)
    flow = NetFlow(net)
    task = flow.next()
    assert task is not None
    flow.fail(task, "no")
    later = NetFlow.resume(net, flow.state())
    assert later.problems() == flow.problems() and len(later.problems()) == 2
    second = later.next()
    assert second is not None and later.extract(second).arguments == {"x": 2}
    later.inject(second, None)
    assert later.next() is None and later.is_finished and later.tokens(a) == [1]


def test_a_resumed_flow_chooses_the_tokens_that_the_first_would_have_chosen() -> None:
    net = Net("n", keep_open=True)
    a, b, out = net.place("a"), net.place("b"), net.place("out")
    fits = [(1, 3), (4, 2)]
    net.step(name="one", x=take(a), y=take(b), when=lambda x, y: (x, y) in fits, once=True, put=out)(
        lambda x, y: (x, y)
    )
    flow = NetFlow(net)
    for place, token in ((a, 1), (b, 2), (b, 3), (a, 4)):
        flow.put(place, token)
    later = NetFlow.resume(net, flow.state())
    for each_flow in (flow, later):
        assert each_flow.next() is None and each_flow.tokens(out) == [(1, 3)]


def test_a_resumed_flow_goes_on_with_the_transition_whose_turn_it_was() -> None:
    net = Net("n")
    for name in "abc":
        place = net.place(name, [0])
        net.step(name=name, x=take(place), put=place)(lambda x: x + 1)
    flow = NetFlow(net)
    flow.next(limit=1)
    later = NetFlow.resume(net, flow.state())
    later.next(limit=1)
    assert [later.tokens(name) for name in "abc"] == [[1], [1], [0]]


def test_every_kind_of_record_can_be_encoded() -> None:
    put = Put(place="a", values=(1, "x"), steps=3, tasks=4)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(put), type=Record) == put


def test_a_retry_is_repeated_from_its_record() -> None:
    net = stream(1)
    records: list[Record] = []
    flow = NetFlow(net, record=records.append)
    flow.put("arrived", 1)
    task = flow.next()
    assert task is not None
    flow.fail(task, "no")
    assert flow.next() is None
    flow.retry()
    assert flow.next() == task + 1
    flow.cancel(task + 1)
    flow.close()
    assert NetFlow.resume(net, records=records).state() == flow.state()
    assert [type(record).__name__ for record in records][-4:] == ["Retried", "Fired", "Cancelled", "Closed"]
