"""Python calls on the agents of a real cluster: the executor as on one machine, and what happens when agents go."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shoal
from shoal.cluster import call_client as cluster_module
from shoal.cluster import call_client as line_module
from shoal.cluster.agent import call_server as farm_module
from shoal.cluster.agent.call_server import CallServer
from shoal.cluster.agent.messages import RefusedReply, make_codec
from shoal.cluster.call_protocol import (
    PART_BYTES,
    UNKNOWN,
    CallsEnded,
    CallsGiven,
    CallsReply,
    CallsRequest,
    CallStream,
    FunctionGiven,
    SessionOpened,
    StreamPart,
    decode_server_item,
    encode_item,
)
from shoal.cluster.messaging.access import Role, narrowed, read
from shoal.cluster.messaging.caller import Caller
from shoal.core.resources import Resources
from shoal.execution.calls.messages import CallRequest, CallResult
from shoal.execution.calls.protocol import function_payload, plain_payload
from shoal.execution.processes.wakeup import Wakeup
from shoal.futures import CallCrashedError, CallError, DependencyFailed, RemoteTraceback
from support.clusters import NAME, LocalCluster, local_cluster
from support.command import wait_until

PATIENCE = 60.0
ONE_CORE = ("--agent=--cores=1",)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One cluster for all tests that leave it as it was."""
    with local_cluster(tmp_path_factory.mktemp("lab"), 2, *ONE_CORE) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def ex(lab: LocalCluster) -> Iterator[shoal.Executor]:
    with shoal.Executor(cluster=str(lab.access)) as executor:
        yield executor


def is_running(pid: int) -> bool:
    """Whether there is such a process that has not ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def has_ended(pid: int) -> bool:
    return not is_running(pid)


def noop(x: int) -> int:
    return x


def add(x: int, y: int) -> int:
    return x + y


def fail(text: str) -> None:
    raise ValueError(text)


def leave_mark(path: str) -> int:
    """Notes which process this is, all at once."""
    Path(f"{path}.new").write_text(str(os.getpid()))
    os.replace(f"{path}.new", path)
    return os.getppid()


def meet(mine: str, other: str) -> int:
    """Returns only when the other call runs as well; the agent's process."""
    agent = leave_mark(mine)
    wait_until(lambda: os.path.exists(other), other)
    return agent


def last_long(path: str) -> None:
    leave_mark(path)
    time.sleep(600)  # it is ended by the test


def nap(x: int, seconds: float = 0.01) -> int:
    time.sleep(seconds)  # what it is: a call that takes a while
    return x


def wait_for_file(path: str) -> str:
    while not os.path.exists(path):
        time.sleep(0.01)  # polls until somebody makes it
    return path


def note(path: str, number: int, seconds: float = 0.01) -> int:
    """Leaves a line, so that a call that ran twice is noticed; with the agent's process."""
    time.sleep(seconds)  # as above
    with open(path, "a") as file:
        file.write(f"{number} {os.getppid()}\n")
    return number


def noted(path: Path) -> list[tuple[int, int]]:
    """Calls that have run, in this order, and the agents that had them."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(number), int(agent)) for number, agent in map(str.split, lines)]


def fail_once(path: str) -> str:
    if not os.path.exists(path):
        leave_mark(path)
        raise OSError("not yet")
    return "done"


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run_until(path: str) -> int:
    wait_until(lambda: os.path.exists(path), path)
    return os.getppid()


# ---- the executor as it is on one machine --------------------------------------------------------------------------


def test_calls_run_on_all_agents_at_once(lab: LocalCluster, ex: shoal.Executor, tmp_path: Path) -> None:
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    both = {ex.submit(meet, one, other), ex.submit(meet, other, one)}
    assert {future.result(PATIENCE) for future in both} == set(lab.agents().values())


def test_map_gives_ten_thousand_results_in_order(ex: shoal.Executor) -> None:
    assert list(ex.map(noop, range(10_000), timeout=PATIENCE)) == list(range(10_000))


def test_futures_as_arguments_make_chains_and_diamonds(ex: shoal.Executor) -> None:
    future = ex.submit(noop, 0)
    for _ in range(200):
        future = ex.submit(add, future, 1)
    sides = [ex.submit(add, future, side) for side in range(10)]
    assert ex.submit(sum, sides).result(PATIENCE) == 10 * 200 + 45


def test_an_exception_comes_back_with_its_remote_traceback(ex: shoal.Executor) -> None:
    future = ex.submit(fail, "no such luck")
    follower = ex.submit(add, future, 1)
    error = future.exception(PATIENCE)
    assert isinstance(error, ValueError) and str(error) == "no such luck"
    assert isinstance(error.__cause__, RemoteTraceback) and "in fail" in str(error.__cause__)
    with pytest.raises(DependencyFailed, match="no such luck"):
        follower.result(PATIENCE)


def test_functions_of_the_program_travel_by_value(ex: shoal.Executor) -> None:
    offset = 40
    assert ex.submit(lambda x: x + offset, 2).result(PATIENCE) == 42


def test_a_running_call_that_is_cancelled_ends_with_its_worker(ex: shoal.Executor, tmp_path: Path) -> None:
    mark = tmp_path / "runs"
    future = ex.submit(last_long, str(mark))
    wait_until(mark.exists, "the call runs")
    assert future.cancel()
    with pytest.raises(CancelledError):
        future.result(PATIENCE)
    wait_until(lambda: not is_running(int(mark.read_text())), "its worker has ended")
    assert ex.submit(noop, 1).result(PATIENCE) == 1


def test_a_call_that_waits_and_is_cancelled_never_runs(ex: shoal.Executor, tmp_path: Path) -> None:
    go, never, marks = tmp_path / "go", tmp_path / "never", [tmp_path / "one", tmp_path / "other"]
    running = [ex.submit(lambda mark: (leave_mark(mark), run_until(str(go))), str(mark)) for mark in marks]
    for mark in marks:
        wait_until(mark.exists, "both cores are taken")
    waiting = ex.submit(leave_mark, str(never))
    assert waiting.cancel()
    go.touch()
    for future in running:
        future.result(PATIENCE)
    assert ex.submit(noop, 2).result(PATIENCE) == 2
    assert waiting.cancelled() and not never.exists()


def test_values_larger_than_a_frame_travel_both_ways(ex: shoal.Executor) -> None:
    value = random.Random(7).randbytes(20 * PART_BYTES + 17)
    assert ex.submit(bytes.__add__, value, b"!").result(PATIENCE) == value + b"!"


def test_a_crash_costs_one_call(ex: shoal.Executor) -> None:
    futures = [ex.submit(noop, number) for number in range(50)]
    crashed = ex.submit(die)
    futures += [ex.submit(noop, number) for number in range(50)]
    assert isinstance(crashed.exception(PATIENCE), CallCrashedError)
    assert [future.result(PATIENCE) for future in futures] == [*range(50), *range(50)]


def test_retries_and_time_limits_hold_on_agents(ex: shoal.Executor, tmp_path: Path) -> None:
    assert ex.with_options(retries=1).submit(fail_once, str(tmp_path / "tried")).result(PATIENCE) == "done"
    with pytest.raises(TimeoutError, match=r"after 0\.2 s"):
        ex.with_options(timeout=0.2).submit(time.sleep, 600).result(PATIENCE)


def test_what_a_call_prints_appears_here(ex: shoal.Executor, capsys: pytest.CaptureFixture[str]) -> None:
    ex.submit(print, "hello from afar").result(PATIENCE)
    assert "hello from afar" in capsys.readouterr().out


def test_shutdown_waits_for_calls_and_ends_their_workers(lab: LocalCluster, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    executor = shoal.Executor(cluster=str(lab.access))
    future = executor.submit(leave_mark, str(mark))
    executor.shutdown()
    assert future.done() and future.result() in lab.agents().values()
    wait_until(lambda: not is_running(int(mark.read_text())), "the worker has ended")
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(noop, 1)


def test_two_clients_do_not_disturb_each_other(lab: LocalCluster, ex: shoal.Executor) -> None:
    with shoal.Executor(cluster=str(lab.access)) as other:
        mine, theirs = ex.map(nap, range(40)), other.map(add, range(40), range(40))
        assert list(theirs) == [2 * number for number in range(40)]
        assert list(mine) == list(range(40))


def test_wide_calls_get_their_turn_among_narrow_ones(tmp_path: Path) -> None:
    with local_cluster(tmp_path, 2, "--agent=--cores=2") as cluster, shoal.Executor(cluster=str(cluster.access)) as ex:
        begun, ran = tmp_path / "begun", tmp_path / "ran"
        first = [ex.submit(wait_for_file, str(begun)) for _ in range(4)]
        # So long that they are not handed over in bundles: each that is started before the wide one counts for that.
        narrow = [ex.submit(note, str(ran), number, 0.03) for number in range(600)]
        wide = ex.with_options(cores=2).submit(note, str(ran), -1)
        begun.touch()  # until now all cores were taken: whoever gets one is chosen among all of them
        assert [future.result(PATIENCE) for future in first] == 4 * [str(begun)]
        assert [future.result(PATIENCE) for future in [*narrow, wide]] == [*range(600), -1]
    finished = [number for number, _ in noted(ran)]
    assert sorted(finished) == [-1, *range(600)]
    assert finished.index(-1) < 300


# ---- agents that go and come ---------------------------------------------------------------------------------------


def test_calls_of_a_killed_agent_run_elsewhere(tmp_path: Path) -> None:
    with local_cluster(tmp_path, 2, *ONE_CORE) as cluster, shoal.Executor(cluster=str(cluster.access)) as ex:
        agents, ran = cluster.agents(), tmp_path / "ran"
        futures = [ex.submit(note, str(ran), number, 0.02) for number in range(600)]
        wait_until(lambda: {agent for _, agent in noted(ran)} == {*agents.values()}, "both have some")
        os.kill(agents[0], signal.SIGKILL)
        assert [future.result(PATIENCE) for future in futures] == list(range(600))
    assert {number for number, _ in noted(ran)} == {*range(600)}


def test_an_agent_that_stops_for_a_moment_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_module, "SILENCE_SECONDS", PATIENCE)  # on a busy machine the moment may be a long one
    with local_cluster(tmp_path, 2, *ONE_CORE) as cluster, shoal.Executor(cluster=str(cluster.access)) as ex:
        ran, (stopped, other) = tmp_path / "ran", cluster.agents().values()
        futures = [ex.submit(note, str(ran), number, 0.03) for number in range(300)]
        wait_until(lambda: {agent for _, agent in noted(ran)} == {stopped, other}, "both have some")
        os.kill(stopped, signal.SIGSTOP)
        try:
            had = len(noted(ran))
            wait_until(
                lambda: [agent for _, agent in noted(ran)[had:]].count(other) >= 30 or len(noted(ran)) == 300,
                "the other agent goes on",
            )
        finally:
            os.kill(stopped, signal.SIGCONT)
        assert [future.result(PATIENCE) for future in futures] == list(range(300))
    assert sorted(number for number, _ in noted(ran)) == list(range(300))


def test_calls_and_a_workflow_share_the_agents(tmp_path: Path) -> None:
    with local_cluster(tmp_path, 2, *ONE_CORE) as cluster, shoal.Executor(cluster=str(cluster.access)) as ex:
        rules = [f"out.{number}:\n\tsleep 0.05; echo {number} > out.{number}\n" for number in range(20)]
        (tmp_path / "Makeflow").write_text("".join(rules))
        run = cluster.begin("run", "--cluster", NAME, "Makeflow", where=tmp_path)
        numbers = [number for _ in range(20) for number in ex.map(nap, range(20), timeout=PATIENCE)]
        assert run.wait(PATIENCE) == 0, cluster.logs()
        assert numbers == [*range(20)] * 20
        assert {(tmp_path / f"out.{number}").read_text() for number in range(20)} == {f"{n}\n" for n in range(20)}


def test_an_agent_that_is_stopped_finishes_its_calls_and_gets_no_more(tmp_path: Path) -> None:
    with local_cluster(tmp_path, 2, *ONE_CORE) as cluster, shoal.Executor(cluster=str(cluster.access)) as ex:
        marks, go = [tmp_path / "one", tmp_path / "other"], tmp_path / "go"
        running = [ex.submit(lambda mark: (leave_mark(mark), run_until(str(go)))[1], str(mark)) for mark in marks]
        for mark in marks:
            wait_until(mark.exists, "both run")
        leaving, staying = cluster.agents().values()
        os.kill(leaving, signal.SIGTERM)
        wait_until(lambda: "starts nothing more" in cluster.shoal("cluster", "status", NAME), "the agent is leaving")
        go.touch()
        assert {future.result(PATIENCE) for future in running} == {leaving, staying}
        assert {ex.submit(os.getppid).result(PATIENCE) for _ in range(20)} == {staying}
        wait_until(lambda: not is_running(leaving), "the agent has ended")


def test_an_agent_that_joins_later_gets_calls(tmp_path: Path) -> None:
    with local_cluster(tmp_path, 1, *ONE_CORE) as cluster, shoal.Executor(cluster=str(cluster.access)) as ex:
        assert ex.submit(noop, 1).result(PATIENCE) == 1
        cluster.shoal("cluster", "scale", NAME, "2")
        one, other = str(tmp_path / "one"), str(tmp_path / "other")
        both = [ex.submit(meet, one, other), ex.submit(meet, other, one)]
        assert len({future.result(PATIENCE) for future in both}) == 2


def test_without_any_agent_calls_fail_with_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with local_cluster(tmp_path, 1, *ONE_CORE) as cluster, shoal.Executor(cluster=str(cluster.access)) as ex:
        mark = tmp_path / "runs"
        future = ex.submit(last_long, str(mark))
        wait_until(mark.exists, "the call runs")
        monkeypatch.setattr(cluster_module, "NO_AGENT_SECONDS", 1.0)
        cluster.kill_agent(0)
        with pytest.raises(CallError, match="no agent of the cluster 'lab' could run the call for 1 s"):
            future.result(PATIENCE)
        wait_until(lambda: not is_running(int(mark.read_text())), "the worker went with its agent")


def test_a_call_server_ends_the_calls_of_a_client_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with _Farmed(tmp_path) as farmed:
        farmed.open()
        mark = tmp_path / "runs"
        farmed.call(function_payload(last_long), plain_payload((str(mark),), {}))
        farmed.turn_until(mark.exists, "the call runs", speaking=True)
        monkeypatch.setattr(farm_module, "GONE_SECONDS", 0.5)
        farmed.turn_until(lambda: not is_running(int(mark.read_text())), "it was ended")
        assert farmed.beat() == CallsReply("client", 0, [], UNKNOWN)


def test_a_call_server_ends_idle_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(farm_module, "IDLE_SECONDS", 0.5)
    with _Farmed(tmp_path) as farmed:
        farmed.open()
        one, other = tmp_path / "one", tmp_path / "other"
        for mark in (one, other):
            farmed.call(function_payload(leave_mark), plain_payload((str(mark),), {}))
            farmed.turn_until(mark.exists, "the call runs", speaking=True)
            worker = int(mark.read_text())
            farmed.turn_until(partial(has_ended, worker), "its worker was ended", speaking=True)
        assert [result.outcome for result in farmed.results] == ["ok", "ok"]


def test_a_client_that_makes_no_sense_costs_only_itself(tmp_path: Path) -> None:
    with _Farmed(tmp_path) as farmed:
        farmed.call(function_payload(noop), plain_payload((1,), {}))  # without an opening
        assert farmed.beat() == CallsReply("client", 0, [], UNKNOWN)
        other = CallStream()
        other.put(encode_item(SessionOpened(sys.version_info[:2], os.getcwd(), sys.path)))
        other.put(encode_item(CallsGiven(1, Resources.parse({"cores": 1}), [CallRequest(1, 1, 99, b"")])))
        farmed.farm.hear(CallsRequest("other", *other.next_run(0.0), 0), "there")
        unknown = farmed.farm.hear(CallsRequest("other", 0, [], 0), "there")
        assert unknown == CallsReply("other", 0, [], UNKNOWN) and not farmed.farm.busy()


class _Farmed:
    """A farm without an agent around it, and its only client."""

    def __init__(self, folder: Path) -> None:
        self.wakeup = Wakeup(())
        self.told: list[CallsReply] = []
        self.farm = CallServer(Resources.parse({"cores": 1}), str(folder), lambda route, told: self.told.append(told))
        self.farm.attend(self.wakeup)
        self.stream = CallStream()
        self.results: list[CallResult] = []
        self.calls = 0

    def __enter__(self) -> _Farmed:
        return self

    def __exit__(self, *error: object) -> None:
        self.farm.close()
        self.wakeup.close()

    def open(self) -> None:
        self.stream.put(encode_item(SessionOpened(sys.version_info[:2], os.getcwd(), sys.path)))

    def call(self, function: bytes, payload: bytes) -> None:
        self.calls += 1
        request = CallRequest(self.calls, 1, self.calls, payload)
        self.stream.put(encode_item(FunctionGiven(self.calls, function)))
        self.stream.put(encode_item(CallsGiven(self.calls, Resources.parse({"cores": 1}), [request])))
        first, parts = self.stream.next_run(0.0)
        self.farm.hear(CallsRequest("client", first, parts, self.stream.heard), "here")

    def beat(self) -> CallsReply | None:
        return self.farm.hear(CallsRequest("client", 0, [], self.stream.heard), "here")

    def turn_until(self, condition: Callable[[], bool], what: str, *, speaking: bool = False) -> None:
        def turned() -> bool:
            if speaking:
                self.beat()
            self.farm.turn(self.wakeup.wait(0.01))
            told, self.told = self.told, []
            for each in told:
                for item in self.stream.take(each.first, each.parts):
                    ended = decode_server_item(item)
                    if isinstance(ended, CallsEnded):
                        self.results += ended.results
            return condition()

        wait_until(turned, what)


# ---- who may, and what cannot be -----------------------------------------------------------------------------------


def test_a_viewer_cannot_have_calls_run(lab: LocalCluster, tmp_path: Path) -> None:
    path = tmp_path / "viewer.json"
    lab.shoal("cluster", "access", NAME, "--role", "viewer", "--output", str(path))
    with pytest.raises(shoal.InputError, match="has no key for the role of a client"):
        shoal.Executor(cluster=str(path))
    viewer = narrowed(read(str(lab.access)), Role.VIEWER)
    with Caller(viewer, make_codec(), role=Role.VIEWER) as caller:
        parts = [StreamPart(encode_item(SessionOpened((3, 11), "/", [])))]
        answer = caller.ask(CallsRequest("somebody", 1, parts, 0), PATIENCE)
    assert answer == RefusedReply("a viewer may not send this request")


def test_invalid_arguments_give_one_message(
    lab: LocalCluster, ex: shoal.Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_HOME", str(lab.folder / "home"))
    with pytest.raises(shoal.InputError, match="there is no cluster 'elsewhere' here"):
        shoal.Executor(cluster="elsewhere")
    with pytest.raises(shoal.InputError, match="has the resources of its agents"):
        shoal.Executor(cluster=NAME, cores=2)
    with pytest.raises(shoal.InputError, match="no agent of the cluster 'lab' has more than 1"):
        ex.with_options(cores=2)
    with shoal.Executor(cluster=NAME) as by_name:
        assert by_name.submit(noop, 3).result(PATIENCE) == 3


# ---- the stream ----------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), sizes=st.lists(st.sampled_from([1, 100, PART_BYTES, 3 * PART_BYTES]), max_size=12))
def test_a_stream_delivers_everything_once_and_in_order_whatever_is_lost(seed: int, sizes: list[int]) -> None:
    rng = random.Random(seed)
    sender, receiver = CallStream(), CallStream()
    items = [bytes([number]) * size for number, size in enumerate(sizes)]
    for item in items:
        sender.put(item)
    arrived: list[bytes] = []
    on_the_way: list[tuple[int, list[StreamPart]]] = []
    now = 0.0
    while len(arrived) < len(items):
        now += 100.0
        sender.repeat(now)
        while (run := sender.next_run(now))[1]:
            on_the_way += [run] * rng.choice([0, 1, 1, 2])
        rng.shuffle(on_the_way)
        for first, parts in on_the_way:
            arrived += receiver.take(first, parts)
            if rng.random() < 0.5:
                sender.confirm(receiver.heard, now)
        on_the_way.clear()
    assert arrived == items
