"""The executor as users of `concurrent.futures` know it: calls, map, exceptions, values, options, shutdown."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import gc
import os
import threading
import time
import traceback
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.futures import CallError, CallExitError, RemoteTraceback, UnpicklableArgumentError, UnpicklableResultError
from support.command import wait_until

PATIENCE = 60.0
MEGABYTE = 1024 * 1024


@pytest.fixture(scope="module")
def ex() -> Iterator[shoal.Executor]:
    """One for all tests that leave it as it was."""
    executor = shoal.Executor(max_workers=2)
    yield executor
    executor.shutdown()


def add(x: int, y: int = 0) -> int:
    return x + y


def fail(text: str) -> None:
    raise ValueError(text)


def fail_if_even(x: int) -> int:
    if x % 2 == 0:
        raise ValueError(f"{x} is even")
    return x


def wait_for(path: str) -> str:
    """Returns when the file exists."""
    wait_until(lambda: os.path.exists(path), path)
    return path


def announce_and_wait(announce: str, path: str) -> str:
    Path(announce).touch()
    return wait_for(path)


def write_name(directory: str, name: str) -> None:
    Path(directory, name).touch()


def write_name_unless_second(directory: str, name: str) -> None:
    """The second one goes on until it is ended."""
    if name == "second":
        threading.Event().wait()
    write_name(directory, name)


def keywords(**given: Any) -> dict[str, Any]:
    return given


class Counter:
    """Something with a state and a method."""

    def __init__(self, start: int) -> None:
        self.start = start

    def plus(self, x: int) -> int:
        return self.start + x


class Unpicklable:
    """Neither a worker nor the parent can be sent one of these."""

    def __reduce__(self) -> str:
        raise TypeError("this object stays where it is")


class CannotArrive:
    """Pickles, but does not unpickle in the process with this number."""

    def __init__(self, forbidden: int) -> None:
        self.forbidden = forbidden

    def __setstate__(self, state: dict[str, int]) -> None:
        if state["forbidden"] == os.getpid():
            raise OSError("not here")
        self.__dict__.update(state)


class AwkwardError(Exception):
    """Pickles but does not unpickle: its arguments are not those of `__init__`."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a} and {b}")


def raise_awkward() -> None:
    raise AwkwardError(1, 2)


def pid(_: object = None) -> int:
    return os.getpid()


# Calls.


def test_is_an_executor_of_the_standard_library_with_its_futures(ex: shoal.Executor) -> None:
    assert isinstance(ex, concurrent.futures.Executor)
    future = ex.submit(add, 1, y=2)
    assert isinstance(future, concurrent.futures.Future)
    assert future.result(PATIENCE) == 3
    assert future.exception() is None
    assert future.done() and not future.running() and not future.cancelled()


def test_calls_run_in_other_processes_at_most_as_many_as_workers(ex: shoal.Executor) -> None:
    pids = set(ex.map(pid, range(200)))
    assert os.getpid() not in pids
    assert len(pids) <= 2


def test_keywords_may_be_called_fn_and_self(ex: shoal.Executor) -> None:
    assert ex.submit(keywords, fn=1, self=2).result(PATIENCE) == {"fn": 1, "self": 2}


@pytest.mark.parametrize(
    ("callable_", "argument", "expected"),
    [
        (lambda x: x * 2, 21, 42),
        (functools.partial(add, y=1), 41, 42),
        (Counter(40).plus, 2, 42),
        (len, "four", 4),
        ("a,b".split, ",", ["a", "b"]),
        (int, "42", 42),
    ],
    ids=["lambda", "partial", "method", "builtin", "method of a builtin", "class"],
)
def test_whatever_can_be_called_and_pickled_runs(
    ex: shoal.Executor, callable_: Any, argument: object, expected: object
) -> None:
    assert ex.submit(callable_, argument).result(PATIENCE) == expected
    assert list(ex.map(callable_, [argument] * 3)) == [expected] * 3


def test_a_method_sees_its_object_as_it_is_at_the_time_of_the_call(ex: shoal.Executor) -> None:
    counter = Counter(1)
    before = ex.submit(counter.plus, 0)
    counter.start = 100
    assert ex.submit(counter.plus, 0).result(PATIENCE) == 100
    assert before.result(PATIENCE) == 1


def test_arguments_are_taken_as_they_are_when_submitted(ex: shoal.Executor) -> None:
    numbers = [1, 2, 3]
    future = ex.submit(sum, numbers)
    numbers.clear()
    assert future.result(PATIENCE) == 6


def test_many_functions_can_be_used_once_and_forgotten(ex: shoal.Executor) -> None:
    futures = [ex.submit(lambda i=i: i) for i in range(700)]
    assert [future.result(PATIENCE) for future in futures] == list(range(700))
    assert ex.submit(lambda: "still works").result(PATIENCE) == "still works"


def test_large_values_travel_both_ways(ex: shoal.Executor) -> None:
    value = os.urandom(MEGABYTE) * 50
    assert ex.submit(bytes.swapcase, value).result(PATIENCE) == value.swapcase()


def test_what_a_call_prints_appears_in_the_program(ex: shoal.Executor, capfd: pytest.CaptureFixture[str]) -> None:
    ex.submit(print, "from the worker").result(PATIENCE)
    assert capfd.readouterr().out == "from the worker\n"


def test_many_threads_may_submit_at_once(ex: shoal.Executor) -> None:
    sums: list[int] = []

    def submit_some(start: int) -> None:
        futures = [ex.submit(add, start, i) for i in range(200)]
        sums.append(sum(future.result(PATIENCE) for future in futures))
        sums.append(sum(ex.map(add, range(start, start + 200))))

    threads = [threading.Thread(target=submit_some, args=(1000 * i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(sums) == sorted(2 * [200 * 1000 * i + 199 * 100 for i in range(8)])


# Failures.


def test_an_exception_comes_back_with_the_workers_traceback(ex: shoal.Executor) -> None:
    with pytest.raises(ValueError, match="boom") as caught:
        ex.submit(fail, "boom").result(PATIENCE)
    assert isinstance(caught.value.__cause__, RemoteTraceback)
    shown = "".join(traceback.format_exception(caught.value))
    assert "in fail\n" in shown and "raise ValueError(text)" in shown


def test_an_argument_that_cannot_be_pickled_fails_its_own_call_only(ex: shoal.Executor) -> None:
    bad, good = ex.submit(len, [Unpicklable()]), ex.submit(add, 1)
    with pytest.raises(UnpicklableArgumentError, match=r"argument of len .*this object stays where it is"):
        bad.result(PATIENCE)
    assert good.result(PATIENCE) == 1


def test_a_function_that_cannot_be_pickled_fails_its_own_call_only(ex: shoal.Executor) -> None:
    generator = (each for each in range(1))
    bad, good = ex.submit(lambda: generator), ex.submit(add, 1)
    with pytest.raises(UnpicklableArgumentError, match=r"lambda.*cannot be sent"):
        bad.result(PATIENCE)
    assert good.result(PATIENCE) == 1


def test_a_result_that_cannot_be_pickled_names_its_type(ex: shoal.Executor) -> None:
    with pytest.raises(UnpicklableResultError, match="Unpicklable"):
        ex.submit(Unpicklable).result(PATIENCE)


def test_a_result_that_cannot_be_unpickled_is_an_error_of_the_future(ex: shoal.Executor) -> None:
    future = ex.submit(CannotArrive, os.getpid())
    assert isinstance(future.exception(PATIENCE), CallError)
    with pytest.raises(CallError, match="OSError: not here"):
        future.result(PATIENCE)


def test_an_exception_that_cannot_be_unpickled_is_described(ex: shoal.Executor) -> None:
    with pytest.raises(CallError, match=r"AwkwardError.*1 and 2"):
        ex.submit(raise_awkward).result(PATIENCE)


def test_sys_exit_in_a_call_ends_neither_worker_nor_caller(ex: shoal.Executor) -> None:
    with pytest.raises(CallExitError):
        ex.submit(exit, 3).result(PATIENCE)
    assert ex.submit(add, 1).result(PATIENCE) == 1


# The rest of `concurrent.futures`.


def test_as_completed_wait_and_callbacks_work(ex: shoal.Executor) -> None:
    futures = [ex.submit(add, i) for i in range(20)]
    seen: list[int] = []
    for future in futures:
        future.add_done_callback(lambda done: seen.append(done.result()))
    assert {future.result() for future in concurrent.futures.as_completed(futures, PATIENCE)} == set(range(20))
    done, pending = concurrent.futures.wait(futures, PATIENCE)
    assert len(done) == 20 and not pending
    wait_until(lambda: len(seen) == 20, "callbacks")
    assert sorted(seen) == list(range(20))


def test_asyncio_can_wait_for_futures(ex: shoal.Executor) -> None:
    async def both() -> tuple[int, int]:
        loop = asyncio.get_running_loop()
        one = asyncio.wrap_future(ex.submit(add, 1))
        two = loop.run_in_executor(ex.with_options(retries=1), add, 2)
        return await one, await two

    assert asyncio.run(both()) == (1, 2)


def test_a_callback_may_submit_the_next_call(ex: shoal.Executor) -> None:
    chained: list[concurrent.futures.Future[int]] = []
    ex.submit(add, 1).add_done_callback(lambda done: chained.append(ex.submit(add, done.result(), 10)))
    wait_until(lambda: bool(chained), "the callback")
    assert chained[0].result(PATIENCE) == 11


def test_result_times_out_while_the_call_goes_on(ex: shoal.Executor, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    future = ex.submit(wait_for, str(gate))
    with pytest.raises(TimeoutError):
        future.result(timeout=0.01)
    gate.touch()
    assert future.result(PATIENCE) == str(gate)


def test_an_executor_cannot_be_sent_to_a_worker(ex: shoal.Executor) -> None:
    with pytest.raises(UnpicklableArgumentError, match="an executor cannot be sent"):
        ex.submit(id, ex).result(PATIENCE)


# Map.


def test_map_gives_results_in_order_over_several_iterables(ex: shoal.Executor) -> None:
    assert list(ex.map(add, range(5000), range(5000))) == [2 * i for i in range(5000)]
    assert list(ex.map(add, [1, 2, 3], [10, 20])) == [11, 22]
    assert list(ex.map(add, [])) == []


@pytest.mark.parametrize("chunksize", [2, 7, 1000])
def test_map_in_chunks_gives_the_same_results(ex: shoal.Executor, chunksize: int) -> None:
    assert list(ex.map(add, range(100), chunksize=chunksize)) == list(range(100))


def test_map_rejects_a_chunksize_below_one(ex: shoal.Executor) -> None:
    with pytest.raises(ValueError, match="chunksize"):
        ex.map(add, [1], chunksize=0)


def test_map_raises_at_the_position_of_the_call_that_failed(ex: shoal.Executor) -> None:
    results = ex.map(fail_if_even, [1, 3, 4, 5])
    assert [next(results), next(results)] == [1, 3]
    with pytest.raises(ValueError, match="4 is even"):
        next(results)
    with pytest.raises(StopIteration):
        next(results)


def test_map_raises_at_the_position_of_an_argument_that_cannot_be_sent(ex: shoal.Executor) -> None:
    results = ex.map(str, [1, Unpicklable()])
    assert next(results) == "1"
    with pytest.raises(UnpicklableArgumentError):
        next(results)


def test_map_times_out_only_if_a_result_is_late(tmp_path: Path) -> None:
    gates = [str(tmp_path / name) for name in ("open", "closed")]
    Path(gates[0]).touch()
    with shoal.Executor(max_workers=2) as own:
        assert list(own.map(wait_for, gates[:1], timeout=PATIENCE)) == gates[:1]
        with pytest.raises(TimeoutError):
            list(own.map(wait_for, gates, timeout=0.05))


def test_closing_the_iterator_of_map_cancels_the_rest(tmp_path: Path) -> None:
    names = ["first", "second", *[f"later{i}" for i in range(3000)]]
    with shoal.Executor(max_workers=1) as own:
        results = own.map(write_name_unless_second, [str(tmp_path)] * len(names), names)
        next(results)
        results.close()  # type: ignore[attr-defined]  # the declared type is the standard library's: Iterator
    assert [path.name for path in tmp_path.iterdir()] == ["first"]


def test_a_map_whose_results_are_not_read_runs_to_its_end(tmp_path: Path) -> None:
    names = [f"{i:04}" for i in range(100)]
    with shoal.Executor(max_workers=2) as own:
        own.map(write_name, [str(tmp_path)] * len(names), names)
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_map_does_not_keep_values_that_the_caller_dropped(ex: shoal.Executor) -> None:
    for value in ex.map(Counter, range(10)):
        reference = weakref.ref(value)
        del value
        assert reference() is None


# Options.


def test_calls_that_ask_for_two_cores_run_one_at_a_time(tmp_path: Path) -> None:
    with shoal.Executor(max_workers=2) as own:
        wide = own.with_options(cores=2)
        first = wide.submit(announce_and_wait, str(tmp_path / "first"), str(tmp_path / "gate"))
        second = wide.submit(pid)
        narrow = own.submit(pid)
        wait_until((tmp_path / "first").exists, "the first call")
        assert first.running() and not second.running() and not narrow.running()
        (tmp_path / "gate").touch()
        assert second.result(PATIENCE) and narrow.result(PATIENCE)


def test_a_named_resource_limits_only_those_who_ask_for_it(tmp_path: Path) -> None:
    with shoal.Executor(max_workers=3, resources={"licence": 1}) as own:
        licensed = own.with_options(resources={"licence": 1})
        first = licensed.submit(announce_and_wait, str(tmp_path / "first"), str(tmp_path / "gate"))
        second = licensed.submit(pid)
        assert own.submit(pid).result(PATIENCE)
        wait_until((tmp_path / "first").exists, "the first call")
        assert first.running() and not second.done()
        (tmp_path / "gate").touch()
        assert second.result(PATIENCE)


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"cores": 3}, "a call asks for 3 cores, but the executor has 2"),
        ({"memory": "1000T"}, "memory"),
        ({"gpus": 1}, "a call asks for 1 gpus, but the executor has 0"),
        ({"resources": {"licence": 1}}, "resources={'licence'"),
        ({"retries": -1}, "retries"),
        ({"timeout": 0}, "timeout"),
        ({"category": 7}, "category"),
        ({"memory": "plenty"}, "'plenty' is not a size"),
    ],
)
def test_what_cannot_be_granted_is_an_input_error_at_once(
    ex: shoal.Executor, wishes: dict[str, Any], message: str
) -> None:
    with pytest.raises(shoal.InputError) as caught:
        ex.with_options(**wishes)
    assert message in str(caught.value)


def test_an_unknown_option_is_a_type_error_that_names_the_known_ones(ex: shoal.Executor) -> None:
    with pytest.raises(TypeError, match=r"unknown option 'core'; known are cores, memory"):
        ex.with_options(core=2)  # type: ignore[call-arg]


def test_options_add_up(ex: shoal.Executor) -> None:
    both = ex.with_options(cores=2).with_options(retries=3)
    assert both._options.retries == 3
    assert both._options.resources.get("cores") == 20_000


def test_a_view_with_options_keeps_its_executor_alive() -> None:
    with shoal.Executor(max_workers=1).with_options(retries=1) as view:
        gc.collect()
        assert view.submit(add, 1).result(PATIENCE) == 1
    with pytest.raises(RuntimeError, match="after shutdown"):
        view.submit(add, 1)


@pytest.mark.parametrize("count", [0, -1])
def test_an_executor_needs_at_least_one_worker(count: int) -> None:
    with pytest.raises(ValueError, match="max_workers must be greater than 0"):
        shoal.Executor(max_workers=count)


def test_a_time_limit_ends_the_call_with_a_timeout_error(ex: shoal.Executor) -> None:
    future = ex.with_options(timeout=0.2).submit(time.sleep, 1000)
    with pytest.raises(TimeoutError, match=r"0\.2 s"):
        future.result(PATIENCE)


# Shutdown.


def test_submitting_after_shutdown_is_a_runtime_error() -> None:
    executor = shoal.Executor(max_workers=1)
    executor.shutdown()
    for attempt in (lambda: executor.submit(pid), lambda: executor.map(pid, [1]), lambda: executor.map(pid, [])):
        with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
            attempt()
    executor.shutdown()


def test_shutdown_finishes_what_was_accepted() -> None:
    executor = shoal.Executor(max_workers=2)
    first = executor.submit(add, 1)
    futures = [executor.submit(add, first, i) for i in range(100)]
    executor.shutdown()
    assert all(future.done() for future in futures)
    assert sum(future.result() for future in futures) == 100 + 99 * 50


def test_shutdown_without_waiting_returns_and_still_finishes(tmp_path: Path) -> None:
    executor = shoal.Executor(max_workers=1)
    future = executor.submit(wait_for, str(tmp_path / "gate"))
    executor.shutdown(wait=False)
    assert not future.done()
    (tmp_path / "gate").touch()
    assert future.result(PATIENCE)


def test_shutdown_can_cancel_what_has_not_begun(tmp_path: Path) -> None:
    executor = shoal.Executor(max_workers=1)
    running = executor.submit(announce_and_wait, str(tmp_path / "busy"), str(tmp_path / "gate"))
    queued = [executor.submit(write_name, str(tmp_path), f"never{i}") for i in range(10)]
    mapped = executor.map(write_name, [str(tmp_path)] * 10, [f"never-mapped{i}" for i in range(10)])
    waiting = executor.submit(len, running)
    wait_until((tmp_path / "busy").exists, "the first call")
    executor.shutdown(wait=False, cancel_futures=True)
    done, _ = concurrent.futures.wait([*queued, waiting], PATIENCE)
    assert len(done) == 11 and all(future.cancelled() for future in done)
    with pytest.raises(concurrent.futures.CancelledError):
        next(mapped)
    (tmp_path / "gate").touch()
    assert running.result(PATIENCE)
    executor.shutdown()
    assert not list(tmp_path.glob("never*"))


def test_workers_are_gone_after_shutdown() -> None:
    with shoal.Executor(max_workers=2) as own:
        pids = set(own.map(pid, range(100)))
    assert pids and not any(os.path.exists(f"/proc/{one}") for one in pids)


def test_an_executor_that_is_dropped_ends_its_workers() -> None:
    executor = shoal.Executor(max_workers=1)
    worker = executor.submit(pid).result(PATIENCE)
    del executor
    gc.collect()
    wait_until(lambda: not os.path.exists(f"/proc/{worker}"), "end of the worker")


def test_an_executor_that_was_never_used_leaves_nothing_open() -> None:
    before = open_files()
    for _ in range(20):
        with shoal.Executor():
            pass
        shoal.Executor()
    gc.collect()
    assert open_files() <= before, "an executor of an earlier test may still be closing its own"


def open_files() -> set[str]:
    """What this process has open, by what it is; a file that is being closed may be seen or not."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
    return found


def test_finished_calls_leave_nothing_in_the_loop(ex: shoal.Executor) -> None:
    first = ex.submit(add, 1)
    for future in [ex.submit(add, first, i) for i in range(50)]:
        future.result(PATIENCE)
    assert sum(ex.map(add, range(3000))) == 3000 * 2999 // 2
    engine = ex._client._loop
    assert engine is not None
    held = [
        engine._under_way,
        engine._lane_of,
        engine._scheduler.state,
        engine._scheduler.attempt,
        engine._dependencies._missing,
    ]
    wait_until(
        lambda: not any(held) and not engine._dependencies, "the engine's thread has come to the end of its turn"
    )
