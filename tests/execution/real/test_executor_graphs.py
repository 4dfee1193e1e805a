"""Futures that depend on futures: graphs of calls, what failures and cancellations do to them, `@shoal.function`."""

from __future__ import annotations

import concurrent.futures
import os
import pickle
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.futures import CallError, DependencyFailed
from support.command import wait_until

PATIENCE = 60.0


@pytest.fixture(scope="module")
def ex() -> Iterator[shoal.Executor]:
    """One for all tests that leave it as it was."""
    executor = shoal.Executor(max_workers=2)
    yield executor
    executor.shutdown()


def add(*numbers: int) -> int:
    return sum(numbers)


def same(value: Any) -> Any:
    return value


def is_same(one: object, other: object) -> bool:
    return one is other


def fail(text: str) -> None:
    raise ValueError(text)


def touch(path: str, _: object = None) -> None:
    Path(path).touch()


def wait_for(path: str) -> str:
    wait_until(lambda: os.path.exists(path), path)
    return path


class StaysAway:
    """Can be unpickled anywhere but in the process that has this number."""

    def __init__(self, forbidden: int, value: int) -> None:
        self.forbidden = forbidden
        self.value = value

    def __setstate__(self, state: dict[str, int]) -> None:
        if state["forbidden"] == os.getpid():
            raise OSError("not here")
        self.__dict__.update(state)


def value_of(thing: StaysAway) -> int:
    return thing.value


# Values.


def test_a_diamond_of_calls(ex: shoal.Executor) -> None:
    top = ex.submit(add, 1, 2)
    left, right = ex.submit(add, top, 10), ex.submit(add, top, 100)
    assert ex.submit(add, left, right).result(PATIENCE) == 116


def test_futures_are_found_in_lists_tuples_dicts_keywords_and_objects(ex: shoal.Executor) -> None:
    one, two = ex.submit(add, 1), ex.submit(add, 2)
    nested = {"list": [one, [two]], "tuple": (one, {"deep": two})}
    expected = {"list": [1, [2]], "tuple": (1, {"deep": 2})}
    assert ex.submit(same, nested).result(PATIENCE) == expected
    assert ex.submit(same, value=nested).result(PATIENCE) == expected
    carrier = StaysAway(0, 0)
    carrier.value = one  # type: ignore[assignment]  # a future where the value will be
    assert ex.submit(value_of, carrier).result(PATIENCE) == 1


def test_a_wide_fan_in(ex: shoal.Executor) -> None:
    futures = [ex.submit(add, i) for i in range(1000)]
    assert ex.submit(sum, futures).result(PATIENCE) == 999 * 500


def test_a_long_chain(ex: shoal.Executor) -> None:
    future = ex.submit(add, 0)
    for _ in range(500):
        future = ex.submit(add, future, 1)
    assert future.result(PATIENCE) == 500


def test_a_call_starts_only_when_its_needs_are_done(ex: shoal.Executor, tmp_path: Path) -> None:
    gate = ex.submit(wait_for, str(tmp_path / "gate"))
    after = ex.submit(touch, str(tmp_path / "after"), gate)
    assert ex.submit(add, 1).result(PATIENCE) == 1
    assert not (tmp_path / "after").exists() and not after.running()
    (tmp_path / "gate").touch()
    after.result(PATIENCE)
    assert (tmp_path / "after").exists()


def test_a_future_that_is_already_done_is_as_good(ex: shoal.Executor) -> None:
    done = ex.submit(same, [1, 2])
    assert done.result(PATIENCE) == [1, 2]
    assert ex.submit(sum, done).result(PATIENCE) == 3


def test_the_list_of_futures_may_be_changed_after_submitting(ex: shoal.Executor, tmp_path: Path) -> None:
    futures: list[Any] = [ex.submit(wait_for, str(tmp_path / "gate"))]
    joined = ex.submit(same, futures)
    futures.clear()
    (tmp_path / "gate").touch()
    assert joined.result(PATIENCE) == [str(tmp_path / "gate")]


def test_one_future_in_two_places_is_one_value(ex: shoal.Executor) -> None:
    thing = ex.submit(same, [1])
    assert ex.submit(is_same, thing, thing).result(PATIENCE) is True


def test_values_are_passed_on_without_being_unpickled_here(ex: shoal.Executor) -> None:
    thing = ex.submit(StaysAway, os.getpid(), 42)
    assert ex.submit(value_of, thing).result(PATIENCE) == 42
    with pytest.raises(CallError, match="not here"):
        thing.result(PATIENCE)


def test_large_values_are_passed_on(ex: shoal.Executor) -> None:
    large = ex.submit(bytes, 50 * 1024 * 1024)
    assert ex.submit(len, large).result(PATIENCE) == 50 * 1024 * 1024


def test_map_takes_futures_too(ex: shoal.Executor) -> None:
    futures = [ex.submit(add, i) for i in range(20)]
    assert list(ex.map(add, futures, range(20))) == [2 * i for i in range(20)]


def test_a_map_with_one_future_far_behind_runs_every_call_once(ex: shoal.Executor, tmp_path: Path) -> None:
    count = 2500
    names = [str(tmp_path / str(i)) for i in range(count)]
    last: list[Any] = [None] * (count - 1) + [ex.submit(add, 1)]
    list(ex.map(make_new, names, last))
    assert len(os.listdir(tmp_path)) == count


def make_new(path: str, _: object) -> None:
    """Fails if it is called twice."""
    with open(path, "x"):
        pass


def test_closing_a_map_with_futures_cancels_the_rest(tmp_path: Path) -> None:
    with shoal.Executor(max_workers=2) as own:
        needs = [own.submit(add, 1), own.submit(wait_for, str(tmp_path / "gate"))]
        results = own.map(touch, [str(tmp_path / "first"), str(tmp_path / "second")], needs)
        next(results)
        results.close()  # type: ignore[attr-defined]  # the declared type is the standard library's: Iterator
        (tmp_path / "gate").touch()
    assert (tmp_path / "first").exists() and not (tmp_path / "second").exists()


# Futures of others.


def test_futures_of_another_kind_of_executor_are_dependencies(ex: shoal.Executor, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as threads:
        foreign = threads.submit(wait_for, str(tmp_path / "gate"))
        dependant = ex.submit(len, [foreign, foreign])
        assert not dependant.done()
        (tmp_path / "gate").touch()
        assert dependant.result(PATIENCE) == 2


def test_futures_of_another_executor_of_ours_are_dependencies(ex: shoal.Executor) -> None:
    with shoal.Executor(max_workers=1) as other:
        assert ex.submit(add, other.submit(add, 1), ex.submit(add, 2)).result(PATIENCE) == 3


def test_a_foreign_future_that_fails_fails_its_dependants(ex: shoal.Executor) -> None:
    foreign: Future[int] = Future()
    dependant = ex.submit(add, foreign)
    foreign.set_exception(KeyError("lost"))
    with pytest.raises(DependencyFailed, match="KeyError"):
        dependant.result(PATIENCE)


def test_a_foreign_future_that_is_cancelled_cancels_its_dependants(ex: shoal.Executor) -> None:
    foreign: Future[int] = Future()
    dependant = ex.submit(add, foreign)
    foreign.cancel()
    with pytest.raises(CancelledError):
        dependant.result(PATIENCE)


def test_a_foreign_result_that_cannot_be_pickled_is_an_error_of_the_dependant(ex: shoal.Executor) -> None:
    foreign: Future[Any] = Future()
    dependant = ex.submit(same, foreign)
    after = ex.submit(same, dependant)
    foreign.set_result(ex)
    with pytest.raises(CallError, match="a result that same needs cannot be sent"):
        dependant.result(PATIENCE)
    with pytest.raises(DependencyFailed):
        after.result(PATIENCE)


# Failures and cancellations.


def test_a_failure_reaches_all_who_need_it_and_names_its_origin(ex: shoal.Executor, tmp_path: Path) -> None:
    failing = ex.submit(fail, "boom")
    near = ex.submit(touch, str(tmp_path / "near"), failing)
    far = ex.submit(touch, str(tmp_path / "far"), [near])
    other = ex.submit(add, 1)
    for future in (near, far):
        with pytest.raises(DependencyFailed, match=r"touch was not run: fail, .* ValueError: boom") as caught:
            future.result(PATIENCE)
        assert isinstance(caught.value.__cause__, ValueError)
        assert caught.value.failed == "fail"
    assert other.result(PATIENCE) == 1
    assert not list(tmp_path.iterdir())


def test_a_failure_that_is_already_known_has_the_same_effect(ex: shoal.Executor) -> None:
    failing = ex.submit(fail, "boom")
    assert failing.exception(PATIENCE)
    near = ex.submit(add, failing)
    assert near.exception(PATIENCE)
    far = ex.submit(add, near)
    error = far.exception(PATIENCE)
    assert isinstance(error, DependencyFailed) and error.failed == "fail"
    assert isinstance(error.__cause__, ValueError)


def test_the_error_of_a_dependency_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(DependencyFailed("sentence", "name")))
    assert (str(error), error.failed) == ("sentence", "name")


def test_cancelling_a_call_cancels_those_who_need_it(ex: shoal.Executor, tmp_path: Path) -> None:
    gate = ex.submit(wait_for, str(tmp_path / "gate"))
    waiting = ex.submit(touch, str(tmp_path / "waiting"), gate)
    dependants = [ex.submit(touch, str(tmp_path / "after"), waiting) for _ in range(5)]
    assert waiting.cancel()
    done, pending = concurrent.futures.wait(dependants, PATIENCE)
    assert not pending and all(future.cancelled() for future in done)
    (tmp_path / "gate").touch()
    assert gate.result(PATIENCE)
    assert ex.submit(add, 1).result(PATIENCE) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gate"]


def test_submitting_with_a_cancelled_future_gives_a_cancelled_one(ex: shoal.Executor) -> None:
    foreign: Future[int] = Future()
    cancelled = ex.submit(add, foreign)
    cancelled.cancel()
    with pytest.raises(CancelledError):
        ex.submit(add, cancelled).result(PATIENCE)


# The decorator.


@shoal.function
def plus(x: int, y: int = 1) -> int:
    """Add."""
    return x + y


@shoal.function(cores=2, retries=1)
def wide(x: int) -> int:
    return plus(x) * 2  # type: ignore[no-any-return]  # in a worker this is a plain call


class Holder:
    """Something with a decorated method."""

    def __init__(self, base: int) -> None:
        self.base = base

    @shoal.function
    def above(self, x: int) -> int:
        return self.base + x


def test_without_an_active_executor_a_decorated_function_is_just_called() -> None:
    assert plus(1) == 2
    assert wide(1) == 4
    assert Holder(10).above(1) == 11


def test_a_decorated_function_keeps_its_name_and_docstring() -> None:
    assert (plus.__name__, plus.__doc__) == ("plus", "Add.")


def test_calls_of_decorated_functions_build_a_graph() -> None:
    with shoal.Executor(max_workers=2):
        total = plus(plus(1), y=plus(2))
        assert isinstance(total, Future)
        assert total.result(PATIENCE) == 5
        assert wide(total).result(PATIENCE) == 12
        assert Holder(10).above(total).result(PATIENCE) == 15
    assert plus(1) == 2


def test_the_innermost_executor_gets_the_calls() -> None:
    with shoal.Executor(max_workers=1) as outer, shoal.Executor(max_workers=1) as inner:
        assert plus(1).owner is plus.submit(inner, 1).owner
        assert plus(1).owner is not plus.submit(outer, 1).owner


def test_a_decorated_function_can_be_submitted_to_a_certain_executor(ex: shoal.Executor) -> None:
    assert plus.submit(ex, 1, y=5).result(PATIENCE) == 6
    assert plus.submit(ex.with_options(retries=1), 1).result(PATIENCE) == 2
    assert list(ex.map(plus, range(3))) == [1, 2, 3]


def test_a_decorated_function_that_asks_for_too_much_is_an_input_error_at_once() -> None:
    with shoal.Executor(max_workers=1) as own:
        with pytest.raises(shoal.InputError, match="2 cores"):
            wide(1)
        assert wide.submit(own.with_options(cores=1), 1).result(PATIENCE) == 4


def test_a_decorated_function_that_a_worker_cannot_import_travels_whole(ex: shoal.Executor) -> None:
    @shoal.function
    def local(x: int) -> int:
        return x * 3

    assert local.submit(ex, 5).result(PATIENCE) == 15


def test_bad_options_of_a_decorator_are_found_where_it_stands() -> None:
    with pytest.raises(shoal.InputError, match="retries"):
        shoal.function(retries=-1)(plus)
