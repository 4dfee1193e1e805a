"""What goes wrong around an executor: crashing workers, cancelled calls, programs that end, fork or are interrupted."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.futures import CallCrashedError
from support.command import wait_until

PATIENCE = 60.0


@pytest.fixture(scope="module")
def ex() -> Iterator[shoal.Executor]:
    """One for all tests: it must survive them."""
    executor = shoal.Executor(max_workers=2)
    yield executor
    executor.shutdown()


def add(x: int, y: int = 0) -> int:
    return x + y


def wait_for(path: str) -> None:
    """Returns when the file exists."""
    wait_until(lambda: os.path.exists(path), path)


def touch(path: str) -> None:
    Path(path).touch()


def hang(path: str) -> None:
    """Leaves its process number and goes on for ever."""
    Path(path).with_suffix(".part").write_text(str(os.getpid()))
    Path(path).with_suffix(".part").rename(path)
    while True:
        signal.pause()


def crash_if_five(x: int) -> int:
    if x == 5:
        os._exit(7)
    return x


def crash_once(path: str) -> str:
    """Kills its worker unless it has done so before."""
    if not os.path.exists(path):
        Path(path).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "second attempt"


def fail_twice(directory: str) -> int:
    count = len(os.listdir(directory))
    Path(directory, str(count)).touch()
    if count < 2:
        raise ValueError(count)
    return count


def pid() -> int:
    return os.getpid()


def gone(process: int) -> bool:
    return not os.path.exists(f"/proc/{process}")


def started(path: Path) -> int:
    """The process number that `hang` left."""
    wait_until(path.exists, "start of the call")
    return int(path.read_text())


# Crashes and retries.


def test_a_call_that_ends_its_worker_fails_alone(ex: shoal.Executor) -> None:
    futures = [ex.submit(crash_if_five, i) for i in range(20)]
    for i, future in enumerate(futures):
        if i == 5:
            with pytest.raises(CallCrashedError, match="exited with status 7"):
                future.result(PATIENCE)
        else:
            assert future.result(PATIENCE) == i


def test_a_crash_inside_a_map_is_raised_at_its_position(ex: shoal.Executor) -> None:
    assert list(ex.map(add, range(2000))) == list(range(2000))
    results = ex.map(crash_if_five, range(2000))
    assert [next(results) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(CallCrashedError):
        next(results)
    assert list(ex.map(crash_if_five, range(6, 2000))) == list(range(6, 2000))


def test_a_worker_killed_from_outside_costs_the_call_that_ran_in_it(ex: shoal.Executor, tmp_path: Path) -> None:
    future = ex.submit(hang, str(tmp_path / "pid"))
    os.kill(started(tmp_path / "pid"), signal.SIGKILL)
    with pytest.raises(CallCrashedError, match="SIGKILL"):
        future.result(PATIENCE)
    assert ex.submit(add, 1).result(PATIENCE) == 1


def test_an_idle_worker_killed_from_outside_costs_nothing(ex: shoal.Executor) -> None:
    for _ in range(3):
        os.kill(ex.submit(pid).result(PATIENCE), signal.SIGKILL)
        assert ex.with_options(retries=1).submit(add, 1).result(PATIENCE) == 1


def test_retries_repeat_a_crashed_call(ex: shoal.Executor, tmp_path: Path) -> None:
    future = ex.with_options(retries=1).submit(crash_once, str(tmp_path / "crashed"))
    assert future.result(PATIENCE) == "second attempt"


def test_retries_repeat_a_call_that_raised(ex: shoal.Executor, tmp_path: Path) -> None:
    assert ex.with_options(retries=2).submit(fail_twice, str(tmp_path)).result(PATIENCE) == 2


def test_the_exception_of_the_last_attempt_counts(ex: shoal.Executor, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="1"):
        ex.with_options(retries=1).submit(fail_twice, str(tmp_path)).result(PATIENCE)


# Cancelling.


def test_cancelling_a_running_call_ends_its_process(ex: shoal.Executor, tmp_path: Path) -> None:
    future = ex.submit(hang, str(tmp_path / "pid"))
    worker = started(tmp_path / "pid")
    assert future.running()
    assert future.cancel() and future.cancel()
    assert future.cancelled() and future.done() and not future.running()
    with pytest.raises(CancelledError):
        future.result(PATIENCE)
    wait_until(lambda: gone(worker), "end of the worker")
    done, _ = concurrent.futures.wait([future], PATIENCE)
    assert done == {future}
    assert ex.submit(add, 1).result(PATIENCE) == 1


def test_a_cancelled_call_that_was_queued_never_runs(tmp_path: Path) -> None:
    with shoal.Executor(max_workers=1) as own:
        blocker = own.submit(hang, str(tmp_path / "pid"))
        queued = [own.submit(touch, str(tmp_path / f"never{i}")) for i in range(10)]
        started(tmp_path / "pid")
        assert not any(future.running() for future in queued)
        assert all(future.cancel() for future in queued)
        assert len(list(concurrent.futures.as_completed(queued, PATIENCE))) == 10
        blocker.cancel()
    assert not list(tmp_path.glob("never*"))


def test_a_call_that_is_over_cannot_be_cancelled(ex: shoal.Executor) -> None:
    future = ex.submit(add, 1)
    assert future.result(PATIENCE) == 1
    assert not future.cancel() and not future.cancelled()


def test_cancelling_runs_the_callbacks_once(ex: shoal.Executor, tmp_path: Path) -> None:
    future = ex.submit(hang, str(tmp_path / "pid"))
    called: list[object] = []
    future.add_done_callback(called.append)
    started(tmp_path / "pid")
    future.cancel()
    future.cancel()
    assert ex.submit(add, 1).result(PATIENCE) == 1
    assert called == [future]


def test_cancelling_while_results_arrive_settles_every_future(ex: shoal.Executor) -> None:
    for _ in range(20):
        futures = [ex.submit(add, i) for i in range(50)]
        cancelled = [future.cancel() for future in futures[::2]]
        assert not concurrent.futures.wait(futures, PATIENCE).not_done
        assert [future.cancelled() for future in futures[::2]] == cancelled
        assert [future.result() for future in futures[1::2]] == list(range(1, 50, 2))


# The engine itself.


def test_an_internal_error_fails_what_is_under_way_and_what_comes_later(tmp_path: Path) -> None:
    executor = shoal.Executor(max_workers=1)
    running = executor.submit(hang, str(tmp_path / "pid"))
    mapped = executor.map(add, range(10))
    worker = started(tmp_path / "pid")
    executor._client._inbox.post(lambda argument: argument.missing, None)
    with pytest.raises(concurrent.futures.BrokenExecutor, match="AttributeError"):
        running.result(PATIENCE)
    with pytest.raises(concurrent.futures.BrokenExecutor):
        next(mapped)
    executor._client._gone.wait(PATIENCE)
    with pytest.raises(concurrent.futures.BrokenExecutor, match="internal error"):
        executor.submit(add, 1)
    executor.shutdown()
    assert gone(worker)


def test_output_that_cannot_be_shown_does_no_harm(ex: shoal.Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert ex.submit(print, "unheard").result(PATIENCE) is None
    assert ex.submit(add, 1).result(PATIENCE) == 1


def test_a_callback_cannot_wait_for_the_shutdown_of_its_own_executor(tmp_path: Path) -> None:
    raised: list[BaseException] = []

    def shut_down(_: object) -> None:
        try:
            executor.shutdown()
        except RuntimeError as error:
            raised.append(error)

    executor = shoal.Executor(max_workers=1)
    gate = tmp_path / "gate"
    future = executor.submit(wait_for, str(gate))
    future.add_done_callback(shut_down)
    gate.touch()  # only now, so that it is the executor's thread that calls
    assert executor._client._gone.wait(PATIENCE)
    assert "cannot wait" in str(raised[0])


# Programs.


def program(text: str, tmp_path: Path, **options: Any) -> subprocess.Popen[str]:
    """A program that makes an executor, as a user would run it."""
    script = tmp_path / "program.py"
    script.write_text("import os, sys, time, signal, shoal\n" + textwrap.dedent(text))
    return subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def ended(process: subprocess.Popen[str], status: int = 0) -> tuple[str, str]:
    """What a program printed, once it has ended with this status."""
    try:
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == status, (process.returncode, out, err)
    return out, err


HANG = """
def hang(path):
    with open(path + ".part", "w") as file:
        file.write(str(os.getpid()))
    os.rename(path + ".part", path)
    while True:
        signal.pause()

def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.001)
"""


def test_a_program_that_forgets_to_shut_down_ends_and_so_do_its_workers(tmp_path: Path) -> None:
    process = program(
        HANG
        + """
ex = shoal.Executor(max_workers=1)
futures = [ex.submit(hang, sys.argv[1] + "/pid") for _ in range(3)]
wait_for(sys.argv[1] + "/pid")
print("main ends")
""",
        tmp_path,
    )
    assert ended(process) == ("main ends\n", "")
    assert gone(started(tmp_path / "pid"))


def test_what_was_accepted_before_a_shutdown_without_waiting_is_finished(tmp_path: Path) -> None:
    process = program(
        """
        go = sys.argv[1] + "/go"
        def slow(text):
            while not os.path.exists(go):
                time.sleep(0.001)
            print(text)
        ex = shoal.Executor(max_workers=1)
        ex.submit(slow, "apple")
        ex.submit(print, "pear")
        ex.shutdown(wait=False)
        print("main ends")
        open(go, "w").close()
        """,
        tmp_path,
    )
    assert ended(process) == ("main ends\napple\npear\n", "")


def test_ctrl_c_in_a_with_block_ends_at_once(tmp_path: Path) -> None:
    process = program(
        HANG
        + """
with shoal.Executor(max_workers=1) as ex:
    futures = [ex.submit(hang, sys.argv[1] + "/pid") for _ in range(3)]
    futures[-1].result()
""",
        tmp_path,
    )
    worker = started(tmp_path / "pid")
    process.send_signal(signal.SIGINT)
    _, err = ended(process, -signal.SIGINT)
    assert "KeyboardInterrupt" in err
    assert gone(worker)


def test_ctrl_c_while_waiting_for_the_shutdown_ends_at_once(tmp_path: Path) -> None:
    process = program(
        HANG
        + """
with shoal.Executor(max_workers=1) as ex:
    ex.submit(hang, sys.argv[1] + "/pid")
""",
        tmp_path,
    )
    worker = started(tmp_path / "pid")
    process.send_signal(signal.SIGINT)
    _, err = ended(process, -signal.SIGINT)
    assert "KeyboardInterrupt" in err
    assert gone(worker)


def test_workers_end_with_a_program_that_is_killed(tmp_path: Path) -> None:
    process = program(
        HANG
        + """
with shoal.Executor(max_workers=1) as ex:
    ex.submit(hang, sys.argv[1] + "/pid")
""",
        tmp_path,
    )
    worker = started(tmp_path / "pid")
    process.kill()
    ended(process, -signal.SIGKILL)
    wait_until(lambda: gone(worker), "end of the worker")


def test_a_forked_child_neither_uses_nor_ends_its_parents_workers(tmp_path: Path) -> None:
    process = program(
        """
        with shoal.Executor(max_workers=1) as ex:
            worker = ex.submit(os.getpid).result()
            pid = os.fork()
            if pid == 0:
                try:
                    ex.submit(os.getpid)
                except RuntimeError as error:
                    print(error, flush=True)
                with shoal.Executor(max_workers=1) as own:
                    print(own.submit(abs, -1).result(), flush=True)
                sys.exit(0)
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
            print(ex.submit(os.getpid).result() == worker)
        """,
        tmp_path,
    )
    out, err = ended(process)
    assert out.splitlines() == [
        "this executor belongs to another process; create one in this process",
        "1",
        "0",
        "True",
    ], err


def test_functions_and_classes_of_the_main_program_work(tmp_path: Path) -> None:
    process = program(
        """
        class Point:
            def __init__(self, x):
                self.x = x
        def move(point, by):
            return Point(point.x + by)
        @shoal.function
        def twice(point):
            return move(point, point.x)
        with shoal.Executor(max_workers=2) as ex:
            there = ex.submit(move, Point(1), 2)
            print(ex.submit(move, there, 3).result().x, type(there.result()) is Point)
            print([point.x for point in ex.map(move, [Point(1), Point(2)], [1, 1])], twice(there).result().x)
        """,
        tmp_path,
    )
    assert ended(process) == ("6 True\n[2, 3] 6\n", "")


def test_a_call_may_use_an_executor_of_its_own(tmp_path: Path) -> None:
    process = program(
        """
        def inner(n):
            with shoal.Executor(max_workers=1) as ex:
                return sum(ex.map(abs, range(n)))
        with shoal.Executor(max_workers=1) as ex:
            print(ex.submit(inner, 10).result())
        """,
        tmp_path,
    )
    assert ended(process) == ("45\n", "")


def test_a_worker_that_cannot_be_started_fails_the_call_in_words(tmp_path: Path) -> None:
    process = program(
        """
        import resource
        with shoal.Executor(max_workers=2) as ex:
            print(ex.submit(abs, -1).result())
            os.kill(ex.submit(os.getpid).result(), signal.SIGKILL)
            resource.setrlimit(resource.RLIMIT_NOFILE, (8, 4096))
            wide = ex.with_options(cores=2)
            errors = {str(wide.submit(abs, i).exception()) for i in range(20)} - {"None"}
            resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
            print(errors)
            print(ex.submit(abs, -2).result())
        """,
        tmp_path,
    )
    out, err = ended(process)
    assert out.splitlines()[-1] == "2", (out, err)
    assert "cannot start a worker process: Too many open files" in out


def test_a_dropped_iterator_of_map_does_not_outlive_a_time_limit(ex: shoal.Executor) -> None:
    with pytest.raises(TimeoutError):
        list(ex.with_options(timeout=0.1).map(time.sleep, [0, 1000, 0]))
    assert ex.submit(add, 1).result(PATIENCE) == 1
