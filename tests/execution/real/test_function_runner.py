"""The function runner with real worker processes: results, failures, crashes, time-outs, cancelling, output, ending."""

from __future__ import annotations

import importlib
import os
import pickle
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import RunError
from shoal.execution.calls import worker_client
from shoal.execution.calls.pickling import CallError, RemoteTraceback
from shoal.execution.calls.task_api import CommandFailed, Need, RunningTask, capture, sh
from shoal.execution.calls.worker_pool import (
    MAX_CALLS,
    CallRequest,
    CallResult,
    ValueOf,
    WorkerPool,
    plain_payload,
    task_payload,
)

DEADLINE = 60.0


class Loop:
    """The smallest event loop around a runner: polls, collects, enforces."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.poll = select.poll()
        self.opened: set[int] = set()
        options.setdefault("environment", dict(os.environ))
        options.setdefault("sys_path", sys.path)
        self.runner = WorkerPool(
            directory=str(directory), run_id="test", on_open=self._open, on_close=self._close, **options
        )
        self.results: list[CallResult] = []
        self._next_task = 0

    def _open(self, descriptor: int) -> None:
        self.opened.add(descriptor)
        self.poll.register(descriptor, select.POLLIN)

    def _close(self, descriptor: int) -> None:
        self.opened.remove(descriptor)
        self.poll.unregister(descriptor)

    def request(
        self, function: Callable[..., Any], *arguments: Any, timeout: float | None = None, **keywords: Any
    ) -> CallRequest:
        """A call as the next task."""
        self._next_task += 1
        number = self.runner.register(function)
        return CallRequest(self._next_task, 1, number, plain_payload(arguments, keywords), timeout)

    def step(self, limit: float = 0.1) -> None:
        """Wait for one wake-up, at most `limit` seconds."""
        deadline = self.runner.next_deadline()
        if deadline is not None:
            limit = min(limit, max(0.0, deadline - time.monotonic()))
        for descriptor, _ in self.poll.poll(limit * 1000):
            self.results += self.runner.collect(descriptor)
        self.results += self.runner.enforce(time.monotonic())

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Go on until something holds, and fail with what is there when it takes too long."""
        deadline = time.monotonic() + DEADLINE
        while not condition():
            assert time.monotonic() < deadline, f"no {what}; results so far: {self.results}"
            self.step()

    def run(self, *calls: CallRequest) -> list[CallResult]:
        """Start one bundle and wait for a result of each call, in the order of the calls."""
        self.results.clear()
        self.runner.start(calls)
        self.until(lambda: len(self.results) >= len(calls), "result of each call")
        by_task = {result.task: result for result in self.results}
        return [by_task[call.task] for call in calls]

    def call(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Make one call that is expected to return."""
        (result,) = self.run(self.request(function, *arguments, **keywords))
        assert result.outcome == "ok", result
        return pickle.loads(result.value)


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Loop]:
    """A runner without patience, ended after the test."""
    loop = Loop(tmp_path, patience=None)
    yield loop
    loop.runner.close(1.0)


def outcomes(results: list[CallResult]) -> list[str]:
    return [result.outcome for result in results]


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has reaped yet counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, f"no {what}"
        threading.Event().wait(0.005)


def add(x: int, y: int = 0) -> int:
    return x + y


def wait_for_ever(ready: str | None = None) -> None:
    if ready:
        Path(ready).write_text(str(os.getpid()))
    while True:
        signal.pause()


def wait_for_file(path: str, make_first: str | None = None) -> str:
    if make_first:
        touch(make_first)
    deadline = time.monotonic() + DEADLINE
    while not os.path.exists(path):
        assert time.monotonic() < deadline, f"no {path}"
        time.sleep(0.001)
    return path


def touch(path: str) -> None:
    Path(path).touch()


def test_a_call_returns_its_value(loop: Loop) -> None:
    assert loop.call(add, 2, y=3) == 5


def test_lambdas_and_closures_can_be_called(loop: Loop) -> None:
    base = 40
    assert loop.call(lambda x: base + x, 2) == 42


def test_calls_run_in_the_given_directory_with_marker_and_no_input(loop: Loop, tmp_path: Path) -> None:
    seen = loop.call(lambda: (os.getcwd(), os.environ["SHOAL_TASK"], sys.stdin.read(), os.getpgid(0) == os.getpid()))
    assert seen == (str(tmp_path), "test", "", True)


def test_modules_beside_the_program_are_found_wherever_the_worker_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside, elsewhere = tmp_path / "beside", tmp_path / "elsewhere"
    beside.mkdir()
    elsewhere.mkdir()
    (beside / "shoal_test_module_beside.py").write_text("def answer():\n    return 42\n")
    monkeypatch.chdir(beside)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    function = importlib.import_module("shoal_test_module_beside").answer
    loop = Loop(elsewhere)
    assert loop.call(function) == 42
    loop.runner.close(1.0)


def test_a_worker_is_used_again(loop: Loop) -> None:
    assert loop.call(os.getpid) == loop.call(os.getpid)
    assert len(loop.runner.pids()) == 1


def test_bundles_under_way_together_get_a_worker_each(loop: Loop, tmp_path: Path) -> None:
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    # Each waits for what the other makes, so they end only if they run side by side.
    loop.runner.start([loop.request(wait_for_file, second, first)])
    loop.runner.start([loop.request(wait_for_file, first, second)])
    loop.until(lambda: len(loop.results) == 2, "result of both")
    assert outcomes(loop.results) == ["ok", "ok"]
    assert len(loop.runner.pids()) == 2


def test_a_full_bundle_comes_back_complete_and_in_order(loop: Loop) -> None:
    results = loop.run(*[loop.request(add, i, y=1) for i in range(MAX_CALLS)])
    assert [pickle.loads(result.value) for result in results] == [i + 1 for i in range(MAX_CALLS)]


class Loud:
    """A callable that prints when it is unpickled."""

    def __setstate__(self, state: object) -> None:
        print("unpickled")

    def __getstate__(self) -> object:
        return ("something",)

    def __call__(self) -> None:
        print("called")


def test_a_function_is_registered_once_and_shipped_once_per_worker(loop: Loop) -> None:
    loud = Loud()
    assert loop.runner.register(loud) == loop.runner.register(loud)
    first, second = loop.run(loop.request(loud), loop.request(loud))
    (third,) = loop.run(loop.request(loud))
    assert (first.output, second.output, third.output) == (b"unpickled\ncalled\n", b"called\n", b"called\n")


def test_a_released_function_can_be_registered_anew(loop: Loop) -> None:
    loud = Loud()
    number = loop.runner.register(loud)
    loop.call(loud)
    loop.runner.release(number)
    assert loop.runner.register(loud) != number
    (result,) = loop.run(loop.request(loud))
    assert result.output == b"unpickled\ncalled\n"


def test_values_of_earlier_calls_are_resolved_in_the_worker_wherever_they_stand(loop: Loop) -> None:
    three = ValueOf(pickle.dumps(3))
    assert loop.call(lambda *a, **k: (a, k), three, [1, {"x": (three,)}], key=three) == (
        (3, [1, {"x": (3,)}]),
        {"key": 3},
    )


def test_large_arguments_and_results_pass_in_both_directions(loop: Loop) -> None:
    data = bytes(range(256)) * 40_000
    results = loop.run(*[loop.request(lambda d: d[::-1], data) for _ in range(3)])
    assert [pickle.loads(result.value) == data[::-1] for result in results] == [True] * 3
    # And the space is given back: nothing but the window stays behind.
    assert loop.call(add, 1) == 1
    (pid,) = loop.runner.pids()
    assert os.stat(f"/proc/{pid}/fd/4").st_size < 1024 * 1024


def raise_value_error() -> None:
    raise ValueError("no such luck")


def test_an_exception_comes_back_with_the_worker_s_traceback(loop: Loop) -> None:
    (result,) = loop.run(loop.request(raise_value_error))
    assert result.outcome == "error" and result.error is not None
    error = pickle.loads(result.error)
    assert isinstance(error, ValueError) and error.args == ("no such luck",)
    assert isinstance(error.__cause__, RemoteTraceback)
    assert 'raise ValueError("no such luck")' in str(error.__cause__)
    assert result.error_text.endswith("ValueError: no such luck\n")
    assert "runner/worker.py" not in result.error_text


class NeedsTwo(Exception):  # noqa: N818
    """Pickles, but does not unpickle."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def raise_unpicklable() -> None:
    error = RuntimeError("holds a lock")
    error.lock = threading.Lock()  # type: ignore[attr-defined]
    raise error


def raise_needs_two() -> None:
    raise NeedsTwo(1, 2)


@pytest.mark.parametrize(
    ("function", "words"), [(raise_unpicklable, "RuntimeError: holds a lock"), (raise_needs_two, "1 and 2")]
)
def test_an_exception_that_cannot_travel_is_named(loop: Loop, function: Callable[[], None], words: str) -> None:
    (result,) = loop.run(loop.request(function))
    assert result.outcome == "error" and result.error is not None
    error = pickle.loads(result.error)
    assert type(error) is CallError
    assert "cannot be sent back" in str(error) and words in str(error)
    assert words in result.error_text


def test_a_result_that_cannot_travel_is_an_error_that_names_its_type(loop: Loop) -> None:
    (result,) = loop.run(loop.request(threading.Lock))
    assert result.outcome == "error" and result.error is not None
    assert "_thread.lock" in str(pickle.loads(result.error))
    assert loop.call(add, 1) == 1


def test_a_function_that_cannot_be_loaded_is_an_error_of_the_call(loop: Loop) -> None:
    class Broken:
        def __reduce__(self) -> tuple[Any, ...]:
            return int, ("not a number",)

        def __call__(self) -> None:
            pass

    (result,) = loop.run(loop.request(Broken()))
    assert result.outcome == "error" and "invalid literal for int" in result.error_text


def test_sys_exit_is_an_error_of_the_call_and_the_worker_goes_on(loop: Loop) -> None:
    pid = loop.call(os.getpid)
    (result,) = loop.run(loop.request(sys.exit, 3))
    assert result.outcome == "error" and result.error is not None
    assert "SystemExit(3)" in str(pickle.loads(result.error))
    assert loop.call(os.getpid) == pid


def segfault() -> None:
    import ctypes

    ctypes.string_at(0)


@pytest.mark.parametrize(
    ("crash", "arguments", "how"),
    [
        (os._exit, (3,), "exited with status 3"),
        (segfault, (), "signal 11 (SIGSEGV)"),
        (signal.raise_signal, (signal.SIGKILL,), "signal 9 (SIGKILL)"),
    ],
)
def test_a_crash_is_charged_to_exactly_the_call_that_ran(
    loop: Loop, crash: Callable[..., Any], arguments: tuple[Any, ...], how: str
) -> None:
    calls = [loop.request(add, 1), loop.request(crash, *arguments), loop.request(add, 3), loop.request(add, 4)]
    results = loop.run(*calls)
    assert outcomes(results) == ["ok", "crashed", "lost", "lost"]
    assert how in results[1].error_text and results[1].error is not None
    assert how in str(pickle.loads(results[1].error))
    assert results[1].started > 0
    assert [result.error for result in results[2:]] == [None, None]
    assert loop.runner.pids() == []
    assert outcomes(loop.run(*calls[2:])) == ["ok", "ok"]


def test_a_segmentation_fault_leaves_the_python_stack_in_the_output(loop: Loop) -> None:
    (result,) = loop.run(loop.request(segfault))
    assert b"in segfault" in result.output


def test_an_idle_worker_that_dies_is_replaced(loop: Loop) -> None:
    pid = loop.call(os.getpid)
    os.kill(pid, signal.SIGKILL)
    loop.until(lambda: loop.runner.pids() == [], "burial")
    assert loop.call(os.getpid) != pid


def test_calls_given_to_a_worker_that_has_just_died_are_lost_not_charged(loop: Loop) -> None:
    pid = loop.call(os.getpid)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: gone(pid), "end of the worker")
    assert outcomes(loop.run(loop.request(add, 1), loop.request(add, 2))) == ["lost", "lost"]


def test_a_call_is_charged_when_no_worker_can_start(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "absent")
    results = loop.run(loop.request(add, 1), loop.request(add, 2))
    assert outcomes(results) == ["crashed", "lost"]
    assert "before it could begin a call: FileNotFoundError" in results[0].error_text
    loop.runner.close(1.0)


def test_a_call_is_charged_when_a_worker_takes_for_ever_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_client, "START_LIMIT", 0.2)
    (tmp_path / "shoal").mkdir()
    (tmp_path / "shoal" / "__init__.py").write_text("import signal\nsignal.pause()\n")
    loop = Loop(tmp_path, sys_path=[str(tmp_path), *sys.path])
    results = loop.run(loop.request(add, 1), loop.request(add, 2))
    assert outcomes(results) == ["crashed", "lost"]
    assert "took longer than 0.2 s before it could begin a call" in results[0].error_text
    loop.runner.close(1.0)


def test_an_interpreter_that_cannot_be_spawned_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    loop = Loop(tmp_path)
    with pytest.raises(RunError, match="cannot start a worker process: No such file"):
        loop.runner.start([loop.request(add, 1)])
    assert loop.opened == set()
    loop.runner.close(1.0)


def start_child_then_wait(path: str) -> None:
    child = subprocess.Popen(["sleep", "1000"])
    Path(path).write_text(str(child.pid))
    wait_for_ever()


def test_a_time_out_ends_the_call_and_everything_it_started(loop: Loop, tmp_path: Path) -> None:
    path = tmp_path / "child"
    for limit in (2.0, 8.0, 20.0):  # on a machine that is busy with other things it may take long to start a child
        started = loop.request(start_child_then_wait, str(path), timeout=limit)
        results = loop.run(loop.request(add, 1), started, loop.request(add, 3))
        assert outcomes(results) == ["ok", "timeout", "lost"]
        assert results[1].error is not None
        assert isinstance(pickle.loads(results[1].error), TimeoutError)
        assert limit <= results[1].ended - results[1].started < limit + 30
        if path.exists() and path.read_text():
            break
    child = int(path.read_text())
    wait_until(lambda: gone(child), "end of the call's child")


def test_the_time_a_call_waits_in_its_bundle_does_not_count(loop: Loop) -> None:
    for limit in (0.9, 4.0, 12.0):  # the second one is to be quicker than that, also where others want the core
        found = outcomes(loop.run(loop.request(time.sleep, limit + 0.1), loop.request(time.sleep, 0, timeout=limit)))
        if found == ["ok", "ok"]:
            break
    assert found == ["ok", "ok"]


def test_cancelling_a_running_call_ends_it_and_loses_those_behind_it(loop: Loop, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    calls = [loop.request(wait_for_ever, str(ready)), loop.request(add, 1)]
    loop.runner.start(calls)
    loop.until(ready.exists, "running call")
    assert loop.runner.kill(calls[0].task, 1)
    loop.until(lambda: len(loop.results) == 2, "result of both")
    assert {result.task: result.outcome for result in loop.results} == {
        calls[0].task: "cancelled",
        calls[1].task: "lost",
    }


def test_cancelling_a_waiting_call_leaves_the_others_alone(loop: Loop, tmp_path: Path) -> None:
    ready, go_on, never = tmp_path / "ready", tmp_path / "go on", tmp_path / "never"
    calls = [
        loop.request(wait_for_file, str(go_on), str(ready)),
        loop.request(touch, str(never)),
        loop.request(add, 1),
    ]
    loop.runner.start(calls)
    loop.until(ready.exists, "running call")
    assert loop.runner.kill(calls[1].task, 1)
    loop.until(lambda: loop.results, "cancelled call")
    assert [(result.task, result.outcome) for result in loop.results] == [(calls[1].task, "cancelled")]
    go_on.touch()
    loop.until(lambda: len(loop.results) == 3, "result of the others")
    assert outcomes(loop.results) == ["cancelled", "ok", "ok"]
    assert not never.exists()


def test_calls_wait_for_a_worker_where_descriptors_are_short(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.execution.calls.worker_pool.is_scarce", lambda descriptor: True)
    go_on, never = tmp_path / "go on", tmp_path / "never"
    first = loop.request(wait_for_file, str(go_on))
    later = [loop.request(touch, str(never)), *(loop.request(add, number) for number in range(3))]
    for call in (first, *later):
        loop.runner.start([call])
    assert len(loop.runner.pids()) == 1
    assert loop.runner.kill(later[0].task, 1)
    loop.until(lambda: loop.results, "cancelled call")
    assert [(result.task, result.outcome) for result in loop.results] == [(later[0].task, "cancelled")]
    go_on.touch()
    loop.until(lambda: len(loop.results) == 5, "result of the others")
    assert sorted(outcomes(loop.results)) == ["cancelled", "ok", "ok", "ok", "ok"]
    assert len(loop.runner.pids()) == 1 and not never.exists()


def test_calls_that_wait_for_a_worker_that_dies_get_another(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.execution.calls.worker_pool.is_scarce", lambda descriptor: True)
    ready = tmp_path / "ready"
    loop.runner.start([loop.request(wait_for_ever, str(ready))])
    loop.runner.start([loop.request(add, 1)])
    loop.until(ready.exists, "running call")
    os.kill(loop.runner.pids()[0], signal.SIGKILL)
    loop.until(lambda: len(loop.results) == 2, "result of both")
    assert sorted(outcomes(loop.results)) == ["crashed", "ok"]


def test_cancelling_a_call_whose_worker_has_not_started_yet_leaves_nothing_behind(loop: Loop) -> None:
    call = loop.request(add, 1)
    loop.runner.start([call])
    assert loop.runner.kill(call.task, 1)
    loop.until(lambda: loop.results, "cancelled call")
    assert outcomes(loop.results) == ["cancelled"]
    loop.runner.close(0.0)
    assert loop.runner.pids() == []


def test_cancelling_what_is_not_there_says_so(loop: Loop) -> None:
    call = loop.request(add, 1)
    loop.run(call)
    assert not loop.runner.kill(call.task, call.attempt)


def test_short_calls_do_not_wait_for_a_long_one_behind_them(loop: Loop, tmp_path: Path) -> None:
    go_on = tmp_path / "go on"
    calls = [*[loop.request(add, i) for i in range(5)], loop.request(wait_for_file, str(go_on)), loop.request(add, 6)]
    loop.runner.start(calls)
    loop.until(lambda: len(loop.results) == 5, "result of the short calls")
    go_on.touch()
    loop.until(lambda: len(loop.results) == 7, "result of the rest")
    assert outcomes(loop.results) == ["ok"] * 7


def test_calls_behind_a_long_one_come_back_unless_there_is_patience(tmp_path: Path) -> None:
    loop = Loop(tmp_path, patience=0.02)
    go_on = tmp_path / "go on"
    calls = [loop.request(wait_for_file, str(go_on)), *[loop.request(touch, str(tmp_path / "never"))] * 2]
    loop.runner.start(calls)
    loop.until(lambda: len(loop.results) == 2, "calls taken back")
    assert outcomes(loop.results) == ["lost", "lost"]
    go_on.touch()
    loop.until(lambda: len(loop.results) == 3, "result of the long call")
    assert loop.results[2].outcome == "ok"
    assert loop.call(add, 1) == 1
    assert len(loop.runner.pids()) == 1 and not (tmp_path / "never").exists()
    loop.runner.close(1.0)


def speak(word: str) -> None:
    print(word)
    print(word, file=sys.stderr, end="")
    os.write(1, b" raw ")
    subprocess.run(["echo", word], check=True)


def test_each_call_has_its_own_output(loop: Loop) -> None:
    for _ in range(2):
        results = loop.run(loop.request(speak, "one"), loop.request(add, 1), loop.request(speak, "two"))
        assert [result.output for result in results] == [b"one\none raw one\n", b"", b"two\ntwo raw two\n"]
    (pid,) = loop.runner.pids()
    assert os.stat(f"/proc/{pid}/fd/1").st_size == 0


def test_the_output_of_a_crashed_call_is_kept(loop: Loop) -> None:
    results = loop.run(loop.request(print, "before"), loop.request(lambda: (print("last words"), os._exit(1))))
    assert [result.output for result in results] == [b"before\n", b"last words\n"]


def test_of_very_long_output_both_ends_are_kept(loop: Loop) -> None:
    (result,) = loop.run(loop.request(lambda: print("first", "x" * 20_000_000, "last")))
    assert result.output.startswith(b"first x") and result.output.endswith(b"x last\n")
    assert b"bytes of output left out" in result.output and len(result.output) < 17_000_000


def test_a_call_may_close_the_streams(loop: Loop) -> None:
    assert outcomes(loop.run(loop.request(lambda: sys.stdout.close()), loop.request(add, 1))) == ["ok", "ok"]


def burn(seconds: float, size_bytes: int) -> int:
    data = bytearray(size_bytes)
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    return len(data)


def test_cpu_time_and_peak_memory_are_those_of_the_call(loop: Loop) -> None:
    large, small = loop.run(loop.request(burn, 0.1, 200_000_000), loop.request(burn, 0.1, 1000))
    assert 0.08 <= large.cpu_user + large.cpu_system < 3.0
    assert 0.08 <= small.cpu_user + small.cpu_system < 0.3
    assert large.max_rss_bytes >= 200_000_000
    assert 1_000_000 < small.max_rss_bytes < 100_000_000
    assert abs(small.ended - time.time()) < DEADLINE and small.started < small.ended


def test_a_child_forked_by_a_call_does_not_answer_for_the_worker(loop: Loop) -> None:
    def fork_and_return() -> int:
        return os.fork()

    (result,) = loop.run(loop.request(fork_and_return))
    assert pickle.loads(result.value) > 0
    assert loop.call(add, 1) == 1
    assert len(loop.results) == 1


def test_close_ends_idle_and_busy_workers_and_what_they_started(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    path = tmp_path / "child"
    loop.runner.start([loop.request(start_child_then_wait, str(path))])
    loop.until(lambda: path.exists() and path.read_text(), "child")
    assert loop.call(add, 1) == 1
    pids = [*loop.runner.pids(), int(path.read_text())]
    assert len(pids) == 3
    loop.runner.close(5.0)
    assert loop.runner.pids() == [] and loop.opened == set()
    wait_until(lambda: all(gone(pid) for pid in pids), "end of all processes")


def test_close_kills_what_ignores_the_request_to_end(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    ready = tmp_path / "ready"

    def ignore_everything() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        wait_for_ever(str(ready))

    loop.runner.start([loop.request(ignore_everything)])
    loop.until(ready.exists, "running call")
    (pid,) = loop.runner.pids()
    loop.runner.close(0.1)
    assert gone(pid)


def test_warm_workers_are_used_first(loop: Loop) -> None:
    loop.runner.warm(2)
    pids = loop.runner.pids()
    assert len(pids) == 2
    assert loop.call(os.getpid) in pids and loop.runner.pids() == pids


PARENT = """
    import os, select, subprocess, sys, time
    from shoal.execution.calls.worker_pool import CallRequest, WorkerPool, plain_payload

    class Point:
        def __init__(self, x):
            self.x = x

    def double(point):
        return Point(point.x * 2)

    def spin():
        child = subprocess.Popen(["sleep", "1000"])
        with open("child", "w") as note:
            print(child.pid, file=note)
        while True:
            pass

    poll = select.poll()
    runner = WorkerPool(
        directory=".", environment=os.environ, sys_path=sys.path, run_id="test",
        on_open=lambda fd: poll.register(fd, select.POLLIN), on_close=poll.unregister,
    )
    def run(function, *arguments):
        runner.start([CallRequest(1, 1, runner.register(function), plain_payload(arguments, {}))])

    def result():
        results = []
        while not results:
            for fd, _ in poll.poll():
                results += runner.collect(fd)
        return results[0]
"""


def script(tmp_path: Path, body: str) -> Path:
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(PARENT) + textwrap.dedent(body))
    return path


def test_what_the_main_program_defines_travels_both_ways(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        import pickle
        run(double, Point(21))
        value = pickle.loads(result().value)
        assert type(value) is Point, value
        print(value.x)
        runner.close(1.0)
        """,
    )
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert (done.stdout, done.stderr) == ("42\n", "")


def test_a_program_that_ignores_its_children_still_learns_of_a_crash(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        import signal
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        run(os._exit, 3)
        print(result().outcome, len(runner.pids()))
        runner.close(1.0)
        """,
    )
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert (done.stdout, done.stderr) == ("crashed 0\n", "")


def test_nothing_survives_when_the_pool_s_process_is_killed(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        runner.warm(1)
        run(spin)
        runner.warm(1)
        # A child that the program forked inherits its descriptors, and must not keep the workers alive.
        forked = os.fork()
        if forked == 0:
            time.sleep(1000)
        print(forked, *runner.pids(), flush=True)
        time.sleep(1000)
        """,
    )
    forked, pids = 0, []
    with subprocess.Popen([sys.executable, path], stdout=subprocess.PIPE, text=True, cwd=tmp_path) as program:
        try:
            assert program.stdout is not None
            forked, *pids = [int(word) for word in program.stdout.readline().split()]
            note = tmp_path / "child"
            wait_until(lambda: note.exists() and note.read_text(), "running call")
            pids.append(int(note.read_text()))
            assert len(pids) == 3 and not any(gone(pid) for pid in pids)
            program.kill()
            wait_until(lambda: all(gone(pid) for pid in pids), "end of all processes")
        finally:
            program.kill()
            for pid in (forked, *pids):
                if pid and not gone(pid):
                    os.kill(pid, signal.SIGKILL)


def act(loop: Loop, function: Callable[[RunningTask], Any], **options: Any) -> CallResult:
    payload = task_payload("p/a.fits", ["p/a.fits", "p/a b.tbl"], ["r/a.fits", "t1"], **options)
    (result,) = loop.run(CallRequest(1, 1, loop.runner.register(function), payload))
    return result


def test_an_action_sees_its_task(loop: Loop) -> None:
    def look(t: RunningTask) -> Any:
        values = [(need, type(need) is Need, need.value) for need in t.needs]
        texts = f"{t.needs}|{t.outs}|{t.source}"
        return t.name, t.out, t.outs[1], values, texts, t.wild.x, t.x, t.needs.img, list(t.needs.all)

    result = act(
        loop,
        look,
        values={"t1": pickle.dumps({"a": 1})},
        named={"img": "r/a.fits", "all": ["r/a.fits", "t1"]},
        wildcards={"x": "a"},
    )
    assert result.outcome == "ok", result.error_text
    assert pickle.loads(result.value) == (
        "p/a.fits",
        "p/a.fits",
        "p/a b.tbl",
        [("r/a.fits", True, None), ("t1", True, {"a": 1})],
        "r/a.fits t1|p/a.fits 'p/a b.tbl'|r/a.fits",
        "a",
        "a",
        "r/a.fits",
        ["r/a.fits", "t1"],
    )


def test_an_action_may_set_its_value_instead_of_returning_it(loop: Loop) -> None:
    def put(t: RunningTask) -> None:
        t.value = 7

    assert pickle.loads(act(loop, put).value) == 7


def test_an_action_starts_in_the_workflow_s_directory_wherever_the_last_one_went(loop: Loop, tmp_path: Path) -> None:
    assert act(loop, lambda t: os.chdir("/")).outcome == "ok"
    assert pickle.loads(act(loop, lambda t: os.getcwd()).value) == str(tmp_path)


def test_a_missing_attribute_of_a_task_is_named(loop: Loop) -> None:
    result = act(loop, lambda t: t.colour)
    assert result.outcome == "error" and "its rule has no wildcard of that name" in result.error_text
    result = act(loop, lambda t: t.needs.colour)
    assert result.outcome == "error" and "this task has no need named 'colour'" in result.error_text


def test_commands_of_an_action_print_into_its_output(loop: Loop) -> None:
    def commands(t: RunningTask) -> Any:
        print("start", end=" ")
        sh("echo $((1 + 1)) {braces}")
        sh(["echo", "two words", t.out])
        return capture("printf 'a\\nb\\n\\n'"), sh("exit 3", check=False).status, capture(["echo", "$HOME"])

    result = act(loop, commands)
    assert pickle.loads(result.value) == ("a\nb", 3, "$HOME")
    assert result.output == b"start 2 {braces}\ntwo words p/a.fits\n"


@pytest.mark.parametrize(
    ("command", "status", "words"),
    [
        ("exit 3", 3, "exit status 3: exit 3"),
        ("kill -9 $$", -9, "signal 9: kill -9 $$"),
        (["no-such-command", "a b"], 127, "exit status 127: no-such-command 'a b'"),
        (["/etc/passwd"], 126, "exit status 126: /etc/passwd"),
    ],
)
def test_a_failing_command_fails_the_action_with_its_status(
    loop: Loop, command: str | list[str], status: int, words: str
) -> None:
    result = act(loop, lambda t: sh(command))
    assert result.outcome == "error" and result.error is not None
    error = pickle.loads(result.error)
    assert isinstance(error, CommandFailed) and error.status == status
    assert str(error) == f"command failed with {words}"
