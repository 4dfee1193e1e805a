"""Tasks of nets on an executor: the variables and directory that they declare, and what is asked for all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.errors import InputError
from shoal.execution.executor.options import CallOptions
from shoal.execution.nets.driver import options_of
from shoal.execution.nets.run import NetFailed, start
from shoal.petri import Net, take

PATIENCE = 60.0


@pytest.fixture(scope="module")
def executor() -> Iterator[shoal.Executor]:
    with shoal.Executor(1) as found:
        yield found


def one_task(function: Any, *tokens: object, type: Any = None, **words: Any) -> Net:
    net = Net("one")
    todo, done = net.place("todo", tokens), net.place("done", type=type)
    net.task(name="work", x=take(todo), put=done, **words)(function)
    return net


def test_functions_run_with_the_variables_and_in_the_directory_of_their_task(
    executor: shoal.Executor, tmp_path: Path
) -> None:
    def look(x: int) -> tuple[str | None, str]:
        return os.environ.get("SHOAL_TEST_WORD"), os.getcwd()

    placed = executor.start(one_task(look, 1, environment={"SHOAL_TEST_WORD": "bar"}, directory=str(tmp_path)))
    assert placed.wait(PATIENCE) and placed.tokens("done") == [("bar", str(tmp_path))]
    plain = executor.start(one_task(look, 1))
    assert plain.wait(PATIENCE) and plain.tokens("done") == [(None, os.getcwd())]


def test_a_net_whose_tasks_all_return_what_fits_no_place_comes_to_its_end(executor: shoal.Executor) -> None:
    run = executor.start(one_task(lambda x: "text", 1, 2, 3, 4, type=int | None))
    assert run.wait(PATIENCE)
    with pytest.raises(NetFailed, match="the place 'done' takes tokens of type"):
        run.result()


def test_a_task_that_returns_a_generator_says_so(executor: shoal.Executor) -> None:
    run = executor.start(one_task(lambda x: (each for each in range(x)), 1))
    assert run.wait(PATIENCE)
    with pytest.raises(NetFailed, match="it returned a generator, which cannot be sent; return a list"):
        run.result()


def test_options_of_a_whole_net_are_the_defaults_of_its_tasks() -> None:
    net = Net("n")
    todo = net.place("todo")
    net.task(name="says_nothing", x=take(todo))(lambda x: None)
    net.task(name="says_all", x=take(todo), cores=1, memory="1M", retries=1, timeout=5, category="own")(lambda x: None)
    wishes: Any = {"cores": 2, "memory": "2M", "retries": 3, "timeout": 9.0, "category": "all"}
    silent, loud = (options_of(net.transitions[name], wishes) for name in ("says_nothing", "says_all"))
    assert silent == CallOptions().changed(wishes)
    assert loud == CallOptions().changed({"cores": 1, "memory": "1M", "retries": 1, "timeout": 5.0, "category": "own"})


def test_a_net_that_asks_for_more_than_there_is_by_its_wishes_is_refused(executor: shoal.Executor) -> None:
    with pytest.raises(InputError, match="the task 'work' can never run: a call asks for 2 cores"):
        start(one_task(lambda x: x, 1), executor._client, defaults={"cores": 2})


def test_an_option_written_wrong_is_named(executor: shoal.Executor) -> None:
    with pytest.raises(InputError, match=r"can never run: .*did you mean retries="):
        executor.start(one_task(lambda x: x, 1, retrys=3))


def test_a_ledger_may_be_a_path_but_must_be_a_plain_name(
    executor: shoal.Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = start(one_task(lambda x: x, 1), executor._client, ledger=Path("kept"))
    assert run.wait(PATIENCE) and (tmp_path / ".shoal" / "kept" / "ledger").exists()
    for bad in (Path("a/b"), "a\0b", "", ".hidden", 5):
        with pytest.raises(InputError, match="cannot be the name of a ledger; use a plain file name"):
            start(one_task(lambda x: x, 1), executor._client, ledger=bad)  # type: ignore[arg-type]
