"""Matching of tokens: keys, guards over one and several places, and how often guards are evaluated."""

from __future__ import annotations

from typing import Any

from shoal.petri import Net, NetFlow, count, each, read, take
from shoal.petri.enabling import SerialList
from support.nets import run


def pairing(left: list[Any], right: list[Any]) -> tuple[Net, Any]:
    net = Net("pairs")
    a, b, out = net.place("a", left), net.place("b", right), net.place("out")

    def key(token: tuple[int, str]) -> int:
        return token[0]

    net.step(name="pair", x=take(a, key=key), y=take(b, key=key), put=out)(lambda x, y: (x[1], y[1]))
    return net, out


def test_tokens_with_equal_keys_meet() -> None:
    net, out = pairing([(1, "a1"), (2, "a2"), (3, "a3")], [(3, "b3"), (2, "b2"), (9, "b9")])
    flow = run(net)
    assert sorted(flow.tokens(out)) == [("a2", "b2"), ("a3", "b3")]
    assert flow.tokens("a") == [(1, "a1")] and flow.tokens("b") == [(9, "b9")]


def test_of_tokens_with_one_key_the_oldest_meet_first() -> None:
    net, out = pairing([(1, "first"), (1, "second")], [(1, "x"), (1, "y")])
    assert run(net).tokens(out) == [("first", "x"), ("second", "y")]


def test_three_places_join_by_key_and_a_fourth_is_free() -> None:
    net = Net("n")
    a, b, c = (net.place(name, order) for name, order in (("a", [1, 2, 3]), ("b", [3, 1, 2]), ("c", [2, 3, 1])))
    credits, out = net.place("credits", ["one", "two"]), net.place("out")
    net.step(
        name="join",
        x=take(a, key=abs),
        y=take(b, key=abs),
        z=take(c, key=abs),
        credit=take(credits),
        put=out,
    )(lambda x, y, z, credit: (x, y, z))
    flow = run(net)
    assert len(flow.tokens(out)) == 2 and all(x == y == z for x, y, z in flow.tokens(out))


def test_a_guard_over_a_key_join_and_a_read_place_sees_all_three() -> None:
    net = Net("n", keep_open=True)
    a, b, limit = net.place("a", range(10)), net.place("b", range(10)), net.place("limit", [6])
    out = net.place("out")
    net.step(
        name="join",
        x=take(a, key=abs),
        y=take(b, key=abs),
        most=read(limit),
        when=lambda x, y, most: x + y < most,
        put=out,
    )(lambda x, y, most: x)
    flow = NetFlow(net)
    flow.next()
    assert sorted(flow.tokens(out)) == [0, 1, 2]
    flow.put(limit, 12)
    flow.next()
    assert sorted(flow.tokens(out)) == [0, 1, 2, 3, 4, 5]


def test_a_guard_over_one_place_is_asked_once_for_each_token() -> None:
    net = Net("n", keep_open=True)
    a, out = net.place("a", range(100)), net.place("out")
    asked: list[int] = []

    def even(x: int) -> bool:
        asked.append(x)
        return x % 2 == 0

    net.step(name="even", x=take(a), when=even, put=out)(lambda x: x)
    flow = NetFlow(net)
    flow.next()
    for more in range(100, 200):
        flow.put(a, more)
        flow.next()
    assert asked == list(range(200))
    assert flow.tokens(out) == list(range(0, 200, 2)) and flow.tokens(a) == list(range(1, 200, 2))


def test_a_guard_over_two_places_is_asked_once_for_each_combination() -> None:
    net = Net("n", keep_open=True)
    a, b, out = net.place("a", range(20)), net.place("b", range(100, 110)), net.place("out")
    asked: list[tuple[int, int]] = []

    def fits(x: int, y: int) -> bool:
        asked.append((x, y))
        return x == y

    net.step(name="meet", x=take(a), y=take(b), when=fits, put=out)(lambda x, y: x)
    flow = NetFlow(net)
    flow.next()
    flow.put(b, 7)
    flow.next()
    flow.put(a, 105, 106)
    flow.next()
    assert flow.tokens(out) == [7, 105, 106]
    assert len(asked) == len(set(asked)) <= 22 * 11


def test_two_ports_of_one_place_get_different_tokens() -> None:
    net = Net("n")
    a, out = net.place("a", [1, 2, 3]), net.place("out")
    net.step(name="two", x=take(a), y=take(a), when=lambda x, y: x < y, put=out)(lambda x, y: (x, y))
    net.step(name="spare", x=take(a), when=lambda x: x > 99)(lambda x: None)
    flow = run(net)
    assert flow.tokens(out) == [(1, 2)] and flow.tokens(a) == [3]


def test_a_place_taken_from_and_read_by_one_transition_needs_two_tokens() -> None:
    net = Net("n")
    a, out = net.place("a", [1]), net.place("out")
    net.step(name="both", x=take(a), y=read(a), put=out)(lambda x, y: (x, y))
    flow = NetFlow(net)
    assert flow.next() is None and flow.tokens(out) == []
    flow = NetFlow(net)
    flow.put(a, 2)
    flow.next()
    (pair,) = flow.tokens(out)
    assert sorted(pair) == [1, 2] and len(flow.tokens(a)) == 1


def test_a_guard_over_a_token_and_a_count_is_asked_again_when_the_count_changes() -> None:
    net = Net("n")
    a, gate, out = net.place("a", [1, 2, 3, 4]), net.place("gate", ["g"] * 3), net.place("out")
    net.step(name="drain", g=take(gate), priority=-1)(lambda g: None)
    net.step(name="pass", x=take(a), left=count(gate), when=lambda x, left: x > left, put=out)(
        lambda x, left: (x, left)
    )
    flow = run(net)
    assert flow.tokens(out) == [(4, 3), (3, 2), (2, 1), (1, 0)]


def test_two_transitions_that_want_the_same_token_do_not_both_get_it() -> None:
    net = Net("n")
    a, left, right = net.place("a", range(10)), net.place("left"), net.place("right")
    net.step(name="left", x=take(a), put=left)(lambda x: x)
    net.step(name="right", x=take(a), put=right)(lambda x: x)
    flow = run(net)
    assert sorted(flow.tokens(left) + flow.tokens(right)) == list(range(10))
    assert len(flow.tokens(left)) == len(flow.tokens(right))


def test_what_was_found_but_taken_by_another_is_not_fired_with() -> None:
    net = Net("n")
    a, b, lock, out = net.place("a", [1, 2]), net.place("b", [1, 2]), net.place("lock"), net.place("out")
    net.step(name="meet", x=take(a), y=take(b), z=take(lock), when=lambda x, y: x == y, put=out)(lambda x, y, z: (x, y))
    net.step(name="thief", x=take(a), when=lambda x: x == 1, priority=1, once=True)(lambda x: {lock: each("kk")})
    flow = run(net)
    assert flow.tokens(out) == [(2, 2)] and flow.tokens(b) == [1]


def test_a_combination_that_only_reads_is_used_again_as_long_as_it_lives() -> None:
    net = Net("n")
    low, high, a, out = net.place("low", [1]), net.place("high", [5]), net.place("a", range(3)), net.place("out")
    net.step(name="s", i=read(low), j=read(high), x=take(a), when=lambda i, j: i < j, put=out)(lambda i, j, x: x)
    assert run(net).tokens(out) == [0, 1, 2]


def test_two_reads_of_one_place_see_different_tokens() -> None:
    net = Net("n", keep_open=True)
    a, out = net.place("a", [1]), net.place("out")
    net.step(name="both", x=read(a), y=read(a), once=True, put=out)(lambda x, y: {x, y})
    flow = NetFlow(net)
    assert flow.next() is None and flow.tokens(out) == []
    flow.put(a, 2)
    assert flow.next() is None and flow.tokens(out) == [{1, 2}]


def test_a_read_token_that_comes_last_is_combined_with_all_that_came_before() -> None:
    net = Net("n", keep_open=True)
    a, limit, out = net.place("a", range(10)), net.place("limit"), net.place("out")
    net.step(name="pass", x=take(a), most=read(limit), when=lambda x, most: x < most, put=out)(lambda x, most: x)
    flow = NetFlow(net)
    flow.put(limit, 7)
    flow.next()
    assert flow.tokens(out) == list(range(7))


def test_a_partner_is_found_by_key_after_a_thousand_others_have_come_and_gone() -> None:
    net, out = pairing([(number, "left") for number in range(-5, 0)], [])
    net.keep_open = True
    flow = NetFlow(net)
    for number in range(1000):
        flow.put("a", (number, "left"))
        flow.put("b", (number, "right"))
        flow.next()
    assert len(flow.tokens(out)) == 1000
    for number in range(-5, 0):
        flow.put("b", (number, "right"))
    flow.next()
    assert len(flow.tokens(out)) == 1005 and not flow.tokens("a")
    port: Any = flow._places["a"]
    assert sum(len(port.by_key) for port in port.ports) < 200


def test_a_listing_walks_over_a_dead_stretch_once() -> None:
    listing, alive = SerialList(), dict.fromkeys(range(1, 1001))
    for serial in alive:
        listing.append(serial)
    for serial in range(2, 1000):
        del alive[serial]
    values: dict[int, object] = dict(alive)
    assert list(listing.living(values)) == [1, 1000]
    assert listing.jump[0] == 999
    del values[1]
    assert list(listing.living(values)) == [1000]
    assert listing.head == 999


def test_a_port_without_a_server_does_not_remember_tokens_that_are_gone() -> None:
    net = Net("n", keep_open=True)
    a, never = net.place("a"), net.place("never")
    net.step(name="eat", x=take(a))(lambda x: None)
    net.step(name="wait", x=take(a), y=take(never))(lambda x, y: None)
    net.step(name="late", y=take(never), x=take(a))(lambda y, x: None)
    net.step(name="meet", x=take(a), y=take(never), when=lambda x, y: x == y)(lambda x, y: None)
    flow = NetFlow(net)
    for number in range(2000):
        flow.put(a, number)
        flow.next()
    place: Any = flow._places["a"]
    kept = [len(port.fresh) if hasattr(port, "fresh") else len(port.join._fresh) for port in place.ports]
    assert len(place) == 0 and max(kept) < 200
