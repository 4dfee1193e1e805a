"""Nets with misbehaving user objects, and error messages for invalid options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shoal.errors import InputError
from shoal.petri import Net, NetFlow, take
from shoal.petri.transition import meant
from shoal.resources.machine import machine
from shoal.resources.manager import ResourceManager
from shoal.schedulers import co_allocation
from shoal.sim.worker_pool import Pool


class Rude:
    """Says nothing of itself."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


class Sneaky(dict[object, object]):
    """A mapping that cannot be looked through."""

    def items(self) -> Any:
        raise OSError("not today")


def net_of(type: Any = None, **words: Any) -> Net:
    net = Net("n")
    todo, done = net.place("todo", [1]), net.place("done", type=type)
    words = {"put": done, **words}
    net.task(name="work", x=take(todo), **words)(lambda x: x)
    return net


def injected(net: Net, result: object) -> list[str]:
    flow = NetFlow(net)
    task = flow.next()
    assert task is not None
    flow.extract(task)
    flow.inject(task, result)
    return flow.problems()


def test_a_token_that_fits_none_of_the_types_of_a_union_fails_its_task() -> None:
    (problem,) = injected(net_of(int | None), "text")
    assert "takes tokens of type int | None, not 'text' of type str" in problem


def test_a_token_that_cannot_be_shown_fails_only_its_task() -> None:
    (problem,) = injected(net_of(int), Rude())
    assert "takes tokens of type int, not <" in problem and "of type Rude" in problem


def test_whatever_a_result_raises_when_it_is_looked_at_fails_its_task() -> None:
    (problem,) = injected(net_of(put=None), Sneaky(a=1))
    assert problem == "net 'n': the result of the task 'work' failed with OSError: not today"


def generate(x: int) -> Iterator[int]:
    yield x


async def wait_for(x: int) -> int:
    return x


@pytest.mark.parametrize(
    ("declare", "sentence"),
    [
        (lambda: net_of(prefers=5), "prefers= must be a name or label of machines, or a list, not 5"),
        (lambda: net_of(prefers=[5]), "prefers= must be a name or label of machines, or a list, not [5]"),
        (lambda: NetFlow(net_of(), "x"), "a seed must be a 64-bit integer, not 'x'"),  # type: ignore[arg-type]
        (lambda: NetFlow(net_of(), 1 << 64), "a seed must be a 64-bit integer"),
        (lambda: Net("n").task(once=True)(generate), "its function is a generator, which cannot be sent"),
        (lambda: Net("n").task(once=True)(wait_for), "its function is a coroutine, which is not supported"),
        (lambda: Net("n").task(once=True, implementations={"cpu": generate}), "is a generator"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence(declare: Callable[[], object], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        declare()
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("word", "option"),
    [
        ("retrys", "retries"),
        ("retry", "retries"),
        ("time_out", "timeout"),
        ("core", "cores"),
        ("enviroment", "environ"),
    ],
)
def test_an_unknown_resource_may_be_an_option_written_wrong(word: str, option: str) -> None:
    assert f"{word}= is not an option" in meant([word]) and f"did you mean {option}" in meant([word])


def test_resources_that_look_like_no_option_are_not_commented_on() -> None:
    assert meant(["cores", "licence", "socket", "turbo", "fpga"]) == ""


def test_a_scheduler_says_which_option_was_perhaps_meant() -> None:
    flow = NetFlow(net_of(retrys=3))
    steward = ResourceManager([machine("a", cores=1)])
    Pool(co_allocation(flow, steward)).run()
    (problem,) = flow.problems()
    assert "can never be granted" in problem and "did you mean retries=?" in problem
