"""Nodes as jobs of a real Slurm, started for these tests; the agents are small stand-ins."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import pytest

from shoal.cluster.nodes.factory import Bounds, Factory, FactoryNode, QueueLength, SubmitNodes
from shoal.cluster.nodes.offer import Declared, MachineFacts, offer
from shoal.cluster.nodes.remote_setup import Archive, InstalledShoal, SlurmPlace, arrange, carry
from shoal.cluster.nodes.slurm import SlurmStarter
from shoal.cluster.nodes.starters import (
    Handle,
    NodePhase,
    NodeStatus,
    NotAnsweringError,
    SlurmHandle,
    decode_handles,
    encode_handles,
)
from shoal.core.resources import FRACTION
from support.slurm import MOST_ELEMENTS, Slurm, private_slurm, processes_with, wait_until

AGENT = [
    sys.executable,
    "-c",
    "import json, os, signal, sys\n"
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit('asked to end'))\n"
    "print(json.dumps(dict(os.environ)), flush=True)\n"
    "signal.pause()",
]
STUBBORN = [
    sys.executable,
    "-c",
    "import os, signal\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "os.fork(); print('ready', flush=True)\n"
    "while True: signal.pause()",
]
WHOLE_NODE = ["--exclusive", "--time=10"]


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with private_slurm(4) as found:
        yield found


@pytest.fixture
def logs(slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A folder for logs, with this Slurm as the one that is asked; every job ends with the test."""
    monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
    yield str(tmp_path / "logs")
    slurm.ask("scancel", "--user=root")
    wait_until(lambda: not slurm.leftovers(), "no job is left")
    wait_until(lambda: slurm.idle_nodes() == 4, "all nodes are free again")


def standings(starter: SlurmStarter, handles: Iterable[Handle], phase: NodePhase) -> dict[Handle, NodeStatus]:
    """How all stand once they are in this phase."""
    handles = list(handles)
    found = starter.poll(handles)
    deadline = time.monotonic() + 60
    while not all(standing.phase is phase for standing in found.values()):
        assert time.monotonic() < deadline, f"not all {phase}: {found}"
        time.sleep(0.2)
        found = starter.poll(handles)
    assert set(found) == set(handles)
    return found


def said(handle: Handle) -> str:
    """What stands in the node's log, which Slurm makes a moment after the node counts as running."""
    log = Path(handle.log)
    return log.read_text() if log.exists() else ""


def environment_of(handle: Handle) -> dict[str, str]:
    wait_until(lambda: "}\n" in said(handle), "the agent has told its environment")
    return msgspec.json.decode(said(handle).split("\n")[0], type=dict[str, str])


def test_four_nodes_come_run_and_go(slurm: Slurm, logs: str) -> None:
    starter = SlurmStarter(AGENT, logs, WHOLE_NODE)
    assert starter.start(0).handles == ()
    found = starter.start(4)
    assert found.problems == ()
    running = standings(starter, found.handles, NodePhase.RUNNING)
    for handle, standing in running.items():
        seen = environment_of(handle)
        assert seen["SHOAL_NODE"] == handle.name
        assert standing.ends_at == float(seen["SLURM_JOB_END_TIME"])
        assert 540 < standing.ends_at - time.time() <= 601
    assert len({environment_of(handle)["SLURMD_NODENAME"] for handle in found.handles}) == 4
    starter.stop(found.handles[:2])
    standings(starter, found.handles[:2], NodePhase.ENDED)
    assert {standing.phase for standing in starter.poll(found.handles[2:]).values()} == {NodePhase.RUNNING}
    starter.stop(found.handles)
    ended = standings(starter, found.handles, NodePhase.ENDED)
    assert {standing.reason for standing in ended.values()} == {"cancelled"}
    for handle in found.handles:
        assert "asked to end" in said(handle)
    wait_until(lambda: not slurm.leftovers(), "no process is left")


def test_a_factory_starts_four_nodes_for_the_work_and_drains_them_after_it(slurm: Slurm, logs: str) -> None:
    """The decisions are made under a clock of the test's own; jobs and phases are real."""
    starter = SlurmStarter(AGENT, logs, WHOLE_NODE)
    factory = Factory(Bounds(maximum=4, idle_seconds=60, start_seconds=5, tasks_per_node=2, per_round=3))
    handles: dict[str, Handle] = {}
    counts = []
    for now, tasks in [(0.0, 0), (1.0, 20), (2.0, 20), (3.0, 20), (100.0, 0), (130.0, 0), (170.0, 0), (180.0, 0)]:
        if now == 100.0:
            standings(starter, handles.values(), NodePhase.RUNNING)
        found = starter.poll(handles.values())
        idle = 100.0 if now >= 100.0 else None
        nodes = [FactoryNode(one.name, found[one].phase, idle_since=idle) for one in handles.values()]
        for action in factory.decide(now, QueueLength(tasks, 0), nodes):
            if isinstance(action, SubmitNodes):
                handles |= {handle.name: handle for handle in starter.start(action.count).handles}
            else:
                starter.stop([handles[action.node]])
                standings(starter, [handles.pop(action.node)], NodePhase.ENDED)
        counts.append(len(handles))
    assert counts == [0, 3, 4, 4, 4, 4, 0, 0]
    wait_until(lambda: not slurm.leftovers(), "no process is left")


def test_a_node_of_slurm_can_be_asked_whether_shoal_works_there(logs: str) -> None:
    assert arrange(SlurmPlace(["--time=1"])) == InstalledShoal(sys.executable)
    path = carry(SlurmPlace(["--time=1"]), Archive(["msgspec"]), os.path.join(logs, "cache"))
    assert os.path.exists(os.path.join(path, "shoal", "__init__.py"))


def test_a_node_offers_its_allocation(logs: str) -> None:
    starter = SlurmStarter(AGENT, logs, ["--cpus-per-task=1", "--time=5"])
    (handle,) = starter.start(1).handles
    standings(starter, [handle], NodePhase.RUNNING)
    found = offer(environment_of(handle), MachineFacts(64, 1 << 40, 1 << 40, gpus=2), Declared())
    assert found.resources.get("cores") == FRACTION
    assert found.resources.get("gpus") == 0
    assert found.ends_at is not None
    assert found.ends_at - time.time() <= 301


def test_a_later_process_goes_on_with_the_handles(logs: str) -> None:
    found = SlurmStarter(AGENT, logs, WHOLE_NODE).start(2)
    handles = decode_handles(encode_handles(found.handles))
    later = SlurmStarter(AGENT, logs)
    standings(later, handles, NodePhase.RUNNING)
    later.stop(handles)
    standings(later, handles, NodePhase.ENDED)


def test_a_waiting_node_says_what_it_waits_for_and_can_be_cancelled(logs: str) -> None:
    starter = SlurmStarter(AGENT, logs, WHOLE_NODE)
    first = starter.start(4).handles
    standings(starter, first, NodePhase.RUNNING)
    (more,) = starter.start(1).handles
    assert "(Resources)" in until_reason(starter, more, "Resources")
    starter.stop([more])
    assert standings(starter, [more], NodePhase.ENDED)[more].reason == "cancelled"
    assert {standing.phase for standing in starter.poll(first).values()} == {NodePhase.RUNNING}


def until_reason(starter: SlurmStarter, handle: Handle, code: str) -> str:
    wait_until(lambda: code in starter.poll([handle])[handle].reason, f"the reason is {code}")
    standing = starter.poll([handle])[handle]
    assert standing.phase is NodePhase.WAITING
    return standing.reason


def test_a_node_that_can_never_run_says_so(logs: str) -> None:
    starter = SlurmStarter(AGENT, logs, ["--begin=now+1hour"])
    (handle,) = starter.start(1).handles
    assert "its begin time has not come" in until_reason(starter, handle, "BeginTime")


def test_an_allocation_taken_away_by_slurm_is_noticed(slurm: Slurm, logs: str) -> None:
    starter = SlurmStarter(AGENT, logs, WHOLE_NODE)
    handles = starter.start(2).handles
    standings(starter, handles, NodePhase.RUNNING)
    gone = handles[0]
    assert isinstance(gone, SlurmHandle)
    slurm.ask("scancel", gone.job)
    assert standings(starter, [gone], NodePhase.ENDED)[gone].reason == "cancelled"
    assert starter.poll(handles)[handles[1]].phase is NodePhase.RUNNING


def test_a_node_gets_a_signal_before_its_time_limit(slurm: Slurm, logs: str) -> None:
    """A minute is the shortest limit, and Slurm sends the notice early rather than late."""
    starter = SlurmStarter(AGENT, logs, ["--exclusive", "--time=1"])
    (handle,) = starter.start(1).handles
    standings(starter, [handle], NodePhase.RUNNING)
    begun = time.monotonic()
    wait_until(lambda: "asked to end" in said(handle), "the agent got SIGTERM", 120)
    assert time.monotonic() - begun < 60, "the notice came before the minute was over"
    standings(starter, [handle], NodePhase.ENDED)


def test_an_agent_that_fails_is_reported_with_its_last_message(logs: str) -> None:
    starter = SlurmStarter([sys.executable, "-c", "import sys; sys.exit('the store does not answer')"], logs)
    (handle,) = starter.start(1).handles
    assert standings(starter, [handle], NodePhase.ENDED)[handle].reason.endswith(": the store does not answer")


def test_a_program_that_the_node_does_not_have_is_one_sentence(logs: str) -> None:
    starter = SlurmStarter(["/no/such/python", "-m", "shoal"], logs)
    (handle,) = starter.start(1).handles
    reason = standings(starter, [handle], NodePhase.ENDED)[handle].reason
    assert reason.endswith("has no /no/such/python: is the file system shared?")


def test_cancelling_everything_leaves_no_process(slurm: Slurm, logs: str) -> None:
    starter = SlurmStarter(STUBBORN, logs, WHOLE_NODE)
    handles = starter.start(4).handles
    standings(starter, handles, NodePhase.RUNNING)
    for handle in handles:
        wait_until(lambda handle=handle: said(handle).count("ready") == 2, "both processes run")  # type: ignore[misc]
    slurm.ask("scancel", "--user=root")
    standings(starter, handles, NodePhase.ENDED)
    wait_until(lambda: not slurm.leftovers(), "no process is left")
    assert [pid for handle in handles for pid in processes_with(f"SHOAL_NODE={handle.name}")] == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--partition=nowhere"], "invalid partition specified: nowhere"),
        (["--unheard-of"], "unrecognized option '--unheard-of'"),
        (["--time=tomorrow"], "Invalid --time specification"),
    ],
)
def test_what_sbatch_complains_of_is_one_sentence(logs: str, options: list[str], words: str) -> None:
    for count in (1, 3):
        found = SlurmStarter(AGENT, logs, options).start(count)
        assert found.handles == ()
        (problem,) = found.problems
        assert problem.startswith(f"Slurm rejects the nodes: {words}")
        assert "\n" not in problem


def test_more_nodes_than_an_array_may_have_are_single_jobs(logs: str) -> None:
    starter = SlurmStarter(AGENT, logs, ["--begin=now+1hour"])
    found = starter.start(MOST_ELEMENTS + 1)
    try:
        assert found.problems == ()
        assert len({handle.name for handle in found.handles}) == len(found.handles) == MOST_ELEMENTS + 1
        assert all("_" not in handle.job for handle in found.handles if isinstance(handle, SlurmHandle))
    finally:
        starter.stop(found.handles)


def test_a_controller_that_does_not_answer_ends_no_node(slurm: Slurm, logs: str) -> None:
    starter = SlurmStarter(AGENT, logs, WHOLE_NODE)
    handles = starter.start(1).handles
    standings(starter, handles, NodePhase.RUNNING)
    controller = slurm.daemons[1]
    os.kill(controller.pid, signal.SIGTERM)
    controller.wait(60)
    try:
        with pytest.raises(NotAnsweringError, match="Slurm does not report the state of the nodes"):
            starter.poll(handles)
        assert starter.start(1).problems
    finally:
        slurm.restart_controller()
    assert starter.poll(handles)[handles[0]].phase is NodePhase.RUNNING


def test_a_node_that_slurm_has_forgotten_has_ended(logs: str) -> None:
    handle = SlurmHandle("n", "999999", os.path.join(logs, "none.log"))
    array = SlurmHandle("m", "999998_3", os.path.join(logs, "none.log"))
    starter = SlurmStarter(AGENT, logs)
    for known in ([handle], [handle, array]):
        found = starter.poll(known)
        assert {standing.phase for standing in found.values()} == {NodePhase.ENDED}
        assert "no record" in found[handle].reason
