"""Nets as users write them, run to their end with tasks that finish in many orders."""

from __future__ import annotations

import math

import pytest

from shoal.petri import Net, NetFlow, each, take
from support.nets import Driver, aggregate_sum, back_off, counter, knapsack, newton, run, stream, tree, word_count

ORDERS = range(5)


@pytest.mark.parametrize("seed", ORDERS)
def test_a_newton_loop_ends_when_its_data_say_so(seed: int) -> None:
    driver = Driver(NetFlow(newton(2.0, 1.0)), seed)
    flow = driver.run()
    assert isinstance(flow.result, float) and math.isclose(flow.result, math.sqrt(2))
    assert len(driver.log) == 4
    assert flow.is_finished and not flow.problems()


@pytest.mark.parametrize("seed", ORDERS)
def test_branch_and_bound_finds_the_best_in_any_order(seed: int) -> None:
    values, weights, room = [10, 7, 25, 24, 3, 9], [2, 1, 6, 5, 1, 3], 10
    packings = [[at for at in range(6) if packing >> at & 1] for packing in range(64)]
    fitting = [packing for packing in packings if sum(weights[at] for at in packing) <= room]
    best = max(sum(values[at] for at in packing) for packing in fitting)
    assert run(knapsack(values, weights, room, target=1000), seed).result == best


@pytest.mark.parametrize("seed", ORDERS)
def test_branch_and_bound_stops_early_and_ignores_what_still_runs(seed: int) -> None:
    values, weights = list(range(1, 11)), [1] * 10
    full = Driver(NetFlow(knapsack(values, weights, 5, target=1000)), seed, workers=4)
    early = Driver(NetFlow(knapsack(values, weights, 5, target=15)), seed, workers=4)
    assert full.run().result == 40
    result = early.run().result
    assert isinstance(result, int) and result >= 15
    assert len(early.log) < len(full.log)
    assert early.flow.is_finished and not early.flow.in_flight() and early.flow.tokens("todo")


@pytest.mark.parametrize("seed", ORDERS)
def test_a_tree_is_reduced_only_after_its_last_node_was_expanded(seed: int) -> None:
    driver = Driver(NetFlow(tree(lambda n: [n * 2 + kid for kid in range(n % 4)] if n < 60 else [])), seed, workers=5)
    flow = driver.run()
    names = [name for name, _ in driver.log]
    expanded = [arguments["node"] for name, arguments in driver.log if name == "expand"]
    assert flow.result == sum(expanded) and len(expanded) > 5
    assert names == ["expand"] * len(expanded) + ["add"] * (len(expanded) - 1)


@pytest.mark.parametrize("seed", ORDERS)
def test_a_stream_fed_from_outside_never_exceeds_its_credits(seed: int) -> None:
    flow = NetFlow(stream(3))
    driver = Driver(flow, seed, workers=16)
    for number in range(40):
        flow.put("arrived", number)
        if number % 3 == 0:
            driver.finish_one()
    driver.run()
    assert driver.most == 3
    assert sorted(flow.tokens("done")) == [number * number for number in range(40)]
    assert not flow.is_finished
    flow.close()
    assert flow.is_finished


@pytest.mark.parametrize("seed", ORDERS)
def test_map_and_reduce_with_as_many_parts_as_the_data_have(seed: int) -> None:
    text = "a rose is a rose is a rose and so is a daisy"
    flow = run(word_count(4, text), seed)
    assert dict(flow.tokens("pairs")) == {word: text.split().count(word) for word in text.split()}


def test_a_retry_waits_longer_each_time_and_succeeds() -> None:
    driver = Driver(NetFlow(back_off(failures=3, tries=10)))
    flow = driver.run()
    delays = [arguments["call"][1] for name, arguments in driver.log if name == "delay"]
    assert delays == [2, 4, 8]
    assert flow.tokens("done") == [(3, 8)] and not flow.tokens("lost")


def test_a_retry_gives_up_after_its_last_try() -> None:
    driver = Driver(NetFlow(back_off(failures=99, tries=3)))
    assert driver.run().tokens("lost") == ["no answer"]
    assert [name for name, _ in driver.log].count("fetch") == 3


def test_a_task_of_several_implementations_keeps_them_for_the_driver() -> None:
    net = Net("render")
    scenes, images = net.place("scenes", ["s1", "s2"]), net.place("images")
    ways = {"cpu": lambda scene: f"cpu {scene}", "gpu": lambda scene: f"gpu {scene}"}
    net.task(name="render", scene=take(scenes), put=images, implementations=ways, gpus=1)
    flow = NetFlow(net)
    for kind in ("gpu", "cpu"):
        number = flow.next()
        assert number is not None
        task = flow.extract(number)
        chosen = dict(task.transition.implementations)[kind]
        flow.inject(number, chosen(**task.arguments))
    assert flow.tokens(images) == ["gpu s1", "cpu s2"]
    assert net.transitions["render"].profile.resources.names() == ["cores", "gpus"]


def test_counting_and_adding_up_need_no_task() -> None:
    assert run(counter(1000)).tokens("number") == [1000]
    flow = run(aggregate_sum(1000))
    assert flow.tokens("sum") == [499_500] and not flow.tokens("values")


def test_a_sub_net_is_a_function_that_is_used_twice() -> None:
    def halve(net: Net, source: object, out: object) -> None:
        rest = net.place("rest")
        net.step(name="halve", n=take(source), put=rest)(lambda n: n // 2)  # type: ignore[arg-type]
        net.step(name="pass", n=take(rest), put=out)(lambda n: n)

    net = Net("twice")
    begin, middle, end = net.place("begin", [40, 60]), net.place("middle"), net.place("end")
    halve(net.sub("first"), begin, middle)
    halve(net.sub("second"), middle, end)
    assert run(net).tokens(end) == [10, 15]
    assert list(net.transitions) == ["first.halve", "first.pass", "second.halve", "second.pass"]
    assert "second.rest" in net.places


def test_a_barrier_holds_tokens_back_while_anything_is_before_it() -> None:
    net = Net("barrier")
    parts, results = net.place("parts", [1, 2, 3]), net.place("results")
    net.foreach(parts, lambda part: part * 10, results, name="work")
    out = net.barrier(results, after=parts)
    flow = NetFlow(net)
    tasks = [flow.next(), flow.next(), flow.next()]
    for number, task in enumerate(tasks):
        assert task is not None
        assert flow.tokens(out) == []
        flow.inject(task, number)
        assert flow.next() is None
    assert sorted(flow.tokens(out)) == [0, 1, 2]


def test_one_loop_takes_each_of_its_tokens_round_as_often_as_that_one_needs() -> None:
    net = Net("collatz")
    numbers = net.place("numbers", [(n, 0) for n in (6, 7, 27)])

    def collatz(pair: tuple[int, int]) -> tuple[int, int]:
        n, length = pair
        return (n // 2 if n % 2 == 0 else 3 * n + 1, length + 1)

    out = net.loop(numbers, collatz, while_=lambda pair: pair[0] != 1, step=True)
    assert run(net).tokens(out) == [(1, 8), (1, 16), (1, 111)]


def test_each_and_a_single_token_may_go_to_several_places_at_once() -> None:
    net = Net("fan")
    begin, left, right = net.place("begin", [3]), net.place("left"), net.place("right")
    net.step(name="split", n=take(begin))(lambda n: {left: each(range(n)), right: n})
    flow = run(net)
    assert flow.tokens(left) == [0, 1, 2] and flow.tokens(right) == [3]
