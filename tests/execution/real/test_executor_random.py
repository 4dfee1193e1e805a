"""Random use of one executor: every future is settled, rightly, and the engine holds nothing afterwards."""

from __future__ import annotations

import concurrent.futures
import os
from concurrent.futures import CancelledError
from random import Random

import pytest

import shoal
from shoal.core.invariants import check_broker
from shoal.core.scheduler import Scheduler
from shoal.futures import CallCrashedError, CallFuture, DependencyFailed

PATIENCE = 60.0
STEPS = 150


def total(numbers: list[int]) -> int:
    return 1 + sum(numbers)


def fail(numbers: list[int]) -> int:
    raise ValueError("on purpose")


def crash(numbers: list[int]) -> int:
    os._exit(1)


def double(x: int) -> int:
    return 2 * x


class RandomUser:
    """Submits, cancels and maps at random, and knows what each future may end with."""

    def __init__(self, executor: shoal.Executor, seed: int) -> None:
        self.executor = executor
        self.random = Random(seed)
        self.futures: list[CallFuture] = []
        self.needs: dict[CallFuture, list[CallFuture]] = {}
        self.function: dict[CallFuture, object] = {}
        self.broken: list[BaseException] = []

    def submit(self) -> None:
        function = self.random.choices([total, fail, crash], [40, 3, 1])[0]
        needs = self.random.sample(self.futures[-30:], min(len(self.futures), self.random.choice([0, 0, 1, 3])))
        cores = self.random.choice([0.5, 1, 2])
        future = self.executor.with_options(cores=cores).submit(function, needs)
        self.futures.append(future)
        self.needs[future] = needs
        self.function[future] = function

    def cancel(self) -> None:
        if self.futures:
            self.random.choice(self.futures).cancel()

    def map_all(self) -> None:
        assert list(self.executor.map(double, range(50))) == list(range(0, 100, 2))

    def map_some(self) -> None:
        results = self.executor.map(double, range(3000))
        assert next(results) == 0
        results.close()  # type: ignore[attr-defined]  # the declared type is the standard library's: Iterator

    def look(self) -> None:
        """Have the engine check its broker."""

        def check(broker: Scheduler) -> None:
            try:
                check_broker(broker)
            except AssertionError as error:
                self.broken.append(error)

        engine = self.executor._client._loop
        if engine is not None:
            self.executor._client._inbox.post(check, engine._scheduler)

    def check(self, future: CallFuture) -> None:
        needs = self.needs[future]
        try:
            value = future.result(0)
        except CancelledError:
            return
        except DependencyFailed as error:
            assert isinstance(error.__cause__, ValueError | CallCrashedError)
            assert any(need.cancelled() or need.exception() is not None for need in needs)
        except ValueError:
            assert self.function[future] is fail
        except CallCrashedError:
            assert self.function[future] is crash
        else:
            assert value == 1 + sum(need.result(0) for need in needs)


@pytest.mark.parametrize("seed", range(4))
def test_every_future_is_settled_rightly(seed: int) -> None:
    with shoal.Executor(max_workers=2) as executor:
        user = RandomUser(executor, seed)
        steps = [user.submit, user.cancel, user.map_all, user.map_some, user.look]
        for _ in range(STEPS):
            user.random.choices(steps, [60, 5, 1, 1, 10])[0]()
        assert not concurrent.futures.wait(user.futures, PATIENCE).not_done
        assert list(executor.map(double, range(10))) == list(range(0, 20, 2))
        engine = executor._client._loop
    assert not user.broken
    for future in user.futures:
        user.check(future)
    assert engine is not None and not engine._under_way and not engine._dependencies and engine._scheduler.idle()
