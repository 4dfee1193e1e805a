"""Nets run by an executor: what comes of tasks that fail, hang, die or return nonsense, of tokens that cannot be kept,
and of a run that is stopped, put to when it is over, or loses its executor."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.errors import InputError, RunError
from shoal.execution.nets.journal import read_past
from shoal.execution.nets.run import NetFailed, NetRun, digest_of
from shoal.ledger.file import LedgerReader
from shoal.ledger.records import TaskEnded, decode
from shoal.ledger.workspace import Workspace
from shoal.petri import Net, count, each, take
from support.command import wait_until

PATIENCE = 60.0


@pytest.fixture(scope="module")
def ex() -> Iterator[shoal.Executor]:
    with shoal.Executor(2) as executor:
        yield executor


@pytest.fixture(autouse=True)
def in_its_own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def one_task(function: Any, *tokens: object, keep_open: bool = False, **words: Any) -> Net:
    net = Net("one", keep_open=keep_open)
    todo, done = net.place("todo", tokens), net.place("done")
    net.task(name="work", x=take(todo), put=done, **words)(function)
    return net


def blocking(tmp_path: Path, **words: Any) -> Net:
    """A net whose only task says that it has begun and then takes its time."""
    flag = str(tmp_path / "begun")

    def work(x: int) -> int:
        with open(flag, "a"):
            pass
        time.sleep(1000)
        return x

    return one_task(work, 1, **words)


def has_begun(tmp_path: Path) -> bool:
    return (tmp_path / "begun").exists()


def finished(run: NetRun) -> NetRun:
    assert run.wait(PATIENCE)
    return run


def test_a_task_that_raises_fails_the_net_and_gives_its_token_back(ex: shoal.Executor) -> None:
    def work(x: int) -> float:
        return 1 / x

    run = finished(ex.start(one_task(work, 0, 2)))
    assert run.tokens("done") == [0.5] and run.tokens("todo") == [0]
    with pytest.raises(NetFailed, match="the task 'work' failed with ZeroDivisionError"):
        run.result()


def test_a_result_that_names_no_place_is_one_problem_and_the_rest_goes_on(ex: shoal.Executor) -> None:
    net = Net("garbage")
    todo, done = net.place("todo", [1, 2, 3]), net.place("done", type=int)

    @net.task(x=take(todo))
    def work(x: int) -> object:
        return {1: 17, 2: {"nowhere": x}, 3: {done: x}}[x]

    run = finished(ex.start(net, ledger="garbage"))
    assert run.tokens("done") == [3] and sorted(run.tokens("todo")) == [1, 2]
    assert sorted(problem.split(";")[0] for problem in run.problems()) == [
        "net 'garbage': 'work' returned 17, which names no place",
        "net 'garbage': the result of the task 'work' names the place 'nowhere', which the net does not have",
    ]


def test_a_worker_that_is_killed_is_replaced_and_its_task_tried_again(ex: shoal.Executor, tmp_path: Path) -> None:
    flag = str(tmp_path / "died")

    def work(x: int) -> int:
        if not os.path.exists(flag):
            with open(flag, "w"):
                pass
            os.kill(os.getpid(), signal.SIGKILL)
        return x + 1

    run = finished(ex.start(one_task(work, 1, retries=1)))
    assert run.tokens("done") == [2] and os.path.exists(flag)


def test_a_task_that_takes_too_long_is_ended_and_fails(ex: shoal.Executor, tmp_path: Path) -> None:
    run = finished(ex.start(blocking(tmp_path, timeout=0.2)))
    (problem,) = run.problems()
    assert "'work' failed with" in problem and "0.2" in problem
    assert run.tokens("todo") == [1]


def test_a_command_that_takes_too_long_leaves_no_process_behind(ex: shoal.Executor, tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    for limit in (1.0, 5.0, 25.0):  # a busy machine may end it before it has said who it is
        net = Net("slow")
        todo = net.place("todo", [str(noted)])
        net.task(name="wait", file=take(todo), command="echo $$ > {file}; exec sleep 1000", timeout=limit)
        run = finished(ex.start(net))
        assert len(run.problems()) == 1
        if noted.exists() and noted.read_text():
            break
    pid = int(noted.read_text())
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"), "the command is ended with its worker")


def test_a_failed_command_reports_its_status_and_last_output(ex: shoal.Executor) -> None:
    net = Net("commands")
    net.task(name="try", x=take(net.place("todo", [3])), command="echo sorry; exit {x}")
    run = finished(ex.start(net))
    assert "ended with status 3: sorry" in run.problems()[0]


def test_a_token_that_cannot_be_pickled_is_refused_where_it_is_put(ex: shoal.Executor) -> None:
    run = ex.start(one_task(abs, keep_open=True, when=lambda x: isinstance(x, int)), ledger="locks")
    with pytest.raises(InputError, match="cannot be written to the ledger"):
        run.put("todo", threading.Lock())
    run.put("todo", -3)
    run.close()
    finished(run)
    assert run.tokens("done") == [3] and run.tokens("todo") == []


def test_a_step_that_makes_tokens_which_cannot_be_pickled_only_costs_the_checkpoints(ex: shoal.Executor) -> None:
    net = Net("locks")
    todo, locks, done = net.place("todo", [1]), net.place("locks"), net.place("done")

    @net.step(x=take(todo))
    def lock(x: int) -> object:
        return {locks: threading.Lock(), done: x}

    net.foreach(done, lambda x: x + 1, net.place("end"), name="work")
    run = finished(ex.start(net, ledger="locks"))
    assert run.tokens("end") == [2] and run.result() is None


def test_a_task_whose_token_cannot_be_sent_fails_alone(ex: shoal.Executor) -> None:
    run = finished(ex.start(one_task(lambda x: 1, threading.Lock(), 5)))
    assert run.tokens("done") == [1]
    assert "cannot be sent to a worker process" in run.problems()[0]


def test_a_stopped_run_cancels_its_tasks_and_its_ledger_goes_on(ex: shoal.Executor, tmp_path: Path) -> None:
    run = ex.start(blocking(tmp_path, keep_open=True), ledger="stopped")
    wait_until(lambda: has_begun(tmp_path), "the task begins")
    run.put("todo", 7)
    run.stop("that is enough")
    with pytest.raises(RunError, match="was stopped: that is enough"):
        run.result(PATIENCE)
    with pytest.raises(InputError, match="is over and takes no more tokens"):
        run.put("todo", 8)
    assert run.tokens("todo") == [] and len(run.state().flights) == 2
    again = ex.start(blocking(tmp_path, keep_open=True), ledger="stopped")
    assert again.resumed and len(again.state().flights) == 2
    again.stop()
    finished(again)


def test_a_net_that_has_ended_takes_no_more_tokens(ex: shoal.Executor) -> None:
    run = finished(ex.start(one_task(abs, -1)))
    with pytest.raises(InputError, match="is over and takes no more tokens"):
        run.put("todo", 2)
    assert run.tokens("done") == [1]


@pytest.mark.parametrize("stop", [False, True])
def test_a_net_whose_executor_is_shut_down_says_so_and_can_be_gone_on_with(tmp_path: Path, stop: bool) -> None:
    executor = shoal.Executor(1)
    net = Net("orphan", keep_open=True)
    todo, done = net.place("todo", [1]), net.place("done")

    @net.task(x=take(todo), put=done)
    def work(x: int) -> int:
        if stop and x == 1:
            with open(tmp_path / "begun", "w"):
                pass
            time.sleep(1000)
        return x

    run = executor.start(net, ledger="orphan")
    if stop:
        wait_until(lambda: has_begun(tmp_path), "the task begins")
        executor._client.close(stop=True)
    else:
        wait_until(lambda: run.tokens("done") == [1], "the first task is done")
        executor.shutdown()
        with pytest.raises(RunError):
            run.put("todo", 2)  # it is written down or refused; either way the run is over
            run.result(PATIENCE)
    with pytest.raises(RunError, match="the executor was shut down before the net 'orphan' had finished"):
        run.result(PATIENCE)
    past = read_past(Workspace("orphan"))
    assert past.outcome.startswith("the executor was shut down") and past.begun is not None
    executor.shutdown()


def test_puts_and_questions_from_many_threads_while_it_ends_are_all_answered(ex: shoal.Executor) -> None:
    run = ex.start(one_task(abs, keep_open=True), ledger="many")
    accepted: list[int] = []

    def feed(first: int) -> None:
        for number in range(first, first + 20):
            try:
                run.put("todo", -number)
            except InputError:
                return
            accepted.append(number)
            run.marking()

    threads = [threading.Thread(target=feed, args=(100 * at + 100,)) for at in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(accepted) >= 20, "some tokens are put")
    run.close()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    finished(run)
    assert sorted(run.tokens("done")) == sorted(accepted)


def test_a_failed_run_tries_again_what_failed_when_it_is_started_again(ex: shoal.Executor, tmp_path: Path) -> None:
    def net_of(is_mended: bool) -> Net:
        def work(x: int) -> int:
            if x == 2 and not is_mended:
                raise ValueError("not yet")
            with open(tmp_path / "log", "a") as log:
                log.write(f"{x}\n")
            return x

        return one_task(work, 1, 2, 3)

    with pytest.raises(NetFailed):
        ex.start(net_of(False), ledger="mended").result(PATIENCE)
    run = finished(ex.start(net_of(True), ledger="mended"))
    assert run.resumed and sorted(run.tokens("done")) == [1, 2, 3] and not run.problems()
    assert sorted((tmp_path / "log").read_text().split()) == ["1", "2", "3"]
    assert run.done_tasks() == {"work": 3}
    assert not finished(ex.start(net_of(True), ledger="mended")).resumed


def test_another_net_cannot_go_on_from_the_ledger(ex: shoal.Executor, tmp_path: Path) -> None:
    run = ex.start(blocking(tmp_path), ledger="changed")
    run.stop()
    finished(run)
    other = one_task(abs, 2)
    with pytest.raises(InputError, match="has changed since its run was interrupted"):
        ex.start(other, ledger="changed")
    assert finished(ex.start(other, ledger="changed", afresh=True)).tokens("done") == [2]


def test_the_digest_is_about_steps_guards_and_first_tokens_and_not_about_tasks() -> None:
    def net_of(bound: int, first: object = 1, task: Any = abs, step: Any = lambda x: x) -> Net:
        net = one_task(task, first)
        done = net.spec_of("done").place
        net.step(name="pass", x=take(done), when=lambda x: x < bound, put=net.place("end"))(step)
        return net

    same = digest_of(net_of(3))
    assert digest_of(net_of(3)) == same
    assert digest_of(net_of(3, task=lambda x: x + 1)) == same
    changed = [net_of(4), net_of(3, first=2), net_of(3, step=lambda x: x + 1)]
    assert len({same, *map(digest_of, changed)}) == 4
    assert digest_of(net_of(3), ["n=1"]) != same


def test_damage_in_the_ledger_is_reported_and_does_not_crash(ex: shoal.Executor) -> None:
    net = one_task(abs, *range(-300, 0), keep_open=True)
    run = ex.start(net, ledger="damaged")
    wait_until(lambda: sum(run.done_tasks().values()) >= 200, "much is done")
    run.stop()
    finished(run)
    path = Workspace("damaged").ledger
    data = bytearray(Path(path).read_bytes())
    middle = len(data) // 2
    data[middle : middle + 40] = bytes(40)
    Path(path).write_bytes(data)
    try:
        again = ex.start(net, ledger="damaged")
    except InputError as error:
        assert "is damaged" in str(error) and "--force" in str(error)
    else:  # the damage touched only what is for people who look
        again.stop()
        finished(again)


def test_short_tasks_are_drawn_well_ahead_and_all_arrive(ex: shoal.Executor) -> None:
    net = Net("many")
    begin, numbers, done = net.place("begin", [3000]), net.place("numbers"), net.place("done")

    @net.step(n=take(begin))
    def spread(n: int) -> object:
        return {numbers: each(range(n))}

    net.foreach(numbers, lambda x: x, done, name="pass")
    run = finished(ex.start(net, ledger="many"))
    assert sorted(run.tokens("done")) == list(range(3000))
    assert read_past(Workspace("many")).done == {"pass": 3000}


def growing_tree() -> Net:
    """Numbers that beget others, then are added up in pairs: tasks, counts and steps, with a known sum."""
    net = Net("tree")
    todo, seen, log = net.place("todo", [(1, 0)]), net.place("seen"), net.place("log", [0])

    @net.task(node=take(todo))
    def expand(node: tuple[int, int]) -> object:
        number, depth = node
        kids = [(number * 2 + kid, depth + 1) for kid in range(1 + number % 2)] if depth < 4 else []
        return {todo: each(kids), seen: number}

    @net.task(a=take(seen), b=take(seen), left=count(todo), when=lambda left: left == 0)
    def add(a: int, b: int, left: int) -> object:
        return {seen: a + b}

    single = [lambda left: left == 0, lambda others: others == 1]

    @net.step(total=take(seen), n=take(log), others=count(seen), left=count(todo), when=single)
    def finish(total: int, n: int, others: int, left: int) -> object:
        return {log: n + 1}, net.result(total)

    return net


def accepted_results(ledger: Path) -> list[int]:
    """The tasks whose results were accepted, by number, in every run of the ledger."""
    records = map(decode, LedgerReader(str(ledger)).payloads())
    return [record.task for record in records if isinstance(record, TaskEnded) and record.outcome == "ok"]


@pytest.mark.parametrize("seed", range(3))
def test_a_ledger_cut_off_anywhere_goes_on_to_the_same_end(ex: shoal.Executor, seed: int) -> None:
    run = finished(ex.start(growing_tree(), ledger="whole"))
    result, tokens, done = run.result(), run.marking(), run.done_tasks()
    whole = Path(Workspace("whole").ledger).read_bytes()
    dice = random.Random(seed)
    for cut in sorted(dice.randrange(len(whole)) for _ in range(12)):
        workspace = Workspace(f"cut-{cut}")
        workspace.make()
        Path(workspace.ledger).write_bytes(whole[:cut])
        again = finished(ex.start(growing_tree(), ledger=f"cut-{cut}"))
        assert (again.result(), again.marking(), again.done_tasks()) == (result, tokens, done), f"cut at byte {cut}"
        accepted = accepted_results(Path(workspace.ledger))
        assert len(accepted) == len(set(accepted)), f"cut at byte {cut}"


def test_no_more_tasks_take_their_tokens_than_can_soon_run(ex: shoal.Executor, tmp_path: Path) -> None:
    go, begun = tmp_path / "go", tmp_path / "runs"
    begun.mkdir()

    def work(x: int) -> int:
        (begun / str(x)).touch()
        while not go.exists():
            time.sleep(0.01)
        return x

    run = ex.start(one_task(work, *range(60)))
    wait_until(lambda: len(list(begun.iterdir())) == 2, "both cores are busy")
    assert 2 <= len(run.state().flights) <= 5 and len(run.tokens("todo")) >= 55
    go.touch()
    assert sorted(finished(run).tokens("done")) == list(range(60))
