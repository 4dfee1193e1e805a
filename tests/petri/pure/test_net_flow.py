"""The engine of nets: what fires when, what a task takes and gives, and what becomes of failures."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from shoal.errors import InputError
from shoal.petri import NOTHING, Failure, Net, NetFlow, count, each, read, take
from support.nets import Driver, run


def next_task(flow: NetFlow) -> int:
    task = flow.next()
    assert task is not None
    return task


def doubling(**options: Any) -> tuple[Net, NetFlow]:
    """Three numbers to be doubled by tasks."""
    net = Net("doubling")
    numbers, doubled = net.place("numbers", [1, 2, 3]), net.place("doubled", type=int)
    net.task(name="double", x=take(numbers), put=doubled, **options)(lambda x: 2 * x)
    return net, NetFlow(net)


def test_tokens_leave_when_a_task_fires_and_outputs_appear_when_it_is_injected() -> None:
    _, flow = doubling()
    task = next_task(flow)
    assert flow.tokens("numbers") == [2, 3] and flow.counts() == {"numbers": 2, "doubled": 0}
    assert flow.extract(task).arguments == {"x": 1}
    assert flow.tokens("doubled") == []
    followed = flow.inject(task, 2)
    assert followed.ready and not followed.ignored
    assert flow.tokens("doubled") == [2]


def test_a_result_counts_once_and_only_for_the_latest_attempt() -> None:
    _, flow = doubling()
    task = next_task(flow)
    assert flow.extract(task).attempt == 1
    assert flow.extract(task).attempt == 2
    flow.inject(task, 5, attempt=1)
    assert flow.tokens("doubled") == []
    flow.inject(task, 2, attempt=2)
    flow.inject(task, 2, attempt=2)
    assert flow.tokens("doubled") == [2]


def test_a_failed_task_returns_its_tokens_and_is_not_tried_again_by_itself() -> None:
    _, flow = doubling()
    flow.fail(next_task(flow), "it broke")
    assert flow.tokens("numbers") == [2, 3, 1]
    driver = Driver(flow)
    driver.run()
    assert flow.tokens("numbers") == [1] and sorted(flow.tokens("doubled")) == [4, 6]
    assert flow.is_finished and flow.problems() == ["it broke"]
    flow.retry()
    assert not flow.is_finished and not flow.problems()
    driver.run()
    assert sorted(flow.tokens("doubled")) == [2, 4, 6]


def test_another_transition_may_take_the_tokens_of_a_failed_task() -> None:
    net = Net("n")
    todo, rest = net.place("todo", [1, 2]), net.place("rest")
    net.task(name="work", x=take(todo), priority=1)(lambda x: None)
    net.task(name="other", x=take(todo), put=rest)(lambda x: x)
    flow = NetFlow(net)
    first, second = next_task(flow), next_task(flow)
    flow.inject(second, None)
    flow.fail(first, "no")
    third = flow.extract(next_task(flow))
    assert third.transition.name == "other" and third.arguments == {"x": 1}


def test_on_error_gets_a_token_that_tells_what_failed() -> None:
    net = Net("n")
    todo, errors = net.place("todo", [5]), net.place("errors", type=Failure)
    net.task(name="work", x=take(todo), on_error=errors)(lambda x: None)
    flow = NetFlow(net)
    flow.fail(next_task(flow), "no")
    assert flow.tokens(errors) == [Failure("work", "no", {"x": 5})]
    assert flow.next() is None
    assert not flow.problems() and flow.is_finished


def test_a_result_that_names_an_unknown_place_fails_the_task_and_delivers_nothing() -> None:
    net = Net("n")
    todo, done = net.place("todo", [5]), net.place("done")
    net.task(name="work", x=take(todo))(lambda x: None)
    flow = NetFlow(net)
    followed = flow.inject(next_task(flow), {done: 1, "nowhere": 2})
    assert "'work'" in followed.message and "'nowhere'" in followed.message
    assert flow.tokens(done) == [] and flow.tokens(todo) == [5]


def test_a_result_of_the_wrong_type_names_place_type_and_value() -> None:
    _, flow = doubling()
    followed = flow.inject(next_task(flow), "two")
    for part in ("'doubled'", "int", "'two'"):
        assert part in followed.message


def test_a_result_that_is_no_mapping_is_refused() -> None:
    net = Net("n")
    todo = net.place("todo", [5])
    net.task(name="work", x=take(todo))(lambda x: x)
    flow = NetFlow(net)
    assert "names no place" in flow.inject(next_task(flow), 7).message


def test_a_token_of_the_wrong_type_from_outside_is_refused_and_changes_nothing() -> None:
    _, flow = doubling()
    with pytest.raises(InputError, match="'doubled' takes tokens of type int, not 'x' of type str"):
        flow.put("doubled", 1, "x")
    assert flow.tokens("doubled") == []
    with pytest.raises(InputError, match="'nowhere'"):
        flow.put("nowhere", 1)
    with pytest.raises(InputError, match="'nowhere'"):
        flow.tokens("nowhere")


def test_a_copy_of_a_place_that_has_travelled_still_names_it() -> None:
    net = Net("n")
    todo, done = net.place("todo", [5]), net.place("done")
    net.task(name="work", x=take(todo))(lambda x: None)
    flow = NetFlow(net)
    flow.inject(next_task(flow), {pickle.loads(pickle.dumps(done)): each([1, 2])})
    assert flow.tokens(done) == [1, 2]


def test_a_step_that_raises_is_set_aside_and_the_rest_goes_on() -> None:
    net = Net("n")
    bad, good, out = net.place("bad", [0, 1]), net.place("good", [1, 2]), net.place("out")
    net.step(name="divide", x=take(bad), put=out)(lambda x: 1 // x)
    net.step(name="copy", x=take(good), put=out)(lambda x: x)
    flow = run(net)
    assert flow.tokens(out) == [1, 2] and sorted(flow.tokens(bad)) == [0, 1]
    assert list(flow.state().set_aside) == ["divide"]
    (sentence,) = flow.problems()
    for part in ("net 'n'", "step 'divide'", "ZeroDivisionError"):
        assert part in sentence
    assert flow.is_finished


def test_a_guard_that_raises_sets_its_transition_aside_and_loses_no_token() -> None:
    net = Net("n")
    words, out = net.place("words", ["a", 3, "b"]), net.place("out")
    net.task(name="upper", w=take(words), when=lambda w: w.islower(), put=out)(lambda w: w.upper())
    flow = run(net)
    assert flow.tokens(out) == ["A"] and flow.tokens(words) == [3, "b"]
    assert "guard" in flow.problems()[0] and "AttributeError" in flow.problems()[0]


def test_count_includes_what_tasks_have_taken() -> None:
    net = Net("n")
    todo, idle = net.place("todo", [1, 2]), net.place("idle", ["token"])
    seen: list[int] = []
    net.task(name="work", x=take(todo))(lambda x: None)

    @net.step(t=take(idle), left=count(todo), when=lambda left: left == 0)
    def end(t: str, left: int) -> None:
        seen.append(left)

    flow = NetFlow(net)
    first, second = next_task(flow), next_task(flow)
    assert flow.next() is None and flow.tokens(todo) == [] and flow.tokens(idle) == ["token"]
    flow.inject(first, None)
    assert flow.next() is None and not seen
    flow.inject(second, None)
    assert flow.next() is None and seen == [0]


def test_the_highest_priority_fires_first() -> None:
    net = Net("n")
    order: list[str] = []
    for name, priority in (("low", -1), ("middle", 0), ("high", 7)):
        place = net.place(name, [1, 2])
        net.step(name=name, x=take(place), priority=priority)(lambda x, name=name: order.append(name))
    run(net)
    assert order == ["high", "high", "middle", "middle", "low", "low"]


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_no_transition_starves_behind_others_of_its_priority(seed: int | None) -> None:
    net = Net("n")
    fired = dict.fromkeys("abc", 0)
    for name in fired:
        place = net.place(name, [0])

        def endless(x: int, name: str = name, place: object = place) -> object:
            fired[name] += 1
            return {place: x + 1}

        net.step(name=name, x=take(place))(endless)
    flow = NetFlow(net, seed)
    assert flow.next(limit=300) is None and flow.is_busy
    assert min(fired.values()) >= (100 if seed is None else 60)


def test_an_endless_loop_of_steps_can_be_interrupted_and_does_not_starve_tasks() -> None:
    net = Net("n")
    number, todo = net.place("number", [0]), net.place("todo", [1])
    net.step(name="up", n=take(number), put=number)(lambda n: n + 1)
    net.task(name="work", x=take(todo))(lambda x: None)
    flow = NetFlow(net)
    assert flow.next(limit=50) is not None
    assert flow.next(limit=50) is None
    assert flow.is_busy and flow.tokens(number) == [100]


def test_once_means_once() -> None:
    net = Net("n")
    a, out = net.place("a", [1, 2, 3]), net.place("out")
    net.step(name="first", x=take(a), once=True, put=out)(lambda x: x)
    assert run(net).tokens(out) == [1]


def test_a_result_ends_the_net_and_what_runs_is_ignored() -> None:
    net = Net("n")
    todo, stop = net.place("todo", [1, 2, 3]), net.place("stop")
    net.task(name="work", x=take(todo))(lambda x: None)
    net.step(name="end", s=take(stop))(lambda s: net.result(s))
    flow = NetFlow(net)
    first, second = next_task(flow), next_task(flow)
    followed = flow.inject(first, {stop: "answer"})
    assert followed.ignored == () and flow.next() is None
    assert flow.take_ignored() == (second,)
    assert flow.is_finished and flow.result == "answer"
    flow.inject(second, {stop: "late"})
    assert flow.tokens(stop) == [] and flow.result == "answer"
    with pytest.raises(InputError, match="over"):
        flow.put(stop, 1)


def test_the_first_result_counts() -> None:
    net = Net("n")
    a = net.place("a", [1])
    net.step(name="two", x=take(a))(lambda x: (net.result("first"), net.result("second")))
    assert run(net).result == "first"


def test_eureka_ignores_a_group_and_closes_it() -> None:
    net = Net("n")
    todo, other, found = net.place("todo", [1, 2, 3]), net.place("other", [4]), net.place("found")
    net.task(name="search", x=take(todo), group="search")(lambda x: None)
    net.task(name="log", x=take(other))(lambda x: None)
    flow = NetFlow(net)
    tasks = {flow.extract(t).arguments["x"]: t for t in (next_task(flow), next_task(flow), next_task(flow))}
    searching = [task for x, task in tasks.items() if x != 4]
    followed = flow.inject(searching[0], ({found: "yes"}, net.eureka("search")))
    assert followed.ignored == (searching[1],)
    assert flow.in_flight() == [tasks[4]] and flow.tokens(found) == ["yes"]
    assert flow.next() is None and flow.tokens(todo) == [3]


def test_eureka_again_lets_the_group_go_on() -> None:
    net = Net("n")
    todo = net.place("todo", [1, 2, 3])
    net.task(name="search", x=take(todo), group="search")(lambda x: None)
    flow = NetFlow(net)
    first, second = next_task(flow), next_task(flow)
    assert flow.inject(first, net.eureka("search", again=True)).ignored == (second,)
    assert flow.extract(next_task(flow)).arguments == {"x": 3}


def test_a_window_opens_again_however_its_task_ends() -> None:
    net = Net("n")
    todo, errors = net.place("todo", [1, 2, 3, 4, 5]), net.place("errors")
    window = net.window(1)
    net.task(name="a", x=take(todo), within=window, group="g", when=lambda x: x != 3)(lambda x: None)
    net.task(name="b", x=take(todo), within=window, on_error=errors, when=lambda x: x == 3)(lambda x: None)
    flow = NetFlow(net)
    one = next_task(flow)
    assert flow.next() is None and flow.tokens(window) == []
    flow.inject(one, None)
    flow.fail(next_task(flow), "no")
    flow.fail(next_task(flow), "no")
    flow.cancel(next_task(flow))
    assert flow.tokens(window) == [0]
    flow.inject(next_task(flow), net.eureka("g"))
    assert flow.tokens(window) == [0] and flow.next() is None and flow.is_finished


def test_a_command_is_written_from_its_ports_and_gives_the_token_it_is_given() -> None:
    net = Net("n")
    names, images = net.place("names", ["a", "b"]), net.place("images")
    net.task(name="convert", item=take(names), command="convert {item}.ppm {item}.png", gives="{item}.png", put=images)
    driver = Driver(NetFlow(net))
    flow = NetFlow(net)
    assert flow.extract(next_task(flow)).command_line() == "convert a.ppm a.png"
    assert sorted(driver.run().tokens(images)) == ["a.png", "b.png"]


def test_a_command_that_cannot_be_written_is_one_sentence() -> None:
    net = Net("n")
    names = net.place("names", ["a"])
    net.task(name="convert", item=take(names), command="convert {item.path}")
    flow = NetFlow(net)
    with pytest.raises(InputError, match=r"the command of the task 'convert' failed with AttributeError: .*'path'"):
        flow.extract(next_task(flow)).command_line()


def test_an_eureka_for_a_group_that_does_not_exist_fails_its_task() -> None:
    _, flow = doubling(group="search")
    message = flow.inject(next_task(flow), Net.eureka("serach")).message
    assert "'serach'" in message and "groups are search" in message


def test_a_command_that_is_a_function_must_give_text() -> None:
    net = Net("n")
    names = net.place("names", ["a"])
    net.task(name="convert", item=take(names), command=lambda item: 5)
    flow = NetFlow(net)
    with pytest.raises(InputError, match="is 5, not text"):
        flow.extract(next_task(flow)).command_line()


def test_nothing_means_no_token_and_none_is_a_token_with_put() -> None:
    net = Net("n")
    a, out = net.place("a", [1, 2, 3]), net.place("out")
    net.step(name="odd", x=take(a), put=out)(lambda x: NOTHING if x == 2 else None)
    assert run(net).tokens(out) == [None, None]


def test_functions_with_keyword_only_parameters_are_called_by_name() -> None:
    net = Net("n")
    a, b, out = net.place("a", [1]), net.place("b", [2]), net.place("out")

    @net.step(y=take(b), x=take(a), put=out)
    def pair(*, x: int, y: int) -> tuple[int, int]:
        return x, y

    assert run(net).tokens(out) == [(1, 2)]


def test_a_read_token_stays_and_may_be_read_by_many() -> None:
    net = Net("n")
    factor, a, out = net.place("factor", [10]), net.place("a", [1, 2, 3]), net.place("out")
    net.step(name="scale", f=read(factor), x=take(a), put=out)(lambda f, x: f * x)
    flow = run(net)
    assert flow.tokens(out) == [10, 20, 30] and flow.tokens(factor) == [10]


def test_the_same_seed_gives_the_same_order_and_another_seed_another() -> None:
    def order(seed: int | None) -> list[str]:
        net = Net("n")
        fired: list[str] = []
        for name in "abcdefgh":
            place = net.place(name, [1, 2])
            net.step(name=name, x=take(place))(lambda x, name=name: fired.append(name))
        Driver(NetFlow(net, seed)).run()
        return fired

    assert order(1) == order(1)
    assert order(1) != order(2)
    assert order(None) == list("abcdefgh") * 2
