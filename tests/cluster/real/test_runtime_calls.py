"""Both sides of calls from tasks to their driver, without agents: threads, functions that exit, drivers that are gone;
what is done in the thread of a job server; which devices a task is told of."""

from __future__ import annotations

import os
import pickle
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shoal.cluster.job_server import CallbackServer, LoopCalls, RankSender
from shoal.cluster.runtime_system import RuntimeSystem, part_of
from shoal.cluster.task_calls import DriverConnections
from shoal.core.resources import Resources
from shoal.core.store.directory import NodeInfo
from shoal.errors import InputError, RunError
from shoal.execution.nets.task_calls import placed
from shoal.resources.machine import MachinePart
from shoal.resources.manager import ResourceManager
from shoal.resources.requests import require
from shoal.resources.scheduler_interface import Event
from shoal.resources.tickets import ranks_of

PATIENCE = 60.0


@contextmanager
def connected(**functions: Callable[..., Any]) -> Iterator[DriverConnections]:
    desk = CallbackServer(functions, "127.0.0.1")
    lines = DriverConnections(pickle.loads(desk.driver_for("task")))
    try:
        yield lines
    finally:
        lines.close()
        desk.close()


def test_threads_of_a_task_call_at_the_same_time_and_get_their_own_answers() -> None:
    together = threading.Barrier(4)

    def echo(number: int) -> int:
        together.wait(PATIENCE)  # nobody passes alone
        return number

    with connected(echo=echo) as lines, ThreadPoolExecutor(16) as pool:
        calls = [pool.submit(lines.call, "echo", (number,), {}, PATIENCE) for number in range(40)]
        assert [each.result() for each in calls] == list(range(40))


def test_a_function_of_the_driver_that_exits_is_a_sentence_in_the_task() -> None:
    def leave() -> None:
        raise SystemExit(2)

    def say_much() -> None:
        raise ValueError("one\ntwo")

    with connected(leave=leave, say_much=say_much) as lines:
        with pytest.raises(RunError, match=r"^the driver's function 'leave' failed with SystemExit: 2$"):
            lines.call("leave", (), {}, PATIENCE)
        with pytest.raises(RunError, match=r"^the driver's function 'say_much' failed with ValueError: one two$"):
            lines.call("say_much", (), {}, PATIENCE)


def test_a_driver_that_is_silent_or_gone_is_called_a_driver() -> None:
    waits = threading.Event()
    desk = CallbackServer({"wait": lambda: waits.wait(PATIENCE)}, "127.0.0.1")
    lines = DriverConnections(pickle.loads(desk.driver_for("task")))
    try:
        with pytest.raises(RunError, match=r"^the driver of this task did not reply within 0\.2 s$"):
            lines.call("wait", (), {}, 0.2)
    finally:
        desk.close()
    with pytest.raises(RunError, match=r"^the driver of this task is unreachable: ") as caught:
        lines.call("wait", (), {}, PATIENCE)
    assert "agent" not in str(caught.value)
    waits.set()
    lines.close()


def test_a_callback_server_leaves_no_descriptor_open() -> None:
    with connected(echo=lambda: 1):
        pass  # what is loaded and opened once
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        with connected(echo=lambda: 1) as lines:
            assert lines.call("echo", (), {}, PATIENCE) == 1
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_an_error_of_an_action_is_raised_at_its_caller_and_the_loop_continues() -> None:
    inbox: queue.SimpleQueue[Callable[[], Event | None]] = queue.SimpleQueue()
    errands = LoopCalls(inbox.put)
    done: list[int] = []

    def fail() -> None:
        raise InputError("no such place")

    errands.ask(fail)  # before the loop: nobody waits
    errands.open()
    with ThreadPoolExecutor(2) as pool:
        good, bad = pool.submit(errands.ask, lambda: done.append(1)), pool.submit(errands.ask, fail)
        for _ in range(3):
            inbox.get(timeout=PATIENCE)()
        good.result(PATIENCE)
        with pytest.raises(InputError, match="no such place"):
            bad.result(PATIENCE)
        late = pool.submit(errands.ask, fail)
        inbox.get(timeout=PATIENCE)
        errands.close()
        with pytest.raises(RunError, match="ended before it handled this request"):
            late.result(PATIENCE)
    assert done == [1] and errands.problems == ["no such place"]
    with pytest.raises(RunError, match="the job server has ended"):
        errands.ask(fail)


@pytest.mark.parametrize(
    ("devices", "gpus", "is_told"),
    [(("2", "3"), 1, True), (("2", "3"), 0, True), ((None, None), 1, False), ((None,), 0, False), ((), 0, False)],
)
def test_tasks_get_devices_only_where_they_are_known(devices: tuple[str | None, ...], gpus: int, is_told: bool) -> None:
    parts = [MachinePart("gpu", f"gpu{at}", device=device) for at, device in enumerate(devices)]
    runtime = RuntimeSystem(
        "nowhere", ResourceManager([MachinePart("node", "m", (MachinePart("core", "core0"), *parts))])
    )
    asked = {"core": 1} | ({"gpu": gpus} if gpus else {})
    ticket = runtime.steward.request("run", require(asked))
    (rank,) = ranks_of(runtime.steward.grant(ticket.number))
    assert RankSender(runtime, None, "")._knows_devices(rank) is is_told  # type: ignore[arg-type]  # nothing is called


def test_what_an_agent_offers_has_no_numbers_of_devices() -> None:
    resources = Resources.parse({"cores": 1, "gpus": 2})
    part = part_of("n", NodeInfo("tcp://n:1", "n", resources, {}, None, "", "1"))
    assert [(each.kind, each.device) for each in part.parts if each.kind == "gpu"] == [("gpu", None)] * 2


def test_a_place_is_left_as_it_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLD", "before")
    here = os.getcwd()
    with pytest.raises(FileNotFoundError), placed({"NEW": "1"}, str(tmp_path / "missing")):
        pass
    with placed({"NEW": "1", "OLD": "within"}, str(tmp_path)):
        assert (os.environ["NEW"], os.environ["OLD"], os.getcwd()) == ("1", "within", str(tmp_path))
    assert "NEW" not in os.environ and os.environ["OLD"] == "before" and os.getcwd() == here
