"""Building a net: what is accepted, and the one sentence for what is not."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from shoal.core.resources import Resources
from shoal.errors import InputError
from shoal.petri import NOTHING, Net, Place, count, each, eureka, read, result, take


def small() -> tuple[Net, Place, Place]:
    net = Net("n")
    return net, net.place("a", [1]), net.place("b", type=int)


def refuse(build: Callable[[Net, Place, Place], Any], *parts: str) -> None:
    with pytest.raises(InputError) as caught:
        build(*small())
    sentence = str(caught.value)
    assert "\n" not in sentence
    for part in parts:
        assert part in sentence


BAD: list[tuple[Callable[[Net, Place, Place], Any], tuple[str, ...]]] = [
    (lambda n, a, b: n.place("a"), ("two places named 'a'",)),
    (lambda n, a, b: n.place(""), ("the name of a place must be text",)),
    (lambda n, a, b: n.place("c", 5), ("initial tokens", "'c'", "5")),  # type: ignore[arg-type]
    (lambda n, a, b: n.place("c", type=5), ("type of the place 'c'", "not a class")),  # type: ignore[arg-type]
    (lambda n, a, b: n.place("c", ["x"], type=int), ("'c'", "type int", "'x'", "type str")),
    (lambda n, a, b: take("a"), ("take needs a place", "'a'")),  # type: ignore[arg-type]
    (lambda n, a, b: take(a, key="word"), ("key of take(a)", "'word'")),  # type: ignore[arg-type]
    (lambda n, a, b: n.step(y=take(a))(lambda x: None), ("port 'y'", "not a parameter")),
    (lambda n, a, b: n.step(x=take(a))(lambda x, y: None), ("no port for the parameter 'y'",)),
    (lambda n, a, b: n.step(x=a)(lambda x: None), ("the place 'a' as its port 'x'", "take(a)")),
    (lambda n, a, b: n.step(x=take(a), cores=1)(lambda x: None), ("cores=1", "neither a port nor an option")),
    (lambda n, a, b: n.step(x=read(a))(lambda x: None), ("takes no token", "once=True")),
    (lambda n, a, b: n.step(x=count(a))(lambda x: None), ("takes no token",)),
    (lambda n, a, b: n.step(x=take(a, key=abs))(lambda x: None), ("key= at only one port",)),
    (lambda n, a, b: n.step(x=take(a), when=3)(lambda x: None), ("when=", "3")),
    (lambda n, a, b: n.step(x=take(a), when=lambda y: y)(lambda x: None), ("guard refers to 'y'", "ports are x")),
    (lambda n, a, b: n.step(x=take(a), when=lambda: True)(lambda x: None), ("at least one port",)),
    (lambda n, a, b: n.step(x=take(a), priority="high")(lambda x: None), ("priority=", "'high'")),
    (lambda n, a, b: n.step(x=take(a), once=1)(lambda x: None), ("once=",)),
    (lambda n, a, b: n.step(x=take(a), put="b")(lambda x: None), ("put= must be a place",)),
    (lambda n, a, b: n.step(x=take(a))(7), ("7",)),  # type: ignore[type-var]
    (lambda n, a, b: n.task(x=take(a), retries=-1)(lambda x: None), ("retries=", "-1")),
    (lambda n, a, b: n.task(x=take(a), timeout=0)(lambda x: None), ("timeout=",)),
    (lambda n, a, b: n.task(x=take(a), memory="lots")(lambda x: None), ("memory", "'lots'")),
    (lambda n, a, b: n.task(x=take(a), colour=[1])(lambda x: None), ("colour=[1]", "options of a task")),
    (lambda n, a, b: n.task(x=take(a), environment={"A": 1})(lambda x: None), ("environment=",)),
    (lambda n, a, b: n.task(x=take(a), on_error=b)(lambda x: None), ("'b'", "type int", "Failure")),
    (lambda n, a, b: n.task(x=take(a), command=5), ("command=", "5")),
    (lambda n, a, b: n.task(x=take(a), command="cat {x}")(lambda x: None), ("'cat'", "command= and a function")),
    (lambda n, a, b: n.task(x=take(a), command="cat {y}"), ("command=", "'y'", "ports are x")),
    (lambda n, a, b: n.task(x=take(a), command="awk '{print}"), ("command=", "'print'", "{{")),
    (lambda n, a, b: n.task(x=take(a), command="cat {x"), ("not a format string", "{{")),
    (lambda n, a, b: n.task(x=take(a), command="cat", gives=lambda y: y), ("gives=", "'y'")),
    (lambda n, a, b: n.task(x=take(a), implementations={}), ("implementations=",)),
    (lambda n, a, b: n.task(x=take(a), implementations={"cpu": 5}), ("'cpu'", "must be a function")),
    (
        lambda n, a, b: n.task(x=take(a), name="t", implementations={"cpu": lambda x: 1, "gpu": lambda y: 1}),
        ("'t'", "'gpu'", "port 'x'"),
    ),
    (lambda n, a, b: n.task(x=take(Place("other", "a")))(lambda x: None), ("place 'a'", "does not have")),
    (lambda n, a, b: n.task(x=take(Place("n", "z")))(lambda x: None), ("place 'z'", "places are a, b")),
    (lambda n, a, b: n.window(0), ("size of window", "must be at least 1")),
    (lambda n, a, b: n.barrier(a, after=[]), ("has no place to wait for",)),
    (lambda n, a, b: n.foreach(a, lambda: 1, name="f"), ("no parameter",)),
    (lambda n, a, b: n.loop(a, lambda x: x, while_=True, name="l"), ("while_=", "'l'")),  # type: ignore[arg-type]
    (lambda n, a, b: n.loop(a, lambda x: x, while_=bool, name="l", when=bool), ("'l'", "when=")),
    (lambda n, a, b: n.foreach(a, lambda x: x, name="f", command="c"), ("'f'", "command=")),
    (lambda n, a, b: n.sub(""), ("prefix",)),
    (lambda n, a, b: Net(""), ("the name of a net must be text",)),
    (lambda n, a, b: eureka(""), ("names of groups",)),
    (lambda n, a, b: eureka(3), ("names of groups",)),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("build", "parts"), BAD)
def test_what_cannot_work_is_refused_with_one_sentence(
    build: Callable[[Net, Place, Place], Any], parts: tuple[str, ...]
) -> None:
    refuse(build, *parts)


def test_two_transitions_of_one_name_are_refused() -> None:
    net, a, _ = small()
    net.step(x=take(a), name="s")(lambda x: None)
    with pytest.raises(InputError, match="two transitions named 's'"):
        net.step(x=take(a), name="s")(lambda x: None)


def test_a_port_may_be_called_as_an_option_is() -> None:
    net, a, b = small()

    @net.step(priority=take(a), put=b)
    def copy(priority: int) -> int:
        return priority

    assert net.transitions["copy"].port_names == ("priority",)
    assert net.transitions["copy"].priority == 0


def test_a_decorated_function_stays_a_function() -> None:
    net, a, _ = small()

    @net.task(x=take(a))
    def double(x: int) -> int:
        return 2 * x

    assert double(4) == 8


def test_ports_are_ordered_as_the_parameters_of_the_function() -> None:
    net, a, b = small()

    @net.task(y=take(b), x=take(a))
    def late(x: int, y: int, z: int = 0) -> None: ...

    assert net.transitions["late"].port_names == ("x", "y")


def test_what_a_task_asks_for_is_kept_for_the_driver() -> None:
    net, a, _ = small()

    @net.task(x=take(a), cores=2, memory="1G", licence=1, category="c", retries=3, timeout=5, group="g", prefers="ssd")
    def heavy(x: int) -> None: ...

    spec = net.transitions["heavy"]
    assert spec.profile.resources == Resources.parse({"cores": 2, "memory": "1G", "licence": 1})
    assert (spec.profile.category, spec.profile.retries, spec.profile.timeout) == ("c", 3, 5)
    assert (spec.group, spec.profile.cores_declared, spec.profile.prefers) == ("g", True, ("ssd",))


def test_a_task_that_asks_for_nothing_gets_a_core_and_its_name_as_category() -> None:
    net, a, _ = small()
    net.task(x=take(a), name="plain")(lambda x: None)
    assert net.transitions["plain"].profile.category == "plain"
    assert net.transitions["plain"].profile.resources == Resources.parse({"cores": 1})


def test_words_survive_travelling() -> None:
    _, a, _ = small()
    assert pickle.loads(pickle.dumps(NOTHING)) is NOTHING
    assert pickle.loads(pickle.dumps(each([1, 2]))).values == (1, 2)
    assert pickle.loads(pickle.dumps(result(3))) == result(3)
    assert pickle.loads(pickle.dumps(eureka("g"))) == eureka("g")
    assert pickle.loads(pickle.dumps(a)).name == "a"
